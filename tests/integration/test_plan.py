"""`plan` with a real PostgreSQL: it finds each difference, writes nothing, and needs only pg_monitor."""

import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio
import yaml

from pgrole_controller.api.pgrole import PgRole
from pgrole_controller.commands.manifest_files import parse_manifests
from pgrole_controller.commands.plan_command import plan_files
from pgrole_controller.commands.plan_model import NOT_COMPARED, SUSPENDED, PlannedAction, PlannedObject, PlanReport
from pgrole_controller.commands.plan_output import render_json, render_sql
from pgrole_controller.commands.server_reading import ServerChoice
from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.desired import desired_role_of, privileges_of
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import digest
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.schema import install
from tests.commands import choose, run_command
from tests.servers import Servers

SPEC: dict[str, Any] = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole"}
PASSWORD = "for-tests"
#: Its namespaces may declare privileges on what their own roles own.
PGSERVER = """
apiVersion: pgrole.dev/v1alpha1
kind: PgServer
metadata: {name: default}
spec:
  connection: {hosts: [pg.example], credentialsSecretRef: {name: pg}}
  allow: {namespaces: {matchNames: ["*"]}, roleNames: ["*"]}
  databases: {matchNames: ["*"]}
"""
SELECT = {"privileges": ["SELECT"]}
CLUSTER, NAMESPACE_UID = "c-1", "ns-uid"


@dataclass(frozen=True, slots=True)
class PlanTrial:
    """A server with schema pgrole in its home database. The roles of each test have their own prefix."""

    server: PostgresServer
    home: Connection
    prefix: str

    @property
    def namespace(self) -> str:
        return f"shop-{self.prefix}"

    def name(self, role: str) -> str:
        return f"{self.prefix}_{role}"

    def write(self, *specs: dict[str, Any]) -> str:
        """YAML of PgRoles in the namespace of the trial; each is named by the last part of its role."""
        documents = []
        for spec in specs:
            made = {key: value for key, value in spec.items() if key != "object"}
            name = spec.get("object") or spec["name"].removeprefix(f"{self.prefix}_").replace("_", "-")
            documents.append({**SPEC, "metadata": {"name": name, "namespace": self.namespace}, "spec": made})
        return yaml.safe_dump_all(documents, allow_unicode=True)

    async def plan(self, *specs: dict[str, Any], text: str = "", dsn: str | None = None) -> PlanReport:
        manifests = parse_manifests([("roles.yaml", text + "\n---\n" + self.write(*specs))], self.namespace)
        return await plan_files(manifests, self.choice(dsn))

    async def plan_one(self, spec: dict[str, Any], *, text: str = "", dsn: str | None = None) -> PlannedObject:
        (one,) = (await self.plan(spec, text=text, dsn=dsn)).objects
        return one

    def choice(self, dsn: str | None = None) -> ServerChoice:
        return choose(dsn=dsn or self.server.dsn())

    async def claim(self, spec: dict[str, Any], *, applied: bool = True, name: str = "") -> None:
        """Writes the claim that the controller leaves after it has applied the spec to an existing role."""
        object_name = name or spec["name"].removeprefix(f"{self.prefix}_").replace("_", "-")
        made = PgRole.model_validate(
            {**SPEC, "metadata": {"name": object_name, "namespace": self.namespace}, "spec": spec}
        )
        oid = await self.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", spec["name"])
        await self.home.execute(
            "SELECT pgrole.take_claim($1, $2, $3, $4, $5, $6, $7, $8, '{}')",
            spec["name"],
            oid,
            CLUSTER,
            self.namespace,
            NAMESPACE_UID,
            object_name,
            f"uid-{spec['name']}",
            digest(desired_role_of(made)) if applied else "sha256:earlier",
        )

    async def applied(self, spec: dict[str, Any]) -> tuple[str, str]:
        """Returns the holder and the digest that the controller stores after it applied the privileges of the spec."""
        made = PgRole.model_validate({**SPEC, "metadata": {"name": "x", "namespace": self.namespace}, "spec": spec})
        oid = await self.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", spec["name"])
        uid, key = f"uid-{spec['name']}", Key(self.namespace, "x")
        grantee = Grantee(key, uid, 1, spec["name"], oid, privileges_of(made) or {})
        return grantee.holder_in(self.prefix), grantee.digest_of(self.prefix)

    async def apply(self, report: PlanReport) -> None:
        """Runs a plan's script with psql."""
        script = render_sql(report)
        await anyio.run_process(
            [str(self.server.psql), "-X", "-q", "-d", self.server.dsn()], input=script.encode(), stderr=None
        )


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as own:
        connection = await asyncpg.connect(own.dsn())
        await install(connection)
        await connection.close()
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def trial(server: PostgresServer) -> AsyncIterator[PlanTrial]:
    connection = await asyncpg.connect(server.dsn())
    yield PlanTrial(server, connection, f"p{secrets.token_hex(3)}")
    await connection.close()


@pytest_asyncio.fixture(loop_scope="session")
async def place(trial: PlanTrial) -> AsyncIterator[Connection]:
    """A database with schema app and table app.orders; its name is the prefix."""
    await trial.home.execute(f"CREATE DATABASE {trial.prefix}")
    connection = await asyncpg.connect(trial.server.dsn(database=trial.prefix))
    await connection.execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int); CREATE TABLE app.other (id int)")
    yield connection
    await connection.close()


def words(one: PlannedObject) -> list[str]:
    return [f"{change.sign}{change.words}" for change in one.changes]


def lines(one: PlannedObject) -> list[str]:
    return [statement for some in one.sql for statement in some.statements]


