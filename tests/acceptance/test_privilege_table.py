"""Every declarable privilege, on every kind of object, by name, by pattern and by access: each drifts in every way
possible in PostgreSQL (revoked, granted, with the grant option, on a column), and is repaired and reported.

The rows are generated from the model. Each has a role and objects of its own; all drift at once, since one after
another would take minutes.
"""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, get_args

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.api.privileges import DatabasePrivilegesSpec, ObjectPrivilegesSpec
from pgrole_controller.core.privileges.acl import COLUMN_PRIVILEGES, DECLARABLE, TABLE_KINDS, ObjectKind
from pgrole_controller.core.privileges.grantee import Access
from pgrole_controller.core.privileges.object_patterns import ACCESS
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.world import Controller, Json, Kube, is_ready, make_kube, remove, running, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: Deadline for all rows of one mode, which drift at once, in seconds.
SECONDS = 90.0

NAMED_KINDS = tuple(ObjectKind(kind) for kind in get_args(ObjectPrivilegesSpec.model_fields["kind"].annotation))

#: Keyword of a kind in GRANT, and its name in status and Events.
_GRANTED_AS = {ObjectKind.SEQUENCE: "SEQUENCE", ObjectKind.ROUTINE: "FUNCTION", ObjectKind.SCHEMA: "SCHEMA"}
_WORDS = {
    ObjectKind.MATERIALIZED_VIEW: "materialized view",
    ObjectKind.FOREIGN_TABLE: "foreign table",
}
_CREATE = {
    ObjectKind.TABLE: "CREATE TABLE {} (id int, name text)",
    ObjectKind.VIEW: "CREATE VIEW {} AS SELECT 1 AS id, 'a' AS name",
    ObjectKind.MATERIALIZED_VIEW: "CREATE MATERIALIZED VIEW {} AS SELECT 1 AS id, 'a' AS name",
    ObjectKind.FOREIGN_TABLE: "CREATE FOREIGN TABLE {} (id int, name text) SERVER lake",
    ObjectKind.SEQUENCE: "CREATE SEQUENCE {}",
    ObjectKind.ROUTINE: "CREATE FUNCTION {}(one int) RETURNS int LANGUAGE sql RETURN one",
}

#: Everything that a role holds in the database: (object, column, privilege, whether it may grant it).
_HELD = """
SELECT held.of, held.part, a.privilege_type, a.is_grantable, a.grantee::regrole::text AS grantee
FROM (
    SELECT 'database' AS of, '' AS part, datacl AS acl FROM pg_database WHERE datname = current_database()
    UNION ALL SELECT nspname, '', nspacl FROM pg_namespace
    UNION ALL SELECT oid::regclass::text, '', relacl FROM pg_class
    UNION ALL SELECT attrelid::regclass::text, attname, attacl FROM pg_attribute WHERE attacl IS NOT NULL
    UNION ALL SELECT oid::regproc::text, '', proacl FROM pg_proc
    UNION ALL SELECT defaclobjtype::text || ' in ' || defaclnamespace::regnamespace, '', defaclacl FROM pg_default_acl
) AS held, aclexplode(held.acl) AS a
WHERE {}
"""
_FOR_ROLES = _HELD.format("a.grantee <> 0")
_FOR_PUBLIC = _HELD.format("a.grantee = 0")


#: Object, column and privilege.
ObjectPrivilege = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PrivilegeRow:
    """One role and its declaration. `held`: the privileges that it then has (object, column, privilege). `words` report
    its `drifts`. `by_pattern`: its objects are declared by pattern.
    """

    name: str
    declared: Json
    held: frozenset[ObjectPrivilege] = frozenset()
    objects: tuple[tuple[ObjectKind, str], ...] = ()
    drifts: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    since: int = 0
    has_events: bool = True
    by_pattern: bool = False


