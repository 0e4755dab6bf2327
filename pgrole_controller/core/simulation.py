"""Decides about many objects as the controller would in several rounds, without applying anything in between.

The roles of others can join a role that one object creates in the next round. Here the created role is added to what
exists, and everything is decided again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pgrole_controller.core.decision import ROUNDS, decide
from pgrole_controller.core.diff import Change, Create, GrantMembership, Rename, RevokeMembership
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy, Reached, References
from pgrole_controller.core.role import POWERS, Role
from pgrole_controller.core.state import Desired, Observed, Server


@dataclass(frozen=True, slots=True)
class SimulatedObject:
    """`observed`: as read, or why it could not be read."""

    desired: Desired
    observed: Observed | PgRoleError
    policy: Policy


@dataclass(frozen=True, slots=True)
class Simulation:
    """`decisions`: one for each object, in order. `created`: roles that they create or rename, by their new names.

    `references`: everything that the objects refer to, the created roles included.
    """

    decisions: tuple[Plan | PgRoleError, ...]
    created: Mapping[str, Role]
    references: References


def simulate(
    some: Sequence[SimulatedObject], server: Server, contain: Callable[[Exception], PgRoleError]
) -> Simulation:
    """Decides about all objects. An error of one object is its decision."""
    existing = unite_references([one.observed.references for one in some if isinstance(one.observed, Observed)])
    references, created = existing, dict[str, Role]()
    decisions: tuple[Plan | PgRoleError, ...] = ()
    for _ in range(ROUNDS):
        if not decisions:
            decisions = tuple(_decide(one, server, references, contain) for one in some)
        else:
            decisions = tuple(
                _keep(before, _decide(one, server, references, contain)) if _refers(one, created) else before
                for one, before in zip(some, decisions, strict=True)
            )
        found = {
            name: one.desired.role
            for one, decision in zip(some, decisions, strict=True)
            if isinstance(decision, Plan)
            for name in _new_names(decision)
        }
        if found.keys() <= created.keys():
            break
        created |= found
        references = _add_roles(existing, created)
    return Simulation(refuse_cycles(decisions, existing, created), created, references)


def refuse_cycles(
    decisions: Sequence[Plan | PgRoleError], existing: References, created: Mapping[str, Role]
) -> tuple[Plan | PgRoleError, ...]:
    """Finds new memberships that PostgreSQL rejects, because the role to join is a member of the one that joins."""
    revoking = any(
        isinstance(change, RevokeMembership) for one in decisions if isinstance(one, Plan) for change in one.changes
    )
    joined: dict[str, list[str]] = {}
    judged: list[Plan | PgRoleError] = []
    for one in decisions:
        if isinstance(one, PgRoleError):
            judged.append(one)
            continue
        now, late = split_late(one.changes, created)
        for change in (*now, *late):
            if not isinstance(change, GrantMembership):
                continue
            group = change.membership.role
            if not _leads(group, one.role_name, joined, {} if revoking else existing.reached, created):
                joined.setdefault(one.role_name, []).append(group)
                continue
            error = Refused(
                Reason.INVALID_SPEC,
                "spec.memberOf: PostgreSQL rejects the membership; remove it, or the one that it conflicts with: "
                f'role "{group}" is a member of role "{one.role_name}"',
            )
            judged.append(_keep(replace(one, changes=now), error) if change in late else error)
            break
        else:
            judged.append(one)
    return tuple(judged)


def _leads(
    start: str,
    goal: str,
    joined: Mapping[str, Sequence[str]],
    reached: Mapping[str, Sequence[Reached]],
    created: Mapping[str, Role],
) -> bool:
    """Whether `start` is a member of `goal`, directly or not, by memberships that exist or were planned before."""
    left, seen = [start], set[str]()
    while left:
        name = left.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            left += joined.get(name, ())
            left += () if name in created else (one.name for one in reached.get(name, ()))
    return False


def split_late(changes: Sequence[Change], created: Mapping[str, Role]) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Returns the changes that can be made at once, and those that need a role which another object creates."""
    late = tuple(one for one in changes if isinstance(one, GrantMembership) and one.membership.role in created)
    return tuple(one for one in changes if one not in late), late


def unite_references(some: Sequence[References]) -> References:
    """Unites what was read in one snapshot for several objects."""
    groups: dict[str, tuple[str, ...]] = {}
    reached: dict[str, tuple[Reached, ...]] = {}
    contexts: dict[str, str] = {}
    databases: set[str] = set()
    templates: set[str] = set()
    modules: set[str] = set()
    options = True
    for one in {id(each): each for each in some}.values():
        groups |= one.groups
        reached |= one.reached
        contexts |= one.contexts
        databases |= one.databases
        templates |= one.templates
        modules |= one.modules
        if one != References():
            options = options and one.options
    return References(
        groups, reached, contexts, frozenset(databases), frozenset(templates), frozenset(modules), options
    )


def _decide(
    one: SimulatedObject, server: Server, references: References, contain: Callable[[Exception], PgRoleError]
) -> Plan | PgRoleError:
    if isinstance(one.observed, PgRoleError):
        return one.observed
    try:
        return decide(one.desired, replace(one.observed, references=references), server, one.policy)
    except PgRoleError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- this object's error, whatever it holds
        return contain(error)


def _refers(one: SimulatedObject, created: Mapping[str, Role]) -> bool:
    """Whether the decision can depend on roles that other objects create."""
    roles = (one.desired.role, *(rival.role for rival in one.desired.older_rivals))
    return any(held.role in created for role in roles for held in role.member_of)


def _keep(before: Plan | PgRoleError, later: Plan | PgRoleError) -> Plan | PgRoleError:
    """Keeps what was applied in an earlier round, even if the object is refused in a later one."""
    if isinstance(before, Plan) and isinstance(later, PgRoleError) and before.changes:
        return before if later in before.pending else replace(before, pending=(later, *before.pending))
    return later


def _new_names(plan: Plan) -> tuple[str, ...]:
    return tuple(
        change.role.name if isinstance(change, Create) else change.new
        for change in plan.changes
        if isinstance(change, Create | Rename)
    )


def _add_roles(existing: References, created: Mapping[str, Role]) -> References:
    groups, reached = dict(existing.groups), dict(existing.reached)
    for name in created:
        hard: dict[str, None] = {}
        every: dict[str, Reached] = {}
        _reach(name, existing, created, hard, every)
        groups[name], reached[name] = tuple(hard), tuple(every.values())
    return replace(existing, groups=groups, reached=reached)


def _reach(
    start: str,
    existing: References,
    created: Mapping[str, Role],
    hard: dict[str, None],
    every: dict[str, Reached],
) -> None:
    """Adds what a created role leads to, itself included."""
    left = [start]
    while left:
        name = left.pop()
        if name in every:
            continue
        role = created.get(name)
        if role is None:
            hard |= dict.fromkeys(existing.groups.get(name, ()))
            for one in existing.reached.get(name, ()):
                every.setdefault(one.name, one)
            continue
        every[name] = Reached(name, tuple(power for power in POWERS if getattr(role, power)))
        if role.superuser:
            hard[name] = None
        left += [one.role for one in role.member_of]
