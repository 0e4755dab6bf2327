"""Roles and their memberships, and the chains of memberships through which a role has another role's privileges.

A membership lets its member use the group's privileges at once (INHERIT), or after `SET ROLE` (SET), or only grant the
group to others (ADMIN). So a chain follows SET memberships to the role that `SET ROLE` names, and from there INHERIT
memberships. PostgreSQL forbids cycles, but nothing here relies on that.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple

#: Fixed oids of predefined roles with a meaning of their own.
PG_DATABASE_OWNER = 6171
PG_READ_ALL_DATA = 6181
PG_WRITE_ALL_DATA = 6182
PG_MAINTAIN = 6337

#: Chains to one role are counted up to this number.
MOST_COUNTED = 1000

#: Maximum number of steps of a search for further chains.
_MOST_STEPS = 2000


@dataclass(frozen=True, slots=True)
class AccessRole:
    """A role, as far as it decides about access. `inherit`: of new memberships; before 16, of all."""

    oid: int
    name: str
    superuser: bool = False
    login: bool = False
    inherit: bool = True
    bypass_rls: bool = False


@dataclass(frozen=True, slots=True)
class GroupEdge:
    """A membership, whoever granted it. `implicit`: of the database's owner in pg_database_owner."""

    member: int
    group: int
    inherit: bool = True
    set_role: bool = True
    admin: bool = False
    implicit: bool = False


class Chain(NamedTuple):
    """The roles from the subject to the holder, both included. `switch`: index in `roles` of the role that `SET ROLE`
    names; 0: none is needed.
    """

    roles: tuple[int, ...]
    switch: int = 0

    @property
    def acting(self) -> int:
        """The role whose privileges apply: the subject, or the role that it sets."""
        return self.roles[self.switch]


class RoleGraph:
    """All roles of a server and their memberships."""

    __slots__ = ("_groups", "_members", "roles")

    def __init__(self, roles: Iterable[AccessRole], edges: Iterable[GroupEdge]) -> None:
        self.roles: Mapping[int, AccessRole] = {role.oid: role for role in roles}
        self._groups: dict[int, dict[int, GroupEdge]] = defaultdict(dict)
        self._members: dict[int, dict[int, GroupEdge]] = defaultdict(dict)
        for edge in edges:
            self._add(edge)

    def in_database(self, owner: int, *, by_role: bool) -> "RoleGraph":
        """Returns the graph as it applies in a database with this owner, who is a member of pg_database_owner there.

        `by_role`: INHERIT is an attribute of the member, as before PostgreSQL 16.
        """
        graph = RoleGraph((), ())
        graph.roles = self.roles
        graph._groups.update(self._groups)
        graph._members.update(self._members)
        for edges, oid in ((graph._groups, owner), (graph._members, PG_DATABASE_OWNER)):
            edges[oid] = dict(edges[oid]) if oid in edges else {}
        role = self.roles.get(owner)
        inherit = role is None or role.inherit or not by_role
        graph._add(GroupEdge(owner, PG_DATABASE_OWNER, inherit=inherit, implicit=True))
        return graph

    def _add(self, edge: GroupEdge) -> None:
        if edge.member not in self.roles or edge.group not in self.roles:
            return  # dropped while the server was read
        self._groups[edge.member][edge.group] = edge
        self._members[edge.group][edge.member] = edge

    def name(self, oid: int) -> str:
        role = self.roles.get(oid)
        return str(oid) if role is None else role.name

    def groups(self, member: int) -> Collection[GroupEdge]:
        return self._groups[member].values() if member in self._groups else ()

    def members(self, group: int) -> Collection[GroupEdge]:
        return self._members[group].values() if group in self._members else ()

    def inherited(self, subjects: Iterable[int]) -> set[int]:
        """Returns the roles whose privileges one of these has without SET ROLE, these included."""
        return _spread(subjects, lambda role: (edge.group for edge in self.groups(role) if edge.inherit))

    def settable(self, subject: int) -> set[int]:
        """Returns the roles that this one can name in SET ROLE, itself included; for a superuser, not every role."""
        return _spread((subject,), lambda role: (edge.group for edge in self.groups(role) if edge.set_role))

    def inheriting(self, holders: Iterable[int]) -> set[int]:
        """Returns the roles that have the privileges of one of these without SET ROLE, these included."""
        return _spread(holders, lambda role: (edge.member for edge in self.members(role) if edge.inherit))

    def setting(self, targets: Iterable[int]) -> set[int]:
        """Returns the roles that can name one of these in SET ROLE, these included."""
        return _spread(targets, lambda role: (edge.member for edge in self.members(role) if edge.set_role))


