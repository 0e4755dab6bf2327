"""Explains why PostgreSQL refused to change privileges, and what people can do.

Changes that failed come last in the next attempt, since finding what fails in a transaction takes time, of which each
attempt has little.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pgrole_controller.core.ddl import divide_names, spell_identifier
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, is_lacking, is_passing, shorten, sqlstate_of
from pgrole_controller.postgres.missing_privileges import explain_own_schema
from pgrole_controller.postgres.privileges.acl_locks import find_locked_table, key_of, tell_locked_table
from pgrole_controller.postgres.privileges.acl_verification import AclRepair
from pgrole_controller.postgres.rows import Row, fetch

#: Another transaction changed the same rows.
RETRIED = ("XX000", "23505", "40P01", "40001")
_ROW_TOO_BIG = "54000"
#: The object, its schema, the role or the grantor (22023) was dropped or renamed.
_GONE = ("42P01", "42883", "3F000", "42704", "42703", "22023")
#: Maximum number of characters of the statements in a message.
_LONGEST_STATEMENTS = 600

#: A part of the changes of one object: the grantee, and whether someone other than the owner granted it.
Part: TypeAlias = tuple[int, bool]

#: Maximum number of failed changes remembered.
_MOST_FAILED = 100_000

T = TypeVar("T", bound=AclRepair | DefaultAclChange)


class OutdatedAcl(Transient):
    """The object, or what is declared for it, changed after it was read. Reading it again shows what is left to do."""


class Postponed(Transient):
    """Time did not suffice to try it."""


class Ineffective(Transient):
    """The statements succeeded, and yet an object does not have the privileges that it should."""


def as_owner(repair: AclRepair) -> AclRepair:
    """What the owner granted is revoked in the owner's name: a role with grant options of its own otherwise revokes
    only what it granted itself, although it may act as the owner.
    """
    owner = repair.observed.object.owner_name
    changes = (replace(one, grantor=one.grantor or owner) if one.revoke else one for one in repair.changes)
    return replace(repair, changes=tuple(changes))


def divide(repair: AclRepair) -> dict[Part, list[AclChange]]:
    """Returns the changes by grantee, first those that only revoke, since grants fail where an ACL is full; and after
    them (True) those that revoke what someone other than the owner granted, which may be impossible.
    """
    owner = repair.observed.object.owner_name
    parts: dict[Part, list[AclChange]] = {}
    for one in repair.changes:
        delegated = one.revoke and one.grantor not in ("", owner)
        parts.setdefault((one.grantee, delegated), []).append(one)
    return dict(sorted(parts.items(), key=lambda item: (item[0][1], not all(one.revoke for one in item[1]))))


def tell_locked(one: AclRepair | DefaultAclChange) -> PgRoleError:
    if isinstance(one, AclRepair):
        label = one.observed.object.label
    else:
        label = f'default privileges of creator "{one.creator_name}"'
    return Transient(Reason.PROGRESSING, f"another transaction has locked {label}; the controller tries again")


def postpone() -> PgRoleError:
    return Postponed(Reason.PROGRESSING, "postponed, since other objects in its transaction wait for locks")


def tell_outdated() -> PgRoleError:
    return OutdatedAcl(
        Reason.PROGRESSING, "spec or the server's policy changed while privileges were applied: not all of them are"
    )


def _said(error: PgRoleError) -> str:
    return shorten(str(getattr(error.__cause__, "message", "")) or error.message)


def _tell_passing(error: PgRoleError, message: str) -> PgRoleError:
    """Keeps DATABASE_ERROR for what PostgreSQL refuses: a statement that was canceled may succeed later."""
    reason = Reason.PROGRESSING if error.reason is Reason.DATABASE_ERROR else error.reason
    return Transient(reason, message)


async def explain(connection: Connection, error: PgRoleError, repair: AclRepair, version: int) -> PgRoleError:
    """Returns the error to report on the object that declares the privileges. `version`: server_version_num. Raises
    PgRoleError if the connection is lost.
    """
    label, code = repair.observed.object.label, sqlstate_of(error)
    said = _said(error)
    if code == LOCK_NOT_FREE:
        return tell_locked(repair)
    if code in RETRIED or code in _GONE:
        return Transient(Reason.PROGRESSING, f"a concurrent transaction changed {label} first: {said}")
    if code == _ROW_TOO_BIG:
        remedy = "grant it to a group role, and make the roles members of that"
        return Transient(Reason.DATABASE_ERROR, f"the ACL of {label} has no room for another role: {remedy}")
    if is_passing(error):
        return _tell_passing(error, f"{label}: {error.message}")
    if is_lacking(error) and (own := await explain_own_schema(connection, error, said)) is not None:
        return own
    text = error.message if isinstance(error, Ineffective) else f"{label}: {said}"
    if code == DEPENDENT:
        text += _revoke_from_grantors(repair, version)
    if is_lacking(error) or isinstance(error, Ineffective):
        text += await _find_remedy(connection, repair, version)
    return Transient(Reason.DATABASE_ERROR, text)


async def explain_default(
    connection: Connection, error: PgRoleError, change: DefaultAclChange, version: int
) -> PgRoleError:
    """Likewise, of default privileges."""
    if is_passing(error):
        return _tell_passing(error, error.message)
    if not is_lacking(error):
        return error
    said = _said(error)
    if (own := await explain_own_schema(connection, error, said)) is not None:
        return own
    allow = [
        _allow(row, version)
        for row in await _read_actors(connection, {change.creator_name})
        if not (row.get("allowed", bool) or row.get("superuser", bool))
    ]
    text = f'default privileges of creator "{change.creator_name}": {said}'
    return Transient(Reason.DATABASE_ERROR, text + _ask("allow it", allow))


async def explain_storing(connection: Connection, error: PgRoleError) -> PgRoleError:
    """Likewise, of what records that everything is applied."""
    if table := find_locked_table(error):
        return await tell_locked_table(connection, table)
    if not is_lacking(error) or connection.is_closed():
        return error
    return await explain_own_schema(connection, error, _said(error)) or error


async def _find_remedy(connection: Connection, repair: AclRepair, version: int) -> str:
    """Returns statements that let the controller's role make the changes, or the changes themselves if nothing should
    let it.
    """
    owner = repair.observed.object.owner_name
    by_actor: dict[str, list[AclChange]] = {}
    for change in repair.changes:
        by_actor.setdefault((change.grantor if change.revoke else "") or owner, []).append(change)
    allow: list[str] = []
    do: list[str] = []
    database = ""
    for row in await _read_actors(connection, by_actor):
        if row.get("unlimited", bool):
            return ""
        name, database = row.text("name"), row.text("database")
        if row.get("superuser", bool):
            do += _statements(by_actor[name], version)
        elif not row.get("allowed", bool):
            allow.append(_allow(row, version))
    return _ask("allow it", dict.fromkeys(allow)) + _ask(f"do it, in database {spell_identifier(database)}", do)


def _revoke_from_grantors(repair: AclRepair, version: int) -> str:
    """To revoke what it granted on columns, a grantor needs the grant option that it has lost. It could not lose it
    again, since other roles hold the same from it (sql/privileges/lost_options.sql).
    """
    texts: list[str] = []
    for one in repair.changes:
        if one.revoke and one.grantor and one.columns:
            given = AclChange(one.object, 0, one.grantor, one.privileges, columns=one.columns, option_only=True)
            taken = replace(given, revoke=True, option_only=False)
            texts += [each.text for each in grant_ddl.statements([given], (), version)]
            texts += [each.text for each in grant_ddl.statements([taken], (), version, cascade=True)]
    return _ask("revoke everything that its grantors granted on the columns", texts)


def _statements(changes: Iterable[AclChange], version: int) -> list[str]:
    texts: list[str] = []
    for one in grant_ddl.statements(changes, (), version):
        if one.acting_as:
            texts += [f"SET ROLE {spell_identifier(one.acting_as)}", one.text, "RESET ROLE"]
        else:
            texts.append(one.text)
    return texts


def _allow(row: Row, version: int) -> str:
    options = " WITH INHERIT TRUE, SET TRUE" if version >= MEMBERSHIP_OPTIONS_VERSION else ""
    return f"GRANT {spell_identifier(row.text('member_of'))} TO {spell_identifier(row.text('own_role'))}{options}"


def _ask(what: str, statements: Collection[str]) -> str:
    text = "; ".join(statements)
    return f". A superuser can {what}: {text}" if text and len(text) <= _LONGEST_STATEMENTS else ""


async def _read_actors(connection: Connection, names: Iterable[str]) -> list[Row]:
    return await fetch(
        connection, "", queries.privileges("actors", raw=has_raw_names(connection)), *divide_names(names)
    )


@dataclass(slots=True)
class FailedChanges:
    """What could not be changed in one database, for other reasons than locks: it probably fails again. Keys: `key_of`.

    Whoever owns it matters, too: the controller may not be allowed to change anything of that owner. An object with
    changes of several parts (see `divide`) may fail because of some.
    """

    _owners: dict[Hashable, int] = field(default_factory=dict)
    _parts: dict[tuple[Hashable, Part], int] = field(default_factory=dict)  # by the turn in which each failed last
    _turn: int = 0
    _refused: set[Hashable] = field(default_factory=set)  # keys of both: PostgreSQL refused these

    def note(self, one: AclRepair | DefaultAclChange, error: PgRoleError) -> None:
        if len(self._owners) >= _MOST_FAILED:
            self._owners.clear()
            self._refused.clear()
        key = key_of(one)
        self._owners.pop(key, None)  # so that the last that failed comes last
        self._owners[key] = _owner_of(one)
        self._note_reason(key, error)

    def _note_reason(self, key: Hashable, error: PgRoleError) -> None:
        (self._refused.add if error.reason is Reason.DATABASE_ERROR else self._refused.discard)(key)

    def postpone(self, one: AclRepair | DefaultAclChange) -> PgRoleError:
        """Returns the error of a change for which there is no time: if it was refused before, it is not in progress."""
        return self._postpone(key_of(one))

    def postpone_part(self, one: AclRepair, part: Part) -> PgRoleError:
        """Likewise, of a part of the changes of one object."""
        return self._postpone((key_of(one), part))

    def _postpone(self, key: Hashable) -> PgRoleError:
        if key not in self._refused:
            return postpone()
        return Postponed(Reason.DATABASE_ERROR, "postponed, since it failed before, as many other changes do")

    def forget(self, some: Iterable[AclRepair | DefaultAclChange]) -> None:
        """These were changed."""
        for one in some if self._owners else ():
            self._owners.pop(key_of(one), None)
            self._refused.discard(key_of(one))

    def separate(self, some: Sequence[T], size: int) -> list[Sequence[T]]:
        """Returns parts of at most this size, each in the same order: first of what belongs to owners of whom nothing
        failed, then of what else did not fail, and then of the rest, beginning with what was not tried for longest. No
        part has of both.
        """
        owners, turns = frozenset(self._owners.values()), {key: turn for turn, key in enumerate(self._owners)}
        parts: tuple[list[int], list[int], list[int]] = [], [], []
        for place, one in enumerate(some):
            parts[2 if key_of(one) in turns else 1 if _owner_of(one) in owners else 0].append(place)
        parts[2].sort(key=lambda place: turns[key_of(some[place])])
        slices = (part[start : start + size] for part in parts for start in range(0, len(part), size))
        return [[some[place] for place in sorted(places)] for places in slices]

    def note_parts(self, one: AclRepair, failed: Mapping[Part, PgRoleError], changed: Collection[Part]) -> None:
        """Of the parts of one object, these failed and these were changed. Others were not tried."""
        self._turn += 1
        if len(self._parts) + len(failed) > _MOST_FAILED:
            self._parts.clear()
            self._refused.clear()
        for part in changed:
            self._parts.pop((key_of(one), part), None)
            self._refused.discard((key_of(one), part))
        for part, error in failed.items():
            self._parts[key_of(one), part] = self._turn
            self._note_reason((key_of(one), part), error)

    def separate_parts(self, one: AclRepair, parts: Sequence[Part]) -> list[list[int]]:
        """Returns the places of these parts of one object, first of those that did not fail, in the same order; then of
        those that did, beginning with the ones that were not tried for longest.
        """
        turns = [self._parts.get((key_of(one), part), 0) for part in parts]
        fresh = [place for place, turn in enumerate(turns) if not turn]
        failed = sorted((place for place, turn in enumerate(turns) if turn), key=turns.__getitem__)
        return [some for some in (fresh, failed) if some]


def _owner_of(one: AclRepair | DefaultAclChange) -> int:
    return one.observed.object.owner if isinstance(one, AclRepair) else one.creator


_failed: WeakKeyDictionary[Connection, FailedChanges] = WeakKeyDictionary()


def failed_changes_of(connection: Connection) -> FailedChanges:
    """The same for all calls with one connection."""
    return _failed.setdefault(connection, FailedChanges())


def remember_failed(connection: Connection, failed: FailedChanges) -> None:
    """Goes on with what failed on earlier connections to the same database."""
    _failed[connection] = failed
