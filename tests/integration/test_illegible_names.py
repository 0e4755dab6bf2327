"""postgres: names that a database with another encoding stored, and that are not valid UTF-8, block nothing."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import Drop, RevokeMembership, SetAttribute, SetComment, SetParameter
from pgrole_controller.core.errors import PgRoleError, Refused
from pgrole_controller.core.parameters import ALL
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Membership, Role
from pgrole_controller.core.state import Claims, Desired, Observed, Server
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION, ReferencedNames
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.status_claims import StatusClaims
from tests.integration.sql_support import seen
from tests.servers import Servers

CLUSTER = "cluster"
KEY = Key("shop", "victim")
OWNER = Owner(CLUSTER, KEY.namespace, "ns-uid", KEY.name, "uid")
DESIRED = Role("victim", login=True, member_of=(Membership("declared"),), parameters=(("work_mem", "64MB"),))
ASK = Desired(OWNER, DESIRED)

#: Has the characters that quoting and formatting treat specially, between two bytes that are not UTF-8.
ILLEGIBLE = "r\xf4le %s %I \"'\\ $$ \xe9"
GRANTOR, DATABASE = "gr\xe2ntor", "b\xe2se"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


#: Statements in a LATIN1 database, and the fields that then differ.
ATTACKS = {
    "a membership in it": (f"GRANT {quoted(ILLEGIBLE)} TO victim", {"memberOf"}),
    "a setting in it": (f"ALTER ROLE victim IN DATABASE {DATABASE} SET app.x = 'x'", {"databaseParameters"}),
    "a setting with such a name in it": (
        f"ALTER ROLE victim IN DATABASE {DATABASE} SET app.\xe9 = '\xe9'",
        {"databaseParameters"},
    ),
    "renamed to it": (f"ALTER ROLE victim RENAME TO {quoted('v' + ILLEGIBLE)}", {"name"}),
}

#: Since PostgreSQL 16, a grant is revoked in the name of its grantor.
GRANTS = {
    "granted by it": f"GRANT beside TO victim GRANTED BY {GRANTOR}",
    "granted by it in it": f"GRANT {quoted(ILLEGIBLE)} TO victim GRANTED BY {GRANTOR}",
    "an option granted by it": f"GRANT declared TO victim WITH ADMIN TRUE GRANTED BY {GRANTOR}",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as own:
        connection = await asyncpg.connect(own.dsn())
        await connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
        await connection.close()
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def latin(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser's session in a LATIN1 database, where the roles and another database were created."""
    connection = await asyncpg.connect(server.dsn(database="latin"))
    await connection.execute(
        f"CREATE ROLE {quoted(ILLEGIBLE)}; CREATE ROLE {GRANTOR}; CREATE ROLE declared; CREATE ROLE beside;"
        f"GRANT declared, beside, {quoted(ILLEGIBLE)} TO {GRANTOR} WITH ADMIN OPTION"
    )
    await connection.execute(f"CREATE DATABASE {DATABASE}")
    yield connection
    await connection.execute(f"DROP DATABASE {DATABASE}")
    await connection.execute(
        f"DROP ROLE IF EXISTS victim; DROP ROLE IF EXISTS {quoted('v' + ILLEGIBLE)};"
        f"DROP ROLE {GRANTOR}, {quoted(ILLEGIBLE)}, declared, beside"
    )
    await connection.close()


@dataclass
class IllegiblePlace:
    session: Session

    async def look(self) -> tuple[Plan, Observed]:
        (observed,) = seen(await self.session.read_roles([(KEY, DESIRED.name)]))
        (references,) = await self.session.read_references(
            [ReferencedNames(frozenset({"declared"}), DESIRED.parameter_names, frozenset())]
        )
        assert not isinstance(references, PgRoleError)
        identity = self.session.identity
        claims: Claims = "Database" if isinstance(self.session.claims, DatabaseClaims) else "Status"
        known = Server(
            identity.system_identifier, identity.own_roles, Address("db", 5432, "a", "require"), claims=claims
        )
        observed = replace(observed, references=references)
        return decide(ASK, observed, known, Policy()), observed

    async def reconcile(self) -> tuple[Plan, PgRoleError | None]:
        plan, _ = await self.look()
        (failure,) = await self.session.apply_plans([plan])
        return plan, failure


@pytest_asyncio.fixture(loop_scope="session", params=["schema", "without_schema"])
async def place(
    request: pytest.FixtureRequest, server: PostgresServer, latin: Connection
) -> AsyncIterator[IllegiblePlace]:
    async with connect(Endpoint(server.dsn()), "test") as made:
        identity = await identify(made)
        if request.param == "schema":
            await install(made)
            session = Session(identity, SchemaState.PRESENT, CLUSTER, DatabaseClaims(), made)
        else:
            status_claims = StatusClaims().open(identity.system_identifier)
            session = Session(identity, SchemaState.NONE, CLUSTER, status_claims, made)
        place = IllegiblePlace(session)
        assert (await place.reconcile())[1] is None
        assert (await place.look())[0].changes == ()
        yield place
        await made.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")