async def test_a_new_role_is_created_with_everything_that_is_declared(trial: PlanTrial) -> None:
    name = trial.name("app")
    one = await trial.plan_one(
        {
            "name": name,
            "login": True,
            "connectionLimit": 5,
            "comment": "it's \\ mine",
            "parameters": {"statement_timeout": "30s", "search_path": "app, public"},
            "password": {"secretRef": {"name": "app-password"}},
        }
    )
    assert one.action is PlannedAction.CREATE
    assert lines(one) == [
        f'CREATE ROLE "{name}" WITH LOGIN CONNECTION LIMIT 5',
        f"COMMENT ON ROLE \"{name}\" IS E'it''s \\\\ mine'",
        f"ALTER ROLE \"{name}\" SET \"search_path\" = 'app', 'public'",
        f'ALTER ROLE "{name}" SET "statement_timeout" = \'30s\'',
    ]
    assert '+statement_timeout: "30s"' in words(one)
    assert one.notes == ('password: from Secret "app-password", key "password"',)
    assert await trial.home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", name) == 0


async def test_a_difference_is_shown_with_both_values(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app"), "login": True, "comment": "new", "parameters": {"work_mem": "8MB"}}
    await trial.home.execute(
        f"CREATE ROLE {spec['name']} CREATEDB; COMMENT ON ROLE {spec['name']} IS 'old';"
        f"ALTER ROLE {spec['name']} SET work_mem = '4MB'; ALTER ROLE {spec['name']} SET lock_timeout = '1s'"
    )
    await trial.claim(spec, applied=False)
    one = await trial.plan_one(spec)
    assert one.action is PlannedAction.CHANGE
    assert words(one) == [
        "~login: false -> true",
        "~createdb: true -> false",
        '~comment: "old" -> "new"',
        '-lock_timeout: "1s"',
        '~work_mem: "4MB" -> "8MB"',
    ]
    assert one.drift == ()


async def test_a_change_made_since_the_last_apply_is_drift(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app"), "login": True}
    await trial.home.execute(f"CREATE ROLE {spec['name']} LOGIN CREATEDB")
    await trial.claim(spec)
    one = await trial.plan_one(spec)
    assert (one.action, one.drift, words(one)) == (PlannedAction.CHANGE, ("createdb",), ["~createdb: true -> false"])


async def test_with_drift_policy_report_the_plan_shows_the_difference_but_no_statement(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app"), "login": True, "drift": {"policy": "Report"}}
    await trial.home.execute(f"CREATE ROLE {spec['name']} LOGIN CREATEDB")
    await trial.claim(spec)
    report = await trial.plan(spec)
    (one,) = report.objects
    assert (one.action, one.drift, lines(one)) == (PlannedAction.REPORT, ("createdb",), [])
    assert [(change.words, change.corrected) for change in one.changes] == [("createdb: true -> false", False)]
    assert report.differs


@pytest.mark.parametrize("replaced", [False, True])
async def test_no_privilege_is_planned_for_a_role_whose_absence_is_only_reported(
    trial: PlanTrial, place: Connection, replaced: bool
) -> None:
    name, reader = trial.name("app"), trial.name("reader")
    declared = [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}]
    spec: dict[str, Any] = {"name": name, "drift": {"policy": "Report"}, "privileges": declared}
    await trial.home.execute(f"CREATE ROLE {name}")
    await trial.claim(spec)
    await trial.home.execute(f"DROP ROLE {name}")
    if replaced:
        await trial.home.execute(f"CREATE ROLE {name}")
        await place.execute(f"ALTER SCHEMA app OWNER TO {name}; ALTER TABLE app.orders OWNER TO {name}")
    report = await trial.plan(spec, {"name": reader, "privileges": declared}, text=PGSERVER)
    one, other = report.objects
    assert (one.action, one.drift, lines(one)) == (PlannedAction.REPORT, ("role",), [])
    assert not any(change.field == "privileges" for change in one.changes)
    assert "+USAGE on schema app" not in words(other)  # nobody in the namespace owns it


async def test_a_role_as_declared_needs_no_change(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app"), "login": True, "password": {"secretRef": {"name": "app"}}}
    await trial.home.execute(f"CREATE ROLE {spec['name']} LOGIN")
    await trial.claim(spec)
    report = await trial.plan(spec)
    assert not report.differs
    assert not report.failed
    assert report.objects[0].notes == (NOT_COMPARED,)
    suspended = await trial.plan_one({**spec, "suspend": True, "login": False})
    assert (suspended.action, suspended.notes) == (PlannedAction.NOTHING, (SUSPENDED,))


async def test_an_existing_role_needs_adopt_and_then_is_adopted(trial: PlanTrial) -> None:
    spec: dict[str, Any] = {"name": trial.name("app"), "login": True}
    await trial.home.execute(f"CREATE ROLE {spec['name']}")
    refused = await trial.plan_one(spec)
    assert refused.action is PlannedAction.REFUSE
    assert "spec.adopt: true" in refused.refusals[0].message
    adopted = await trial.plan_one({**spec, "adopt": True})
    assert (adopted.action, words(adopted)) == (PlannedAction.ADOPT, ["~login: false -> true"])


async def test_an_adoption_that_changes_nothing_is_only_a_claim(trial: PlanTrial) -> None:
    schema, reader = f"s{trial.prefix}", trial.name("reader")
    await trial.home.execute(
        f"CREATE ROLE {reader} LOGIN; CREATE SCHEMA {schema}; GRANT USAGE ON SCHEMA {schema} TO {reader}"
    )
    held: dict[str, Any] = {"schemas": [{"name": schema, "access": ["Execute"]}]}
    spec = {"name": reader, "login": True, "adopt": True, "privileges": [{"database": "postgres", **held}]}
    report = await trial.plan(spec)
    assert [(one.action, words(one), lines(one)) for one in report.objects] == [(PlannedAction.CLAIM, [], [])]
    assert not report.differs
    changes: dict[str, dict[str, Any]] = {
        "an attribute": {"connectionLimit": 3},
        "a password": {"password": {"secretRef": {"name": "reader"}}},
        "a membership": {"memberOf": [{"role": trial.name("missing")}]},
        "privileges": {"privileges": [{"database": "postgres"}]},
    }
    for what, change in changes.items():
        assert (await trial.plan_one({**spec, **change})).action is PlannedAction.ADOPT, what


async def test_adoption_is_listed_and_denied_in_the_controllers_words(trial: PlanTrial, place: Connection) -> None:
    old, where = trial.name("old"), f"(database {trial.prefix})"
    await trial.home.execute(f"CREATE ROLE {old}")
    await place.execute(f"GRANT TRIGGER ON app.other TO {old}; GRANT DELETE ON app.orders TO {old}")
    spec: dict[str, Any] = {"name": old, "privileges": [{"database": trial.prefix}]}
    listed = f"would revoke DELETE on table app.orders {where}, TRIGGER on table app.other {where}. To take"
    assert listed in (await trial.plan_one(spec)).refusals[0].message
    denied = await trial.plan_one({**spec, "adopt": True})
    assert denied.action is PlannedAction.REFUSE
    words_of_it = f'"{old}" has privileges that this object could not declare (TRIGGER on table app.other {where}): ask'
    assert words_of_it in denied.refusals[0].message
    await place.execute(f"REVOKE TRIGGER ON app.other FROM {old}")
    adopted = await trial.plan_one({**spec, "adopt": True})
    assert (adopted.action, words(adopted)) == (PlannedAction.ADOPT, ["-DELETE on table app.orders"])


async def test_adoption_waits_for_a_database_that_cannot_be_read(trial: PlanTrial, place: Connection) -> None:
    old = trial.name("old")
    await trial.home.execute(f"CREATE ROLE {old}; GRANT TEMPORARY ON DATABASE {trial.prefix} TO {old}")
    await place.close()
    await trial.home.execute(f"ALTER DATABASE {trial.prefix} ALLOW_CONNECTIONS false")
    spec = {"name": old, "adopt": True, "privileges": [{"database": trial.prefix}]}
    one = await trial.plan_one(spec)
    assert one.action is PlannedAction.FAIL
    assert (
        f'adoption waits for database "{trial.prefix}", in which role "{old}" has privileges' in one.errors[0].message
    )


@pytest.mark.parametrize("together", [False, True])
async def test_privileges_on_objects_of_an_owner_that_is_adopted_as_well_may_be_declared(
    trial: PlanTrial, place: Connection, *, together: bool
) -> None:
    owner, reader = trial.name("owner"), trial.name("a_reader")
    await trial.home.execute(f"CREATE ROLE {owner}; CREATE ROLE {reader}")
    await place.execute(
        f"DROP TABLE app.other; ALTER SCHEMA app OWNER TO {owner}; ALTER TABLE app.orders OWNER TO {owner};"
        f"GRANT SELECT ON app.orders TO {reader}; GRANT USAGE ON SCHEMA app TO {reader}"
    )
    server: dict[str, Any] = yaml.safe_load(PGSERVER)
    server["spec"]["allow"]["adopt"] = True
    declared = [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}]
    specs: list[dict[str, Any]] = [{"name": reader, "adopt": True, "privileges": declared}]
    specs += [{"name": owner, "adopt": True, "privileges": [{"database": trial.prefix}]}] if together else []
    report = await trial.plan(*specs, text=yaml.safe_dump(server))
    if together:
        assert [one.action for one in report.objects] == [PlannedAction.CLAIM, PlannedAction.CLAIM]
    else:
        assert "SELECT on table app.orders" in report.objects[0].refusals[0].message


async def test_roles_with_privileges_on_what_another_adoptee_owns_are_adopted_in_a_chain(
    trial: PlanTrial, place: Connection
) -> None:
    """In whatever order they are declared; the first one must be adoptable."""
    links = 5
    names = [trial.name(f"{number}") for number in range(links)]
    await trial.home.execute("; ".join(f"CREATE ROLE {name}" for name in names))
    server: dict[str, Any] = yaml.safe_load(PGSERVER)
    server["spec"]["allow"]["adopt"] = True
    specs: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        await place.execute(f"CREATE SCHEMA s{number} AUTHORIZATION {name}")
        held: dict[str, Any] = {"database": trial.prefix}
        if number:
            await place.execute(f"GRANT USAGE ON SCHEMA s{number - 1} TO {name}")
            held["schemas"] = [{"name": f"s{number - 1}", "access": ["Read"]}]
        specs.append({"name": name, "adopt": True, "privileges": [held]})
    for order in (specs, specs[::-1], [*specs[2:], *specs[:2]]):
        report = await trial.plan(*order, text=yaml.safe_dump(server))
        assert {one.action for one in report.objects} == {PlannedAction.CLAIM}
    report = await trial.plan(*specs[:0:-1], text=yaml.safe_dump(server))
    assert {one.action for one in report.objects} == {PlannedAction.REFUSE}


async def test_a_refused_object_has_its_reason_and_no_statements_and_stops_no_other(trial: PlanTrial) -> None:
    report = await trial.plan(
        {"name": "postgres", "object": "initial"},
        {"name": trial.name("super"), "superuser": True},
        {"name": trial.name("fine")},
    )
    actions = [one.action for one in report.objects]
    assert actions == [PlannedAction.REFUSE, PlannedAction.REFUSE, PlannedAction.CREATE]
    assert [one.refusals[0].reason for one in report.objects[:2]] == ["Protected", "NotAllowed"]
    assert [lines(one) for one in report.objects[:2]] == [[], []]


async def test_a_refused_objects_role_loses_an_attribute_that_others_granted(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app"), "replication": True}
    await trial.home.execute(f"CREATE ROLE {spec['name']} CREATEROLE")
    await trial.claim(spec)
    one = await trial.plan_one(spec)
    assert one.action is PlannedAction.REVOKE
    assert lines(one) == [f'ALTER ROLE "{spec["name"]}" WITH NOCREATEROLE']
    assert one.refusals[0].reason == "NotAllowed"


async def test_the_policy_of_a_pgserver_in_the_files_applies(trial: PlanTrial) -> None:
    server = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgServer",
        "metadata": {"name": "default"},
        "spec": {
            "connection": {"hosts": ["pg.example"], "credentialsSecretRef": {"name": "pg"}},
            "allow": {"namespaces": {"matchNames": ["shop-*"]}, "roleNames": ["{namespace}_*"]},
        },
    }
    one = await trial.plan_one({"name": trial.name("app")}, text=yaml.safe_dump(server))
    assert one.action is PlannedAction.REFUSE
    assert f"{trial.namespace}_*" in one.refusals[0].message


async def test_members_of_roles_that_the_plan_creates_do_not_wait(trial: PlanTrial) -> None:
    top, middle, low = trial.name("a_low"), trial.name("middle"), trial.name("z_top")
    report = await trial.plan(
        {"name": top, "login": True, "memberOf": [{"role": middle}]},
        {"name": middle, "memberOf": [{"role": low}, {"role": trial.name("nowhere")}]},
        {"name": low},
    )
    actions = [one.action for one in report.objects]
    assert actions == [PlannedAction.CREATE] * 3
    assert [[wait.reason for wait in one.waits] for one in report.objects] == [[], ["MembershipPending"], []]
    await trial.apply(report)
    granted = await trial.home.fetchval("SELECT pg_has_role($1::name, $2::name, 'MEMBER')", top, low)
    assert granted


async def test_a_membership_in_a_new_role_that_is_refused_waits(trial: PlanTrial) -> None:
    report = await trial.plan(
        {"name": trial.name("app"), "memberOf": [{"role": trial.name("readers")}]},
        {"name": trial.name("readers"), "memberOf": [{"role": "pg_write_all_data"}]},
    )
    assert [one.action for one in report.objects] == [PlannedAction.CREATE, PlannedAction.REFUSE]
    assert [wait.reason for wait in report.objects[0].waits] == ["MembershipPending"]


async def test_a_renamed_role_gets_its_name_back(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app")}
    await trial.home.execute(f"CREATE ROLE {spec['name']}")
    await trial.claim(spec)
    await trial.home.execute(f"ALTER ROLE {spec['name']} RENAME TO {trial.name('other')}")
    one = await trial.plan_one(spec)
    assert (one.action, one.drift) == (PlannedAction.CHANGE, ("name",))
    assert lines(one) == [f'ALTER ROLE "{trial.name("other")}" RENAME TO "{spec["name"]}"']


async def test_a_changed_role_name_of_an_object_is_noted_as_impossible(trial: PlanTrial) -> None:
    await trial.home.execute(f"CREATE ROLE {trial.name('before')}")
    await trial.claim({"name": trial.name("before")}, name="app")
    one = await trial.plan_one({"name": trial.name("after"), "object": "app"})
    assert any(trial.name("before") in note and "immutable" in note for note in one.notes)


async def test_the_later_of_two_objects_with_one_role_is_a_conflict(trial: PlanTrial) -> None:
    name = trial.name("app")
    report = await trial.plan({"name": name, "object": "zz-first"}, {"name": name, "object": "aa-second"})
    assert [one.action for one in report.objects] == [PlannedAction.CREATE, PlannedAction.REFUSE]
    assert report.objects[1].refusals[0].reason == "Conflict"


async def test_the_claim_of_another_object_is_a_conflict(trial: PlanTrial) -> None:
    spec = {"name": trial.name("app")}
    await trial.home.execute(f"CREATE ROLE {spec['name']}")
    await trial.claim(spec, name="someone-else")
    one = await trial.plan_one(spec)
    assert one.action is PlannedAction.REFUSE
    assert "someone-else" in one.refusals[0].message


async def test_privileges_of_a_new_and_of_an_existing_role_are_planned_and_applied(
    trial: PlanTrial, place: Connection
) -> None:
    new, old = trial.name("new"), trial.name("old")
    declared = [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}]
    await trial.home.execute(f"CREATE ROLE {old}")
    await place.execute(f"GRANT USAGE ON SCHEMA app TO {old}; GRANT DELETE, SELECT ON app.orders TO {old}")
    await trial.claim({"name": old})
    specs = [{"name": name, "privileges": declared} for name in (new, old)]
    report = await trial.plan(*specs)
    created, changed = report.objects
    assert (created.action, changed.action) == (PlannedAction.CREATE, PlannedAction.CHANGE)
    assert set(words(created)) == {"+USAGE on schema app", "+SELECT on table app.orders", "+SELECT on table app.other"}
    assert set(words(changed)) == {"-DELETE on table app.orders", "+SELECT on table app.other"}
    await trial.apply(report)
    await trial.claim(specs[0])
    again = await trial.plan(*specs)
    assert not again.differs
    assert await place.fetchval(f"SELECT has_table_privilege('{new}', 'app.other', 'SELECT')")


@pytest.mark.parametrize("report_only", [False, True])
async def test_a_revoked_privilege_is_drift_and_one_that_a_new_table_lacks_is_not(
    trial: PlanTrial, place: Connection, report_only: bool
) -> None:
    reader, declared = trial.name("reader"), [{"kind": "Table", "schema": "app", "names": ["*"]} | SELECT]
    spec: dict[str, Any] = {"name": reader, "privileges": [{"database": trial.prefix, "objects": declared}]}
    spec |= {"drift": {"policy": "Report"}} if report_only else {}
    await trial.home.execute(f"CREATE ROLE {reader}")
    await trial.claim(spec)
    await place.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA app TO {reader}; {queries.install_database()}")
    stored = await trial.applied(spec)
    await place.execute("SELECT pgrole.store_applied($1::text::regrole, $1::text, $2, $3)", reader, *stored)
    await place.execute("CREATE TABLE app.new (id int)")
    one = await trial.plan_one(spec)
    assert (one.drift, words(one)) == ((), ["+SELECT on table app.new"])
    await place.execute(f"DROP TABLE app.new; REVOKE SELECT ON app.orders FROM {reader}")
    one = await trial.plan_one(spec)
    revoked = "+SELECT on table app.orders was revoked" if report_only else "+SELECT on table app.orders"
    assert (one.drift, words(one)) == (("privileges",), [revoked])
    assert one.action is (PlannedAction.REPORT if report_only else PlannedAction.CHANGE)
    assert all(change.corrected is not report_only for change in one.changes)


async def test_what_a_role_granted_in_turn_is_revoked_with_cascade_and_named(
    trial: PlanTrial, place: Connection
) -> None:
    old, bob = trial.name("old"), trial.name("bob")
    await trial.home.execute(f"CREATE ROLE {old}; CREATE ROLE {bob}")
    await place.execute(
        f"""GRANT USAGE ON SCHEMA app TO {old} WITH GRANT OPTION;
        GRANT SELECT, DELETE, UPDATE (id) ON app.orders TO {old} WITH GRANT OPTION;
        GRANT INSERT ON app.other TO {old} WITH GRANT OPTION;
        SET ROLE {old}; GRANT SELECT, UPDATE (id) ON app.orders TO {bob}; GRANT SELECT ON app.orders TO PUBLIC;
        RESET ROLE"""
    )
    await trial.claim({"name": old})
    declared = {"kind": "Table", "schema": "app", "names": ["orders"], "privileges": ["DELETE"]}
    access = {"name": "app", "access": ["Read"], "except": ["*"]}
    spec = {"name": old, "privileges": [{"database": trial.prefix, "schemas": [access], "objects": [declared]}]}
    report = await trial.plan(spec)
    (one,) = report.objects
    assert set(words(one)) == {
        "-grant option for USAGE on schema app",
        f'-SELECT on table app.orders, and what it granted to "PUBLIC", "{bob}"',
        f'-UPDATE (id) on table app.orders, and what it granted to "{bob}"',
        "-grant option for DELETE on table app.orders",
        "-INSERT on table app.other",
    }
    assert {line.split()[-1] == "CASCADE" for line in lines(one) if "orders" in line} == {True}
    assert not any("CASCADE" in line for line in lines(one) if "orders" not in line)
    await trial.apply(report)
    assert not (await trial.plan(spec)).differs


async def test_what_is_declared_survives_the_loss_of_the_role_that_granted_it(
    trial: PlanTrial, place: Connection
) -> None:
    old, bob, carol, dave = (trial.name(name) for name in ("old", "bob", "carol", "dave"))
    for name in (old, bob, carol, dave):
        await trial.home.execute(f"CREATE ROLE {name}")
        await trial.claim({"name": name})
    await place.execute(
        f"""GRANT USAGE ON SCHEMA app TO {old}, {bob}, {carol}, {dave};
        GRANT SELECT, UPDATE (id) ON app.orders TO {old} WITH GRANT OPTION;
        SET ROLE {old}; GRANT SELECT ON app.orders TO {bob}, {dave}; GRANT UPDATE (id) ON app.orders TO {bob};
        GRANT SELECT ON app.orders TO {carol} WITH GRANT OPTION; RESET ROLE"""
    )
    read = {"kind": "Table", "schema": "app", "names": ["orders"], "privileges": ["SELECT"]}
    update = {"kind": "Table", "schema": "app", "names": ["orders"], "columns": ["id"], "privileges": ["UPDATE"]}
    usage = {"name": "app", "access": ["Read"], "except": ["*"]}

    def spec(name: str, *objects: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "privileges": [{"database": trial.prefix, "schemas": [usage], "objects": [*objects]}]}

    specs = [spec(bob, read, update), {"name": old, "privileges": [{"database": trial.prefix}]}, spec(carol, read)]
    report = await trial.plan(*specs)
    of_bob, of_old, of_carol = report.objects
    assert words(of_bob) == []
    assert words(of_carol) == ["-grant option for SELECT on table app.orders"]
    assert set(words(of_old)) == {
        "-USAGE on schema app",
        f'-SELECT on table app.orders, and what it granted to "{dave}"',
        "-UPDATE (id) on table app.orders",
    }
    await trial.apply(report)
    for name in (bob, carol):
        assert await place.fetchval(f"SELECT has_table_privilege('{name}', 'app.orders', 'SELECT')")
    assert await place.fetchval(f"SELECT has_column_privilege('{bob}', 'app.orders', 'id', 'UPDATE')")
    assert not await place.fetchval(f"SELECT has_table_privilege('{dave}', 'app.orders', 'SELECT')")
    assert not (await trial.plan(*specs)).differs


async def test_grantors_that_lost_what_they_need_are_lent_it_by_the_script(trial: PlanTrial, place: Connection) -> None:
    old, bob = trial.name("old"), trial.name("bob")
    await trial.home.execute(f"CREATE ROLE {old}; CREATE ROLE {bob}")
    await trial.claim({"name": bob})
    await place.execute(
        f"""GRANT USAGE ON SCHEMA app TO {old}; GRANT SELECT ON app.orders TO {old} WITH GRANT OPTION;
        GRANT UPDATE ON app.other TO {old} WITH GRANT OPTION;
        SET ROLE {old}; GRANT SELECT ON app.orders TO {bob}; GRANT UPDATE (id) ON app.other TO {bob}; RESET ROLE;
        REVOKE USAGE ON SCHEMA app FROM {old}; REVOKE UPDATE ON app.other FROM {old}"""
    )
    spec = {"name": bob, "privileges": [{"database": trial.prefix}]}
    state = """SELECT format('%s %s', nspacl, (SELECT relacl FROM pg_class WHERE oid = 'app.other'::regclass))
        FROM pg_namespace WHERE nspname = 'app'"""
    before = await place.fetchval(state)
    report = await trial.plan(spec)
    assert set(words(report.objects[0])) == {"-SELECT on table app.orders", "-UPDATE (id) on table app.other"}
    await trial.apply(report)
    assert await place.fetchval(state) == before
    assert not (await trial.plan(spec)).differs


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_owners_of_objects_must_be_roles_that_the_namespace_claims(
    trial: PlanTrial, place: Connection, elsewhere: bool
) -> None:
    owner, reader = trial.name("owner"), trial.name("reader")
    await trial.home.execute(f"CREATE ROLE {owner}")
    await place.execute(
        f"ALTER SCHEMA app OWNER TO {owner}; ALTER TABLE app.orders OWNER TO {owner}; DROP TABLE app.other"
    )
    if elsewhere:
        await replace(trial, prefix=f"{trial.prefix}x").claim({"name": owner})
    else:
        await trial.claim({"name": owner})
    declared = [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}]
    one = await trial.plan_one({"name": reader, "privileges": declared}, text=PGSERVER)
    if elsewhere:
        assert "its owner must be a role of a PgRole in this namespace" in one.refusals[0].message
    else:
        assert (one.refusals, one.errors) == ((), ())
        assert set(words(one)) == {"+USAGE on schema app", "+SELECT on table app.orders"}


async def test_claims_of_several_clusters_for_one_namespace_are_noted(trial: PlanTrial) -> None:
    for number in (1, 2):
        await trial.home.execute(f"CREATE ROLE {trial.name(f'role{number}')}")
        await trial.claim({"name": trial.name(f"role{number}")})
    await trial.home.execute("UPDATE pgrole.claim SET cluster = 'c-0' WHERE role_name = $1", trial.name("role2"))
    notes = (await trial.plan({"name": trial.name("new")})).notes
    assert any("several clusters have claims" in note for note in notes)


async def test_default_privileges_of_a_role_that_the_plan_creates_are_planned(
    trial: PlanTrial, place: Connection
) -> None:
    owner, reader = trial.name("owner"), trial.name("reader")
    report = await trial.plan(
        {
            "name": reader,
            "privileges": [
                {
                    "database": trial.prefix,
                    "schemas": [{"name": "app", "access": ["Read"]}],
                    "createdBy": [owner],
                }
            ],
        },
        {"name": owner},
    )
    assert any("ALTER DEFAULT PRIVILEGES" in line and owner in line for line in lines(report.objects[0]))
    await trial.apply(report)


async def test_a_privilege_on_many_objects_is_summarized_with_their_number(trial: PlanTrial, place: Connection) -> None:
    await place.execute("".join(f"CREATE TABLE app.t{number} (id int);" for number in range(20)))
    one = await trial.plan_one(
        {
            "name": trial.name("app"),
            "privileges": [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}],
        }
    )
    assert "+SELECT on 22 tables and views in schema app" in words(one)


