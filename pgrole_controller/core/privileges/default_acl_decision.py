"""Decides about default privileges: those that objects get when a declared creator creates them.

They only avoid the delay until the controller has granted the same. So they are set only where PostgreSQL can express
the declaration: for schemas that are named exactly, without exceptions.
"""

from collections.abc import Mapping

from pgrole_controller.core.names import is_pattern, spell_name
from pgrole_controller.core.privileges.acl import (
    SYSTEM_SCHEMAS,
    DefaultAcl,
    DefaultAclChange,
    DefaultPlace,
    ObjectId,
    ObjectKind,
    future_object,
)
from pgrole_controller.core.privileges.awaited_privileges import PendingNames, mark_default, mark_schema
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.privileges.object_patterns import CompiledPrivileges, given_by
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import DifferenceClassifier, PrivilegeDifference
from pgrole_controller.core.privileges.privilege_policy import Denial, why_not_created_by, why_not_granted

#: Types of objects in pg_default_acl that a declaration covers.
DEFAULT_KINDS: Mapping[str, ObjectKind] = {
    "r": ObjectKind.TABLE,
    "S": ObjectKind.SEQUENCE,
    "f": ObjectKind.ROUTINE,
}

#: Types whose undeclared default privileges are revoked; others are of kinds that cannot be declared.
REVOKED_TYPES = frozenset({*DEFAULT_KINDS, "n"})

_NOUNS = {
    "r": "tables",
    "S": "sequences",
    "f": "routines",
    "T": "types",
    "n": "schemas",
    "L": "large objects",
}


