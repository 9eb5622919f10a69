"""Stand-ins for what installs add-ons in guest and management clusters, each against a real API server.

`bundles.py` and `fleet.py` stand for Fleet, `manifests.py` for the manifests folder of RKE2 and K3s,
`helmcontroller.py` for their Helm controller, and `charts.py` for Helm. docs/sandbox.md lists what each is modelled
after.
"""
