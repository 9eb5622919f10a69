"""The definition of a cluster, which `caphv generate` makes of a file, flags and options."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from caphv.api.object import Obj
from commands.errors import InputError

if TYPE_CHECKING:
    from caphv.validation.yaml.tree import Document


@dataclass(frozen=True, kw_only=True)
class DefinitionOptions:
    """Options that set fields of a definition, next to the flags that set one field each."""

    individual_objects: bool
    fips_required: bool
    stig: bool
    disable_fstrim_timer: bool
    no_guest_agent: bool
    user_data: Path | None
    rancher_auto_import: bool | None


def read_document(file: str) -> Document:
    """Read the file with a definition; `-` is standard input. Raises `InputError`."""
    from caphv.validation.yaml.loader import Unreadable, read

    try:
        source = read(file, sys.stdin.buffer)
    except Unreadable as error:
        raise InputError(str(error)) from None

    problems = list(source.problems)
    for document in source.documents:
        problems += document.problems
    if problems:
        lines = (f"{source.name}:{it.place.line}: {it.finding.detail}" for it in problems)
        raise InputError("; ".join(lines))
    if len(source.documents) != 1 or not isinstance(source.documents[0].value, dict):
        raise InputError(f"{source.name}: must hold one ClusterDefinition")
    return source.documents[0]


def make_definition(
    values: Mapping[str, str], document: Document | None, options: DefinitionOptions
) -> Obj:
    """Return the definition of a file, over which flags and options take precedence."""
    from packager.addons.merge import merge
    from packager.definitions.fromflags import definition_of

    if values["--external-endpoint"] and values["--kube-vip"]:
        raise InputError("--external-endpoint and --kube-vip are mutually exclusive")

    # DISA's STIG requires a CIS profile, Secure Boot and a TPM.
    hardening: Obj = {"fipsRequired": True} if options.fips_required else {}
    machines: Obj = {}
    if options.stig:
        hardening |= {"stig": True, "cisProfile": values["--cis-profile"] or "cis"}
        machines |= {
            "firmware": {"efi": True, "secureBoot": True},
            "tpm": {"enabled": True, "persistent": True},
        }
    if guest := _guest_config(options):
        machines["guestConfig"] = guest

    spec: Obj = {"individualObjects": True} if options.individual_objects else {}
    if options.rancher_auto_import is not None:
        spec["rancherAutoImport"] = options.rancher_auto_import
    if hardening:
        spec["hardening"] = hardening
    if machines:
        spec["machines"] = machines
    base = definition_of(values, document.value if document else None)
    return merge(base, {"spec": spec}) if spec else base


def _guest_config(options: DefinitionOptions) -> Obj:
    config: Obj = {"disableFstrimTimer": True} if options.disable_fstrim_timer else {}
    if options.no_guest_agent:
        config["installGuestAgent"] = False
    if file := options.user_data:
        try:
            config["userData"] = file.expanduser().read_bytes().decode()
        except OSError as error:
            raise InputError(f"--user-data {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"--user-data {file}: must be text in UTF-8") from None
    return config
