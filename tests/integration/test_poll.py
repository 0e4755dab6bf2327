"""postgres/poll: every difference between two rounds is reported by name, and nothing else."""

import secrets
import sys
from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Claim, ClaimKey, Owner
from pgrole_controller.core.diff import Create, SetAttribute
from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import UNSEEN, Role
from pgrole_controller.core.server_options import Mode
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.apply import Dialect, apply_plans
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.claim_store import HomeConnection
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.poll import MANY, Poller
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.status_claims import StatusClaims
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.integration.sql_support import seen

CLUSTER = "cluster-a"
KEY = Key("shop", "orders-app")
OWNER = Owner(CLUSTER, KEY.namespace, "ns-uid", KEY.name, "uid-1")
OTHER = Owner(CLUSTER, KEY.namespace, "ns-uid", "other", "uid-2")


@pytest_asyncio.fixture(loop_scope="session")
async def hand(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser's session. Its roles (subject, steward, …) are dropped afterwards."""
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE ROLE subject; CREATE ROLE steward LOGIN CREATEROLE PASSWORD 'p'")
    yield connection
    await connection.execute("RESET ROLE; DROP SCHEMA IF EXISTS pgrole CASCADE; ALTER DATABASE postgres RESET ALL")
    await connection.execute("""
        DO $$ DECLARE name text; BEGIN
            FOR name IN SELECT rolname FROM pg_roles WHERE oid >= 16384 LOOP
                EXECUTE format('DROP OWNED BY %I CASCADE', name);
                EXECUTE format('DROP ROLE %I', name);
            END LOOP;
        END $$
    """)
    await connection.close()


async def start(connection: Connection) -> Poller:
    poller = Poller(connection, anyio.Lock(), await identify(connection))
    assert await poller.compare() == set()
    return poller


@pytest_asyncio.fixture(loop_scope="session", params=["as superuser", "without pg_authid"])
async def poller(request: pytest.FixtureRequest, server: PostgresServer, hand: Connection) -> AsyncIterator[Poller]:
    dsn = server.dsn() if request.param == "as superuser" else server.dsn("steward", password="p")
    async with connect(Endpoint(dsn), "poll") as connection:
        yield await start(connection)


async def settled(poller: Poller) -> None:
    """Polls until everything was reported twice."""
    while await poller.compare():
        pass


CHANGES = [
    "ALTER ROLE subject LOGIN",
    "ALTER ROLE subject SUPERUSER",
    "ALTER ROLE subject CREATEDB",
    "ALTER ROLE subject CREATEROLE",
    "ALTER ROLE subject NOINHERIT",
    "ALTER ROLE subject REPLICATION",
    "ALTER ROLE subject BYPASSRLS",
    "ALTER ROLE subject CONNECTION LIMIT 3",
    "ALTER ROLE subject VALID UNTIL '2031-01-01'",
    "COMMENT ON ROLE subject IS 'told'",
    "ALTER ROLE subject SET work_mem = '1MB'",
    "ALTER ROLE subject IN DATABASE template1 SET work_mem = '1MB'",
    f"ALTER ROLE subject SET search_path = '{'a' * 10_000}'",
    f"ALTER ROLE subject SET search_path = '{'b' * 10_000}'",
    "GRANT pg_monitor TO subject",
    "DROP ROLE subject",
]


@pytest.mark.parametrize("change", CHANGES)
async def test_any_change_of_a_role_is_reported_in_the_next_two_rounds(
    poller: Poller, hand: Connection, change: str
) -> None:
    await hand.execute(change)
    assert await poller.compare() == {"subject"}
    assert poller.renamed == (("subject",) if change.startswith("DROP") else ())
    assert await poller.compare() == {"subject"}
    assert poller.renamed == ()
    assert await poller.compare() == set()


async def test_an_undone_change_is_reported_too(poller: Poller, hand: Connection) -> None:
    await hand.execute(
        "GRANT pg_monitor TO subject; COMMENT ON ROLE subject IS 'a'; ALTER ROLE subject SET jit = 'off'"
    )
    for undo in ("REVOKE pg_monitor FROM subject", "COMMENT ON ROLE subject IS NULL", "ALTER ROLE subject RESET jit"):
        await settled(poller)
        await hand.execute(undo)
        assert await poller.compare() == {"subject"}


async def test_a_renamed_role_is_reported_by_both_names(poller: Poller, hand: Connection) -> None:
    await hand.execute("ALTER ROLE subject RENAME TO renamed")
    assert await poller.compare() == {"subject", "renamed"}
    assert set(poller.renamed or ()) == {"subject", "renamed"}


async def test_a_recreated_role_is_reported(poller: Poller, hand: Connection) -> None:
    await hand.execute("DROP ROLE subject; CREATE ROLE subject")
    assert await poller.compare() == {"subject"}
    assert poller.renamed == ("subject",)


@pytest.mark.since(16, "options of a membership")
async def test_a_changed_membership_option_is_reported(poller: Poller, hand: Connection) -> None:
    await hand.execute("GRANT pg_monitor TO subject")
    await settled(poller)
    await hand.execute("GRANT pg_monitor TO subject WITH INHERIT FALSE")
    assert await poller.compare() == {"subject"}


async def test_a_changed_password_is_reported_where_verifiers_may_be_read(poller: Poller, hand: Connection) -> None:
    sees = (await identify(poller._connection)).sees_passwords
    await hand.execute("ALTER ROLE subject PASSWORD 'x'")
    assert await poller.compare() == ({"subject"} if sees else set())


async def test_unrelated_commits_and_rolled_back_changes_are_not_reported(poller: Poller, hand: Connection) -> None:
    await hand.execute("SELECT pg_current_xact_id()")
    assert await poller.compare() == set()
    await hand.execute("BEGIN; ALTER ROLE subject SUPERUSER; ROLLBACK")
    assert await poller.compare() == set()


async def test_a_transaction_with_a_lower_id_that_commits_later_is_not_missed(
    poller: Poller, hand: Connection, server: PostgresServer
) -> None:
    late = await asyncpg.connect(server.dsn())
    await late.execute("BEGIN; ALTER ROLE subject LOGIN")
    await hand.execute("CREATE ROLE other")
    assert await poller.compare() == {"other"}
    await settled(poller)
    await late.execute("COMMIT")
    assert await poller.compare() == {"subject"}
    await late.close()


async def test_a_doubted_role_is_reported_although_its_digest_is_the_same(poller: Poller, hand: Connection) -> None:
    """Another session may restore what the last round read: the digest is the same, but it is drift."""
    await hand.execute("ALTER ROLE subject SUPERUSER")
    await settled(poller)
    await hand.execute("ALTER ROLE subject NOSUPERUSER; ALTER ROLE subject SUPERUSER")
    poller.doubt({"subject"})
    assert await poller.compare() == {"subject"}
    assert await poller.compare() == set()


async def test_two_sessions_have_different_digests_of_the_same_roles(server: PostgresServer, hand: Connection) -> None:
    async with connect(Endpoint(server.dsn()), "poll") as connection:
        one, other = await start(connection), await start(connection)
        assert len(one._digests) == len(other._digests)
        assert one._digests != other._digests
        assert one._names == other._names


async def test_names_and_texts_in_another_encoding_cause_no_error_and_hide_no_change(
    poller: Poller, hand: Connection, server: PostgresServer
) -> None:
    name = f"latin_{secrets.token_hex(3)}"
    await hand.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = await asyncpg.connect(server.dsn(database=name))
    await latin.execute("""CREATE ROLE "ä"; COMMENT ON ROLE "ä" IS 'ö'; COMMENT ON ROLE subject IS 'ü'""")
    await latin.execute("""ALTER ROLE subject SET application_name = 'ß'; ALTER ROLE subject SET "x.y" = 'ß'""")
    assert await poller.compare() == {"subject"}
    await latin.execute('ALTER ROLE subject RENAME TO "ö"')
    assert await poller.compare() == {"subject"}
    await latin.execute('ALTER ROLE "ö" RENAME TO subject; DROP ROLE "ä"')
    assert await poller.compare() == {"subject"}
    await latin.close()
    await hand.execute(f"DROP DATABASE {name}")


async def test_more_than_1000_changed_roles_are_reported_as_all(server: PostgresServer, hand: Connection) -> None:
    heard: list[tuple[str, ...] | None] = []
    renamed: list[tuple[str, ...] | None] = []
    done = anyio.Event()

    def hear(names: tuple[str, ...] | None) -> None:
        heard.append(names)
        done.set()

    async with connect(Endpoint(server.dsn()), "poll") as connection:
        poller = await start(connection)
        await hand.execute(f"DO $$ BEGIN FOR i IN 0..{MANY} LOOP EXECUTE 'CREATE ROLE many_' || i; END LOOP; END $$")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(poller.run, 0.1, ChangeCallbacks(hear, on_rename=renamed.append))
            with anyio.fail_after(30):
                await done.wait()
            tasks.cancel_scope.cancel()
    assert (heard[0], renamed) == (None, [None])


async def test_the_poller_keeps_twelve_bytes_and_the_name_of_each_role(
    server: PostgresServer, hand: Connection
) -> None:
    async with connect(Endpoint(server.dsn()), "poll") as connection:
        poller = await start(connection)
        count = await hand.fetchval("SELECT count(*) FROM pg_roles")
        assert len(poller._digests) == 12 * count
        assert sys.getsizeof(poller._names) < 100 * count


async def test_an_answer_of_another_server_ends_the_session(poller: Poller, hand: Connection) -> None:
    earlier = poller._identity.started_at.replace(year=2001)
    poller._identity = replace(poller._identity, started_at=earlier)
    with pytest.raises(Transient, match="a different server"):
        await poller.compare()


class TestWithoutSchema:
    """Reads and changes without schema pgrole, by an ordinary role with CREATEROLE."""

    @pytest_asyncio.fixture(loop_scope="session")
    async def connection(self, server: PostgresServer, hand: Connection) -> AsyncIterator[Connection]:
        assert await hand.fetchval("SELECT to_regnamespace('pgrole') IS NULL")
        async with connect(Endpoint(server.dsn("steward", password="p")), "test") as made:
            yield made

    @staticmethod
    async def bring_in(connection: Connection, status_claims: StatusClaims, *plans: Plan) -> list[str]:
        dialect = Dialect(claims=status_claims, options=(await identify(connection)).version_number >= 160000)
        failures = await apply_plans(connection, plans, dialect)
        return ["" if failure is None else failure.message for failure in failures]

    @staticmethod
    def create(name: str, owner: Owner = OWNER) -> Plan:
        return Plan(name, (Create(Role(name)),), None, name, None, owner, "sha256:x")

    def test_no_query_names_the_schema(self) -> None:
        for verifiers in (True, False):
            source = queries.verifier_source(readable=verifiers)
            for question in (
                queries.inspect_from("roles", claims="claims_in_status", verifiers=source),
                queries.inspect_from("new_owners", claims="no_claims"),
                queries.inspect_from("verifiers", verifiers=source),
                queries.poll(verifiers=verifiers),
            ):
                assert "pgrole." not in _statement(question)

    async def test_a_read_returns_the_same_as_with_the_schema(self, server: PostgresServer, hand: Connection) -> None:
        await hand.execute(
            """
            ALTER ROLE subject LOGIN PASSWORD 'x' SET work_mem = '1MB'; COMMENT ON ROLE subject IS 'c';
            CREATE ROLE big SUPERUSER; CREATE ROLE mid; GRANT big TO mid; GRANT mid TO subject
        """.replace("PASSWORD 'x' SET", "PASSWORD 'x'; ALTER ROLE subject SET")
        )
        await install(hand)
        async with connect(Endpoint(server.dsn()), "test") as connection:
            home = HomeConnection(connection, await identify(connection), CLUSTER)
            (there,) = seen(await DatabaseClaims().read_roles(home, [(KEY, "subject")]))
            (same,) = seen(await StatusClaims().read_roles(home, [(KEY, "subject")]))
        assert there.named is not None
        assert there.named.reaches == ("big",)
        assert same.named == there.named
        assert (same.claim, same.other_claims, same.claimed) == (None, (), None)

    async def test_a_created_role_is_claimed_by_its_oid_and_read_with_its_claim(self, connection: Connection) -> None:
        status_claims, identity = StatusClaims(), await identify(connection)
        assert await self.bring_in(connection, status_claims, self.create("app"), self.create("two", OTHER)) == ["", ""]
        observations = seen(
            await status_claims.read_roles(
                HomeConnection(connection, identity, CLUSTER), [(KEY, "app"), (KEY, "nothing")]
            )
        )
        claim = observations[0].claim
        assert claim is not None
        assert observations[0].named is not None
        assert (claim.role_oid, claim.owner, claim.applied) == (observations[0].named.oid, OWNER, "sha256:x")
        assert observations[0].named.role.password == UNSEEN
        assert observations[1].other_claims == (("app", "uid-1"),)

    async def test_a_renamed_role_is_found_by_its_claim_and_held_under_its_new_name(
        self, connection: Connection, hand: Connection
    ) -> None:
        status_claims, identity = StatusClaims(), await identify(connection)
        await self.bring_in(connection, status_claims, self.create("app"))
        await hand.execute("ALTER ROLE app RENAME TO away")
        ours, theirs = seen(
            await status_claims.read_roles(
                HomeConnection(connection, identity, CLUSTER), [(KEY, "app"), (Key("shop", "other"), "away")]
            )
        )
        assert ours.named is None
        assert ours.claimed is not None
        assert ours.claimed.role.name == "away"
        assert theirs.named is not None
        assert theirs.named.owner_elsewhere == "shop/orders-app"

    async def test_a_role_that_was_replaced_since_it_was_read_is_not_touched(
        self, connection: Connection, hand: Connection
    ) -> None:
        status_claims = StatusClaims()
        await self.bring_in(connection, status_claims, self.create("app"), self.create("two", OTHER))
        claim, two = status_claims.get("app"), status_claims.get("two")
        assert claim is not None
        assert two is not None
        await hand.execute("DROP ROLE app; CREATE ROLE app")
        changes = {name: (SetAttribute(name, "login", True),) for name in ("app", "two")}
        failures = await self.bring_in(
            connection,
            status_claims,
            Plan("app", changes["app"], claim.role_oid, "app", claim, OWNER, "y"),
            Plan("two", changes["two"], two.role_oid, "two", two, OTHER, "y"),
        )
        assert "changed since it was read" in failures[0]
        assert failures[1] == ""
        assert not await hand.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'app'")
        assert await hand.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'two'")
        assert status_claims.get("app") == claim

    async def test_only_one_of_two_plans_for_the_same_role_is_applied(self, connection: Connection) -> None:
        failures = await self.bring_in(connection, StatusClaims(), self.create("app"), self.create("app", OTHER))
        assert failures[0] == ""
        assert failures[1] != ""

    async def test_names_are_quoted_wherever_they_occur(self, connection: Connection, hand: Connection) -> None:
        name = """a'b"c$expect$;\\ ä"""
        assert await self.bring_in(connection, StatusClaims(), self.create(name)) == [""]
        assert await hand.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", name) == 1

    async def test_a_session_that_holds_the_advisory_lock_delays_no_change(
        self, connection: Connection, hand: Connection
    ) -> None:
        await hand.execute("SELECT pg_advisory_lock(hashtextextended('pgrole-controller: turn to change', 0))")
        with anyio.fail_after(45):
            assert await self.bring_in(connection, StatusClaims(), self.create("app")) == [""]
        await hand.execute("SELECT pg_advisory_unlock_all()")

    async def test_claims_are_released_forgotten_and_counted_in_memory(self, connection: Connection) -> None:
        status_claims = StatusClaims()
        await self.bring_in(connection, status_claims, self.create("app"))
        claim = status_claims.get("app")
        assert claim is not None
        drift = Plan("app", (), claim.role_oid, "app", claim, OWNER, "y", PasswordRecord("s"), drift=("login",))
        await self.bring_in(connection, status_claims, drift)
        claim = status_claims.get("app")
        assert claim is not None
        assert (claim.drift_count, claim.last_drift_fields, claim.record) == (1, ("login",), PasswordRecord("s"))
        assert status_claims.held() == [(KEY, "app", "uid-1")]
        await self.bring_in(connection, status_claims, Plan("", releases=(ClaimKey("app", "uid-1"),)))
        assert status_claims.held() == []
        assert status_claims.holder(claim.role_oid) is None
        released = status_claims.get("app")
        assert released is not None
        assert released.released
        await self.bring_in(connection, status_claims, Plan("app", (), claim.role_oid, "app", released, forget=True))
        assert status_claims.get("app") is None

    def test_status_claims_of_another_server_are_separate(self) -> None:
        status_claims = StatusClaims().open(1)
        status_claims.record([Plan("app", (), 5, "app", None, OWNER, "x")], {})
        assert isinstance(status_claims.open(1).get("app"), Claim)
        assert status_claims.open(2).get("app") is None

    def test_a_role_whose_creation_is_uncertain_is_claimed_if_it_exists(self) -> None:
        status_claims = StatusClaims().open(1)
        status_claims.attempted([self.create("app"), self.create("two")])
        status_claims.confirm("app", 7)
        status_claims.confirm("two", None)
        status_claims.confirm("two", 8)
        claim = status_claims.get("app")
        assert claim is not None
        assert (claim.role_oid, claim.owner) == (7, OWNER)
        assert status_claims.get("two") is None


def _statement(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))


