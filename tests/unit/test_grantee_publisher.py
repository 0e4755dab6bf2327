"""controller/privileges/grantee_publisher: which roles a reconcile publishes to the database workers, and with what."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import pytest

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.privileges.grantee_publisher import (
    GranteePublisher,
    add_results,
    take_news,
    withdraw_unread,
)
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.reconcile import _decide
from pgrole_controller.controller.result import ObjectReconcile, Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.claim import Claim, ClaimKey, Generations, Owner
from pgrole_controller.core.connection_secret import Address, DesiredSecret
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.core.password import DesiredPassword, PasswordOrigin
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy, References, ServerPolicy
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, PrivilegePolicy, Refusal, Takeover
from pgrole_controller.core.privileges.privilege_result import AdoptionFindings, News, PrivilegeNews, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole, Role, digest
from pgrole_controller.core.state import Desired, Observed, Server
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.postgres.session import Session
from tests.cpu_time import within_a_callback

KEY, OTHER = Key("shop", "app"), Key("shop", "other")
ADDRESS = Address("db", 5432, "app", "require")
SERVER = Server(7, frozenset({"keeper"}), ADDRESS, has_current_schema=True)
CONFIG = ServerConfig("main", None, ServerPolicy(), ADDRESS)
POLICY = Policy(privileges=PrivilegePolicy(databases=("*",)))
OID = 20_000
ROLE = Role("app", login=True)
ORDERS = DatabasePrivileges("orders", on_database=frozenset({"CONNECT"}))
MORE = replace(ORDERS, on_database=frozenset({"CONNECT", "CREATE"}))
LAKE = DatabasePrivileges("lake")
THERE = References(databases=frozenset({"orders", "lake"}))
NEWS = PrivilegeNews(News.PRIVILEGES_EXTENDED, "SELECT on table app.orders")
DRIFT = PrivilegeNews(News.DRIFT_REPORTED, "DELETE on table app.orders (database orders) was granted", first=True)


def owner(key: Key = KEY) -> Owner:
    return Owner("c1", key.namespace, "ns-uid", key.name, f"uid-{key.name}")


def stored(key: Key = KEY) -> Stored:
    metadata = {"name": key.name, "namespace": key.namespace, "uid": f"uid-{key.name}", "generation": 1}
    return pack({"metadata": {**metadata, "resourceVersion": "1"}, "spec": {}})


def target(*declared: DatabasePrivileges, key: Key = KEY, **values: object) -> Target:
    plain = Desired(owner(key), ROLE, privileges={one.database: one for one in declared} or None)
    return Target(key, stored(key), replace(plain, **values), POLICY)  # type: ignore[arg-type]


def see(kept: dict[str, tuple[DatabasePrivileges, ...]], **values: object) -> Observed:
    claim = Claim("app", OID, 7, owner(), digest(ROLE), privileges=kept, generations=Generations())
    return replace(Observed(named=ObservedRole(OID, ROLE), claim=claim, references=THERE), **values)  # type: ignore[arg-type]


class GranteeSession:
    """Answers which roles a namespace claims. `meanwhile` happens before the answer. `owning`: the databases in which
    any role owns something; None: unknown.
    """

    def __init__(self, *oids: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.oids = frozenset(oids)
        self.owning: frozenset[str] | None = frozenset()
        self.asked: list[tuple[str, str]] = []
        self.meanwhile = meanwhile

    async def read_namespace_roles(self, places: Sequence[tuple[str, str]]) -> dict[tuple[str, str], frozenset[int]]:
        self.asked += places
        self.meanwhile()
        return dict.fromkeys(places, self.oids)

    async def read_owning_databases(self, roles: Collection[int], databases: Collection[str]) -> frozenset[str]:
        if self.owning is None:
            raise Transient(Reason.SERVER_NOT_READY, "a connection to PostgreSQL ended")
        return self.owning.intersection(databases) if roles else frozenset()


class GranteeScene:
    def __init__(self) -> None:
        self.grantees = Grantees()
        self.session = GranteeSession(OID)
        self.store = Store()

    async def reconcile(
        self,
        asked: Target,
        observed: Observed | Transient,
        server: Server = SERVER,
        *done: Plan,
        failure: Transient | None = None,
    ) -> ObjectReconcile:
        """`failure`: of what is `done`."""
        if asked.stored is not None:
            self.store.put(asked.stored)
        asked = add_results(asked, self.grantees, "main")
        attempt = ObjectReconcile(asked, Contests())
        attempt.observe(observed, _decide(asked, observed, server), server)
        for plan in done:
            attempt.end(plan, failure)
        session = cast("Session", self.session)
        await GranteePublisher(self.grantees, CONFIG, server, session, self.store).publish([attempt])
        return attempt

    def announce(self, attempt: ObjectReconcile) -> Result:
        """The result of the attempt, once it is handed on."""
        return take_news(attempt.conclude(), self.grantees, "main")

    def report(self, database: str, **values: object) -> None:
        grantee = self.grantees.get("main", KEY)
        assert grantee is not None
        plain = PrivilegeResult(KEY, grantee.uid, database, grantee.digest_of(database))
        self.grantees.report("main", replace(plain, **values))  # type: ignore[arg-type]


@pytest.fixture
def scene() -> GranteeScene:
    return GranteeScene()


pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_role_is_published_once_its_claim_holds_the_declaration(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS), see({}))
    assert scene.grantees.published("main") == ()
    await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,)}))
    assert scene.grantees.published("main") == (), "one of two databases is missing"
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,), "lake": (LAKE,)}))
    (grantee,) = scene.grantees.published("main")
    assert (grantee.key, grantee.uid, grantee.oid, grantee.role_name) == (KEY, "uid-app", OID, "app")
    assert (grantee.declared, grantee.former) == ({"orders": ORDERS}, {"lake": (LAKE,)})
    assert grantee.owned == {OID}
    assert grantee.policy == POLICY.privileges


async def test_without_privileges_nothing_is_read_or_published(scene: GranteeScene) -> None:
    attempt = await scene.reconcile(target(), see({}), SERVER, Plan("app", owner=owner()))
    assert (scene.grantees.published("main"), scene.session.asked) == ((), [])
    assert attempt.conclude().privileges is None


async def test_a_renamed_role_is_published_under_its_current_name(scene: GranteeScene) -> None:
    renamed = ObservedRole(OID, replace(ROLE, name="away"))
    await scene.reconcile(target(ORDERS, report_only=True), see({"orders": (ORDERS,)}, named=None, claimed=renamed))
    (grantee,) = scene.grantees.published("main")
    assert (grantee.role_name, grantee.report_only) == ("away", True)


@pytest.mark.parametrize(
    "observed",
    [
        see({"orders": (ORDERS,)}, claim=Claim("app", OID, 7, owner(OTHER), "sha256:x")),
        see({"orders": (ORDERS,)}, named=None),
        see({"orders": (ORDERS,)}, named=ObservedRole(OID + 1, ROLE)),
        Observed(),
    ],
)
async def test_a_role_that_the_object_does_not_own_is_withdrawn(scene: GranteeScene, observed: Observed) -> None:
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    await scene.reconcile(target(ORDERS), observed)
    assert scene.grantees.published("main") == ()


@pytest.mark.parametrize(
    ("claim", "kind"),
    [
        (None, Takeover.NEW),
        (Claim("app", OID, 7, owner(OTHER), "sha256:x", released=True), Takeover.NEW),
        (Claim("app", OID, 7, owner(), "sha256:x", released=True), Takeover.RETAINED),
    ],
)
async def test_a_role_that_the_object_may_take_over_is_published_to_be_compared_only(
    scene: GranteeScene, claim: Claim | None, kind: Takeover
) -> None:
    existing = see({}, claim=claim, owned=frozenset({OID}))
    attempt = await scene.reconcile(target(ORDERS), existing)
    (grantee,) = scene.grantees.published("main")
    assert (grantee.adoptee, grantee.oid, grantee.declared) == (kind, OID, {"orders": ORDERS})
    assert attempt.conclude().privileges == GrantedPrivileges(), "status says nothing of another's privileges"
    scene.report("orders", adoption=AdoptionFindings(("DELETE on table app.orders",), 1))
    refused = await scene.reconcile(target(ORDERS), existing)
    expected = "DELETE on table app.orders (database orders)"
    assert kind is Takeover.RETAINED or expected in cast("Refused", refused.decision).message


async def test_an_adoptee_is_replaced_once_the_object_owns_the_role(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS), see({}, claim=None))
    scene.report("orders", adoption=AdoptionFindings())
    await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,)}))
    assert scene.grantees.published("main") == (), "the claim does not hold everything yet"
    await scene.reconcile(target(ORDERS), see({}, claim=None))
    scene.report("orders", adoption=AdoptionFindings())
    attempt = await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    (grantee,) = scene.grantees.published("main")
    assert grantee.adoptee is None
    assert not attempt.conclude().outcome.ready, "what it was compared with confirms nothing"  # type: ignore[union-attr]


async def test_an_object_that_may_not_adopt_has_nothing_compared(scene: GranteeScene) -> None:
    barred = replace(target(ORDERS), policy=replace(POLICY, adopt=False))
    await scene.reconcile(barred, see({}, claim=None))
    assert scene.grantees.published("main") == ()


async def test_the_role_of_a_deleted_or_invalid_object_is_withdrawn(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    await scene.reconcile(Target(KEY, None), Observed())
    assert scene.grantees.published("main") == ()
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    withdraw_unread(Target(KEY, stored(), error=Transient(Reason.SERVER_NOT_READY, "x")), scene.grantees, "main")
    assert len(scene.grantees.published("main")) == 1
    withdraw_unread(Target(KEY, stored(), error=Refused(Reason.INVALID_SPEC, "x")), scene.grantees, "main")
    assert scene.grantees.published("main") == ()


async def test_the_role_of_an_object_that_is_deleted_while_it_is_published_is_withdrawn(scene: GranteeScene) -> None:
    """If it is created again for another server, no reconcile on this one follows."""

    def delete() -> None:
        scene.store.remove(KEY, "uid-app")
        scene.grantees.withdraw("main", KEY)

    scene.session = GranteeSession(OID, meanwhile=delete)
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    assert scene.grantees.published("main") == ()


async def test_a_published_role_stays_unchanged_after_a_failed_read(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    before = scene.grantees.published("main")
    await scene.reconcile(target(ORDERS), Transient(Reason.DATABASE_ERROR, "x"))
    assert scene.grantees.published("main") == before


class TestPublishingRefusedObjects:
    KEPT: ClassVar[dict[str, tuple[DatabasePrivileges, ...]]] = {"orders": (ORDERS,)}
    BEYOND = replace(ROLE, superuser=True)

    @pytest.mark.parametrize("server", [SERVER, replace(SERVER, claims="Status", has_current_schema=False)])
    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize(
        "refused",
        [
            replace(target(ORDERS), policy=replace(POLICY, admitted=False)),
            replace(target(ORDERS), policy=replace(POLICY, role_names=("other_*",))),
            target(ORDERS, role=BEYOND),
            target(ORDERS, role=BEYOND, report_only=True),
        ],
    )
    async def test_what_was_declared_is_published_as_refused_until_the_object_is_accepted(
        self, scene: GranteeScene, refused: Target, restarted: bool, server: Server
    ) -> None:
        if not restarted:
            await scene.reconcile(target(ORDERS), see(self.KEPT), server)
        attempt = await scene.reconcile(refused, see(self.KEPT), server)
        (grantee,) = scene.grantees.published("main")
        assert (grantee.declared, grantee.former) == ({"orders": ORDERS}, {})
        is_unknown = restarted and not server.has_current_schema
        assert grantee.refused is (Refusal.UNKNOWN if is_unknown else Refusal.KNOWN)
        outcome = attempt.conclude().outcome
        assert outcome is not None
        assert outcome.reason is Reason.NOT_ALLOWED
        await scene.reconcile(target(ORDERS), see(self.KEPT), server)
        assert [one.refused for one in scene.grantees.published("main")] == [None]

    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize("asked", [(MORE,), (ORDERS, LAKE), (LAKE,), ()])
    async def test_nothing_of_a_refused_declaration_is_published_where_claims_hold_privileges(
        self, scene: GranteeScene, asked: tuple[DatabasePrivileges, ...], restarted: bool
    ) -> None:
        if not restarted:
            await scene.reconcile(target(ORDERS), see(self.KEPT))
        await scene.reconcile(target(*asked, role=self.BEYOND), see(self.KEPT))
        (grantee,) = scene.grantees.published("main")
        assert (grantee.declared, grantee.former) == ({"orders": ORDERS}, {})
        may_be_former = restarted and ORDERS.database not in {one.database for one in asked}
        assert grantee.refused is (Refusal.UNKNOWN if may_be_former else Refusal.KNOWN)

    @pytest.mark.parametrize("asked", [(LAKE,), (ORDERS, LAKE)])
    async def test_a_database_that_was_given_up_stays_so(
        self, scene: GranteeScene, asked: tuple[DatabasePrivileges, ...]
    ) -> None:
        """It would be exact again: what others grant there, too, would be revoked."""
        kept = {**self.KEPT, "lake": (LAKE,)}
        await scene.reconcile(target(LAKE), see(kept))
        for _ in range(2):
            await scene.reconcile(target(*asked, role=self.BEYOND), see(kept))
            (grantee,) = scene.grantees.published("main")
            assert (grantee.declared, grantee.former) == ({"lake": LAKE}, self.KEPT)
            assert grantee.refused is Refusal.KNOWN

    async def test_of_what_the_claim_holds_the_latest_is_published(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS, role=self.BEYOND), see({"orders": (MORE, ORDERS)}))
        (grantee,) = scene.grantees.published("main")
        assert (grantee.declared, grantee.former) == ({"orders": MORE}, {"orders": (ORDERS,)})

    async def test_where_claims_hold_none_the_last_accepted_declaration_stays_published(
        self, scene: GranteeScene
    ) -> None:
        server = replace(SERVER, claims="Status", has_current_schema=False)
        await scene.reconcile(target(ORDERS), see({}), server)
        await scene.reconcile(target(LAKE, role=self.BEYOND), see({}), server)
        assert [one.declared for one in scene.grantees.published("main")] == [{"orders": ORDERS}]

    async def test_where_nothing_tells_what_was_accepted_the_present_declaration_is_published(
        self, scene: GranteeScene
    ) -> None:
        server = replace(SERVER, claims="Status", has_current_schema=False)
        for asked in (LAKE, ORDERS):
            await scene.reconcile(target(asked, role=self.BEYOND), see({}), server)
            (grantee,) = scene.grantees.published("main")
            assert (grantee.declared, grantee.refused) == ({asked.database: asked}, Refusal.UNKNOWN)

    async def test_a_spec_that_postgresql_rejects_is_refused_too(self, scene: GranteeScene) -> None:
        rejected = Transient(Reason.DATABASE_ERROR, "x")
        await scene.reconcile(target(ORDERS), see(self.KEPT), SERVER, Plan("app"), failure=rejected)
        assert [one.refused for one in scene.grantees.published("main")] == [Refusal.KNOWN]

    async def test_a_failure_that_passes_refuses_nothing(self, scene: GranteeScene) -> None:
        failure = Transient(Reason.PROGRESSING, "another transaction was first")
        await scene.reconcile(target(ORDERS), see(self.KEPT), SERVER, Plan("app"), failure=failure)
        assert [one.refused for one in scene.grantees.published("main")] == [None]

    async def test_a_correction_that_fails_leaves_the_object_refused(self, scene: GranteeScene) -> None:
        failure = Transient(Reason.PROGRESSING, "another transaction was first")
        beyond = target(ORDERS, role=self.BEYOND)
        await scene.reconcile(beyond, see(self.KEPT), SERVER, Plan("app"), failure=failure)
        assert [one.refused for one in scene.grantees.published("main")] == [Refusal.KNOWN]

    async def test_a_process_that_takes_over_without_kubernetes_publishes_it_as_refused(
        self, scene: GranteeScene
    ) -> None:
        barred = replace(target(ORDERS), policy=replace(POLICY, admitted=False))
        await scene.reconcile(barred, see(self.KEPT), replace(SERVER, enforcing=True))
        assert [one.refused for one in scene.grantees.published("main")] == [Refusal.KNOWN]

    async def test_it_can_still_be_deleted_with_its_role(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS, role=self.BEYOND), see(self.KEPT))
        await scene.reconcile(target(ORDERS, role=self.BEYOND, terminating=True, drop=True), see(self.KEPT))
        (grantee,) = scene.grantees.published("main")
        assert (grantee.declared, grantee.former, grantee.refused) == ({}, self.KEPT, None)

    @pytest.mark.parametrize("report_only", [False, True])
    async def test_a_protected_role_is_withdrawn_and_published_again_when_it_is_no_longer(
        self, scene: GranteeScene, report_only: bool
    ) -> None:
        plain = target(ORDERS, report_only=report_only)
        protected = replace(plain, policy=replace(POLICY, protected=("a*",)))
        unread = Transient(Reason.DATABASE_ERROR, "x")
        for seen in (see(self.KEPT), unread):
            await scene.reconcile(plain, see(self.KEPT))
            assert len(scene.grantees.published("main")) == 1
            await scene.reconcile(protected, seen)
            assert scene.grantees.published("main") == ()

    async def test_a_role_that_was_renamed_to_a_protected_name_is_withdrawn(self, scene: GranteeScene) -> None:
        protected = replace(target(ORDERS), policy=replace(POLICY, protected=("away",)))
        await scene.reconcile(target(ORDERS), see(self.KEPT))
        renamed = ObservedRole(OID, replace(ROLE, name="away"))
        await scene.reconcile(protected, see(self.KEPT, named=None, claimed=renamed))
        assert scene.grantees.published("main") == ()


async def test_a_suspended_object_stays_published_as_suspended(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS, suspended=True), see({"orders": (ORDERS,)}))
    assert scene.grantees.published("main") == ()
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    await scene.reconcile(target(ORDERS, suspended=True), see({"orders": (ORDERS,)}))
    assert [one.suspended for one in scene.grantees.published("main")] == [True]


@pytest.mark.parametrize("server", [SERVER, replace(SERVER, claims="Status", has_current_schema=False)])
@pytest.mark.parametrize(
    "refused",
    [
        target(MORE, role=replace(ROLE, superuser=True)),
        # only the Secret is refused, which is to be read and written
        target(MORE, password=DesiredPassword(PasswordOrigin.SECRET, "app"), connection=DesiredSecret("app")),
    ],
)
async def test_suspension_also_ends_while_the_object_is_refused(
    scene: GranteeScene, refused: Target, server: Server
) -> None:
    kept = see({"orders": (ORDERS,)})
    for suspended in (False, True):
        await scene.reconcile(target(ORDERS, suspended=suspended), kept, server)
    await scene.reconcile(refused, kept, server)
    assert [(one.declared, one.suspended) for one in scene.grantees.published("main")] == [({"orders": ORDERS}, False)]


async def test_after_a_suspension_nothing_is_done_for_a_declaration_that_another_follows(scene: GranteeScene) -> None:
    """What was granted by hand meanwhile, and is declared now, would be revoked for a moment."""
    for suspended in (False, True):
        await scene.reconcile(target(ORDERS, suspended=suspended), see({"orders": (ORDERS,)}))
    await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,)}))
    assert [one.suspended for one in scene.grantees.published("main")] == [True]
    await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,), "lake": (LAKE,)}))
    assert [one.suspended for one in scene.grantees.published("main")] == [False]


async def test_everything_stays_published_while_kubernetes_is_unreachable(scene: GranteeScene) -> None:
    await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
    await scene.reconcile(Target(KEY, None), Observed(), replace(SERVER, enforcing=True))
    assert len(scene.grantees.published("main")) == 1


async def test_with_claims_in_status_the_declaration_in_the_spec_is_published(scene: GranteeScene) -> None:
    server = replace(SERVER, claims="Status", has_current_schema=False)
    await scene.reconcile(target(ORDERS), see({}), server)
    assert [one.declared for one in scene.grantees.published("main")] == [{"orders": ORDERS}]


class TestDeletion:
    async def test_before_a_drop_all_privileges_are_published_as_former(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS, terminating=True, drop=True), see({"orders": (ORDERS,)}))
        (grantee,) = scene.grantees.published("main")
        assert (grantee.declared, grantee.former) == ({}, {"orders": (ORDERS,)})
        scene.report("orders", confirmed=True)
        attempt = await scene.reconcile(target(ORDERS, terminating=True, drop=True), see({"orders": (ORDERS,)}))
        assert isinstance(attempt.decision, Plan)
        assert attempt.decision.privileges == ""
        await scene.reconcile(target(ORDERS, terminating=True, drop=True), see({}))
        assert scene.grantees.published("main") == ()

    @pytest.mark.parametrize(("drop", "suspended"), [(False, False), (True, True)])
    async def test_a_deleted_object_whose_role_is_not_dropped_is_withdrawn(
        self, scene: GranteeScene, drop: bool, suspended: bool
    ) -> None:
        await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
        ending = target(ORDERS, terminating=True, drop=drop, suspended=suspended)
        await scene.reconcile(ending, see({"orders": (ORDERS,)}))
        assert scene.grantees.published("main") == ()


class TestFormerDatabases:
    """A database that the spec no longer lists."""

    KEPT: ClassVar[dict[str, tuple[DatabasePrivileges, ...]]] = {"orders": (ORDERS,), "lake": (LAKE,)}

    async def test_the_object_is_progressing_until_the_databases_worker_answers(self, scene: GranteeScene) -> None:
        scene.grantees.publish("main", Grantee(KEY, "uid-app", 1, "app", OID, {"orders": ORDERS}))
        closed = replace(POLICY, privileges=PrivilegePolicy(databases=("orders",)))
        asked = replace(target(ORDERS), policy=closed)
        result = (await scene.reconcile(asked, see(self.KEPT))).conclude()
        assert result.outcome is not None
        assert result.outcome.reason is Reason.PROGRESSING

    async def test_a_result_of_an_earlier_declaration_is_not_used_again(self, scene: GranteeScene) -> None:
        """After the database was declared, removed, declared and removed again, its worker may still be granting."""
        await scene.reconcile(target(ORDERS), see(self.KEPT))
        scene.report("lake", error=Transient(Reason.DATABASE_ERROR, "closed"))
        assert "lake" in self.results(scene)
        await scene.reconcile(target(ORDERS, LAKE), see(self.KEPT))
        assert "lake" not in self.results(scene)

    async def test_a_late_result_of_an_earlier_declaration_is_not_used(self, scene: GranteeScene) -> None:
        """A worker reports what it did for the declaration with which it began."""
        await scene.reconcile(target(ORDERS), see(self.KEPT))
        published = scene.grantees.get("main", KEY)
        assert published is not None
        await scene.reconcile(target(ORDERS, LAKE), see(self.KEPT))
        scene.report("lake", digest=published.digest_of("lake"))
        assert "lake" not in self.results(scene)

    def results(self, scene: GranteeScene) -> Mapping[str, PrivilegeResult]:
        asked = add_results(target(ORDERS), scene.grantees, "main").desired
        assert asked is not None
        return asked.privilege_results


async def claim_another(scene: GranteeScene, *owning: str | None) -> None:
    """Has object OTHER of the namespace claim a role, which owns something in these databases; None: unknown."""
    scene.session = GranteeSession(OID, OID + 1)
    scene.session.owning = None if None in owning else frozenset(name for name in owning if name)
    named = ObservedRole(OID + 1, ROLE)
    other = Claim("app", OID + 1, 7, owner(OTHER), digest(ROLE))
    plan = Plan("app", owner=owner(OTHER))
    await scene.reconcile(target(key=OTHER), see({}, claim=other, named=named), SERVER, plan)


def note_changes(scene: GranteeScene) -> list[tuple[Key, frozenset[str]]]:
    """Returns which roles have which databases read from now on."""
    changes: list[tuple[Key, frozenset[str]]] = []
    scene.grantees.connect(lambda _, key, names: changes.append((key, names)), lambda *_: None, lambda *_: False)
    return changes


class TestNamespaceRoles:
    async def test_a_new_claim_updates_the_owned_roles_of_published_grantees(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
        await claim_another(scene)
        assert [one.owned for one in scene.grantees.published("main")] == [{OID, OID + 1}]

    async def test_a_released_claim_updates_the_owned_roles_of_published_grantees(self, scene: GranteeScene) -> None:
        scene.session = GranteeSession(OID, OID + 1)
        await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
        scene.session = GranteeSession(OID)
        plan = Plan("", releases=(ClaimKey("other", "uid-other"),))
        await scene.reconcile(Target(OTHER, None), Observed(), SERVER, plan)
        assert [one.owned for one in scene.grantees.published("main")] == [{OID}]
        assert scene.session.asked == [("shop", "ns-uid")]

    async def test_a_new_role_that_owns_nothing_has_no_database_read_again(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
        changes = note_changes(scene)
        await claim_another(scene)
        assert changes == []

    async def test_where_a_role_that_was_taken_over_owns_something_is_read_again(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,), "lake": (LAKE,)}))
        changes = note_changes(scene)
        await claim_another(scene, "lake", "postgres")
        assert changes == [(KEY, frozenset({"lake"}))]

    async def test_where_a_declaration_names_creators_is_read_again(self, scene: GranteeScene) -> None:
        declared = replace(ORDERS, created_by=("other",))
        await scene.reconcile(target(declared, LAKE), see({"orders": (declared,), "lake": (LAKE,)}))
        changes = note_changes(scene)
        await claim_another(scene)
        assert changes == [(KEY, frozenset({"orders"}))]

    async def test_if_the_server_does_not_tell_every_database_is_read_again(self, scene: GranteeScene) -> None:
        await scene.reconcile(target(ORDERS, LAKE), see({"orders": (ORDERS,), "lake": (LAKE,)}))
        changes = note_changes(scene)
        await claim_another(scene, None)
        assert changes == [(KEY, frozenset({"orders", "lake"}))]
        assert [one.owned for one in scene.grantees.published("main")] == [{OID, OID + 1}]

    async def test_all_published_roles_share_one_set(self, scene: GranteeScene) -> None:
        """A set of a thousand OIDs for each of a thousand roles would take 64 MiB."""
        await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}))
        scene.session = GranteeSession(OID)
        claim = Claim("app", OID, 7, owner(OTHER), digest(ROLE), privileges={"orders": (ORDERS,)})
        await scene.reconcile(target(ORDERS, key=OTHER), see({}, claim=claim))
        one, other = (one.owned for one in scene.grantees.published("main"))
        assert one is other

    async def test_a_batch_of_many_namespaces_among_thousands_of_roles_is_published_within_a_callback(
        self, scene: GranteeScene
    ) -> None:
        keys = [Key(f"team-{number % 100}", f"app-{number}") for number in range(20_000)]
        plain = Grantee(KEY, "", 1, "app", OID, {"orders": ORDERS}, owned=frozenset({OID}), namespace_uid="ns-uid")
        for key in keys:
            scene.grantees.publish("main", replace(plain, key=key, uid=f"uid-{key.name}"))
        attempts = []
        for key in keys[:100]:
            scene.store.put(stored(key))
            attempt = ObjectReconcile(target(ORDERS, key=key), Contests())
            claim = Claim("app", OID, 7, owner(key), digest(ROLE), privileges={"orders": (ORDERS,)})
            observed = see({}, claim=claim)
            attempt.observe(observed, _decide(attempt.target, observed, SERVER), SERVER)
            attempts.append(attempt)
        publisher = GranteePublisher(scene.grantees, CONFIG, SERVER, cast("Session", scene.session), scene.store)
        with within_a_callback():
            await publisher.publish(attempts)
        assert len(scene.session.asked) == 100
        assert {one.owned for one in scene.grantees.published("main")} == {frozenset({OID})}


class TestTheResult:
    async def test_a_result_has_the_answers_of_the_databases_and_each_news_item_once(self, scene: GranteeScene) -> None:
        asked, observed = target(ORDERS), see({"orders": (ORDERS,)})
        first = scene.announce(await scene.reconcile(asked, observed))
        assert first.outcome is not None
        assert first.outcome.message == 'privileges in database "orders" are being applied'
        scene.report("orders", news=(NEWS,))
        await scene.reconcile(asked, observed)  # its result is lost with the session
        second = scene.announce(await scene.reconcile(asked, observed))
        assert second.outcome is not None
        assert second.outcome.ready
        assert second.news == (NEWS,)
        assert second.privileges is not None
        assert second.privileges.describe()[0]["ready"] is True
        assert scene.announce(await scene.reconcile(asked, observed)).news == ()

    async def test_privileges_in_a_database_that_does_not_exist_are_pending(self, scene: GranteeScene) -> None:
        observed = see({"orders": (ORDERS,)}, references=References())
        result = (await scene.reconcile(target(ORDERS), observed)).conclude()
        assert result.outcome is not None
        assert (result.outcome.reason, result.outcome.retried) == (Reason.PRIVILEGE_PENDING, True)

    async def test_a_database_of_the_earlier_spec_exists_though_a_refused_one_does_not_list_it(
        self, scene: GranteeScene
    ) -> None:
        server = replace(SERVER, claims="Status", has_current_schema=False)
        await scene.reconcile(target(ORDERS), see({}), server)
        beyond, asked = target(LAKE, role=replace(ROLE, superuser=True)), References(databases=frozenset({"lake"}))
        result = (await scene.reconcile(beyond, see({}, references=asked), server)).conclude()
        assert result.privileges is not None
        assert result.privileges.problems == {}

    async def test_a_template_database_is_refused_and_named_in_the_published_policy(self, scene: GranteeScene) -> None:
        templates = replace(THERE, templates=frozenset({"orders"}))
        result = (await scene.reconcile(target(ORDERS), see({"orders": (ORDERS,)}, references=templates))).conclude()
        assert result.outcome is not None
        assert (result.outcome.reason, result.outcome.retried) == (Reason.NOT_ALLOWED, True)
        assert [one.policy.templates for one in scene.grantees.published("main")] == [{"orders"}]


@pytest.mark.parametrize(
    ("before", "now", "announced"),
    [
        (("DELETE on table app.orders was granted",), ("DELETE on table app.orders was granted",), False),
        (("DELETE on table app.orders was granted",), ("UPDATE on table app.orders was granted",), True),
        ((), ("DELETE on table app.orders was granted",), True),
    ],
)
async def test_a_restarted_controller_announces_no_reported_drift_that_status_has(
    scene: GranteeScene, before: tuple[str, ...], now: tuple[str, ...], announced: bool
) -> None:
    observed = see({"orders": (ORDERS,)})
    await scene.reconcile(target(ORDERS), observed)
    scene.report("orders", reported=before)
    status = (await scene.reconcile(target(ORDERS), observed)).conclude().privileges
    assert status is not None
    asked = target(ORDERS)
    assert asked.stored is not None
    asked = replace(asked, stored=pack({**asked.stored.object(), "status": {"privileges": status.describe()}}))

    restarted = GranteeScene()
    await restarted.reconcile(asked, observed)
    restarted.report("orders", reported=now, news=(DRIFT, NEWS))
    attempt = await restarted.reconcile(asked, observed)
    assert restarted.announce(attempt).news == ((DRIFT, NEWS) if announced else (NEWS,))
    restarted.report("orders", reported=now, news=(replace(DRIFT, first=False),))
    attempt = await restarted.reconcile(asked, observed)
    assert [one.reason for one in restarted.announce(attempt).news] == [News.DRIFT_REPORTED], "undone and done again"
