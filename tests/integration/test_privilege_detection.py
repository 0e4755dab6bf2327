"""With event triggers, everything that DDL does to privileges is detected, even effects without their own event."""

from dataclasses import dataclass, replace

import pytest

from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
)
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.process import reached
from tests.integration.database_world import (
    DEADLINE,
    KEY,
    POLICY,
    READ,
    SERVER,
    DatabaseWorkerWorld,
)
from tests.servers import Servers


@dataclass(frozen=True, slots=True)
class SideEffect:
    """`change` has an effect that its event does not show, and after its repair `expected` is true. {r}: the role; {c}:
    another one, whose default privileges are declared with `defaults`.
    """

    before: str
    change: str
    expected: str
    objects: tuple[ObjectPrivileges, ...] = ()
    schemas: tuple[SchemaAccess, ...] = ()
    defaults: bool = False
    until: int = 99


def select(*names: str, columns: tuple[str, ...] = (), kind: ObjectKind = ObjectKind.TABLE) -> ObjectPrivileges:
    return ObjectPrivileges(kind, "app", names, frozenset({"SELECT"}), columns)


def may_not(what: str, arguments: str, privilege: str = "SELECT") -> str:
    return f"SELECT NOT has_{what}_privilege('{{r}}', {arguments}, '{privilege}')"


EXECUTE = ObjectPrivileges(ObjectKind.ROUTINE, "app", ("f(app.t)",), frozenset({"EXECUTE"}))
FUNCTION = (
    "CREATE FUNCTION app.f(app.t) RETURNS int LANGUAGE sql AS 'SELECT 1';REVOKE EXECUTE ON FUNCTION app.f FROM PUBLIC"
)
PARTITIONED = (
    "CREATE TABLE app.p (id int, x int) PARTITION BY RANGE (id); CREATE TABLE app.p1 PARTITION OF app.p DEFAULT"
)
TYPED = "CREATE TYPE app.comp AS (id int, b int); CREATE TABLE app.ty OF app.comp"
DEFAULTS = "SELECT count(*) = 2 FROM pg_default_acl WHERE defaclacl::text LIKE '%{r}%'"
ON_DATABASE = "DO 'BEGIN EXECUTE format($$GRANT CREATE ON DATABASE %I TO {r}$$, current_database()); END'"