@dataclass(slots=True)
class _Drifts:
    """Statements about one role `$`, and the words that report them."""

    statements: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def revoke(self, privilege: str, on: str, told: str) -> None:
        self.statements.append(f"REVOKE {privilege} ON {on} FROM $")
        self.words.append(f"{told} was revoked")

    def grant(self, privilege: str, on: str, told: str) -> None:
        self.statements.append(f"GRANT {privilege} ON {on} TO $")
        self.words.append(f"{told} was granted")

    def add_option(self, privilege: str, on: str, told: str) -> None:
        self.statements.append(f"GRANT {privilege} ON {on} TO $ WITH GRANT OPTION")
        self.words.append(f"grant option for {told} was granted")


def _in_sql(kind: ObjectKind, name: str) -> str:
    return f"{_GRANTED_AS.get(kind, '')} {name}".strip()


def _in_words(kind: ObjectKind, name: str) -> str:
    return f"{_WORDS.get(kind, kind.value.lower())} {name}{'(integer)' if kind is ObjectKind.ROUTINE else ''}"


def _other(kind: ObjectKind, *taken: str) -> str | None:
    """Returns a privilege on this kind, other than these, that every major version has."""
    return next((one for one in DECLARABLE[kind] if one not in (*taken, "MAINTAIN")), None)


def of_names(number: int, kind: ObjectKind, privilege: str, *, by_pattern: bool) -> PrivilegeRow:
    """One privilege on three objects. It is revoked on the first, gets the grant option on the second, and is granted
    on the third, which is not declared. Other privileges are granted, too.
    """
    name = f"{kind.value.lower()}_{privilege.lower()}_{'pattern' if by_pattern else 'name'}"
    first, second, third = (f"o{number}_{ending}" for ending in ("first", "second", "x"))
    drifts = _Drifts()
    drifts.revoke(privilege, _in_sql(kind, f"app.{first}"), f"{privilege} on {_in_words(kind, f'app.{first}')}")
    on_second = _in_sql(kind, f"app.{second}"), f"{privilege} on {_in_words(kind, f'app.{second}')}"
    drifts.add_option(privilege, *on_second)
    on_third = _in_sql(kind, f"app.{third}"), f"{privilege} on {_in_words(kind, f'app.{third}')}"
    drifts.grant(privilege, *on_third)
    extra = _other(kind, privilege)
    if extra is not None:
        drifts.grant(extra, _in_sql(kind, f"app.{first}"), f"{extra} on {_in_words(kind, f'app.{first}')}")
    if kind in TABLE_KINDS:
        column = next(one for one in sorted(COLUMN_PRIVILEGES) if one not in (privilege, extra))
        drifts.grant(f"{column} (id)", f"app.{second}", f"{column} on column app.{second}.id")
    names = [f"o{number}_*t", f"o{number}_secon?"] if by_pattern else [first, second]
    item = {"kind": kind.value, "schema": "app", "names": names, "privileges": [privilege]}
    return PrivilegeRow(
        name,
        {"objects": [item]},
        frozenset((f"app.{one}", "", privilege) for one in (first, second)),
        tuple((kind, one) for one in (first, second, third)),
        tuple(drifts.statements),
        tuple(drifts.words),
        since=17 if privilege == "MAINTAIN" else 0,
        by_pattern=by_pattern,
    )


def of_columns(number: int, privilege: str) -> PrivilegeRow:
    """One privilege on a column."""
    table = f"o{number}_columns"
    drifts = _Drifts()
    drifts.revoke(f"{privilege} (id)", f"app.{table}", f"{privilege} on column app.{table}.id")
    drifts.grant(f"{privilege} (name)", f"app.{table}", f"{privilege} on column app.{table}.name")
    drifts.grant("TRUNCATE", f"app.{table}", f"TRUNCATE on table app.{table}")
    other = f"{table}_other"
    drifts.add_option(f"{privilege} (id)", f"app.{other}", f"{privilege} on column app.{other}.id")
    item = {
        "kind": "Table",
        "schema": "app",
        "names": [table, other],
        "columns": ["id"],
        "privileges": [privilege],
    }
    objects = ((ObjectKind.TABLE, table), (ObjectKind.TABLE, other))
    name = f"column_{privilege.lower()}"
    held = frozenset((f"app.{one}", "id", privilege) for one in (table, other))
    return PrivilegeRow(name, {"objects": [item]}, held, objects, tuple(drifts.statements), tuple(drifts.words))


