"""Reads the observed state of a batch of objects: roles and claims, what they refer to, and what blocks a drop."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pgrole_controller.controller.objects import Target
from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.ddl import NAME_BYTES
from pgrole_controller.core.decision import find_held
from pgrole_controller.core.deletion import find_role_to_drop
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.parameters import ALL
from pgrole_controller.core.privileges.kept_privileges import find_former
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.held_databases import HeldQuestion
from pgrole_controller.postgres.session import Session


async def read_observed(targets: Sequence[Target], session: Session, server: Server) -> list[Observed | PgRoleError]:
    """Reads the observed state of each target. An object whose role cannot be read gets its error."""
    if not targets:
        return []
    observations = await session.read_roles([(target.key, target.role_name) for target in targets])
    await _add_references(targets, observations, session)
    await _add_unheld(targets, observations, session, server)
    await _add_owned(targets, observations, session, server)
    ends = {
        place: (oid, target.desired.new_owner)
        for place, (target, observed) in enumerate(zip(targets, observations, strict=True))
        if target.desired
        and isinstance(observed, Observed)
        and (oid := find_role_to_drop(target.desired, observed, server, target.policy)) is not None
    }
    if ends:
        await _add_endings(ends, observations, session)
    return observations


async def _add_references(
    targets: Sequence[Target], observations: list[Observed | PgRoleError], session: Session
) -> None:
    """Reads what the roles refer to or hold, for all of them at once."""
    referenced = {
        place: some
        for place, (target, observed) in enumerate(zip(targets, observations, strict=True))
        if isinstance(observed, Observed) and (some := _referenced(target, observed))
    }
    references = await session.read_references(list(referenced.values()))
    for place, one in zip(referenced, references, strict=True):
        observed = observations[place]
        if isinstance(observed, Observed):
            observations[place] = one if isinstance(one, PgRoleError) else replace(observed, references=one)


def _referenced(target: Target, observed: Observed) -> ReferencedNames | None:
    """Returns what the object refers to; None if nothing."""
    every = [target.desired] if target.desired else []
    desired_role = [desired.role for desired in every] + [
        rival.role for desired in every for rival in desired.older_rivals
    ]
    there = [one.role for one in (observed.named, observed.claimed) if one]
    groups = {held.role for role in (*desired_role, *there) for held in role.member_of}
    groups |= {desired.new_owner for desired in every if desired.terminating} - {""}
    policies = [target.policy, *(rival.policy for desired in every for rival in desired.older_rivals)]
    referenced = ReferencedNames(
        groups=frozenset(name for name in groups if not _is_illegible(name)),
        parameters=frozenset(name for role in desired_role for name in role.parameter_names)
        | frozenset(name for role in there for name in role.parameter_names if _may_be_servers(name)),
        databases=frozenset(database for role in desired_role for database, _ in role.database_parameters)
        | frozenset(target.desired.privileges or () if target.desired else ())
        | frozenset(observed.claim.privileges if observed.claim else ()),
        protected=frozenset(pattern for policy in policies for pattern in policy.protected),
    )
    return referenced if referenced.groups or referenced.parameters or referenced.databases else None


async def _add_unheld(
    targets: Sequence[Target], observations: list[Observed | PgRoleError], session: Session, server: Server
) -> None:
    """Reads where roles have no privileges. The results of the databases' workers were collected before."""
    asked = {
        place: some
        for place, (target, observed) in enumerate(zip(targets, observations, strict=True))
        if target.desired
        and isinstance(observed, Observed)
        and (some := _find_question(target.desired, observed, server))
    }
    if not asked:
        return
    for place, found in zip(asked, await session.read_unheld(list(asked.values())), strict=True):
        observed = observations[place]
        if isinstance(observed, Observed):
            observations[place] = found if isinstance(found, PgRoleError) else replace(observed, unheld=found)


def _find_question(desired: Desired, observed: Observed, server: Server) -> HeldQuestion | None:
    """Returns the role and the databases in which its privileges matter before its workers answer; None if they do
    not.
    """
    held = find_held(observed.claim, observed, server)
    if held is not None and observed.claim is not None:
        former = find_former(desired, observed.claim.privileges) & observed.references.databases
        return HeldQuestion(held.oid, former) if former else None
    if observed.named is not None and desired.privileges and not desired.terminating:
        return HeldQuestion(observed.named.oid, frozenset(desired.privileges), served=True)
    return None


async def _add_owned(
    targets: Sequence[Target], observations: list[Observed | PgRoleError], session: Session, server: Server
) -> None:
    """Reads whose privileges the namespaces may declare, for the objects that may take over an existing role."""
    asked = {
        place: (target.desired.owner.namespace, target.desired.owner.namespace_uid)
        for place, (target, observed) in enumerate(zip(targets, observations, strict=True))
        if target.desired
        and isinstance(observed, Observed)
        and find_adoptee(target.desired, observed, server, target.policy)
    }
    roles = await session.read_namespace_roles(sorted(set(asked.values()))) if asked else {}
    for place, namespace in asked.items():
        observed = observations[place]
        if isinstance(observed, Observed):
            observations[place] = replace(observed, owned=roles[namespace])


def _may_be_servers(parameter: str) -> bool:
    """Whether a stored parameter may be one of the server's own or of its extensions; the longest name has 63 bytes."""
    return len(parameter) <= NAME_BYTES and parameter != ALL and not _is_illegible(parameter)


def _is_illegible(name: str) -> bool:
    """Whether the name has another encoding, so that no query can contain it."""
    return any("\ud800" <= letter <= "\udfff" for letter in name)


async def _add_endings(
    ends: Mapping[int, tuple[int, str]], observations: list[Observed | PgRoleError], session: Session
) -> None:
    """Reads what depends on the roles to be dropped, who uses them, and their new owners. `ends`: oid of the role and
    name of the new owner, by place.
    """
    for place, ending in zip(ends, await session.read_drop_states(list(ends.values())), strict=True):
        observed = observations[place]
        if isinstance(ending, PgRoleError):
            observations[place] = ending
        elif isinstance(observed, Observed):
            observations[place] = replace(
                observed, dependents=ending.dependents, sessions=ending.sessions, new_owner=ending.new_owner
            )
