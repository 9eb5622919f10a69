"""Each message that asks to delete, adopt or correct an object has a test in which a user does so, and it helps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.support.paths import CHECKOUT
from tests.support.syntax import functions

pytestmark = pytest.mark.unit

REMEDY = re.compile(
    r"\b(?:delete|remove) (?:it|them)\b|\bor adopt the VM\b|\bset annotation\b|\bcreate it or correct\b"
    r"|\bput a (?:new )?kubeconfig\b"
)
FOLDER = "tests/integration/reconciler"
# Module and words of the message → the test in FOLDER that follows its remedy.
FOLLOWED = {
    ("cluster/addons.py", "set annotation"): "test_missing_addons.py::test_clusters_that_need_no_report_have_none",
    ("cluster/adoption.py", "rename this HarvesterCluster"): "test_remedies.py::delete_a_service_of_another_owner",
    ("cluster/cloudaccount.py", "belongs to another owner"): "test_remedies.py::delete_accounts_of_another_owner",
    ("cluster/cloudaccount.py", "is not the token"): "test_remedies.py::delete_the_token_of_another_account",
    (
        "cluster/delivery.py",
        "was not created by",
    ): "test_cloudconfig.py::test_secret_of_another_client_is_left_alone",
    ("clusteridentity/tokensecrets.py", "exists and is not the provider's"): (
        "test_token_renewal.py::test_secrets_of_others_are_neither_used_nor_written"
    ),
    ("harvester/tokenexchange.py", "on Harvester does not belong to"): (
        "test_token_renewal.py::test_secrets_of_others_are_neither_used_nor_written"
    ),
    ("cluster/connection.py", "is not a Harvester"): "test_remedies.py::put_a_kubeconfig_of_harvester_into_the_secret",
    ("cluster/connection.py", "is not the Harvester of this"): (
        "test_expiry.py::test_another_harvester_is_refused_while_there_are_machines"
    ),
    ("cluster/connection.py", "the token may have expired"): (
        "test_expiry.py::test_refused_credentials_are_reported_in_both_conditions"
    ),
    ("cluster/deletion.py", "deletion is blocked"): (
        "test_loadbalancer.py::test_deletion_without_harvester_waits_until_a_user_releases"
    ),
    ("cluster/guestbalancers.py", "delete them there"): (
        "test_guest_balancers.py::test_load_balancer_of_two_guests_with_one_name_is_kept"
    ),
    ("cluster/identity.py", "credentials expire at"): (
        "test_expiry.py::test_token_that_ends_soon_is_reported_and_a_lasting_identity_recovers"
    ),
    ("cluster/identity.py", "credentials expired at"): (
        "test_expiry.py::test_refused_credentials_are_reported_in_both_conditions"
    ),
    ("cluster/images.py", "of another namespace has the name"): (
        "test_images.py::test_image_of_another_namespace_keeps_its_name_until_it_is_deleted"
    ),
    ("cluster/pools.py", "create it or"): "test_cluster.py::test_missing_pool_is_named_and_picked_up_when_it_comes",
    ("cluster/pools.py", "delete them or give"): (
        "test_guest_balancers.py::test_pool_in_use_names_its_holders_until_they_release_it"
    ),
    ("machine/adoption.py", "belongs to"): "test_adoption.py::test_foreign_vm_is_taken_over_on_request_once",
    ("machine/adoption.py", "did not create it"): "test_remedies.py::adopt_a_vm_made_by_hand",
    ("machine/adoption.py", "another one of its name"): (
        "test_vm_failures.py::test_another_vm_of_the_same_name_is_not_the_machines"
    ),
    ("machine/bootstrap.py", "KeyPair"): "test_machine.py::test_key_pair_that_appears_later_unblocks",
    ("machine/bootstrap.py", "delete it, or rename"): "test_remedies.py::delete_a_cloud_init_secret_of_another_owner",
    ("machine/addresses/ipamclaims.py", "belongs to another owner"): (
        "test_address_claims.py::test_claim_of_another_owner_is_neither_used_nor_deleted"
    ),
    ("machine/addresses/ipamclaims.py", "is not for"): (
        "test_address_claims.py::test_claim_of_another_pool_is_named_and_follows_the_spec_once_deleted"
    ),
    ("machine/deletion.py", "deletion is blocked"): (
        "test_adoption.py::test_machine_is_released_on_request_while_harvester_is_unreachable"
    ),
    ("machine/talos.py", "remove it"): "test_remedies.py::remove_user_data_that_talos_does_not_read",
    ("machine/vmbackup.py", "has the name: delete it"): (
        "test_control_plane_backups.py::test_foreign_backup_of_the_name_delays_a_machine_until_a_user_deletes_it"
    ),
}
# Reported by a command, which is run again.
OF_COMMANDS = {"harvester/guestaccount.py", "harvester/rotation.py"}


def messages() -> Iterator[tuple[str, str]]:
    """Module and text of each message that names such a remedy."""
    top = CHECKOUT / "reconciler"
    for file in sorted(top.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values}
        for node in ast.walk(tree):
            if id(node) in docs or id(node) in parts or not isinstance(node, ast.Constant | ast.JoinedStr):
                continue
            text = ast.unparse(node)
            if REMEDY.search(text):
                yield file.relative_to(top).as_posix(), text


def test_each_remedy_is_followed_by_a_test() -> None:
    found = [(module, text) for module, text in messages() if module not in OF_COMMANDS]
    assert len(found) >= len(FOLLOWED)
    entries = {
        (module, text): [words for place, words in FOLLOWED if place == module and words in text]
        for module, text in found
    }
    assert [message for message, words in entries.items() if len(words) != 1] == []
    assert {(module, words) for (module, _), (words,) in entries.items()} == FOLLOWED.keys()


@pytest.mark.parametrize("name", sorted(FOLLOWED.values()))
def test_the_test_of_a_remedy_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions(f"{FOLDER}/{path}")