def of_access(number: int, access: Access, kind: ObjectKind, privilege: str) -> PrivilegeRow:
    """A privilege that an access bundle gives, in a schema by name or by pattern."""
    schema, name = f"s{number}", f"access_{access.value.lower()}_{kind.value.lower()}_{privilege.lower()}"
    drifts = _Drifts()
    objects: tuple[tuple[ObjectKind, str], ...] = ()
    if kind is ObjectKind.SCHEMA:
        on, declared = (f"SCHEMA {schema}", f"schema {schema}"), schema
    else:
        on, declared = (_in_sql(kind, f"{schema}.it"), _in_words(kind, f"{schema}.it")), f"{schema[:-1]}?"
        objects = ((kind, f"{schema}.it"),)
    drifts.revoke(privilege, on[0], f"{privilege} on {on[1]}")
    extra = _other(kind, *ACCESS[access][kind])
    if extra is not None:
        drifts.grant(extra, on[0], f"{extra} on {on[1]}")
    schemas = [{"name": declared, "access": [access.value], "except": ["other_*"]}]
    held = _of_schema(schema, access) | {(one, "", given) for of, one in objects for given in ACCESS[access][of]}
    return PrivilegeRow(name, {"schemas": schemas}, held, objects, tuple(drifts.statements), tuple(drifts.words))


def _of_schema(schema: str, access: Access) -> frozenset[ObjectPrivilege]:
    return frozenset((schema, "", privilege) for privilege in ACCESS[access][ObjectKind.SCHEMA])


def of_schema_option(number: int, access: Access) -> PrivilegeRow:
    """The grant option for a schema."""
    drifts = _Drifts()
    (privilege,) = ACCESS[access][ObjectKind.SCHEMA]
    drifts.add_option(privilege, f"SCHEMA s{number}", f"{privilege} on schema s{number}")
    schemas = [{"name": f"s{number}", "access": [access.value]}]
    name = f"option_schema_{access.value.lower()}"
    held = _of_schema(f"s{number}", access)
    return PrivilegeRow(name, {"schemas": schemas}, held, (), tuple(drifts.statements), tuple(drifts.words))


def of_database_option(privilege: str) -> PrivilegeRow:
    """The grant option for the database."""
    drifts = _Drifts()
    drifts.add_option(privilege, "DATABASE $database", f"{privilege} on database $database")
    name, declared = f"option_database_{privilege.lower()}", {"onDatabase": [privilege]}
    held = frozenset({("database", "", privilege)})
    return PrivilegeRow(name, declared, held, (), tuple(drifts.statements), tuple(drifts.words), has_events=False)


def of_database(privilege: str) -> PrivilegeRow:
    """A privilege on the database. Event triggers do not fire for such a GRANT."""
    drifts = _Drifts()
    extra = _other(ObjectKind.DATABASE, privilege)
    drifts.revoke(privilege, "DATABASE $database", f"{privilege} on database $database")
    drifts.grant(str(extra), "DATABASE $database", f"{extra} on database $database")
    name, declared = f"database_{privilege.lower()}", {"onDatabase": [privilege]}
    held = frozenset({("database", "", privilege)})
    return PrivilegeRow(name, declared, held, (), tuple(drifts.statements), tuple(drifts.words), has_events=False)


#: Kinds in pg_default_acl.
_DEFAULTS = (("r", ObjectKind.TABLE), ("S", ObjectKind.SEQUENCE), ("f", ObjectKind.ROUTINE))


