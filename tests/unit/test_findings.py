"""The findings of `doctor` about a server and a cluster."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgrole_controller.api.crd import PGROLE, crd
from pgrole_controller.core.findings import attribution_findings, cluster_findings, schema_findings, server_findings
from pgrole_controller.core.findings.cluster_findings import NEEDED, RequiredRight
from pgrole_controller.core.findings.finding import Finding, FindingState, has_problem, sql, summarize
from pgrole_controller.core.findings.server_facts import (
    ClaimCount,
    EventTriggerFacts,
    HistoryFacts,
    RoleFacts,
    SchemaFacts,
    ServerFacts,
    SessionFacts,
)
from pgrole_controller.core.server_options import AuditSource, DatabaseMode, HistoryConfig

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
SERVER = ServerFacts(
    version="18.4",
    version_number=180004,
    encoding="UTF8",
    database="postgres",
    login="ctl",
    behind=0.0,
    uncertain=0.0,
    max_connections=100,
    reserved=3,
    database_limit=-1,
    by_socket=False,
    encrypted=True,
    protocol="TLSv1.3",
    verified=True,
    settings={"shared_preload_libraries": "", "log_destination": "stderr", "logging_collector": "off"},
)
ROLE = RoleFacts("ctl", createrole=True, creates=True, owns=True, sees_versions=True, monitors=True)
READER = RoleFacts("reader", monitors=True)
SCHEMA = SchemaFacts("ctl", 4, keeps_history=True, home=True, recorded=True)


def commands(findings: list[Finding]) -> list[str]:
    return [remedy.command for finding in findings for remedy in finding.remedies]


@pytest.mark.parametrize(
    ("behind", "state"), [(0.0, OK), (-4.9, OK), (5.5, WARNING), (-5.5, WARNING), (86400.0, WARNING)]
)
def test_a_clock_may_differ_by_five_seconds(behind: float, state: FindingState) -> None:
    assert server_findings.judge_clock("s", replace(SERVER, behind=behind)).state is state
    assert cluster_findings.judge_clock(NOW - timedelta(seconds=behind), NOW).state is state


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, OK),
        ({"by_socket": True, "encrypted": False}, OK),
        ({"encrypted": False}, WARNING),
        ({"verified": False}, WARNING),
        ({"expires": NOW + timedelta(days=20)}, WARNING),
        ({"expires": NOW + timedelta(days=22)}, OK),
    ],
)
def test_encryption_verification_and_expiry_of_a_connection_are_judged(
    changes: dict[str, Any], state: FindingState
) -> None:
    assert server_findings.judge_encryption("s", replace(SERVER, **changes), "", NOW).state is state


def test_a_role_that_may_not_change_roles_need_not_be_the_controllers() -> None:
    (found,) = server_findings.judge_rights("s", replace(ROLE, createrole=False, monitors=False))[:1]
    assert found.state is PROBLEM
    assert "If the controller has another role, name that with --login" in found.text
    assert commands([found]) == ['ALTER ROLE "ctl" CREATEROLE']


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        (SERVER, OK),
        (replace(SERVER, version_number=130011, version="13.11"), PROBLEM),
        (replace(SERVER, encoding="SQL_ASCII"), PROBLEM),
    ],
)
def test_version_and_encoding_must_be_supported(facts: ServerFacts, state: FindingState) -> None:
    assert server_findings.judge_version("s", facts).state is state


@pytest.mark.parametrize(
    ("role", "schema", "state", "says", "remedies"),
    [
        (ROLE, SCHEMA, OK, "Watch", 0),
        (replace(ROLE, superuser=True, sees_versions=False), SCHEMA, OK, "Watch", 0),
        (replace(ROLE, sees_versions=False), SCHEMA, WARNING, "Poll", 1),
        (replace(ROLE, creates=False, owns=False), SchemaFacts(None), WARNING, "claims in status", 1),
        (replace(ROLE, creates=False, sees_versions=False), SchemaFacts(None), WARNING, "claims in status", 2),
        (replace(ROLE, owns=False, uses=True, sees_versions=False), SCHEMA, OK, "; an administrator installed", 0),
        (replace(ROLE, owns=False), SCHEMA, PROBLEM, "may not use schema pgrole", 3),
        (replace(ROLE, createrole=False), SCHEMA, UNKNOWN, "--login", 0),
        (replace(ROLE, superuser=True), SchemaFacts(None, publications=('"all"',)), WARNING, "claims in status", 0),
    ],
)
def test_the_mode_that_auto_chooses_is_explained(
    role: RoleFacts, schema: SchemaFacts, state: FindingState, says: str, remedies: int
) -> None:
    (finding,) = schema_findings.judge_detection("s", role, schema, "postgres", may_install=True)
    assert (finding.state, says in finding.text, len(finding.remedies)) == (state, True, remedies)


@pytest.mark.parametrize(
    ("schema", "owns", "state"),
    [
        (SCHEMA, True, OK),
        (replace(SCHEMA, version=3), True, WARNING),
        (replace(SCHEMA, version=2), True, WARNING),
        (replace(SCHEMA, version=2), False, PROBLEM),
        (replace(SCHEMA, version=5), True, OK),
        (replace(SCHEMA, version=6), True, PROBLEM),
        (replace(SCHEMA, installed_parts=60, parts=60), True, OK),
        (replace(SCHEMA, installed_parts=60, parts=58), True, PROBLEM),
        (replace(SCHEMA, installed_parts=60, parts=61), True, PROBLEM),
        (replace(SCHEMA, version=3, installed_parts=60, parts=58), True, WARNING),
        (replace(SCHEMA, version=5, installed_parts=60, parts=58), True, OK),
        (replace(SCHEMA, armed=False), True, PROBLEM),
        (replace(SCHEMA, version=5, armed=False), True, OK),
        (replace(SCHEMA, version=None), False, UNKNOWN),
        (replace(SCHEMA, version=None, keeps_history=False), False, WARNING),
        (replace(SCHEMA, elsewhere=('"orders"',)), True, PROBLEM),
        (replace(SCHEMA, home=False, version=None), True, PROBLEM),
        (replace(SCHEMA, foreign_parts="relation pgrole.claim (mallory)"), True, PROBLEM),
        (SchemaFacts(None), True, OK),
        (SchemaFacts(None, publications=('"all"',)), True, WARNING),
    ],
)
def test_the_version_of_the_schema_is_judged(schema: SchemaFacts, owns: bool, state: FindingState) -> None:
    findings = schema_findings.judge_schema("s", schema, replace(ROLE, owns=owns), "postgres", 4, may_install=True)
    assert findings[0].state is state


@pytest.mark.parametrize(("owns", "who"), [(True, "the controller installs it again"), (False, "an administrator")])
def test_missing_parts_of_the_schema_are_told_with_who_installs_them(owns: bool, who: str) -> None:
    schema = replace(SCHEMA, installed_parts=60, parts=58)
    (finding,) = schema_findings.judge_schema("s", schema, replace(ROLE, owns=owns), "postgres", 4, may_install=True)
    assert finding.text.startswith(f"parts of schema pgrole are missing (58 instead of 60); {who}")
    assert commands([finding]) == ['pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"']


@pytest.mark.parametrize(
    ("schema", "state", "says"),
    [
        (SchemaFacts(None), WARNING, "may not install it: install is false"),
        (replace(SCHEMA, version=2), PROBLEM, "too old"),
        (replace(SCHEMA, version=3), WARNING, "an administrator must update it"),
        (replace(SCHEMA, installed_parts=60, parts=58), PROBLEM, "an administrator must install it"),
    ],
)
def test_a_controller_that_may_not_install_is_not_expected_to(
    schema: SchemaFacts, state: FindingState, says: str
) -> None:
    superuser = replace(ROLE, superuser=True)
    (finding,) = schema_findings.judge_schema("s", schema, superuser, "postgres", 4, may_install=False)
    assert (finding.state, says in finding.text) == (state, True)
    assert commands([finding]) == ['pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"']
    (detection,) = schema_findings.judge_detection("s", superuser, schema, "postgres", may_install=False)
    assert ("claims in status" in detection.text, detection.remedies == finding.remedies) == (schema.owner is None,) * 2


@pytest.mark.parametrize(
    ("facts", "role", "sessions", "state"),
    [
        (SERVER, ROLE, 10, OK),
        (SERVER, ROLE, 90, WARNING),
        (SERVER, ROLE, 95, PROBLEM),
        (SERVER, replace(ROLE, connection_limit=4), 10, PROBLEM),
        (SERVER, replace(ROLE, connection_limit=5), 10, OK),
        (SERVER, replace(ROLE, superuser=True, connection_limit=1), 10, OK),
        (SERVER, replace(ROLE, superuser=True), 92, WARNING),
        (SERVER, replace(ROLE, superuser=True), 93, PROBLEM),
        (replace(SERVER, database_limit=2), ROLE, 10, PROBLEM),
        (replace(SERVER, database_limit=2), READER, 10, WARNING),
        (SERVER, replace(READER, connection_limit=2), 10, OK),
    ],
)
def test_the_controller_needs_three_connections_and_one_for_each_database(
    facts: ServerFacts, role: RoleFacts, sessions: int, state: FindingState
) -> None:
    findings = server_findings.judge_connections("s", facts, role, SessionFacts(sessions, 1, 0), 2)
    assert findings[0].state is state


@pytest.mark.parametrize(
    ("log", "remedy"),
    [
        ("read, write", "'read,write,role'"),
        ("ddl", "'ddl,role'"),
        ("all, -role", "'all,role'"),
        ("none", "'role'"),
        ("x'; DROP", "'role'"),
        ("ddl,role", None),
        ("all,-misc", None),
    ],
)
def test_a_remedy_for_the_audit_log_keeps_what_is_audited_already(log: str, remedy: str | None) -> None:
    settings = {"shared_preload_libraries": "pgaudit", "log_destination": "jsonlog", "logging_collector": "on"}
    facts = replace(SERVER, settings={**settings, "pgaudit.log": log})
    found = commands(
        attribution_findings.judge_attribution("s", facts, replace(ROLE, superuser=True), AuditSource.PGAUDIT)
    )
    assert found[:1] == ([] if remedy is None else [f"ALTER SYSTEM SET pgaudit.log = {remedy}"])


def test_a_remedy_for_the_log_keeps_its_destinations() -> None:
    settings = {"shared_preload_libraries": "", "log_destination": "csvlog, syslog", "logging_collector": "on"}
    facts = replace(SERVER, settings=settings)
    found = commands(
        attribution_findings.judge_attribution("s", facts, replace(ROLE, superuser=True), AuditSource.STATEMENTS)
    )
    assert "ALTER SYSTEM SET log_destination = 'csvlog,syslog,jsonlog'" in found


@pytest.mark.parametrize(
    ("audit", "settings", "role", "expected"),
    [
        (AuditSource.NEVER, {}, ROLE, []),
        (
            AuditSource.PGAUDIT,
            {},
            ROLE,
            ["ALTER SYSTEM SET logging_collector = on", "ALTER SYSTEM SET log_destination"],
        ),
        (
            AuditSource.PGAUDIT,
            {"shared_preload_libraries": "pgaudit", "log_destination": "jsonlog", "logging_collector": "on"},
            replace(ROLE, reads_logs=True),
            ["ALTER SYSTEM SET pgaudit.log = 'role'", "SELECT pg_catalog.pg_reload_conf()"],
        ),
        (
            AuditSource.STATEMENTS,
            {"log_destination": "jsonlog", "logging_collector": "on", "log_statement": "ddl"},
            ROLE,
            ['GRANT pg_monitor TO "ctl"', "GRANT EXECUTE", "GRANT EXECUTE"],
        ),
    ],
)
def test_settings_that_the_source_of_attribution_lacks_have_remedies(
    audit: AuditSource, settings: dict[str, str], role: RoleFacts, expected: list[str]
) -> None:
    facts = replace(SERVER, settings={**SERVER.settings, **settings})
    found = commands(attribution_findings.judge_attribution("s", facts, role, audit))
    assert [one[: len(text)] for one, text in zip(found, expected, strict=False)] == expected


@pytest.mark.parametrize(
    ("audit", "language", "warned"),
    [
        (AuditSource.STATEMENTS, "de_DE.UTF-8", True),
        (AuditSource.STATEMENTS, "German_Germany.1252", True),
        (AuditSource.PGAUDIT, "de_DE.UTF-8", False),
        (AuditSource.NEVER, "de_DE.UTF-8", False),
        *((AuditSource.STATEMENTS, one, False) for one in ("", "C", "C.UTF-8", "POSIX", "en_GB.UTF-8", "en-US")),
    ],
)
def test_a_statement_log_in_another_language_than_english_is_a_warning(
    audit: AuditSource, language: str, warned: bool
) -> None:
    log = {"log_destination": "jsonlog", "logging_collector": "on", "log_statement": "ddl"}
    known = {"shared_preload_libraries": "pgaudit", "pgaudit.log": "role", "lc_messages": language}
    facts = replace(SERVER, settings={**SERVER.settings, **log, **known})
    found = attribution_findings.judge_attribution("s", facts, replace(ROLE, superuser=True), audit)
    assert ("ALTER SYSTEM SET lc_messages = 'C'" in commands(found)) is warned
    assert any("lc_messages is" in finding.text for finding in found) is warned


def test_settings_fixed_on_the_command_line_have_no_remedy() -> None:
    facts = replace(SERVER, settings={"fsync": "off"})
    assert commands(server_findings.judge_settings("s", facts)) != []
    assert commands(server_findings.judge_settings("s", replace(facts, fixed=frozenset({"fsync"})))) == []


def test_event_triggers_that_do_not_fire_are_told_with_the_remedy() -> None:
    triggers = EventTriggerFacts("orders", 2, ("pgrole_on_ddl",), switched_off=True, others=('x"y',))
    findings = schema_findings.judge_event_triggers("s", triggers, ROLE, may_install=True, detection=DatabaseMode.AUTO)
    assert [finding.state for finding in findings] == [PROBLEM, WARNING, PROBLEM]
    assert commands(findings) == [
        'ALTER EVENT TRIGGER "pgrole_on_ddl" ENABLE ALWAYS',
        'ALTER DATABASE "orders" SET event_triggers = on',
        'ALTER EVENT TRIGGER "x""y" DISABLE',
    ]
    superuser, none = replace(ROLE, superuser=True), EventTriggerFacts("orders", 0)
    for role, may_install, state in ((ROLE, True, WARNING), (superuser, True, OK), (superuser, False, WARNING)):
        (finding,) = schema_findings.judge_event_triggers(
            "s", none, role, may_install=may_install, detection=DatabaseMode.EVENTS
        )
        assert (finding.state, "polled" in finding.text) == (state, state is WARNING)
    owned = replace(none, plainly_owned=True)
    findings = schema_findings.judge_event_triggers("s", owned, ROLE, may_install=True, detection=DatabaseMode.AUTO)
    removal, *grants = commands(findings)
    assert removal.startswith("{ pgrole-controller sql --remove; pgrole-controller sql --database; } | psql")
    assert [grant.partition(" TO ")[0] for grant in grants] == [
        "GRANT USAGE ON SCHEMA pgrole",
        "GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA pgrole",
        "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole",
    ]
    (finding,) = schema_findings.judge_event_triggers(
        "s", replace(owned, home=True), ROLE, may_install=True, detection=DatabaseMode.AUTO
    )
    assert (finding.state, finding.remedies) == (WARNING, ()), "the claims would be lost"
    published = EventTriggerFacts("orders", 0, publications=('"all"',))
    (finding,) = schema_findings.judge_event_triggers(
        "s", published, superuser, may_install=True, detection=DatabaseMode.AUTO
    )
    assert (finding.state, finding.remedies) == (WARNING, ())
    assert 'publication "all" is FOR ALL TABLES' in finding.text
    findings = schema_findings.judge_event_triggers("s", triggers, ROLE, may_install=True, detection=DatabaseMode.POLL)
    assert commands(findings) == ['ALTER EVENT TRIGGER "x""y" DISABLE']
    (finding,) = schema_findings.judge_event_triggers(
        "s", none, superuser, may_install=True, detection=DatabaseMode.RESYNC
    )
    assert (finding.state, finding.text) == (OK, "not used: detection in databases is Resync")


@pytest.mark.parametrize("detection", [None, DatabaseMode.AUTO])
@pytest.mark.parametrize(
    "triggers",
    [
        EventTriggerFacts("orders", 0),
        EventTriggerFacts("orders", 2, uses=False),
        EventTriggerFacts("orders", 2, others=("x",)),
    ],
)
def test_what_a_login_for_reading_may_not_do_is_no_problem_of_the_controller(
    triggers: EventTriggerFacts, detection: DatabaseMode | None
) -> None:
    judged = schema_findings.judge_event_triggers("s", triggers, READER, may_install=True, detection=detection)
    if triggers.installed or detection is not None:
        (finding,) = judged
        assert (finding.state, finding.remedies) == (UNKNOWN, ())
        assert "depends on the controller's role: name it with --login" in finding.text
    judged += schema_findings.judge_schema("s", SchemaFacts(None), READER, "postgres", 4, may_install=True)
    settings = {**SERVER.settings, "log_destination": "jsonlog", "logging_collector": "on", "log_statement": "ddl"}
    logs = replace(SERVER, settings=settings)
    judged += attribution_findings.judge_attribution("s", logs, READER, AuditSource.STATEMENTS)
    assert PROBLEM not in {one.state for one in judged}
    assert commands(judged) == []


@pytest.mark.parametrize(
    "triggers",
    [
        EventTriggerFacts("orders", 0),
        EventTriggerFacts("orders", 0, publications=('"all"',)),
        EventTriggerFacts("orders", 2, ("pgrole_on_ddl",), switched_off=True),
    ],
)
def test_event_triggers_are_only_counted_where_their_use_is_unknown(triggers: EventTriggerFacts) -> None:
    for role in (ROLE, replace(ROLE, superuser=True)):
        (finding,) = schema_findings.judge_event_triggers("s", triggers, role, may_install=True, detection=None)
        assert (finding.state, finding.remedies) == (OK, ())
        assert finding.text.startswith("installed; " if triggers.installed else "not installed; ")
    others = replace(triggers, others=("x",), publications=())
    (finding,) = schema_findings.judge_event_triggers("s", others, ROLE, may_install=True, detection=None)
    assert finding.state is PROBLEM, "those fire, whatever the controller uses"


def test_claims_of_other_clusters_are_reported_if_the_own_cluster_is_known() -> None:
    counts = [ClaimCount("own", 5, 1), ClaimCount("lost", 3, 0), ClaimCount("gone", 2, 2)]
    assert [one.state for one in schema_findings.judge_claims("s", counts, None)] == [OK]
    found = schema_findings.judge_claims("s", counts, "own")
    assert [one.state for one in found] == [OK, WARNING]
    assert "lost (3)" in found[1].text
    assert "gone" not in found[1].text


@pytest.mark.parametrize(
    ("rows", "age", "state"), [(5, 1, OK), (2_000_000, 1, WARNING), (5, 150, OK), (5, 200, WARNING)]
)
def test_a_history_that_is_not_pruned_is_reported(rows: int, age: int, state: FindingState) -> None:
    history = HistoryFacts(1000, rows, NOW - timedelta(days=age))
    found = schema_findings.judge_history("s", history, HistoryConfig(), NOW)
    assert found.state is state
    assert ("the oldest dates from 2026-05-06 and was not pruned" in found.text) is (age == 200)
    unknown = schema_findings.judge_history("s", history, None, NOW)
    assert (unknown.state, "kept for" in unknown.text) == (OK, False)


def test_no_statement_is_suggested_for_a_name_that_is_not_utf_8() -> None:
    assert sql("GRANT pg_monitor TO {}", "caf\udce9") == ()
    assert [one.command for one in sql("GRANT {} TO {}", "{}", 'a"b')] == ['GRANT "{}" TO "a""b"']


def test_findings_are_counted() -> None:
    findings = [Finding("a", "b", state, "") for state in (OK, OK, WARNING, PROBLEM, UNKNOWN)]
    assert summarize(findings) == "1 problem, 1 warning, 1 unknown, 2 ok"
    assert has_problem(findings)
    assert not has_problem(findings[:3])


def established(definition: dict[str, Any]) -> dict[str, Any]:
    return {**definition, "status": {"conditions": [{"type": "Established", "status": "True"}]}}


def test_an_installed_crd_is_compared_with_this_programs_crd() -> None:
    expected = crd(PGROLE)
    judge = cluster_findings.judge_definition
    assert judge("x", expected, None).state is PROBLEM
    assert judge("x", expected, established(crd(PGROLE))).state is OK
    assert judge("x", expected, crd(PGROLE)).state is PROBLEM  # not established
    older = established(crd(PGROLE))
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    found = judge("x", expected, older)
    assert (found.state, [one.command for one in found.remedies]) == (WARNING, [cluster_findings.APPLY_CRDS])
    unserved = established(crd(PGROLE))
    unserved["spec"]["versions"][0]["served"] = False
    assert judge("x", expected, unserved).state is PROBLEM


def deployment(image: str, replicas: int = 2) -> dict[str, Any]:
    spec = {"replicas": replicas, "template": {"spec": {"containers": [{"image": image}]}}}
    return {"metadata": {"name": "c"}, "spec": spec, "status": {"readyReplicas": replicas}}


@pytest.mark.parametrize(
    ("image", "state"),
    [
        ("registry:5000/c:0.3.0", OK),
        (f"registry/c:0.3.0@sha256:{'0' * 64}", OK),
        (f"registry:5000/c@sha256:{'0' * 64}", OK),
        (f"registry/c:0.2.0@sha256:{'0' * 64}", WARNING),
        ("registry/c:0.2.0", WARNING),
        ("registry:5000/c", WARNING),
    ],
)
def test_an_image_of_another_version_is_reported_unless_only_its_digest_is_known(
    image: str, state: FindingState
) -> None:
    [found] = cluster_findings.judge_deployment([deployment(image)], "n", "0.3.0")
    assert found.state is state


@pytest.mark.parametrize(("unelected", "replicas"), [({"d"}, 2), ({"c"}, 1)])
def test_without_leader_election_one_replica_is_suggested(unelected: set[str], replicas: int) -> None:
    [found] = cluster_findings.judge_deployment([deployment("c:0.3.0", 0)], "n", "0.3.0", unelected)
    assert [one.command for one in found.remedies] == [f"kubectl -n n scale deployment c --replicas={replicas}"]


@pytest.mark.parametrize(("unelected", "state"), [({"d"}, OK), ({"c"}, PROBLEM)])
def test_several_ready_replicas_without_leader_election_are_a_problem(unelected: set[str], state: FindingState) -> None:
    [found] = cluster_findings.judge_deployment([deployment("c:0.3.0", 2)], "n", "0.3.0", unelected)
    assert found.state is state
    if state is PROBLEM:
        assert "leader election is off" in found.text
        assert [one.command for one in found.remedies] == ["kubectl -n n scale deployment c --replicas=1"]


def test_crds_of_a_newer_version_are_never_replaced_by_this_programs() -> None:
    """Objects would lose the fields that this program's CRDs lack."""
    newer = established(crd(PGROLE))
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["comment"]
    spec["properties"]["memberOf"]["items"]["properties"]["since"] = {"type": "string"}
    found = cluster_findings.judge_definition("x", crd(PGROLE), newer)
    assert (found.state, found.remedies) == (WARNING, ())
    assert "use the program of the controller's version" in found.text