async def test_a_missing_database_is_waited_for_and_a_closed_one_fails_its_objects(
    trial: PlanTrial, place: Connection
) -> None:
    await trial.home.execute(f"CREATE DATABASE {trial.prefix}_closed ALLOW_CONNECTIONS false")
    report = await trial.plan(
        {"name": trial.name("a"), "privileges": [{"database": trial.name("nowhere"), "onDatabase": ["CONNECT"]}]},
        {"name": trial.name("b"), "privileges": [{"database": trial.name("closed"), "onDatabase": ["CONNECT"]}]},
        {"name": trial.name("c"), "privileges": [{"database": trial.prefix, "onDatabase": ["CONNECT"]}]},
    )
    waiting, failed, fine = report.objects
    assert (waiting.action, waiting.waits[0].reason) == (PlannedAction.CREATE, "PrivilegePending")
    assert failed.action is PlannedAction.FAIL
    assert trial.name("closed") in failed.errors[0].message
    assert words(fine) == [f"+CONNECT on database {trial.prefix}"]
    assert report.failed


HOSTILE = ('"; DROP ROLE postgres; --', "\\connect other", "a\x1b[31mred\u202e", "new\nline", "it's E'", ":name")


async def test_hostile_names_stay_names(trial: PlanTrial) -> None:
    specs = [
        {"name": f"{trial.prefix}{name}", "object": f"hostile-{place}", "comment": name, "login": True}
        for place, name in enumerate(HOSTILE)
    ]
    report = await trial.plan(*specs)
    assert {one.action for one in report.objects} == {PlannedAction.CREATE}
    assert "\x1b" not in render_json(report)
    await trial.apply(report)
    found = await trial.home.fetch("SELECT rolname FROM pg_roles WHERE starts_with(rolname, $1)", trial.prefix)
    assert {row[0] for row in found} == {spec["name"] for spec in specs}


