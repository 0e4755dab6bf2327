"""What a role may do with an object, and how, decided as in PostgreSQL's aclchk.c.

An owner has what the object's ACL gives it, by default everything. A superuser has everything. Members of
pg_read_all_data, pg_write_all_data or pg_maintain have privileges that no ACL shows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgrole_controller.core.access.role_graph import (
    PG_MAINTAIN,
    PG_READ_ALL_DATA,
    PG_WRITE_ALL_DATA,
    Chain,
    ChainSearch,
    RoleGraph,
)
from pgrole_controller.core.privileges.acl import (
    DECLARABLE,
    MAINTAIN_SINCE,
    PUBLIC,
    TABLE_KINDS,
    AclEntry,
    DatabaseObject,
    ObjectKind,
)

#: Maximum number of routes shown for one privilege.
MOST_ROUTES = 5

#: Rows of pg_class below this oid are PostgreSQL's own; only superusers may change their contents.
_FIRST_UNPINNED_OID = 12000
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "TRUNCATE", "USAGE"})

_EVERY_PRIVILEGE: dict[ObjectKind, tuple[str, ...]] = {
    **DECLARABLE,
    ObjectKind.TYPE: ("USAGE",),
    ObjectKind.LANGUAGE: ("USAGE",),
    ObjectKind.FOREIGN_DATA_WRAPPER: ("USAGE",),
    ObjectKind.FOREIGN_SERVER: ("USAGE",),
    ObjectKind.LARGE_OBJECT: ("SELECT", "UPDATE"),
}


class Source(StrEnum):
    """Why the role at the end of a chain has a privilege, strongest first."""

    SUPERUSER = "Superuser"
    OWNER = "Owner"
    GRANT = "Grant"
    PREDEFINED = "PredefinedRole"
    PUBLIC = "Public"


_RANK = {source: place for place, source in enumerate(Source)}


@dataclass(frozen=True, slots=True)
class AccessObject:
    """An object with its whole ACL; if it has none, that of acldefault. Includes entries of columns. `count`: number
    of objects of its kind and schema, with the same owner and ACL, that it stands for.
    """

    object: DatabaseObject
    entries: tuple[AclEntry, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Route:
    """One way by which a role has a privilege."""

    chain: Chain
    source: Source
    grantor: str = ""


@dataclass(frozen=True, slots=True)
class EffectivePrivilege:
    """A privilege that a role has. `column` is empty for the whole object. `routes`: the shortest first, at most
    MOST_ROUTES of `total`. `grantable`: the role may grant it to others.
    """

    privilege: str
    column: str
    routes: tuple[Route, ...]
    total: int
    grantable: bool = False

    @property
    def after_set_role(self) -> bool:
        return self.routes[0].chain.switch > 0


def every_privilege(kind: ObjectKind, version: int) -> tuple[str, ...]:
    """Returns the privileges that exist on a kind of object, in PostgreSQL's order. `version`: server_version_num."""
    return tuple(one for one in _EVERY_PRIVILEGE[kind] if one != "MAINTAIN" or version >= MAINTAIN_SINCE)


@dataclass(frozen=True, slots=True)
class _Holding:
    """A privilege that one role holds, for every role that reaches it."""

    privilege: str
    column: str
    source: Source
    holder: int
    grantor: str = ""
    grantable: bool = False


class AccessJudge:
    """Decides about access in one database. `version`: server_version_num."""

    def __init__(self, graph: RoleGraph, version: int) -> None:
        self.graph = graph
        self.version = version
        self.superusers = frozenset(oid for oid, role in graph.roles.items() if role.superuser)
        self._searches: dict[tuple[int, bool], ChainSearch] = {}
        self._looked_at: AccessObject | None = None
        self._holdings: dict[int, list[_Holding]] = {}

    def search(self, holder: int, *, itself: bool = False) -> ChainSearch:
        """As ChainSearch; searches each holder once."""
        known = self._searches.get((holder, itself))
        if known is None:
            known = self._searches[holder, itself] = ChainSearch(self.graph, holder, itself=itself)
        return known

    def holdings(self, of: AccessObject) -> Mapping[int, Sequence[_Holding]]:
        """Returns what is held on an object, by holder; cached, since many roles are asked about the same object."""
        if self._looked_at is not of:
            self._looked_at, self._holdings = of, {}
            for one in _holdings(of, self.version):
                self._holdings.setdefault(one.holder, []).append(one)
        return self._holdings

    def holders(self, of: AccessObject, privilege: str = "", column: str | None = None) -> set[int]:
        """Returns the roles that have this privilege without SET ROLE; includes PUBLIC if every role has it. Empty
        privilege: any. `column`: on this one, empty: on the whole object; None: on anything.
        """
        named = {
            one.holder
            for one in _holdings(of, self.version)
            if not privilege or (one.privilege == privilege and (column is None or one.column in ("", column)))
        }
        return self.graph.inheriting(named) | self.superusers


