"""postgres: no setting stored for a role or a database stops or distorts a session, unless the error names it.

Each round sets all of a server's settings at once to hostile values. If that fails, it tries halves of them until it
finds the setting that is responsible.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.ddl import quote_literal
from pgrole_controller.core.decision import decide
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import ReassignOwned
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Role
from pgrole_controller.core.server_options import Mode
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.reassign import reassign_owned
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.servers import Servers

DEADLINE = 60.0
CLUSTER = "cluster-a"
HOME, TENANT = "settings_home", "settings_tenant"
OWNER = "settings_owner"
ADDRESS = Address("db", 5432, HOME, "require")
CONTROLLERS = ("settings_superuser", "settings_plain")

#: These stop the controller in some versions, so the others are set without them.
STOPS = ("dynamic_library_path", "max_stack_depth", "session_preload_libraries")
#: Values tried of each enumeration; of longer ones, the first and the last.
VALUES = 4

#: Not in pg_settings.
HIDDEN = ("role", "session_authorization")


@dataclass(frozen=True)
class SessionSetting:
    """`administrators`: only they can store it."""

    name: str
    value: str
    administrators: bool

    def __str__(self) -> str:
        return f"{self.name} = {quote_literal(self.value)}"


@dataclass
class SettingsWorld:
    """A server with two databases of a tenant, one of which is the home database, and two controllers."""

    server: PostgresServer
    admin: Connection
    made: int = 0
    storable: dict[str, list[SessionSetting]] = field(default_factory=dict)

    def endpoint(self, controller: str) -> Endpoint:
        return Endpoint(self.server.dsn(controller, HOME, password="p"))

    async def learn(self) -> None:
        """Finds out which hostile values can be stored, by setting."""
        async with connect(Endpoint(self.server.dsn()), "test") as probe:
            await probe.execute("DO 'BEGIN END'")
            rows = await probe.fetch(
                "SELECT name, context, vartype, setting, min_val, max_val, enumvals FROM pg_settings ORDER BY name"
            )
            for setting in [
                *(SessionSetting(name, OWNER, False) for name in HIDDEN),
                *(one for row in rows for one in hostile(row)),
            ]:
                try:
                    await probe.execute(f"ALTER DATABASE {TENANT} SET {setting}")
                except asyncpg.PostgresError:
                    continue
                self.storable.setdefault(setting.name, []).append(setting)
            await probe.execute(f"ALTER DATABASE {TENANT} RESET ALL")

    def rounds(self) -> list[list[SessionSetting]]:
        """Groups the settings so that each value of each setting is in one group."""
        chosen = [values for name, values in self.storable.items() if name not in STOPS]
        return [[one for one in some if one] for some in zip_longest(*chosen)]

    async def store(self, target: str, settings: Sequence[SessionSetting]) -> None:
        await self.admin.execute(";".join(f"ALTER {target} SET {setting}" for setting in settings))

    async def reset(self) -> None:
        for target in (f"DATABASE {HOME}", f"DATABASE {TENANT}", *(f"ROLE {one}" for one in CONTROLLERS)):
            await self.admin.execute(f"ALTER {target} RESET ALL")

    async def work(self, controller: str) -> None:
        """Runs a session from its first connection on: it installs, detects a drift, and applies a plan."""
        self.made += 1
        name, key = f"settings_role_{self.made}", Key("shop", f"object-{self.made}")
        await self.admin.execute(f"CREATE ROLE {name}")
        if controller == "settings_plain" and self.admin.get_server_version().major >= 16:
            await self.admin.execute(f"GRANT {name} TO {controller} WITH ADMIN TRUE")
        noticed = anyio.Event()
        desired = Desired(Owner(CLUSTER, key.namespace, "ns-uid", key.name, key.name), Role(name), adopt=True)

        def heard(names: tuple[str, ...] | None) -> None:
            if names is None or name in names:
                noticed.set()

        async def look(session: Session) -> None:
            assert session.detection.mode is Mode.WATCH, session.why
            assert session.identity.own_roles == {controller}
            known = Server(session.identity.system_identifier, session.identity.own_roles, ADDRESS)
            await self.admin.execute(f"ALTER ROLE {name} CREATEDB")
            await noticed.wait()
            (observed,) = await session.read_roles([(key, name)])
            assert isinstance(observed, Observed)
            assert observed.named is not None
            assert observed.named.role.createdb
            assert await session.apply_plans([decide(desired, observed, known, Policy())]) == [None]
            (observed,) = await session.read_roles([(key, name)])
            assert isinstance(observed, Observed)
            assert observed.named is not None
            assert not observed.named.role.createdb
            assert observed.claim is not None

        with anyio.fail_after(DEADLINE):
            await run_session(
                self.endpoint(controller),
                CLUSTER,
                detection=Mode.WATCH,
                may_install=True,
                callbacks=ChangeCallbacks(heard),
                work=look,
            )

    async def empty(self, controller: str) -> None:
        """Empties a role that owns a table in the tenant's database."""
        self.made += 1
        name, new_owner = f"settings_role_{self.made}", f"settings_heir_{self.made}"
        await self.admin.execute(f"CREATE ROLE {name}; CREATE ROLE {new_owner}")
        await self.admin.execute(f"GRANT {name}, {new_owner} TO {controller}")
        async with connect(Endpoint(self.server.dsn(database=TENANT)), "test") as there:
            await there.execute(
                f"CREATE SCHEMA {name} CREATE TABLE {name} (a int); ALTER SCHEMA {name} OWNER TO {name}"
            )
            await there.execute(f"ALTER TABLE {name}.{name} OWNER TO {name}")
            oid = await there.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
            await reassign_owned(
                self.endpoint(controller), ReassignOwned(name, oid, new_owner, terminate=False), DEADLINE
            )
            assert (
                await there.fetchval(f"SELECT pg_get_userbyid(relowner) FROM pg_class WHERE relname = '{name}'")
                == new_owner
            )
            assert not await there.fetchval("SELECT count(*) FROM pg_shdepend WHERE refobjid = $1", oid)
        await self.admin.execute(f"DROP ROLE {name}")


