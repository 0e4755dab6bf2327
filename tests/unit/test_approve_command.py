"""commands/approve: which drift of an object can be approved, and how the controller answered. No I/O."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.commands.approve import approve, describe_drift, drift_of, progress_of
from pgrole_controller.commands.output import make_console
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.password import request_of
from pgrole_controller.kube.errors import ApiError, Unreachable
from tests.commands import choose

ROLE, ORDERS = "a" * 32, "b" * 32
VALUE = f"{ROLE}+{ORDERS}/nonce"


def make(approval: Any = None, **status: Any) -> dict[str, Any]:
    shown = {
        "digest": f"{ROLE}+{ORDERS}",
        "fields": [{"name": "comment", "declared": "", "observed": "theirs"}, {"name": "password"}],
        "databases": [
            {"name": "lake", "handled": "earlier"},
            {"name": "orders", "changes": ["DELETE on table app.orders was granted"]},
        ],
    }
    return {
        "metadata": {"namespace": "shop", "name": "app", "uid": "u", "resourceVersion": "5", "generation": 2},
        "spec": {"drift": {"policy": "Report"}},
        "status": {"observedGeneration": 2, "approval": shown if approval is None else approval, **status},
    }


def test_the_drift_of_fields_and_privileges_is_described_in_words() -> None:
    assert list(describe_drift(drift_of(make()))) == [
        "PgRole shop/app reports this drift:",
        "  comment: theirs -> (nothing)",
        "  password: back to what is declared",
        "  privileges in database orders:",
        "    DELETE on table app.orders was granted",
    ]


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        ({**make(), "spec": {}}, "policy is Correct"),
        (make(observedGeneration=1), "has not reconciled the present spec"),
        (make({}), "no drift is reported"),
        (
            make({}, conditions=[{"type": "DriftDetected"}, {"type": "Ready", "message": "said"}]),
            "cannot be approved: said",
        ),
    ],
)
def test_a_refusal_explains_why_nothing_can_be_approved(obj: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        drift_of(obj)


def test_the_command_waits_for_each_part() -> None:
    drift = drift_of(make())
    assert progress_of(drift, VALUE, make()).left == ("the role", "privileges in database orders")
    done = {"handled": VALUE, "databases": [{"name": "orders", "changes": ["x"]}], "digest": ORDERS}
    progress = progress_of(drift, VALUE, make(done))
    assert (progress.left, progress.offered) == (("privileges in database orders",), True)
    done["databases"] = [{"name": "orders", "handled": VALUE}]
    assert progress_of(drift, VALUE, make(done)).left == ()


def test_changed_drift_is_distinguished_from_drift_still_offered() -> None:
    drift = drift_of(make())
    progress = progress_of(drift, VALUE, make({"digest": "c" * 32}, conditions=[{"type": "Ready", "message": "said"}]))
    assert (len(progress.left), progress.offered, progress.message) == (2, False, "said")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["name", "changes", "digest"]), some),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("digest", "fields", "databases", "handled"), JSON)))
def test_any_status_is_described_or_refused(approval: dict[str, Any]) -> None:
    try:
        drift = drift_of(make(approval))
    except Refused:
        return
    assert all(isinstance(line, str) for line in describe_drift(drift))
    assert progress_of(drift, VALUE, make(approval)).message == ""


class BrokenCluster:
    """Accepts the approval. Its answers to reads are what it is given, in order; the last is repeated."""

    def __init__(self, *answers: dict[str, Any] | Exception, patched: Exception | None = None) -> None:
        """`patched`: what the approval leads to, although it is set."""
        self._answers = list(answers)
        self._patched = patched
        self.value = ""

    async def request(self, method: str, _path: str, **given: Any) -> bytes:
        if method == "PATCH":
            self.value = given["body"]["metadata"]["annotations"]["pgrole.dev/approve"]
            if self._patched is not None:
                raise self._patched
            return b"{}"
        found = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(found, Exception):
            raise found
        handled = {"handled": request_of(self.value)}
        return json.dumps(make({**handled, "databases": [{"name": "orders", **handled}]}) | found).encode()


async def run_approve(
    monkeypatch: pytest.MonkeyPatch, cluster: BrokenCluster, wait: float, printed: io.StringIO | None = None
) -> tuple[int, str]:
    @asynccontextmanager
    async def connect(_: object) -> AsyncIterator[BrokenCluster]:
        yield cluster

    monkeypatch.setattr("pgrole_controller.commands.approve.open_cluster", connect)
    printed = printed or io.StringIO()
    return await approve(choose().cluster, drift_of(make()), wait, make_console(printed)), printed.getvalue()


async def test_an_api_server_that_is_away_for_a_moment_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = BrokenCluster(Unreachable("reset"), ApiError(503, "ServiceUnavailable", "busy"), {})
    assert await run_approve(monkeypatch, cluster, 60.0) == (0, "corrected\n")


@pytest.mark.parametrize("error", [Unreachable("no answer"), ApiError(403, "Forbidden", "you may not get it")])
async def test_a_command_that_cannot_read_the_outcome_says_that_the_approval_stands(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    code, printed = await run_approve(monkeypatch, BrokenCluster(error), 0.01)
    assert code == 1
    assert f"approved, but whether the controller corrected it is unknown: {error}" in printed
    assert "To withdraw it: kubectl annotate pgrole -n shop app pgrole.dev/approve-" in printed


async def test_an_interrupted_command_says_that_the_approval_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, printed = BrokenCluster(Unreachable("away")), io.StringIO()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_approve, monkeypatch, cluster, 60.0, printed)
        while not cluster.value:
            await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    assert printed.getvalue().startswith("interrupted: approved, but whether the controller corrected it is unknown")
    assert "To withdraw it: kubectl annotate pgrole -n shop app pgrole.dev/approve-" in printed.getvalue()


async def test_an_approval_without_an_answer_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    code, printed = await run_approve(monkeypatch, BrokenCluster({}, patched=Unreachable("no answer")), 0.01)
    assert code == 1
    assert "whether the approval was set is unknown: no answer" in printed
    assert "To withdraw it: " in printed
    with pytest.raises(ApiError, match="you may not"):
        await run_approve(monkeypatch, BrokenCluster({}, patched=ApiError(403, "Forbidden", "you may not")), 0.01)
