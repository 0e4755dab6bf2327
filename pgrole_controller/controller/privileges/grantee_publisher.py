"""After a reconcile, publishes the roles whose privileges the databases' workers are to serve, and withdraws others.

A role is published when its object owns it and its claim holds what is declared, so that whatever was granted can be
revoked, whatever happens to this process. Of an object that is refused, what it declared before is published as
refused: what others grant is still revoked, and nothing is granted. A protected role is withdrawn. While Kubernetes
cannot be reached, everything stays published as it was; a process that takes over then publishes what was applied.

An existing role that an object may take over is published as an adoptee: the workers only compare it.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.result import ObjectReconcile, Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.adoption import find_adoptee
from pgrole_controller.core.deletion import may_revoke
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.ownership import find_certain_role, find_own_claim
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy, protection
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import Grantee, Refusal
from pgrole_controller.core.privileges.kept_privileges import KeptPrivileges, answered_for, former_of, grantee_of
from pgrole_controller.core.privileges.privilege_policy import find_problems
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.unvalidated import mapping
from pgrole_controller.postgres.session import Session


def add_results(target: Target, grantees: Grantees, server_name: str) -> Target:
    """Adds the results of the databases' workers, which tell the claim what they have revoked. Results about anything
    but what is published are left out: a worker may be granting what is published at this moment.
    """
    published = grantees.get(server_name, target.key)
    if target.desired is None or published is None:
        return target
    results = {
        name: one
        for name, one in grantees.results(server_name, target.key).items()
        if one.digest == published.digest_of(name)
    }
    if not results:
        return target
    return replace(target, desired=replace(target.desired, privilege_results=results))


def withdraw_unread(target: Target, grantees: Grantees, server_name: str) -> None:
    """Withdraws the role of an invalid object, whose declaration cannot be read."""
    if target.error is not None and target.error.reason is Reason.INVALID_SPEC:
        grantees.withdraw(server_name, target.key)


def take_news(result: Result, grantees: Grantees, server_name: str) -> Result:
    """Adds the news about the role's privileges, each once: call it when nothing can fail any more that would discard
    the result.
    """
    privileges, stored = result.privileges, result.target.stored
    if privileges is None:
        return result
    announced = frozenset[str]()
    if stored is not None and privileges.may_repeat:  # rare, and reading the object takes time
        announced = privileges.find_announced(mapping(stored.object().get("status")))
    return replace(result, news=grantees.take_news(server_name, result.key, announced))


class GranteePublisher:
    """Publishes on one server, in one batch of reconciles. `store` holds the PgRoles."""

    def __init__(
        self, grantees: Grantees, declared: ServerConfig, server: Server, session: Session, store: Store
    ) -> None:
        self._grantees = grantees
        self._name = declared.name
        self._server = server
        self._session = session
        self._store = store

    async def publish(self, reconciles: Sequence[ObjectReconcile]) -> None:
        """Publishes or withdraws the role of each, and notes for each what is known of its privileges.

        Raises PgRoleError if the server fails.
        """
        some = self._find_unpublished(reconciles) if self._server.enforcing else reconciles
        if some:
            await self._publish(some)
        for one in reconciles:
            if one.has_privileges:
                one.note_privileges(self._describe(one))

    def _find_unpublished(self, reconciles: Sequence[ObjectReconcile]) -> list[ObjectReconcile]:
        """Returns those whose specs were applied, and that this process does not know yet: it has taken over."""
        unknown = (one for one in reconciles if self._grantees.get(self._name, one.target.key) is None)
        return [one for one in unknown if isinstance(one.decision, Plan)]

    async def _publish(self, reconciles: Sequence[ObjectReconcile]) -> None:
        grantees, name = self._grantees, self._name
        found = {one.target.key: _find(one, grantees.get(name, one.target.key), self._server) for one in reconciles}
        namespaces = self._find_namespaces(reconciles, found)
        roles = await self._session.read_namespace_roles(sorted(namespaces.values())) if namespaces else {}
        known = self._list_known(namespaces)
        owned = {namespace: _share(roles[place], known[namespace]) for namespace, place in namespaces.items()}
        moved = frozenset[int]().union(*(_compare(now, known[namespace]) for namespace, now in owned.items()))
        for key, grantee in found.items():
            stored = self._store.get(key)
            if grantee is None or stored is None or stored.uid != grantee.uid:  # deleted meanwhile
                grantees.withdraw(name, key)
            else:
                grantees.publish(name, replace(grantee, owned=owned[key.namespace]))
        for grantee in grantees.published(name) if owned else ():
            now = owned.get(grantee.key.namespace)
            if now is not None and now is not grantee.owned and grantee.key not in found:
                grantees.publish(name, grantee.with_owned(now))
        if moved:
            await self._note_owners(moved, owned.keys())

    def _find_namespaces(
        self, reconciles: Sequence[ObjectReconcile], found: Mapping[Key, Grantee | None]
    ) -> dict[str, tuple[str, str]]:
        """The namespaces whose roles are read, by name: (name, uid). Those of the roles to be published, and those
        where a claim was taken or released and others are published.
        """
        changed = {one.target.key.namespace for one in reconciles if one.changed_claims}
        published = self._grantees.published(self._name) if changed else ()
        read = [one for one in published if one.key.namespace in changed]
        read += [one for one in found.values() if one is not None]
        return {one.key.namespace: (one.key.namespace, one.namespace_uid) for one in read}

    def _list_known(self, namespaces: Collection[str]) -> dict[str, list[frozenset[int]]]:
        """Returns, by namespace, each set of its roles that one published there has. Most have the same."""
        known: dict[str, dict[int, frozenset[int]]] = {namespace: {} for namespace in namespaces}
        for one in self._grantees.published(self._name) if known else ():
            if one.key.namespace in known:
                known[one.key.namespace][id(one.owned)] = one.owned
        return {namespace: list(some.values()) for namespace, some in known.items()}

    async def _note_owners(self, moved: frozenset[int], namespaces: Collection[str]) -> None:
        """Has the databases in which a role of `moved` owns something read again for the published roles of these
        namespaces. What such a role comes to own after they were published is announced there.
        """
        some = [one for one in self._grantees.published(self._name) if one.key.namespace in namespaces]
        owning = databases = frozenset[str]().union(*(one.databases for one in some))
        with suppress(PgRoleError):  # without an answer, any
            owning = await self._session.read_owning_databases(moved, databases)
        for one in some:
            self._grantees.note_owners(self._name, one.key, owning)

    def _describe(self, one: ObjectReconcile) -> GrantedPrivileges:
        key = one.target.key
        grantee = self._grantees.get(self._name, key)
        if grantee is not None and grantee.adoptee is not None:
            return GrantedPrivileges()
        problems = find_problems(grantee, _find_existing(one, grantee)) if grantee and one.was_read else {}
        if grantee:  # `Databases` reports the others once no session there can still grant what was given up
            problems = {name: error for name, error in problems.items() if name in grantee.declared}
        results = self._grantees.results(self._name, key)
        return GrantedPrivileges(grantee, results, problems)


def _share(roles: frozenset[int], known: Sequence[frozenset[int]]) -> frozenset[int]:
    """Returns the set that the namespace's published roles have, if it is equal: a thousand roles with one set each
    would take 64 MiB, and as long to compare.
    """
    return next((some for some in known if some == roles), roles)


def _compare(owned: frozenset[int], known: Sequence[frozenset[int]]) -> frozenset[int]:
    """Returns the roles that the namespace's published roles do not know to be owned, or know wrongly."""
    return frozenset[int]().union(*(some ^ owned for some in known if some is not owned))


