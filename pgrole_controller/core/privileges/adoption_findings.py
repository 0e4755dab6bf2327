"""Finds what the adoption of a role would revoke in one database, and what the role holds there beyond the policy.

Whatever a role of the namespace owns outside of schema pgrole is within the policy, since that owner's login could
grant it. Of other objects, a privilege is beyond the policy if

- the policy denies it, even if it were declared by the exact name of the object and column; privileges on types, which
  no PgRole can declare, are judged by the same rules;
- it is on a language, a foreign data wrapper, a foreign server or a large object: no rule opens these;
- it has the grant option, which no PgRole can declare.

It makes no difference whether adoption would revoke it: some are left, such as those in schemas that are not managed.
What the role owns does not count, nor what PUBLIC has or other roles pass on. A retained role may hold what its claim
records, whatever the policy says by now.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from pgrole_controller.core.errors import PgRoleError, make_legible
from pgrole_controller.core.privileges.acl import (
    OWN_SCHEMA,
    UNDECLARABLE,
    AclEntry,
    DatabaseObject,
    DefaultAcl,
    ObjectKind,
    future_object,
)
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.awaited_privileges import MOST_NAMED
from pgrole_controller.core.privileges.default_acl_decision import label_place
from pgrole_controller.core.privileges.grantee import Grantee, Takeover
from pgrole_controller.core.privileges.object_patterns import CompiledPrivileges, compile_privileges
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privileges.privilege_policy import traits_of, why_not_created_by, why_not_granted
from pgrole_controller.core.privileges.privilege_result import AdoptionFindings, PrivilegeResult

#: Maximum length of one privilege in words: a routine can have a hundred arguments.
_LONGEST = 200

#: Kinds that no rule opens.
_CLOSED = UNDECLARABLE - {ObjectKind.TYPE}

#: A read has at most this number of objects of kinds that no declaration can name, and entries of one ACL
#: (sql/privileges).
_MOST_UNDECLARABLE, _MOST_ENTRIES = 1000, 10_000

#: Types in pg_default_acl that a rule can decide about before the object exists: whether a routine will be SECURITY
#: DEFINER is unknown, and a schema has no name.
_FUTURE: Mapping[str, ObjectKind] = {"r": ObjectKind.TABLE, "S": ObjectKind.SEQUENCE, "T": ObjectKind.TYPE}


def is_cut(observed: ObservedDatabase) -> bool:
    """Whether the roles that were read together may hold more than one read has."""
    entries = max((len(one.entries) for one in observed.acls), default=0)
    defaults = max((len(one.entries) for one in observed.defaults or ()), default=0)
    undeclarable = sum(one.object.kind in UNDECLARABLE for one in observed.acls)
    return max(entries, defaults) >= _MOST_ENTRIES or undeclarable >= _MOST_UNDECLARABLE


def find_for_adoption(grantee: Grantee, observed: ObservedDatabase) -> AdoptionFindings:
    """`observed` must be complete, with default privileges: nothing is concluded from a partial view."""
    if not observed.complete or observed.defaults is None:
        raise ValueError("adoption needs a complete read")
    revoked, revoked_count = _name_first(_find_revoked(decide_privileges(grantee, observed, "")))
    beyond, beyond_count = find_beyond(grantee, observed)
    if is_cut(observed):
        beyond, beyond_count = ("more privileges than the controller reads at once", *beyond), beyond_count + 1
    return AdoptionFindings(revoked, revoked_count, beyond, beyond_count)


def find_beyond(grantee: Grantee, observed: ObservedDatabase) -> tuple[tuple[str, ...], int]:
    """Returns the first privileges beyond the policy by name, and the number of all."""
    return _name_first(_HeldEntries(grantee, observed).find_beyond())


def answer_for(
    grantee: Grantee, observed: ObservedDatabase, contain: Callable[[Exception], PgRoleError]
) -> PrivilegeResult:
    """Returns what to report about one role; an unexpected error is this role's."""
    database = observed.facts.database
    result = PrivilegeResult(grantee.key, grantee.uid, database, grantee.digest_of(database))
    try:
        return replace(result, adoption=find_for_adoption(grantee, observed))
    except PgRoleError as error:
        return replace(result, error=error)
    except Exception as error:  # noqa: BLE001 -- this role's error, whatever the database holds
        return replace(result, error=contain(error))


