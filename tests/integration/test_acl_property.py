"""Whatever was granted before, one pass reaches the declarations and changes nothing else. A second plan is empty."""

import os
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from pgrole_controller.core.privileges.acl import (
    TABLE_KINDS,
    AclChange,
    DatabaseObject,
    DefaultAclChange,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
    SchemaAccess,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.request import Key
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.privileges.acl_apply import apply_acls
from pgrole_controller.postgres.privileges.acl_catalog import read_database, read_named_acls
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect
from tests.integration.acl_support import ROLES, AclDatabase, acl_database, anywhere, read_acls

SCHEMAS = ("app", "hr", "scratch")
MANAGED = ("reader", "writer")
PUBLIC = 0

_SETUP = "".join(
    f"""
    CREATE SCHEMA {schema} AUTHORIZATION {{owner}}; GRANT ALL ON SCHEMA {schema} TO {{heir}};
    GRANT USAGE ON SCHEMA {schema} TO {{delegate}}, {{reader}}, {{writer}};
    SET ROLE {{owner}};
    CREATE TABLE {schema}.one (id int, name text); CREATE TABLE {schema}.two (id int, name text);
    CREATE VIEW {schema}.view AS SELECT * FROM {schema}.one; CREATE SEQUENCE {schema}.seq;
    CREATE FUNCTION {schema}.fn(int, text[]) RETURNS int LANGUAGE plpgsql AS 'BEGIN END';
    RESET ROLE;
    """
    for schema in SCHEMAS
)
_TEARDOWN = (f"DROP SCHEMA IF EXISTS {', '.join(SCHEMAS)} CASCADE", *(f"DROP OWNED BY {{{role}}}" for role in ROLES))

_OF_TABLES = ("SELECT", "INSERT", "SELECT, UPDATE", "SELECT (id)", "UPDATE (id, name)", "ALL")
_TARGETS = [
    *(
        f"{privileges} ON {schema}.{name}"
        for privileges in _OF_TABLES
        for schema in SCHEMAS
        for name in ("one", "view")
    ),
    *(f"{privileges} ON SEQUENCE {schema}.seq" for privileges in ("USAGE", "SELECT") for schema in SCHEMAS),
    *(f"SELECT (last_value, ctid) ON {schema}.seq" for schema in SCHEMAS),
    *(f"EXECUTE ON FUNCTION {schema}.fn" for schema in SCHEMAS),
    *(f"USAGE ON SCHEMA {schema}" for schema in SCHEMAS),
    *(f"SELECT ON ALL TABLES IN SCHEMA {schema}" for schema in SCHEMAS),
]
_OWNED = [
    *(f"TABLE {schema}.{name}" for name in ("one", "two") for schema in SCHEMAS),
    *(f"{kind}.{name}" for kind, name in (("VIEW hr", "view"), ("SEQUENCE hr", "seq"), ("FUNCTION hr", "fn"))),
    *(f"SCHEMA {schema}" for schema in SCHEMAS),
]
_BY = ("RESET ROLE", *(f"SET ROLE {{{role}}}" for role in ("delegate", "reader", "writer", "owner")))
_TO = ("{reader}", "{writer}", "{delegate}", "{stranger}", "PUBLIC")
_DEFAULTS = ("SELECT ON TABLES", "INSERT, DELETE ON TABLES", "USAGE ON SEQUENCES", "EXECUTE ON FUNCTIONS")

#: Possible earlier events. Each statement runs on its own; one that is not permitted has no effect.
_EVENTS = st.one_of(
    st.builds(
        "{}; GRANT {} TO {}{}".format,
        st.sampled_from(_BY),
        st.sampled_from(_TARGETS),
        st.sampled_from(_TO),
        st.sampled_from(("", " WITH GRANT OPTION")),
    ),
    st.builds(
        "RESET ROLE; GRANT {0} TO {1} WITH GRANT OPTION; SET ROLE {1}; GRANT {0} TO {2}{3}".format,
        st.sampled_from(_TARGETS),
        st.sampled_from(("{delegate}", "{reader}", "{writer}")),
        st.sampled_from(("{reader}", "{writer}", "{stranger}", "PUBLIC")),
        st.sampled_from(("", " WITH GRANT OPTION")),
    ),
    st.builds("REVOKE {} FROM {}".format, st.sampled_from(_TARGETS), st.sampled_from(_TO)),
    st.builds(
        "ALTER {} OWNER TO {}".format,
        st.sampled_from(_OWNED),
        st.sampled_from(("{heir}", "{reader}", "{delegate}", "{owner}")),
    ),
    st.builds(
        "ALTER DEFAULT PRIVILEGES FOR ROLE {} {} GRANT {} TO {}{}".format,
        st.sampled_from(("{owner}", "{heir}")),
        st.sampled_from(("", "IN SCHEMA app", "IN SCHEMA scratch")),
        st.sampled_from(_DEFAULTS),
        st.sampled_from(_TO),
        st.sampled_from(("", " WITH GRANT OPTION")),
    ),
    st.builds(
        "ALTER DEFAULT PRIVILEGES FOR ROLE {} {} REVOKE {} FROM {}".format,
        st.sampled_from(("{owner}", "{heir}")),
        st.sampled_from(("", "IN SCHEMA app")),
        st.sampled_from(_DEFAULTS),
        st.sampled_from(_TO),
    ),
    st.builds("CREATE TABLE {}.late_{} (id int)".format, st.sampled_from(SCHEMAS), st.sampled_from("abc")),
    st.builds("ALTER EXTENSION plpgsql ADD TABLE {}.two".format, st.sampled_from(SCHEMAS)),
)

#: Not permitted, PUBLIC WITH GRANT OPTION, exists already, belongs to the extension already, others depend on it.
_NO_EFFECT = ("42501", "0LP01", "42P07", "55000", "2BP01")

_DECLARED = st.builds(
    DatabasePrivileges,
    database=st.just(""),
    on_database=st.sampled_from([frozenset[str](), frozenset({"CONNECT"}), frozenset({"TEMPORARY"})]),
    schemas=st.lists(
        st.builds(
            SchemaAccess,
            schema=st.sampled_from((*SCHEMAS, "*")),
            access=st.sets(st.sampled_from(list(Access)), min_size=1).map(frozenset),
            exceptions=st.sampled_from([(), ("one",)]),
        ),
        max_size=2,
    ).map(tuple),
    objects=st.lists(
        st.builds(
            ObjectPrivileges,
            kind=st.just(ObjectKind.TABLE),
            schema=st.sampled_from(SCHEMAS),
            names=st.sampled_from([("one",), ("two", "view")]),
            privileges=st.sets(st.sampled_from(("SELECT", "INSERT", "UPDATE")), min_size=1).map(frozenset),
            columns=st.sampled_from([(), ("id",), ("id", "name")]),
        )
        | st.builds(
            ObjectPrivileges,
            kind=st.just(ObjectKind.SEQUENCE),
            schema=st.sampled_from(SCHEMAS),
            names=st.sampled_from([("seq",), ("s*",)]),
            privileges=st.sets(st.sampled_from(("SELECT", "USAGE", "UPDATE")), min_size=1).map(frozenset),
        )
        | st.builds(
            ObjectPrivileges,
            kind=st.just(ObjectKind.ROUTINE),
            schema=st.sampled_from(SCHEMAS),
            names=st.sampled_from([("fn",), ("fn(int, text[])",), ("f*",)]),
            privileges=st.just(frozenset({"EXECUTE"})),
        ),
        max_size=4,
    ).map(tuple),
    created_by=st.sampled_from([(), ("{owner}",)]),
    unmanaged=st.sampled_from([(), ("scratch",), ("s*",)]),
)


@dataclass(frozen=True, slots=True)
class Held:
    """One ACL entry of any role."""

    object: ObjectId
    grantee: int
    grantor: int
    privilege: str
    grantable: bool
    column: str


@dataclass(frozen=True, slots=True)
class HeldByDefault:
    """One effective entry of the default privileges of a creator; in every schema if `schema` is empty."""

    creator: int
    schema: str
    type: str
    grantee: int
    privilege: str
    grantable: bool


_DEFAULTS_IN_EFFECT = """
SELECT d.*, a.grantee::bigint, a.privilege_type, a.is_grantable
FROM (
    SELECT defaclrole::bigint, nspname::text, defaclobjtype::text, defaclacl
    FROM pg_default_acl JOIN pg_namespace AS n ON n.oid = defaclnamespace
    UNION ALL
    SELECT r.oid::bigint, '', t::text, coalesce(defaclacl, acldefault(CASE t WHEN 'S' THEN 's' ELSE t END, r.oid))
    FROM unnest($1::oid[]) AS r (oid) CROSS JOIN unnest('{r,S,f,T,n}'::"char"[]) AS t
    LEFT JOIN pg_default_acl ON (defaclrole, defaclnamespace, defaclobjtype) = (r.oid, 0, t)
) AS d (creator, schema, type, acl), aclexplode(d.acl) AS a
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server) as made:
        yield made


async def _begin(db: AclDatabase, history: Iterable[str]) -> None:
    await db.run("RESET ROLE")
    for (name,) in await db.beside.fetch(
        "SELECT objid::regclass::text FROM pg_depend WHERE classid = 'pg_class'::regclass AND deptype = 'e'"
        " AND objid >= 16384"
    ):
        await db.beside.execute(f"ALTER EXTENSION plpgsql DROP TABLE {name}")
    for statement in (*_TEARDOWN, _SETUP):
        await db.run(statement)
    for event in history:
        try:
            await db.run(event)
        except asyncpg.PostgresError as error:
            if error.sqlstate not in _NO_EFFECT:
                raise
        finally:
            await db.beside.execute("RESET ROLE")


async def _everything(db: AclDatabase) -> dict[ObjectId, ObservedAcl]:
    grantees = [PUBLIC, *db.oids.values()]
    found = await read_acls(db.connection, grantees, anywhere)
    tables = [one.object.id.oid for one in found if one.object.kind in {*TABLE_KINDS, ObjectKind.SEQUENCE}]
    found += await read_named_acls(db.connection, grantees, tables, tables)
    return {one.object.id: one for one in found}


async def _defaults(db: AclDatabase) -> set[HeldByDefault]:
    rows = await db.beside.fetch(_DEFAULTS_IN_EFFECT, [*db.oids.values()])
    return {
        HeldByDefault(
            *(row[name] for name in ("creator", "schema", "type", "grantee", "privilege_type", "is_grantable"))
        )
        for row in rows
    }


def _entries(acls: Iterable[ObservedAcl]) -> set[Held]:
    return {
        Held(one.object.id, e.grantee, e.grantor, e.privilege, e.grantable, e.column)
        for one in acls
        for e in one.entries
    }


def _grantee(db: AclDatabase, role: str, database: str, declared: DatabasePrivileges) -> Grantee:
    declared = replace(declared, database=database, created_by=tuple(map(db.fill, declared.created_by)))
    return Grantee(
        key=Key("shop", role),
        uid=role,
        generation=1,
        role_name=db.name(role),
        oid=db.oids[role],
        declared={database: declared},
        policy=PrivilegePolicy(rules=(PrivilegeRule(),), databases=("*",)),
        owned=frozenset({db.oids["owner"]}),  # createdBy may name it
    )


async def _observe(db: AclDatabase) -> ObservedDatabase:
    creators = [db.name("owner")]
    return await read_database(db.connection, db.grantees(*MANAGED), creators, anywhere, lambda _: True)


async def _apply(db: AclDatabase, observed: ObservedDatabase, decisions: Iterable[PrivilegeDecision]) -> None:
    changes: dict[ObjectId, list[AclChange]] = defaultdict(list)
    defaults: list[DefaultAclChange] = []
    for decision in decisions:
        defaults += decision.default_changes
        for change in decision.changes:
            changes[change.object.id].append(change)
    repairs = [AclRepair(one, tuple(changes[one.object.id])) for one in observed.acls if one.object.id in changes]
    applied = await apply_acls(
        db.connection, repairs, defaults, db.grantees(*MANAGED), AclDialect(observed.facts.version)
    )
    assert not applied.errors, [error.message for error in applied.errors.values()]
    assert not applied.default_errors


def _wanted(declared: DatabasePrivileges, obj: DatabaseObject) -> set[tuple[str, str]]:
    """(column, privilege) as documented, implemented independently of the controller."""
    wanted: set[tuple[str, str]] = set()
    if obj.kind is ObjectKind.DATABASE:
        return {("", privilege) for privilege in declared.on_database}
    if obj.extension:
        return {
            (column, privilege)
            for one in declared.objects
            if (obj.schema, obj.kind in TABLE_KINDS) == (one.schema, True) and obj.name in one.names
            for column, privilege in product(one.columns or ("",), one.privileges)
        }
    tables, sequences = {"SELECT"}, {"SELECT"}
    for access in declared.schemas:
        if access.schema not in ("*", obj.schema) or (access.schema == "*" and obj.schema not in (*SCHEMAS, "public")):
            continue
        if obj.kind is ObjectKind.SCHEMA:
            wanted.add(("", "USAGE"))
        if obj.name in access.exceptions and obj.kind is not ObjectKind.SCHEMA:
            continue
        if Access.WRITE in access.access:
            tables, sequences = tables | {"INSERT", "UPDATE", "DELETE"}, sequences | {"USAGE", "UPDATE"}
        reads = Access.READ in access.access or Access.WRITE in access.access
        if reads and obj.kind in TABLE_KINDS:
            wanted |= {("", p) for p in (tables if Access.WRITE in access.access else {"SELECT"})}
        if reads and obj.kind is ObjectKind.SEQUENCE:
            wanted |= {("", p) for p in (sequences if Access.WRITE in access.access else {"SELECT"})}
        if Access.EXECUTE in access.access and obj.kind is ObjectKind.ROUTINE:
            wanted.add(("", "EXECUTE"))
    for named in declared.objects:
        names = {name.partition("(")[0] for name in named.names}
        kinds = TABLE_KINDS if named.kind is ObjectKind.TABLE else {named.kind}
        if named.schema == obj.schema and obj.kind in kinds and any(fnmatchcase(obj.name, name) for name in names):
            wanted |= set(product(named.columns or ("",), named.privileges))
    return wanted


def _is_unmanaged(declared: DatabasePrivileges, schema: str) -> bool:
    return schema == "scratch" and bool(declared.unmanaged)


def _default_privileges(declared: DatabasePrivileges) -> set[tuple[str, str, str]]:
    """(schema, type of object, privilege) for objects of the declared creators, as documented."""
    wanted: set[tuple[str, str, str]] = set()
    for access in declared.schemas if declared.created_by else ():
        if access.schema == "*" or access.exceptions:
            continue
        if Access.WRITE in access.access:
            wanted |= {(access.schema, "r", one) for one in ("SELECT", "INSERT", "UPDATE", "DELETE")}
            wanted |= {(access.schema, "S", one) for one in ("SELECT", "USAGE", "UPDATE")}
        if Access.READ in access.access:
            wanted |= {(access.schema, "r", "SELECT"), (access.schema, "S", "SELECT")}
        if Access.EXECUTE in access.access:
            wanted.add((access.schema, "f", "EXECUTE"))
    return wanted


async def _check(db: AclDatabase, history: list[str], declared: dict[str, DatabasePrivileges]) -> None:
    await _begin(db, history)
    before, defaults_before = await _everything(db), await _defaults(db)
    observed = await _observe(db)
    database = observed.facts.database
    grantees = {role: _grantee(db, role, database, one) for role, one in declared.items()}
    await _apply(db, observed, [decide_privileges(one, observed, "") for one in grantees.values()])

    after = await _everything(db)
    managed = {db.oids[role]: one for role, one in declared.items()}
    inside: set[tuple[int, ObjectId]] = set()
    for one in after.values():
        for oid, privileges in managed.items():
            if one.object.owner == oid:
                continue
            held = {(e.column, e.privilege) for e in one.entries if e.grantee == oid}
            wanted = _wanted(privileges, one.object)
            whole = {privilege for column, privilege in wanted if not column}
            needed = {(column, privilege) for column, privilege in wanted if not column or privilege not in whole}
            assert needed <= held, (one.object.label, held, wanted)
            if not _is_unmanaged(privileges, one.object.schema):
                inside.add((oid, one.object.id))
                assert held <= wanted, (one.object.label, held, wanted)
                assert not any(e.grantable for e in one.entries if e.grantee == oid), one.object.label
    _check_outside(before, after, managed, inside)
    _check_defaults(db, defaults_before, await _defaults(db), managed)

    again = await _observe(db)
    for grantee in grantees.values():
        for applied in ("", grantee.digest_of(database)):
            plan = decide_privileges(grantee, again, applied)
            assert (plan.changes, plan.default_changes, plan.drift) == ((), (), ())


def _check_outside(
    before: dict[ObjectId, ObservedAcl],
    after: dict[ObjectId, ObservedAcl],
    managed: dict[int, DatabasePrivileges],
    inside: set[tuple[int, ObjectId]],
) -> None:
    """Nothing is gained but what is declared, and outside of `inside` nothing is lost but what a managed role had
    granted, directly or through others.
    """
    old, new = _entries(before.values()), _entries(after.values())
    had = {replace(one, grantor=0, grantable=option) for one in old for option in (one.grantable, False)}
    for one in new - old:
        obj = after[one.object].object
        assert one.grantee in managed, one
        if replace(one, grantor=0) not in had:  # otherwise it is granted again, since its grantor lost the grant option
            assert one.grantee != obj.owner, one
            assert (one.column, one.privilege) in _wanted(managed[one.grantee], obj), one
    given = set(managed)
    while more := {one.grantee for one in old if one.grantor in given and one.grantee not in given}:
        given |= more
    lost = {one for one in old - new if (one.grantee, one.object) not in inside}
    assert all(one.grantor in given for one in lost), lost


def _check_defaults(
    db: AclDatabase,
    before: set[HeldByDefault],
    after: set[HeldByDefault],
    managed: dict[int, DatabasePrivileges],
) -> None:
    """Default privileges are exact for the managed roles, and stay for all others."""
    of_managed = {one for one in before | after if one.grantee in managed and one.grantee != one.creator}
    assert after - of_managed == before - of_managed
    for oid, declared in managed.items():
        held = {one for one in after & of_managed if one.grantee == oid}
        places = {(one.schema, one.type, one.privilege) for one in held if one.creator == db.oids["owner"]}
        wanted = _default_privileges(declared)
        assert wanted <= places, (held, wanted)
        for one in held - before:
            assert (one.schema, one.type, one.privilege) in wanted, one
        for one in held:
            if _is_unmanaged(declared, one.schema):
                continue
            assert one.creator == db.oids["owner"], one
            assert (one.schema, one.type, one.privilege) in wanted, one
            assert not one.grantable, one
        for one in before - after:
            assert one.grantee != oid or not _is_unmanaged(declared, one.schema), one


_NOTHING = DatabasePrivileges(database="")
_OWN_COLUMNS = {
    "history": [
        "GRANT UPDATE (id, name) ON hr.one TO {reader}",
        "ALTER TABLE hr.one OWNER TO {reader}",
        "GRANT UPDATE (id, name) ON hr.one TO {writer}",
    ],
    "reader": _NOTHING,
    "writer": _NOTHING,
}
_UNMANAGED_OPTIONS = {
    "history": [
        "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA scratch"
        " GRANT SELECT ON TABLES TO {reader} WITH GRANT OPTION",
        "GRANT SELECT ON scratch.one TO {reader} WITH GRANT OPTION",
    ],
    "reader": DatabasePrivileges(
        database="",
        schemas=(SchemaAccess("scratch", frozenset({Access.READ})),),
        created_by=("{owner}",),
        unmanaged=("scratch",),
    ),
    "writer": _NOTHING,
}

_COLUMNS_OF_A_SEQUENCE = {
    "history": [
        "GRANT SELECT (last_value), SELECT (ctid) ON app.seq TO {reader} WITH GRANT OPTION",
        "GRANT SELECT ON app.seq TO {writer}; GRANT SELECT (last_value) ON hr.seq TO {writer}",
    ],
    "reader": _NOTHING,
    "writer": replace(_NOTHING, schemas=(SchemaAccess("hr", frozenset({Access.READ})),)),
}

_COLUMNS_OF_A_FORMER_DELEGATE = {
    "history": [
        "GRANT UPDATE ON app.one TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};"
        "GRANT UPDATE (id, name) ON app.one TO {reader}, {writer}; RESET ROLE; REVOKE UPDATE ON app.one FROM {delegate}"
    ],
    "reader": _NOTHING,
    "writer": _NOTHING,
}

_OPTION_OF_A_MANAGED_ROLE = {
    "history": [
        "GRANT SELECT ON scratch.view TO {reader} WITH GRANT OPTION; SET ROLE {reader};"
        "GRANT SELECT ON scratch.view TO {writer} WITH GRANT OPTION",
    ],
    "reader": _NOTHING,
    "writer": replace(_NOTHING, unmanaged=("s*",)),
}

_OWNERS_OPTION_ON_COLUMNS = {
    "history": [
        "ALTER SEQUENCE hr.seq OWNER TO {delegate}",
        "GRANT SELECT (last_value, ctid) ON hr.seq TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};"
        "GRANT SELECT (last_value, ctid) ON hr.seq TO {reader}",
    ],
    "reader": _NOTHING,
    "writer": _NOTHING,
}

_CASES = given(history=st.lists(_EVENTS, min_size=4, max_size=14), reader=_DECLARED, writer=_DECLARED)
_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@_CASES
@example(**_OWN_COLUMNS)
@example(**_UNMANAGED_OPTIONS)
@example(**_OPTION_OF_A_MANAGED_ROLE)
@example(**_COLUMNS_OF_A_SEQUENCE)
@example(**_COLUMNS_OF_A_FORMER_DELEGATE)
@example(**_OWNERS_OPTION_ON_COLUMNS)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=_CHECKS,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
async def test_one_pass_reaches_any_declarations_after_any_history(
    db: AclDatabase, history: list[str], reader: DatabasePrivileges, writer: DatabasePrivileges
) -> None:
    await _check(db, history, {"reader": reader, "writer": writer})


@pytest.mark.slow
@_CASES
@settings(max_examples=int(os.environ.get("EXAMPLES", "30")), deadline=None, suppress_health_check=_CHECKS)
async def test_one_pass_reaches_the_declarations_after_many_random_histories(
    db: AclDatabase, history: list[str], reader: DatabasePrivileges, writer: DatabasePrivileges
) -> None:
    await _check(db, history, {"reader": reader, "writer": writer})
