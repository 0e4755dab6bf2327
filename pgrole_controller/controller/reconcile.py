"""One reconcile of a batch of keys of one worker: read what is desired, read what is there, apply the difference.

Whatever the request said, everything is read again. After a write the roles are read once more: Ready is only said of
what was read back from the database.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import anyio

from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.objects import Objects, Target
from pgrole_controller.controller.repeats import Repeats, Settled
from pgrole_controller.controller.result import Attempt, Result, current_moment, refuse, unread
from pgrole_controller.controller.server import ServerConfig
from pgrole_controller.controller.telemetry import Echoes
from pgrole_controller.controller.verifiers import Verifiers
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.decision import decide, decide_absent
from pgrole_controller.core.deletion import add_way_out, find_role_to_drop
from pgrole_controller.core.diff import set_password
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.core.status import of_read_back
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: How often one reconcile reads: a role that was just created can be granted to others of the batch in the next round.
ROUNDS = 4


async def reconcile(
    keys: Sequence[Key],
    declared: ServerConfig,
    objects: Objects,
    session: Session,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
    drifted: Collection[Key] = (),
) -> list[Result]:
    """Raises PgRoleError when the server fails as a whole; what fails for one object is in its result.

    `drifted`: those of the keys that a drift was announced of, which are reconciled first and in full.
    """
    server = _server(session, declared)
    settled = [
        known
        for key in keys
        if key not in drifted and (known := _find(key, repeats, server, objects, declared.server_policy))
    ]
    settled_keys = {one.target.key for one in settled}
    results = await _reconcile(
        [key for key in keys if key not in settled_keys], declared, objects, session, echoes, verifiers, repeats
    )
    if settled:
        same, others = await _find_unchanged(settled, session, objects.contests)
        for key in others:
            repeats.forget(key)
        results += same
        results += await _reconcile(others, declared, objects, session, echoes, verifiers, repeats)
    return results


def _find(key: Key, repeats: Repeats, server: Server, objects: Objects, server_policy: ServerPolicy) -> Settled | None:
    try:
        return repeats.find(key, server, objects, server_policy, anyio.current_time())
    except Exception as error:  # noqa: BLE001 -- this object's error
        contain(error, key)
        repeats.forget(key)
        return None


async def _find_unchanged(
    settled: Sequence[Settled], session: Session, contests: Contests
) -> tuple[list[Result], list[Key]]:
    """The results for those of which nothing differs, and the keys of the others."""
    same = await session.are_unchanged(
        [(one.target.key, one.target.role_name) for one in settled], [one.observed.row for one in settled]
    )
    results: list[Result] = []
    others: list[Key] = []
    for one, is_same in zip(settled, same, strict=True):
        stored = one.target.stored
        if is_same and not session.enforcing and stored is not None and not contests.knows(stored.uid):
            results.append(Result(one.target, of_read_back(one.decision), one.observed.claim))
        else:
            others.append(one.target.key)
    return results, others


async def _reconcile(
    keys: Sequence[Key],
    declared: ServerConfig,
    objects: Objects,
    session: Session,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Result]:
    targets = [objects.read(key, declared.name, declared.server_policy) for key in keys]
    results = [Result(target) for target in targets if target.finalizer is not None]
    results += [unread(target) for target in targets if target.error and target.finalizer is None]
    asked = [
        _with_remembered(target, verifiers) for target in targets if target.error is None and target.finalizer is None
    ]
    results += await _reconcile_contained(
        asked, session, _server(session, declared), objects.contests, echoes, verifiers, repeats
    )
    return results


def _with_remembered(target: Target, verifiers: Verifiers) -> Target:
    remembered = verifiers.get(target.role_name)
    if target.desired is None or remembered is None:
        return target
    return replace(target, desired=replace(target.desired, remembered=remembered))


def _server(session: Session, declared: ServerConfig) -> Server:
    identity = session.identity
    return Server(
        identity.system_identifier,
        identity.own_roles,
        session.cluster,
        declared.address,
        session.detection.claims,
        declared.uid,
        declared.generation,
        notes_generations=session.notes_generations,
        away=session.enforcing,
    )


async def _reconcile_contained(
    targets: Sequence[Target],
    session: Session,
    server: Server,
    contests: Contests,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Result]:
    """What fails unexpectedly for all of them is tried for each alone: then it is the error of the one that fails."""
    try:
        return await _reconcile_batch(targets, session, server, contests, echoes, verifiers, repeats)
    except PgRoleError:
        raise
    except Exception as error:  # noqa: BLE001 -- one object's error, once it is known whose
        if len(targets) == 1:
            return [refuse(targets[0], contain(error, targets[0].key))]
        log.warning("batch failed unexpectedly, trying its objects one by one", extra=describe_error(error))
    results: list[Result] = []
    for target in targets:
        results += await _reconcile_contained([target], session, server, contests, echoes, verifiers, repeats)
    return results


async def _reconcile_batch(
    targets: Sequence[Target],
    session: Session,
    server: Server,
    contests: Contests,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Result]:
    """Reads, applies and reads again, until there is nothing left to do that can be done now."""
    attempts = [Attempt(target, contests) for target in targets]
    unfinished = attempts
    for _ in range(ROUNDS):
        server = replace(server, away=session.enforcing)
        for one, observed in zip(
            unfinished, await _read_observed([one.target for one in unfinished], session, server), strict=True
        ):
            one.observe(observed, _decide(one.target, observed, server), server)
        unfinished = [one for one in unfinished if isinstance(one.decision, Plan) and one.decision.writes]
        if not unfinished:
            break
        plans = [one.decision for one in unfinished if isinstance(one.decision, Plan)]
        for one, plan, failure in zip(
            unfinished, plans, await _apply_plans(plans, session, echoes, server.away), strict=True
        ):
            one.end(plan, failure)
            if failure is None:
                _note_password(plan, verifiers)
        unfinished = [
            one for one in unfinished if not isinstance(one.decision, PgRoleError) or _is_conflict(one.decision)
        ]
    for one in attempts:
        if isinstance(one.decision, Plan) and one.decision.changes:
            echoes.forget(one.decision.role_name)
        one.settle(repeats, server)
    if not server.away:
        await _release(attempts, session)
    await _learn(attempts, session, verifiers)
    await _find_suspects(attempts, session)
    return await _add_verifiers([one.conclude() for one in attempts], session)


def _note_password(plan: Plan, verifiers: Verifiers) -> None:
    for name in plan.released:
        verifiers.forget(name)
    password = set_password(plan.changes)
    if password is not None and password.verifier is not None:
        verifiers.note(plan.role_name, password.verifier)


async def _learn(attempts: Sequence["Attempt"], session: Session, verifiers: Verifiers) -> None:
    for one in attempts:
        if one.was_read and one.role_name and not (one.claim and one.claim.record.digest):
            verifiers.forget(one.role_name)
    digests = verifiers.unknown(attempts)
    if not digests:
        return
    answers = zip(digests, await session.read_verifiers(list(digests)), strict=True)
    verifiers.learn(attempts, digests, {oid: answer for oid, answer in answers if isinstance(answer, Verifier)})


async def _apply_plans(
    plans: Sequence[Plan], session: Session, echoes: Echoes, enforcing: bool
) -> list[PgRoleError | None]:
    changing = [plan.role_name for plan in plans if plan.changes]
    changed: list[str] = []
    echoes.send(changing)
    try:
        failures = await session.apply_plans(plans, enforcing=enforcing)
        changed = [
            plan.role_name for plan, failure in zip(plans, failures, strict=True) if plan.changes and failure is None
        ]
    finally:
        echoes.answer(changed, anyio.current_time())
    return failures


async def _add_verifiers(results: list[Result], session: Session) -> list[Result]:
    """What the roles log in with is read only for those whose password is in question."""
    oids = [
        result.password_task.oid for result in results if result.password_task and result.password_task.oid is not None
    ]
    if not oids:
        return results
    stored = dict(zip(oids, await session.read_verifiers(oids), strict=True))
    return [_with_verifier(result, stored) for result in results]


def _with_verifier(result: Result, stored: Mapping[int, Verifier | PgRoleError | None]) -> Result:
    if result.password_task is None or result.password_task.oid is None:
        return result
    verifier = stored[result.password_task.oid]
    if isinstance(verifier, PgRoleError):
        refused = replace(refuse(result.target, verifier), released=result.released)
        return replace(refused, changed_at=result.changed_at, corrected=result.corrected)
    return replace(result, password_task=replace(result.password_task, stored=verifier))


async def _find_suspects(attempts: Sequence["Attempt"], session: Session) -> None:
    """Who sets contested roles back, as far as the server tells: asked only while there are any."""
    now = current_moment()
    contested = [one for one in attempts if one.needs_suspects(now)]
    if contested:
        suspects = await session.read_suspects([one.target.role_name for one in contested])
        for one in contested:
            one.name_suspects(suspects.get(one.target.role_name, ()), now)


def _is_conflict(error: PgRoleError) -> bool:
    """Whether somebody else's change came first: it is worth another read at once."""
    return isinstance(error, Transient) and error.reason is Reason.PROGRESSING