def test_crds_of_a_helm_release_are_updated_with_it() -> None:
    older = established(crd(PGROLE))
    del older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["comment"]
    older["metadata"]["annotations"] = {
        "meta.helm.sh/release-name": "pgrole-controller",
        "meta.helm.sh/release-namespace": "pgrole-system",
    }
    found = cluster_findings.judge_definition("x", crd(PGROLE), older)
    assert [one.command for one in found.remedies] == [
        "helm upgrade pgrole-controller deploy/helm/pgrole-controller --namespace pgrole-system "
        "--reset-then-reuse-values --set crds.install=true"
    ]


def test_permissions_that_helm_granted_are_granted_again_with_helm() -> None:
    account, missing = "system:serviceaccount:pgrole-system:pgrole-controller", cluster_findings.NEEDED[:1]
    by_helm = {"meta.helm.sh/release-name": "roles", "meta.helm.sh/release-namespace": "pgrole-system"}
    for annotations, begin in (({}, "kubectl apply --server-side -f"), (by_helm, "helm upgrade roles deploy/helm/")):
        release = cluster_findings.upgrade_release({"metadata": {"annotations": annotations}})
        found = cluster_findings.judge_controller_rights(account, "", missing, release)
        assert found.state is PROBLEM
        [remedy] = found.remedies
        assert remedy.command.startswith(begin)