async def attended(endpoint: Endpoint, detection: Mode, *, may_install: bool = True) -> Session:
    """Returns the session as it starts."""
    sessions: list[Session] = []

    async def work(session: Session) -> None:
        sessions.append(session)

    await run_session(
        endpoint, CLUSTER, detection=detection, may_install=may_install, callbacks=ChangeCallbacks(), work=work
    )
    return sessions[0]


class TestChoice:
    @pytest.mark.usefixtures("hand")
    async def test_a_superusers_session_uses_watch(self, server: PostgresServer) -> None:
        session = await attended(Endpoint(server.dsn()), Mode.AUTO)
        assert (session.detection.mode, session.detection.claims) == (Mode.WATCH, "Database")
        assert session.detection.passwords
        assert session.why == ""

    @pytest.mark.parametrize(("asked", "mode"), [(Mode.AUTO, Mode.POLL), (Mode.RESYNC, Mode.RESYNC)])
    async def test_without_the_right_to_install_claims_are_in_status(
        self, server: PostgresServer, hand: Connection, asked: Mode, mode: Mode
    ) -> None:
        session = await attended(Endpoint(server.dsn("steward", password="p")), asked)
        assert (session.detection.mode, session.detection.claims) == (mode, "Status")
        assert not session.detection.passwords
        assert not await hand.fetchval("SELECT to_regnamespace('pgrole') IS NOT NULL")

    async def test_nothing_is_installed_if_installation_is_disabled(
        self, server: PostgresServer, hand: Connection
    ) -> None:
        session = await attended(Endpoint(server.dsn()), Mode.AUTO, may_install=False)
        assert (session.detection.mode, session.detection.claims) == (Mode.POLL, "Status")
        assert "pgrole-controller sql" in session.why
        assert not await hand.fetchval("SELECT to_regnamespace('pgrole') IS NOT NULL")

    async def test_without_access_to_pg_authid_claims_stay_in_the_database(
        self, server: PostgresServer, hand: Connection
    ) -> None:
        await hand.execute("GRANT CREATE ON DATABASE postgres TO steward")
        session = await attended(Endpoint(server.dsn("steward", password="p")), Mode.AUTO)
        assert (session.detection.mode, session.detection.claims) == (Mode.POLL, "Database")
        assert "GRANT SELECT (oid, xmin) ON pg_catalog.pg_authid" in session.why

    @pytest.mark.parametrize("asked", [Mode.AUTO, Mode.POLL, Mode.RESYNC])
    async def test_a_schema_of_another_role_is_refused_in_every_mode(
        self, server: PostgresServer, hand: Connection, asked: Mode
    ) -> None:
        await hand.execute("CREATE ROLE tenant; CREATE SCHEMA pgrole AUTHORIZATION tenant")
        with pytest.raises(Refused, match="not trusted") as refused:
            await attended(Endpoint(server.dsn("steward", password="p")), asked)
        assert refused.value.reason is Reason.SERVER_NOT_READY

    async def test_a_home_in_another_database_is_refused(self, server: PostgresServer, hand: Connection) -> None:
        """Otherwise its claims would be overlooked."""
        await hand.execute("ALTER DATABASE template1 SET pgrole.home = 'on'")
        try:
            with pytest.raises(Refused, match="template1"):
                await attended(Endpoint(server.dsn("steward", password="p")), Mode.AUTO)
        finally:
            await hand.execute("ALTER DATABASE template1 RESET ALL")

    @pytest.mark.parametrize("detection", [Mode.AUTO, Mode.POLL])
    @pytest.mark.parametrize(
        ("break_it", "remedy", "why"),
        [
            ("DROP EXTENSION plpgsql CASCADE", "CREATE EXTENSION plpgsql", "is missing"),
            (
                "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",
                'GRANT USAGE ON LANGUAGE plpgsql TO "steward"',
                'may not be used by role "steward"',
            ),
        ],
    )
    async def test_without_language_plpgsql_no_session_begins_and_the_error_names_the_remedy(
        self, server: PostgresServer, hand: Connection, detection: Mode, break_it: str, remedy: str, why: str
    ) -> None:
        endpoint = Endpoint(server.dsn("steward", password="p"))
        await hand.execute(f"GRANT CREATE ON DATABASE postgres TO steward; {break_it}")
        try:
            with pytest.raises(Transient) as raised:
                await attended(endpoint, detection)
            assert raised.value.reason is Reason.SERVER_NOT_READY
            text = f'language plpgsql, which the controller needs, {why} in database "postgres": run {remedy} there'
            assert raised.value.message == text
            await hand.execute(remedy)
            assert (await attended(endpoint, detection)).detection.claims == "Database"
        finally:
            await hand.execute("CREATE EXTENSION IF NOT EXISTS plpgsql; GRANT USAGE ON LANGUAGE plpgsql TO PUBLIC")

    @pytest.mark.parametrize("asked", [Mode.WATCH, Mode.POLL])
    async def test_a_session_ends_when_another_role_may_create_in_the_home_database(
        self, server: PostgresServer, hand: Connection, asked: Mode
    ) -> None:
        """Only a session that begins then verifies schema pgrole at each read."""
        working = anyio.Event()

        async def work(_session: Session) -> None:
            working.set()
            await anyio.sleep_forever()

        async def run() -> None:
            await run_session(
                Endpoint(server.dsn()),
                CLUSTER,
                detection=asked,
                interval=0.01,
                may_install=True,
                callbacks=ChangeCallbacks(),
                work=work,
            )

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                await working.wait()
                await hand.execute("GRANT CREATE ON DATABASE postgres TO steward")
        assert (await attended(Endpoint(server.dsn()), asked)).claims == DatabaseClaims(guarded=True)
