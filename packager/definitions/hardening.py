"""Hardens nodes without a ClusterClass in the same way as patches of the shipped ClusterClasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIPS = (
    'test "$(cat /proc/sys/crypto/fips_enabled 2>/dev/null)" = "1" || '
    '{ echo "FIPS mode required but not enabled on this node image" >&2; exit 1; }'
)
# RKE2's own sysctl file does not exist yet when these commands run.
_CIS = (
    'useradd -r -c "etcd user" -s /sbin/nologin -M etcd -U || true',
    r"printf"
    r' "vm.panic_on_oom=0\nvm.overcommit_memory=1\nkernel.panic=10\nkernel.panic_on_oops=1\n" '
    "> /etc/sysctl.d/90-kubelet.conf",
    "sysctl -p /etc/sysctl.d/90-kubelet.conf",
)
POD_SECURITY_FILE = "/etc/rancher/rke2/rancher-pss.yaml"
_POD_SECURITY = """\
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
  - name: PodSecurity
    configuration:
      apiVersion: pod-security.admission.config.k8s.io/v1
      kind: PodSecurityConfiguration
      defaults:
        enforce: restricted
        enforce-version: latest
        audit: restricted
        audit-version: latest
        warn: restricted
        warn-version: latest
      exemptions:
        usernames: []
        runtimeClasses: []
        # Without the namespaces of Rancher and Fleet, their agents could not start.
        namespaces:
          - kube-system
          - cis-operator-system
          - tigera-operator
          - calico-system
          - cattle-system
          - cattle-fleet-system
          - cattle-fleet-local-system
          - cattle-impersonation-system
          - cattle-monitoring-system
          - cattle-provisioning-capi-system
          - cattle-resources-system
          - cattle-ui-plugin-system
          - fleet-addon-agent
          - fleet-default
          - longhorn-system
          - ingress-nginx
"""
_AUDIT_POLICY_FILE = "/etc/rancher/rke2/audit-policy.yaml"
# The policy records no bodies, so that no Secret gets into the log.
_AUDIT_POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
"""
_API_SERVER = (
    "tls-min-version=VersionTLS12",
    "audit-log-maxage=30",
    "audit-log-maxbackup=10",
    "audit-log-maxsize=100",
)
_KUBELET = (
    "tls-min-version=VersionTLS12",
    "streaming-connection-idle-timeout=5m",
    "make-iptables-util-chains=true",
)


@dataclass(frozen=True)
class Hardening:
    """Hardening that a definition asks for. An empty `cis_profile` stands for none."""

    cis_profile: str = ""
    stig: bool = False
    fips_required: bool = False

    @property
    def variables(self) -> Mapping[str, object]:
        """Variables of a ClusterClass for settings that are on."""
        # Settings that are off are left to the defaults of the class.
        values = {
            "cisProfile": self.cis_profile,
            "stig": self.stig,
            "fipsRequired": self.fips_required,
        }
        return {name: value for name, value in values.items() if value}

    @property
    def commands(self) -> Sequence[str]:
        """Commands that a node runs before its distribution starts."""
        commands: list[str] = []
        if self.fips_required:
            commands.append(_FIPS)
        if self.cis_profile:
            commands += _CIS
        return commands

    @property
    def server_files(self) -> Mapping[str, bytes]:
        """Files of servers of RKE2."""
        files: dict[str, str] = {POD_SECURITY_FILE: _POD_SECURITY} if self.cis_profile else {}
        if self.stig:
            files[_AUDIT_POLICY_FILE] = _AUDIT_POLICY
            files["/etc/rancher/rke2/config.yaml.d/60-stig.yaml"] = (
                f"audit-policy-file: {_AUDIT_POLICY_FILE}\n"
            )
        return {path: content.encode() for path, content in files.items()}

    @property
    def kubelet_arguments(self) -> Sequence[str]:
        """Arguments of kubelets."""
        return _KUBELET if self.stig else ()

    @property
    def api_server_arguments(self) -> Sequence[str]:
        """Arguments of the API server."""
        return _API_SERVER if self.stig else ()
