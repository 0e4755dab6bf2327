"""What is done about one object: who owns the role, what is changed, what is claimed or released.

`decide` is given what the object asks and what was seen of it in the database, and returns a plan or raises Refused
or Waiting. It is called anew at every look and holds no memory; calling it again after its plan was carried out gives
a plan without changes.
"""

from dataclasses import dataclass, field, fields, replace
from enum import Enum

from pgrole_controller.core.claim import Claim, Owner, Proof
from pgrole_controller.core.diff import Change, Drop, diff, field_names
from pgrole_controller.core.errors import Reason, Refused, Waiting
from pgrole_controller.core.policy import (
    Policy,
    Surroundings,
    check_holds,
    check_memberships,
    check_parameters,
    check_protected,
    check_wanted,
)
from pgrole_controller.core.role import Found, Role, digest


@dataclass(frozen=True, slots=True)
class Ask:
    """What one object asks for.

    `older_rival` names an older object that asks for the same role on the same server; `proven_rivals` are those whose
    status says that they had it.
    """

    owner: Owner
    wanted: Role
    adopt: bool = False
    report_only: bool = False
    drop: bool = False
    ignore: frozenset[str] = frozenset()  # fields of Role that are left to others once the role is there
    suspended: bool = False
    terminating: bool = False
    proof: Proof | None = None
    older_rival: str | None = None
    proven_rivals: tuple[tuple[str, Proof], ...] = ()


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server that was looked at; `own_roles` are the names that the controller acts under."""

    system_identifier: int
    own_roles: frozenset[str]
    cluster: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What in one database still needs a role that shall be dropped. `database` is empty for what the server shares."""

    database: str
    count: int


@dataclass(frozen=True, slots=True)
class Sight:
    """What is there for one object, as read in one query.

    `named` has the wanted name; `claimed` is the role with the claim's oid, when that is another one; `former` are
    claims of this object's namespace and name for other role names, as (role name, uid of the object).
    """

    named: Found | None = None
    claimed: Found | None = None
    claim: Claim | None = None
    former: tuple[tuple[str, str], ...] = ()
    needs: tuple[Needs, ...] = ()
    around: Surroundings = field(default_factory=Surroundings)


