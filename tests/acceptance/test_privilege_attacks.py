"""Ways to gain privileges on objects of others, tried by the author of one team's PgRoles: each is refused with a
message, and PostgreSQL grants nothing.

All attacks on one policy are declared at once. Each module that needs two teams has its own server for them.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import LocalApiError
from pgrole_controller.local.process import reached
from tests.acceptance.two_teams import SERVER, TwoTeams
from tests.acceptance.world import PATIENCE, Database, Json, open_database, says

pytestmark = pytest.mark.slow

#: `@b_app` is the neighbour's role and `@a_mate` the attacker's; @db is the database.
VICTIMS = """
REVOKE TEMPORARY ON DATABASE @db FROM PUBLIC;
CREATE SCHEMA theirs AUTHORIZATION "@b_app"; CREATE SCHEMA ours AUTHORIZATION "@a_mate";
GRANT USAGE ON SCHEMA theirs TO "@a_mate";
SET ROLE "@b_app";
CREATE TABLE theirs.payroll (id int, salary int); CREATE SEQUENCE theirs.number;
CREATE FUNCTION theirs.pay() RETURNS int LANGUAGE sql AS 'SELECT 1';
GRANT SELECT ON theirs.payroll TO "@a_mate" WITH GRANT OPTION;
RESET ROLE;
CREATE FUNCTION ours.climb() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1';
REVOKE EXECUTE ON FUNCTION theirs.pay(), ours.climb() FROM PUBLIC;
CREATE TABLE ours.guest (id int); ALTER TABLE ours.guest OWNER TO "@b_app";
CREATE TABLE ours.own (id int); ALTER TABLE ours.own OWNER TO "@a_mate";
"""

#: Everything that the attackers' roles hold on objects of others.
HELD = """
SELECT a.grantee::regrole || ': ' || a.privilege_type || ' on ' || held.of
FROM (
    SELECT 'the database' AS of, datdba AS owner, datacl AS acl FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT nspname, nspowner, nspacl FROM pg_namespace
    UNION ALL SELECT oid::regclass::text, relowner, relacl FROM pg_class
    UNION ALL SELECT oid::regproc::text, proowner, proacl FROM pg_proc
    UNION ALL SELECT attrelid::regclass || '.' || attname, relowner, attacl
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE attacl IS NOT NULL
    UNION ALL SELECT 'default privileges', defaclrole, defaclacl FROM pg_default_acl
) AS held, aclexplode(held.acl) AS a
WHERE pg_get_userbyid(a.grantee) LIKE $1 AND pg_get_userbyid(held.owner) <> $2
"""


@dataclass(frozen=True, slots=True)
class PrivilegeAttack:
    """Privileges that a role declares in the database, and words and reason of the refusal."""

    declared: Json
    words: tuple[str, ...]
    reason: str = "NotAllowed"


def on(schema: str, name: str, *privileges: str, kind: str = "Table", **more: Any) -> Json:
    return {"objects": [{"kind": kind, "schema": schema, "names": [name], "privileges": list(privileges), **more}]}


def access(schema: str, *kinds: str, **more: Any) -> Json:
    return {"schemas": [{"name": schema, "access": list(kinds)}], **more}


PAYROLL, BY_OWNER = 'table theirs.payroll (owner "@b_app")', "its owner must be a role of a PgRole in this namespace"

#: Without `allow.privileges`, which allows privileges on objects that the team's own roles own.
BY_DEFAULT = {
    "a table": PrivilegeAttack(on("theirs", "payroll", "SELECT"), (f"SELECT on {PAYROLL}", BY_OWNER)),
    "a table of which a role of the team is a delegate": PrivilegeAttack(
        {**on("theirs", "payroll", "SELECT"), **access("ours", "Read")}, (f"SELECT on {PAYROLL}", BY_OWNER)
    ),
    "a column": PrivilegeAttack(
        on("theirs", "payroll", "UPDATE", columns=["salary"]), ("UPDATE on column theirs.payroll.salary", BY_OWNER)
    ),
    "a pattern of names": PrivilegeAttack(on("theirs", "*", "SELECT", "DELETE"), (PAYROLL, BY_OWNER)),
    "a pattern of schemas": PrivilegeAttack(access("*", "Write"), ("policy does not allow", BY_OWNER)),
    "another's table in the team's schema": PrivilegeAttack(
        access("ours", "Read"), ('SELECT on table ours.guest (owner "@b_app")', BY_OWNER)
    ),
    "a sequence": PrivilegeAttack(
        on("theirs", "number", "USAGE", kind="Sequence"), ("USAGE on sequence theirs.number", BY_OWNER)
    ),
    "a schema": PrivilegeAttack(access("theirs", "Read"), ('USAGE on schema theirs (owner "@b_app")', BY_OWNER)),
    "CREATE on the database": PrivilegeAttack(
        {"onDatabase": ["CREATE"]}, ("CREATE on database @db", "of another owner")
    ),
    "a superuser's SECURITY DEFINER routine in the team's schema": PrivilegeAttack(
        access("ours", "Execute"), ("EXECUTE on routine ours.climb()", "can do more than its caller")
    ),
    **{
        privilege: PrivilegeAttack(
            on("theirs", "payroll", privilege), (f"{privilege} on {PAYROLL}", "of another owner can run code")
        )
        for privilege in ("TRIGGER", "REFERENCES")
    },
    "another's default privileges": PrivilegeAttack(
        {"schemas": [{"name": "ours", "access": ["Read"], "except": ["guest"]}], "createdBy": ["@b_app"]},
        ('default privileges of creator "@b_app"', "createdBy"),
    ),
    "a catalog": PrivilegeAttack(
        on("pg_catalog", "pg_authid", "SELECT"),
        ("table pg_catalog.pg_authid", "privileges on PostgreSQL's own objects are not managed"),
        "InvalidSpec",
    ),
    "the controller's own schema": PrivilegeAttack(
        on("pgrole", "ddl_event", "INSERT"), ("pgrole.ddl_event", "schema pgrole belongs to the controller")
    ),
}

#: With a rule that has only patterns.
WIDE = [{"schemas": ["*"]}]
BY_PATTERN = {
    name: BY_DEFAULT[name]
    for name in (
        *("TRIGGER", "REFERENCES", "a superuser's SECURITY DEFINER routine in the team's schema", "a catalog"),
        *("another's default privileges", "the controller's own schema"),
    )
} | {
    "CREATE on the database": PrivilegeAttack(
        {"onDatabase": ["CREATE"]}, ("CREATE on database @db", "name the database exactly")
    )
}


@dataclass(frozen=True, slots=True)
class AttackedDatabase:
    """The database of the victims, and a superuser's session there."""

    teams: TwoTeams
    name: str
    inside: Database

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.teams.fill(value.replace("@db", self.name))
        return self.teams.fill(value)

    async def declare(self, name: str, *declared: Json, **more: Any) -> None:
        """Declares a role of team a with privileges here, or in the databases that they name."""
        privileges = [{"database": self.name, **self.fill(one)} for one in declared]
        await self.teams.teams[0].apply(
            name, name=f"{self.teams.a}_x_{name}", serverRef={"name": SERVER}, privileges=privileges, **more
        )

    async def check_refused(self, attacks: Mapping[str, PrivilegeAttack]) -> None:
        team = self.teams.teams[0]
        names = {f"attack-{number}": attack for number, attack in enumerate(attacks.values())}
        for name, attack in names.items():
            await self.declare(name, attack.declared)
        for name, attack in names.items():
            await team.wait_for(name, partial(self._is_refused, attack), str(attack))
        assert await self.held() == []

    def _is_refused(self, attack: PrivilegeAttack, obj: Json) -> bool:
        return says(obj, attack.reason, *map(self.fill, attack.words))

    async def held(self) -> list[str]:
        rows = await self.inside.connection.fetch(HELD, f"{self.teams.a}_x_%", f"{self.teams.a}_mate")
        return [row[0] for row in rows]

    async def may(self, role: str, privilege: str, table: str) -> bool:
        query = "SELECT has_table_privilege($1, $2, $3)"
        return bool(await self.inside.fetchval(query, self.fill(role), table, privilege))


