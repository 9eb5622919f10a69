"""Scripts that restore etcd from a snapshot, for root's shell of each server: pure.

The order is that of rancher/rke2-docs `docs/datastore/backup_restore.md` and k3s-io/docs
`docs/cli/etcd-snapshot.md` (August 2026), "Restoring Snapshots", "Multiple Servers", with these
additions:

- The service of RKE2 leaves the Pods of etcd and of the control plane running (`KillMode=process`).
  They are ended, and their manifests removed, as `bundle/bin/rke2-killall.sh` of rancher/rke2 does
  (August 2026), which rancher/rancher `pkg/capr/planner/etcdrestore.go` calls. That script also
  unmounts and deletes, and those before v1.32 delete contents of disks.
- The service is disabled until the server joins again: after a restart of its VM, two servers with
  the old database would be a quorum of the old cluster.
- Databases are set aside and not deleted, because the snapshots of a server are next to them.
- A server refuses the reset while its configuration names a server to join (rancher/rke2#3178,
  k3s-io/k3s#8488). One that joins again names the restored server, because the server that it
  joined before may be stopped, or replaced long ago.

Each script can be repeated, and does nothing where it was complete. A file or folder next to the
database with the restore's id in its name says so.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from operations.change.etcddistribution import Distribution
from operations.status.model import Machine

_PODS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "cloud-controller-manager",
)

# `main` is read whole before it runs, so that a broken connection cannot cut it, and no program
# reads the rest of it. The variables are the only part that differs between machines.
_HEAD = "main() {\nset -eu\n"
_FOOT = "}\nmain </dev/null"

# The tar archive of RKE2 is unpacked to the last folder of PATH where /usr/local is read-only.
_SETUP = """\
export PATH="$PATH:/usr/local/bin:/opt/rke2/bin"
db="$data/server/db"
restored="$db.restored-$id"
aside="$db.before-restore-$id"
environment_files() {
  systemctl show --property=EnvironmentFiles --value "$service" |
    sed 's/ (ignore_errors=[a-z]*)$//'
}
server_key="^[\\"']?server[\\"']? *:"
units='caphv-etcd-restore-*'
fail() { echo "caphv: $*" >&2; exit 1; }
case "$(uname -n)" in
  "$host" | "$host".* | "$node" | "$node".*) ;;
  *) fail "this is $(uname -n), not $host: nothing was changed; correct the Machine's address" ;;
esac
"""

_TOOLS = """\
for tool in systemctl systemd-run flock pgrep pkill uname tr curl timeout readlink "$program"; do
  command -v "$tool" >/dev/null || fail "$tool is not installed: nothing was changed"
done
systemd-run --help | grep -q -- --collect || fail "systemd is older than 236: nothing was changed"
exec 9>/run/caphv-etcd-restore.lock
flock -n 9 || fail "another step runs on this machine: wait for its end"
! systemctl is-active --quiet "$units" ||
  fail "a reset runs on this machine: wait for its end: journalctl -f -u '$units'"
"""

# `authority` is the end of the certificate of the cluster's CA, which contains the signature. A
# reset renames the folder of etcd, which fails for a mount point.
_CHECKS = """\
test -s "$data/server/tls/server-ca.crt" ||
  fail "$data is not the data folder of $program: nothing was changed"
tr -d '[:space:]' <"$data/server/tls/server-ca.crt" | grep -qF "$authority" ||
  fail "this is a server of another cluster: nothing was changed; correct the Machine's address"
for folder in "$db" "$db/etcd"; do
  ! grep -qF " $(readlink -f "$folder") " /proc/self/mounts ||
    fail "$folder is a mount point, and cannot be moved: restore it by hand"
done
! grep -Erqs "^[\\"' ]*server[\\"' ]*:" "$config.d" ||
  fail "a file in $config.d names the server to join: move the line to $config"
! grep -Eqs "^$url_variable=" $(environment_files) ||
  fail "$url_variable names the server to join: move it to $config, as server:"
