"""A table of everything watched in Kubernetes and PostgreSQL: how to change it, the effect, and how to disable the
source.

To disable a source, tests change what is installed in the database, or delay the API server's events; never the
controller.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pgrole_controller.core.scram import verifies
from tests.acceptance.relay import Relay
from tests.acceptance.world import Controller, Database, Json, Kube


@dataclass(frozen=True, slots=True)
class SourceScene:
    """The objects of each source: its object, role and Secrets have names from `of(source)`."""

    kube: Kube
    database: Database
    relay: Relay
    controller: Controller
    prefix: str

    def of(self, source: str, more: str = "") -> str:
        return f"{self.prefix}-{source}{more}"

    def quoted(self, source: str, more: str = "") -> str:
        return f'"{self.of(source, more)}"'

    async def logs_in(self, source: str, password: str) -> bool:
        verifier = await self.database.verifier(self.of(source))
        return verifier is not None and verifies(password, verifier)

    async def query(self, sql: str, source: str) -> Any:
        return await self.database.fetchval(sql, self.of(source))


SourceStep = Callable[[SourceScene], Awaitable[object]]
Is = Callable[[SourceScene], Awaitable[bool]]
Without = Callable[[SourceScene], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class ReconcileSource:
    """`prepare` makes its object ready (or waiting), `change` is the change to detect, `noticed` is observed from
    outside.

    `without` disables this source only. `catalog`: the PostgreSQL catalog that it watches.
    """

    name: str
    prepare: SourceStep
    change: SourceStep
    noticed: Is
    without: Without
    catalog: str = ""


def declared(name: str, **spec: Any) -> SourceStep:
    async def prepare(scene: SourceScene) -> None:
        await scene.kube.apply(scene.of(name), **spec)
        await scene.kube.wait_ready(scene.of(name))

    return prepare


def executed(name: str, sql: str) -> SourceStep:
    """`{}` is the role of this source."""

    async def change(scene: SourceScene) -> None:
        await scene.database.execute(sql.replace("{}", scene.quoted(name)))

    return change


def seen(name: str, sql: str, value: object) -> Is:
    async def noticed(scene: SourceScene) -> bool:
        return bool(await scene.query(sql, name) == value)

    return noticed


# --- how to disable a source


def holding(resource: str, *, owned: bool | None = None) -> Without:
    """Delays the events of a resource. `owned`: only those of objects with, or without, an owner."""

    def holds(kind: str, obj: Json) -> bool:
        return kind == resource and owned in (None, bool(obj["metadata"].get("ownerReferences")))

    return lambda scene: scene.relay.holding(holds)


def blind_to(catalog: str) -> Without:
    """Hides this catalog's rows from the views that detection reads."""

    @asynccontextmanager
    async def without(scene: SourceScene) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for view in ("catalog_row", "fingerprint_now"):
                definition = await scene.database.fetchval("SELECT pg_get_viewdef($1::regclass)", f"pgrole.{view}")
                make = f"CREATE OR REPLACE VIEW pgrole.{view} AS "
                await scene.database.execute(
                    f"{make} SELECT * FROM ({definition.rstrip(';')}) AS r WHERE r.catalog <> '{catalog}'::regclass"
                )
                stack.push_async_callback(scene.database.execute, make + definition)
            yield

    return without


def altered(*functions: tuple[str, str, str]) -> Without:
    """Changes functions (name, old text, new text) of schema pgrole, then observes everything again."""

    @asynccontextmanager
    async def without(scene: SourceScene) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for name, old, new in functions:
                definition = await scene.database.fetchval(
                    "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p"
                    " WHERE p.pronamespace = 'pgrole'::regnamespace AND p.proname = $1",
                    name,
                )
                assert old in definition
                await scene.database.execute(definition.replace(old, new))
                stack.push_async_callback(scene.database.execute, definition)
            await scene.database.execute("SELECT pgrole.observe(true)")
            await scene.controller.rest()
            yield

    return without


def silent(table: str, *triggers: str) -> Without:
    """Disables these triggers of a table in schema pgrole."""

    @asynccontextmanager
    async def without(scene: SourceScene) -> AsyncIterator[None]:
        for trigger in triggers:
            await scene.database.execute(f"ALTER TABLE pgrole.{table} DISABLE TRIGGER {trigger}")
        yield
        for trigger in triggers:
            await scene.database.execute(f"ALTER TABLE pgrole.{table} ENABLE TRIGGER {trigger}")

    return without


#: Ignores changes of the row version alone, and of the attributes.
_ATTRIBUTES = (
    "r.rolcanlogin, r.rolsuper, r.rolcreatedb, r.rolcreaterole, r.rolinherit, r.rolreplication,\n"
    "            r.rolbypassrls, r.rolconnlimit, extract(epoch FROM nullif(r.rolvaliduntil, 'infinity')),"
)
without_attributes = altered(("digest_all", _ATTRIBUTES, ""), ("record", "u.oid IS NOT NULL OR ", ""))
without_verifiers = altered(("read_verifiers", "IF has_column_privilege", "IF false AND has_column_privilege"))


# --- the sources


async def prepare_password_secret(scene: SourceScene) -> None:
    await scene.kube.apply_secret(scene.of("password-secret", "-from"), password="first")
    await declared("password-secret", password={"secretRef": {"name": scene.of("password-secret", "-from")}})(scene)


async def change_password_secret(scene: SourceScene) -> None:
    await scene.kube.apply_secret(scene.of("password-secret", "-from"), password="second")