@pytest_asyncio.fixture(loop_scope="session")
async def attacked(two_teams: TwoTeams) -> AsyncIterator[AttackedDatabase]:
    async with make_database(two_teams, "one") as made:
        await two_teams.servers.patch(SERVER, {"spec": {"databases": {"matchNames": [f"{two_teams.a}_*"], "max": 50}}})
        await two_teams.allow(privileges=None)
        yield made
        await two_teams.allow(privileges=None)
        for obj in await two_teams.teams[0].objects():
            if obj["metadata"]["name"] != "mate":
                await two_teams.teams[0].delete(obj["metadata"]["name"])
                await two_teams.teams[0].wait_gone(obj["metadata"]["name"])


@asynccontextmanager
async def make_database(two_teams: TwoTeams, which: str) -> AsyncIterator[AttackedDatabase]:
    name = f"{two_teams.a}_{which}"
    await two_teams.database.execute(f"CREATE DATABASE {name}")
    async with open_database(two_teams.postgres.dsn(database=name)) as inside:
        made = AttackedDatabase(two_teams, name, inside)
        await inside.execute(made.fill(VICTIMS))
        yield made
    await two_teams.database.execute(f"DROP DATABASE {name} WITH (FORCE)")
    for role in ("@a_mate", "@b_app"):
        await two_teams.database.execute(two_teams.fill(f'DROP OWNED BY "{role}"'))


