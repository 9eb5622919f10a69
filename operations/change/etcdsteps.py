"""Scripts that restore etcd of a cluster from a snapshot, for the shell of each server: pure.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from caphv.api import interfaceaddresses
from caphv.api.clusterapi import RANCHER_CONTROL_PLANE
from caphv.api.object import Obj, at
from operations.change.changes import ChangeError
from operations.read.etcdsnapshots import is_name, is_path
from operations.status.model import Cluster, Machine

_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_SIGNATURE = re.compile(r"[A-Za-z0-9+/]{32,64}={0,2}")
_PORT = re.compile(r"[1-9][0-9]{1,4}")
_FOLDER = re.compile(r"(/[A-Za-z0-9_.-]+)+")
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


@dataclass(frozen=True, slots=True)
class Step:
    """A script for root's shell on one machine, empty for one that cannot be reached.

    `user` is empty if it is unknown. `is_check` says that the script changes nothing.
    """

    title: str
    machine: str
    user: str
    address: str
    script: str
    is_check: bool = False

    @property
    def login(self) -> str:
        """`user@address`, or the address alone; empty without one."""
        return "@".join(filter(None, (self.user, self.address))) if self.address else ""


def distribution_of(cluster: Obj, control_plane: Obj | None) -> Distribution:
    """Return the distribution of a cluster.

    Raises `ChangeError` for one without snapshots, and if the place of the database is unknown.

    :param cluster: the Cluster
    :param control_plane: its control plane object, None if the user may not read it
    """
    kind = str(at(cluster, "spec", "controlPlaneRef", "kind") or "")
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


def address_of(machine: Machine) -> str:
    """Return the first IP address at which a machine can be reached; empty if it has none.

    The machine itself reports its addresses. They become part of commands for other machines.
    """
    for text in machine.addresses:
        address = interfaceaddresses.address_of(text)
        if address is None or address.is_link_local or address.is_loopback:
            continue
        if interfaceaddresses.is_host(address):
            return str(address)
    return ""


def control_planes(cluster: Cluster) -> list[Machine]:
    """Return all control plane machines, those that are being deleted included."""
    return [machine for machine in cluster.machines if machine.control_plane]


def steps(
    cluster: Cluster,
    distribution: Distribution,
    snapshot: str,
    machine: str,
    users: Mapping[str, str],
    *,
    identity: str,
    s3: bool,
    authority: str,
) -> tuple[Step, ...]:
    """Return the scripts in order, for each server. The first ones only read.

    Raises `ChangeError` unless the machine exists, stays, and has an address: without a restored
    server, the others would only lose their databases.

    :param cluster: the cluster
    :param distribution: RKE2 or K3s
    :param snapshot: the name in the S3 store, or a path on the machine
    :param machine: the Machine to restore on
    :param users: the user for SSH by name of the HarvesterMachine
    :param identity: the id of this restore, hexadecimal
    :param s3: whether the snapshot is in the store
    :param authority: the certificates of the cluster's CA, PEM
    """
    if not (is_name(snapshot) if s3 else is_path(snapshot)):
        raise ChangeError(
            [f"{snapshot!r} is not {'the name' if s3 else 'an absolute path'} of a file"]
        )
    # systemd expands variables in arguments, and a reset without a file keeps the old database.
    if "$" in snapshot:
        raise ChangeError(
            [f"{snapshot!r} contains $: copy the snapshot to a file without it, and give its path"]
        )
    servers = control_planes(cluster)
    target = next((server for server in servers if server.name == machine), None)
    problem = _problem_of(target)
    if target is None or problem:
        raise ChangeError(
            [
                f"Machine {machine} {problem}: no snapshot can be restored on it. End this restore "
                "with --finish --force if it has begun, then begin again with another --on"
            ]
        )

    if problems := list(_shared_addresses(servers)):
        raise ChangeError(problems)

    scripts = _Scripts(distribution, identity, snapshot, s3, _signature(authority))
    others = [server for server in servers if server is not target]
    result: list[Step] = []
    for server in (target, *others):
        if address_of(server):
            check = scripts.check(server, is_target=server is target)
            result.append(_step("Check the machine", server, users, check, is_check=True))
    # Those that are being deleted run until then, and would be a quorum of the old cluster.
    for server in (target, *others):
        stop = scripts.stop(server, is_target=server is target)
        result.append(_step(_stop_title(server), server, users, stop))
    title = "Restore the snapshot, and start the server"
    result.append(_step(title, target, users, scripts.restore(target)))
    title = "Set the old database aside, and join the restored server"
    address = address_of(target)
    result += [
        _step(title, server, users, scripts.join(server, address))
        for server in others
        if address_of(server) and not server.deleting
    ]
    return tuple(result)


@dataclass(frozen=True, slots=True)
class _Scripts:
    """The scripts of one restore."""

    distribution: Distribution
    id: str
    snapshot: str
    s3: bool
    authority: str

    def check(self, server: Machine, *, is_target: bool) -> str:
        parts = [_TOOLS, _IS_DONE, _CHECKS, 'echo "The machine is as expected."\n']
        if is_target:
            parts.insert(-1, _CHECK_FILE)
        elif not server.node:
            parts.insert(0, _HAS_DATABASE)
        return self._script(server, *parts)

    def stop(self, server: Machine, *, is_target: bool) -> str:
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
        once = (_IS_STOPPED, _CHECKS, _CHECK_FILE, _RESET)
        condition = 'if ! test -e "$restored"; then\n'
        # The lock, and the look for a unit, keep two resets from one database.
        return self._script(server, _TOOLS, condition, *once, "fi\n", _START)

    def join(self, server: Machine, address: str) -> str:
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


def _signature(authority: str) -> str:
    """Return the end of the first certificate, base64. Raises `ChangeError` for none."""
    certificate, end, _ = authority.partition("-----END CERTIFICATE-----")
    text = "".join(certificate.rpartition("-----")[2].split())
    if not (end and _SIGNATURE.fullmatch(text[-64:])):
        raise ChangeError(
            [
                "the kubeconfig of the cluster has no CA, which proves that a machine belongs to "
                "it: ask for the right to get its Secret, or restore by hand"
            ]
        )
    return text[-64:]


def _shared_addresses(servers: Sequence[Machine]) -> Iterator[str]:
    """Yield the addresses of several machines, of which one would be taken for the other."""
    machines: dict[str, list[str]] = {}
    for server in servers:
        machines.setdefault(address_of(server), []).append(server.name)
    for address, names in machines.items():
        if address and len(names) > 1:
            yield (
                f"Machines {' and '.join(names)} report address {address}: correct it in the guest "
                "that must not have it, or delete that Machine"
            )


def _problem_of(target: Machine | None) -> str:
    if target is None:
        return "does not exist"
    if target.deleting:
        return "is being deleted"
    return "" if address_of(target) else "has no address"


def _stop_title(server: Machine) -> str:
    if not address_of(server):
        return "Shut its VM down in Harvester, and leave it off"
    return "Stop the server, which is being deleted" if server.deleting else "Stop the server"


def _step(
    title: str,
    machine: Machine,
    users: Mapping[str, str],
    script: str,
    *,
    is_check: bool = False,
) -> Step:
    user = users.get(machine.infrastructure or machine.name, "")
    address = address_of(machine)
    if not _USER.fullmatch(user):
        user = ""
    return Step(title, machine.name, user, address, script if address else "", is_check)