def of_defaults(kind: str, privilege: str, extra: str) -> PrivilegeRow:
    """Default privileges of a creator: missing and undeclared ones in one schema, the grant option in another."""
    schema = f"defaults_{kind.lower()}"
    access = "Execute" if kind == "FUNCTIONS" else "Read"
    change = f"ALTER DEFAULT PRIVILEGES FOR ROLE $owner IN SCHEMA {schema}"
    drifts = [f"{change} REVOKE {privilege} ON {kind} FROM $"]
    drifts += [f"{change} GRANT {extra} ON {kind} TO $"] if extra else []
    drifts.append(f"{change}_option GRANT {privilege} ON {kind} TO $ WITH GRANT OPTION")
    names = (schema, f"{schema}_option")
    declared = {"schemas": [{"name": name, "access": [access]} for name in names], "createdBy": ["$owner"]}
    held = frozenset(
        (of, "", privilege)
        for name in names
        for of, kind in ((name, ObjectKind.SCHEMA), *((f"{one} in {name}", kind) for one, kind in _DEFAULTS))
        for privilege in ACCESS[Access(access)].get(kind, ())
    )
    return PrivilegeRow(schema, declared, held, (), tuple(drifts), has_events=False)


def make_rows() -> Iterator[PrivilegeRow]:
    numbers = iter(range(1000, 2000))  # of the same length: a pattern must not match another row's objects
    for kind in NAMED_KINDS:
        for privilege in DECLARABLE[kind]:
            for by_pattern in (False, True):
                yield of_names(next(numbers), kind, privilege, by_pattern=by_pattern)
    for privilege in sorted(COLUMN_PRIVILEGES):
        yield of_columns(next(numbers), privilege)
    schemas = iter(range(1000, 2000, 10))  # the last digit is a pattern
    for access in Access:
        for kind, privileges in sorted(ACCESS[access].items()):
            for privilege in sorted(privileges):
                yield of_access(next(schemas), access, kind, privilege)
        yield of_schema_option(next(schemas), access)
    for privilege in DECLARABLE[ObjectKind.DATABASE]:
        yield of_database(privilege)
        yield of_database_option(privilege)
    yield of_defaults("TABLES", "SELECT", "INSERT")
    yield of_defaults("SEQUENCES", "SELECT", "USAGE")
    yield of_defaults("FUNCTIONS", "EXECUTE", "")


ROWS = tuple(make_rows())


@dataclass(frozen=True, slots=True)
class TablePlace:
    """One mode: a database in which all rows have drifted and been repaired."""

    kube: Kube
    mode: str
    name: str
    hand: Connection
    version: int
    rows: tuple[PrivilegeRow, ...]
    before: dict[str, set[tuple[Any, ...]]]
    after: dict[str, set[tuple[Any, ...]]]
    objects: dict[str, Json]

    def role(self, row: str) -> str:
        return f"{self.name}_{row}"

    def fill(self, value: Any, row: str) -> Any:
        match value:
            case str():
                text = value.replace("$owner", f"{self.name}_owner").replace("$database", self.name)
                return text.replace("$", self.role(row))
            case dict():
                return {key: self.fill(item, row) for key, item in value.items()}
            case list():
                return [self.fill(item, row) for item in value]
            case _:
                return value

    async def held(self) -> dict[str, set[tuple[Any, ...]]]:
        """Returns the privileges of each row's role."""
        found: dict[str, set[tuple[Any, ...]]] = {row.name: set() for row in self.rows}
        for *privilege, grantee in await self.hand.fetch(_FOR_ROLES):
            found.get(grantee.removeprefix(f"{self.name}_"), set()).add(tuple(privilege))
        return found

    async def declare(self, row: PrivilegeRow) -> None:
        privileges = [{"database": self.name, **self.fill(row.declared, row.name)}]
        await self.kube.apply(_object_name(row.name), name=self.role(row.name), privileges=privileges)

    async def drift(self, row: PrivilegeRow) -> None:
        """Runs the row's drifts in one transaction."""
        await self.hand.execute("; ".join(self.fill(one, row.name) for one in row.drifts))


def _object_name(row: str) -> str:
    return row.replace("_", "-")


