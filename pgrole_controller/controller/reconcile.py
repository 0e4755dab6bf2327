"""One visit to a batch of keys of one lane: read what is desired, look at what is there, bring in the difference.

Whatever the request said, everything is read anew. After a write it is looked at once more: Ready is only said of what
was read back from the database.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import anyio

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.echo import Echoes
from pgrole_controller.controller.objects import Objects, Target
from pgrole_controller.controller.repeats import Repeats, Settled
from pgrole_controller.controller.server import DeclaredServer
from pgrole_controller.controller.verifiers import Verifiers
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.contest import Contests, Moment, Suspect
from pgrole_controller.core.decision import decide, decide_absent
from pgrole_controller.core.deletion import add_way_out, find_role_to_drop
from pgrole_controller.core.diff import field_names, set_password
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.password import PasswordTask, next_rotation
from pgrole_controller.core.plan import Action, Plan, ReassignOwned
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.core.status import Outcome, of_contest, of_error, of_read_back
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: How often one visit looks: a role that was just created can be granted to others of the batch in the next round.
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Finding:
    """How the visit to one key ended: what is to be written to its object. `outcome` None: nothing is to be said."""

    request: Target
    outcome: Outcome | None = None
    claim: Claim | None = None
    action: Action = Action.NOTHING
    fields: tuple[str, ...] = ()  # that were changed or, under Report, were not
    released: tuple[str, ...] = ()  # role names that nobody claims any more
    errand: PasswordTask | None = None  # to be run before the next visit, which follows at once
    reassign: ReassignOwned | None = None  # to be done before the next visit, which follows at once
    next_rotation: datetime | None = None
    again_in: float = 0.0  # seconds until the next rotation, or until what is contested is due, if sooner; 0.0: neither
    done_with: bool = False  # the object may go: its finalizer is removed
    changed_at: float | None = None  # when the first change of the role was answered, on the loop's clock
    corrected: tuple[str, ...] = ()  # the fields that somebody else had changed and that were set back

    @property
    def key(self) -> Key:
        return self.request.key


async def reconcile(
    keys: Sequence[Key],
    declared: DeclaredServer,
    objects: Objects,
    session: Session,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
    drifted: Collection[Key] = (),
) -> list[Finding]:
    """Raises PgRoleError when the server fails as a whole; what fails for one object is in its finding.

    `drifted`: those of the keys that a drift was announced of, which are reconciled first and in full.
    """
    server = _server(session, declared)
    settled = [
        known
        for key in keys
        if key not in drifted and (known := _find(key, repeats, server, objects, declared.server_policy))
    ]
    settled_keys = {one.request.key for one in settled}
    findings = await _reconcile(
        [key for key in keys if key not in settled_keys], declared, objects, session, echoes, verifiers, repeats
    )
    if settled:
        same, others = await _look_again(settled, session, objects.contests)
        for key in others:
            repeats.forget(key)
        findings += same
        findings += await _reconcile(others, declared, objects, session, echoes, verifiers, repeats)
    return findings


def _find(key: Key, repeats: Repeats, server: Server, objects: Objects, server_policy: ServerPolicy) -> Settled | None:
    try:
        return repeats.find(key, server, objects, server_policy, anyio.current_time())
    except Exception as error:  # noqa: BLE001 -- this object's error
        contain(error, key)
        repeats.forget(key)
        return None


async def _look_again(
    settled: Sequence[Settled], session: Session, contests: Contests
) -> tuple[list[Finding], list[Key]]:
    """The findings for those of which nothing differs, and the keys of the others."""
    same = await session.look_again(
        [(one.request.key, one.request.role_name) for one in settled], [one.observed.row for one in settled]
    )
    findings: list[Finding] = []
    others: list[Key] = []
    for one, is_same in zip(settled, same, strict=True):
        stored = one.request.stored
        if is_same and not session.enforcing and stored is not None and not contests.knows(stored.uid):
            findings.append(Finding(one.request, of_read_back(one.decision), one.observed.claim))
        else:
            others.append(one.request.key)
    return findings, others


async def _reconcile(
    keys: Sequence[Key],
    declared: DeclaredServer,
    objects: Objects,
    session: Session,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Finding]:
    requests = [objects.read(key, declared.name, declared.server_policy) for key in keys]
    findings = [Finding(request) for request in requests if request.finalizer is not None]
    findings += [unread(request) for request in requests if request.error and request.finalizer is None]
    asked = [_remind(request, verifiers) for request in requests if request.error is None and request.finalizer is None]
    findings += await _contained(
        asked, session, _server(session, declared), objects.contests, echoes, verifiers, repeats
    )
    return findings


def unread(request: Target) -> Finding:
    """The finding for an object that could not be read."""
    return Finding(request) if request.error is None or request.unsaid else refuse(request, request.error)


def refuse(request: Target, error: PgRoleError) -> Finding:
    """The finding for an object that nothing could be done about."""
    return Finding(request, of_error(error))


def _remind(request: Target, verifiers: Verifiers) -> Target:
    remembered = verifiers.get(request.role_name)
    if request.desired is None or remembered is None:
        return request
    return replace(request, desired=replace(request.desired, remembered=remembered))


def _server(session: Session, declared: DeclaredServer) -> Server:
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


def _now() -> Moment:
    return Moment(anyio.current_time(), datetime.now(UTC))


async def _contained(
    requests: Sequence[Target],
    session: Session,
    server: Server,
    contests: Contests,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Finding]:
    """What fails unexpectedly for all of them is tried for each alone: then it is the error of the one that fails."""
    try:
        return await _bring_in(requests, session, server, contests, echoes, verifiers, repeats)
    except PgRoleError:
        raise
    except Exception as error:  # noqa: BLE001 -- one object's error, once it is known whose
        if len(requests) == 1:
            return [refuse(requests[0], contain(error, requests[0].key))]
        log.warning("batch failed unexpectedly, trying its objects one by one", extra=describe_error(error))
    findings: list[Finding] = []
    for request in requests:
        findings += await _contained([request], session, server, contests, echoes, verifiers, repeats)
    return findings


async def _bring_in(
    requests: Sequence[Target],
    session: Session,
    server: Server,
    contests: Contests,
    echoes: Echoes,
    verifiers: Verifiers,
    repeats: Repeats,
) -> list[Finding]:
    """Looks, brings in and looks again, until there is nothing left to do that can be done now."""
    visited = [_Visited(request, contests) for request in requests]
    open_ = visited
    for _ in range(ROUNDS):
        server = replace(server, away=session.enforcing)
        for one, observed in zip(open_, await _look([one.request for one in open_], session, server), strict=True):
            one.see(observed, _decide(one.request, observed, server), server)
        open_ = [one for one in open_ if isinstance(one.decision, Plan) and one.decision.writes]
        if not open_:
            break
        plans = [one.decision for one in open_ if isinstance(one.decision, Plan)]
        for one, plan, failure in zip(open_, plans, await _carry_out(plans, session, echoes, server.away), strict=True):
            one.end(plan, failure)
            if failure is None:
                _note_password(plan, verifiers)
        open_ = [one for one in open_ if not isinstance(one.decision, PgRoleError) or _is_conflict(one.decision)]
    for one in visited:
        if isinstance(one.decision, Plan) and one.decision.changes:
            echoes.forget(one.decision.role_name)
        one.settle(repeats, server)
    if not server.away:
        await _release(visited, session)
    await _learn(visited, session, verifiers)
    await _find_suspects(visited, session)
    return await _add_verifiers([one.conclude() for one in visited], session)


def _note_password(plan: Plan, verifiers: Verifiers) -> None:
    for name in plan.released:
        verifiers.forget(name)
    password = set_password(plan.changes)
    if password is not None and password.verifier is not None:
        verifiers.note(plan.role_name, password.verifier)


async def _learn(visited: Sequence["_Visited"], session: Session, verifiers: Verifiers) -> None:
    for one in visited:
        if one.looked and one.role_name and not (one.claim and one.claim.record.digest):
            verifiers.forget(one.role_name)
    digests = verifiers.unknown(visited)
    if not digests:
        return
    answers = zip(digests, await session.read_verifiers(list(digests)), strict=True)
    verifiers.learn(visited, digests, {oid: answer for oid, answer in answers if isinstance(answer, Verifier)})


async def _carry_out(
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


async def _add_verifiers(findings: list[Finding], session: Session) -> list[Finding]:
    """What the roles log in with is read only for those whose password is in question."""
    oids = [finding.errand.oid for finding in findings if finding.errand and finding.errand.oid is not None]
    if not oids:
        return findings
    stored = dict(zip(oids, await session.read_verifiers(oids), strict=True))
    return [_with_verifier(finding, stored) for finding in findings]


def _with_verifier(finding: Finding, stored: Mapping[int, Verifier | PgRoleError | None]) -> Finding:
    if finding.errand is None or finding.errand.oid is None:
        return finding
    verifier = stored[finding.errand.oid]
    if isinstance(verifier, PgRoleError):
        refused = replace(refuse(finding.request, verifier), released=finding.released)
        return replace(refused, changed_at=finding.changed_at, corrected=finding.corrected)
    return replace(finding, errand=replace(finding.errand, stored=verifier))


async def _find_suspects(visited: Sequence["_Visited"], session: Session) -> None:
    """Who sets contested roles back, as far as the server tells: asked only while there are any."""
    now = _now()
    contested = [one for one in visited if one.needs_suspects(now)]
    if contested:
        suspects = await session.read_suspects([one.request.role_name for one in contested])
        for one in contested:
            one.name_suspects(suspects.get(one.request.role_name, ()), now)


def _is_conflict(error: PgRoleError) -> bool:
    """Whether somebody else's change came first: it is worth another look at once."""
    return isinstance(error, Transient) and error.reason is Reason.PROGRESSING