def hostile(row: asyncpg.Record) -> list[SessionSetting]:
    """Values that no one would choose. Not all of them can be stored."""
    match row["vartype"]:
        case "bool":
            values = ["off" if row["setting"] == "on" else "on"]
        case "enum":
            others = [one for one in row["enumvals"] if one != row["setting"]]
            values = others[: VALUES // 2] + others[VALUES // 2 :][-(VALUES // 2) :]
        case "integer" | "real":
            values = [row["min_val"], row["max_val"], "1"]
        case _:
            values = ["nonsense", "", "all", "view", "set, inherit"]
    return [SessionSetting(row["name"], value, row["context"] != "user") for value in dict.fromkeys(values)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(servers: Servers) -> AsyncIterator[SettingsWorld]:
    async with servers.run() as server:
        admin: Connection = await asyncpg.connect(server.dsn())
        await admin.execute(f"CREATE ROLE {OWNER} LOGIN")
        await admin.execute("CREATE ROLE settings_superuser LOGIN SUPERUSER PASSWORD 'p'")
        await admin.execute("CREATE ROLE settings_plain LOGIN CREATEROLE CREATEDB PASSWORD 'p'")
        for name in (HOME, TENANT):
            await admin.execute(f"CREATE DATABASE {name} OWNER {OWNER}")
        await admin.execute(
            f"GRANT CREATE ON DATABASE {HOME}, {TENANT} TO settings_plain; GRANT {OWNER} TO settings_plain"
        )
        async with connect(Endpoint(server.dsn(database=HOME)), "test") as home:
            await home.execute("GRANT SELECT (oid, xmin) ON pg_authid TO settings_plain")
        made = SettingsWorld(server, admin)
        await made.learn()
        yield made
        await admin.close()


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def clean(world: SettingsWorld) -> AsyncIterator[None]:
    yield
    await world.reset()
    async with connect(Endpoint(world.server.dsn(database=HOME)), "test") as home:
        await home.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")


async def check(
    world: SettingsWorld, target: str, settings: Sequence[SessionSetting], work: Callable[[], Awaitable[None]]
) -> bool:
    """Returns whether work succeeds with these settings. Fails if a tenant's or an unnamed setting stops it."""
    await world.store(target, settings)
    try:
        await work()
    except (PgRoleError, asyncpg.PostgresError, AssertionError, TimeoutError, BaseExceptionGroup) as error:
        failure = error
    else:
        return True
    finally:
        await world.admin.execute(f"ALTER {target} RESET ALL")
    if len(settings) == 1:
        (one,) = settings
        assert isinstance(failure, PgRoleError), one
        assert one.administrators, (one, failure.message)
        assert one.name in failure.message, (one, failure.message)
        return False
    half = len(settings) // 2
    parts = [await check(world, target, part, work) for part in (settings[:half], settings[half:])]
    assert not all(parts), f"together: {failure!r} with {', '.join(map(str, settings))}"
    return False


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("where", ["role", pytest.param("database", marks=pytest.mark.slow)])
async def test_a_session_works_with_any_setting_of_its_role_or_home_database_or_names_it(
    world: SettingsWorld, controller: str, where: str
) -> None:
    target = f"ROLE {controller}" if where == "role" else f"DATABASE {HOME}"
    assert len(world.storable) > 150
    for settings in world.rounds():
        await check(world, target, settings, lambda: world.work(controller))


@pytest.mark.parametrize("controller", CONTROLLERS)
async def test_a_role_is_emptied_with_any_setting_of_a_tenants_database_or_the_error_names_it(
    world: SettingsWorld, controller: str
) -> None:
    for settings in world.rounds():
        await check(world, f"DATABASE {TENANT}", settings, lambda: world.empty(controller))


@pytest.mark.parametrize("controller", CONTROLLERS)
@pytest.mark.parametrize("name", STOPS)
async def test_an_administrators_setting_that_stops_a_session_is_named(
    world: SettingsWorld, controller: str, name: str
) -> None:
    for setting in world.storable[name]:
        await check(world, f"ROLE {controller}", [setting], lambda: world.work(controller))
        await check(world, f"DATABASE {TENANT}", [setting], lambda: world.empty(controller))