async def _release(attempts: Sequence["Attempt"], session: Session) -> None:
    """What an earlier object of the same name had is released also where this one is refused."""
    refused = [one for one in attempts if isinstance(one.decision, PgRoleError) and one.left_behind.releases]
    for one, failure in zip(refused, await session.apply_plans([one.left_behind for one in refused]), strict=True):
        if failure is None:
            one.end(one.left_behind, None)


async def _read_observed(targets: Sequence[Target], session: Session, server: Server) -> list[Observed | PgRoleError]:
    """One for each request; what cannot be read of one is the error of that one."""
    if not targets:
        return []
    observations = await session.read_roles([(target.key, target.role_name) for target in targets])
    await _add_references(targets, observations, session)
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
    """What the roles refer to, or hold: asked for all of them at once, and only where there is anything."""
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
    """None: there is nothing to ask for."""
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
        parameters=frozenset(name for role in desired_role for name in role.parameter_names),
        databases=frozenset(database for role in desired_role for database, _ in role.database_parameters),
        protected=frozenset(pattern for policy in policies for pattern in policy.protected),
    )
    return referenced if referenced.groups or referenced.parameters or referenced.databases else None


def _is_illegible(name: str) -> bool:
    """Whether a database of another encoding wrote it: it cannot be asked for."""
    return any("\ud800" <= letter <= "\udfff" for letter in name)


