"""The first page: what needs attention, servers, roles by state, and drift over the last day."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import nlargest

from pgrole_controller.console.drift_chart import DriftChart, chart_drifts
from pgrole_controller.console.drift_entries import DriftEntry
from pgrole_controller.console.object_state import ObjectState
from pgrole_controller.console.role_summary import RoleSummary
from pgrole_controller.console.server_view import ServerSummary, list_servers
from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.core.request import Key

_MOST_ATTENTION = 8
_MOST_DRIFTS = 8
_PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class StateCount:
    state: ObjectState
    count: int


@dataclass(frozen=True, slots=True)
class RecentDrift:
    """A drift with the role that it changed."""

    key: Key
    drift: DriftEntry


@dataclass(frozen=True, slots=True)
class Overview:
    """`attention` and `broken_servers`: what someone has to look at, worst first, `attention` cut to the first.

    `shortened`: roles of which something is left out.
    """

    broken_servers: tuple[ServerSummary, ...]
    attention: tuple[RoleSummary, ...]
    attention_count: int
    servers: tuple[ServerSummary, ...]
    states: tuple[StateCount, ...]
    total: int
    chart: DriftChart
    drifts: tuple[RecentDrift, ...]
    shortened: int

    @property
    def as_declared(self) -> bool:
        """Whether every role is as declared, or will be in a moment."""
        return all(each.state in (ObjectState.READY, ObjectState.WORKING) for each in self.states)

    @property
    def trouble_count(self) -> int:
        return len(self.broken_servers) + self.attention_count


def view_overview(snapshot: Snapshot, summaries: Sequence[RoleSummary], now: datetime) -> Overview:
    servers = list_servers(snapshot, summaries)
    attention = sorted((each for each in summaries if needs_attention(each, now)), key=_urgency)
    counts = Counter(each.state for each in summaries)
    recent = [RecentDrift(each.key, drift) for each in summaries for drift in each.drifts]
    return Overview(
        broken_servers=tuple(each for each in servers if not each.hidden and each.state is not ObjectState.READY),
        attention=tuple(attention[:_MOST_ATTENTION]),
        attention_count=len(attention),
        servers=servers,
        states=tuple(StateCount(state, counts[state]) for state in ObjectState if counts[state]),
        total=len(summaries),
        chart=chart_drifts(snapshot.servers.values(), (each.drift for each in recent), now, "the servers you may see"),
        drifts=tuple(nlargest(_MOST_DRIFTS, recent, key=lambda each: each.drift.time)),
        shortened=sum(bool(each.left_out) for each in summaries),
    )


def needs_attention(role: RoleSummary, now: datetime) -> bool:
    """Whether someone should look at the role; not while it may still become Ready by itself within minutes."""
    if role.state in (ObjectState.STALLED, ObjectState.DRIFT):
        return True
    return (
        role.state in (ObjectState.RETRYING, ObjectState.WORKING, ObjectState.NEW)
        and role.since is not None
        and now - role.since > _PATIENCE
    )


def _urgency(role: RoleSummary) -> tuple[int, float, Key]:
    """Worst first, and the newest of them first."""
    return (role.state.rank, -role.since.timestamp() if role.since else 0.0, role.key)