def test_a_missing_permission_is_named_once_and_where_it_is_missing() -> None:
    secrets = [one for one in cluster_findings.NEEDED if (one.verb, one.resource) == ("get", "secrets")]
    leases = [one for one in cluster_findings.NEEDED if (one.verb, one.resource) == ("create", "leases")]
    found = cluster_findings.judge_controller_rights("a", "", [*secrets, *leases]).text
    assert found.startswith("a may not get secrets, create leases.coordination.k8s.io: install")
    found = cluster_findings.judge_controller_rights("a", "shop", [*secrets, *leases]).text
    own = "get secrets, create leases.coordination.k8s.io in its own namespace"
    assert found.startswith(f"a may not get secrets in namespace shop, nor {own}: install")
    assert cluster_findings.judge_controller_rights("a", "shop", leases).text.startswith("a may not create leases")


@pytest.mark.parametrize("shape", [{}, {"status": 1}, {"status": {"conditions": [1, {"type": 2}]}}, {"metadata": []}])
def test_objects_of_any_shape_are_judged(shape: dict[str, Any]) -> None:
    assert cluster_findings.judge_server(shape).state is WARNING
    assert cluster_findings.judge_roles([shape])[0].state is WARNING
    assert cluster_findings.judge_deployment([shape], "n", "1")[0].state is PROBLEM
    assert cluster_findings.judge_lease("l", "n", shape, NOW).state is PROBLEM
    assert cluster_findings.judge_definition("x", crd(PGROLE), shape).state is PROBLEM