async def _release(visited: Sequence["_Visited"], session: Session) -> None:
    """What an earlier object of the same name had is released also where this one is refused."""
    refused = [one for one in visited if isinstance(one.decision, PgRoleError) and one.left_behind.releases]
    for one, failure in zip(refused, await session.apply_plans([one.left_behind for one in refused]), strict=True):
        if failure is None:
            one.end(one.left_behind, None)


class _Visited:
    """One object within a visit: what was last seen and decided, and what was done so far."""

    def __init__(self, request: Target, contests: Contests) -> None:
        self.request = request
        self._contests = contests
        self.decision: Plan | PgRoleError = Plan(role_name="")
        self._observed = Observed()
        self.looked = False  # what is there could be read
        self._done: list[Plan] = []
        self._changed_at: float | None = None

    def see(self, observed: Observed | PgRoleError, decision: Plan | PgRoleError, server: Server) -> None:
        try:
            self._see(observed, decision, server)
        except Exception as error:  # noqa: BLE001 -- this object's error
            self.decision = contain(error, self.request.key)

    def _see(self, observed: Observed | PgRoleError, decision: Plan | PgRoleError, server: Server) -> None:
        self.looked = isinstance(observed, Observed)
        if isinstance(observed, Observed):
            self._observed = observed
        desired = self.request.desired
        if isinstance(decision, Plan) and desired and not desired.terminating and self._contests.knows(self._uid):
            sent = desired.password_result.errand if desired.password_result else None
            decision = self._contests.hold(
                self._uid, self._generation, decision, sent, server.system_identifier, _now()
            )
        self.decision = decision
        if log.isEnabledFor(logging.DEBUG):
            log.debug("looked", extra={"object": str(self.request.key), **_describe(decision)})

    def end(self, plan: Plan, failure: PgRoleError | None) -> None:
        try:
            self._end(plan, failure)
        except Exception as error:  # noqa: BLE001 -- this object's error
            self.decision = contain(error, self.request.key)

    def _end(self, plan: Plan, failure: PgRoleError | None) -> None:
        desired = self.request.desired
        if failure is None:
            self._done.append(plan)
            if plan.changes and self._changed_at is None:
                self._changed_at = anyio.current_time()
            if plan.drift and plan.changes:
                self._contests.repaired(self._uid, self._generation, plan.drift, _now())
        elif desired and desired.terminating and desired.drop:
            self.decision = add_way_out(failure)
        else:
            self.decision = failure

    def settle(self, repeats: Repeats, server: Server) -> None:
        """A role that was changed here is about to be looked at again."""
        if self._done and self.looked and isinstance(self.decision, Plan) and not self._contests.knows(self._uid):
            repeats.note(self.request, server, self._observed, self.decision, anyio.current_time())

    def needs_suspects(self, now: Moment) -> bool:
        return isinstance(self.decision, Plan) and self._contests.needs_suspects(self._uid, now)

    def name_suspects(self, suspects: Iterable[Suspect], now: Moment) -> None:
        self._contests.name_suspects(self._uid, suspects, now)

    @property
    def role_name(self) -> str:
        return self.request.role_name

    @property
    def claim(self) -> Claim | None:
        return self._observed.claim

    @property
    def named(self) -> ObservedRole | None:
        return self._observed.named

    @property
    def _uid(self) -> str:
        return self.request.stored.uid if self.request.stored else ""

    @property
    def _generation(self) -> int:
        return int(self.request.stored.object()["metadata"]["generation"]) if self.request.stored else 0

    @property
    def left_behind(self) -> Plan:
        """The release of what earlier objects of this key had claimed under other names."""
        uid = self.request.desired.owner.object_uid if self.request.desired else ""
        return Plan(role_name="", releases=tuple(former for former in self._observed.former if former[1] != uid))

    def conclude(self) -> Finding:
        try:
            return self._finding()
        except Exception as error:  # noqa: BLE001 -- this object's error
            return refuse(self.request, contain(error, self.request.key))

    def _finding(self) -> Finding:
        released = tuple(name for plan in self._done for name in plan.released)
        if isinstance(self.decision, PgRoleError):
            refused = replace(refuse(self.request, self.decision), released=released)
            return replace(refused, changed_at=self._changed_at, corrected=self._corrected)
        ending = self.request.desired is None or self.request.desired.terminating
        first = self._done[0] if self._done else self.decision
        desired, claim = self.request.desired, self._observed.claim
        due = next_rotation(desired.password, claim.record.rotated_at) if desired and claim else None
        return Finding(
            self.request,
            outcome=None if ending else self._outcome(first, self.decision),
            claim=self._observed.claim,
            action=first.action,
            fields=self.decision.reported or first.drift or field_names(first.changes),
            released=released,
            done_with=ending and not self.decision.writes and self.decision.reassign is None,
            errand=self.decision.errand,
            reassign=self.decision.reassign,
            next_rotation=due,
            changed_at=self._changed_at,
            corrected=self._corrected,
            again_in=_soonest(
                (due - self._observed.at).total_seconds() if due else 0.0,
                0.0 if ending else self._contests.next_check(self._uid, _now()),
            ),
        )

    @property
    def _corrected(self) -> tuple[str, ...]:
        return tuple(name for plan in self._done if plan.changes for name in plan.drift)

    def _outcome(self, first: Plan, last: Plan) -> Outcome:
        outcome = of_read_back(last)
        told = self._contests.describe(self._uid)
        if told and not (last.writes or last.reported):
            return of_contest(told, outcome)
        if first.action is Action.RECLAIMED and outcome.ready:
            message = (
                "the role matches the spec; its claim was missing from the database, and the controller wrote it again"
            )
            return replace(outcome, message=message)
        return outcome