async def test_a_hostile_database_name_stays_one_name_in_the_script(trial: PlanTrial) -> None:
    name = f"{trial.prefix} host='evil' \"quoted\" \\x"
    await trial.home.execute(f"CREATE DATABASE {quote_identifier(name)}")
    role = trial.name("app")
    report = await trial.plan({"name": role, "privileges": [{"database": name, "onDatabase": ["CONNECT"]}]})
    await trial.apply(report)
    granted = await trial.home.fetchval("SELECT datacl::text FROM pg_database WHERE datname = $1", name)
    assert f"{role}=c/" in granted


async def test_an_invalid_document_hides_no_other(trial: PlanTrial) -> None:
    text = "apiVersion: pgrole.dev/v1alpha1\nkind: PgRole\nmetadata: {name: bad}\nspec: {connectionLimit: many}"
    report = await trial.plan({"name": trial.name("app")}, text=text)
    assert [one.action for one in report.objects] == [PlannedAction.FAIL, PlannedAction.CREATE]
    assert (report.objects[0].name, report.objects[0].place) == (f"{trial.namespace}/bad", "roles.yaml:1")
    assert "connectionLimit" in report.objects[0].errors[0].message


async def test_plan_writes_nothing_and_uses_no_transaction_id(trial: PlanTrial, place: Connection) -> None:
    name = trial.name("old")
    await trial.home.execute(f"CREATE ROLE {name} CREATEDB")
    await trial.claim({"name": name})
    declared = [{"database": trial.prefix, "schemas": [{"name": "app", "access": ["Read"]}]}]
    next_id = "SELECT pg_snapshot_xmax(pg_current_snapshot())"

    async def uses_none() -> bool:
        before = await trial.home.fetchval(next_id)
        report = await trial.plan({"name": name, "privileges": declared}, {"name": trial.name("new")})
        assert report.differs
        return bool(await trial.home.fetchval(next_id) == before)

    assert await reached(uses_none, 20.0), "autovacuum uses some, too, but not always"


