"""One reconcile of a batch of keys of one worker: read the desired and the observed state, apply the difference.

Whatever the request, both states are read again. After a write the roles are read once more: Ready is only reported
for what was read back from the database.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import anyio

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.objects import Objects, Target
from pgrole_controller.controller.observation import read_observed, server_of_session
from pgrole_controller.controller.privileges.grantee_publisher import GranteePublisher, add_results, withdraw_unread
from pgrole_controller.controller.result import ObjectReconcile, Result, current_moment, refuse
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.worker_memory import OwnChanges, ReadBack, Verifiers, WorkerMemory
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.decision import ROUNDS, decide, decide_absent
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.diff import set_password
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.outcome import of_error, of_read_back
from pgrole_controller.core.password import PasswordResult
from pgrole_controller.core.plan import Plan, ReassignResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.server_options import AuditSource
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.apply import PartlyApplied
from pgrole_controller.postgres.errors import CHANGES_SUSPENDED, classify
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: What the background prepared for the reconciles of these objects.
Prepared: TypeAlias = Mapping[Key, PasswordResult | ReassignResult]

#: As where the change itself is refused.
_SUSPENDED = classify(CHANGES_SUSPENDED, "pgrole.suspend is on")


@dataclass(frozen=True, slots=True)
class _Batch:
    """What the reconciles of one batch share."""

    declared: ServerConfig
    server: Server
    objects: Objects
    session: Session
    memory: WorkerMemory


async def reconcile(
    keys: Sequence[Key],
    declared: ServerConfig,
    objects: Objects,
    session: Session,
    memory: WorkerMemory,
    drifted: Collection[Key],
    prepared: Prepared,
) -> list[Result]:
    """Reconciles these keys. Raises PgRoleError if the server fails as a whole; an error of one object is in its
    result.

    `drifted`: the keys with an announced drift, which are reconciled first and in full. `prepared`: what the background
    prepared for these reconciles, by key.
    """
    batch = _Batch(declared, server_of_session(session, declared), objects, session, memory)
    known = [one for key in keys if key not in drifted and key not in prepared and (one := _find(key, batch))]
    known_keys = {one.target.key for one in known}
    unknown = [key for key in keys if key not in known_keys]
    results = await _reconcile(unknown, batch, prepared) if unknown else []
    if known:
        same, others = await _compare(known, session, memory.contests)
        for key in others:
            memory.read_back.forget(key)
        results += same
        results += await _reconcile(others, batch, prepared) if others else []
    # The poll that announced a drift announces it once more itself.
    session.doubt(one.target.role_name for one in results if one.reported and one.key not in drifted)
    return results


def _find(key: Key, batch: _Batch) -> ReadBack | None:
    read_back, policy = batch.memory.read_back, batch.declared.server_policy
    try:
        return read_back.find(key, batch.server, batch.objects, policy, anyio.current_time())
    except Exception as error:  # noqa: BLE001 -- this object's error
        contain(error, key)
        read_back.forget(key)
        return None


async def _compare(known: Sequence[ReadBack], session: Session, contests: Contests) -> tuple[list[Result], list[Key]]:
    """Returns results for the objects whose role is as it was read back, and the keys of the others."""
    same = await session.are_unchanged(
        [(one.target.key, one.target.role_name) for one in known], [one.observed.row for one in known]
    )
    results: list[Result] = []
    others: list[Key] = []
    for one, is_same in zip(known, same, strict=True):
        stored = one.target.stored
        if is_same and not session.enforcing and stored is not None and not contests.knows(stored.uid):
            results.append(Result(one.target, of_read_back(one.decision), one.observed.claim))
        else:
            others.append(one.target.key)
    return results, others


async def _reconcile(keys: Sequence[Key], batch: _Batch, prepared: Prepared) -> list[Result]:
    declared, memory = batch.declared, batch.memory
    targets = [batch.objects.read(key, declared.name, declared.server_policy, prepared.get(key)) for key in keys]
    results: list[Result] = []
    asked: list[Target] = []
    for target in targets:
        withdraw_unread(target, memory.grantees, declared.name)
        if target.finalizer is not None:
            results.append(Result(target))
        elif target.error is not None:
            results.append(Result(target) if target.quiet else refuse(target, target.error))
        else:
            asked.append(add_results(_with_remembered(target, memory.verifiers), memory.grantees, declared.name))
    results += await _reconcile_contained(asked, batch)
    return results


def _with_remembered(target: Target, verifiers: Verifiers) -> Target:
    remembered = verifiers.get(target.role_name)
    if target.desired is None or remembered is None:
        return target
    return replace(target, desired=replace(target.desired, remembered=remembered))


async def _reconcile_contained(targets: Sequence[Target], batch: _Batch) -> list[Result]:
    """After an unexpected error in the batch, reconciles each object alone to find the one that causes it."""
    try:
        return await _reconcile_batch(targets, batch)
    except PgRoleError:
        raise
    except Exception as error:  # noqa: BLE001 -- one object's error, once it is known whose
        if len(targets) == 1:
            return [refuse(targets[0], contain(error, targets[0].key))]
        log.warning("batch failed unexpectedly, trying its objects one by one", extra=describe_error(error))
    results: list[Result] = []
    for target in targets:
        results += await _reconcile_contained([target], batch)
    return results


async def _reconcile_batch(targets: Sequence[Target], batch: _Batch) -> list[Result]:
    """Reads, applies and reads again, until nothing is left that can be done now."""
    server, session, memory = batch.server, batch.session, batch.memory
    exposes_all = batch.declared.attribution.exposes_all
    reconciles = [ObjectReconcile(target, memory.contests, exposes_all=exposes_all) for target in targets]
    unfinished = reconciles
    for _ in range(ROUNDS):
        server = replace(server, enforcing=session.enforcing)
        for one, observed in zip(
            unfinished, await read_observed([one.target for one in unfinished], session, server), strict=True
        ):
            one.observe(observed, _decide(one.target, observed, server, one.refusal), server)
        unfinished = [one for one in unfinished if isinstance(one.decision, Plan) and one.decision.writes]
        if not unfinished:
            break
        plans = [one.decision for one in unfinished if isinstance(one.decision, Plan)]
        for one, plan, failure in zip(
            unfinished,
            plans,
            await _apply_plans(
                plans, session, memory.own_changes, server.enforcing, batch.declared.attribution.audit_log
            ),
            strict=True,
        ):
            one.end(plan, failure)
            if failure is None:
                _note_password(plan, memory.verifiers)
        unfinished = [one for one in unfinished if one.is_open]
    for one in reconciles:
        if not isinstance(one.decision, Plan):
            continue
        if one.decision.changes:
            memory.own_changes.discard(one.decision.role_name)
        if one.is_read_back:
            memory.read_back.note(one.target, server, one.observed, one.decision, anyio.current_time())
    if not server.enforcing:
        await _release(reconciles, session)
    await _learn(reconciles, session, memory.verifiers)
    await _find_suspects(reconciles, session)
    publisher = GranteePublisher(memory.grantees, batch.declared, server, session, batch.objects.store)
    await publisher.publish(reconciles)
    return await _add_verifiers([one.conclude() for one in reconciles], session)


def _note_password(plan: Plan, verifiers: Verifiers) -> None:
    for name in plan.released:
        verifiers.forget(name)
    password = set_password(plan.changes)
    if password is not None and password.verifier is not None:
        verifiers.note(plan.role_name, password.verifier)


async def _learn(reconciles: Sequence[ObjectReconcile], session: Session, verifiers: Verifiers) -> None:
    for one in reconciles:
        if one.was_read and one.role_name and not (one.claim and one.claim.record.digest):
            verifiers.forget(one.role_name)
    digests = verifiers.unknown(reconciles)
    if not digests:
        return
    answers = zip(digests, await session.read_verifiers(list(digests)), strict=True)
    verifiers.learn(reconciles, digests, {oid: answer for oid, answer in answers if isinstance(answer, Verifier)})


async def _apply_plans(
    plans: Sequence[Plan], session: Session, own_changes: OwnChanges, enforcing: bool, source: AuditSource
) -> list[PgRoleError | None]:
    changing = [plan.role_name for plan in plans if plan.changes]
    changed: list[str] = []
    own_changes.begin(changing)
    try:
        failures = await session.apply_plans(plans, enforcing=enforcing, notes_rows=source is AuditSource.PGAUDIT)
        changed = [
            plan.role_name
            for plan, failure in zip(plans, failures, strict=True)
            if plan.changes and (failure is None or isinstance(failure, PartlyApplied))
        ]
    finally:
        own_changes.commit(changed, anyio.current_time())
    return failures


async def _add_verifiers(results: list[Result], session: Session) -> list[Result]:
    """Reads the stored verifiers of roles for which a password task is needed. No task runs while changes are
    suspended: it would write a password into a Secret that the role cannot get.
    """
    oids = [
        result.password_task.oid for result in results if result.password_task and result.password_task.oid is not None
    ]
    if not oids:
        return results
    if await session.is_suspended():
        return [result if result.password_task is None else _stop(result, _SUSPENDED) for result in results]
    stored = dict(zip(oids, await session.read_verifiers(oids), strict=True))
    return [_with_verifier(result, stored) for result in results]


def _with_verifier(result: Result, stored: Mapping[int, Verifier | PgRoleError | None]) -> Result:
    if result.password_task is None or result.password_task.oid is None:
        return result
    verifier = stored[result.password_task.oid]
    if isinstance(verifier, PgRoleError):
        return _stop(result, verifier)
    return replace(result, password_task=replace(result.password_task, stored=verifier))


def _stop(result: Result, error: PgRoleError) -> Result:
    """The result without its password task, for this reason. A repair is reported all the same."""
    return replace(result, outcome=of_error(error), password_task=None, offer=None, decided=False)


async def _find_suspects(reconciles: Sequence[ObjectReconcile], session: Session) -> None:
    """Reads, for contested roles only, which sessions may be changing them."""
    now = current_moment()
    contested = [one for one in reconciles if one.needs_suspects(now)]
    if contested:
        suspects = await session.read_suspects([one.target.role_name for one in contested])
        for one in contested:
            one.name_suspects(suspects.get(one.target.role_name, ()), now)


async def _release(reconciles: Sequence[ObjectReconcile], session: Session) -> None:
    """Releases the claims of earlier objects of the same name, even if the present one is refused."""
    refused = [one for one in reconciles if isinstance(one.decision, PgRoleError) and one.left_behind.releases]
    for one, failure in zip(refused, await session.apply_plans([one.left_behind for one in refused]), strict=True):
        if failure is None:
            one.end(one.left_behind, None)


def _decide(
    target: Target, observed: Observed | PgRoleError, server: Server, refusal: PgRoleError | None = None
) -> Plan | PgRoleError:
    desired = target.desired
    drops = desired is not None and desired.terminating and desired.drop
    if isinstance(observed, PgRoleError):
        return add_way_out(observed) if drops else observed
    try:
        if desired is not None:
            return decide(desired, observed, server, target.policy, refusal)
        if server.enforcing:
            return Transient(
                Reason.PROGRESSING, "the controller cannot reach Kubernetes, and releases no claims until it can"
            )
        return decide_absent(observed)
    except PgRoleError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- this object's error
        problem = contain(error, target.key)
        return add_way_out(problem) if drops else problem