def _describe(decision: Plan | PgRoleError) -> dict[str, str]:
    """For the log: the names of fields, never what is in them."""
    if isinstance(decision, PgRoleError):
        return {"decided": "refused", "reason": decision.reason.value}
    fields = {"differs": field_names(decision.changes), "drift": decision.drift, "reported": decision.reported}
    decided = decision.action.value if decision.writes else "errand" if decision.errand else "nothing"
    return {"decided": decided, **{name: ", ".join(some) for name, some in fields.items() if some}}


def _soonest(*seconds: float) -> float:
    """0.0: never."""
    return min((some for some in seconds if some > 0.0), default=0.0)


async def _look(requests: Sequence[Target], session: Session, server: Server) -> list[Observed | PgRoleError]:
    """One for each request; what cannot be read of one is the error of that one."""
    if not requests:
        return []
    observations = await session.read_roles([(request.key, request.role_name) for request in requests])
    await _add_references(requests, observations, session)
    ends = {
        place: (oid, request.desired.new_owner)
        for place, (request, observed) in enumerate(zip(requests, observations, strict=True))
        if request.desired
        and isinstance(observed, Observed)
        and (oid := find_role_to_drop(request.desired, observed, server, request.policy)) is not None
    }
    if ends:
        await _add_endings(ends, observations, session)
    return observations