SIDE_EFFECTS = {
    "ALTER INDEX renames a table": SideEffect(
        "", "ALTER INDEX app.orders RENAME TO hidden", may_not("table", "'app.hidden'"), (select("orders"),)
    ),
    "and hides a grant of its transaction": SideEffect(
        "",
        "BEGIN; GRANT DELETE ON app.orders TO {r}; ALTER INDEX app.orders RENAME TO hidden; COMMIT",
        may_not("table", "'app.hidden'", "DELETE"),
        (select("items"),),
    ),
    "ALTER TYPE changes a signature": SideEffect(
        f"CREATE TYPE app.t AS ENUM ('a'); {FUNCTION}",
        "ALTER TYPE app.t RENAME TO other",
        may_not("function", "'app.f(app.other)'", "EXECUTE"),
        (EXECUTE,),
    ),
    "so does ALTER TABLE": SideEffect(
        f"CREATE TABLE app.t (a int); {FUNCTION}",
        "ALTER TABLE app.t RENAME TO other",
        may_not("function", "'app.f(app.other)'", "EXECUTE"),
        (EXECUTE,),
    ),
    "a partition's column is renamed with its table's": SideEffect(
        PARTITIONED,
        "ALTER TABLE app.p RENAME COLUMN id TO secret",
        may_not("column", "'app.p1', 'secret'"),
        (select("p1", columns=("id",)),),
    ),
    "a partition gets its table's new column": SideEffect(
        PARTITIONED,
        "ALTER TABLE app.p ADD COLUMN late int",
        "SELECT has_column_privilege('{r}', 'app.p1', 'late', 'SELECT')",
        (select("p*", columns=("id", "late")),),
    ),
    "an inherited column is renamed": SideEffect(
        "CREATE TABLE app.parent (id int); CREATE TABLE app.child (x int) INHERITS (app.parent)",
        "ALTER TABLE app.parent RENAME COLUMN id TO secret",
        may_not("column", "'app.child', 'secret'"),
        (select("child", columns=("id",)),),
    ),
    "a typed table's column is renamed with its type's": SideEffect(
        TYPED,
        "ALTER TYPE app.comp RENAME ATTRIBUTE id TO secret CASCADE",
        may_not("column", "'app.ty', 'secret'"),
        (select("ty", columns=("id",)),),
    ),
    "a range comes with constructors": SideEffect(
        "ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC",
        "CREATE TYPE app.span AS RANGE (subtype = int4)",
        "SELECT count(*) >= 2 AND bool_and(has_function_privilege('{r}', p.oid, 'EXECUTE'))"
        " FROM pg_proc AS p WHERE p.pronamespace = 'app'::regnamespace",
        schemas=(SchemaAccess("app", frozenset({Access.EXECUTE})),),
    ),
    "a rule makes a view of a table": SideEffect(
        "CREATE TABLE app.w (id int)",
        'CREATE RULE "_RETURN" AS ON SELECT TO app.w DO INSTEAD SELECT 1 AS id',
        "SELECT has_table_privilege('{r}', 'app.w', 'INSERT')",
        (ObjectPrivileges(ObjectKind.VIEW, "app", ("w",), frozenset({"INSERT"})), select("orders")),
        until=15,
    ),
    "REASSIGN OWNED has no event": SideEffect(
        "CREATE ROLE {c}; CREATE TABLE app.mine (id int); ALTER TABLE app.mine OWNER TO {r}",
        "REASSIGN OWNED BY {r} TO {c}",
        "SELECT has_table_privilege('{r}', 'app.mine', 'SELECT')",
        schemas=(READ,),
    ),
    "DDL has none while event triggers are off": SideEffect(
        "",
        "ALTER EVENT TRIGGER pgrole_on_ddl DISABLE; GRANT DELETE ON app.orders TO {r}",
        may_not("table", "'app.orders'", "DELETE"),
        schemas=(READ,),
    ),
    "a GRANT on the database has none, and the home database may not tell": SideEffect(
        "", ON_DATABASE, may_not("database", "current_database()", "CREATE")
    ),
    "DROP OWNED revokes default privileges": SideEffect(
        "CREATE ROLE {c}", "DROP OWNED BY {r}", DEFAULTS, schemas=(READ,), defaults=True
    ),
    "also those that others share": SideEffect(
        "CREATE ROLE {c}; ALTER DEFAULT PRIVILEGES FOR ROLE {c} IN SCHEMA app GRANT SELECT ON TABLES TO pg_monitor;"
        "ALTER DEFAULT PRIVILEGES FOR ROLE {c} IN SCHEMA app GRANT SELECT, USAGE ON SEQUENCES TO pg_monitor",
        "DROP OWNED BY {r}",
        DEFAULTS,
        schemas=(READ,),
        defaults=True,
    ),
}


@pytest.mark.parametrize("name", SIDE_EFFECTS)
async def test_side_effects_of_ddl_on_other_objects_are_detected(
    world: DatabaseWorkerWorld, servers: Servers, name: str
) -> None:
    case = SIDE_EFFECTS[name]
    if servers.version > case.until:
        pytest.skip(f"PostgreSQL {case.until} and before")
    creator = world.role.replace("reader", "creator")

    def fill_in(statement: str) -> str:
        return statement.format(r=world.role, c=creator)

    if case.before:
        await world.hand.execute(fill_in(case.before))
    declared = DatabasePrivileges(world.database, schemas=case.schemas, objects=case.objects)
    owned = frozenset({0})
    if case.defaults:
        owned = frozenset({await world.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", creator)})
        declared = replace(declared, created_by=(creator,))
    grantee = Grantee(KEY, "uid-1", 1, world.role, world.oid, {world.database: declared}, policy=POLICY, owned=owned)
    world.grantees.publish(SERVER, grantee)

    async def is_so() -> bool:
        return bool(await world.hand.fetchval(fill_in(case.expected)))

    async with world.working() as worker:
        if case.until == 99:
            await world.wait_settled()
        else:
            await world.wait_may("SELECT", "app.orders")
        assert worker.mode is DatabaseMode.EVENTS
        await world.hand.execute(fill_in(case.change))
        assert await reached(is_so, DEADLINE)
    if "CREATE ROLE" in case.before:
        await world.hand.execute(f"DROP OWNED BY {creator}; DROP ROLE {creator}")
