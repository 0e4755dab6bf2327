"""One visit to a batch of keys of one lane: read what is wanted, look at what is there, bring in the difference.

Whatever the hint said, everything is read anew. After a write it is looked at once more: Ready is only said of what was
read back from the database.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pgrole_controller.controller.objects import Objects, Request
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.diff import field_names
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.hint import Key
from pgrole_controller.core.outcome import Outcome, of_error, of_read_back
from pgrole_controller.core.plan import Deed, Plan, Server, Sight, decide, decide_absent
from pgrole_controller.core.policy import Policy
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Finding:
    """How the visit to one key ended: what is to be written to its object. `outcome` None: nothing is to be said."""

    request: Request
    outcome: Outcome | None = None
    claim: Claim | None = None
    deed: Deed = Deed.NOTHING
    fields: tuple[str, ...] = ()  # that were changed or, under Report, were not
    released: tuple[str, ...] = ()  # role names that nobody claims any more
    done_with: bool = False  # the object may go: its finalizer is removed

    @property
    def key(self) -> Key:
        return self.request.key


async def reconcile(
    keys: Sequence[Key], server_name: str, objects: Objects, session: Session, policy: Policy
) -> list[Finding]:
    """Raises PgRoleError when the server fails as a whole; what fails for one object is in its finding."""
    requests = [await objects.read(key, server_name, policy) for key in keys]
    findings = [refuse(request, request.error) for request in requests if request.error]
    findings += [Finding(request) for request in requests if request.finalizer is not None]
    asked = [request for request in requests if request.error is None and request.finalizer is None]
    findings += await _bring_in(asked, session, _server(session), policy)
    return findings


def refuse(request: Request, error: PgRoleError) -> Finding:
    """The finding for an object that nothing could be done about."""
    return Finding(request, of_error(error))


def _server(session: Session) -> Server:
    identity = session.identity
    return Server(identity.system_identifier, identity.own_roles, session.cluster)


async def _bring_in(requests: Sequence[Request], session: Session, server: Server, policy: Policy) -> list[Finding]:
    first = await _look(requests, session)
    decisions = [_decide(request, sight, server, policy) for request, sight in zip(requests, first, strict=True)]
    writing = [
        (place, decision) for place, decision in enumerate(decisions) if isinstance(decision, Plan) and decision.writes
    ]
    failures = await session.carry_out([plan for _, plan in writing])
    failed = {place: error for (place, _), error in zip(writing, failures, strict=True) if error is not None}
    changed = [place for place, _ in writing if place not in failed]
    second = dict(zip(changed, await _look([requests[place] for place in changed], session), strict=True))
    findings = []
    for place, (request, decision) in enumerate(zip(requests, decisions, strict=True)):
        if isinstance(decision, PgRoleError):
            findings.append(refuse(request, decision))
        elif place in failed:
            findings.append(refuse(request, failed[place]))
        else:
            after = second.get(place, first[place])
            findings.append(_read_back(request, decision, after, _decide(request, after, server, policy)))
    return findings


async def _look(requests: Sequence[Request], session: Session) -> list[Sight]:
    if not requests:
        return []
    sights = await session.look([(request.key, request.role_name) for request in requests])
    ending = {
        place: found.oid
        for place, request in enumerate(requests)
        if request.ask and request.ask.terminating and request.ask.drop
        for found in [sights[place].claimed or sights[place].named]
        if found
    }
    if not ending:
        return sights
    needs = await session.look_for_needs(list(ending.values()))
    return [
        replace(sight, needs=needs.get(ending[place], ())) if place in ending else sight
        for place, sight in enumerate(sights)
    ]


def _decide(request: Request, sight: Sight, server: Server, policy: Policy) -> Plan | PgRoleError:
    try:
        return decide_absent(sight) if request.ask is None else decide(request.ask, sight, server, policy)
    except PgRoleError as error:
        return error


def _read_back(request: Request, plan: Plan, after: Sight, again: Plan | PgRoleError) -> Finding:
    released = tuple(name for name, _ in plan.releases) + ((plan.role_name,) if plan.forget else ())
    if isinstance(again, PgRoleError):
        return replace(refuse(request, again), released=released)
    ending = request.ask is None or request.ask.terminating
    outcome = of_read_back(again)
    if plan.deed is Deed.RECLAIMED and outcome.ready:
        outcome = replace(
            outcome, message="the role is as declared; its claim was missing from the database and was written anew"
        )
    return Finding(
        request,
        outcome=None if ending else outcome,
        claim=after.claim,
        deed=plan.deed,
        fields=plan.drift or field_names(plan.changes),
        released=released,
        done_with=ending and not again.writes,
    )
