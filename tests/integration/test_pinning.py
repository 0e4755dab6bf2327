"""postgres: only the controller decides which role a session acts as, and login event triggers cannot lock it out for
long.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Refused, Transient, Waiting
from pgrole_controller.core.plan import ReassignOwned
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries, session_settings
from pgrole_controller.postgres.capabilities import explaining
from pgrole_controller.postgres.claims import Selection, claims_of, list_claims
from pgrole_controller.postgres.connection import CONNECT_SECONDS, Connection, Endpoint, connect
from pgrole_controller.postgres.reassign import reassign_owned
from pgrole_controller.postgres.schema import SchemaState, install
from tests.integration.sql_support import listening
from tests.releases import BEFORE

TENANT, CONTROLLER, HOME = "pinning_tenant", "pinning_controller", "pinning_home"
ACTS_AS_TENANT = (
    f"ALTER DATABASE {HOME} SET role = '{TENANT}'",
    f"ALTER ROLE {{0}} SET role = '{TENANT}'",
    f"ALTER ROLE {{0}} IN DATABASE {HOME} SET role = '{TENANT}'",
    f"ALTER ROLE ALL SET role = '{TENANT}'",
    f"ALTER DATABASE {HOME} SET session_authorization = '{TENANT}'",
    f"ALTER ROLE {{0}} IN DATABASE {HOME} SET session_authorization = '{TENANT}'",
)
REPLICA = (
    f"ALTER DATABASE {HOME} SET session_replication_role = replica",
    "ALTER ROLE {0} SET session_replication_role = replica",
)


@pytest_asyncio.fixture(loop_scope="session")
async def admin(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser in another database. A tenant owns the home database; the controller's plain role is its member."""
    connection: Connection = await asyncpg.connect(server.dsn())
    await connection.execute(f"CREATE ROLE {TENANT} LOGIN CREATEROLE PASSWORD 'p'")
    await connection.execute(
        f"CREATE ROLE {CONTROLLER} LOGIN CREATEROLE CREATEDB PASSWORD 'p'; GRANT {TENANT} TO {CONTROLLER}"
    )
    await connection.execute(f"CREATE DATABASE {HOME} OWNER {TENANT}")
    await connection.execute(f"GRANT CREATE ON DATABASE {HOME} TO {CONTROLLER}")
    async with connect(Endpoint(server.dsn(database=HOME)), "test") as home:
        await home.execute(f"GRANT SELECT (oid, xmin) ON pg_authid TO {CONTROLLER}")
    yield connection
    await connection.execute("ALTER ROLE ALL RESET ALL; ALTER ROLE postgres RESET ALL")
    await connection.execute(f"ALTER ROLE postgres IN DATABASE {HOME} RESET ALL")
    await connection.execute(f"DROP DATABASE {HOME} WITH (FORCE)")
    await connection.execute(f"DROP ROLE {CONTROLLER}")
    await connection.execute(f"DROP ROLE {TENANT}")
    await connection.close()


def endpoint(server: PostgresServer, role: str) -> Endpoint:
    return Endpoint(server.dsn(role, HOME, password=None if role == "postgres" else "p"))


@pytest.mark.parametrize("role", ["postgres", CONTROLLER])
@pytest.mark.parametrize("setting", ACTS_AS_TENANT)
async def test_no_setting_of_a_role_or_a_database_makes_the_controller_act_as_another_role(
    server: PostgresServer, admin: Connection, role: str, setting: str
) -> None:
    await admin.execute(setting.format(role))
    async with connect(endpoint(server, role), "test") as home:
        assert await home.fetchval("SELECT current_user || session_user") == 2 * role
        assert await install(home) is SchemaState.MADE
        owners = await home.fetch(
            "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'pgrole' UNION"
            " SELECT proowner::regrole::text FROM pg_proc WHERE pronamespace = 'pgrole'::regnamespace"
        )
        assert [row[0] for row in owners] == [role]
        assert await install(home) is SchemaState.PRESENT


