"""`plan` and `diff` beside a running controller, which makes exactly the planned changes and leaves nothing to do."""

import secrets
from dataclasses import replace
from typing import Any

import pytest
import yaml

from pgrole_controller.commands.diff_command import diff_cluster
from pgrole_controller.commands.manifest_files import Manifests, parse_manifests
from pgrole_controller.commands.plan_command import plan_files
from pgrole_controller.commands.plan_model import PlannedAction, PlanReport
from pgrole_controller.commands.server_reading import ServerChoice
from pgrole_controller.core.errors import Refused
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.servers import PgServers
from tests.acceptance.service_account import OWN_NAMESPACE
from tests.acceptance.world import Database, Kube, make_kube
from tests.commands import choose

#: Everything that PgRoles declare about the roles with a prefix, without oids.
STATE = """
SELECT jsonb_build_object(
    'roles', (
        SELECT jsonb_agg(to_jsonb(r) - 'oid' || jsonb_build_object('comment', shobj_description(r.oid, 'pg_authid'))
                         ORDER BY r.rolname)
        FROM pg_roles AS r WHERE starts_with(r.rolname, $1)
    ),
    'members', (
        SELECT jsonb_agg(to_jsonb(m) - ARRAY['oid', 'grantor', 'roleid', 'member'] || jsonb_build_object(
            'role', m.roleid::regrole::text, 'of', m.member::regrole::text
        ) ORDER BY m.roleid::regrole::text, m.member::regrole::text)
        FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.member WHERE starts_with(r.rolname, $1)
    ),
    'settings', (
        SELECT jsonb_agg(jsonb_build_array(r.rolname, s.setdatabase, s.setconfig) ORDER BY r.rolname, s.setdatabase)
        FROM pg_db_role_setting AS s JOIN pg_roles AS r ON r.oid = s.setrole WHERE starts_with(r.rolname, $1)
    ),
    'privileges', (
        SELECT jsonb_agg(jsonb_build_array(c.relname, r.rolname, a.privilege_type, a.is_grantable)
                         ORDER BY c.relname, r.rolname, a.privilege_type)
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a JOIN pg_roles AS r ON r.oid = a.grantee
        WHERE starts_with(r.rolname, $1)
    )
)::text
"""


def write(kube: Kube, specs: dict[str, dict[str, Any]]) -> Manifests:
    documents = [
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name, "namespace": kube.namespace},
            "spec": spec,
        }
        for name, spec in specs.items()
    ]
    return parse_manifests([("roles.yaml", yaml.safe_dump_all(documents))], kube.namespace)


@pytest.fixture
def choice(kube: Kube, shared_postgres: PostgresServer) -> ServerChoice:
    return choose(dsn=shared_postgres.dsn(), kubeconfig=str(kube.server.kubeconfig), namespace=kube.namespace)


async def foresee(database: Database, report: PlanReport, prefix: str) -> str:
    """Returns the state after a plan's statements, which are rolled back."""
    transaction = database.connection.transaction()
    await transaction.start()
    try:
        for late in (False, True):
            for one in report.objects:
                for some in one.sql:
                    if some.late is late:
                        for statement in some.statements:
                            await database.execute(statement)
        return str(await database.fetchval(STATE, prefix))
    finally:
        await transaction.rollback()


@pytest.mark.slow
async def test_the_controller_makes_exactly_the_planned_changes_and_a_second_plan_is_empty(
    kube: Kube, database: Database, choice: ServerChoice
) -> None:
    prefix = f"plan{secrets.token_hex(3)}"
    await database.execute(f"CREATE SCHEMA {prefix}; CREATE TABLE {prefix}.orders (id int)")
    await database.execute(f"CREATE ROLE {prefix}_old CREATEDB; GRANT DELETE ON {prefix}.orders TO {prefix}_old")
    read = [{"database": "postgres", "schemas": [{"name": prefix, "access": ["Read"]}]}]
    specs: dict[str, dict[str, Any]] = {
        "app": {
            "name": f"{prefix}_app",
            "login": True,
            "comment": "an app",
            "memberOf": [{"role": f"{prefix}_readers"}],
            "parameters": {"work_mem": "8MB", "search_path": "app, public"},
            "databaseParameters": [{"database": "postgres", "parameters": {"lock_timeout": "1s"}}],
        },
        "old": {"name": f"{prefix}_old", "adopt": True, "privileges": read},
        "readers": {"name": f"{prefix}_readers", "privileges": read},
        "super": {"name": f"{prefix}_super", "superuser": True},
    }
    report = await plan_files(write(kube, specs), choice)
    actions = [one.action for one in report.objects]
    assert actions == [PlannedAction.CREATE, PlannedAction.ADOPT, PlannedAction.CREATE, PlannedAction.REFUSE]
    expected = await foresee(database, report, prefix)
    await kube.apply_all(specs)
    for name in ("app", "old", "readers"):
        await kube.wait_ready(name)
    await kube.wait_reason("super", "NotAllowed")
    assert await database.fetchval(STATE, prefix) == expected
    del specs["super"]
    again = await plan_files(write(kube, specs), choice)
    assert not again.differs
    differing = [one for one in (await diff_cluster(choice, kube.namespace)).objects if one.action != "nothing"]
    assert [one.name for one in differing] == [f"{kube.namespace}/super"]
    changed = await plan_files(write(kube, {"app": {**specs["app"], "memberOf": [], "comment": ""}}), choice)
    expected = await foresee(database, changed, prefix)
    await kube.apply("app", **{**specs["app"], "memberOf": [], "comment": ""})
    await kube.wait_ready("app")
    assert await database.fetchval(STATE, prefix) == expected


