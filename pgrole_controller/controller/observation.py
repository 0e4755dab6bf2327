"""Reads the observed state of a batch of objects: roles and claims, what they refer to, and what blocks a drop."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.ddl import NAME_BYTES
from pgrole_controller.core.deletion import find_role_to_drop
from pgrole_controller.core.errors import NOT_UTF8, PgRoleError
from pgrole_controller.core.ownership import find_certain_role
from pgrole_controller.core.parameters import ALL
from pgrole_controller.core.privileges.kept_privileges import former_databases
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.server_catalog import HeldQuestion
from pgrole_controller.postgres.session import DropState, DropTarget, Session

Question = TypeVar("Question")
Found = TypeVar("Found")


def server_of_session(session: Session, declared: ServerConfig) -> Server:
    """Returns the server of the session, as decisions see it."""
    identity = session.identity
    return Server(
        identity.system_identifier,
        identity.own_roles,
        declared.address,
        session.detection.claims,
        declared.uid,
        declared.generation,
        has_current_schema=session.has_current_schema,
        enforcing=session.enforcing,
    )


async def read_observed(targets: Sequence[Target], session: Session, server: Server) -> list[Observed | PgRoleError]:
    """Reads the observed state of each target. An object whose role cannot be read gets its error."""
    if not targets:
        return []
    observations = await session.read_roles([(target.key, target.role_name) for target in targets])
    add = partial(_add, targets, observations)
    await add(_find_referenced, session.read_references, lambda found: {"references": found})
    await add(partial(_ask_held, server), session.read_unheld, lambda found: {"unheld": found})
    await add(partial(_find_namespace, server), partial(_read_owned, session), lambda found: {"owned": found})
    await add(partial(_find_ending, server), session.read_drop_states, DropState._asdict)
    return observations


async def _add(
    targets: Sequence[Target],
    observations: list[Observed | PgRoleError],
    ask: Callable[[Target, Observed], Question | None],
    read: Callable[[list[Question]], Awaitable[Sequence[Found | PgRoleError]]],
    fields: Callable[[Found], dict[str, Any]],
) -> None:
    """Reads the answers for all objects about which `ask` has a question, and adds them as `fields` of Observed."""
    asked: dict[int, tuple[Question, Observed]] = {}
    for place, (target, observed) in enumerate(zip(targets, observations, strict=True)):
        if isinstance(observed, Observed) and (question := ask(target, observed)) is not None:
            asked[place] = question, observed
    if not asked:
        return
    answers = await read([question for question, _ in asked.values()])
    for (place, (_, observed)), found in zip(asked.items(), answers, strict=True):
        observations[place] = found if isinstance(found, PgRoleError) else replace(observed, **fields(found))


def _find_referenced(target: Target, observed: Observed) -> ReferencedNames | None:
    """Returns what the role refers to or holds; None if nothing."""
    desired = target.desired
    rivals = desired.older_rivals if desired else ()
    declared = [desired.role, *(rival.role for rival in rivals)] if desired else []
    held = [one.role for one in (observed.named, observed.claimed) if one]
    groups = {membership.role for role in (*declared, *held) for membership in role.member_of}
    if desired and desired.terminating and desired.new_owner:
        groups.add(desired.new_owner)
    referenced = ReferencedNames(
        groups=frozenset(name for name in groups if not NOT_UTF8.search(name)),
        parameters=frozenset(name for role in declared for name in role.parameter_names)
        | frozenset(name for role in held for name in role.parameter_names if _may_be_servers(name)),
        databases=frozenset(database for role in declared for database, _ in role.database_parameters)
        | frozenset(desired.privileges or () if desired else ())
        | frozenset(observed.claim.privileges if observed.claim else ()),
        protected=frozenset(
            pattern for policy in (target.policy, *(rival.policy for rival in rivals)) for pattern in policy.protected
        ),
    )
    return referenced if referenced.groups or referenced.parameters or referenced.databases else None


def _may_be_servers(parameter: str) -> bool:
    """Whether a stored parameter may be one of the server's own or of its extensions; the longest name has 63 bytes."""
    return len(parameter) <= NAME_BYTES and parameter != ALL and not NOT_UTF8.search(parameter)


def _ask_held(server: Server, target: Target, observed: Observed) -> HeldQuestion | None:
    """Returns the role and the databases in which its privileges matter before its workers answer; None if they do
    not. The results of these workers were collected before.
    """
    desired = target.desired
    if desired is None:
        return None
    held = find_certain_role(observed.claim, observed, server)
    if held is not None and observed.claim is not None:
        former = former_databases(desired, observed.claim.privileges) & observed.references.databases
        return HeldQuestion(held.oid, former) if former else None
    if observed.named is not None and desired.privileges and not desired.terminating:
        return HeldQuestion(observed.named.oid, frozenset(desired.privileges), served=True)
    return None


def _find_namespace(server: Server, target: Target, observed: Observed) -> tuple[str, str] | None:
    """Returns name and uid of the object's namespace, if the object may take over an existing role."""
    desired = target.desired
    if desired is None or find_adoptee(desired, observed, server, target.policy) is None:
        return None
    return desired.owner.namespace, desired.owner.namespace_uid


async def _read_owned(session: Session, namespaces: Sequence[tuple[str, str]]) -> list[frozenset[int]]:
    """Reads whose privileges each of these namespaces may declare."""
    roles = await session.read_namespace_roles(sorted(set(namespaces)))
    return [roles[one] for one in namespaces]


def _find_ending(server: Server, target: Target, observed: Observed) -> DropTarget | None:
    """Returns the role to be dropped, and the name of the new owner of what it owns."""
    desired = target.desired
    oid = find_role_to_drop(desired, observed, server, target.policy) if desired else None
    return (oid, desired.new_owner) if desired and oid is not None else None
