"""controller/worker_memory: after our own change, reconciles only compare; any difference leads to a full reconcile."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.reconcile import reconcile
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.worker_memory import KEPT_SECONDS, LAST_SECONDS, WorkerMemory
from pgrole_controller.core.claim import Claim, Generations
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.outcome import RECONCILED
from pgrole_controller.core.password import PasswordResult
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import NOTHING_ALLOWED, ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole, Role
from pgrole_controller.core.state import Detection, Observed
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.postgres.session import Session
from tests.timelapse import in_timelapse

KEY = Key("shop", "app")
SERVER = ServerConfig(
    "default",
    None,
    ServerPolicy(replace(NOTHING_ALLOWED, role_names=("*",), attributes=frozenset({"login"})), ("*",)),
    Address("pg", 5432, "o", ""),
)
NOBODY_ELSE = ServerPolicy(namespaces=("other",))


class ReadBackSession:
    """A server that creates the role and the claim of the first plan."""

    identity = SimpleNamespace(system_identifier=7, own_roles=frozenset({"keeper"}))
    detection, cluster, fence = Detection(), "c1", None
    has_current_schema = True

    def __init__(self) -> None:
        self.enforcing = False
        self.suspended = False
        self.observed = Observed()
        self.looks = 0
        self.again = 0
        self.plans: list[Plan] = []
        self.doubted: list[str] = []

    def doubt(self, names: Iterable[str]) -> None:
        self.doubted += names

    async def read_roles(self, asked: Sequence[tuple[Key, str]]) -> list[Observed]:
        self.looks += 1
        return [self.observed for _ in asked]

    async def are_unchanged(self, asked: Sequence[tuple[Key, str]], before: Sequence[tuple[object, ...]]) -> list[bool]:
        self.again += len(asked)
        return [row == self.observed.row for row in before]

    async def is_suspended(self) -> bool:
        return self.suspended

    async def read_references(self, mentioned: Sequence[object]) -> list[object]:
        assert not mentioned
        return []

    read_unheld = read_drop_states = read_references

    async def apply_plans(
        self, plans: Sequence[Plan], *, enforcing: bool = False, notes_rows: bool = False
    ) -> list[None]:
        assert not any((enforcing, notes_rows))
        self.plans += plans
        for plan in plans:
            if plan.action is Action.CREATED and plan.owner:
                claim = Claim(
                    plan.role_name, 20_000, 7, plan.owner, plan.applied, generations=plan.acted_on or Generations()
                )
                self.store(Role("app", login=True), claim)
        return [None] * len(plans)

    def store(self, role: Role, claim: Claim | None = None) -> None:
        now = datetime.now(UTC)
        self.observed = Observed(
            ObservedRole(20_000, role), claim=claim or self.observed.claim, at=now, row=(role, claim)
        )


class ReadBackWorld:
    def __init__(self) -> None:
        self.namespaces = Store()
        self.label({})
        self.objects = Objects(
            Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), self.namespaces), "c1"
        )
        self.put(KEY.name)
        self.session = ReadBackSession()
        self.server = SERVER
        self.memory = WorkerMemory(Grantees(), Contests())
        self.prepared: dict[Key, PasswordResult] = {}

    def label(self, labels: dict[str, str], version: int = 1) -> None:
        metadata = {"name": "shop", "uid": "n1", "resourceVersion": str(version), "labels": labels}
        self.namespaces.put(pack({"metadata": metadata}))

    def put(self, name: str, version: int = 1, generation: int = 1, status: Any = None, **spec: Any) -> None:
        metadata = {
            "namespace": "shop",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "generation": generation,
            "creationTimestamp": "2027-01-01T00:00:00Z",
        }
        spec = {"name": "app", "login": True, **spec}
        obj = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata, "spec": spec}
        self.objects.store.put(pack({**obj, "status": status} if status else obj))

    async def reconcile(self, *, drifted: bool = False) -> Result:
        (finding,) = await reconcile(
            [KEY],
            self.server,
            self.objects,
            cast("Session", self.session),
            self.memory,
            {KEY} if drifted else (),
            self.prepared,
        )
        return finding

    async def made(self) -> "ReadBackWorld":
        """Returns the world after the first reconcile, which creates the role."""
        assert (await self.reconcile()).outcome == RECONCILED
        assert [plan.action for plan in self.session.plans] == [Action.CREATED]
        self.session.looks = 0
        return self


async def test_reconciles_after_a_change_only_compare_and_give_the_same_outcome() -> None:
    world = await ReadBackWorld().made()
    for count in (1, 2, 3):
        finding = await world.reconcile()
        assert (finding.outcome, finding.action, finding.claim) == (
            RECONCILED,
            Action.NOTHING,
            world.session.observed.claim,
        )
        assert (world.session.looks, world.session.again) == (0, count)
    assert len(world.session.plans) == 1


async def test_a_compared_result_has_the_object_with_the_status_written_meanwhile() -> None:
    world = await ReadBackWorld().made()
    world.put(KEY.name, version=2, status={"observedGeneration": 1})
    finding = await world.reconcile()
    assert world.session.looks == 0
    assert finding.target.stored is not None
    assert finding.target.stored.resource_version == "2"


class TestANotifyIsNeverTrusted:
    async def test_a_foreign_change_that_coincides_with_our_own_is_corrected(self) -> None:
        world = await ReadBackWorld().made()
        world.session.store(Role("app", login=False))
        finding = await world.reconcile()
        assert finding.action is Action.CORRECTED
        assert world.session.plans[-1].drift == ("login",)

    async def test_a_role_with_a_notified_drift_is_read_at_once(self) -> None:
        world = await ReadBackWorld().made()
        await world.reconcile(drifted=True)
        assert (world.session.looks, world.session.again) == (1, 0)


async def test_a_poll_repeats_a_report_of_drift_that_it_did_not_cause() -> None:
    """Undone before the next poll, the drift would otherwise be reported until the next resync."""
    world = ReadBackWorld()
    world.put(KEY.name, version=2, drift={"policy": "Report"})
    await world.made()
    world.session.store(Role("app", login=False))
    assert (await world.reconcile(drifted=True)).reported == ("login",)
    assert world.session.doubted == []
    assert (await world.reconcile()).reported == ("login",)
    assert world.session.doubted == ["app"]


def _change_spec(world: ReadBackWorld) -> None:
    world.put(KEY.name, version=2, generation=2)


def _share_role(world: ReadBackWorld) -> None:
    world.put("other")


def _label_namespace(world: ReadBackWorld) -> None:
    requirement = SimpleNamespace(is_met=lambda labels: not labels)
    server_policy = ServerPolicy(
        replace(NOTHING_ALLOWED, role_names=("*",), attributes=frozenset({"login"})), labels=cast("Any", (requirement,))
    )
    world.server = ServerConfig("default", None, server_policy, SERVER.address)
    world.label({"team": "b"}, 2)


def _change_policy(world: ReadBackWorld) -> None:
    world.server = ServerConfig("default", None, NOBODY_ELSE, SERVER.address)


def _change_server(world: ReadBackWorld) -> None:
    world.server = ServerConfig("default", None, SERVER.server_policy, SERVER.address, generation=2)


def _prepare(world: ReadBackWorld) -> None:
    world.prepared = {KEY: PasswordResult()}


def _contest(world: ReadBackWorld) -> None:
    moment = SimpleNamespace(seconds=anyio.current_time(), at=datetime.now(UTC))
    world.memory.contests.repaired("uid-app", 1, ["login"], cast("Any", moment))


CHANGES = [_change_spec, _share_role, _label_namespace, _change_policy, _change_server, _prepare, _contest]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
async def test_a_change_of_any_input_of_the_decision_leads_to_a_full_reconcile(
    change: Callable[[ReadBackWorld], None],
) -> None:
    world = await ReadBackWorld().made()
    change(world)
    finding = await world.reconcile()
    assert world.session.looks > 0
    if change is _change_policy:
        assert finding.outcome is not None
        assert finding.outcome.reason is Reason.NOT_ALLOWED


async def test_a_deleted_object_is_not_compared() -> None:
    world = await ReadBackWorld().made()
    world.objects.store.remove(KEY, "uid-app")
    finding = await world.reconcile()
    assert world.session.again == 0
    assert finding.target.stored is None


@in_timelapse
async def test_the_last_expected_reconcile_ends_the_comparison() -> None:
    world = await ReadBackWorld().made()
    await anyio.sleep(LAST_SECONDS)
    await world.reconcile()
    assert (world.session.looks, world.session.again) == (0, 1)
    await world.reconcile()
    assert (world.session.looks, world.session.again) == (1, 1)


@in_timelapse
async def test_the_state_to_compare_with_is_kept_only_briefly() -> None:
    world = await ReadBackWorld().made()
    await anyio.sleep(KEPT_SECONDS + 1.0)
    await world.reconcile()
    assert (world.session.looks, world.session.again) == (1, 0)


async def test_what_was_done_is_reported_although_the_stored_verifier_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = ReadBackWorld()
    session = world.session

    async def read_verifiers(oids: Sequence[int]) -> list[PgRoleError]:
        return [Transient(Reason.DATABASE_ERROR, "unreadable")] * len(oids)

    async def repair(plans: Sequence[Plan], **_: bool) -> list[None]:
        session.store(Role("app", login=True))
        return [None] * len(plans)

    monkeypatch.setattr(session, "read_verifiers", read_verifiers, raising=False)
    world.objects._secrets.synced.set()
    world.put(KEY.name, 2, password={"generate": {}}, connectionSecret={"name": "delivered"})
    results = [await world.reconcile()]
    monkeypatch.setattr(session, "apply_plans", repair)
    session.store(Role("app"))
    results.append(await world.reconcile(drifted=True))
    for result in results:
        assert result.outcome is not None
        assert (result.outcome.reason, result.outcome.message) == (Reason.DATABASE_ERROR, "unreadable")
        assert not result.prepares_next
    created, corrected = results
    assert created.action is Action.CREATED
    assert (corrected.action, corrected.fields, corrected.corrected) == (Action.CORRECTED, ("login",), ("login",))
    assert corrected.drift is not None


async def test_no_password_is_prepared_while_the_server_is_suspended() -> None:
    world = await ReadBackWorld().made()
    world.objects._secrets.synced.set()
    world.put(KEY.name, 2, password={"generate": {}}, connectionSecret={"name": "delivered"})
    world.session.suspended = True
    result = await world.reconcile(drifted=True)
    assert result.outcome is not None
    assert result.outcome.reason is Reason.SUSPENDED
    assert (result.password_task, result.prepares_next, result.decided) == (None, False, False)