@pytest.mark.parametrize("more", [{"reassignOwnedTo": "heir"}, {"terminateSessions": True}])
async def test_fields_that_the_api_server_accepts_only_with_drop_are_noted(
    trial: PlanTrial, more: dict[str, Any]
) -> None:
    spec = {"name": trial.name("app"), **more}
    (note,) = (await trial.plan_one(spec)).notes
    assert note.startswith("the API server rejects a new object with spec.reassignOwnedTo or")
    assert (await trial.plan_one({**spec, "deletionPolicy": "Drop"})).notes == ()


async def test_a_login_with_only_pg_monitor_gets_notes_about_what_it_could_not_read(
    trial: PlanTrial, place: Connection
) -> None:
    login, old = trial.name("ci"), trial.name("old")
    await trial.home.execute(
        f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}' IN ROLE pg_monitor; CREATE ROLE {old} CREATEDB LOGIN"
    )
    spec = {
        "name": old,
        "login": True,
        "password": {"disabled": True},
        "privileges": [{"database": trial.prefix, "onDatabase": ["CONNECT"]}],
    }
    await trial.claim(spec)
    report = await trial.plan(spec, {**spec, "name": trial.name("new")}, dsn=trial.server.dsn(login, password=PASSWORD))
    changed, created = report.objects
    assert (changed.action, created.action) == (PlannedAction.CHANGE, PlannedAction.CREATE)
    assert words(changed) == ["~createdb: true -> false", f"+CONNECT on database {trial.prefix}"]
    assert changed.notes == ("password: not compared",)
    assert any("pgrole.claim" in note for note in report.notes)
    assert any("pg_authid" in note for note in report.notes)