def _name_first(some: Iterable[PrivilegeDifference]) -> tuple[tuple[str, ...], int]:
    """Returns the first by name, and the number of all: each once, whoever granted it. Those of one object follow each
    other, so that only the last object's are remembered.
    """
    first, count = list[str](), 0
    last: object = None
    seen = set[tuple[str, str, bool]]()
    for one in some:
        place = one.object.id if one.object else one.default_label
        if place != last:
            last, seen = place, set()
        kind = (one.privilege, one.column, one.option)
        if kind not in seen:
            seen.add(kind)
            count += 1
            insort(first, make_legible(one.what, _LONGEST))
            del first[MOST_NAMED:]
    return tuple(first), count


def _find_revoked(decision: PrivilegeDecision) -> Iterator[PrivilegeDifference]:
    for change in decision.changes:
        if change.revoke:
            for privilege in change.privileges:
                for column in change.columns or ("",):
                    yield PrivilegeDifference(privilege, change.object, column, option=change.option_only)
    for default in decision.default_changes:
        if default.revoke:
            label = label_place(default.place)
            for privilege in default.privileges:
                yield PrivilegeDifference(privilege, default_label=label, option=default.option_only)


class _HeldEntries:
    """Everything that one role holds in one database, however it got it."""

    def __init__(self, grantee: Grantee, observed: ObservedDatabase) -> None:
        self._grantee = grantee
        self._observed = observed
        self._verdicts: dict[tuple[object, ...], bool] = {}
        former = grantee.former.get(observed.facts.database, ()) if grantee.adoptee is Takeover.RETAINED else ()
        self._recorded: list[CompiledPrivileges] = [compile_privileges(one, observed.facts.version) for one in former]

    def find_beyond(self) -> Iterator[PrivilegeDifference]:
        oid, facts = self._grantee.oid, self._observed.facts
        for acl in self._observed.index.concerning(oid, ()):
            obj = acl.object
            if obj.owner == oid or (obj.kind is ObjectKind.DATABASE and obj.name != facts.database):
                continue
            entries, _ = self._observed.entries_of(acl, oid)
            for entry in entries:
                option = entry.grantable and obj.owner not in self._grantee.owned
                denied = self._is_denied(obj, entry) and not self._is_recorded(obj, entry)
                if option or denied:
                    yield PrivilegeDifference(entry.privilege, obj, entry.column, option=not denied)
        for default in self._observed.index.defaults_for(oid):
            if default.creator != oid:
                yield from self._find_defaults_beyond(default)

    def _is_recorded(self, obj: DatabaseObject, entry: AclEntry) -> bool:
        return any(one.wanted(obj).has(entry.privilege, entry.column) for one in self._recorded)

    def _is_denied(self, obj: DatabaseObject, entry: AclEntry) -> bool:
        """The answer is the same for all objects of a kind in a schema, except for what is named here."""
        if obj.owner in self._grantee.owned:
            return obj.schema == OWN_SCHEMA
        if obj.kind in _CLOSED:
            return True
        asked = (*traits_of(obj), entry.privilege)
        known = self._verdicts.get(asked)
        if known is None:
            denial = why_not_granted(self._grantee, obj, entry.privilege, self._observed.facts, literal=True)
            known = self._verdicts[asked] = denial is not None
        return known

    def _find_defaults_beyond(self, default: DefaultAcl) -> Iterator[PrivilegeDifference]:
        facts, label = self._observed.facts, label_place(default.place)
        owned = default.creator in self._grantee.owned
        barred = why_not_created_by(self._grantee, default.creator, default.creator_name, facts) is not None
        for entry in default.entries:
            if entry.grantee != self._grantee.oid:
                continue
            denied = barred or (not owned and self._is_future_denied(default, entry))
            if denied or (entry.grantable and not owned):
                yield PrivilegeDifference(entry.privilege, default_label=label, option=not denied)

    def _is_future_denied(self, default: DefaultAcl, entry: AclEntry) -> bool:
        kind = _FUTURE.get(default.object_type)
        if kind is None:
            return True
        future = future_object(kind, default.schema, default.creator, default.creator_name)
        denial = why_not_granted(self._grantee, future, entry.privilege, self._observed.facts, literal=True)
        return denial is not None
