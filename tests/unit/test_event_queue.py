"""kube/event_queue: which Events are written first, and which are lost when too many wait."""

from datetime import UTC, datetime

from pgrole_controller.kube.event_queue import EventQueue, Occurrence

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def occur(number: int, namespace: str = "shop", *, urgent: bool = False) -> Occurrence:
    regarding = {"name": f"o{number}", "uid": f"u{number}", "namespace": namespace}
    reason = "DriftCorrected" if urgent else "RoleCreated"
    return Occurrence(regarding, "Normal", reason, "Do", "note", NOW, 0.0, urgent=urgent)


def drain(queue: EventQueue, namespace: str = "shop") -> list[Occurrence]:
    taken: list[Occurrence] = []
    while (one := queue.take_next(namespace)) is not None:
        taken.append(one)
    return taken


def test_thousands_of_new_roles_cost_no_drift_of_their_namespace_its_event() -> None:
    queue = EventQueue(2_000)
    lost = [queue.put(occur(number)) for number in range(3_000)]
    lost += [queue.put(occur(number, urgent=True)) for number in range(100)]
    assert {one.reason for one in lost if one is not None} == {"RoleCreated"}
    assert sum(one is not None for one in lost) == 1_100
    taken = drain(queue)
    assert [one.reason for one in taken] == ["DriftCorrected"] * 100 + ["RoleCreated"] * 1_900
    assert taken[:100] == [occur(number, urgent=True) for number in range(100)]
    assert taken[100:] == [occur(number) for number in range(1_900)]


def test_urgent_events_of_one_namespace_take_no_place_from_those_of_another() -> None:
    queue = EventQueue(10)
    assert [queue.put(occur(number, "quiet")) for number in range(4)] == [None] * 4
    lost = [queue.put(occur(number, urgent=True)) for number in range(20)]
    assert [one and one.namespace for one in lost] == [None] * 6 + ["shop"] * 14
    assert len(drain(queue, "quiet")) == 4


def test_a_repetition_takes_no_place() -> None:
    queue = EventQueue(1)
    assert [queue.put(occur(1, urgent=True)) for _ in range(3)] == [None] * 3
    (one,) = drain(queue)
    assert one.count == 3
    assert "shop" not in queue


def test_the_queue_is_crowded_from_the_first_half_on() -> None:
    queue, crowded = EventQueue(4), list[bool]()
    for number in range(4):
        queue.put(occur(number))
        crowded.append(queue.crowded)
    assert crowded == [False, True, True, True]
    queue.take_next("shop")
    queue.take_next("shop")
    queue.take_next("shop")
    assert not queue.crowded