async def _add_references(
    requests: Sequence[Target], observations: list[Observed | PgRoleError], session: Session
) -> None:
    """What the roles refer to, or hold: asked for all of them at once, and only where there is anything."""
    referenced = {
        place: some
        for place, (request, observed) in enumerate(zip(requests, observations, strict=True))
        if isinstance(observed, Observed) and (some := _referenced(request, observed))
    }
    references = await session.read_references(list(referenced.values()))
    for place, one in zip(referenced, references, strict=True):
        observed = observations[place]
        if isinstance(observed, Observed):
            observations[place] = one if isinstance(one, PgRoleError) else replace(observed, references=one)


def _referenced(request: Target, observed: Observed) -> ReferencedNames | None:
    """None: there is nothing to ask for."""
    every = [request.desired] if request.desired else []
    desired_role = [desired.role for desired in every] + [
        rival.role for desired in every for rival in desired.older_rivals
    ]
    there = [one.role for one in (observed.named, observed.claimed) if one]
    groups = {held.role for role in (*desired_role, *there) for held in role.member_of}
    groups |= {desired.new_owner for desired in every if desired.terminating} - {""}
    policies = [request.policy, *(rival.policy for desired in every for rival in desired.older_rivals)]
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


def _decide(request: Target, observed: Observed | PgRoleError, server: Server) -> Plan | PgRoleError:
    if isinstance(observed, PgRoleError):
        drops = request.desired is not None and request.desired.terminating and request.desired.drop
        return add_way_out(observed) if drops else observed
    try:
        if request.desired is None and server.away:
            return Transient(
                Reason.PROGRESSING, "the controller cannot reach Kubernetes, and releases no claims until it can"
            )
        if request.desired is None:
            return decide_absent(observed)
        return decide(request.desired, observed, server, request.policy)
    except PgRoleError as error:
        return error
    except Exception as error:  # noqa: BLE001 -- this object's error
        problem = contain(error, request.key)
        return (
            add_way_out(problem)
            if request.desired and request.desired.terminating and request.desired.drop
            else problem
        )
