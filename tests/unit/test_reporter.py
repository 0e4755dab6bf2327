"""controller/reporter: what a visit left to be done is done for the object as it is by then, or not at all."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgrole_controller.controller.errands import Errands
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, Request, index_by_owner, index_pgrole
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reconcile import Finding
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.core.connection import Address
from pgrole_controller.core.credential import Credential, Errand, PasswordAsk, Record, SecretsSeen
from pgrole_controller.core.schedule import After
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Store, Stored, pack

ERRAND = Errand(
    "shop",
    "app",
    PasswordAsk(),
    None,
    SecretsSeen(),
    Record(),
    Address("pg", 5432, "orders", "require"),
    datetime(2027, 1, 1, tzinfo=UTC),
    4096,
)


class Runs:
    """Errands that were run."""

    def __init__(self) -> None:
        self.run_for: list[str] = []

    async def run(self, errand: Errand, owner: Stored) -> Credential:
        self.run_for.append(owner.resource_version)
        return Credential(source="s", errand=errand)


@pytest.fixture
def objects() -> Objects:
    namespaces = Namespaces(cast("Client", None), Store())
    return Objects(Store(index_pgrole), Store(index_by_owner), namespaces, "c1")


def made(version: int, **more: Any) -> Stored:
    metadata = {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": str(version), "generation": version}
    return pack({"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata | more, "spec": {}})


@pytest.mark.parametrize("now", [made(2), made(1, resourceVersion="2", deletionTimestamp="2027-01-01T00:00:00Z"), None])
async def test_no_errand_is_run_for_an_object_that_changed_is_deleted_or_gone(
    objects: Objects, now: Stored | None
) -> None:
    runs = Runs()
    reporter = Reporter(cast("Client", None), objects, Queue(), cast("Recorder", None), cast("Errands", runs))
    reporter.close()
    await reporter.run()
    seen = made(1)
    objects.store.put(seen)
    finding = Finding(Request(seen.key, seen), errand=ERRAND)
    assert await reporter._write(finding) == After(0.0)
    assert runs.run_for == ["1"]
    if now is None:
        objects.store.remove(seen.key, seen.uid)
    else:
        objects.store.put(now)
    assert await reporter._write(finding) == After(0.0)
    assert runs.run_for == ["1"]
