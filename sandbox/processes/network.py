"""A loopback network for each sandbox, so that its virtual machines have reachable addresses.

On Linux, all of 127.0.0.0/8 is loopback. The network `127.<n>.0.0/16` belongs to the sandbox whose
etcd holds a socket that is bound in it. The kernel releases the socket with the process, so a
killed sandbox never keeps a network.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence

SECOND_OCTETS = range(10, 251)
CLAIM_PORT = 32100


class NoNetworkError(Exception):
    """No loopback network is free, or VMs could not use it."""


@contextlib.contextmanager
def claim(
    ports: Sequence[int] = (),
) -> Iterator[tuple[ipaddress.IPv4Network, socket.socket]]:
    """Lend a free network and the socket that claims it.

    The network stays claimed for as long as any process has the socket open. Guests listen on
    `ports` of their addresses, so no other process may listen on them on all addresses.
    """
    for octet in SECOND_OCTETS:
        with socket.socket() as holder:
            try:
                # Bind the last address but one. No VM gets it, so its port stays free for the
                # claim.
                holder.bind((f"127.{octet}.255.254", CLAIM_PORT))
            except OSError:
                continue

            _check_ports(f"127.{octet}.255.254", ports)
            yield ipaddress.IPv4Network(f"127.{octet}.0.0/16"), holder
            return

    raise NoNetworkError(
        f"no loopback network 127.{SECOND_OCTETS.start}.0.0/16 to "
        f"127.{SECOND_OCTETS.stop - 1}.0.0/16 is free: stop other sandboxes or the process that "
        f"listens on port {CLAIM_PORT} of all addresses"
    )


def _check_ports(address: str, ports: Sequence[int]) -> None:
    """Check that a process can listen on ports of an address that no guest has."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError:
                raise NoNetworkError(
                    f"port {port} of all addresses is in use, so no VM can listen on it: stop the "
                    "process that has it, for example K3s, RKE2 or a kubelet"
                ) from None


@contextlib.contextmanager
def reclaim(network: str) -> Iterator[socket.socket]:
    """Lend the socket that claims a given network again.

    Raises `NoNetworkError` if another sandbox has claimed it meanwhile.
    """
    with socket.socket() as holder:
        try:
            holder.bind((str(ipaddress.IPv4Network(network).broadcast_address - 1), CLAIM_PORT))
        except OSError:
            raise NoNetworkError(f"the network {network} is in use by another sandbox") from None
        yield holder