async def test_a_login_that_may_read_claims_gets_no_note_about_claims(trial: PlanTrial) -> None:
    login, old = trial.name("ci"), trial.name("old")
    await trial.home.execute(
        f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}' IN ROLE pg_monitor; CREATE ROLE {old};"
        f"GRANT SELECT ON pgrole.claim TO {login}"
    )
    report = await trial.plan({"name": old}, dsn=trial.server.dsn(login, password=PASSWORD))
    assert report.objects[0].action is PlannedAction.REFUSE
    assert not any("pgrole.claim" in note for note in report.notes)


async def test_the_note_about_claims_names_the_grants_that_suffice(trial: PlanTrial) -> None:
    login, old = trial.name("ci"), trial.name("old")
    await trial.home.execute(f"CREATE ROLE {login} LOGIN PASSWORD '{PASSWORD}'; CREATE ROLE {old}")
    for expected in (["GRANT USAGE ON SCHEMA pgrole and SELECT ON pgrole.claim TO the login"], []):
        report = await trial.plan({"name": old}, dsn=trial.server.dsn(login, password=PASSWORD))
        assert [note.partition("To see them: ")[2] for note in report.notes if "pgrole.claim" in note] == expected
        await trial.home.execute(f"GRANT USAGE ON SCHEMA pgrole TO {login}; GRANT SELECT ON pgrole.claim TO {login}")