@pytest.mark.parametrize("setting", ACTS_AS_TENANT[:4])
async def test_a_session_that_acts_as_another_role_is_refused_and_the_setting_is_named(
    server: PostgresServer, admin: Connection, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """A pooler can cause this by dropping what a connection requests."""
    await admin.execute(setting.format("postgres"))
    monkeypatch.delitem(session_settings.PINNED, "role")
    with pytest.raises(Transient, match=f'acts as role "{TENANT}"') as caught:
        async with connect(endpoint(server, "postgres"), "test"):
            pass
    remedy = setting.format("postgres").partition(" SET role")[0]
    assert f"{remedy} RESET role" in caught.value.message
    assert "GRANT" not in caught.value.message


async def test_a_session_whose_requested_settings_were_dropped_runs_nothing_of_a_tenant(
    server: PostgresServer, admin: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that ignores the settings that a connection requests."""
    async with connect(Endpoint(server.dsn(database=HOME)), "hand") as hand:
        await hand.execute(
            "CREATE TABLE public.called (by name); CREATE FUNCTION public.current_setting(text) RETURNS text "
            "LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.called VALUES (current_user); "
            f"RETURN pg_catalog.current_setting($1); END'; ALTER FUNCTION public.current_setting OWNER TO {TENANT}; "
            f"GRANT ALL ON public.called TO {TENANT}"
        )
        await admin.execute(f"ALTER DATABASE {HOME} SET search_path = public, pg_catalog")
        monkeypatch.delitem(session_settings.PINNED, "search_path")
        with pytest.raises(Transient, match="does not have the settings that the controller requested"):
            async with connect(endpoint(server, "postgres"), "test"):
                pass
        assert await hand.fetchval("SELECT count(*) FROM public.called") == 0


async def test_the_guard_stops_a_session_that_acts_as_another_role(server: PostgresServer, admin: Connection) -> None:
    async with connect(endpoint(server, "postgres"), "test") as home:
        await install(home)
        await admin.execute(f"GRANT {TENANT} TO postgres")
        await home.execute(
            f"GRANT ALL ON SCHEMA pgrole TO {TENANT}; GRANT ALL ON ALL TABLES IN SCHEMA pgrole TO {TENANT}"
        )
        await home.execute(f"ALTER SCHEMA pgrole OWNER TO {TENANT}; SET ROLE {TENANT}")
        with pytest.raises(asyncpg.PostgresError) as caught:
            await home.execute(queries.guard())
        assert caught.value.sqlstate == "PGR02"


async def test_the_script_for_administrators_installs_nothing_as_a_role_from_a_setting(
    server: PostgresServer, admin: Connection
) -> None:
    await admin.execute(f"ALTER DATABASE {HOME} SET role = '{TENANT}'")
    made: Connection = await asyncpg.connect(server.dsn(database=HOME))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="act as another role"):
            await made.execute(queries.install())
        await made.execute("RESET ROLE")
        assert await made.fetchval("SELECT current_user") == TENANT
        await made.execute("SET ROLE none")
        await made.execute(queries.install())
        assert (
            await made.fetchval("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'pgrole'")
            == "postgres"
        )
    finally:
        await made.close()


@pytest.mark.parametrize("role", ["postgres", CONTROLLER])
async def test_the_remedy_for_a_tenants_schema_is_to_drop_it_and_grants_nothing(
    server: PostgresServer, admin: Connection, role: str
) -> None:
    async with connect(endpoint(server, TENANT), "test") as theirs:
        await install(theirs)
    await admin.execute(f"ALTER DATABASE {HOME} SET role = '{TENANT}'")
    async with connect(endpoint(server, role), "test") as home:
        with pytest.raises(Refused, match="DROP SCHEMA pgrole CASCADE") as caught:
            async with explaining(home):
                await install(home)
    assert TENANT in caught.value.message
    assert "GRANT" not in caught.value.message
    with pytest.raises(PgRoleError, match="not trusted"):
        async with claims_of(endpoint(server, role)) as home:
            await list_claims(home, Selection())


@pytest.mark.before(16, "a role with CREATEROLE may alter any role except superusers")
@pytest.mark.parametrize("setting", ["role = '{0}'", "local_preload_libraries = 'nonsense'", "work_mem = '64kB'"])
async def test_settings_by_another_role_with_createrole_have_no_effect(
    server: PostgresServer, admin: Connection, setting: str
) -> None:
    other: Connection = await asyncpg.connect(server.dsn(TENANT, "postgres", password="p"))
    await other.execute(f"ALTER ROLE {CONTROLLER} IN DATABASE {HOME} SET {setting.format(TENANT)}")
    await other.close()
    async with connect(endpoint(server, CONTROLLER), "test") as home:
        assert await home.fetchval("SELECT current_user") == CONTROLLER
        assert await home.fetchval("SHOW work_mem") == "4MB"


NOT_UTF8 = "r\xf4le"


@pytest_asyncio.fixture(loop_scope="session")
async def latin(admin: Connection, server: PostgresServer) -> AsyncIterator[Connection]:
    """A session in a LATIN1 database, where a role with a name that is not valid UTF-8 was created."""
    await admin.execute(
        "CREATE DATABASE pinning_latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    )
    connection: Connection = await asyncpg.connect(server.dsn(database="pinning_latin"))
    await connection.execute(f'CREATE ROLE "{NOT_UTF8}" LOGIN CREATEROLE')
    yield connection
    await connection.close()
    await admin.execute("DROP DATABASE pinning_latin")


@pytest.mark.parametrize(
    "whose",
    [
        "CREATE SCHEMA pgrole AUTHORIZATION %1$I",
        "CREATE SCHEMA pgrole; CREATE TABLE pgrole.t (); ALTER TABLE pgrole.t OWNER TO %1$I",
        "CREATE SCHEMA pgrole; GRANT CREATE ON SCHEMA pgrole TO %1$I",
    ],
)
async def test_the_error_shows_an_owner_whose_name_is_in_another_encoding(
    server: PostgresServer, admin: Connection, latin: Connection, whose: str
) -> None:
    async with connect(endpoint(server, "postgres"), "test") as home:
        try:
            oid = await latin.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", NOT_UTF8)
            await home.execute(
                f"DO $$ BEGIN EXECUTE format('{whose}', (SELECT rolname FROM pg_roles WHERE oid = {oid})); END $$"
            )
            with pytest.raises(Refused, match="DROP SCHEMA pgrole CASCADE") as caught:
                await install(home)
            assert "r\ufffdle" in caught.value.message
            if "AUTHORIZATION" in whose:
                with pytest.raises(asyncpg.InsufficientPrivilegeError, match=r"r\\364le"):
                    await home.execute(queries.install())
        finally:
            await home.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
            await latin.execute(f'DROP ROLE "{NOT_UTF8}"')


async def test_a_database_whose_owner_has_a_name_in_another_encoding_can_be_used(
    server: PostgresServer, admin: Connection, latin: Connection
) -> None:
    await latin.execute(f'ALTER DATABASE {HOME} OWNER TO "{NOT_UTF8}"')
    try:
        async with connect(endpoint(server, "postgres"), "test") as home:
            assert await install(home) is SchemaState.MADE
    finally:
        await latin.execute(f'ALTER DATABASE {HOME} OWNER TO {TENANT}; DROP ROLE "{NOT_UTF8}"')


async def test_a_missing_privilege_is_reported_although_our_name_is_in_another_encoding(
    server: PostgresServer, admin: Connection, latin: Connection
) -> None:
    await admin.execute(f"REVOKE CREATE ON DATABASE {HOME} FROM {CONTROLLER}; REVOKE {TENANT} FROM {CONTROLLER}")
    async with connect(endpoint(server, CONTROLLER), "test") as home:
        await latin.execute(f'DROP ROLE "{NOT_UTF8}"; ALTER ROLE {CONTROLLER} RENAME TO "{NOT_UTF8 * 10}"')
        try:
            with pytest.raises(PgRoleError, match="not allowed to install it") as caught:
                async with explaining(home):
                    await install(home)
            assert "r\ufffdle" in caught.value.message
        finally:
            await latin.execute(f'ALTER ROLE "{NOT_UTF8 * 10}" RENAME TO {CONTROLLER}')


@pytest.mark.parametrize("role", ["postgres", CONTROLLER])
@pytest.mark.parametrize("setting", REPLICA)
async def test_changes_are_notified_even_with_session_replication_role_replica(
    server: PostgresServer, admin: Connection, role: str, setting: str
) -> None:
    await admin.execute(setting.format(role))
    subject = f"pinning_{secrets.token_hex(4)}"
    async with connect(endpoint(server, role), "test") as home, listening(server.dsn(database=HOME)) as listener:
        await install(home)
        await home.execute("SELECT pgrole.observe()")
        await admin.execute(f"CREATE ROLE {subject}")
        await home.execute("SELECT pgrole.observe()")
        await listener.first(op="insert", name=subject)
        await admin.execute(f"DROP ROLE {subject}")
        await home.execute("SELECT pgrole.observe()")
        await listener.first(op="delete", name=subject)


async def test_disabled_triggers_are_enabled_again(server: PostgresServer, admin: Connection) -> None:
    async with connect(endpoint(server, "postgres"), "test") as home:
        await install(home)
        await home.execute("ALTER TABLE pgrole.role_state DISABLE TRIGGER ALL")
        assert await install(home) is SchemaState.CHANGED
        assert await install(home) is SchemaState.PRESENT


@pytest.mark.parametrize("setting", REPLICA)
async def test_a_schema_of_the_previous_version_that_cannot_notify_is_reported(
    server: PostgresServer, admin: Connection, setting: str
) -> None:
    async with connect(endpoint(server, "postgres"), "test") as home:
        await home.execute(f"BEGIN; {BEFORE.install_sql()}; COMMIT")
        await home.execute(
            f"GRANT USAGE ON SCHEMA pgrole TO {CONTROLLER}; GRANT ALL ON ALL TABLES IN SCHEMA pgrole TO {CONTROLLER};"
            f"GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO {CONTROLLER}"
        )
    async with connect(endpoint(server, CONTROLLER), "test") as plain:
        assert await install(plain) is SchemaState.OLDER
    await admin.execute(setting.format(CONTROLLER))
    async with connect(endpoint(server, CONTROLLER), "test") as plain:
        with pytest.raises(Refused, match="session_replication_role"):
            await install(plain)


@asynccontextmanager
async def login_trigger(server: PostgresServer, database: str, body: str) -> AsyncIterator[None]:
    """Installs a login event trigger in a database, until the context ends."""
    made: Connection = await asyncpg.connect(server.dsn(database=database), server_settings={"event_triggers": "off"})
    await made.execute(
        f"CREATE FUNCTION public.at_login() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN {body}; END'"
    )
    await made.execute("CREATE EVENT TRIGGER at_login ON login EXECUTE FUNCTION public.at_login()")
    try:
        yield
    finally:
        await made.execute("DROP EVENT TRIGGER at_login; DROP FUNCTION public.at_login()")
        await made.close()


LOGIN = pytest.mark.since(17, "login event triggers")
BODIES = {"fails": "RAISE ''not today''", "hangs": "PERFORM pg_sleep(3600)", "loops": "LOOP END LOOP"}


@LOGIN
@pytest.mark.parametrize("body", BODIES)
async def test_a_superuser_can_log_in_whatever_a_login_event_trigger_does(
    server: PostgresServer, admin: Connection, body: str
) -> None:
    async with connect(endpoint(server, "postgres"), "test"):
        pass
    async with login_trigger(server, HOME, BODIES[body]), connect(endpoint(server, "postgres"), "test") as home:
        assert await home.fetchval("SHOW event_triggers") == "on"


@pytest.mark.slow
@LOGIN
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("role", ["postgres", CONTROLLER])
async def test_a_blocking_login_event_trigger_is_reported_and_leaves_no_sessions_behind(
    server: PostgresServer, admin: Connection, role: str, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nothing is known about the server yet."""
    monkeypatch.setattr("pgrole_controller.postgres.connection._ACCEPTED", {})
    messages: list[str] = []
    async with login_trigger(server, HOME, BODIES[body]):
        for _ in range(2):
            with anyio.fail_after(CONNECT_SECONDS + 60):
                try:
                    async with connect(endpoint(server, role), "test"):
                        messages.append("")
                except Transient as error:
                    messages.append(error.message)
        if role == CONTROLLER:
            assert "ALTER EVENT TRIGGER" in messages[-1]
        else:
            assert messages[-1] == ""
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND usename = $2"

        async def are_gone() -> bool:
            return bool(await admin.fetchval(query, HOME, CONTROLLER) <= 1)

        assert await reached(are_gone, 45.0)  # except the first attempt's, when the server was not yet known
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", HOME)
    async with connect(endpoint(server, role), "test"):
        pass


@pytest.mark.slow
@LOGIN
@pytest.mark.parametrize("body", ["fails", "hangs"])
async def test_emptying_a_role_reports_a_blocking_login_event_trigger_of_a_tenants_database(
    server: PostgresServer, admin: Connection, body: str
) -> None:
    role, new_owner = f"pinning_{secrets.token_hex(4)}", f"pinning_{secrets.token_hex(4)}"
    await admin.execute(f"CREATE ROLE {role}")
    await admin.execute(f"CREATE ROLE {new_owner}; GRANT {role}, {new_owner} TO {CONTROLLER}")
    oid = await admin.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", role)
    async with connect(endpoint(server, "postgres"), "test") as home:
        await home.execute(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    elsewhere = Endpoint(server.dsn(CONTROLLER, "postgres", password="p"))
    task = ReassignOwned(role, oid, new_owner, terminate=False)
    async with login_trigger(server, HOME, BODIES[body]):
        with pytest.raises(Waiting, match="ALTER EVENT TRIGGER") as caught:
            await reassign_owned(elsewhere, task)
        assert HOME in caught.value.message
    await reassign_owned(elsewhere, task)
    await admin.execute(f"DROP ROLE {role}")
