"""Bootstrap data for Talos Linux: a machine configuration, which the guest reads from the NoCloud user data as it is.

Talos has no package manager, no shell and no cloud-init: there is nothing to join with it. It takes network data as
other guests do. Bootstrap data holds join tokens and keys: no error of this module quotes it.
"""

import re
from collections.abc import Sequence

from caphv.api.object import Obj
from reconciler.machine.cloudinit import CloudInitError
from reconciler.machine.guest import GuestConfig

# The first line is a mark of old, which the bootstrap provider still writes for some platforms. Comments of other
# formats begin elsewise, and the two keys are not of cloud-config.
_MARK = re.compile(r"#!talos\s*\n")
_FOREIGN_MARK = re.compile(r"\s*#(?:#\s*template:|cloud-config|!)", re.IGNORECASE)
_VERSION = re.compile(r"^version:[ \t]*[\"']?v1alpha1[\"']?[ \t]*(?:#.*)?$", re.MULTILINE)
_MACHINE = re.compile(r"^machine:", re.MULTILINE)


def is_machine_config(bootstrap: str) -> bool:
    """Return whether the value of a bootstrap Secret is a machine configuration of Talos."""
    text = bootstrap.removeprefix("\ufeff").replace("\r\n", "\n")
    if _MARK.match(text):
        return True
    return bool(not _FOREIGN_MARK.match(text) and _VERSION.search(text) and _MACHINE.search(text))


def userdata(bootstrap: str, *, files: Sequence[Obj], guest: GuestConfig) -> str:
    """Return the user data of a VM: `bootstrap`, byte for byte.

    Raises CloudInitError for what only cloud-config can do: `files`, and more user data of `guest`. What `guest` says
    of packages and services of other guests concerns none here.
    """
    if guest.user_data:
        raise CloudInitError(
            "spec.guestConfig.userData is cloud-config, which Talos does not read: "
            "remove it, and write a patch of the TalosConfig"
        )
    if files:
        raise CloudInitError(
            "cloudConfig.delivery of the HarvesterCluster is File, and Talos takes no files of cloud-config: "
            "choose Secret"
        )
    return bootstrap