async def test_a_schema_pgrole_that_would_run_code_is_not_read(servers: Servers, database: str) -> None:
    """Someone else created schema pgrole in a database where the controller has none."""
    connection = await asyncpg.connect(database)
    try:
        await connection.execute(
            "CREATE SCHEMA pgrole; CREATE SEQUENCE pgrole.called;"
            "CREATE VIEW pgrole.claim AS SELECT 'x'::text AS role_name WHERE 1 / (nextval('pgrole.called') - 1) > 0"
        )
        manifests = parse_manifests(
            [("a.yaml", json.dumps({**SPEC, "metadata": {"name": "p-trap"}, "spec": {}}))], "shop"
        )
        report = await plan_files(manifests, choose(dsn=database))
        assert [one.action for one in report.objects] == [PlannedAction.CREATE]
        assert not await connection.fetchval("SELECT is_called FROM pgrole.called")
    finally:
        await connection.close()


async def test_a_server_that_does_not_answer_fails_every_object(trial: PlanTrial) -> None:
    report = await trial.plan({"name": trial.name("app")}, dsn="postgresql://nobody@127.0.0.1:1/nowhere")
    assert report.failed
    assert report.objects[0].errors[0].reason == "ServerNotReady"


async def test_a_dsn_of_another_database_than_the_recorded_home_fails_with_its_name(
    trial: PlanTrial, place: Connection
) -> None:
    """Without the claims, every role would count as never managed."""
    spec = {"name": trial.name("app")}
    await place.execute(f"CREATE ROLE {spec['name']}")
    await trial.claim(spec)
    assert (await trial.plan_one(spec)).action is PlannedAction.NOTHING
    elsewhere = trial.server.dsn(database=trial.prefix)
    for more in ("SELECT", f"CREATE SCHEMA pgrole; {queries.install_database()}"):
        await place.execute(more)
        report = await trial.plan(spec, dsn=elsewhere)
        (one,) = report.objects
        assert (report.failed, one.action, one.changes) == (True, PlannedAction.FAIL, ())
        assert one.errors[0].message == (
            f"the home database of this server, which has the claims, is postgres, not {trial.prefix}: "
            "connect to database postgres"
        )