class SubjectJudge:
    """Decides about the access of one role to any number of objects."""

    def __init__(self, judge: AccessJudge, subject: int) -> None:
        self._judge = judge
        self._subject = subject
        self._inherited = judge.graph.inherited((subject,))
        self._reached = judge.graph.inherited(judge.graph.settable(subject)) | {PUBLIC}
        self._chains: dict[tuple[int, bool, bool], tuple[tuple[Chain, ...], int]] = {}

    def privileges(self, of: AccessObject) -> list[EffectivePrivilege]:
        """Returns what the role may do with an object, in PostgreSQL's order, columns last."""
        kinds = every_privilege(of.object.kind, self._judge.version)
        if self._subject in self._judge.superusers:
            route = Route(Chain((self._subject,)), Source.SUPERUSER)
            return [EffectivePrivilege(name, "", (route,), 1, grantable=True) for name in kinds]
        found: dict[tuple[str, str], EffectivePrivilege] = {}
        for (column, privilege), holdings in self._by_privilege(of, kinds):
            one = self._privilege(privilege, column, holdings, of.object.owner)
            whole = found.get(("", privilege)) if column else None
            if one is not None and (whole is None or _is_more(one, whole)):
                found[column, privilege] = one
        return list(found.values())

    def _by_privilege(self, of: AccessObject, kinds: Sequence[str]) -> Iterator[tuple[tuple[str, str], list[_Holding]]]:
        order = {name: place for place, name in enumerate(kinds)}
        held: dict[tuple[str, str], list[_Holding]] = {}
        holdings = self._judge.holdings(of)
        for holder in sorted(self._reached & holdings.keys()):
            for one in holdings[holder]:
                held.setdefault((one.column, one.privilege), []).append(one)
        for superuser in sorted(self._judge.superusers & self._reached):
            for privilege in kinds:
                one = _Holding(privilege, "", Source.SUPERUSER, superuser, grantable=True)
                held.setdefault(("", privilege), []).append(one)
        yield from sorted(held.items(), key=lambda item: (item[0][0], order.get(item[0][1], len(order)), item[0][1]))

    def _privilege(
        self, privilege: str, column: str, holdings: Sequence[_Holding], owner: int
    ) -> EffectivePrivilege | None:
        for after_set_role in (False, True):
            routes: list[Route] = []
            total, grantable = 0, owner in self._inherited
            for one in holdings:
                chains, count = self._chains_to(one, after_set_role=after_set_role)
                routes += [Route(chain, one.source, one.grantor) for chain in chains]
                total += count
                grantable = grantable or (one.grantable and bool(chains))
            if routes:
                routes.sort(key=lambda route: (len(route.chain.roles), _RANK[route.source], route.chain))
                return EffectivePrivilege(privilege, column, tuple(routes[:MOST_ROUTES]), total, grantable)
        return None

    def _chains_to(self, one: _Holding, *, after_set_role: bool) -> tuple[tuple[Chain, ...], int]:
        if one.holder == PUBLIC:
            return ((), 0) if after_set_role else ((Chain((self._subject,)),), 1)
        itself = one.source is Source.SUPERUSER
        known = self._chains.get((one.holder, itself, after_set_role))
        if known is None:
            search = self._judge.search(one.holder, itself=itself)
            known = search.chains(self._subject, after_set_role=after_set_role, most=MOST_ROUTES)
            self._chains[one.holder, itself, after_set_role] = known
        return known


def _is_more(column: EffectivePrivilege, whole: EffectivePrivilege) -> bool:
    """Whether a privilege on a column says more than the same one on the whole object."""
    return (whole.after_set_role and not column.after_set_role) or (column.grantable and not whole.grantable)


def _holdings(of: AccessObject, version: int) -> Iterator[_Holding]:
    closed = _CHANGES if _is_catalog(of.object) else frozenset[str]()
    merged: dict[tuple[int, str, str], _Holding] = {}
    for entry in of.entries:
        source = Source.PUBLIC if entry.grantee == PUBLIC else Source.GRANT
        if entry.grantee == of.object.owner:
            source = Source.OWNER
        place = (entry.grantee, entry.privilege, entry.column)
        grantable = entry.grantable or (place in merged and merged[place].grantable)
        merged[place] = _Holding(entry.privilege, entry.column, source, entry.grantee, entry.grantor_name, grantable)
    for one in (*merged.values(), *_predefined(of.object.kind, version)):
        if one.privilege not in closed:
            yield one


def _is_catalog(obj: DatabaseObject) -> bool:
    return obj.id.catalog == "pg_class" and obj.id.oid < _FIRST_UNPINNED_OID and obj.kind is not ObjectKind.VIEW


def _predefined(kind: ObjectKind, version: int) -> Iterator[_Holding]:
    read, write = PG_READ_ALL_DATA, PG_WRITE_ALL_DATA
    if kind is ObjectKind.SCHEMA:
        pairs = [(read, "USAGE"), (write, "USAGE")]
    elif kind in TABLE_KINDS:
        pairs = [(read, "SELECT"), (write, "INSERT"), (write, "UPDATE"), (write, "DELETE")]
        if version >= MAINTAIN_SINCE:
            pairs.append((PG_MAINTAIN, "MAINTAIN"))
    elif kind is ObjectKind.SEQUENCE:
        pairs = [(read, "SELECT"), (write, "UPDATE")]
    else:
        pairs = []
    for role, privilege in pairs:
        yield _Holding(privilege, "", Source.PREDEFINED, role)
