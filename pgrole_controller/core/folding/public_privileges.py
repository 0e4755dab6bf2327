"""What PUBLIC holds in a database beyond PostgreSQL's defaults, in a few lines for people.

Every role has these privileges, and no PgRole declares them. Kinds that no PgRole can declare are left out: only some
of their objects are read.
"""

from collections import Counter

from pgrole_controller.core.privileges.acl import PUBLIC, SYSTEM_SCHEMAS, TABLE_KINDS, ObjectKind
from pgrole_controller.core.privileges.observed_database import ObservedDatabase

#: Maximum number of lines about one database.
_MOST_LINES = 10

_DEFAULTS = {ObjectKind.DATABASE: {"CONNECT", "TEMPORARY"}, ObjectKind.ROUTINE: {"EXECUTE"}}

_NOUNS = {
    **dict.fromkeys(TABLE_KINDS, "tables"),
    ObjectKind.SEQUENCE: "sequences",
    ObjectKind.ROUTINE: "routines",
    ObjectKind.SCHEMA: "",
    ObjectKind.DATABASE: "",
}


def describe_public(observed: ObservedDatabase) -> tuple[str, ...]:
    """Returns lines such as `PUBLIC has SELECT on 3 tables and sequences in schema app`."""
    counts = Counter[tuple[str, str, str]]()
    for acl in observed.acls:
        obj = acl.object
        if obj.extension or obj.schema in SYSTEM_SCHEMAS or obj.kind not in _NOUNS:
            continue
        known = _DEFAULTS.get(obj.kind, {"USAGE"} if obj.name == "public" else set())
        entries = [one for one in acl.entries if one.grantee == PUBLIC]
        whole = {one.privilege for one in entries if not one.column}
        for privilege in whole - known:
            counts[obj.schema, _NOUNS[obj.kind], privilege] += 1
        for privilege in {one.privilege for one in entries if one.column} - whole:
            counts[obj.schema, f"columns of {_NOUNS[obj.kind]}", privilege] += 1
    lines = [_line(*key, count) for key, count in sorted(counts.items())]
    if len(lines) <= _MOST_LINES:
        return tuple(lines)
    return (*lines[:_MOST_LINES], f"PUBLIC has {len(lines) - _MOST_LINES} more such privileges")


def _line(schema: str, noun: str, privilege: str, count: int) -> str:
    if not schema:
        return f"PUBLIC has {privilege} on the database"
    if not noun:
        return f"PUBLIC has {privilege} on schema {schema}"
    part, _, kind = noun.rpartition(" ")
    place = f"{part} " if part else ""
    return f"PUBLIC has {privilege} on {place}{count} {kind if count > 1 else kind[:-1]} in schema {schema}"
