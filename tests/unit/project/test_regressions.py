"""Defects of earlier states, and the tests that keep them from coming back: each test exists."""

from __future__ import annotations

import pytest

from tests.support.syntax import functions

pytestmark = pytest.mark.unit

RECONCILER = "tests/integration/reconciler"
UNIT = "tests/unit/reconciler"
# What a new user met.
FIRST_USE = {
    "a restart of the provider made all clusters unavailable for a moment": (
        f"{RECONCILER}/test_restarts.py::test_restarts_write_nothing_for_healthy_clusters",
    ),
    "watches of deleted clusters continued": (
        f"{UNIT}/test_workloadcluster.py::test_deleted_cluster_leaves_no_connection",
    ),
    "the deletion of a namespace never ended, and left objects on Harvester": (
        f"{RECONCILER}/test_identity_protection.py::test_deleted_namespace_ends_and_leaves_nothing_on_harvester",
    ),
    "no command showed what is wrong, and tables showed no reason": (
        "tests/integration/operations/test_status.py::test_a_line_a_cluster_with_cause_and_next_step",
        "tests/integration/operations/test_columns.py::test_a_table_says_why_something_is_not_ready",
    ),
    "commands of the quick start named objects that do not exist": ("tests/e2e/test_quick_start.py::test_quick_start",),
    "a lost worker of a small group was not replaced": (
        "tests/unit/clusterclass/test_clusterclass.py::test_machines_are_replaced_as_the_operations_guide_says",
    ),
    "starting a broken sandbox removed its clusters": (
        "tests/e2e/test_sandbox_lifecycle.py::test_up_restarts_what_is_missing_and_keeps_all_objects",
        "tests/unit/commands/test_main.py::test_a_broken_sandbox_names_the_command_that_fixes_it",
    ),
    "the log did not tell what happened to a machine": (
        f"{RECONCILER}/test_logs.py::test_log_tells_the_life_of_a_machine_and_of_its_cluster",
        f"{RECONCILER}/test_logs.py::test_workload_cluster_that_does_not_answer_yet_is_no_warning",
    ),
    "the remedy for an absent image did not work, and did not say where it was searched": (
        f"{RECONCILER}/test_machine.py::test_absent_image_says_where_it_was_searched_and_what_to_do_about_a_template",
    ),
    "a cluster was generated without a check against Harvester, and questions offered nothing": (
        f"{RECONCILER}/test_generate.py::test_all_that_harvester_lacks_is_reported_at_once_with_flag_value_and_remedy",
        f"{RECONCILER}/test_generate.py::test_a_person_chooses_from_what_there_is",
    ),
    "messages were hard to understand": (
        "tests/unit/project/test_vocabulary.py::test_repository_uses_the_vocabulary_of_the_field",
    ),
    "examples had different versions, and the tutorial was incomplete": (
        "tests/unit/docs/test_versions.py::test_examples_use_the_versions_of_the_file",
        "tests/e2e/test_docs_tools.py::test_options_exist",
    ),
    "the site had no landing page": (
        "tests/unit/docs/test_website.py::test_landing_page_leads_to_pages_that_exist",
        "tests/unit/docs/test_website.py::test_nothing_is_loaded_from_elsewhere",
    ),
    "hosts could not be maintained": (
        "tests/e2e/clusters/test_host_maintenance.py::test_three_hosts_are_maintained_without_a_restart_or_a_new_machine",
    ),
    "validation missed variables, warned about identities, accepted empty files and took long in silence": (
        "tests/unit/commands/test_validate.py::test_variables_of_a_shipped_class_are_checked_without_its_file",
        "tests/unit/commands/test_validate.py::test_an_identity_that_is_not_among_the_files_is_no_warning",
        "tests/unit/commands/test_validate.py::test_input_without_an_object_is_an_error",
        "tests/unit/commands/test_validate.py::test_all_errors_of_a_definition_come_in_one_round",
        "tests/unit/commands/test_validate.py::test_what_is_misspelt_is_reported",
        "tests/unit/commands/test_validate.py::test_a_large_file_is_announced_on_a_terminal",
    ),
    "messages had regular expressions and texts of Python": (
        "tests/unit/commands/test_validate.py::test_messages_hold_no_regular_expressions",
        "tests/unit/runtime/test_addresses.py::test_certificates_are_explained_in_words",
        f"{RECONCILER}/test_remedies.py::put_a_kubeconfig_of_harvester_into_the_secret",
    ),
    "a cluster that never reached Harvester could not be deleted": (
        f"{UNIT}/cluster/test_deletion.py::test_cluster_that_never_reached_harvester_can_be_deleted",
    ),
    "an identity had the same token each time, without an end": (
        "tests/integration/sandbox/test_identity_command.py::test_each_call_issues_a_new_token_that_expires",
    ),
    "commits did not say what changed": (
        "tests/unit/packager/planning/test_commit_summary.py::test_changed_settings_are_the_subject",
    ),
    "the demo and the sandbox showed wrong values, and faults missed the administrator": (
        "tests/unit/commands/test_demo.py::test_the_first_frame_has_no_invented_endpoint",
        "tests/unit/commands/test_demo.py::test_machines_are_grouped_by_role_and_have_a_version_within_80_columns",
        "tests/unit/commands/test_main.py::test_wrong_usage_exits_with_2",
        "tests/e2e/test_sandbox_lifecycle.py::faults_by_command_affect_all_clients_but_the_simulation",
        "tests/e2e/test_install_clusterctl.py::test_from_init_to_delete",
        f"{RECONCILER}/test_ownership.py::test_vanished_vm_is_reported_and_never_recreated",
    ),
}
# What a review of the provider found.
PROVIDER = {
    "a creation that failed once was refused forever by the shipped roles": (
        f"{RECONCILER}/test_permissions.py::test_shipped_rules_are_enough_and_none_is_too_many",
    ),
    "absence in a cache that is not connected counted as deleted": (
        f"{UNIT}/machine/test_deletion.py::test_absence_in_a_cache_that_is_not_connected_releases_nothing",
    ),
    "a machine waited for an address while one was free": (
        f"{UNIT}/test_triggers.py::test_no_machine_waits_for_an_address_while_one_is_free",
    ),
    "clients of deleted workload clusters stayed, and Nodes were taken for those of a namesake": (
        f"{UNIT}/test_workloadcluster.py::test_deleted_cluster_leaves_no_connection",
        f"{UNIT}/test_workloadcluster.py::test_kubeconfig_of_a_deleted_cluster_is_not_used_for_one_of_the_same_name",
    ),
    "force-delete had no effect without a session": (
        f"{UNIT}/machine/test_deletion.py::test_force_delete_works_without_a_session",
    ),
    "each account read everything for itself": (
        f"{UNIT}/harvester/test_sessions.py::test_accounts_on_one_harvester_read_each_collection_once",
    ),
    "moved clusters waited for a person": (
        f"{RECONCILER}/test_move.py::test_a_moved_cluster_keeps_its_vms_and_leaves_nothing_on_the_source",
    ),
    "credentials of guests were not renewed while a cluster was blocked or paused": (
        f"{RECONCILER}/test_cloudconfig.py::test_credentials_are_renewed_while_the_cluster_is_paused",
        f"{RECONCILER}/test_cloudconfig.py::test_credentials_about_to_expire_are_reported_while_harvester_cannot_be_reached",
    ),
    "remedies had no effect, because nothing noticed them": (
        f"{RECONCILER}/test_remedies.py::test_a_remedy_that_is_followed_ends_the_state",
        f"{UNIT}/test_remedies.py::test_each_remedy_is_followed_by_a_test",
    ),
    "machines were reconciled five times a second while a cache was not filled": (
        f"{UNIT}/machine/test_deletion.py::test_machine_waits_for_its_caches_without_a_timer",
    ),
    "a changed address of the load balancer was written again and again": (
        f"{UNIT}/cluster/test_endpoint.py::test_changed_address_is_reported_and_not_written",
        f"{UNIT}/cluster/test_endpoint.py::test_recreated_service_asks_for_the_address_of_the_endpoint",
    ),
    "objects of other namespaces were used without permission": (
        f"{RECONCILER}/test_references.py::test_identity_of_another_namespace_needs_permission_of_its_owner",
        f"{RECONCILER}/test_references.py::test_config_map_of_another_namespace_is_not_changed_without_permission",
    ),
    "the lease shared its connection with everything else": (
        "tests/unit/runtime/test_election.py::test_hanging_renewal_leaves_time_for_another_one",
    ),
    "lists over slow links never ended": (
        "tests/unit/runtime/test_transport.py::test_list_over_a_slow_link_may_take_longer_than_the_time_out",
        "tests/unit/runtime/test_transport.py::test_first_list_that_may_come_from_a_cache_falls_back_when_it_is_too_large",
    ),
    "a retry was forgotten while an attempt was under way": (
        "tests/unit/runtime/test_informer.py::test_retry_now_counts_while_an_attempt_is_still_hanging",
    ),
    "VMs made by hand were adopted": (
        f"{RECONCILER}/test_adoption.py::test_vm_made_by_hand_is_neither_adopted_nor_deleted",
    ),
    "the address of another owner's VM was released": (
        f"{UNIT}/machine/test_deletion.py::test_address_of_a_foreign_vm_is_released_only_with_our_mark",
    ),
    "hosts without room or label changed failure domains": (
        f"{UNIT}/cluster/test_failuredomains.py::test_witness_is_no_failure_domain",
        f"{UNIT}/cluster/test_failuredomains.py::test_host_without_a_zone_changes_nothing_for_the_others",
        f"{UNIT}/cluster/test_failuredomains.py::test_cordoned_hosts_and_hosts_in_maintenance_take_no_new_machines",
    ),
    "deleted accounts of guests were noticed at renewal only": (
        f"{RECONCILER}/test_remedies.py::test_a_deleted_account_of_guests_is_noticed_and_recreated",
    ),
    "late writes had no precondition, probes no answer, and a conflict was ignored": (
        f"{RECONCILER}/test_interruption.py::test_write_that_outlives_the_lease_does_no_harm",
        "tests/unit/commands/test_main.py::test_the_liveness_probe_is_answered_while_the_management_cluster_is_unreachable",
        f"{UNIT}/machine/test_adoption.py::test_a_secret_that_is_written_meanwhile_is_taken_over_with_the_vm_later",
    ),
}
PACKAGER = "tests/integration/packager"
RENDERING = "tests/unit/packager/rendering"
# What the real Fleet and Helm controllers did with bundles.
FLEET = {
    "drift correction looped and corrected nothing": (
        f"{RENDERING}/test_helm_options.py::test_manifests_are_corrected_by_replacement_and_charts_upgraded_by_it",
        f"{PACKAGER}/test_fleet_agent.py::test_the_stand_in_does_what_the_agent_did",
        f"{PACKAGER}/test_fleet_addons.py::test_stand_ins_do_what_fleet_did",
    ),
    "a changed setting of Calico never arrived, or uninstalled it": (
        f"{PACKAGER}/test_cni_changes.py::test_a_changed_mtu_arrives_after_operator_and_person_wrote",
        f"{PACKAGER}/test_cni_changes.py::test_a_failed_chart_of_rke2_is_not_uninstalled_by_the_default_of_our_config",
        f"{RENDERING}/test_helm_options.py::test_no_helm_controller_uninstalls_a_failed_chart",
    ),
    "a version that a chart repository lacks stopped every cluster": (
        f"{RENDERING}/test_renderer.py::test_a_version_that_the_chart_repository_lacks_stays_with_its_cluster",
        f"{RENDERING}/test_renderer.py::test_each_namespace_has_a_gitrepo_because_one_bad_chart_stops_a_whole_one",
    ),
    "the GitRepo of the management cluster was modified forever, and one made by hand blocked it": (
        f"{PACKAGER}/test_sync.py::test_the_git_repo_of_the_management_cluster",
    ),
    "the trace of a vendored chart ended in a traceback": (
        "tests/unit/packager/test_trace.py::test_a_vendored_chart_is_named_and_its_templates_are_no_manifests",
        "tests/unit/packager/test_trace.py::test_a_chart_of_an_oci_registry_is_named_with_its_source",
    ),
    "conditions hid what Fleet says": (
        "tests/unit/packager/test_fleet_statuses.py::test_a_conflict_points_to_the_log_and_names_the_fields",
        "tests/unit/packager/test_fleet_statuses.py::test_what_fleet_says_of_a_bundle_is_passed_on_to_its_end",
    ),
    "kept releases were orphans": (
        f"{RENDERING}/test_helm_options.py::test_releases_are_named_like_their_bundles",
        f"{PACKAGER}/test_addon_scenarios.py::test_add_ons_from_nothing_to_their_end",
    ),
    "a cluster without workers got no network, and no releases of Fleet were named": (
        "tests/unit/packager/addons/test_settings.py::test_a_cni_of_fleet_needs_a_worker",
        "tests/unit/support/test_caapf.py::test_the_agent_needs_no_network_and_no_control_plane_takes_it",
        f"{RENDERING}/test_fleetrelease.py::test_charts_from_a_registry_are_refused_for_a_fleet_that_does_not_read_them",
        f"{RENDERING}/test_fleetrelease.py::test_lost_drift_correction_is_advised_once",
    ),
    "a relative cache, checks of RKE2's charts, folders and summaries of commits were wrong": (
        f"{PACKAGER}/test_history.py::test_a_clone_in_a_relative_folder_is_the_same",
        f"{PACKAGER}/test_check.py::test_kinds_of_charts_that_rke2_installs_itself_come_with_rke2",
        "tests/unit/commands/test_bundles.py::test_gitrepos_are_not_made_for_a_folder_that_fleet_cannot_read",
        "tests/unit/packager/planning/test_commit_summary.py::test_replicas_of_an_add_on_are_no_workers",
    ),
}
COMMANDS = "tests/unit/commands"
OPERATIONS = "tests/unit/operations"
# What an operator met.
OPERATORS = {
    "an identity was replaced by that of an administrator": (
        f"{COMMANDS}/test_generate_apply.py::test_an_identity_that_exists_is_kept",
    ),
    "an outage of Harvester made healthy clusters fail": (
        f"{OPERATIONS}/status/test_diagnosis.py::test_an_outage_is_one_cause_and_no_failure",
        f"{RECONCILER}/test_outages.py::test_ready_machines_stay_ready_in_an_outage",
    ),
    "a plan did not notice what Harvester lacks, nor what the account cannot see": (
        f"{OPERATIONS}/change/plan/test_planning_harvester.py"
        "::test_what_harvester_lacks_is_reported_once_with_the_variable_that_names_it",
        f"{OPERATIONS}/change/plan/test_planning_harvester.py::test_what_the_account_does_not_see_is_reported_once",
    ),
    "a mask that the pool contradicts was found by no command": (
        f"{OPERATIONS}/capacity/test_newcluster.py::test_gateway_and_mask_are_those_of_the_pool",
        f"{OPERATIONS}/doctor/test_doctor.py::test_gateway_and_mask_of_another_subnet_than_the_pools_are_errors",
    ),
    "remedies named templates where a topology is edited": (
        f"{OPERATIONS}/doctor/test_doctor_references.py::test_the_remedy_is_to_edit_a_cluster_and_to_replace_a_template",
        f"{OPERATIONS}/status/test_nextsteps.py::test_a_failure_of_the_load_balancer_is_corrected_in_the_topology",
    ),
    "two control plane machines were accepted": (
        f"{OPERATIONS}/change/test_scaling.py::test_the_quorum_of_etcd_is_checked",
        f"{COMMANDS}/test_scale.py::test_a_failed_check_forbids_the_change_unless_it_is_forced",
    ),
    "a cluster without add-ons was degraded": (
        f"{OPERATIONS}/status/test_diagnosis.py::test_missing_add_ons_are_a_note_and_hide_no_problem",
    ),
    "a silent provider was not reported": (
        "tests/integration/operations/test_status.py::test_a_provider_that_is_silent_is_reported_before_all_else",
        f"{OPERATIONS}/status/test_page.py::test_a_provider_that_is_silent_is_shown_instead_of_live",
    ),
    "the remedy of an expired token had no effect": (
        f"{RECONCILER}/test_printed_commands.py::test_a_token_that_ends_soon_is_replaced",
    ),
    "identities that no cluster uses were neither listed nor saved": (
        f"{OPERATIONS}/status/test_identities.py::test_an_identity_that_no_cluster_uses_is_listed_and_not_wrong",
        f"{OPERATIONS}/backup/test_reading.py::test_an_identity_that_only_a_class_names_is_saved_before_it_is_used",
    ),
    "an upgrade showed one version": (
        f"{OPERATIONS}/status/test_assembly.py::test_an_upgrade_shows_all_versions_oldest_first",
    ),
    "consequences repeated their cause": (
        f"{OPERATIONS}/status/test_causes.py::test_one_outage_is_one_problem_of_a_cluster_with_its_consequences",
        f"{OPERATIONS}/status/test_causes.py::test_clusters_of_one_identity_have_it_in_common",
    ),
    "a backup took the name of a cluster for its directory": (
        f"{COMMANDS}/test_backup.py::test_a_backup_needs_clusters_and_a_directory",
    ),
    "an interrupted wait did not say that the change continues": (
        f"{COMMANDS}/test_scale.py::test_an_interrupted_wait_says_that_the_change_continues",
    ),
    "names were neither completed nor suggested, and doctor did not say that it checked no cluster": (
        f"{COMMANDS}/test_completion.py::test_every_command_that_takes_a_cluster_or_a_namespace_completes_it",
        f"{COMMANDS}/test_completion.py::test_a_name_that_is_misspelt_is_suggested",
        f"{COMMANDS}/test_reading.py::test_doctor_says_when_there_was_no_cluster_to_check",
    ),
    "documents of programs were lists or objects, and texts had the wrong number": (
        f"{COMMANDS}/test_output_data.py::test_a_document_has_its_items_in_one_field",
        f"{COMMANDS}/test_output.py::test_only_one_is_singular",
    ),
    "the live page had wrong colours, raw reasons and holes": (
        "tests/integration/operations/test_page_states.py::test_every_state_is_legible_on_every_screen",
        f"{OPERATIONS}/status/test_page_content.py::test_no_state_shows_a_raw_reason_of_add_ons",
        f"{OPERATIONS}/status/test_page_content.py::test_a_machine_is_red_only_where_its_cluster_reports_an_error",
        f"{OPERATIONS}/status/test_page_content.py::test_the_border_is_that_of_the_worst_problem",
    ),
}
ALL = (FIRST_USE, PROVIDER, FLEET, OPERATORS)
TESTS = sorted({test for table in ALL for tests in table.values() for test in tests})


def test_tables_are_complete() -> None:
    assert [len(table) for table in ALL] == [20, 20, 9, 17]
    assert all(tests for table in ALL for tests in table.values())


@pytest.mark.parametrize("name", TESTS)
def test_the_test_of_a_defect_exists(name: str) -> None:
    path, _, function = name.partition("::")
    assert function in functions(path)
