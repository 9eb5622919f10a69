"""Stand-ins for what installs add-ons in guest and management clusters, each against a real API server.

Fleet (`fleet.py`), modelled after its packages `bundlereader`, `cli/apply`, `helmdeployer` and `deployer`, and after
Helm's packages `action` and `kube`:

- A folder that a path of a GitRepo names, and each folder with `fleet.yaml` below it, is a bundle and a Helm release.
- A bundle that its GitRepo no longer finds is uninstalled, unless `keepResources` is set on the bundle or the GitRepo.
- Uninstalling keeps objects whose release manifest has `helm.sh/resource-policy: keep` (Helm `action`).
- An upgrade deletes objects that the new release lacks, unless the live one has that annotation (Helm `kube`).
- A release with a kind that is not served installs nothing: "no matches for kind" (Helm `kube`).
- A bundle waits until all its `dependsOn` are ready, and a modified bundle is not ready.
- `correctDrift` restores what another client changed.

The manifests folder of RKE2 and K3s (`manifests.py`), modelled after K3s' package `deploy`:

- A server applies every file of the folder again at each start, whatever its checksum.
- While it runs, it applies a file again when its checksum changes.
- It ignores a file while `<file>.skip` exists, and leaves its objects alone.
- An Addon object records the checksum of each applied file.
"""