async def test_a_database_whose_schema_has_no_claims_is_noted_where_no_home_is_recorded(
    trial: PlanTrial, place: Connection
) -> None:
    await place.execute(f"CREATE SCHEMA pgrole; {queries.install_database()}")
    await trial.home.execute("ALTER DATABASE postgres RESET pgrole.home")
    try:
        report = await trial.plan({"name": trial.name("app")}, dsn=trial.server.dsn(database=trial.prefix))
    finally:
        await trial.home.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")
    assert report.objects[0].action is PlannedAction.CREATE
    (note,) = [note for note in report.notes if "schema pgrole" in note]
    assert note.startswith("schema pgrole has no claims in this database, so it is not the controller's home database")
    assert "Connect to the home database, spec.connection.database of the PgServer" in note


async def test_a_note_tells_first_that_a_superuser_suspended_changes(trial: PlanTrial, place: Connection) -> None:
    role, database, other = trial.name("ctl"), trial.prefix, trial.name("other")
    await trial.home.execute(f"CREATE ROLE {role}")
    await trial.home.execute(f"CREATE DATABASE {other}")
    spec = {"name": trial.name("app"), "privileges": [{"database": database, "onDatabase": ["CONNECT"]}]}
    settings = {
        "ALTER DATABASE postgres": 'database "postgres": the controller changes nothing',
        f"ALTER DATABASE {database}": f'database "{database}": the controller changes no privileges there',
        "ALTER ROLE ALL": "all roles: the controller changes nothing",
        f"ALTER ROLE {role}": f'role "{role}": if that is its role, the controller changes nothing',
        f"ALTER ROLE {role} IN DATABASE {database}": (
            f'role "{role}" in database "{database}": if that is its role, the controller changes no privileges there'
        ),
        f"ALTER DATABASE {other}": "",
    }
    for statement, told in settings.items():
        await trial.home.execute(f"{statement} SET pgrole.suspend = on")
        try:
            report = await trial.plan(spec)
            notes = [note for note in report.notes if "pgrole.suspend" in note]
            assert report.objects[0].action is PlannedAction.CREATE
            assert [note.partition(" until a superuser runs ")[0] for note in notes] == (
                [f"pgrole.suspend is on for {told}"] if told else []
            )
            for note in notes:
                assert note == report.notes[0]
                await trial.home.execute(note.partition(" until a superuser runs ")[2])
            assert not [note for note in (await trial.plan(spec)).notes if "pgrole.suspend" in note]
        finally:
            await trial.home.execute(f"{statement} RESET pgrole.suspend")


@pytest.mark.parametrize(("output", "code"), [("text", 3), ("json", 3), ("sql", 3)], ids=["text", "json", "sql"])
async def test_the_command_prints_every_format_and_exits_with_3_if_something_differs(
    trial: PlanTrial, tmp_path: Path, output: str, code: int
) -> None:
    file = tmp_path / "roles.yaml"
    file.write_text(trial.write({"name": trial.name("app"), "login": True}), encoding="utf-8")
    ended = await run_command("plan", "-f", str(tmp_path), "-o", output, PGROLE_DSN=trial.server.dsn())
    assert ended.code == code, ended.err
    assert trial.name("app") in ended.out
    if output == "json":
        (one,) = ended.json()["objects"]
        assert (one["action"], one["place"]) == ("create", f"{file}:1")


async def test_the_exit_code_shows_the_outcome(trial: PlanTrial, tmp_path: Path) -> None:
    name = trial.name("app")
    await trial.home.execute(f"CREATE ROLE {name}")
    await trial.claim({"name": name})
    file = tmp_path / "roles.yaml"
    file.write_text(trial.write({"name": name}), encoding="utf-8")
    dsn = trial.server.dsn()
    assert (await run_command("plan", "-f", str(file), PGROLE_DSN=dsn)).code == 0
    assert (await run_command("plan", "-f", str(tmp_path / "missing.yaml"), PGROLE_DSN=dsn)).code == 2
    file.write_text("kind: PgRole\napiVersion: pgrole.dev/v1alpha1\nmetadata: {name: x}\nspec: 1", encoding="utf-8")
    assert (await run_command("plan", "-f", str(file), PGROLE_DSN=dsn)).code == 1


async def test_the_plan_of_an_export_is_empty(trial: PlanTrial, tmp_path: Path) -> None:
    group, member, schema = trial.name("group"), trial.name("member"), f"s{trial.prefix}"
    await trial.home.execute(
        f"CREATE ROLE {group}; CREATE ROLE {member} LOGIN CONNECTION LIMIT 3 IN ROLE {group}; "
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id int); GRANT USAGE ON SCHEMA {schema} TO {group}; "
        f"GRANT SELECT ON {schema}.t TO {group}; ALTER ROLE {member} SET search_path = {schema}"
    )
    dsn = trial.server.dsn()
    exported = await run_command("export", "--roles", f"{trial.prefix}_*", "-n", trial.namespace, PGROLE_DSN=dsn)
    file = tmp_path / "roles.yaml"
    file.write_text(exported.out, encoding="utf-8")
    planned = await run_command("plan", "-f", str(file), PGROLE_DSN=dsn)
    assert planned.code == 0, planned.out
    assert planned.out.splitlines()[-1] == "nothing to do: 2 objects: 2 adopted as they are"
