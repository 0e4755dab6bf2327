"""Whether roles are as declared, by their specs and PostgreSQL's catalogs alone: nothing of the controller is used."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import asyncpg

from pgrole_controller.postgres.connection import Connection
from tests.acceptance.world import Json, condition, is_ready

TABLE_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
COLUMN_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "REFERENCES")

_WRITTEN = ("SELECT", "INSERT", "UPDATE", "DELETE")
_ACCESS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Read": {"Table": ("SELECT",), "View": ("SELECT",), "Sequence": ("SELECT",)},
    "Write": {"Table": _WRITTEN, "View": _WRITTEN, "Sequence": ("SELECT", "USAGE", "UPDATE")},
    "Execute": {"Routine": ("EXECUTE",)},
}
_KIND = "CASE c.relkind WHEN 'v' THEN 'View' WHEN 'S' THEN 'Sequence' ELSE 'Table' END"
_OBJECTS = f"""
SELECT {_KIND} AS kind, n.nspname AS schema, c.relname AS name, pg_get_userbyid(c.relowner) AS owner,
    ARRAY (SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND NOT attisdropped) AS columns
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid >= 16384 AND c.relkind IN ('r', 'v', 'S') AND n.nspname !~ '^(pg_|pgrole$)'
UNION ALL
SELECT 'Routine', n.nspname, p.proname, pg_get_userbyid(p.proowner), NULL
FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE p.oid >= 16384 AND n.nspname !~ '^(pg_|pgrole$)'
UNION ALL
SELECT 'Schema', '', n.nspname, pg_get_userbyid(n.nspowner), NULL
FROM pg_namespace AS n WHERE n.nspname !~ '^(pg_|pgrole$|information_schema$)'
UNION ALL
SELECT 'Database', '', datname, pg_get_userbyid(datdba), NULL FROM pg_database WHERE datname = current_database()
"""
_HELD = f"""
WITH listed AS (
    SELECT {_KIND} AS kind, n.nspname AS schema, c.relname AS name, '' AS part, c.relowner AS owner, c.relacl AS acl
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    UNION ALL
    SELECT 'Table', n.nspname, c.relname, a.attname, c.relowner, a.attacl
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
    UNION ALL
    SELECT 'Routine', n.nspname, p.proname, '', p.proowner, p.proacl
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    UNION ALL
    SELECT 'Schema', '', n.nspname, '', n.nspowner, n.nspacl FROM pg_namespace AS n
    UNION ALL
    SELECT 'Database', '', datname, '', datdba, datacl FROM pg_database WHERE datname = current_database()
    UNION ALL
    SELECT 'Default', coalesce(n.nspname, ''), d.defaclobjtype::text, '', 0, d.defaclacl
    FROM pg_default_acl AS d LEFT JOIN pg_namespace AS n ON n.oid = d.defaclnamespace
)
SELECT DISTINCT kind, schema, name, part, e.privilege_type || CASE WHEN e.is_grantable THEN '*' ELSE '' END AS privilege
FROM listed, aclexplode(acl) AS e, pg_roles AS r
WHERE r.oid = e.grantee AND r.rolname = $1 AND e.grantee <> owner
"""

_MEMBERSHIPS = """
SELECT DISTINCT g.rolname || CASE WHEN m.admin_option THEN '*' ELSE '' END AS name
FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid JOIN pg_roles AS r ON r.oid = m.member
WHERE r.rolname = $1
"""


class HeldPrivilege(NamedTuple):
    """A privilege of one role, with a star if the role may grant it. `column` is empty for a whole object."""

    kind: str
    schema: str
    name: str
    column: str
    privilege: str


async def compare_privileges(
    connection: Connection, role: str, declared: Json
) -> tuple[list[HeldPrivilege], list[HeldPrivilege]]:
    """Returns what a role holds in this database although it is not declared, and what it lacks.

    `declared`: the item of `spec.privileges` for this database.
    """
    wanted = _expected(declared, role, await connection.fetch(_OBJECTS))
    held = {HeldPrivilege(*row) for row in await connection.fetch(_HELD, role)}
    if declared.get("createdBy"):
        held = {one for one in held if one.kind != "Default"}
    ignored = declared.get("unmanaged", ())
    held, wanted = (
        {one for one in some if not _is_ignored(one, ignored) and not _is_covered(one, wanted)}
        for some in (held, wanted)
    )
    return sorted(held - wanted), sorted(wanted - held)


async def find_role_problems(home: Connection, role: str, spec: Json | None) -> list[str]:
    row = await home.fetchrow("SELECT * FROM pg_roles WHERE rolname = $1", role)
    if row is None or spec is None:
        return [] if row is None and spec is None else [f"role {role} exists: {row is not None}"]
    groups = {each["name"] for each in await home.fetch(_MEMBERSHIPS, role)}
    seen = (row["rolconnlimit"], row["rolcreatedb"], row["rolcreaterole"], groups)
    wanted = (spec["connectionLimit"], spec["createdb"], False, {each["role"] for each in spec["memberOf"]})
    return [] if seen == wanted else [f"role {role} is {seen} instead of {wanted}"]


def find_object_problems(objects: Iterable[Json], strict: Iterable[str]) -> list[str]:
    """An object whose database, table or column is missing may wait for it."""
    return [
        f"{obj['metadata']['name']}: {condition(obj, 'Ready')}"
        for obj in objects
        if "deletionTimestamp" in obj["metadata"]
        or (
            obj["metadata"]["name"] in strict
            and not is_ready(obj)
            and condition(obj, "Ready").get("reason") != "PrivilegePending"
        )
    ]


def _matches(text: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _is_ignored(one: HeldPrivilege, schemas: Iterable[str]) -> bool:
    return _matches(one.name if one.kind == "Schema" else one.schema, schemas)


def _is_covered(one: HeldPrivilege, wanted: set[HeldPrivilege]) -> bool:
    """A privilege on a column that is declared for the whole table need not be granted as well."""
    return bool(one.column) and one._replace(column="") in wanted


def _expected(declared: Json, role: str, objects: Iterable[asyncpg.Record]) -> set[HeldPrivilege]:
    found: set[HeldPrivilege] = set()
    for each in objects:
        if each["owner"] == role:
            continue
        kind, schema, name = each["kind"], each["schema"], each["name"]
        privileges: set[str] = set()
        if kind == "Database":
            privileges.update(declared.get("onDatabase", ()))
        for part in declared.get("schemas", ()):
            if kind == "Schema" and _matches(name, [part["name"]]):
                privileges.add("USAGE")
            elif _matches(schema, [part["name"]]) and not _matches(name, part.get("except", ())):
                privileges.update(*(_ACCESS[access].get(kind, ()) for access in part["access"]))
        for part in declared.get("objects", ()):
            kinds = ("Table", "View") if part["kind"] == "Table" else (part["kind"],)
            if kind not in kinds or not _matches(schema, [part["schema"]]) or not _matches(name, part["names"]):
                continue
            if "columns" not in part:
                privileges.update(part["privileges"])
                continue
            for column in set(part["columns"]) & set(each["columns"]):
                found |= {HeldPrivilege("Table", schema, name, column, privilege) for privilege in part["privileges"]}
        found |= {HeldPrivilege(kind, schema, name, "", privilege) for privilege in privileges}
    return found
