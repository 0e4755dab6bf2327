"""Who may use one object, and what one role may do in a database, folded into few lines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pgrole_controller.core.access.access_origin import Declarations
from pgrole_controller.core.access.effective_access import (
    AccessJudge,
    AccessObject,
    EffectivePrivilege,
    Route,
    Source,
    SubjectJudge,
)
from pgrole_controller.core.access.role_graph import Chain
from pgrole_controller.core.privileges.acl import PUBLIC, UNDECLARABLE, DatabaseObject, ObjectKind

#: What a role lacks that has CONNECT only after SET ROLE.
LOGIN_FIRST = "not usable at login: SET ROLE comes after CONNECT is checked"


@dataclass(frozen=True, slots=True)
class RoleAccess:
    """What one role may do with one object. `lacks`: for each privilege, what else it needs to use that, in words."""

    role: int
    privileges: tuple[EffectivePrivilege, ...]
    lacks: tuple[tuple[str, ...], ...]

    @property
    def obstacles(self) -> tuple[str, ...]:
        """What makes every one of these privileges useless."""
        return tuple(one for one in self.lacks[0] if all(one in some for some in self.lacks))


@dataclass(frozen=True, slots=True)
class ObjectUsers:
    """Who may use an object.

    `users`: the first of `total` roles, by name, that have more than every role has, superusers excluded.
    `public_obstacles`: what every role's privileges also require and not every role has.
    """

    object: DatabaseObject
    public: tuple[EffectivePrivilege, ...]
    superusers: tuple[int, ...]
    users: tuple[RoleAccess, ...]
    total: int
    public_obstacles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnclosingObjects:
    """The schema and database of an object: without USAGE and CONNECT on these, privileges on the object are
    useless.
    """

    database: AccessObject | None = None
    schema: AccessObject | None = None


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """Objects with the same owner and ACL. `names`: of the first of them, routines with their arguments. `unnamed`:
    there are more, so it is unknown which of them a PgRole declares.
    """

    acl: AccessObject
    names: tuple[str, ...]
    unnamed: bool = False


class DeclaredHere:
    """What PgRoles declare in one database."""

    def __init__(self, declarations: Declarations, database: str) -> None:
        self._declarations = declarations
        self._database = database

    def split(self, groups: Iterable[NamedObjects]) -> Iterable[NamedObjects]:
        """Splits the groups into parts for which a PgRole declares the same privileges."""
        claims = self._declarations.claims
        for group in groups:
            holders = {
                entry.grantee: claim
                for entry in group.acl.entries
                if (claim := claims.get(entry.grantee)) is not None
                and (claim.privileges is None or self._database in claim.privileges)
            }
            if not holders or len(group.names) == 1 == group.acl.count:
                yield group
            elif len(group.names) < group.acl.count:
                yield replace(group, unnamed=True)
            else:
                yield from self._split(group, holders)

    def _split(self, group: NamedObjects, holders: Iterable[int]) -> Iterable[NamedObjects]:
        asked = [(entry.grantee, entry.privilege, entry.column) for entry in group.acl.entries]
        asked = [one for one in asked if one[0] in set(holders)]
        parts: dict[tuple[bool | None, ...], list[str]] = {}
        for name in group.names:
            obj = named_object(group.acl.object, name)
            wants = tuple(self._declarations.wants(*one, self._database, obj) for one in asked)
            parts.setdefault(wants, []).append(name)
        for names in parts.values():
            obj = named_object(group.acl.object, names[0])
            yield NamedObjects(replace(group.acl, object=obj, count=len(names)), tuple(names))

    def declarer(self, group: NamedObjects, one: EffectivePrivilege) -> str | None:
        """The PgRole that declares the privilege by its shortest route, as Declarations.declarer returns it."""
        if group.unnamed and self._declarations.owner_of(one.routes[0].chain.roles[-1]):
            return None
        return self._declarations.declarer(one.routes[0], self._database, group.acl.object, one)


def named_object(obj: DatabaseObject, name: str) -> DatabaseObject:
    """Returns `obj` with this name; that of a routine is followed by its arguments, as in `close_order(bigint)`."""
    if obj.kind is not ObjectKind.ROUTINE:
        return replace(obj, name=name)
    plain, _, arguments = name.rpartition("(")
    return replace(obj, name=plain, arguments=arguments.removesuffix(")"))


class Obstacles:
    """Which roles lack CONNECT on the database or USAGE on a schema."""

    def __init__(self, judge: AccessJudge, database: AccessObject | None) -> None:
        self._judge = judge
        self._database = database
        self._connecting = None if database is None else judge.holders(database, "CONNECT")
        self._using: dict[int, set[int]] = {}
        self._looked_at: AccessObject | None = None
        self._holding: dict[tuple[str, str], set[int]] = {}

    def of(
        self, one: EffectivePrivilege, subject: int, target: AccessObject, schema: AccessObject | None
    ) -> tuple[str, ...]:
        """Returns what a role lacks to use a privilege on `target`, in words, by the way on which it lacks least:
        also one that is not among the routes.
        """
        acting = {route.chain.acting for route in one.routes}
        if schema is not None and not self._use(schema) & {PUBLIC, *acting}:
            reached, holding = self._use(schema) & self._judge.graph.settable(subject), self._hold(target, one)
            acting |= reached if PUBLIC in holding else reached & holding
        return min((self.lacking(oid, subject, schema) for oid in acting), key=len)

    def lacking(self, acting: int, subject: int, schema: AccessObject | None) -> tuple[str, ...]:
        """Returns what a role lacks, in words. `acting`: the role that it sets to use the privilege, or itself."""
        lacking = []
        role = self._judge.graph.roles.get(subject)
        if self._database is not None and self._connecting is not None and (role is None or role.login):  # noqa: SIM102
            if not self._connecting & {subject, PUBLIC}:
                lacking.append(f"CONNECT on database {self._database.object.name}")
        if schema is not None and not self._use(schema) & {acting, PUBLIC}:
            lacking.append(f"USAGE on schema {schema.object.name}")
        return tuple(lacking)

    def _use(self, schema: AccessObject) -> set[int]:
        using = self._using.get(schema.object.id.oid)
        if using is None:
            using = self._using[schema.object.id.oid] = self._judge.holders(schema, "USAGE")
        return using

    def _hold(self, target: AccessObject, one: EffectivePrivilege) -> set[int]:
        if self._looked_at is not target:
            self._looked_at, self._holding = target, {}
        place = (one.privilege, one.column)
        if place not in self._holding:
            self._holding[place] = self._judge.holders(target, *place)
        return self._holding[place]


def who_can(judge: AccessJudge, of: AccessObject, around: EnclosingObjects, most: int) -> ObjectUsers:
    """Returns the roles that may use an object; at most `most` of them with their privileges."""
    graph = judge.graph
    direct = judge.holders(of) - {PUBLIC}
    names = graph.roles
    found = {oid for oid in graph.setting(direct) if oid in names} - judge.superusers
    ordered = sorted(found, key=lambda oid: (graph.name(oid), oid))
    obstacles = Obstacles(judge, around.database)
    users: list[RoleAccess] = []
    total = 0
    for oid in ordered:
        if len(users) >= most:
            total = len(ordered)
            break
        privileges = SubjectJudge(judge, oid).privileges(of)
        own = tuple(one for one in privileges if any(route.source is not Source.PUBLIC for route in one.routes))
        if own and not _is_predefined(own):
            users.append(RoleAccess(oid, own, tuple(obstacles.of(one, oid, of, around.schema) for one in own)))
    return ObjectUsers(
        object=of.object,
        public=tuple(_public(of)),
        superusers=tuple(sorted(judge.superusers, key=graph.name)),
        users=tuple(users),
        total=total or len(users),
        public_obstacles=obstacles.lacking(PUBLIC, PUBLIC, around.schema),
    )


def _is_predefined(privileges: Sequence[EffectivePrivilege]) -> bool:
    """Whether the holder is pg_read_all_data or a similar predefined role, whose members are shown instead."""
    return all(
        len(route.chain.roles) == 1 and route.source in (Source.PREDEFINED, Source.PUBLIC)
        for one in privileges
        for route in one.routes
    )


def _public(of: AccessObject) -> Iterable[EffectivePrivilege]:
    for entry in of.entries:
        if entry.grantee == PUBLIC:
            route = Route(Chain((PUBLIC,)), Source.PUBLIC, entry.grantor_name)
            yield EffectivePrivilege(entry.privilege, entry.column, (route,), 1, entry.grantable)


@dataclass(frozen=True, slots=True)
class AccessLine:
    """Objects of one kind and schema on which a role has the same privileges by the same route.

    `names`: the first of `count`, sorted. `total`: how many objects of the kind the schema has; 0: unknown.
    `declarers`: of each privilege, as Declarations.declarer returns it.
    """

    kind: ObjectKind
    schema: str
    names: tuple[str, ...]
    count: int
    total: int
    privileges: tuple[EffectivePrivilege, ...]
    obstacles: tuple[str, ...]
    declarers: tuple[str | None, ...] = ()


def what_can(
    judge: AccessJudge,
    subject: int,
    groups: Sequence[NamedObjects],
    totals: Mapping[tuple[str, ObjectKind], int],
    around: EnclosingObjects,
    schemas: Mapping[str, AccessObject],
    origins: DeclaredHere | None = None,
) -> list[AccessLine]:
    """Returns what a role may do with these objects, the database and schemas first.

    `totals`: number of objects by schema and kind. `origins`: what PgRoles declare; None: the lines do not say.
    """
    one = SubjectJudge(judge, subject)
    obstacles = Obstacles(judge, around.database)
    folded: dict[tuple[object, ...], AccessLine] = {}
    for group in groups if origins is None else origins.split(groups):
        obj = group.acl.object
        within = schemas.get(obj.schema) if obj.kind is not ObjectKind.SCHEMA else None
        found = [(each, obstacles.of(each, subject, group.acl, within)) for each in one.privileges(group.acl)]
        for lacking, privileges in _by_route(found):
            if _comes_too_late(obj, privileges):
                lacking = (LOGIN_FIRST,)
            declarers = () if origins is None else tuple(origins.declarer(group, name) for name in privileges)
            schema = "" if obj.kind is ObjectKind.SCHEMA else obj.schema
            key = (obj.kind, schema, tuple(map(_signature, privileges)), lacking, declarers)
            count = group.acl.count
            before = folded.get(key)
            total = totals.get((schema, obj.kind), 0)
            names = group.names if before is None else (*before.names, *group.names)
            count += 0 if before is None else before.count
            folded[key] = AccessLine(
                obj.kind, schema, tuple(sorted(names)), count, total, privileges, lacking, declarers
            )
    return sorted(
        folded.values(), key=lambda line: (_ORDER[line.kind], line.schema, line.kind, -line.count, line.names)
    )


_FIRST = (ObjectKind.DATABASE, ObjectKind.SCHEMA)
#: The database, then schemas, then what is in schemas, then kinds that no PgRole can declare.
_ORDER = {
    kind: place if kind in _FIRST or kind in UNDECLARABLE else len(_FIRST) for place, kind in enumerate(ObjectKind)
}


def _signature(one: EffectivePrivilege) -> tuple[object, ...]:
    return (one.privilege, one.column, one.grantable, one.routes[0].chain, one.routes[0].source)


def _comes_too_late(obj: DatabaseObject, privileges: Sequence[EffectivePrivilege]) -> bool:
    first = privileges[0]
    return obj.kind is ObjectKind.DATABASE and first.privilege == "CONNECT" and first.after_set_role


def _by_route(
    privileges: Iterable[tuple[EffectivePrivilege, tuple[str, ...]]],
) -> Iterable[tuple[tuple[str, ...], tuple[EffectivePrivilege, ...]]]:
    """Groups privileges by what is lacking for them and by route. CONNECT after SET ROLE is separate, since it is
    useless.
    """
    found: dict[tuple[object, ...], tuple[tuple[str, ...], list[EffectivePrivilege]]] = {}
    for one, lacking in privileges:
        apart = one.after_set_role and one.privilege == "CONNECT"
        key = (one.routes[0].chain, one.routes[0].source, apart, lacking)
        found.setdefault(key, (lacking, []))[1].append(one)
    return [(lacking, tuple(some)) for lacking, some in found.values()]
