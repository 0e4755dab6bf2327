"""Whether the changes to an object's privileges took effect, and nothing else was lost with them."""

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from pgrole_controller.core.ddl import spell_identifier
from pgrole_controller.core.errors import NOT_UTF8
from pgrole_controller.core.privileges.acl import AclChange, AclEntry, ObservedAcl
from pgrole_controller.postgres.privileges.acl_repair import AclRepair


def identity_of(one: ObservedAcl) -> tuple[object, ...]:
    """Returns what statements refer to an object by, and what policies decide by."""
    found = one.object
    return found.kind, found.schema, found.name, found.arguments, found.owner, found.elevated


def written_rows(repairs: Iterable[AclRepair]) -> str:
    """Returns the rows that the changes write, as sql/privileges/unwritten.sql takes them."""
    rows = {
        (change.object.id, column) for one in repairs for change in one.changes for column in change.columns or (None,)
    }
    return json.dumps(
        [{"catalog": identity.catalog, "oid": identity.oid, **_spell(column)} for identity, column in rows],
        ensure_ascii=False,
    )


def _spell(column: str | None) -> dict[str, str | None]:
    """A name that is not UTF-8 cannot be sent."""
    if column is None or not NOT_UTF8.search(column):
        return {"column": column}
    return {"bytes": column.encode(errors="surrogateescape").hex()}


def _held(one: ObservedAcl | None) -> set[tuple[int, str, str]]:
    return {(entry.grantee, entry.column, entry.privilege) for entry in one.entries} if one is not None else set()


class _Revocation:
    """What a change revokes. A table may have 1,600 columns."""

    def __init__(self, change: AclChange) -> None:
        self.change = change
        self._columns = frozenset(change.columns or ("",))

    def names(self, entry: AclEntry) -> bool:
        return entry.column in self._columns and self._concerns(entry)

    def takes(self, entry: AclEntry) -> bool:
        """Whether PostgreSQL revokes the entry with the change: with a table's privilege go those of its columns."""
        return (not self.change.columns or entry.column in self._columns) and self._concerns(entry)

    def _concerns(self, entry: AclEntry) -> bool:
        change = self.change
        by = entry.grantor_name == change.grantor if change.grantor else entry.grantor == change.object.owner
        return by and entry.grantee == change.grantee and entry.privilege in change.privileges


#: Grantee and grantor of entries and changes: only equal ones are compared, since there may be thousands.
_GranteeAndGrantor: TypeAlias = tuple[int, str]


def _group_entries(entries: Iterable[AclEntry], owner: int) -> dict[_GranteeAndGrantor, list[AclEntry]]:
    """An entry that the owner granted is in two groups: a change names the owner, or no grantor."""
    groups: dict[_GranteeAndGrantor, list[AclEntry]] = {}
    for entry in entries:
        groups.setdefault((entry.grantee, entry.grantor_name), []).append(entry)
        if entry.grantor == owner:
            groups.setdefault((entry.grantee, ""), []).append(entry)
    return groups


def find_lost(repair: AclRepair, after: ObservedAcl | None) -> list[AclEntry]:
    """Returns entries that no change revokes and that are missing now. One of several grantors is enough."""
    held = _held(after)
    revoking = any(one.revoke for one in repair.changes)
    entries = _group_entries(repair.observed.entries, repair.observed.object.owner) if revoking else {}
    taken = set[int]()  # by identity
    for change in repair.changes:
        if change.revoke and not change.option_only:
            revocation = _Revocation(change)
            some = entries.get((change.grantee, change.grantor), ())
            taken.update(id(entry) for entry in some if revocation.takes(entry))
    kept = [entry for entry in repair.observed.entries if id(entry) not in taken]
    return [entry for entry in kept if (entry.grantee, entry.column, entry.privilege) not in held]


def find_wrong(repair: AclRepair, after: ObservedAcl | None) -> str:
    """Returns what is wrong after the changes, for people; empty if nothing is."""
    label = repair.observed.object.label
    if after is None:
        return f"{label} was dropped"
    if identity_of(after) != identity_of(repair.observed):
        return f"{label} changed while the controller changed its privileges"
    held = _held(after)
    revoking = any(one.revoke for one in repair.changes)
    entries = _group_entries(after.entries, repair.observed.object.owner) if revoking else {}
    for change in repair.changes:
        if change.revoke:
            revocation = _Revocation(change)
            some = entries.get((change.grantee, change.grantor), ())
            left = [e for e in some if revocation.names(e) and (e.grantable or not change.option_only)]
            if left and not _granted_too(repair, left[0]):
                text = f'PostgreSQL did not revoke {left[0].privilege} on {label} from "{change.grantee_name}"'
                text += f', which "{left[0].grantor_name}" granted'
                return f"{text}: {_remedy(change)}" if change.grantor else text
            continue
        for entry in _entries_of(change):
            if entry not in held:
                return f'PostgreSQL did not grant {entry[2]} on {label} to "{change.grantee_name}"'
    lost = find_lost(repair, after)
    return f"PostgreSQL revoked {lost[0].privilege} on {label}, too, and did not grant it again" if lost else ""


def _remedy(change: AclChange) -> str:
    """A superuser's REVOKE is always in the owner's name, and CASCADE spares what a superuser granted."""
    return (
        f'if "{change.grantor}" is a superuser now, PostgreSQL lets no one revoke what it granted before: an '
        f"administrator can run ALTER ROLE {spell_identifier(change.grantor)} NOSUPERUSER, and the controller then "
        "revokes it"
    )


def _granted_too(repair: AclRepair, entry: AclEntry) -> bool:
    key = (entry.grantee, entry.column, entry.privilege)
    return any(key in _entries_of(change) for change in repair.changes if not change.revoke)


def _entries_of(change: AclChange) -> set[tuple[int, str, str]]:
    return {
        (change.grantee, column, privilege) for column in change.columns or ("",) for privilege in change.privileges
    }


def grant_again(repair: AclRepair, lost: Iterable[AclEntry], names: Mapping[int, str]) -> list[AclChange]:
    """Returns one change for the object and one for all its columns, for each grantee with a name and each privilege: a
    table may have 1,600 columns.
    """
    columns: dict[tuple[int, str, bool], dict[str, None]] = {}
    for entry in lost:
        if entry.grantee in names:
            columns.setdefault((entry.grantee, entry.privilege, bool(entry.column)), {})[entry.column] = None
    return [
        AclChange(
            object=repair.observed.object,
            grantee=grantee,
            grantee_name=names[grantee],
            privileges=(privilege,),
            columns=tuple(some) if of_columns else (),
        )
        for (grantee, privilege, of_columns), some in columns.items()
    ]