async def test_diff_shows_reported_drift(kube: Kube, database: Database, choice: ServerChoice) -> None:
    role = f"diff_{secrets.token_hex(3)}"
    await kube.apply("app", name=role, login=True, drift={"policy": "Report"})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await kube.wait_reason("app", "DriftReported")
    new = await plan_files(write(kube, {"new": {"name": f"{role}_new"}}), choice)
    assert not any("no cluster was read" in note for note in new.notes)
    (one,) = (await diff_cluster(choice, kube.namespace, ["app"])).objects
    assert (one.action, one.drift) == (PlannedAction.REPORT, ("createdb",))
    assert [change.words for change in one.changes] == ["createdb: true -> false"]
    assert one.sql == ()


async def test_a_plan_of_a_changed_spec_corrects_reported_drift_and_one_of_the_same_spec_does_not(
    kube: Kube, database: Database, choice: ServerChoice
) -> None:
    role = f"plan_{secrets.token_hex(3)}"
    spec = {"name": role, "drift": {"policy": "Report"}}
    await kube.apply("app", **spec)
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await kube.wait_reason("app", "DriftReported")
    (same,) = (await plan_files(write(kube, {"app": spec}), choice)).objects
    assert same.action is PlannedAction.REPORT
    (changed,) = (await plan_files(write(kube, {"app": {**spec, "connectionLimit": 3}}), choice)).objects
    assert changed.action is PlannedAction.CHANGE
    assert {change.field for change in changed.changes if change.corrected} == {"createdb", "connectionLimit"}


async def test_diff_of_a_namespace_without_pgroles_suggests_another(kube: Kube, choice: ServerChoice) -> None:
    report = await diff_cluster(choice, "kube-public")
    assert report.objects == ()
    assert report.notes == ("namespace kube-public has no PgRoles: name another with -n, or use --all-namespaces",)


async def test_diff_fails_for_an_object_that_does_not_exist(kube: Kube, choice: ServerChoice) -> None:
    report = await diff_cluster(choice, kube.namespace, ["nowhere"])
    assert report.failed
    assert "does not exist" in report.objects[0].errors[0].message


async def test_diff_without_the_controllers_dsn_asks_for_it(kube: Kube, choice: ServerChoice) -> None:
    await kube.apply("app", name=f"diff_{secrets.token_hex(3)}")
    report = await diff_cluster(replace(choice, dsn=None), kube.namespace)
    assert report.failed
    assert "If the controller uses PGROLE_DSN, set it here as well" in report.objects[0].errors[0].message


async def test_diff_with_a_server_tells_which_objects_it_left_out(kube: Kube, choice: ServerChoice) -> None:
    pgservers, other = PgServers(kube.server), f"other-{secrets.token_hex(3)}"
    await kube.apply("app", name=f"diff_{secrets.token_hex(3)}")
    with pytest.raises(Refused, match=f'PgServer "{other}" does not exist'):
        await diff_cluster(replace(choice, server=other), kube.namespace)
    connection = {"hosts": ["127.0.0.1"], "port": 1, "credentialsSecretRef": {"name": "none"}}
    await pgservers.apply_spec(other, {"connection": connection, "allow": {"namespaces": {"matchNames": []}}})
    try:
        report = await diff_cluster(replace(choice, server=other), kube.namespace)
        assert report.objects == ()
        assert report.notes == (f"1 object left out: spec.serverRef names another PgServer than {other}",)
        named = await diff_cluster(replace(choice, server=other), kube.namespace, ["app"])
        assert named.failed
        assert named.objects[0].errors[0].message == f"it is on PgServer default, not on {other}: leave out --server"
    finally:
        await pgservers.delete(other)
    assert not (await diff_cluster(replace(choice, server="default"), kube.namespace, ["app"])).failed


async def test_plan_for_a_pgserver_that_does_not_exist_fails_although_it_leaves_out_every_object(
    kube: Kube, choice: ServerChoice
) -> None:
    manifests = write(kube, {"app": {"serverRef": {"name": "default"}}})
    with pytest.raises(Refused, match='PgServer "mian" does not exist'):
        await plan_files(manifests, replace(choice, server="mian"))


async def test_plan_and_diff_take_policy_and_connection_from_the_pgserver(
    api_server: ApiServer, postgres_server: PostgresServer
) -> None:
    kube, pgservers = await make_kube(api_server), PgServers(api_server)
    name = f"plan-{secrets.token_hex(3)}"
    await create_namespace(api_server, OWN_NAMESPACE)
    allow = {
        "namespaces": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}},
        "roleNames": ["{namespace}_*"],
    }
    await pgservers.apply(name, postgres_server, allow=allow)
    specs = {
        "fine": {"serverRef": {"name": name}, "name": f"{kube.namespace}_app"},
        "wrong": {"serverRef": {"name": name}, "name": "elsewhere_app"},
        "lost": {"serverRef": {"name": f"{name}-missing"}, "name": f"{kube.namespace}_lost"},
    }
    choice = choose(kubeconfig=str(api_server.kubeconfig), namespace=kube.namespace, own_namespace=OWN_NAMESPACE)
    try:
        report = await plan_files(write(kube, specs), choice)
        found = {one.name.partition("/")[2]: one for one in report.objects}
        assert found["fine"].action is PlannedAction.CREATE
        assert f"{kube.namespace}_*" in found["wrong"].refusals[0].message
        assert f'PgServer "{name}-missing" does not exist' in found["lost"].errors[0].message
        await kube.apply_all(specs)
        report = await diff_cluster(choice, kube.namespace)
        assert [one.action for one in report.objects] == ["create", "refuse", "fail"]
    finally:
        await kube.delete_all()
        await pgservers.delete(name)