async def password_secret_noticed(scene: SourceScene) -> bool:
    return await scene.logs_in("password-secret", "second")


async def prepare_connection_secret(scene: SourceScene) -> None:
    name = scene.of("connection-secret", "-to")
    await declared("connection-secret", password={"generate": {}}, connectionSecret={"name": name})(scene)


async def change_connection_secret(scene: SourceScene) -> None:
    await scene.kube.delete_secret(scene.of("connection-secret", "-to"))


async def connection_secret_noticed(scene: SourceScene) -> bool:
    return await scene.kube.secret(scene.of("connection-secret", "-to")) is not None


async def prepare_verifier(scene: SourceScene) -> None:
    await scene.kube.apply_secret(scene.of("verifier", "-from"), password="ours")
    await declared("verifier", password={"secretRef": {"name": scene.of("verifier", "-from")}})(scene)


async def verifier_noticed(scene: SourceScene) -> bool:
    return await scene.logs_in("verifier", "ours")


async def change_object(scene: SourceScene) -> None:
    await scene.kube.patch(scene.of("object"), {"spec": {"connectionLimit": 5}})


async def prepare_membership(scene: SourceScene) -> None:
    await scene.database.execute(f"CREATE ROLE {scene.quoted('membership', '-group')}")
    await declared("membership", memberOf=[{"role": scene.of("membership", "-group")}])(scene)


async def change_membership(scene: SourceScene) -> None:
    await scene.database.execute(f"REVOKE {scene.quoted('membership', '-group')} FROM {scene.quoted('membership')}")


async def prepare_group(scene: SourceScene) -> None:
    await scene.kube.apply(scene.of("group"), memberOf=[{"role": scene.of("group", "-group")}])
    await scene.kube.wait_reason(scene.of("group"), "MembershipPending")
    await scene.controller.back_off(scene.kube, scene.of("group"))


async def change_group(scene: SourceScene) -> None:
    await scene.database.execute(f"CREATE ROLE {scene.quoted('group', '-group')}")


async def prepare_claim(scene: SourceScene) -> None:
    """Makes the role belong to another cluster."""
    await scene.database.execute(
        f"CREATE ROLE {scene.quoted('claim')};"
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,"
        " object_uid) SELECT r.rolname, r.oid, s.system_identifier, 'other', 'other', 'other', 'other', 'other'"
        f" FROM pg_roles AS r, pg_control_system() AS s WHERE r.rolname = '{scene.of('claim')}'"
    )
    await scene.kube.apply(scene.of("claim"), adopt=True, comment="taken")
    await scene.kube.wait_reason(scene.of("claim"), "ClaimedElsewhere")
    await scene.controller.back_off(scene.kube, scene.of("claim"))


async def change_claim(scene: SourceScene) -> None:
    await scene.database.execute(f"DELETE FROM pgrole.claim WHERE role_name = '{scene.of('claim')}'")


_COMMENT = "SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = $1"
_GROUPS = "SELECT count(*) FROM pg_auth_members AS m JOIN pg_roles AS r ON r.oid = m.member WHERE r.rolname = $1"

SOURCES = (
    ReconcileSource(
        "object",
        declared("object"),
        change_object,
        seen("object", "SELECT rolconnlimit FROM pg_roles WHERE rolname = $1", 5),
        holding("pgroles"),
    ),
    ReconcileSource(
        "password-secret",
        prepare_password_secret,
        change_password_secret,
        password_secret_noticed,
        holding("secrets", owned=False),
    ),
    ReconcileSource(
        "connection-secret",
        prepare_connection_secret,
        change_connection_secret,
        connection_secret_noticed,
        holding("secrets", owned=True),
    ),
    ReconcileSource(
        "attribute",
        declared("attribute"),
        executed("attribute", "ALTER ROLE {} CREATEDB"),
        seen("attribute", "SELECT rolcreatedb FROM pg_roles WHERE rolname = $1", False),
        without_attributes,
        "pg_authid",
    ),
    ReconcileSource(
        "verifier",
        prepare_verifier,
        executed("verifier", "ALTER ROLE {} PASSWORD 'theirs'"),
        verifier_noticed,
        without_verifiers,
        "pg_authid",
    ),
    ReconcileSource(
        "membership",
        prepare_membership,
        change_membership,
        seen("membership", _GROUPS, 1),
        blind_to("pg_auth_members"),
        "pg_auth_members",
    ),
    ReconcileSource(
        "setting",
        declared("setting"),
        executed("setting", "ALTER ROLE {} SET work_mem = '1MB'"),
        seen("setting", "SELECT rolconfig IS NULL FROM pg_roles WHERE rolname = $1", True),
        blind_to("pg_db_role_setting"),
        "pg_db_role_setting",
    ),
    ReconcileSource(
        "comment",
        declared("comment", comment="ours"),
        executed("comment", "COMMENT ON ROLE {} IS 'theirs'"),
        seen("comment", _COMMENT, "ours"),
        blind_to("pg_shdescription"),
        "pg_shdescription",
    ),
    ReconcileSource(
        "group",
        prepare_group,
        change_group,
        seen("group", _GROUPS, 1),
        silent("role_state", "announce_insert"),
    ),
    ReconcileSource(
        "claim",
        prepare_claim,
        change_claim,
        seen("claim", _COMMENT, "taken"),
        silent("claim", "announce_delete"),
    ),
)
