"""What the controller would do about some objects of one server: the controller's own decisions on a read-only view.

Everything is read in one READ ONLY transaction, and in one more in each database with declared privileges. Objects are
decided together, so that the plan is what the controller has done once it has converged.

Without a cluster, objects are matched to claims by namespace and name. Claims also tell which roles are of the objects'
namespaces, whose privileges on their own objects others there may declare.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest

from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.commands.plan_conclusion import PlanCase, PlanConclusion, Subject
from pgrole_controller.commands.plan_model import PlanReport, failed_object
from pgrole_controller.commands.plan_privileges import (
    FIRST_PLACEHOLDER,
    PlannedGrantee,
    compare_adoptees,
    plan_privileges,
)
from pgrole_controller.commands.plan_words import CLAIMS_UNREADABLE, CLAIMS_UNSAFE
from pgrole_controller.commands.server_reading import reading
from pgrole_controller.controller.objects import RIVALS, Target
from pgrole_controller.controller.observation import read_observed, server_of_session
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.desired import desired_of, proof_of
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.ownership import find_own_claim, proves
from pgrole_controller.core.password import DesiredPassword, PasswordOrigin
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.kept_privileges import find_former, grantee_of, unite
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.simulation import SimulatedObject, Simulation, simulate
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.postgres.plan_reading import (
    PlanSession,
    open_plan_session,
    read_claiming_namespaces,
    read_owners,
)
from pgrole_controller.postgres.session import Session

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
            plan = _ServerPlan(config, view)
            await plan.read(subjects)
            plan.decide()
            await plan.compare_adoptees()
            await plan.add_privileges()
        return plan.report(asked)
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
    def __init__(self, config: ServerConfig, view: PlanSession) -> None:
        self._config = config
        self._view = view
        self._cases: list[PlanCase] = []
        self._notes: dict[str, None] = {}
        self._owners: dict[Key, Owner] = {}
        self._namespaces: dict[str, str] = {}  # the uids of those that claim roles, by name
        self._cluster = ""
        self._session = view.session
        self._server = self._server_of(view.session)
        self._simulation: Simulation | None = None

    def _server_of(self, session: Session) -> Server:
        server = server_of_session(session, self._config)
        return replace(server, notes_generations=server.notes_generations or self._view.claims_unseen)

    async def read(self, subjects: Sequence[Subject]) -> None:
        """Reads what is observed for each object. Raises PgRoleError."""
        await self._read_owners(subjects)
        self._session = self._view.of_cluster(self._cluster)
        self._server = self._server_of(self._session)
        by_role: dict[str, list[Subject]] = {}
        for one in subjects:
            by_role.setdefault(one.pgrole.role_name, []).append(one)
        for subject in subjects:
            case = PlanCase(subject)
            self._cases.append(case)
            try:
                case.target = self._target(subject, by_role[subject.pgrole.role_name])
            except PgRoleError as error:
                case.decision = error
            except Exception as error:  # noqa: BLE001 -- this object's error, whatever it holds
                case.decision = make_unexpected(error)
        readable = [(case, case.target) for case in self._cases if case.target is not None]
        for start in range(0, len(readable), _BATCH):
            some = readable[start : start + _BATCH]
            found = await read_observed([target for _, target in some], self._session, self._server)
            for (case, _), observed in zip(some, found, strict=True):
                case.observed = observed
        self._note_unseen()

    async def _read_owners(self, subjects: Sequence[Subject]) -> None:
        """Finds out which cluster's claims these are, and whose. New objects have none: then the claims of the others
        in their namespaces tell.
        """
        owners = await read_owners(self._view, {one.key for one in subjects})
        uids = {one.uid for one in subjects} - {""}
        counts = Counter(owner.cluster for owner in owners if not uids or owner.object_uid in uids)
        known = {(one.key.namespace, one.namespace_uid) for one in subjects}
        namespaces = [
            one
            for one in await read_claiming_namespaces(self._view, {name for name, _ in known})
            if (one.name, one.uid) in known or (one.name, "") in known
        ]
        if not counts:
            for one in namespaces:
                counts[one.cluster] += one.claims
        if counts:
            self._cluster = max(sorted(counts), key=lambda cluster: counts[cluster])
        if len(counts) > 1:
            others = ", ".join(sorted(set(counts) - {self._cluster}))
            self._note(
                f"several clusters have claims with these names: cluster {self._cluster} is assumed, not {others}"
            )
        self._owners = {Key(owner.namespace, owner.object): owner for owner in owners if owner.cluster == self._cluster}
        for one in namespaces:  # those with most claims first
            if one.cluster == self._cluster:
                self._namespaces.setdefault(one.name, one.uid)
        for owner in self._owners.values():  # with released claims, too
            self._namespaces.setdefault(owner.namespace, owner.namespace_uid)

    def _note(self, words: str) -> None:
        self._notes[words] = None

    def _note_unseen(self) -> None:
        if self._view.claims_unseen:
            self._note(CLAIMS_UNSAFE if self._view.claims_unsafe else CLAIMS_UNREADABLE)
        elif any(not case.subject.cluster_read for case in self._cases):
            self._note(OFFLINE)
        if not self._view.session.identity.sees_passwords and any(
            case.target and case.target.desired and case.subject.pgrole.spec.password for case in self._cases
        ):
            self._note(
                "password verifiers not read, since the login may not read pg_authid: passwords are not compared"
            )

    def _target(self, subject: Subject, sharing: Sequence[Subject]) -> Target:
        """Raises PgRoleError."""
        policy = self._policy(subject)
        older = nsmallest(RIVALS, (one for one in sharing if _age(one) < _age(subject)), key=_age)
        had = [one for one in sharing if one is not subject and one.status.get("role")]
        rivals = {one.key: one for one in (*older, *had)}.values()
        desired = desired_of(
            subject.pgrole,
            self._owner(subject),
            [(one.pgrole, self._policy(one)) for one in rivals],
            proof_of(subject.status, self._config.name),
        )
        return Target(subject.key, None, self._without_secrets(desired), policy)

    def _policy(self, subject: Subject) -> Policy:
        server_policy, namespace = self._config.server_policy, subject.key.namespace
        policy = server_policy.policy(namespace, subject.labels or {})
        if subject.labels is None and server_policy.labels:
            self._note(
                f"labels of namespace {namespace} not known: the plan assumes that the server's policy admits it"
            )
            return replace(policy, admitted=True)
        return policy

    def _owner(self, subject: Subject) -> Owner:
        key, known = subject.key, self._owners.get(subject.key)
        if subject.uid:
            beside = self._namespaces.get(key.namespace, "")
            namespace_uid = subject.namespace_uid or (known.namespace_uid if known else beside)
            return Owner(self._cluster, key.namespace, namespace_uid, key.name, subject.uid)
        if known is not None and subject.namespace_uid in ("", known.namespace_uid):
            return known
        namespace_uid = subject.namespace_uid or self._namespaces.get(key.namespace, "")
        return Owner(self._cluster, key.namespace, namespace_uid, key.name, f"new/{key}")

    def _without_secrets(self, desired: Desired) -> Desired:
        """Returns what is known without Secrets: whether the role has a password at all."""
        seen = desired.password.origin is PasswordOrigin.NOWHERE and self._view.session.identity.sees_passwords
        password = desired.password if seen else DesiredPassword()
        return replace(desired, password=password, connection=None)

    def decide(self) -> None:
        some = [case for case in self._cases if case.target is not None and case.observed is not None]
        objects = [one for case in some if (one := self._simulated(case)) is not None]
        self._simulation = simulate(objects, self._server, make_unexpected)
        if any(case.assumed and one.desired.report_only for case, one in zip(some, objects, strict=True)):
            # The state last applied, which is in the claim, tells what others changed from what the spec changed.
            objects = [
                _with_applied(one, decision) if case.assumed else one
                for case, one, decision in zip(some, objects, self._simulation.decisions, strict=True)
            ]
            self._simulation = simulate(objects, self._server, make_unexpected)
        for case, one, decision in zip(some, objects, self._simulation.decisions, strict=True):
            case.decision, case.observed = decision, one.observed

    def _simulated(self, case: PlanCase) -> SimulatedObject | None:
        target, observed = case.target, case.observed
        if target is None or target.desired is None or observed is None:
            return None
        if isinstance(observed, Observed) and self._view.claims_unseen and observed.named and observed.claim is None:
            proof = target.desired.proof
            proven = proof if proof is not None and proves(proof, observed.named, self._server) else None
            case.assumed = proven is None
            applied = "" if proven is None else proven.applied
            observed = replace(observed, claim=self._assume_claim(target.desired, observed.named, applied))
        return SimulatedObject(target.desired, observed, target.policy)

    def _assume_claim(self, desired: Desired, named: ObservedRole, applied: str) -> Claim:
        return Claim(
            desired.role.name,
            named.oid,
            self._server.system_identifier,
            desired.owner,
            applied,
            privileges=unite(desired.privileges or {}, {}),
        )

    async def compare_adoptees(self) -> None:
        """Decides about existing roles again, with what they hold in the databases that their objects list. Repeats it
        while more are adopted: what these own may be declared by others of their namespaces. Raises PgRoleError.
        """
        for _ in self._cases:
            before = {case.subject.key for case in self._cases if isinstance(case.decision, Plan)}
            owned = await self._read_owned()
            some = [(case, one) for case in self._cases if (one := self._adoptee(case, owned)) is not None]
            if not some or self._config.endpoint is None:
                return
            results = await compare_adoptees(self._config.endpoint, [one for _, one in some])
            for case, one in some:
                if case.target is not None and case.target.desired is not None and isinstance(case.observed, Observed):
                    desired = replace(case.target.desired, privilege_results=results[one.key])
                    case.target = replace(case.target, desired=desired)
                    case.observed = replace(case.observed, owned=one.owned)
            self.decide()
            if {case.subject.key for case in self._cases if isinstance(case.decision, Plan)} <= before:
                return

    def _adoptee(self, case: PlanCase, owned: Mapping[str, frozenset[int]]) -> Grantee | None:
        target, observed = case.target, case.observed
        if target is None or target.desired is None or not isinstance(observed, Observed):
            return None
        if isinstance(case.decision, Plan):
            return None
        observed = replace(observed, owned=owned.get(case.subject.key.namespace, frozenset()))
        found = find_adoptee(target.desired, observed, self._server, target.policy)
        if found is None:
            return None
        declared = {name: one for name, one in found.declared.items() if name not in observed.unheld}
        return replace(found, declared=declared) if declared else None

    async def add_privileges(self) -> None:
        """Raises PgRoleError if the home database fails."""
        grantees = [
            (case, made)
            for place, case in enumerate(self._cases)
            if (made := self._grantee(case, FIRST_PLACEHOLDER + place)) is not None
        ]
        if not grantees or self._simulation is None or self._config.endpoint is None:
            return
        owned = await self._read_owned()
        created = {
            name: FIRST_PLACEHOLDER + place
            for place, case in enumerate(self._cases)
            if isinstance(case.decision, Plan) and case.decision.oid is None and not _leaves_role(case.decision)
            for name in [case.decision.role_name]
        }
        some = [
            replace(made, grantee=replace(made.grantee, owned=owned.get(case.subject.key.namespace, frozenset())))
            for case, made in grantees
        ]
        found = await plan_privileges(self._config.endpoint, some, self._simulation.references.databases, created)
        for case, _ in grantees:
            case.privileges = found.by_object.get(case.subject.key)
        for note in found.notes:
            self._note(note)

    def _grantee(self, case: PlanCase, placeholder: int) -> PlannedGrantee | None:
        """Returns the role as its databases serve it once the plan is applied; None if no privileges are to be
        compared.
        """
        desired = case.target.desired if case.target else None
        plan, observed = case.decision, case.observed
        if desired is None or case.target is None or not isinstance(plan, Plan) or not isinstance(observed, Observed):
            return None
        if desired.terminating or desired.suspended or any(isinstance(one, Refused) for one in plan.pending):
            return None
        if _leaves_role(plan):
            return None
        try:
            claim = find_own_claim(desired, observed, self._server)
        except Refused:
            return None
        known = claim.privileges if claim else {}
        forgotten = find_former(desired, known) & observed.unheld
        left = {name: some for name, some in known.items() if name not in forgotten}
        kept = unite(desired.privileges or {}, left if self._server.keeps_privileges else {})
        made = grantee_of(desired, kept, placeholder if plan.oid is None else plan.oid)
        if not made.databases:
            return None
        recorded = frozenset(name for name, one in made.declared.items() if one in known.get(name, ()))
        return PlannedGrantee(
            replace(made, policy=replace(case.target.policy.privileges, templates=observed.references.templates)),
            exists=plan.oid is not None,
            recorded=recorded,
        )

    async def _read_owned(self) -> dict[str, frozenset[int]]:
        """Returns the oids of the roles of each namespace, once the plan is applied."""
        places = {
            (case.subject.key.namespace, owner.namespace_uid)
            for case in self._cases
            if case.target and case.target.desired and (owner := case.target.desired.owner).namespace_uid
        }
        found: dict[str, set[int]] = {}
        if places and not self._view.claims_unseen:
            for (namespace, _), oids in (await self._session.read_namespace_roles(sorted(places))).items():
                found.setdefault(namespace, set()).update(oids)
        for place, case in enumerate(self._cases):
            plan = case.decision
            if not isinstance(plan, Plan) or _leaves_role(plan):
                continue
            if not any(isinstance(one, Refused) for one in plan.pending):
                oid = FIRST_PLACEHOLDER + place if plan.oid is None else plan.oid
                found.setdefault(case.subject.key.namespace, set()).add(oid)
        return {namespace: frozenset(oids) for namespace, oids in found.items()}

    def report(self, asked: frozenset[Key] | None) -> PlanReport:
        conclusion = PlanConclusion(self._config.name, self._server, self._simulation)
        chosen = [case for case in self._cases if asked is None or case.subject.key in asked]
        return PlanReport(tuple(conclusion.conclude(case) for case in chosen), tuple(self._notes))


def _leaves_role(plan: Plan) -> bool:
    """Whether the role that is missing or was replaced is only reported, so that no role is the object's own."""
    return "role" in plan.reported


def _age(subject: Subject) -> tuple[str, str]:
    return (subject.created.isoformat() if subject.created else "", subject.uid or str(subject.key))


def _with_applied(one: SimulatedObject, decision: Plan | PgRoleError) -> SimulatedObject:
    """Under an assumed claim, every difference counts as drift."""
    if not isinstance(decision, Plan) or not isinstance(one.observed, Observed) or one.observed.claim is None:
        return one
    return replace(one, observed=replace(one.observed, claim=replace(one.observed.claim, applied=decision.applied)))