async def test_a_team_gets_no_privileges_on_objects_of_others(attacked: AttackedDatabase) -> None:
    await attacked.check_refused(BY_DEFAULT)
    await attacked.declare("allowed", on("ours", "own", "SELECT"))
    await attacked.teams.teams[0].wait_ready("allowed")
    assert await attacked.may("@a_x_allowed", "SELECT", "ours.own")


async def test_a_privilege_that_policy_first_denies_and_then_allows_is_granted_without_drift(
    attacked: AttackedDatabase,
) -> None:
    team = attacked.teams.teams[0]
    await attacked.declare("denied", access("ours", "Read"), drift={"policy": "Report"})
    await team.wait_reason("denied", "NotAllowed")
    assert not await attacked.may("@a_x_denied", "SELECT", "ours.guest")
    await attacked.teams.allow(privileges=WIDE)
    obj = await team.wait_ready("denied")
    assert await attacked.may("@a_x_denied", "SELECT", "ours.guest")
    assert obj["status"].get("driftCount", 0) == 0
    assert "lastDrift" not in obj["status"]


async def test_a_rule_with_patterns_allows_no_escalation(attacked: AttackedDatabase) -> None:
    await attacked.teams.allow(privileges=WIDE)
    await attacked.check_refused(BY_PATTERN)
    await attacked.declare("allowed", on("theirs", "payroll", "SELECT"))
    await attacked.teams.teams[0].wait_ready("allowed")
    assert await attacked.may("@a_x_allowed", "SELECT", "theirs.payroll")


async def test_adoption_brings_nothing_of_what_others_own(attacked: AttackedDatabase) -> None:
    team, database = attacked.teams.teams[0], attacked.teams.database
    names = ("kept", "declared", "by-mate", "owner", "reads-it")
    roles = {name: attacked.fill(f'"@a_x_{name}"') for name in names}
    await database.execute("; ".join(f"CREATE ROLE {role}" for role in roles.values()))
    await attacked.inside.execute(
        attacked.fill(
            f"GRANT SELECT ON theirs.payroll TO {roles['kept']}, {roles['declared']};"
            f"GRANT DELETE ON ours.own TO {roles['by-mate']};"
            f"CREATE TABLE ours.of_owner (id int); ALTER TABLE ours.of_owner OWNER TO {roles['owner']};"
            f"GRANT SELECT ON ours.of_owner TO {roles['reads-it']}"
        )
    )
    await attacked.declare("kept", {"unmanaged": ["*"]}, adopt=True, login=True)
    await attacked.declare("declared", on("theirs", "payroll", "SELECT"), adopt=True, login=True)
    words = attacked.fill("SELECT on table theirs.payroll (database @db)")
    for name in ("kept", "declared"):
        await team.wait_for(
            name, lambda obj: says(obj, "NotAllowed", "adoption is denied", f"could not declare ({words}): ask"), name
        )
        assert not await database.fetchval(
            "SELECT rolcanlogin FROM pg_roles WHERE rolname = $1", roles[name].strip('"')
        )
    await attacked.declare("by-mate", on("ours", "own", "SELECT"), adopt=True)
    await team.wait_ready("by-mate")
    await attacked.declare("reads-it", on("ours", "of_owner", "SELECT"), adopt=True)
    await team.wait_for("reads-it", lambda obj: says(obj, "NotAllowed", "ours.of_owner"), "its owner is no one's yet")
    await attacked.declare("owner", adopt=True)
    await team.wait_ready("owner")
    await team.wait_ready("reads-it")
    await attacked.inside.execute(f"DROP TABLE ours.of_owner; DROP OWNED BY {roles['kept']}, {roles['declared']}")