class Deed(Enum):
    """What happened when the plan was carried out, for the Event."""

    NOTHING = "nothing"
    CREATED = "created"
    ADOPTED = "adopted"
    CHANGED = "changed"
    CORRECTED = "corrected"
    DROPPED = "dropped"
    RECLAIMED = "reclaimed"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in one transaction.

    The transaction first makes sure that the role it is about still is `oid` (None: is absent) under `seen_as`, and
    that the claim still is the one that was seen. `owner` is written into the claim, with `applied`; None writes none.
    `drift` are the fields that somebody else changed; `reported` the ones that are left as they are; `pending` is what
    waits for something that is not there yet.
    """

    role_name: str
    changes: tuple[Change, ...] = ()
    oid: int | None = None
    seen_as: str = ""
    claim: Claim | None = None
    owner: Owner | None = None
    applied: str = ""
    drift: tuple[str, ...] = ()
    reported: tuple[Change, ...] = ()
    pending: tuple[Waiting, ...] = ()
    releases: tuple[tuple[str, str], ...] = ()
    forget: bool = False
    deed: Deed = Deed.NOTHING

    @property
    def released(self) -> tuple[str, ...]:
        """The names of roles that nobody claims any more when it is carried out."""
        return tuple(name for name, _ in self.releases) + ((self.role_name,) if self.forget else ())

    @property
    def writes(self) -> bool:
        """Whether there is anything to carry out."""
        return bool(self.changes or self.owner or self.releases or self.forget)


def decide(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    """The plan for one look. Raises Refused or Waiting when nothing may be done."""
    if ask.terminating:
        return _decide_end(ask, sight, server, policy)
    if ask.suspended:
        raise Refused(Reason.SUSPENDED, "spec.suspend is true: nothing is looked at or changed")
    _check_name(ask, sight, server, policy)
    _check_held(sight)
    check_wanted(policy, ask.wanted)
    check_memberships(policy, ask.wanted, sight.around)
    check_parameters(policy, ask.wanted, sight.around)
    wanted, pending = _within_reach(ask.wanted, sight.around)
    asked = replace(ask, wanted=wanted)
    claim = _own_claim(asked, sight, server)
    releases = tuple(former for former in sight.former if former[1] != ask.owner.object_uid)
    if claim is None:
        return replace(_take_first(asked, sight, server, policy, releases), pending=pending)
    target = _target(claim, sight, server, policy)
    return replace(_keep(asked, claim, target, sight, server, releases), pending=pending)


def _within_reach(wanted: Role, around: Surroundings) -> tuple[Role, tuple[Waiting, ...]]:
    """What can be brought in now, and what waits: it is not part of what is `applied`, so that it is no drift."""
    missing = [held.role for held in wanted.member_of if held.role not in around.groups]
    nowhere = [database for database, _ in wanted.database_parameters if database not in around.databases]
    pending = []
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        text = f"membership waits for roles that are not there yet: {names}; all else is as declared"
        pending.append(Waiting(Reason.MEMBERSHIP_PENDING, text))
    if nowhere:
        names = ", ".join(f'"{name}"' for name in nowhere)
        text = f"spec.databaseParameters: there is no such database yet: {names}; all else is as declared"
        pending.append(Waiting(Reason.DATABASE_ERROR, text))
    return replace(
        wanted,
        member_of=tuple(held for held in wanted.member_of if held.role not in missing),
        database_parameters=tuple(item for item in wanted.database_parameters if item[0] not in nowhere),
    ), tuple(pending)


def _leave(ignore: frozenset[str], wanted: Role, there: Role) -> Role:
    """What is wanted, but for the fields that are left to others."""
    values = {item.name: getattr(there if item.name in ignore else wanted, item.name) for item in fields(Role)}
    return Role(**values)


def decide_absent(sight: Sight) -> Plan:
    """The plan for a key whose object is gone: what it claimed is released, and stays as it is."""
    return Plan(role_name="", releases=sight.former)


def _check_name(ask: Ask, sight: Sight, server: Server, policy: Policy) -> None:
    found = [one for one in (sight.named, sight.claimed) if one]
    check_protected(policy, ask.wanted.name, found, server.own_roles)


def _check_held(sight: Sight) -> None:
    """A name can be taken from another object's role by renaming it; the role stays that object's."""
    named = sight.named
    if named and named.held_by:
        raise Refused(
            Reason.NAME_TAKEN,
            f'"{named.role.name}" is a role of PgRole {named.held_by} that was renamed to this name (oid {named.oid}); '
            f"it is waited for until that role has its own name again",
        )


def _own_claim(ask: Ask, sight: Sight, server: Server) -> Claim | None:
    """The claim by which the role is this object's; None when it has none yet. Raises Refused when it is another's."""
    claim = sight.claim
    if claim is None:
        return _proven(ask, sight, server)
    if claim.owner.object_uid == ask.owner.object_uid and claim.owner.cluster == ask.owner.cluster:
        return claim
    if _same_place(claim.owner, ask.owner):
        return claim  # the object was made again: the one before it is gone, its claim is this one's
    if claim.released:
        return None
    if claim.owner.cluster != ask.owner.cluster:
        raise Refused(
            Reason.CLAIMED_ELSEWHERE,
            f'role "{claim.role_name}" is claimed by PgRole {claim.owner} of cluster {claim.owner.cluster}',
        )
    raise Refused(Reason.CONFLICT, f'role "{claim.role_name}" is claimed by PgRole {claim.owner}')


def _same_place(one: Owner, other: Owner) -> bool:
    return (one.cluster, one.namespace, one.namespace_uid, one.object) == (
        other.cluster,
        other.namespace,
        other.namespace_uid,
        other.object,
    )


def _proven(ask: Ask, sight: Sight, server: Server) -> Claim | None:
    """Ownership from status, where the role carries no claim at all (schema pgrole was dropped)."""
    proof, named = ask.proof, sight.named
    if proof is None or named is None or not _proves(proof, named, server):
        return None
    return Claim(
        role_name=proof.role_name,
        role_oid=proof.role_oid,
        system_identifier=proof.system_identifier,
        owner=ask.owner,
        applied=proof.applied,
    )


def _proves(proof: Proof, named: Found, server: Server) -> bool:
    seen = (named.role.name, named.oid, server.system_identifier)
    return (proof.role_name, proof.role_oid, proof.system_identifier) == seen


def _take_first(ask: Ask, sight: Sight, server: Server, policy: Policy, releases: tuple[tuple[str, str], ...]) -> Plan:
    """No claim of this object yet: create the role, or adopt it."""
    if ask.older_rival and sight.claim is None:
        raise Refused(
            Reason.CONFLICT,
            f'PgRole {ask.older_rival} asks for role "{ask.wanted.name}" too, and is older',
        )
    named = sight.named
    for rival, proof in ask.proven_rivals:
        if sight.claim is None and named and _proves(proof, named, server):
            raise Refused(Reason.CONFLICT, f'role "{ask.wanted.name}" was brought in by PgRole {rival}')
    wanted = _leave(ask.ignore, ask.wanted, named.role) if named else ask.wanted
    changes = diff(wanted, named.role if named else None)
    if named:
        _check_adoption(ask, named, changes, policy)
    return Plan(
        role_name=ask.wanted.name,
        changes=changes,
        oid=named.oid if named else None,
        seen_as=ask.wanted.name,
        claim=sight.claim,
        owner=ask.owner,
        applied=_digest(ask),
        releases=releases,
        deed=Deed.ADOPTED if named else Deed.CREATED,
    )


def _check_adoption(ask: Ask, named: Found, changes: tuple[Change, ...], policy: Policy) -> None:
    what = f"would change {', '.join(field_names(changes))}" if changes else "would change nothing"
    if not ask.adopt:
        raise Refused(
            Reason.ROLE_EXISTS,
            f'role "{named.role.name}" exists already and is not claimed by this object; adoption {what}. '
            f"Set spec.adopt: true to take it over, or choose another spec.name",
        )
    if not policy.adopt:
        raise Refused(Reason.NOT_ALLOWED, "the policy of the server does not allow adoption")
    check_holds(policy, named, deed="adoption")


def _target(claim: Claim, sight: Sight, server: Server, policy: Policy) -> Found | None:
    """The role that the claim is about; None when there is none. The table of "whose role is it" in the design.

    A role that is not known by a claim in the database is looked at as for adoption: status, too, is only written text.
    """
    named, claimed = sight.named, sight.claimed
    same_server = claim.system_identifier == server.system_identifier
    known = sight.claim is not None and same_server and not claim.released
    if named and known and named.oid == claim.role_oid:
        return named
    if claimed and same_server and (named is None or named.oid != claim.role_oid):
        if named is None:
            return claimed
        raise Refused(
            Reason.NAME_TAKEN,
            f'the role of this object was renamed to "{claimed.role.name}" (oid {claimed.oid}) and its name '
            f'"{named.role.name}" was given to another role (oid {named.oid}). Rename or drop one of them',
        )
    if named:
        check_holds(policy, named, deed="taking the role back")
    return named


def _keep(
    ask: Ask,
    claim: Claim,
    target: Found | None,
    sight: Sight,
    server: Server,
    releases: tuple[tuple[str, str], ...],
) -> Plan:
    """The role is this object's: bring in what differs, and say whether somebody else had changed it."""
    applied = _digest(ask)
    wanted = _leave(ask.ignore, ask.wanted, target.role) if target else ask.wanted
    changes = diff(wanted, target.role if target else None)
    same_server = claim.system_identifier == server.system_identifier
    replaced = same_server and target is not None and target.oid != claim.role_oid
    fields = ("role", *field_names(changes)) if replaced else field_names(changes)
    drift = fields if claim.applied == applied and not claim.released else ()
    if drift and ask.report_only:
        return Plan(role_name=ask.wanted.name, claim=claim, reported=changes, drift=drift, releases=releases)
    current = sight.claim == claim and claim.owner == ask.owner and not claim.released and same_server and not replaced
    return Plan(
        role_name=ask.wanted.name,
        changes=changes,
        oid=target.oid if target else None,
        seen_as=target.role.name if target else ask.wanted.name,
        claim=sight.claim,
        owner=None if current and not changes and claim.applied == applied else ask.owner,
        applied=applied,
        drift=drift,
        releases=releases,
        deed=_deed(changes, drift, target, claimless=sight.claim is None),
    )


