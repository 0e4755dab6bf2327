"""controller/telemetry: the notifications of our own changes."""

from pgrole_controller.controller.telemetry import KEPT, MOST, OVERDUE, OwnChanges


def sent(*names: str, at: float = 0.0) -> OwnChanges:
    own_changes = OwnChanges()
    own_changes.begin(names)
    own_changes.commit(names, at)
    return own_changes


def test_the_delay_is_from_the_answer_to_the_first_notification() -> None:
    own_changes = sent("app", at=1.0)
    assert own_changes.notice(("other",), 1.2) == []
    assert own_changes.notice(("app",), 1.5) == [0.5]
    assert own_changes.notice(("app",), 1.6) == []


def test_a_renamed_role_is_heard_by_either_name() -> None:
    assert sent("app", at=1.0).notice(("app", "was"), 2.0) == [1.0]


def test_all_of_them_answers_for_each() -> None:
    assert sorted(sent("one", "two").notice(None, 3.0)) == [3.0, 3.0]


def test_what_is_heard_before_the_answer_tells_nothing_and_is_not_waited_for() -> None:
    for names in (("app",), None):
        own_changes = OwnChanges()
        own_changes.begin(["app"])
        assert own_changes.notice(names, 0.5) == []
        own_changes.commit(["app"], 1.0)
        assert own_changes.notice(("app",), 2.0) == []
        assert own_changes.overdue(1.0 + OVERDUE + 1) == 0


def test_what_was_not_changed_or_had_no_effect_is_not_waited_for() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app", "refused"])
    own_changes.commit(["app"], 0.0)
    own_changes.discard("app")
    own_changes.discard("unknown")
    assert own_changes.overdue(OVERDUE + 1) == 0


def test_of_two_changes_the_first_counts() -> None:
    own_changes = sent("app", at=1.0)
    own_changes.begin(["app"])
    own_changes.commit(["app"], 2.0)
    assert own_changes.notice(("app",), 3.0) == [2.0]


def test_a_notification_is_overdue_after_a_while_and_not_expected_later() -> None:
    own_changes = sent("app", at=10.0)
    assert own_changes.overdue(10.0 + OVERDUE) == 0
    assert own_changes.overdue(10.0 + OVERDUE + 0.1) == 1
    assert own_changes.overdue(10.0 + KEPT + 0.1) == 0


def test_memory_is_bounded() -> None:
    own_changes = sent(*(f"r{number}" for number in range(2 * MOST)))
    assert own_changes.overdue(OVERDUE + 1) == MOST


def test_own_changes_are_expected_until_they_are_heard_of() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app"])
    assert own_changes.expects("app")
    own_changes.commit(["app"], 1.0)
    assert own_changes.expects("app")
    assert not own_changes.expects("other")
    own_changes.notice(("app",), 1.1)
    assert not own_changes.expects("app")