async def _add_endings(
    ends: Mapping[int, tuple[int, str]], observations: list[Observed | PgRoleError], session: Session
) -> None:
    """What still needs the roles that shall be dropped, who uses them, and who is to get what they own.

    `ends` are their oids and the names of those, by place.
    """
    for place, ending in zip(ends, await session.read_drop_states(list(ends.values())), strict=True):
        observed = observations[place]
        if isinstance(ending, PgRoleError):
            observations[place] = ending
        elif isinstance(observed, Observed):
            observations[place] = replace(
                observed, dependents=ending.dependents, sessions=ending.sessions, new_owner=ending.new_owner
            )


def _decide(target: Target, observed: Observed | PgRoleError, server: Server) -> Plan | PgRoleError:
    if isinstance(observed, PgRoleError):
        drops = target.desired is not None and target.desired.terminating and target.desired.drop
        return add_way_out(observed) if drops else observed
    try:
        if target.desired is None and server.away:
            return Transient(
                Reason.PROGRESSING, "the controller cannot reach Kubernetes, and releases no claims until it can"
            )
        if target.desired is None:
            return decide_absent(observed)
        return decide(target.desired, observed, server, target.policy)
    except PgRoleError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- this object's error
        problem = contain(error, target.key)
        return (
            add_way_out(problem) if target.desired and target.desired.terminating and target.desired.drop else problem
        )
