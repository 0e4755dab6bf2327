"""Folds what roles hold in one database into declarations: the shortest ones whose application changes nothing.

What a declaration cannot express exactly stays unmanaged, schema by schema. Every result is verified with the
controller's own decision: no returned declaration would grant or revoke anything.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgrole_controller.core.errors import NOT_UTF8, Waiting
from pgrole_controller.core.folding.folding_notes import (
    DEFAULTS_DIFFER,
    note_reported,
    note_undeclarable,
    note_unmanaged,
)
from pgrole_controller.core.folding.schema_folding import (
    HOLDS_NOTHING,
    FoldedSchema,
    HeldGroup,
    HeldPrivileges,
    HeldSchema,
    access_of,
    fold_schema,
    without_access,
)
from pgrole_controller.core.folding.schema_sharing import share_schemas
from pgrole_controller.core.names import is_pattern, name_some
from pgrole_controller.core.privileges.acl import (
    TEMPORARY_SCHEMAS,
    UNDECLARABLE,
    AclEntry,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.acl_comparison import is_left_alone
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.adoption_findings import find_beyond
from pgrole_controller.core.privileges.default_acl_decision import DEFAULT_KINDS
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    PrivilegePolicy,
)
from pgrole_controller.core.privileges.object_patterns import given_by
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import needs_exact_names
from pgrole_controller.core.request import Key

#: Limits of one database, as in api/privileges.py.
MOST_SCHEMAS = 64
MOST_OBJECTS = 32
_MOST_CREATORS = 32
_MOST_UNMANAGED = 32

_EVERYWHERE = ("*",)


@dataclass(frozen=True, slots=True)
class FoldedDatabase:
    """`declared` None: nothing can or need be declared. `notes`: what is not declared, for people."""

    declared: DatabasePrivileges | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Contents:
    """One schema, with its objects grouped by everything that a decision about them depends on."""

    schema: ObservedAcl | None = None
    groups: dict[tuple[object, ...], list[ObservedAcl]] = field(default_factory=dict)
    overloads: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Draft:
    """A declaration in progress. `unmanaged`: reasons by schema; "" stands for what belongs to no schema."""

    on_database: frozenset[str]
    schemas: dict[str, FoldedSchema] = field(default_factory=dict)
    creators: list[str] = field(default_factory=list)
    unmanaged: dict[str, str] = field(default_factory=dict)


class PrivilegeFolder:
    """Folds the privileges of many roles in one database.

    `observed` must be a complete read with default privileges. `exact`: lists objects by name, so that no declaration
    extends to objects that are created later. `policy`, `roles`: of the namespace that the objects will be in. What
    a policy can allow only by exact names is listed so. What this one does not allow is declared and noted.
    """

    def __init__(
        self,
        observed: ObservedDatabase,
        *,
        exact: bool = False,
        policy: PrivilegePolicy | None = None,
        roles: frozenset[int] = frozenset(),
    ) -> None:
        self._observed = observed
        self._defaults_for = observed.index.defaults_for
        self._policy = policy
        self._roles = roles
        self._exact = exact
        self._facts = observed.facts
        self._contents: dict[str, _Contents] = defaultdict(_Contents)
        self._database: ObservedAcl | None = None
        self._others: dict[int, list[ObservedAcl]] = defaultdict(list)
        self._held: dict[int, dict[int, HeldPrivileges]] = {}
        self._places: dict[int, set[str]] = defaultdict(set)
        self._creators = {one.creator_name: one.creator for one in observed.defaults or ()}
        owners = {one.object.owner for one in observed.acls}
        self._owned = frozenset(owners | set(self._creators.values()))
        for acl in observed.acls:
            self._add(acl)

    def fold(self, oid: int, role_name: str) -> FoldedDatabase:
        """Folds what the role with this oid holds here."""
        notes = note_undeclarable(oid, self._others[oid], self._defaults_for(oid))
        on_database = self._on_database(oid)
        if not self._places[oid] and not self._defaults_for(oid) and on_database == HOLDS_NOTHING:
            return FoldedDatabase(notes=notes)
        draft = _Draft(on_database.privileges)
        if on_database.grantable:
            draft.unmanaged[""] = "grant options on the database cannot be declared"
        defaults = self._default_places(oid)
        grantee = self._grantee(oid, role_name)
        for name in sorted(self._places[oid] | {schema for _, schema in defaults if schema}):
            held = self._held_schema(oid, name, defaults)
            folded = fold_schema(held, exact=self._exact or self._needs_names(grantee, held))
            draft.schemas[name] = folded
            if folded.problem:
                draft.unmanaged[name] = folded.problem
        _choose_creators(draft, defaults)
        result = self._declare_exactly(oid, role_name, draft, notes)
        if result.declared is None:
            return result
        return replace(result, notes=(*self._note_beyond(grantee), *result.notes))

    def _grantee(self, oid: int, role_name: str) -> Grantee:
        policy = self._policy or PrivilegePolicy()
        return Grantee(Key("", role_name), "", 0, role_name, oid, policy=policy, owned=self._roles)

    def _needs_names(self, grantee: Grantee, schema: HeldSchema) -> bool:
        """Whether the role holds something here that a policy can allow only where exact names declare it, whether or
        not this one does.
        """
        return self._policy is not None and any(
            needs_exact_names(grantee, group.objects[0], privilege, self._facts)
            for group in schema.groups
            for privilege in group.held.privileges
        )

    def _note_beyond(self, grantee: Grantee) -> tuple[str, ...]:
        if self._policy is None:
            return ()
        some, count = find_beyond(grantee, self._observed)
        why = "the server's policy does not allow it, so the controller does not adopt the role"
        return (f"{name_some(some, count=count)}: {why}",) if some else ()

    def _add(self, acl: ObservedAcl) -> None:
        obj = acl.object
        held = self._held.get(id(acl.entries))
        if held is None:
            held = self._held[id(acl.entries)] = _by_grantee(acl.entries)
        if obj.kind in UNDECLARABLE:
            for grantee in held:
                self._others[grantee].append(acl)
            return
        if obj.kind is ObjectKind.DATABASE:
            if obj.name == self._facts.database:
                self._database = acl
            return
        if obj.schema.startswith(TEMPORARY_SCHEMAS):
            return
        contents = self._contents[obj.schema]
        if obj.kind is ObjectKind.SCHEMA:
            contents.schema = acl
        else:
            same = (obj.kind, obj.owner, obj.extension, obj.elevated, id(acl.entries))
            contents.groups.setdefault(same, []).append(acl)
            if obj.kind is ObjectKind.ROUTINE:
                contents.overloads[obj.name] += 1
        for grantee in held:
            if grantee != obj.owner and not is_left_alone(obj, self._facts):
                self._places[grantee].add(obj.schema)

    def _on_database(self, oid: int) -> HeldPrivileges:
        database = self._database
        if database is None or database.object.owner == oid:
            return HOLDS_NOTHING
        return self._held[id(database.entries)].get(oid, HOLDS_NOTHING)

    def _held_schema(
        self, oid: int, name: str, defaults: Mapping[tuple[str, str], Mapping[str, frozenset[str]]]
    ) -> HeldSchema:
        contents = self._contents[name]
        groups: list[HeldGroup] = []
        literal: list[HeldGroup] = []
        for acls in contents.groups.values():
            first = acls[0].object
            if first.owner == oid or is_left_alone(first, self._facts):
                continue
            held = self._held[id(acls[0].entries)].get(oid, HOLDS_NOTHING)
            some = HeldGroup(first.kind, [acl.object for acl in acls], held)
            (literal if first.extension else groups).append(some)
        schema, on_schema = contents.schema, HOLDS_NOTHING
        if schema is not None and schema.object.owner != oid:
            on_schema = self._held[id(schema.entries)].get(oid, HOLDS_NOTHING)
        own = schema is not None and schema.object.owner == oid
        backed = frozenset(
            access for (_, place), held in defaults.items() if place == name for access in access_of(held)
        )
        return HeldSchema(name, None if own else on_schema, groups, literal, contents.overloads, backed)

    def _default_places(self, oid: int) -> dict[tuple[str, str], dict[str, frozenset[str]]]:
        """Returns default privileges for the role by (creator, schema) and type of object."""
        places: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
        for one in self._defaults_for(oid):
            if one.creator == oid:
                continue
            held = frozenset(entry.privilege for entry in one.entries if entry.grantee == oid)
            places.setdefault((one.creator_name, one.schema), {})[one.object_type] = held
        return places

    def _declare_exactly(self, oid: int, role_name: str, draft: _Draft, notes: tuple[str, ...]) -> FoldedDatabase:
        """Turns the draft into a declaration that fits the limits and changes nothing."""
        for _ in range(3):
            declared = self._declare(draft)
            decision = self._decide(oid, role_name, declared)
            faults = self._find_faults(decision)
            if not faults:
                reported = note_reported(decision.reported)
                return FoldedDatabase(declared, (*notes, *reported, *note_unmanaged(draft.unmanaged)))
            for schema, (why, granted) in faults.items():
                draft.unmanaged.setdefault(schema, why)
                if granted:
                    draft.schemas.pop(schema, None)
                    draft.on_database = draft.on_database if schema else frozenset()
        draft = _Draft(draft.on_database, unmanaged={"": "its privileges cannot be declared exactly"})
        declared = self._declare(draft)
        if self._find_faults(self._decide(oid, role_name, declared)):
            return FoldedDatabase(None, (*notes, "left out: its privileges cannot be declared"))
        return FoldedDatabase(declared, (*notes, *note_unmanaged(draft.unmanaged)))

    def _declare(self, draft: _Draft) -> DatabasePrivileges:
        _limit(draft, self._observed.schemas)
        if "" in draft.unmanaged or len(draft.unmanaged) > _MOST_UNMANAGED or not _are_valid(draft.unmanaged):
            unmanaged: tuple[str, ...] = _EVERYWHERE
        else:
            unmanaged = tuple(sorted(draft.unmanaged))
        access, objects = share_schemas(draft.schemas, self._observed.schemas, MOST_SCHEMAS, MOST_OBJECTS)
        return DatabasePrivileges(
            database=self._facts.database,
            on_database=draft.on_database,
            schemas=tuple(sorted(access, key=lambda one: one.schema)),
            objects=tuple(sorted(set(objects), key=lambda one: one.rank)),
            created_by=tuple(sorted(draft.creators)[:_MOST_CREATORS]),
            unmanaged=unmanaged,
        )

    def _decide(self, oid: int, role_name: str, declared: DatabasePrivileges) -> PrivilegeDecision:
        """Returns what the controller would do. Of objects with the same decision, only one is decided."""
        acls = [*self._others[oid], *([] if self._database is None else [self._database])]
        named = {one.schema for one in declared.objects if one.columns or one.names != _EVERYWHERE}
        named |= {one.schema for one in declared.schemas if one.exceptions not in ((), _EVERYWHERE)}
        touched = {one.schema for one in declared.schemas} | {one.schema for one in declared.objects}
        shared = any(map(is_pattern, touched))
        for schema in sorted(self._contents) if shared else sorted(touched | self._places[oid]):
            contents = self._contents[schema]
            acls += [] if contents.schema is None else [contents.schema]
            for same in contents.groups.values():
                acls += same if schema in named or shared else same[:1]
        # What others hold is grouped once, in self._observed, not for each role.
        own = {id(acl.entries): tuple(self._observed.entries_of(acl, oid)[0]) for acl in acls}
        acls = [ObservedAcl(acl.object, own[id(acl.entries)]) for acl in acls]
        observed = replace(
            self._observed, acls=acls, roles=self._creators, defaults=tuple(self._defaults_for(oid)), columns={}
        )
        grantee = replace(
            self._grantee(oid, role_name),
            declared={declared.database: declared},
            policy=PrivilegePolicy(databases=("*",)),
            owned=self._owned,
        )
        return decide_privileges(grantee, observed, "")

    def _find_faults(self, decision: PrivilegeDecision) -> dict[str, tuple[str, bool]]:
        """Returns, by schema, why the declaration is wrong there, and whether it would grant something."""
        faults: dict[str, tuple[str, bool]] = {}

        def add(schema: str, why: str, *, granted: bool) -> None:
            known = faults.get(schema, (why, False))
            faults[schema] = (known[0], known[1] or granted)

        for change in decision.changes:
            schema = "" if change.object.kind is ObjectKind.DATABASE else change.object.schema
            add(schema, "its privileges cannot be declared exactly", granted=not change.revoke)
        for default in decision.default_changes:
            what = "default privileges of all schemas" if not default.schema else "default privileges of"
            why = f"{what} {default.creator_name} {DEFAULTS_DIFFER}"
            add(default.schema, why, granted=not default.revoke)
        if not faults and any(isinstance(one, Waiting) for one in decision.pending):
            add("", "a name in it cannot be declared", granted=True)
        return faults


def _by_grantee(entries: Sequence[AclEntry]) -> dict[int, HeldPrivileges]:
    whole: dict[int, set[str]] = defaultdict(set)
    columns: dict[int, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    grantable = set[int]()
    for entry in entries:
        if entry.column:
            columns[entry.grantee][entry.privilege].add(entry.column)
        else:
            whole[entry.grantee].add(entry.privilege)
        if entry.grantable:
            grantable.add(entry.grantee)
    return {
        grantee: HeldPrivileges(
            frozenset(whole.get(grantee, ())),
            tuple(sorted((privilege, frozenset(some)) for privilege, some in columns.get(grantee, {}).items())),
            grantee in grantable,
        )
        for grantee in {entry.grantee for entry in entries}
    }


def _choose_creators(draft: _Draft, defaults: Mapping[tuple[str, str], Mapping[str, frozenset[str]]]) -> None:
    """Chooses createdBy: creators whose default privileges equal what it means for every access.

    In schemas where these creators have no default privileges, the declaration uses patterns instead of access.
    """
    expected = {
        name: _expected(folded.access.access)
        for name, folded in draft.schemas.items()
        if folded.access is not None and not folded.access.exceptions
    }
    fitting: dict[str, set[str]] = defaultdict(set)
    for (creator, schema), held in defaults.items():
        if schema in expected and expected[schema].items() <= held.items() and not NOT_UTF8.search(creator):
            fitting[creator].add(schema)
    if not fitting:
        return
    _, first = max(sorted(fitting.items()), key=lambda one: len(one[1]))
    draft.creators = sorted(creator for creator, schemas in fitting.items() if schemas >= first)
    for name in expected.keys() - first:
        draft.schemas[name] = without_access(draft.schemas[name])


def _expected(access: Iterable[Access]) -> dict[str, frozenset[str]]:
    """Returns the default privileges that createdBy means for an access, by type of object."""
    some = list(access)
    found = {object_type: given_by(some, kind) for object_type, kind in DEFAULT_KINDS.items()}
    return {object_type: privileges for object_type, privileges in found.items() if privileges}


def _limit(draft: _Draft, existing: frozenset[str]) -> None:
    """Leaves the schemas with the longest declarations unmanaged, until the rest fits."""
    while draft.schemas:
        access, objects = share_schemas(draft.schemas, existing, MOST_SCHEMAS, MOST_OBJECTS)
        many = len(objects) > MOST_OBJECTS
        excess = len(objects) - MOST_OBJECTS if many else len(access) - MOST_SCHEMAS
        if excess <= 0:
            return
        sizes = {name: len(one.objects) if many else 1 for name, one in draft.schemas.items()}
        for name in sorted(sizes, key=lambda one: (sizes[one], one), reverse=True):
            del draft.schemas[name]
            draft.unmanaged.setdefault(name, "its privileges take more items than an object can have")
            excess -= sizes[name]  # at most: what shared a pattern with it may take more items
            if excess <= 0:
                break


def _are_valid(names: Iterable[str]) -> bool:
    return all(not NOT_UTF8.search(name) and not is_pattern(name) for name in names)
