"""Get an address by DHCP in guests whose own DHCP client cannot get one.

wicked, the network service of SLES, drops every DHCP answer on virtio NICs, because its packet
filter reads the headers at the wrong offset. ISC dhclient receives the answers, but its script on
SLES leaves the configuration to wicked. So the guest gets our script. A boot command writes the
script, because cloud-init writes `write_files` only afterwards.
"""

from collections.abc import Iterable

_SCRIPT = "/usr/local/sbin/caphv-dhclient-script"
# Leases survive a reboot, so that the guest requests its former address.
_LEASES = "/var/lib/caphv"

_SCRIPT_TEXT = """\
#!/bin/sh
# Configures an interface with what dhclient got; called by it with the reason and the lease \
in the environment.
bits() {
  count=0
  for octet in $(echo "$1" | tr . ' '); do
    while [ "$octet" -gt 0 ]; do
      count=$((count + octet % 2))
      octet=$((octet / 2))
    done
  done
  echo "$count"
}
case "$reason" in
PREINIT)
  ip link set dev "$interface" up
  ;;
BOUND|RENEW|REBIND|REBOOT|TIMEOUT)
  if [ -n "$old_ip_address" ] && [ "$old_ip_address" != "$new_ip_address" ]; then
    ip -4 address flush dev "$interface" scope global
  fi
  [ -z "$new_interface_mtu" ] || ip link set dev "$interface" mtu "$new_interface_mtu"
  ip -4 address replace "$new_ip_address/$(bits "$new_subnet_mask")" dev "$interface"
  router=$(echo "$new_routers" | cut -d ' ' -f 1)
  # No server has answered. dhclient keeps the recorded lease if this script finds it valid.
  if [ "$reason" = TIMEOUT ] && [ -n "$router" ] && ! ping -q -c 1 -w 3 "$router"; then
    ip -4 address flush dev "$interface" scope global
    exit 1
  fi
  if [ -n "$router" ] && [ -z "$(ip -4 route show default)" ]; then
    ip -4 route add default via "$router" dev "$interface"
  fi
  # Name servers are those of the network that leads out.
  if [ -n "$new_domain_name_servers" ] \
&& [ -n "$(ip -4 route show default dev "$interface")" ]; then
    rm -f /etc/resolv.conf
    [ -z "$new_domain_name" ] || echo "search $new_domain_name" >> /etc/resolv.conf
    for server in $new_domain_name_servers; do
      echo "nameserver $server" >> /etc/resolv.conf
    done
  fi
  ;;
EXPIRE|FAIL|RELEASE|STOP)
  ip -4 address flush dev "$interface" scope global
  ;;
esac
"""


def boot_commands(interfaces: Iterable[str]) -> list[str]:
    """Return cloud-init `bootcmd` entries that get an address for each of these interfaces.

    The commands skip interfaces that do not exist or have an address.
    """
    install = (
        f"mkdir -p {_LEASES}\ncat > {_SCRIPT} <<'CAPHV'\n{_SCRIPT_TEXT}CAPHV\nchmod 0755 "
        f"{_SCRIPT}\n"
    )
    return [install, *(_request_command(interface) for interface in interfaces)]


def _request_command(interface: str) -> str:
    # Without a server, dhclient leaves the foreground after a minute, so that the boot continues,
    # and asks again every few minutes. With -1 it would end instead.
    files = f"-lf {_LEASES}/dhclient-{interface}.lease -pf /run/dhclient-{interface}.pid"
    return (
        f"[ ! -e /sys/class/net/{interface} ] || ip -4 address show dev {interface} scope global | "
        f"grep -q inet || dhclient -sf {_SCRIPT} {files} {interface}"
    )