async def check_all_is_set_back(place: IllegiblePlace, latin: Connection, attack: str, fields: set[str]) -> None:
    """Everything is repaired in one transaction, and counted as one drift."""
    await latin.execute("ALTER ROLE victim SUPERUSER")
    await latin.execute(attack)
    plan, failure = await place.reconcile()
    assert failure is None
    assert set(plan.drift) == {"superuser", *fields}
    again, observed = await place.look()
    assert (again.changes, again.drift) == ((), ())
    assert observed.named is not None
    assert observed.named.role == replace(DESIRED, password=observed.named.role.password)
    assert observed.claim is not None
    assert observed.claim.drift_count == 1
    assert set(observed.claim.last_drift_fields) == set(plan.drift)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_drift_with_an_illegible_name_is_corrected_with_the_rest(
    place: IllegiblePlace, latin: Connection, attack: str
) -> None:
    await check_all_is_set_back(place, latin, *ATTACKS[attack])


@pytest.mark.parametrize("attack", GRANTS)
@pytest.mark.since(16, "a grant is revoked in the name of its grantor")
async def test_a_grant_that_involves_an_illegible_grantor_is_revoked_with_the_rest(
    place: IllegiblePlace, latin: Connection, attack: str
) -> None:
    await check_all_is_set_back(place, latin, GRANTS[attack], {"memberOf"})


async def test_a_role_renamed_to_an_illegible_name_is_not_mistaken_for_another_of_that_name(
    place: IllegiblePlace, latin: Connection
) -> None:
    """If another role gets the name between read and transaction, nothing is changed."""
    renamed = quoted("v" + ILLEGIBLE)
    await latin.execute(f"ALTER ROLE victim RENAME TO {renamed}")
    plan, _ = await place.look()
    await latin.execute(f"ALTER ROLE {renamed} RENAME TO away")
    assert await place.session.apply_plans([plan]) != [None]
    await latin.execute(f"CREATE ROLE {renamed}")
    try:
        assert await place.session.apply_plans([plan]) != [None]
        assert await latin.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'victim'") == 0
    finally:
        await latin.execute(f"DROP ROLE {renamed}; ALTER ROLE away RENAME TO victim")


@pytest.mark.parametrize("superuser", [True, False], ids=["superuser", "no superuser"])
async def test_a_role_is_altered_and_dropped_under_an_illegible_name(
    place: IllegiblePlace, latin: Connection, superuser: bool
) -> None:
    """As for a refused or deleted object whose role was renamed."""
    renamed = "v" + ILLEGIBLE
    await latin.execute(f"ALTER ROLE victim RENAME TO {quoted(renamed)}; COMMENT ON ROLE {quoted(renamed)} IS 'c'")
    _, observed = await place.look()
    assert observed.claimed is not None
    name, oid = observed.claimed.role.name, observed.claimed.oid
    session = replace(place.session, identity=replace(place.session.identity, superuser=superuser))
    changes = (
        SetAttribute(name, "createdb", True),
        SetComment(name, None),
        SetParameter(name, None, "work_mem", None),
        SetParameter(name, None, ALL, None),
        RevokeMembership(name, "declared", ("postgres",)),
    )
    plan = Plan(DESIRED.name, changes, oid, name, observed.claim)
    assert await session.apply_plans([plan]) == [None]
    found = (await place.look())[1].claimed
    assert found is not None
    assert found.role == Role(name, login=True, createdb=True, password=found.role.password)
    assert await session.apply_plans([replace(plan, changes=(Drop(name),))]) == [None]
    assert await latin.fetchval("SELECT count(*) FROM pg_roles WHERE oid = $1", oid) == 0


async def test_without_a_needed_privilege_the_rest_is_corrected_and_the_name_is_shown(
    place: IllegiblePlace, server: PostgresServer, latin: Connection
) -> None:
    """Since PostgreSQL 16 CREATEROLE alone does not revoke memberships of every role."""
    scoped = place.session.identity.version_number >= MEMBERSHIP_OPTIONS_VERSION
    await latin.execute("CREATE ROLE steward LOGIN CREATEROLE CREATEDB PASSWORD 'p'")
    try:
        if scoped:
            await latin.execute("GRANT victim TO steward WITH ADMIN OPTION")
        if isinstance(place.session.claims, DatabaseClaims):
            async with connect(Endpoint(server.dsn()), "test") as home:
                await home.execute(
                    "GRANT USAGE ON SCHEMA pgrole TO steward; GRANT ALL ON ALL TABLES IN SCHEMA pgrole TO steward;"
                    "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO steward;"
                    "GRANT EXECUTE ON FUNCTION pg_control_system() TO steward;"
                    "GRANT SELECT (oid, xmin) ON pg_authid TO steward"
                )
        await latin.execute(f"ALTER ROLE victim CREATEDB; GRANT {quoted(ILLEGIBLE)} TO victim")
        async with connect(Endpoint(server.dsn("steward", password="p")), "test") as steward:
            session = replace(place.session, identity=await identify(steward), _connection=steward)
            plan, failure = await IllegiblePlace(session).reconcile()
            assert set(plan.drift) == {"createdb", "memberOf"}
            if scoped:
                assert isinstance(failure, Refused)
                shown = quoted(ILLEGIBLE).replace("\xf4", "\\xf4").replace("\xe9", "\\xe9")
                assert f'REVOKE {shown} FROM "victim" GRANTED BY ' in failure.message
                assert "run this in a database with their encoding" in failure.message
                failure.message.encode()
            else:
                assert failure is None
            left, observed = await IllegiblePlace(session).look()
            assert {change.field for change in left.changes} == ({"memberOf"} if scoped else set())
            assert observed.claim is not None
            assert set(observed.claim.last_drift_fields) == ({"createdb"} if scoped else {"createdb", "memberOf"})
    finally:
        async with connect(Endpoint(server.dsn()), "test") as home:
            await home.execute("DROP OWNED BY steward; DROP ROLE steward")
