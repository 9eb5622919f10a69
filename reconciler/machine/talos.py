"""Bootstrap data for Talos Linux is a machine configuration.

The guest reads it unchanged from the NoCloud user data. Nothing can be merged into it, because
Talos has no package manager, no shell and no cloud-init. Talos takes network data as other guests
do. No error of this module quotes bootstrap data, because it holds join tokens and keys.
"""

import re
from collections.abc import Sequence

from caphv.api.object import Obj
from reconciler.machine.cloudinityaml import CloudInitError
from reconciler.machine.guest import GuestConfig

# An old form of the first line, which the bootstrap provider still writes for some platforms.
_MARK = re.compile(r"#!talos\s*\n")
# First lines of other formats, and two keys that cloud-config does not have.
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
    """Return `bootstrap` byte for byte as the user data of a VM.

    Ignores settings of `guest` for packages and services. Raises `CloudInitError` for `files` and
    for user data of `guest`, which require cloud-config.
    """
    if guest.user_data:
        raise CloudInitError(
            "spec.guestConfig.userData is cloud-config, which Talos does not read: "
            "remove it, and write a patch of the TalosConfig"
        )
    if files:
        raise CloudInitError(
            "cloudConfig.delivery of the HarvesterCluster is File, and Talos takes no files of "
            "cloud-config: choose Secret"
        )
    return bootstrap