def _find(one: ObjectReconcile, before: Grantee | None, server: Server) -> Grantee | None:
    """Returns the role to publish; None to withdraw it."""
    try:
        return _find_grantee(one, before, server)
    except Exception as error:  # noqa: BLE001 -- this object's error
        one.decision = contain(error, one.target.key)
        return before


def _find_grantee(one: ObjectReconcile, before: Grantee | None, server: Server) -> Grantee | None:
    desired, observed = one.target.desired, one.observed
    if desired is None or not (one.has_privileges or before):
        return None
    if not one.was_read:
        return None if before and _is_protected(before.role_name, before.oid, one.target.policy, server) else before
    role = _find_role(desired, observed, server)
    if role is None:
        return None if server.enforcing else find_adoptee(desired, observed, server, one.target.policy)
    if before is not None and (before.uid, before.oid, before.adoptee) != (desired.owner.object_uid, role.oid, None):
        before = None
    kept = answered_for(observed.claim, desired, server)
    made = grantee_of(desired, kept, role.oid)
    # other objects' databases were asked about with these
    templates = observed.references.templates & frozenset(made.databases)
    policy = replace(one.target.policy.privileges, templates=templates)
    made = replace(made, role_name=role.role.name, policy=policy)
    if desired.terminating:
        return made if _is_to_be_emptied(one, server) and made.databases else None
    if desired.suspended:
        return replace(before, suspended=True) if before else None
    names = (desired.role.name, role.role.name)
    if any(_is_protected(name, role.oid, one.target.policy, server) for name in names):
        return None
    if one.is_refused:
        made = _find_last_accepted(made, before, kept, server)
        return made if made.databases else None
    if _may_be_published(one, made, kept, server):
        return made if made.databases else None
    if before is None:
        return None
    # Unless some of it is refused, what it declares now follows at once. Nothing of the former is applied until then.
    suspended = before.suspended and not _is_partly_refused(one)
    refused = Refusal.UNKNOWN if _is_unknown(before) else None
    return replace(_with_terms(before, made), suspended=suspended, refused=refused)


