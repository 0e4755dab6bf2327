"""A repair of privileges as one message, which PostgreSQL executes as one transaction: it verifies that the objects are
as they were read, changes them, and verifies the effect.

What a message cannot do has none: revokes in the name of a delegate, columns, routines, and names that are not UTF-8.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TypedDict

from pgrole_controller.core.ddl import literal
from pgrole_controller.core.errors import NOT_UTF8
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import ObservedAcl
from pgrole_controller.postgres.privileges.acl_checks import CHECK_EFFECT, CHECK_EXPECTED
from pgrole_controller.postgres.privileges.acl_repair import AclRepair

_CATALOGS = ("pg_class", "pg_namespace", "pg_database")
#: Maximum number of privileges that one message verifies.
_MOST_PRIVILEGES = 2000


def render_repairs(repairs: Sequence[AclRepair], version: int, opening: Iterable[str], ending: Iterable[str]) -> str:
    """Returns the message; empty if a message cannot make these changes.

    `version`: server_version_num. `opening` and `ending` belong to the same transaction. Raises ValueError for a change
    that has no statement.
    """
    if not repairs:
        return ";\n".join([*opening, *ending])
    if any(_needs_more(one) for one in repairs):
        return ""
    changes = grant_ddl.statements([change for one in repairs for change in one.changes], version=version)
    expected = [_expectation(one) for one in repairs]
    if sum(len(one["present"]) + len(one["absent"]) for one in expected) > _MOST_PRIVILEGES:
        return ""
    given = literal(json.dumps(expected, ensure_ascii=False))
    return ";\n".join(
        [
            *opening,
            f"SELECT pg_catalog.set_config('pgrole.expected', {given}, true)",
            CHECK_EXPECTED,
            *(one.text for one in changes),
            CHECK_EFFECT,
            *ending,
        ]
    )


def _needs_more(repair: AclRepair) -> bool:
    obj = repair.observed.object
    grantees = {change.grantee for change in repair.changes}
    return (
        obj.id.catalog not in _CATALOGS
        or NOT_UTF8.search(obj.schema + obj.name) is not None
        or any(change.grantor or change.columns or change.option_only for change in repair.changes)
        or any(entry.column and entry.grantee in grantees for entry in repair.observed.entries)
    )


class _Expectation(TypedDict):
    """As sql/privileges/unexpected.sql and ineffective.sql describe it."""

    catalog: str
    oid: int
    schema: str
    name: str
    owner: int
    seen: str
    present: list[str]
    absent: list[str]


def _expectation(repair: AclRepair) -> _Expectation:
    """Without CASCADE, only grantees that are changed can lose privileges."""
    observed, obj = repair.observed, repair.observed.object
    granted = {(one.grantee, each) for one in repair.changes if not one.revoke for each in one.privileges}
    revoked = {(one.grantee, each) for one in repair.changes if one.revoke for each in one.privileges}
    return {
        "catalog": obj.id.catalog,
        "oid": obj.id.oid,
        "schema": obj.schema,
        "name": obj.name,
        "owner": obj.owner,
        "seen": observed.seen,
        "present": sorted(map(_key, granted | _kept(observed, {one.grantee for one in repair.changes}, revoked))),
        "absent": sorted(map(_key, revoked - granted)),
    }


def _kept(observed: ObservedAcl, grantees: set[int], revoked: set[tuple[int, str]]) -> set[tuple[int, str]]:
    return {
        (entry.grantee, entry.privilege)
        for entry in observed.entries
        if entry.grantee in grantees
        and not ((entry.grantee, entry.privilege) in revoked and entry.grantor == observed.object.owner)
    }


def _key(privilege: tuple[int, str]) -> str:
    return f"{privilege[0]} {privilege[1]}"
