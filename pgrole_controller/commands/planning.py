"""What the controller would do about some objects of one server: the controller's own decisions on a read-only view.

Everything is read in one READ ONLY transaction, and in one more in each database with declared privileges. Objects are
decided together, so that the plan is what the controller has done once it has converged.

Without a cluster, objects are matched to claims by namespace and name. Claims also tell which roles are of the objects'
namespaces, whose privileges on their own objects others there may declare.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest

from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.commands.plan_conclusion import PlanCase, PlanConclusion, Subject
from pgrole_controller.commands.plan_model import PlanReport, failed_object
from pgrole_controller.commands.plan_owners import ClaimOwners, find_claim_owners
from pgrole_controller.commands.plan_privileges import (
    FIRST_PLACEHOLDER,
    PlannedGrantee,
    compare_adoptees,
    plan_privileges,
)
from pgrole_controller.commands.plan_words import CLAIMLESS, CLAIMS_UNREADABLE, CLAIMS_UNSAFE, describe_suspension
from pgrole_controller.commands.server_reading import reading
from pgrole_controller.controller.objects import RIVALS, Target
from pgrole_controller.controller.observation import read_observed, server_of_session
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.desired import desired_of, proof_of
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.ownership import find_own_claim, proves
from pgrole_controller.core.password import DesiredPassword, PasswordOrigin
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.kept_privileges import former_databases, grantee_of, unite
from pgrole_controller.core.request import Key
from pgrole_controller.core.simulation import SimulatedObject, simulate
from pgrole_controller.core.state import Desired, Observed
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.plan_reading import PlanSession, open_plan_session, read_suspensions

#: Objects of one read.
_BATCH = 250

OFFLINE = "no cluster was read: objects are matched to claims in the database by namespace and name"


async def plan_server(
    config: ServerConfig, subjects: Sequence[Subject], asked: frozenset[Key] | None = None
) -> PlanReport:
    """Returns what would happen to these objects of one server.

    `asked`: only these are reported; the others are their rivals. Raises nothing: an error of the server becomes one
    of each object.
    """
    try:
        if config.endpoint is None:
            problem = config.problem or Transient(
                Reason.SERVER_NOT_READY, "no connection is known: set PGROLE_DSN, or use --server NAME"
            )
            return _failed(config, subjects, asked, problem)
        async with reading(config.endpoint) as connection:
            view = await open_plan_session(connection)
            owners = await find_claim_owners(view, subjects)
            plan = _ServerPlan(config, config.endpoint, view, owners)
            await plan.read(subjects)
            plan.decide()
            await plan.compare_adoptees()
            await plan.add_privileges()
            await plan.note_suspensions()
        return plan.report([one for one in subjects if asked is None or one.key in asked])
    except PgRoleError as error:
        return _failed(config, subjects, asked, error)
    except Exception as error:  # noqa: BLE001 -- one server's error
        return _failed(config, subjects, asked, make_unexpected(error))


def _failed(
    config: ServerConfig, subjects: Sequence[Subject], asked: frozenset[Key] | None, error: PgRoleError
) -> PlanReport:
    return PlanReport(
        tuple(
            failed_object(one.key, error, place=one.place, role=one.pgrole.role_name, server=config.name)
            for one in subjects
            if asked is None or one.key in asked
        )
    )


class _ServerPlan:
    """The objects of one server on their way to a report: a case for each, or an error."""

    def __init__(self, config: ServerConfig, endpoint: Endpoint, view: PlanSession, owners: ClaimOwners) -> None:
        self._config = config
        self._endpoint = endpoint
        self._view = view
        self._owners = owners
        self._session = view.of_cluster(owners.cluster)
        server = server_of_session(self._session, config)
        self._server = replace(server, has_current_schema=server.has_current_schema or view.claims_unseen)
        self._cases: dict[Key, PlanCase] = {}
        self._errors: dict[Key, PgRoleError] = {}
        self._notes: dict[str, None] = {owners.note: None} if owners.note else {}
        self._simulation = simulate((), self._server, make_unexpected)

    async def read(self, subjects: Sequence[Subject]) -> None:
        """Reads what is observed for each object. Raises PgRoleError."""
        by_role: dict[str, list[Subject]] = {}
        for one in subjects:
            by_role.setdefault(one.pgrole.role_name, []).append(one)
        declared: list[tuple[Subject, Desired, Policy]] = []
        for one in subjects:
            try:
                policy = self._policy(one)
                declared.append((one, self._desired(one, by_role[one.pgrole.role_name]), policy))
            except PgRoleError as error:
                self._errors[one.key] = error
            except Exception as error:  # noqa: BLE001 -- this object's error, whatever it holds
                self._errors[one.key] = make_unexpected(error)
        for start in range(0, len(declared), _BATCH):
            some = declared[start : start + _BATCH]
            targets = [Target(one.key, None, desired, policy) for one, desired, policy in some]
            found = await read_observed(targets, self._session, self._server)
            for (one, desired, policy), observed in zip(some, found, strict=True):
                placeholder = FIRST_PLACEHOLDER + len(self._cases)
                self._cases[one.key] = PlanCase(one, desired, policy, placeholder, observed)
        self._note_unseen(subjects)

    def _note(self, words: str) -> None:
        self._notes[words] = None

    def _note_unseen(self, subjects: Sequence[Subject]) -> None:
        if self._view.claimless:
            self._note(CLAIMLESS)
        if self._view.claims_unseen:
            self._note(CLAIMS_UNSAFE if self._view.claims_unsafe else CLAIMS_UNREADABLE)
        elif any(not one.cluster_read for one in subjects):
            self._note(OFFLINE)
        if not self._view.session.identity.sees_passwords and any(
            case.subject.pgrole.spec.password for case in self._cases.values()
        ):
            self._note(
                "password verifiers not read, since the login may not read pg_authid: passwords are not compared"
            )

    def _desired(self, subject: Subject, sharing: Sequence[Subject]) -> Desired:
        """Returns what is known without Secrets: whether the role has a password at all. Raises PgRoleError."""
        older = nsmallest(RIVALS, (one for one in sharing if _age(one) < _age(subject)), key=_age)
        had = [one for one in sharing if one is not subject and one.status.get("role")]
        rivals = {one.key: one for one in (*older, *had)}.values()
        desired = desired_of(
            subject.pgrole,
            self._owners.owner_of(subject),
            [(one.pgrole, self._policy(one)) for one in rivals],
            proof_of(subject.status, self._config.name),
        )
        seen = desired.password.origin is PasswordOrigin.NOWHERE and self._view.session.identity.sees_passwords
        password = desired.password if seen else DesiredPassword()
        return replace(desired, password=password, connection=None)

    def _policy(self, subject: Subject) -> Policy:
        server_policy, namespace = self._config.server_policy, subject.key.namespace
        policy = server_policy.policy(namespace, subject.labels or {})
        if subject.labels is None and server_policy.labels:
            self._note(
                f"labels of namespace {namespace} not known: the plan assumes that the server's policy admits it"
            )
            return replace(policy, admitted=True)
        return policy

    def decide(self) -> None:
        cases = self._cases.values()
        for case in cases:
            self._assume_claim(case)
        self._simulate()
        if any(case.assumed and case.desired.report_only for case in cases):
            # The state last applied, which is in the claim, tells what others changed from what the spec changed.
            for case in cases:
                _note_applied(case)
            self._simulate()

    def _simulate(self) -> None:
        cases = self._cases.values()
        objects = [SimulatedObject(case.desired, case.observed, case.policy) for case in cases]
        self._simulation = simulate(objects, self._server, make_unexpected)
        for case, decision in zip(cases, self._simulation.decisions, strict=True):
            case.decision = decision

    def _assume_claim(self, case: PlanCase) -> None:
        """Where claims are not seen, an existing role is the object's."""
        desired, observed = case.desired, case.observed
        if not self._view.claims_unseen or not isinstance(observed, Observed):
            return
        if observed.named is None or observed.claim is not None:
            return
        proof = desired.proof
        proven = proof if proof is not None and proves(proof, observed.named, self._server) else None
        case.assumed = proven is None
        claim = Claim(
            desired.role.name,
            observed.named.oid,
            self._server.system_identifier,
            desired.owner,
            "" if proven is None else proven.applied,
            privileges=unite(desired.privileges or {}, {}),
        )
        case.observed = replace(observed, claim=claim)

    async def compare_adoptees(self) -> None:
        """Decides about existing roles again, with what they hold in the databases that their objects list. Repeats it
        while more are adopted: what these own may be declared by others of their namespaces. Raises PgRoleError.
        """
        for _ in self._cases:
            before = self._planned_keys()
            adoptees = self._find_adoptees(await self._read_owned())
            if not adoptees:
                return
            results = await compare_adoptees(self._endpoint, [one for _, _, one in adoptees])
            for case, observed, one in adoptees:
                case.desired = replace(case.desired, privilege_results=results[one.key])
                case.observed = observed
            self.decide()
            if self._planned_keys() <= before:
                return

    def _planned_keys(self) -> set[Key]:
        return {key for key, case in self._cases.items() if case.planned is not None}

    def _find_adoptees(self, owned: Mapping[str, frozenset[int]]) -> list[tuple[PlanCase, Observed, Grantee]]:
        """Returns existing roles without a plan, with what `owned` adds to what is observed of them."""
        adoptees: list[tuple[PlanCase, Observed, Grantee]] = []
        for case in self._cases.values():
            if case.planned is not None or not isinstance(case.observed, Observed):
                continue
            observed = replace(case.observed, owned=owned.get(case.subject.key.namespace, frozenset()))
            found = find_adoptee(case.desired, observed, self._server, case.policy)
            if found is None:
                continue
            declared = {name: one for name, one in found.declared.items() if name not in observed.unheld}
            if declared:
                adoptees.append((case, observed, replace(found, declared=declared)))
        return adoptees

    async def add_privileges(self) -> None:
        """Raises PgRoleError if the home database fails."""
        grantees = [(case, made) for case in self._cases.values() if (made := self._grantee(case)) is not None]
        if not grantees:
            return
        owned = await self._read_owned()
        created = {plan.role_name: case.placeholder for case, plan in self._owning() if plan.oid is None}
        some = [
            replace(made, grantee=replace(made.grantee, owned=owned.get(case.subject.key.namespace, frozenset())))
            for case, made in grantees
        ]
        found = await plan_privileges(self._endpoint, some, self._simulation.references.databases, created)
        for case, _ in grantees:
            case.privileges = found.by_object.get(case.subject.key)
        for note in found.notes:
            self._note(note)

    def _grantee(self, case: PlanCase) -> PlannedGrantee | None:
        """Returns the role as its databases serve it once the plan is applied; None if no privileges are to be
        compared.
        """
        desired = case.desired
        if case.planned is None or desired.terminating or desired.suspended:
            return None
        observed, plan = case.planned
        if _is_refused(plan) or _leaves_role(plan):
            return None
        try:
            claim = find_own_claim(desired, observed, self._server)
        except Refused:
            return None
        known = claim.privileges if claim else {}
        forgotten = former_databases(desired, known) & observed.unheld
        left = {name: some for name, some in known.items() if name not in forgotten}
        kept = unite(desired.privileges or {}, left if self._server.has_current_schema else {})
        made = grantee_of(desired, kept, case.oid(plan))
        if not made.databases:
            return None
        recorded = frozenset(name for name, one in made.declared.items() if one in known.get(name, ()))
        return PlannedGrantee(
            replace(made, policy=replace(case.policy.privileges, templates=observed.references.templates)),
            exists=plan.oid is not None,
            recorded=recorded,
        )

    def _owning(self) -> Iterator[tuple[PlanCase, Plan]]:
        """Yields the objects with a plan after which they have a role."""
        for case in self._cases.values():
            if case.planned is not None and not _leaves_role(case.planned[1]):
                yield case, case.planned[1]

    async def _read_owned(self) -> dict[str, frozenset[int]]:
        """Returns the oids of the roles of each namespace, once the plan is applied."""
        places = {
            (case.subject.key.namespace, case.desired.owner.namespace_uid)
            for case in self._cases.values()
            if case.desired.owner.namespace_uid
        }
        found: dict[str, set[int]] = {}
        if places and not self._view.claims_unseen:
            for (namespace, _), oids in (await self._session.read_namespace_roles(sorted(places))).items():
                found.setdefault(namespace, set()).update(oids)
        for case, plan in self._owning():
            if not _is_refused(plan):
                found.setdefault(case.subject.key.namespace, set()).add(case.oid(plan))
        return {namespace: frozenset(oids) for namespace, oids in found.items()}

    async def note_suspensions(self) -> None:
        """Notes first that the controller would do none of this now. Raises PgRoleError."""
        databases: set[str] = set()
        for case in self._cases.values():
            databases.update(case.desired.privileges or ())
            if isinstance(case.observed, Observed) and case.observed.claim is not None:
                databases.update(case.observed.claim.privileges)
        found = await read_suspensions(self._view, databases)
        notes = [describe_suspension(one.database, one.role, of_home=one.of_home) for one in found]
        self._notes = {**dict.fromkeys(notes), **self._notes}

    def report(self, asked: Sequence[Subject]) -> PlanReport:
        conclusion = PlanConclusion(self._config.name, self._server, self._simulation)
        objects = [
            conclusion.conclude_error(one, self._errors[one.key])
            if one.key in self._errors
            else conclusion.conclude(self._cases[one.key])
            for one in asked
        ]
        return PlanReport(tuple(objects), tuple(self._notes))


def _note_applied(case: PlanCase) -> None:
    """Under an assumed claim, every difference counts as drift."""
    if not case.assumed or case.planned is None:
        return
    observed, plan = case.planned
    if observed.claim is not None:
        case.observed = replace(observed, claim=replace(observed.claim, applied=plan.applied))


def _is_refused(plan: Plan) -> bool:
    return any(isinstance(one, Refused) for one in plan.pending)


def _leaves_role(plan: Plan) -> bool:
    """Whether the role that is missing or was replaced is only reported, so that no role is the object's own."""
    return "role" in plan.reported


def _age(subject: Subject) -> tuple[str, str]:
    return (subject.created.isoformat() if subject.created else "", subject.uid or str(subject.key))