class DefaultsComparison:
    """One grantee's default privileges."""

    def __init__(
        self,
        grantee: Grantee,
        observed: ObservedDatabase,
        declaration: CompiledPrivileges | None,
        classifier: DifferenceClassifier,
        pending: PendingNames,
    ) -> None:
        self._grantee = grantee
        self._observed = observed
        self._declaration = declaration
        self._former = tuple(_places(one) for one in grantee.former.get(observed.facts.database, ()))
        self._classifier = classifier
        self._pending = pending
        self.changes: list[DefaultAclChange] = []
        self.former_held = False

    def compare(self) -> None:
        allowed: dict[DefaultPlace, frozenset[str]] = {}
        denied: dict[DefaultPlace, frozenset[str]] = {}
        if self._declaration is not None:
            allowed, denied = self._desired(self._declaration.declared)
        held: dict[DefaultPlace, set[str]] = {}
        for acl in self._observed.index.defaults_for(self._grantee.oid):
            if acl.creator != self._grantee.oid:
                place = acl.place
                declared, refused = allowed.get(place, frozenset()), denied.get(place, frozenset())
                held.setdefault(place, set()).update(self._compare_held(acl, declared, refused))
        schema_ids = self._observed.index.schema_ids
        for place, privileges in sorted(allowed.items()):
            creator_name, schema, _ = place
            creator = self._observed.roles[creator_name]
            where = [ObjectId("pg_default_acl", creator), ObjectId("pg_authid", creator)]
            where += [schema_ids[schema]] if schema in schema_ids else []
            missing = tuple(
                privilege
                for privilege in sorted(privileges - held.get(place, set()))
                if self._classifier.note_missing(
                    PrivilegeDifference(
                        privilege, held=False, grantor_name=creator_name, default_label=label_place(place)
                    ),
                    *where,
                )
            )
            if missing:
                self._add(creator, place, missing)

    def _desired(
        self, declared: DatabasePrivileges
    ) -> tuple[dict[DefaultPlace, frozenset[str]], dict[DefaultPlace, frozenset[str]]]:
        """Returns what is declared and allowed, and what is declared but denied."""
        roles, complete = self._observed.roles, self._observed.complete
        allowed: dict[DefaultPlace, frozenset[str]] = {}
        denied: dict[DefaultPlace, frozenset[str]] = {}
        barred: dict[str, bool] = {}
        for name in declared.created_by:
            if name not in roles:
                if complete:
                    self._pending.add_missing(f"role {spell_name(name)} (createdBy)", _mark_creator(name))
                continue
            denial = why_not_created_by(self._grantee, roles[name], name, self._observed.facts)
            barred[name] = denial is not None
            if denial is not None:
                self._pending.add_denied(denial, _mark_creator(name))
        for place, privileges in _places(declared).items():
            name, schema, _ = place
            if name not in roles or schema not in self._observed.schemas:
                if complete:
                    self._pending.add_mark(mark_default(label_place(place)), mark_schema(schema), _mark_creator(name))
                continue
            if roles[name] == self._grantee.oid:
                continue
            if barred[name]:
                self._pending.add_mark(mark_default(label_place(place)), mark_schema(schema))
                denied[place] = privileges
                continue
            refused = {one for one in privileges if self._is_denied(roles[name], place, one)}
            for one in refused:
                self._pending.add_mark(mark_default(label_place(place), one), mark_default(label_place(place)))
            allowed[place], denied[place] = privileges - refused, frozenset(refused)
        return allowed, denied

    def _is_denied(self, creator: int, place: DefaultPlace, privilege: str) -> bool:
        creator_name, schema, object_type = place
        if object_type == "f" and creator not in self._grantee.owned:
            # Whether a future routine will be SECURITY DEFINER is unknown: it is judged once it exists.
            return True
        future = future_object(DEFAULT_KINDS[object_type], schema, creator, creator_name)
        denial = why_not_granted(self._grantee, future, privilege, self._observed.facts, literal=False)
        if denial is not None:
            label = label_place(place)
            mark = mark_default(label, privilege)
            self._pending.add_denied(Denial(f"{privilege} on {label}", denial.remedy), mark, mark_default(label))
        return denial is not None

    def _compare_held(self, acl: DefaultAcl, declared: frozenset[str], denied: frozenset[str]) -> set[str]:
        """Decides about the existing entries; returns the privileges that are held."""
        revoked: list[str] = []
        disarmed: list[str] = []
        held: set[str] = set()
        label = label_place(acl.place)
        for entry in acl.entries:
            if entry.grantee != self._grantee.oid:
                continue
            held.add(entry.privilege)
            difference = PrivilegeDifference(entry.privilege, grantor_name=entry.grantor_name, default_label=label)
            if entry.privilege in declared:
                option = PrivilegeDifference(
                    entry.privilege, grantor_name=entry.grantor_name, default_label=label, option=True
                )
                if entry.grantable and self._is_exact(acl) and self._classifier.note_held(option):
                    disarmed.append(entry.privilege)
            elif entry.privilege in denied:
                if self._classifier.note_denied(difference):
                    revoked.append(entry.privilege)
            elif self._is_revoked(acl, difference):
                revoked.append(entry.privilege)
        for privileges, option_only in ((revoked, False), (disarmed, True)):
            if privileges:
                some = tuple(sorted(set(privileges)))
                self._add(acl.creator, acl.place, some, revoke=True, option=option_only)
        return held

    def _is_revoked(self, acl: DefaultAcl, difference: PrivilegeDifference) -> bool:
        """Decides about an undeclared entry, and notes it."""
        formerly = any(difference.privilege in one.get(acl.place, frozenset()) for one in self._former)
        self.former_held = self.former_held or formerly
        if not formerly and not self._is_exact(acl):
            return False
        if acl.object_type not in REVOKED_TYPES:
            self._classifier.note_left(difference)
            return False
        return self._classifier.note_held(difference)

    def _is_exact(self, acl: DefaultAcl) -> bool:
        """Tells whether whatever is not declared in this schema is undone."""
        return self._declaration is not None and not self._declaration.is_unmanaged(acl.schema)

    def _add(
        self,
        creator: int,
        place: DefaultPlace,
        privileges: tuple[str, ...],
        *,
        revoke: bool = False,
        option: bool = False,
    ) -> None:
        self.changes.append(
            DefaultAclChange(
                creator,
                *place,
                self._grantee.oid,
                self._grantee.role_name,
                privileges,
                revoke=revoke,
                option_only=option,
            )
        )


def _places(declared: DatabasePrivileges) -> dict[DefaultPlace, frozenset[str]]:
    """Returns the default privileges that express a declaration, whether or not creators and schemas exist."""
    places: dict[DefaultPlace, frozenset[str]] = {}
    for access in declared.schemas:
        if is_pattern(access.schema) or access.exceptions or access.schema in SYSTEM_SCHEMAS:
            continue
        for object_type, kind in DEFAULT_KINDS.items():
            privileges = given_by(access.access, kind)
            for creator in declared.created_by if privileges else ():
                place = (creator, access.schema, object_type)
                places[place] = places.get(place, frozenset()) | privileges
    return places


def _mark_creator(name: str) -> str:
    return mark_default(f"creator {name}")


def label_place(place: DefaultPlace) -> str:
    """For `PrivilegeDifference.default_label`, e.g. `future tables in schema app created by alice`."""
    creator_name, schema, object_type = place
    where = f" in schema {spell_name(schema)}" if schema else ""
    return f"future {name_type(object_type)}{where} created by {spell_name(creator_name)}"


def name_type(object_type: str) -> str:
    """Returns a plural for people: `tables`."""
    return _NOUNS.get(object_type, "objects")
