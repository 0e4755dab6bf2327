"""commands/doctor_cluster: what `doctor` says of the Lease, whatever the clocks show, of missing PgServers, and of a
version that it may not read.
"""

import json
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from pgrole_controller.commands.doctor_cluster import ClusterChecks
from pgrole_controller.core.findings.finding import FindingState
from pgrole_controller.kube.errors import ApiError
from tests.commands import choose
from tests.timelapse import in_timelapse

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

HOUR = timedelta(hours=1)


class LeaseAnswers:
    """Answers each read of a Lease with the next of these times of its last renewal, and the last one again."""

    def __init__(self, *renewed: datetime) -> None:
        self._left = deque(renewed)

    async def request(self, *_: Any) -> bytes:
        renewed = self._left.popleft() if len(self._left) > 1 else self._left[0]
        spec = {"holderIdentity": "pod-1", "renewTime": f"{renewed:%Y-%m-%dT%H:%M:%S.%fZ}"}
        return json.dumps({"kind": "Lease", "metadata": {}, "spec": spec}).encode()


class NoObjects:
    """Answers each list with an empty one."""

    async def request(self, *_: Any, **__: Any) -> bytes:
        return json.dumps({"kind": "PgServerList", "metadata": {"resourceVersion": "1"}, "items": []}).encode()


async def judge(answers: LeaseAnswers, ahead: timedelta = timedelta()) -> FindingState:
    """`ahead`: the API server's clock, compared with this machine's."""
    checks = ClusterChecks(cast("Client", answers), choose(), ahead=ahead)
    (finding,) = await checks._ask_lease()
    return finding.state


@in_timelapse
async def test_a_lease_that_is_renewed_by_another_clock_is_read_twice() -> None:
    for off in (HOUR, -HOUR):
        renewed = datetime.now(UTC) + off
        began = anyio.current_time()
        assert await judge(LeaseAnswers(renewed, renewed + timedelta(seconds=4))) is FindingState.WARNING
        assert await judge(LeaseAnswers(renewed)) is FindingState.PROBLEM
        assert anyio.current_time() - began >= 4.0  # longer than a leader's period


@in_timelapse
async def test_a_lease_is_recent_by_the_clock_of_the_api_server() -> None:
    began = anyio.current_time()
    assert await judge(LeaseAnswers(datetime.now(UTC) + HOUR), HOUR) is FindingState.OK
    assert anyio.current_time() == began


@pytest.mark.parametrize(
    ("server", "dsn", "state", "said"),
    [
        (None, None, FindingState.WARNING, "the controller uses PGROLE_DSN"),
        ("default", "postgresql://pg/postgres", FindingState.WARNING, "the controller uses PGROLE_DSN"),
        ("default", None, FindingState.PROBLEM, "set it here as well"),
        ("main", "postgresql://pg/postgres", FindingState.PROBLEM, "it does not exist"),
    ],
)
async def test_the_dsn_stands_for_the_default_server(
    server: str | None, dsn: str | None, state: FindingState, said: str
) -> None:
    checks = ClusterChecks(cast("Client", NoObjects()), choose(dsn=dsn, server=server))
    (finding,) = await checks._ask_servers()
    assert finding.state is state
    assert said in finding.text


async def test_a_version_that_the_caller_may_not_read_is_hidden() -> None:
    class NoVersion:
        async def request(self, *_: Any, **__: Any) -> bytes:
            raise ApiError(403, "Forbidden", "no")

    (finding,) = await ClusterChecks(cast("Client", NoVersion()), choose())._ask_version()
    assert (finding.state, finding.text) == (FindingState.OK, "reachable; its version is hidden from you")
