"""Whether privileges are as declared, by specs, policies and PostgreSQL's catalogs alone: nothing of the controller is
used.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import asyncpg

from pgrole_controller.postgres.connection import Connection
from tests.acceptance.world import Json

_WRITTEN = ("SELECT", "INSERT", "UPDATE", "DELETE")
_ACCESS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Read": {"Table": ("SELECT",), "Sequence": ("SELECT",)},
    "Write": {"Table": _WRITTEN, "Sequence": ("SELECT", "USAGE", "UPDATE")},
    "Execute": {"Routine": ("EXECUTE",)},
}
#: Kinds that Table includes.
_TABLES = ("Table", "View", "MaterializedView")
_DEFAULT_TYPES = {"Table": "r", "Sequence": "S", "Routine": "f"}
#: They need exact names on objects of others.
_GUARDED = ("TRIGGER", "REFERENCES", "CREATE")
_KIND = "CASE c.relkind WHEN 'v' THEN 'View' WHEN 'm' THEN 'MaterializedView' WHEN 'S' THEN 'Sequence' ELSE 'Table' END"
_IS_MEMBER = (
    "EXISTS (SELECT FROM pg_depend AS m WHERE m.classid = {} AND m.objid = {} AND m.deptype = 'e') AS extension"
)
_OBJECTS = f"""
SELECT {_KIND} AS kind, n.nspname AS schema, c.relname AS name, pg_get_userbyid(c.relowner) AS owner,
    ARRAY (SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped) AS columns,
    {_IS_MEMBER.format("'pg_class'::regclass", "c.oid")}
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND n.nspname !~ '^(pg_|pgrole$)'
UNION ALL
SELECT 'Routine', n.nspname, p.proname, pg_get_userbyid(p.proowner), NULL,
    {_IS_MEMBER.format("'pg_proc'::regclass", "p.oid")}
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE p.oid >= 16384 AND n.nspname !~ '^(pg_|pgrole$)'
UNION ALL
SELECT 'Schema', '', n.nspname, pg_get_userbyid(n.nspowner), NULL, false
FROM pg_namespace AS n WHERE n.nspname !~ '^(pg_|pgrole$|information_schema$)'
UNION ALL
SELECT 'Database', '', datname, pg_get_userbyid(datdba), NULL, false FROM pg_database WHERE datname = current_database()
UNION ALL
SELECT 'Role', '', rolname, rolname, NULL, false FROM pg_roles
"""
_HELD = f"""
WITH listed AS (
    SELECT {_KIND} AS kind, n.nspname AS schema, c.relname AS name, '' AS part, c.relowner AS owner, c.relacl AS acl
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    UNION ALL
    SELECT 'Table', n.nspname, c.relname, a.attname, c.relowner, a.attacl
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE NOT a.attisdropped
    UNION ALL
    SELECT 'Routine', n.nspname, p.proname, '', p.proowner, p.proacl
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    UNION ALL
    SELECT 'Schema', '', n.nspname, '', n.nspowner, n.nspacl FROM pg_namespace AS n
    UNION ALL
    SELECT 'Database', '', datname, '', datdba, datacl FROM pg_database WHERE datname = current_database()
    UNION ALL
    SELECT 'Default', coalesce(n.nspname, ''), d.defaclobjtype::text || ' of ' || pg_get_userbyid(d.defaclrole), '',
        d.defaclrole, d.defaclacl
    FROM pg_default_acl AS d LEFT JOIN pg_namespace AS n ON n.oid = d.defaclnamespace
    WHERE d.defaclnamespace = 0 OR n.oid IS NOT NULL -- some outlive their schema
)
SELECT DISTINCT kind, schema, name, part, e.privilege_type || CASE WHEN e.is_grantable THEN '*' ELSE '' END AS privilege
FROM listed, aclexplode(acl) AS e, pg_roles AS r
WHERE r.oid = e.grantee AND r.rolname = $1 AND e.grantee <> owner
"""


class HeldPrivilege(NamedTuple):
    """A privilege of one role, with a star if the role may grant it. `column` is empty for a whole object.

    Default privileges have the kind Default, and a type of pg_default_acl with the creator as name.
    """

    kind: str
    schema: str
    name: str
    column: str
    privilege: str


@dataclass(frozen=True, slots=True)
class PrivilegeRules:
    """What a policy allows the PgRoles of one namespace to declare. `owned`: the roles that these own.

    Where exact names decide, and for creators of others, the answer is that it is not allowed, which may be wrong.
    """

    policy: Json
    owned: frozenset[str]

    def allow_database(self, database: str) -> bool:
        return _matches(database, self.policy["databases"]["matchNames"])

    def allow(self, database: str, one: HeldPrivilege, owner: str) -> bool:
        rules = self.policy["allow"].get("privileges")
        if owner not in self.owned and (rules is None or one.kind == "Default" or one.privilege in _GUARDED):
            return False
        if rules is None:
            return True
        kind = one.kind
        if kind == "Default":
            kind = next(name for name, letter in _DEFAULT_TYPES.items() if letter == one.name[0])
        return any(
            _matches(database, rule.get("databases", ["*"]))
            and _matches(one.name if kind == "Schema" else one.schema, rule.get("schemas", ["*"]))
            and (kind in rule.get("kinds", [kind]) or (kind in _TABLES and "Table" in rule["kinds"]))
            and one.privilege in rule.get("privileges", [one.privilege])
            and _matches(owner, rule.get("ownedBy", ["*"]))
            for rule in rules
        )


@dataclass(frozen=True, slots=True)
class PrivilegeComparison:
    """`extra`: held, but not declared. `missing`: declared and allowed, but not held. `denied`: the policy may deny
    something that is declared.
    """

    extra: list[HeldPrivilege]
    missing: list[HeldPrivilege]
    denied: bool

    def __bool__(self) -> bool:
        return bool(self.extra or self.missing)


async def compare_privileges(
    connection: Connection, database: str, role: str, declared: Json, rules: PrivilegeRules
) -> PrivilegeComparison:
    """Compares what a role holds in this database with the item of `spec.privileges` for it."""
    if not rules.allow_database(database):
        return PrivilegeComparison([], [], denied=True)
    owners = dict(_expected(declared, role, await connection.fetch(_OBJECTS)))
    ignored = declared.get("unmanaged", ())
    wanted = {one for one in owners if not _is_ignored(one, ignored)}
    allowed = {one for one in wanted if rules.allow(database, one, owners[one])}
    held = {HeldPrivilege(*row) for row in await connection.fetch(_HELD, role)}
    kept = wanted - {one for one in wanted - allowed if one.kind == "Default"}  # these would extend to new objects
    return PrivilegeComparison(
        sorted(one for one in held - kept if not _is_ignored(one, ignored) and not _is_covered(one, wanted)),
        sorted(one for one in allowed - held if not _is_covered(one, allowed)),
        denied=any(not rules.allow(database, one, owner) for one, owner in owners.items())
        or not rules.owned.issuperset(declared.get("createdBy", ())),
    )


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _is_ignored(one: HeldPrivilege, schemas: Iterable[str]) -> bool:
    return _matches(one.name if one.kind == "Schema" else one.schema, schemas)


def _is_covered(one: HeldPrivilege, wanted: set[HeldPrivilege]) -> bool:
    """A privilege on a column that is declared for the whole table need not be granted as well."""
    return bool(one.column) and one._replace(column="") in wanted


def _expected(declared: Json, role: str, objects: Iterable[asyncpg.Record]) -> Iterator[tuple[HeldPrivilege, str]]:
    """Yields each declared privilege, and the owner of its object."""
    for each in objects:
        if each["owner"] == role:
            continue
        kind, schema, name, owner = each["kind"], each["schema"], each["name"], each["owner"]
        privileges: set[str] = set()
        if kind == "Role" and name in declared.get("createdBy", ()):
            schemas = {one["name"] for one in objects if one["kind"] == "Schema"}
            yield from ((one, owner) for one in _expected_defaults(declared, name, schemas))
        if kind == "Database":
            privileges.update(declared.get("onDatabase", ()))
        for part in declared.get("schemas", ()):
            if kind == "Schema" and _matches(name, [part["name"]]):
                privileges.add("USAGE")
            elif (
                not each["extension"]
                and _matches(schema, [part["name"]])
                and not _matches(name, part.get("except", ()))
            ):
                some = "Table" if kind in _TABLES else kind
                privileges.update(*(_ACCESS[access].get(some, ()) for access in part["access"]))
        for part in declared.get("objects", ()):
            kinds = _TABLES if part["kind"] == "Table" else (part["kind"],)
            names = [one.partition("(")[0] for one in part["names"]]  # no function is overloaded
            if kind not in kinds or not _matches(schema, [part["schema"]]) or not _matches(name, names):
                continue
            if each["extension"] and not (schema == part["schema"] and name in names):
                continue
            if "columns" not in part:
                privileges.update(part["privileges"])
                continue
            for column in set(part["columns"]) & set(each["columns"]):
                for privilege in part["privileges"]:
                    yield HeldPrivilege("Table", schema, name, column, privilege), owner
        yield from ((HeldPrivilege(kind, schema, name, "", privilege), owner) for privilege in privileges)


def _expected_defaults(declared: Json, creator: str, schemas: set[str]) -> Iterator[HeldPrivilege]:
    for part in declared.get("schemas", ()):
        if part["name"] not in schemas or "except" in part:
            continue
        for access in part["access"]:
            for kind, letter in _DEFAULT_TYPES.items():
                for privilege in _ACCESS[access].get(kind, ()):
                    yield HeldPrivilege("Default", part["name"], f"{letter} of {creator}", "", privilege)