@pytest.mark.parametrize(
    ("spec", "state"),
    [
        ({"holderIdentity": "a", "renewTime": "2026-11-22T11:59:58.000000Z"}, OK),
        ({"holderIdentity": "a", "renewTime": "2026-11-22T11:58:00.000000Z"}, PROBLEM),
        ({"holderIdentity": "", "renewTime": "2026-11-22T11:59:58.000000Z"}, PROBLEM),
    ],
)
def test_a_lease_must_have_a_holder_that_renews_it(spec: dict[str, Any], state: FindingState) -> None:
    assert cluster_findings.judge_lease("l", "n", {"spec": spec}, NOW).state is state
    assert cluster_findings.judge_lease("l", "n", None, NOW).state is WARNING


@pytest.mark.parametrize("renewed", ["2026-11-22T11:00:00.000000Z", "2026-11-22T13:00:00.000000Z"])
def test_whether_a_holder_with_another_clock_renews_its_lease_shows_when_it_is_read_again(renewed: str) -> None:
    def lease(renewed: str) -> dict[str, Any]:
        return {"spec": {"holderIdentity": "a", "renewTime": renewed}}

    assert cluster_findings.is_in_doubt(lease(renewed), NOW)
    assert not cluster_findings.is_in_doubt(lease("2026-11-22T11:59:58.000000Z"), NOW)
    again = cluster_findings.judge_lease("l", "n", lease(renewed), NOW, lease(renewed.replace(":00.", ":04.")))
    assert (again.state, "3600 s" in again.text) == (WARNING, True)
    assert [one.command for one in again.remedies] == ["chronyc makestep"]
    dead = cluster_findings.judge_lease("l", "n", lease(renewed), NOW, lease(renewed))
    assert (dead.state, "no process leads" in dead.text) == (PROBLEM, True)