def _digest(ask: Ask) -> str:
    """The digest of what is kept: what is left to others is not part of it."""
    return digest(_leave(ask.ignore, ask.wanted, Role(ask.wanted.name)))


def _deed(changes: tuple[Change, ...], drift: tuple[str, ...], target: Found | None, *, claimless: bool) -> Deed:
    if claimless:
        return Deed.RECLAIMED
    if drift:
        return Deed.CORRECTED
    if changes:
        return Deed.CHANGED if target else Deed.CREATED
    return Deed.NOTHING


def _decide_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> Plan:
    """The object is being deleted: its role is dropped, or released as it is."""
    try:
        claim = _own_claim(ask, sight, server)
    except Refused:
        claim = None  # another's: nothing of it is touched
    held = claim is not None and sight.claim is not None and not claim.released
    own = ((claim.role_name, claim.owner.object_uid),) if claim and held else ()
    if not ask.drop or claim is None:
        return Plan(role_name=ask.wanted.name, releases=(*sight.former, *own))
    try:
        _check_end(ask, sight, server, policy)
        target = _target(claim, sight, server, policy)
    except Refused as refused:
        raise Waiting(Reason.DROP_BLOCKED, f"{refused.message}. {_WAY_OUT}") from refused
    return Plan(
        role_name=ask.wanted.name,
        changes=(Drop(target.role.name),) if target else (),
        oid=target.oid if target else None,
        seen_as=target.role.name if target else ask.wanted.name,
        claim=sight.claim,
        releases=sight.former,
        forget=sight.claim is not None,
        deed=Deed.DROPPED if target else Deed.NOTHING,
    )


_WAY_OUT = "To keep the role and let the object go, set spec.deletionPolicy: Retain"


def _check_end(ask: Ask, sight: Sight, server: Server, policy: Policy) -> None:
    if ask.suspended:
        raise Refused(Reason.SUSPENDED, "spec.suspend is true, so the role is not dropped")
    if not policy.drop:
        raise Refused(Reason.NOT_ALLOWED, "the policy of the server does not allow objects to drop roles")
    _check_name(ask, sight, server, policy)
    _check_held(sight)
    if sight.needs:
        counts = ", ".join(
            f'{need.count} in database "{need.database}"' if need.database else f"{need.count} shared by the server"
            for need in sight.needs
        )
        raise Refused(
            Reason.DROP_BLOCKED,
            f'role "{ask.wanted.name}" still owns objects, has grants or members: {counts}',
        )
