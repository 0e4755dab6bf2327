"""Decides whether an object may take over a role that exists, by what the role holds in the databases that it lists.

Only the workers of these databases can see that. So a role that an object may take over is published as an adoptee,
which they compare without changing anything, and the decision waits until every listed database has answered about
this declaration, role and policy. A database in which the role holds nothing need not answer: the home database knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.names import name_some, quote_some, spell_name
from pgrole_controller.core.ownership import find_own_claim
from pgrole_controller.core.policy import Policy, check_admitted, check_within_policy, protection
from pgrole_controller.core.privileges.grantee import Grantee, Takeover
from pgrole_controller.core.privileges.kept_privileges import find_answer, former_databases, former_of, grantee_of
from pgrole_controller.core.privileges.privilege_policy import find_problems
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Desired, Observed, Server

_UNANSWERED = "the controller has not compared its privileges there yet"
_REMEDY = "ask an administrator to revoke them first, or to allow them in PgServer.spec.allow.privileges"


def find_adoptee(desired: Desired, observed: Observed, server: Server, policy: Policy) -> Grantee | None:
    """Returns the existing role that the object may take over, for the workers of the databases that it lists; None if
    there is none, or if what it holds there would change nothing.
    """
    named = observed.named
    if named is None or not desired.privileges or desired.terminating or desired.suspended:
        return None
    try:
        claim = find_own_claim(desired, observed, server)
        # Claims that do not record privileges do not tell which of them the object itself had declared.
        if not policy.adopt if claim is None else not (claim.released and server.has_current_schema):
            return None
        check_admitted(policy, desired.role.name)
    except Refused:
        return None
    if named.owner_elsewhere or protection(policy, named.role.name, named.oid, server.own_roles):
        return None
    return _make_adoptee(desired, named, observed, policy, claim)


def _make_adoptee(
    desired: Desired, named: ObservedRole, observed: Observed, policy: Policy, retained: Claim | None = None
) -> Grantee:
    made = grantee_of(desired, {}, named.oid)
    recorded = former_of(made.declared, retained.privileges) if retained else {}
    templates = observed.references.templates & frozenset(made.declared)
    return replace(
        made,
        former={name: some for name, some in recorded.items() if name in made.declared},
        policy=replace(policy.privileges, templates=templates),
        owned=observed.owned,
        report_only=False,
        ignored=False,
        adoptee=Takeover.RETAINED if retained else Takeover.NEW,
    )


@dataclass(frozen=True, slots=True)
class HeldInDatabases:
    """What is known of an adoptee's privileges in the databases that its object lists.

    `revoked`, `beyond`: as in AdoptionFindings, with the database. `unknown`: databases without an answer, and why.
    `former`: other databases, in which the former owner's declarations are revoked, as the claim records them.
    """

    revoked: tuple[str, ...] = ()
    revoked_count: int = 0
    beyond: tuple[str, ...] = ()
    beyond_count: int = 0
    unknown: Mapping[str, PgRoleError | None] = field(default_factory=dict)
    former: tuple[str, ...] = ()

    def describe_revoked(self) -> str:
        """For people; empty if nothing would be revoked."""
        parts = [f"revoke {name_some(self.revoked, count=self.revoked_count)}"] if self.revoked else []
        if self.unknown:
            names = quote_some(self.unknown)
            why = next((f" (not compared: {one.message})" for one in self.unknown.values() if one is not None), "")
            parts.append(f"revoke undeclared privileges in {names}{why}")
        if self.former:
            parts.append(f"revoke what the role's former object declared in {quote_some(self.former)}")
        return ", and would ".join(parts)


def collect_held(adoptee: Grantee, desired: Desired, observed: Observed, server: Server) -> HeldInDatabases:
    """Combines the answers of the databases."""
    revoked, beyond = list[str](), list[str]()
    revoked_count = beyond_count = 0
    unknown: dict[str, PgRoleError | None] = {}
    problems = find_problems(adoptee, observed.references.databases)
    for name in sorted(frozenset(adoptee.declared) - observed.unheld):
        result = find_answer(desired.privilege_results, adoptee, name)
        if name in problems or result is None or result.adoption is None:
            unknown[name] = problems.get(name) or (result.error if result else None)
            continue
        found = result.adoption
        revoked += [f"{words} (database {spell_name(name)})" for words in found.revoked]
        beyond += [f"{words} (database {spell_name(name)})" for words in found.beyond]
        revoked_count, beyond_count = revoked_count + found.revoked_count, beyond_count + found.beyond_count
    claim = observed.claim
    lost = claim is None or claim.is_of_lost_role(adoptee.oid, server.system_identifier)
    kept = {} if claim is None or lost else claim.privileges
    former = tuple(sorted(former_databases(desired, kept) & observed.references.databases))
    return HeldInDatabases(tuple(revoked), revoked_count, tuple(beyond), beyond_count, unknown, former)


def check_held_privileges(held: HeldInDatabases, named: ObservedRole, *, action: str) -> None:
    """Raises Refused if the role holds something in its object's databases that the object could not declare, or if no
    one can see whether it does; Transient while that is unknown. `action` begins the message.
    """
    role = named.role.name
    if held.beyond:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'{action} is denied: role "{role}" has privileges that this object could not declare '
            f"({name_some(held.beyond, count=held.beyond_count)}): {_REMEDY}",
        )
    for name, error in held.unknown.items():
        if isinstance(error, Refused):
            raise Refused(
                Reason.NOT_ALLOWED,
                f'{action} is denied: role "{role}" has privileges in database "{name}", and the controller cannot '
                f"see whether this object could declare them: {error.message}",
            )
    for name, error in held.unknown.items():
        more = f" (and in {len(held.unknown) - 1} more)" if len(held.unknown) > 1 else ""
        why = error.message if error else _UNANSWERED
        raise Transient(
            Reason.PROGRESSING,
            f'{action} waits for database "{name}"{more}, in which role "{role}" has privileges: {why}',
        )


def check_retained(desired: Desired, observed: Observed, server: Server, policy: Policy) -> None:
    """Raises PgRoleError if the object's claim was released, and the role holds more than the claim records or the
    object could declare, or if that is unknown.
    """
    adoptee = find_adoptee(desired, observed, server, policy)
    if adoptee is None or observed.named is None:
        return
    held = collect_held(adoptee, desired, observed, server)
    check_held_privileges(held, observed.named, action="taking the role back")


def check_adoption(
    desired: Desired,
    named: ObservedRole,
    fields: tuple[str, ...],
    cascades: tuple[str, ...],
    observed: Observed,
    server: Server,
    policy: Policy,
) -> None:
    """Raises PgRoleError if the object may not adopt the role, or if that is unknown. `fields`: what adoption would
    change on the role; `cascades`: what that would revoke from others.
    """
    held = collect_held(_make_adoptee(desired, named, observed, policy), desired, observed, server)
    if not desired.adopt:
        what = f"would change {', '.join(fields)}" if fields else "would change nothing"
        if cascades:
            what = f"{what}, and would revoke {name_some(cascades)}"
        if revoked := held.describe_revoked():
            what = f"{what}, and would {revoked}" if fields else f"would {revoked}"
        raise Refused(
            Reason.ROLE_EXISTS,
            f'role "{named.role.name}" already exists and this object has no claim to it; adoption {what}. '
            f"To take the role over, set spec.adopt: true; otherwise choose another spec.name, in a new object",
        )
    if not policy.adopt:
        raise Refused(
            Reason.NOT_ALLOWED,
            "the server's policy does not allow adoption: ask the server's administrator for allow.adopt",
        )
    check_within_policy(policy, named, action="adoption", references=observed.references)
    check_held_privileges(held, named, action="adoption")