def _spread(start: Iterable[int], following: Callable[[int], Iterable[int]]) -> set[int]:
    found = set(start)
    left = list(found)
    while left:
        for role in following(left.pop()):
            if role not in found:
                found.add(role)
                left.append(role)
    return found


class _State(NamedTuple):
    """A place on a chain. `acting`: SET ROLE has happened or is not needed, so only INHERIT memberships follow."""

    role: int
    acting: bool


class ChainSearch:
    """Finds the chains from any role to one holder. Reads the part of the graph that leads to the holder once.

    Finds each chain of roles once: `SET ROLE` names the first role from which all further memberships inherit, but
    never the subject. `itself`: SET ROLE must name the holder, because its SUPERUSER attribute is not inherited.
    """

    def __init__(self, graph: RoleGraph, holder: int, *, itself: bool = False) -> None:
        self._graph = graph
        self._end = _State(holder, acting=not itself)
        self._away: dict[_State, int] = {self._end: 0}
        self._counts: dict[_State, int] = {}
        left = deque([self._end])
        while left:
            state = left.popleft()
            for before in self._preceding(state):
                if before not in self._away:
                    self._away[before] = self._away[state] + 1
                    left.append(before)

    def _preceding(self, state: _State) -> Iterator[_State]:
        """Returns the states that this one follows, except the subject's."""
        for edge in self._graph.members(state.role):
            if state.acting and edge.inherit:
                yield _State(edge.member, acting=True)
            if edge.set_role and not (state.acting and edge.inherit):
                yield _State(edge.member, acting=False)

    def _following(self, state: _State, *, first: bool) -> Iterator[_State]:
        """`first`: the state is the subject's."""
        for edge in self._graph.groups(state.role):
            if state.acting:
                if edge.inherit:
                    yield from self._leading(_State(edge.group, acting=True))
            elif edge.set_role:
                yield from self._leading(_State(edge.group, acting=False))
                if first or not edge.inherit:
                    yield from self._leading(_State(edge.group, acting=True))

    def _leading(self, state: _State) -> Iterator[_State]:
        if state in self._away:
            yield state

    def chains(self, subject: int, *, after_set_role: bool, most: int) -> tuple[tuple[Chain, ...], int]:
        """Returns the shortest chains, at most `most`, and their total number (MOST_COUNTED: that many or more)."""
        start = _State(subject, acting=not after_set_role)
        if start != self._end and not any(self._following(start, first=True)):
            return (), 0
        found: list[Chain] = []
        heap: list[tuple[int, tuple[int, ...], int, bool]] = [(0, (subject,), 0, start.acting)]
        for _ in range(_MOST_STEPS):
            if not heap or len(found) >= most:
                break
            _, roles, switch, acting = heappop(heap)
            state = _State(roles[-1], acting)
            if state == self._end:
                found.append(Chain(roles, switch if acting else len(roles) - 1))
                continue
            for after in self._following(state, first=len(roles) == 1):
                if after.role not in roles:
                    place = len(roles) if after.acting and not acting else switch
                    length = len(roles) + self._away[after]
                    heappush(heap, (length, (*roles, after.role), place, after.acting))
        return tuple(found) or (self._shortest(start),), max(1, len(found), self._count(start))

    def _shortest(self, start: _State) -> Chain:
        """Finds chains with more roles than a search has steps."""
        roles, state, switch = [start.role], start, 0
        while state != self._end:
            after = min(self._following(state, first=len(roles) == 1), key=self._away.__getitem__)
            if after.acting and not state.acting:
                switch = len(roles)
            roles.append(after.role)
            state = after
        return Chain(tuple(roles), switch if state.acting else len(roles) - 1)

    def _count(self, start: _State) -> int:
        """Counts the chains, without any through a cycle, which cannot exist."""
        inner = [after for after in self._following(start, first=True) if after != start]
        left = [(state, False) for state in inner]
        while left:
            state, entered = left.pop()
            if entered:
                total = sum(self._counts.get(after, 0) for after in self._following(state, first=False))
                self._counts[state] = min(MOST_COUNTED, total + (state == self._end))
            elif state not in self._counts:
                self._counts[state] = 0
                left.append((state, True))
                left.extend((after, False) for after in self._following(state, first=False))
        return min(MOST_COUNTED, sum(self._counts[state] for state in inner) + (start == self._end))