def test_roles_that_are_not_ready_are_grouped_by_reason() -> None:
    def role(name: str, reason: str, status: str = "False") -> dict[str, Any]:
        conditions = [{"type": "Ready", "status": status, "reason": reason, "message": "why"}]
        return {"metadata": {"namespace": "shop", "name": name}, "status": {"conditions": conditions}}

    objects = [role(f"r{number}", "NotAllowed") for number in range(7)]
    found = cluster_findings.judge_roles([*objects, role("s", "Suspended"), role("t", "Reconciled", "True")])
    assert [one.state for one in found] == [PROBLEM, WARNING]
    assert "7 of 9 not Ready, NotAllowed: shop/r0, shop/r1" in found[0].text
    assert "and 2 more. why" in found[0].text
    assert cluster_findings.judge_roles([role("t", "Reconciled", "True")])[0].state is OK
    assert [one.text for one in cluster_findings.judge_roles([])] == ["no PgRoles exist"]
    assert [one.text for one in cluster_findings.judge_roles([], "eu")] == ["no PgRole references PgServer eu"]


def test_the_checked_permissions_are_those_that_deploy_grants() -> None:
    folder = Path(__file__).parents[2] / "deploy" / "kustomize"
    granted = set()
    for path in (
        folder / "base" / "own_namespace.yaml",
        folder / "base" / "servers.yaml",
        folder / "overlays" / "cluster" / "roles.yaml",
    ):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            for rule in document.get("rules", ()):
                granted |= {
                    (verb, group, resource)
                    for verb in rule["verbs"]
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                }
    # writing Secrets, and watching namespaces and the Lease by name, have no checks of their own
    asked = {(one.verb, one.group, one.resource) for one in NEEDED}
    assert asked <= granted
    assert {resource for _, _, resource in granted - asked} <= {"namespaces", "leases"}


def test_the_callers_missing_permissions_have_a_command_that_grants_them() -> None:
    finding = cluster_findings.judge_caller("o'brien", [RequiredRight("list", "pgrole.dev", "pgroles")])
    assert finding.state is WARNING
    assert finding.remedies[1].command.endswith("""--user='o'"'"'brien'""")


@pytest.mark.parametrize(
    ("iterations", "used"),
    [("", 0), ("4096", 0), ("100000", 0), ("100001", 100_000), ("600000", 100_000), ("4095", 4096), ("1", 4096)],
)
def test_iterations_that_the_controller_does_not_use_are_a_warning(iterations: str, used: int) -> None:
    facts = replace(SERVER, settings={"scram_iterations": iterations} if iterations else {})
    (finding,) = server_findings.judge_passwords("s", facts, 0)
    assert finding.state is (WARNING if used else OK)
    if used:
        assert finding.text.startswith(f"scram_iterations is {iterations}, but the controller uses {used}: ")
        reload = "SELECT pg_catalog.pg_reload_conf()"
        assert commands([finding]) == [f"ALTER SYSTEM SET scram_iterations = {used}", reload]