async def _make_objects(place: TablePlace) -> None:
    """Creates the objects of all rows, owned by a role of the namespace."""
    hand, owner = place.hand, f"{place.name}_owner"
    await place.kube.apply("owner", name=owner)
    await place.kube.wait_ready("owner")
    await hand.execute("CREATE FOREIGN DATA WRAPPER waters; CREATE SERVER lake FOREIGN DATA WRAPPER waters")
    await hand.execute(f"GRANT USAGE ON FOREIGN SERVER lake TO {owner}; ALTER DATABASE {place.name} OWNER TO {owner}")
    await hand.execute(f"SET ROLE {owner}; CREATE SCHEMA app")
    schemas = {item["name"] for row in place.rows for item in row.declared.get("schemas", ())}
    for schema in sorted(schemas):
        await hand.execute(f"CREATE SCHEMA {schema.replace('?', '0')}")
    for row in place.rows:
        for kind, name in row.objects:
            await hand.execute(_CREATE[kind].format(name if "." in name else f"app.{name}"))
    await hand.execute("RESET ROLE")


MODES = ("Events", "Poll")


def is_in(mode: str, row: PrivilegeRow) -> bool:
    """Tells whether a row is tried in this mode: which objects a pattern selects does not depend on it."""
    return mode == "Events" or not row.by_pattern


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=MODES)
async def place(
    request: pytest.FixtureRequest,
    api_server: ApiServer,
    servers: Servers,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[TablePlace]:
    async with servers.run() as postgres:
        kube, name = await make_kube(api_server), f"n{secrets.token_hex(3)}"
        home = await asyncpg.connect(postgres.dsn())
        await home.execute(f"CREATE DATABASE {name}")
        hand = await asyncpg.connect(postgres.dsn(database=name))
        rows = tuple(row for row in ROWS if row.since <= servers.version and is_in(request.param, row))
        made = TablePlace(kube, request.param, name, hand, servers.version, rows, {}, {}, {})
        folder = tmp_path_factory.mktemp("privilege-table")
        environment = {"PGROLE_DATABASES_DETECTION": request.param, "PGROLE_POLL_INTERVAL": "0.2s"}
        controller = Controller(api_server, postgres.dsn(), folder, "--namespace", kube.namespace, **environment)
        async with running(controller):
            await _drift_all(made)
            yield made
        await hand.close()
        await home.close()
        await remove(kube)


async def _drift_all(place: TablePlace) -> None:
    await _make_objects(place)
    for row in place.rows:
        await place.declare(row)
    await place.kube.wait_all_ready(SECONDS)
    place.before.update(await place.held())
    await place.hand.execute("GRANT SELECT ON app.o1000_first TO PUBLIC; GRANT USAGE ON SCHEMA app TO PUBLIC")
    for row in place.rows:
        await place.drift(row)

    async def is_set_back() -> bool:
        return await place.held() == place.before

    await reached(is_set_back, SECONDS, every=0.2)  # each row's test reports what is left
    names = {_object_name(row.name) for row in place.rows}

    def is_told(obj: Json) -> bool:
        return obj["metadata"]["name"] not in names or (is_ready(obj) and obj["status"]["driftCount"] > 0)

    await reached(lambda: _are_all(place.kube, is_told), SECONDS, every=0.2)
    place.after.update(await place.held())
    place.objects.update({obj["metadata"]["name"]: obj for obj in await place.kube.objects()})


async def _are_all(kube: Kube, true: Any) -> bool:
    return all(true(obj) for obj in await kube.objects())


def test_the_rows_cover_every_declarable_privilege() -> None:
    items = [row.declared["objects"][0] for row in ROWS if "objects" in row.declared]
    named = {(item["kind"], *item["privileges"]) for item in items}
    assert named == {(kind.value, privilege) for kind in NAMED_KINDS for privilege in DECLARABLE[kind]}
    rows = {key for row in ROWS for key in row.declared} | {"database", "unmanaged"}
    assert rows == {info.alias or name for name, info in DatabasePrivilegesSpec.model_fields.items()}
    assert len({row.name for row in ROWS}) == len(ROWS)


def _parameter(mode: str, row: PrivilegeRow) -> Any:
    marks = [pytest.mark.since(row.since, row.name)] if row.since else []
    return pytest.param(mode, row, id=f"{mode}-{row.name}", marks=marks)


PARAMETERS = [_parameter(mode, row) for mode in MODES for row in ROWS if is_in(mode, row)]


@pytest.mark.parametrize(("place", "row"), PARAMETERS, indirect=["place"], scope="module")
async def test_every_drift_is_repaired_and_reported(place: TablePlace, row: PrivilegeRow) -> None:
    assert place.before[row.name] == {(*one, False) for one in row.held}, "what was granted at first"
    assert place.after[row.name] == place.before[row.name]
    status = place.objects[_object_name(row.name)]["status"]
    assert is_ready(place.objects[_object_name(row.name)]), status
    entries = [status["lastDrift"], *status.get("driftHistory", ())]
    assert all(entry["corrected"] and entry["fields"] == ["privileges"] for entry in entries)
    assert all(entry["database"] == place.name for entry in entries)
    words = {place.fill(one, row.name) for one in row.words}
    told = set(chain.from_iterable(entry["details"] for entry in entries))
    assert words <= told if words else told, json.dumps(status)
    if place.mode == "Events" and row.has_events:
        assert {(entry["by"]["login"], entry["by"]["proof"]) for entry in entries} == {("postgres", "Transaction")}
        assert status["driftCount"] == 1
        assert [entry["count"] for entry in status["driftHistory"]] == [len(row.drifts)]


async def test_only_mode_events_installs_event_triggers(place: TablePlace) -> None:
    found = await place.hand.fetchval("SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgrole%'")
    assert (found > 0) is (place.mode == "Events")


async def test_grants_to_public_stay(place: TablePlace) -> None:
    held = {tuple(one)[:3] for one in await place.hand.fetch(_FOR_PUBLIC)}
    assert {("app.o1000_first", "", "SELECT"), ("app", "", "USAGE"), ("database", "", "CONNECT")} <= held


#: Kinds that cannot be declared: the words for an object, and the statements that create it and grant on it. In two
#: halves, since status names five at most.
UNDECLARED = {
    "undeclared_one": (
        ("type app.mood", "CREATE TYPE app.mood AS ENUM ('good')", "GRANT USAGE ON TYPE app.mood TO $"),
        ("type app.amount", "CREATE DOMAIN app.amount AS int", "GRANT USAGE ON DOMAIN app.amount TO $"),
        ("large object 4711", "SELECT lo_create(4711)", "GRANT SELECT ON LARGE OBJECT 4711 TO $"),
    ),
    "undeclared_two": (
        (
            "language tongue",
            "CREATE TRUSTED LANGUAGE tongue HANDLER plpgsql_call_handler",
            "GRANT USAGE ON LANGUAGE tongue TO $",
        ),
        ("foreign data wrapper waters", "", "GRANT USAGE ON FOREIGN DATA WRAPPER waters TO $"),
        ("foreign server lake", "", "GRANT USAGE ON FOREIGN SERVER lake TO $"),
    ),
}


@pytest.mark.parametrize("name", UNDECLARED)
async def test_grants_on_undeclarable_kinds_are_reported_and_not_revoked(place: TablePlace, name: str) -> None:
    await place.declare(PrivilegeRow(name, {"onDatabase": ["CONNECT"]}))
    await place.kube.wait_ready(_object_name(name))
    for _, create, grant in UNDECLARED[name]:
        if create:
            await place.hand.execute(create)
        await place.hand.execute(place.fill(grant, name))
    words = [told for told, _, _ in UNDECLARED[name]]
    await place.kube.wait_for(
        _object_name(name),
        lambda obj: says(obj, "DriftReported", "revoke those that are not wanted", *words),
        f"tells of {words}",
    )
    held = await place.hand.fetchval(
        "SELECT count(*) FROM pg_shdepend WHERE refobjid = to_regrole($1) AND deptype = 'a'"
        " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
        place.role(name),
    )
    assert held == len(words)
