"""What a restore of etcd has to know of RKE2 and K3s."""

from __future__ import annotations

import re
from dataclasses import dataclass

from caphv.api.clusterapi import RANCHER_CONTROL_PLANE
from caphv.api.object import Obj, at, text_at
from operations.change.changes import ChangeError
from operations.read.etcdsnapshots import is_path

_PORT = re.compile(r"[1-9][0-9]{1,4}")
_FOLDER = re.compile(r"(/[A-Za-z0-9_.-]+)+")


@dataclass(frozen=True, slots=True)
class Distribution:
    """What differs between RKE2 and K3s on a server."""

    program: str
    service: str
    data: str
    join_port: int

    @property
    def config(self) -> str:
        """The file of configuration that the bootstrap provider writes."""
        return f"/etc/rancher/{self.program}/config.yaml"


def distribution_of(cluster: Obj, control_plane: Obj | None) -> Distribution:
    """Return the distribution of a cluster.

    Raises `ChangeError` for one without snapshots, and if the place of the database is unknown.

    :param cluster: the Cluster
    :param control_plane: its control plane object, None if the user may not read it
    """
    kind = text_at(cluster, "spec", "controlPlaneRef", "kind")
    if kind == "KThreesControlPlane":
        path = ("spec", "kthreesConfigSpec", "serverConfig", "httpsListenPort")
        port = str(at(control_plane, *path) or "6443")
        if not _PORT.fullmatch(port):
            raise ChangeError(
                [f"{'.'.join(path)} {port!r} of the KThreesControlPlane is not a port"]
            )
        return Distribution("k3s", "k3s", "/var/lib/rancher/k3s", int(port))
    if kind == RANCHER_CONTROL_PLANE:
        raise ChangeError(["Rancher provisions the cluster: restore the snapshot there"])
    if kind != "RKE2ControlPlane":
        raise ChangeError([f"{kind or 'the control plane'} takes no snapshots: RKE2 and K3s do"])
    if control_plane is None:
        raise ChangeError(
            [
                "the RKE2ControlPlane, which names the folder of the database, cannot be read: ask "
                "for the right to get and list rke2controlplanes"
            ]
        )

    data = at(control_plane, "spec", "agentConfig", "dataDir") or "/var/lib/rancher/rke2"
    if not (isinstance(data, str) and is_path(data) and _FOLDER.fullmatch(data)):
        raise ChangeError(
            [
                f"spec.agentConfig.dataDir {data!r} of the RKE2ControlPlane is not an absolute "
                "path of letters, digits and _.-/: restore by hand"
            ]
        )
    return Distribution("rke2", "rke2-server", data, 9345)