"""

_CHECK_FILE = """\
test -n "$s3" || test -s "$snapshot" || fail "the snapshot is not there: nothing was changed"
"""

# For machines without a Node. They may have been made while etcd had no quorum, and never joined.
_HAS_DATABASE = """\
if ! test -e "$db/etcd" && ! test -e "$aside"; then
  echo "The machine has no database, and never joined."
  exit 0
fi
"""

_DISABLE = """\
if ! test -e "$db/etcd" && ! test -e "$aside"; then
  systemctl disable --now "$service" 2>/dev/null || true
fi
"""

_CAN_JOIN = """\
if ! command -v "$program" >/dev/null; then
  echo "$program is not installed: replace the Machine after the restore."
  exit 0
fi
test -e "$db/etcd" || mkdir -p "$aside"
"""

_IS_DONE = """\
if test -e "$restored" || test -e "$aside"; then echo "Done before."; exit 0; fi
"""

_STOP = """\
systemctl disable --now "$service"
"""

_END_PODS = """\
rm -f $manifests
count=0
while pgrep -f "$processes" >/dev/null; do
  count=$((count + 1))
  test "$count" -le 60 || fail "Pods of the control plane do not end: repeat this step"
  if test "$count" -le 30; then signal=TERM; else signal=KILL; fi
  pkill "-$signal" -f "$processes" || true
  sleep 1
done
"""

_ETCD_ENDS = """\
! grep -Eqs ':094[BC] [0-9A-F]+:[0-9A-F]+ 0A ' /proc/net/tcp /proc/net/tcp6 ||
  fail "a process still listens on port 2379 or 2380: end it, and repeat this step"
echo "The server is stopped."
"""

# A server that starts again and again is never "active".
_IS_STOPPED = """\
case "$(systemctl show --property=ActiveState --value "$service")" in
  inactive | failed) ;;
  *) fail "the server is not stopped: repeat the step that stops it" ;;
esac
! grep -Eqs ':094[BC] [0-9A-F]+:[0-9A-F]+ 0A ' /proc/net/tcp /proc/net/tcp6 ||
  fail "etcd runs on this machine: repeat the step that stops it"
"""

# The unit has the environment files of the service, for example with a proxy or SELinux, wherever
# a package or archive has put them. Its log is in the journal.
_RESET = """\
sed -i -E "s/$server_key/#&/" "$config"
# A reset writes it when it has renamed the old database and unpacked the snapshot, and refuses to
# run again while it is there (k3s-io/k3s pkg/etcd/etcd.go).
rm -f "$db/reset-flag"
set --
for file in $(environment_files); do set -- "$@" -p "EnvironmentFile=-$file"; done
set -- "$@" "$(command -v "$program")" server --cluster-reset
# A server with a store would look for a file there.
test -n "$s3" || set -- "$@" --etcd-s3=false
# Processes that containerd left keep the unit of an earlier attempt.
unit="caphv-etcd-restore-$id-$(date +%s)"
echo "The reset runs for up to 30 minutes; follow it with: journalctl -f -u $unit"
systemd-run --quiet --wait --collect "--unit=$unit" -p KillMode=process -p Delegate=yes \\
  -p LimitNOFILE=1048576 -p RuntimeMaxSec=1800 "$@" "--cluster-reset-restore-path=$snapshot" ||
  fail "the reset failed, and the server stays stopped: journalctl -u $unit"
test -e "$db/reset-flag" ||
  fail "the reset ended early, and the server stays stopped: repeat this step"
touch "$restored"
"""

# Without it, a server would lose its database for nothing. Both supervisors serve the certificate
# of the CA to anyone.
_IS_RESTORED = """\
curl --noproxy '*' -ksf -m 10 --retry 5 "$url/cacerts" | tr -d '[:space:]' |
  grep -qF "$authority" ||
  fail "no server of this cluster answers at $url: restore it first; nothing was changed"