async def test_create_on_objects_of_a_schema_is_refused_at_admission(attacked: AttackedDatabase) -> None:
    for declared in (
        on("theirs", "theirs", "CREATE", kind="Schema"),
        on("theirs", "payroll", "CREATE"),
        access("theirs", "Create"),
    ):
        with pytest.raises(LocalApiError) as caught:
            await attacked.declare("unfit", declared)
        assert caught.value.status == 422


async def test_an_undeclared_grant_by_a_delegate_is_revoked(attacked: AttackedDatabase) -> None:
    await attacked.declare("exact", on("ours", "own", "SELECT"))
    await attacked.teams.teams[0].wait_ready("exact")
    grantee = attacked.fill('"@a_x_exact"')
    await attacked.inside.execute(
        attacked.fill(f'SET ROLE "@a_mate"; GRANT SELECT ON theirs.payroll TO {grantee}; RESET ROLE')
    )

    async def is_revoked() -> bool:
        return await attacked.held() == []

    assert await reached(is_revoked, PATIENCE)
    assert await attacked.may("@a_mate", "SELECT WITH GRANT OPTION", "theirs.payroll")


async def test_a_view_of_the_team_shows_only_what_its_owner_can_read(attacked: AttackedDatabase) -> None:
    await attacked.inside.execute(
        attacked.fill(
            'REVOKE SELECT ON theirs.payroll FROM "@a_mate" CASCADE;'
            "CREATE VIEW ours.spy AS SELECT * FROM theirs.payroll;"
            'ALTER VIEW ours.spy OWNER TO "@a_mate"; GRANT USAGE ON SCHEMA ours TO "@b_app"'
        )
    )
    await attacked.declare("viewer", {**on("ours", "spy", "SELECT"), **access("ours", "Read")})
    team = attacked.teams.teams[0]
    await team.wait_for("viewer", lambda obj: says(obj, "NotAllowed", "ours.guest"), "NotAllowed for the guest only")
    assert await attacked.may("@a_x_viewer", "SELECT", "ours.spy")
    await attacked.inside.execute(attacked.fill('SET ROLE "@a_x_viewer"'))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for table payroll"):
        await attacked.inside.fetchval("SELECT count(*) FROM ours.spy")
    await attacked.inside.execute("RESET ROLE")
    assert await attacked.held() == []


async def test_databases_beyond_the_maximum_do_not_displace_others(attacked: AttackedDatabase) -> None:
    team = attacked.teams.teams[0]
    await attacked.declare("first", on("ours", "own", "SELECT"))
    await team.wait_ready("first")
    await attacked.teams.servers.patch(SERVER, {"spec": {"databases": {"max": 1}}})
    async with make_database(attacked.teams, "a_second") as second:
        await second.declare("greedy", on("ours", "own", "SELECT"))
        await team.wait_ready("greedy")
        assert await second.may("@a_x_greedy", "SELECT", "ours.own")

        polled = [("Poll", True), ("Events", True)]
        await attacked.teams.servers.wait_for(SERVER, lambda obj: _detections(obj) == polled, "the second is polled")
        await attacked.inside.execute(attacked.fill('REVOKE SELECT ON ours.own FROM "@a_x_first"'))

        async def is_granted() -> bool:
            return await attacked.may("@a_x_first", "SELECT", "ours.own")

        assert await reached(is_granted, PATIENCE)
        await attacked.teams.servers.patch(SERVER, {"spec": {"databases": {"max": 2}}})
        both = [("Events", True)] * 2
        await attacked.teams.servers.wait_for(SERVER, lambda obj: _detections(obj) == both, "both have a connection")
        await team.delete("greedy")
        await team.wait_gone("greedy")


def _detections(server: Json) -> list[tuple[str, bool]]:
    return [(one.get("detection"), one["ready"]) for one in server["status"].get("databases", ())]
