"""Whether a role and its claim are as they were read, compared for many roles at once."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio

from pgrole_controller.core.request import Key
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.status_claims import StatusClaims
from tests.integration.sql_support import seen

NAMES = ("first", "second", "third")
ASKED = [(Key("shop", name), name) for name in NAMES]

#: What anyone can change about a role, and changes of its claim.
CHANGES = {
    "attribute": "ALTER ROLE second NOLOGIN",
    "power": "ALTER ROLE second SUPERUSER",
    "connection limit": "ALTER ROLE second CONNECTION LIMIT 3",
    "end": "ALTER ROLE second VALID UNTIL '2030-01-01'",
    "password": "ALTER ROLE second PASSWORD 'other'",
    "no password": "ALTER ROLE second PASSWORD NULL",
    "comment": "COMMENT ON ROLE second IS 'other'",
    "parameter": "ALTER ROLE second SET work_mem = '1MB'",
    "parameter in a database": "ALTER ROLE second IN DATABASE postgres SET work_mem = '1MB'",
    "membership": "GRANT third TO second",
    "membership of a predefined role": "GRANT pg_read_all_data TO second",
    "name": "ALTER ROLE second RENAME TO fourth",
    "another role of its name": "ALTER ROLE second RENAME TO fourth; CREATE ROLE second LOGIN PASSWORD 'p'",
    "no role": "DROP ROLE second",
    "claim": "UPDATE pgrole.claim SET applied = 'sha256:other' WHERE role_name = 'second'",
    "owner of the claim": "UPDATE pgrole.claim SET object_uid = 'other' WHERE role_name = 'second'",
    "no claim": "DELETE FROM pgrole.claim WHERE role_name = 'second'",
    "another claim of the object": "UPDATE pgrole.claim SET object = 'second' WHERE role_name = 'third'",
    "claim on no role": "UPDATE pgrole.claim SET role_oid = 0 WHERE role_name = 'second'",
}


class UnchangedEstate(NamedTuple):
    session: Session
    before: list[tuple[object, ...]]
    hand: Connection

    async def find_unchanged(self) -> dict[str, bool]:
        return dict(zip(NAMES, await self.session.are_unchanged(ASKED, self.before), strict=True))


@pytest_asyncio.fixture(loop_scope="session")
async def estate(server: PostgresServer) -> AsyncIterator[UnchangedEstate]:
    async with connect(Endpoint(server.dsn()), "test") as made, connect(Endpoint(server.dsn()), "hand") as hand:
        await install(made)
        identity = await identify(made)
        for name in NAMES:
            await hand.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
            await hand.execute(
                "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, "
                "object, object_uid, applied) SELECT rolname, oid, $1, 'cluster', 'shop', 'n1', rolname, "
                "'uid-' || rolname, 'sha256:1' FROM pg_authid WHERE rolname = $2",
                identity.system_identifier,
                name,
            )
        session = Session(identity, SchemaState.PRESENT, "cluster", DatabaseClaims(), made)
        yield UnchangedEstate(session, [observed.row for observed in seen(await session.read_roles(ASKED))], hand)
        await hand.execute("DELETE FROM pgrole.claim")
        for name in (*NAMES, "fourth"):
            await hand.execute(f"DROP ROLE IF EXISTS {name}")


async def test_an_unchanged_role_is_reported_as_unchanged(estate: UnchangedEstate) -> None:
    assert all(estate.before)
    assert await estate.find_unchanged() == dict.fromkeys(NAMES, True)
    assert await estate.session.are_unchanged(ASKED[1:2], estate.before[1:2]) == [True]


@pytest.mark.parametrize("change", CHANGES)
async def test_any_change_of_a_role_or_its_claim_is_detected(estate: UnchangedEstate, change: str) -> None:
    await estate.hand.execute(CHANGES[change])
    same = await estate.find_unchanged()
    assert (same["first"], same["second"]) == (True, False)


async def test_a_role_with_a_claim_in_status_is_never_reported_as_unchanged(estate: UnchangedEstate) -> None:
    session = estate.session
    status_claims = StatusClaims().open(session.identity.system_identifier)
    remembered = Session(session.identity, SchemaState.NONE, "cluster", status_claims, session._connection)
    assert await remembered.are_unchanged(ASKED, estate.before) == [False] * len(NAMES)


async def test_no_role_is_reported_as_unchanged_if_the_query_fails(estate: UnchangedEstate) -> None:
    await estate.hand.execute("ALTER FUNCTION pgrole.read_verifiers RENAME TO elsewhere")
    try:
        assert await estate.find_unchanged() == dict.fromkeys(NAMES, False)
    finally:
        await estate.hand.execute("ALTER FUNCTION pgrole.elsewhere RENAME TO read_verifiers")