"""

_SET_ASIDE = """\
if test -e "$db"; then mv "$db" "$aside"; else mkdir "$aside"; fi
"""

_NAME_SERVER = """\
grep -qxF "server: $url" "$config" ||
  sed -i -E -e "s/$server_key/#&/" -e "\\$a\\\\server: $url" "$config"
"""

_START = """\
systemctl enable "$service"
timeout 900 systemctl start "$service" ||
  fail "the server does not start: journalctl -u $service; then repeat this step"
echo "The server runs."
"""


@dataclass(frozen=True, slots=True)
class Scripts:
    """The scripts of one restore.

    `id` is the id of the restore, hexadecimal, and `s3` says whether the snapshot is in the store.
    `authority` is the end of the certificate of the cluster's CA, base64.
    """

    distribution: Distribution
    id: str
    snapshot: str
    s3: bool
    authority: str

    def check(self, server: Machine, *, is_target: bool) -> str:
        """Return the script that checks a server, and changes nothing."""
        parts = [_TOOLS, _IS_DONE, _CHECKS, 'echo "The machine is as expected."\n']
        if is_target:
            parts.insert(-1, _CHECK_FILE)
        elif not server.node:
            parts.insert(0, _HAS_DATABASE)
        return self._script(server, *parts)

    def stop(self, server: Machine, *, is_target: bool) -> str:
        """Return the script that stops a server and its etcd."""
        parts = [_TOOLS, _IS_DONE, _CHECKS, _STOP]
        if is_target:
            parts.insert(-1, _CHECK_FILE)
        elif not server.node:
            parts = [_DISABLE, _HAS_DATABASE, *parts]
        # K3s has no Pods of them, but runs all in its own process.
        if self.distribution.program == "rke2":
            parts.append(_END_PODS)
        return self._script(server, *parts, _ETCD_ENDS)

    def restore(self, server: Machine) -> str:
        """Return the script that restores the snapshot and starts the server."""
        once = (_IS_STOPPED, _CHECKS, _CHECK_FILE, _RESET)
        condition = 'if ! test -e "$restored"; then\n'
        # The lock, and the look for a unit, keep two resets from one database.
        return self._script(server, _TOOLS, condition, *once, "fi\n", _START)

    def join(self, server: Machine, address: str) -> str:
        """Return the script that sets the old database aside and joins the restored server.

        :param server: the server that joins
        :param address: IP address of the restored server
        """
        host = f"[{address}]" if ":" in address else address
        url = f"https://{host}:{self.distribution.join_port}"
        once = (_IS_STOPPED, _CHECKS, _SET_ASIDE)
        condition = 'if ! test -e "$aside"; then\n'
        parts = [_TOOLS, _IS_RESTORED, condition, *once, "fi\n", _NAME_SERVER, _START]
        if not server.node:
            parts.insert(0, _CAN_JOIN)
        return self._script(server, *parts, url=url)

    def _script(self, server: Machine, *parts: str, **variables: str) -> str:
        """Return a script of parts, after the variables that they use."""
        data = self.distribution.data
        # Without kubelet and containerd, nothing starts the Pods again.
        programs = "|".join((*_PODS, "kubelet", "containerd"))
        # cloud-init gives the guest the name of the VM, which is that of the HarvesterMachine.
        host = server.infrastructure or server.name
        variables |= {
            "host": host,
            "node": server.node.name if server.node else host,
            "authority": self.authority,
            "id": self.id,
            "program": self.distribution.program,
            "service": self.distribution.service,
            "data": data,
            "config": self.distribution.config,
            "url_variable": f"{self.distribution.program.upper()}_URL",
            "snapshot": self.snapshot,
            "s3": "yes" if self.s3 else "",
            "processes": f"^([^ ]*/)?({programs}) .*{re.escape(data)}/(server|agent)/",
            "manifests": " ".join(f"{data}/agent/pod-manifests/{name}.yaml" for name in _PODS),
        }
        body = _SETUP + "".join(parts)
        head = "".join(
            f"{name}={shlex.quote(value)}\n"
            for name, value in variables.items()
            if f"${name}" in body
        )
        return _HEAD + head + body + _FOOT
