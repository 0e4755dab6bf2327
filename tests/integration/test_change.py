"""sql/install: claims. One object owns a role, whatever happens between read and change, and waiting objects are
notified.
"""

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.watch import read_payload
from tests.integration.sql_support import NotificationListener, listening, role_oid, seen_home

HOLDS = "SELECT role_oid FROM pgrole.claim WHERE role_name = $1 AND released_at IS NULL"


@pytest_asyncio.fixture(loop_scope="session")
async def home(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser in the home database, with roles one and two, where everything has been observed."""
    async with seen_home(
        server.dsn(), before="CREATE ROLE one; CREATE ROLE two", after="DROP ROLE IF EXISTS one, two, renamed"
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def listener(server: PostgresServer, home: Connection) -> AsyncIterator[NotificationListener]:
    async with listening(server.dsn()) as made:
        yield made


def take(name: str, oid: int, uid: str = "", applied: str = "", drifted: str = "") -> str:
    return (
        f"SELECT pgrole.take_claim('{name}', {oid}, 'c', 'n', 'nu', 'object of {uid or name}', '{uid or name}',"
        f" '{applied}', '{{{drifted}}}')"
    )


def expect(name: str, seen_as: str, oid: int, holder: str = "NULL") -> str:
    return f"SELECT pgrole.expect('{name}', '{seen_as}', {oid}, {holder})"


async def is_stale(home: Connection, script: str) -> bool:
    try:
        async with home.transaction():
            await home.execute(script)
    except asyncpg.PostgresError as error:
        assert error.sqlstate == "PGR01", error  # noqa: PT017
        return True
    return False


async def test_a_claim_is_taken_only_for_the_expected_role(home: Connection) -> None:
    one, two = await role_oid(home, "one"), await role_oid(home, "two")
    assert await is_stale(home, take("one", two))
    assert await is_stale(home, take("absent", one))
    assert await home.fetchval("SELECT count(*) FROM pgrole.claim") == 0
    assert not await is_stale(home, take("one", one))
    await home.execute("DROP ROLE one; CREATE ROLE one")
    assert await is_stale(home, take("one", one))
    assert await home.fetchval(HOLDS, "one") == one
    assert not await is_stale(home, take("one", await role_oid(home, "one")))
    assert await home.fetchval(HOLDS, "one") == await role_oid(home, "one")


async def test_without_an_expected_oid_only_a_role_created_by_this_transaction_is_claimed(home: Connection) -> None:
    assert await is_stale(home, take("one", 0))
    assert not await is_stale(home, f"CREATE ROLE renamed; COMMENT ON ROLE renamed IS 'c'; {take('renamed', 0)}")
    assert await home.fetchval(HOLDS, "renamed") == await role_oid(home, "renamed")


async def test_a_created_role_is_claimed_even_if_pg_authid_is_unreadable(
    server: PostgresServer, home: Connection
) -> None:
    await home.execute("CREATE ROLE steward LOGIN CREATEROLE PASSWORD 'p'")
    await home.execute("CREATE DATABASE stewards OWNER steward")
    await home.execute("ALTER DATABASE postgres RESET pgrole.home")
    steward = await asyncpg.connect(server.dsn("steward", "stewards", "p"))
    try:
        await install(steward)
        await steward.execute(f"CREATE ROLE renamed; {take('renamed', 0)}")
        assert await steward.fetchval(HOLDS, "renamed") == await role_oid(home, "renamed")
    finally:
        await steward.close()
        await home.execute("DROP DATABASE stewards WITH (FORCE)")
        await home.execute("DROP ROLE renamed; DROP ROLE steward")


async def test_a_role_claimed_under_another_name_is_not_taken(home: Connection) -> None:
    one = await role_oid(home, "one")
    await home.execute(take("one", one))
    await home.execute("ALTER ROLE one RENAME TO renamed")
    assert await is_stale(home, expect("renamed", "renamed", one))
    with pytest.raises(asyncpg.UniqueViolationError):
        await home.execute(take("renamed", one))
    # its own holder reads it under that name
    assert not await is_stale(home, expect("one", "renamed", one, "'one'"))
    await home.execute("SELECT pgrole.release_claim('one', 'one')")
    assert not await is_stale(home, expect("renamed", "renamed", one) + ";" + take("renamed", one))


async def test_a_claim_of_another_server_with_the_same_oid_blocks_no_claim(home: Connection) -> None:
    one = await role_oid(home, "one")
    await home.execute(take("two", await role_oid(home, "two")))
    await home.execute(f"UPDATE pgrole.claim SET role_oid = {one}, system_identifier = 1")
    assert not await is_stale(home, expect("one", "one", one) + ";" + take("one", one))
    # a logical restore: the name decides, and the claim is renewed
    assert not await is_stale(home, take("two", await role_oid(home, "two")))
    assert await home.fetchval(HOLDS, "two") == await role_oid(home, "two")


async def test_a_claim_does_not_hold_a_new_role_that_reuses_its_oid(home: Connection) -> None:
    await home.execute(take("two", await role_oid(home, "two")))
    async with home.transaction():
        await home.execute("CREATE ROLE renamed")
        oid = await role_oid(home, "renamed")
        await home.execute(f"UPDATE pgrole.claim SET role_oid = {oid} WHERE role_name = 'two'")
        await home.execute(take("renamed", 0))
    assert await home.fetchval(HOLDS, "renamed") == oid
    assert await home.fetchval(HOLDS, "two") == 0


async def test_installing_reduces_two_claims_of_one_role_from_version_1_to_one(home: Connection) -> None:
    one = await role_oid(home, "one")
    await home.execute("DROP INDEX pgrole.claim_holds")
    await home.execute(f"{take('one', one)}; ALTER ROLE one RENAME TO renamed; {take('renamed', one)}")
    assert await home.fetchval("SELECT count(DISTINCT role_oid) FROM pgrole.claim") == 1
    await install(home)
    assert await home.fetchval(HOLDS, "one") == 0
    assert await home.fetchval(HOLDS, "renamed") == one


async def test_a_claim_counts_drifts_and_resets_the_count_for_another_object(home: Connection) -> None:
    one = await role_oid(home, "one")
    count = "SELECT drift_count, last_drift_fields FROM pgrole.claim"
    await home.execute(take("one", one))
    await home.execute(take("one", one, drifted="login"))
    await home.execute(take("one", one, applied="x"))
    assert tuple(await home.fetchrow(count) or ()) == (1, ["login"])
    await home.execute(take("one", one, uid="other"))
    assert tuple(await home.fetchrow(count) or ()) == (0, None)


async def test_a_notification_about_a_renamed_role_names_its_claim(
    home: Connection, listener: NotificationListener
) -> None:
    one = await role_oid(home, "one")
    await home.execute(take("one", one))
    for statement, op in (
        ("ALTER ROLE one RENAME TO renamed", "update"),
        ("ALTER ROLE renamed CREATEDB", "update"),
        ("DROP ROLE renamed", "delete"),
    ):
        await home.execute(statement)
        await listener.so_far()
        await home.execute("SELECT pgrole.observe()")
        (message,) = await listener.so_far()
        assert {"op": op, "oid": one, "name": "renamed", "claim": "one"}.items() <= message.items()


async def test_a_notification_tells_whether_another_role_has_the_name(
    home: Connection, listener: NotificationListener
) -> None:
    for statement, names in (
        ("ALTER ROLE one CREATEDB", ()),
        ("ALTER ROLE one RENAME TO renamed", ("renamed", "one")),
        ("ALTER ROLE renamed SET work_mem = '1MB'", ()),
        ("DROP ROLE renamed", ("renamed",)),
        ("CREATE ROLE one", ("one",)),
    ):
        await home.execute(statement)
        await listener.so_far()
        await home.execute("SELECT pgrole.observe()")
        (message,) = await listener.so_far()
        assert read_payload(json.dumps(message)).renamed == names, statement


async def test_a_notification_omits_a_released_claim_and_one_under_the_same_name(
    home: Connection, listener: NotificationListener
) -> None:
    one, two = await role_oid(home, "one"), await role_oid(home, "two")
    await home.execute(f"{take('one', one)}; {take('two', two)}; SELECT pgrole.release_claim('two', 'two')")
    await home.execute("ALTER ROLE one CREATEDB; ALTER ROLE two RENAME TO renamed; SELECT pgrole.observe()")
    messages = await listener.so_far()
    assert {"one", "two"} <= {message.get("name") for message in messages}
    assert all("claim" not in message for message in messages)


def test_the_claims_name_is_also_read_from_a_notification() -> None:
    assert read_payload('{"op": "delete", "oid": 5, "name": "renamed", "claim": "one"}').roles == ("renamed", "one")
    assert read_payload('{"op": "claim", "name": "one"}').roles == ("one",)
    assert read_payload('{"op": "delete", "name": "renamed", "claim": ["one"]}').roles == ("renamed",)


async def test_a_claim_that_is_released_or_changes_hands_is_notified(
    home: Connection, listener: NotificationListener
) -> None:
    one = await role_oid(home, "one")
    told = [{"op": "claim", "name": "one"}]
    await home.execute(take("one", one))
    for quiet in (take("one", one, applied="x"), take("one", one, drifted="login"), "SELECT pgrole.observe()"):
        await home.execute(quiet)
    assert await listener.so_far() == []
    for loud in (
        take("one", one, uid="other"),
        "SELECT pgrole.release_claim('one', 'other')",
        "SELECT pgrole.forget_claim('one', 'other')",
    ):
        await home.execute(loud)
        assert await listener.so_far() == told, loud
    await home.execute(f"{take('one', one)}; UPDATE pgrole.claim SET role_name = 'moved'")
    assert await listener.so_far() == told
    await home.execute("TRUNCATE pgrole.claim")
    assert await listener.so_far() == [{"op": "many"}]


async def test_more_than_100_claims_deleted_at_once_cause_one_notification(
    home: Connection, listener: NotificationListener
) -> None:
    for count in (100, 101):
        await home.execute(
            "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid,"
            " object, object_uid) SELECT 'r' || i, i, 1, 'c', 'n', 'nu', 'o', 'ou'"
            f" FROM generate_series(1, {count}) AS i"
        )
        await home.execute("DELETE FROM pgrole.claim")
        heard = await listener.so_far()
        assert len(heard) == (count if count == 100 else 1)
        assert (heard == [{"op": "many"}]) is (count > 100)


class TestKeepApproval:
    HANDLED = "SELECT approve_handled FROM pgrole.claim WHERE role_name = 'one'"

    async def test_a_claim_taken_again_keeps_its_approval_until_the_next(self, home: Connection) -> None:
        await home.execute(take("one", await role_oid(home, "one")))
        await home.execute("SELECT pgrole.keep_approval('one', 'one', '', 'first')")
        assert await home.fetchval(self.HANDLED) == "first"
        await home.execute(take("one", await role_oid(home, "one"), drifted="comment"))
        assert await home.fetchval(self.HANDLED) == "first"
        await home.execute("SELECT pgrole.keep_approval('one', 'one', 'first', 'second')")
        assert await home.fetchval(self.HANDLED) == "second"

    async def test_the_same_approval_cannot_be_acted_on_twice(self, home: Connection) -> None:
        await home.execute(take("one", await role_oid(home, "one")))
        script = "ALTER ROLE one CREATEDB; SELECT pgrole.keep_approval('one', 'one', '', 'first')"
        assert not await is_stale(home, script)
        await home.execute("ALTER ROLE one NOCREATEDB")
        assert await is_stale(home, script)
        assert not await home.fetchval("SELECT rolcreatedb FROM pg_roles WHERE rolname = 'one'")

    async def test_no_approval_is_recorded_in_another_holders_or_a_released_claim(self, home: Connection) -> None:
        await home.execute(take("one", await role_oid(home, "one")))
        assert await is_stale(home, "SELECT pgrole.keep_approval('one', 'other', '', 'first')")
        await home.execute("SELECT pgrole.release_claim('one', 'one')")
        assert await is_stale(home, "SELECT pgrole.keep_approval('one', 'one', '', 'first')")