def _is_protected(name: str, oid: int, policy: Policy, server: Server) -> bool:
    return protection(policy, name, oid, server.own_roles) is not None


def _find_last_accepted(made: Grantee, before: Grantee | None, kept: KeptPrivileges, server: Server) -> Grantee:
    """Returns what to publish for a refused object: what it last declared while it was accepted. The claim has that,
    whatever this process knows. But it does not tell which databases had been given up.
    """
    known = None if before is None or _is_unknown(before) else before
    if server.has_current_schema:
        given_up = known.former.keys() - known.declared.keys() if known else set[str]()
        declared = {name: some[0] for name, some in kept.items() if name not in given_up}
        is_certain = known is not None or declared.keys() <= made.declared.keys()
        refused = Refusal.KNOWN if is_certain else Refusal.UNKNOWN
        return replace(made, declared=declared, former=former_of(declared, kept), refused=refused)
    if known is None:
        return replace(made, refused=Refusal.UNKNOWN)
    return replace(_with_terms(known, made), refused=Refusal.KNOWN)


def _is_unknown(before: Grantee) -> bool:
    return before.refused is Refusal.UNKNOWN


def _with_terms(before: Grantee, made: Grantee) -> Grantee:
    """The same declaration under the present policy and options."""
    return replace(
        before,
        policy=made.policy,
        report_only=made.report_only,
        ignored=made.ignored,
        suspended=made.suspended,
        approval=made.approval,
    )


def _find_role(desired: Desired, observed: Observed, server: Server) -> ObservedRole | None:
    """Returns the role that certainly belongs to the object."""
    try:
        claim = find_own_claim(desired, observed, server)
    except Refused:
        return None
    return find_certain_role(claim, observed, server)


def _is_to_be_emptied(one: ObjectReconcile, server: Server) -> bool:
    desired = one.target.desired
    return desired is not None and may_revoke(desired, one.observed, server, one.target.policy)


def _may_be_published(one: ObjectReconcile, made: Grantee, kept: KeptPrivileges, server: Server) -> bool:
    """Whether the claim holds everything that is declared; where claims hold no privileges, whether the object is
    accepted.
    """
    if server.has_current_schema:
        return all(declared in kept.get(name, ()) for name, declared in made.declared.items())
    return isinstance(one.decision, Plan) and not _is_partly_refused(one)


def _is_partly_refused(one: ObjectReconcile) -> bool:
    return isinstance(one.decision, Plan) and any(isinstance(error, Refused) for error in one.decision.pending)


def _find_existing(one: ObjectReconcile, grantee: Grantee) -> frozenset[str]:
    """Returns the role's databases that exist, as far as known: the reconcile of a refused spec does not ask about
    those of the one before, unless the claim holds it.
    """
    desired, claim = one.target.desired, one.observed.claim
    asked = {*((desired.privileges if desired else None) or ()), *(claim.privileges if claim else ())}
    return one.observed.references.databases | (grantee.databases - asked)
