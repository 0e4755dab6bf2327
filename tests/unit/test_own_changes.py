"""controller/worker_memory: own changes are known by their notifications, and the delay of these is measured."""

from pgrole_controller.controller.worker_memory import EXPECTED_SECONDS, MOST_EXPECTED, OVERDUE_SECONDS, OwnChanges


def sent(*names: str, at: float = 0.0) -> OwnChanges:
    own_changes = OwnChanges()
    own_changes.begin(names)
    own_changes.commit(names, at)
    return own_changes


def test_the_delay_is_measured_from_the_answer_to_the_first_notification() -> None:
    own_changes = sent("app", at=1.0)
    assert own_changes.notice(("other",), 1.2) == []
    assert own_changes.notice(("app",), 1.5) == [0.5]
    assert own_changes.notice(("app",), 1.6) == []


def test_a_notification_about_a_renamed_role_counts_by_either_name() -> None:
    assert sent("app", at=1.0).notice(("app", "was"), 2.0) == [1.0]


def test_a_notification_about_all_roles_counts_for_each() -> None:
    assert sorted(sent("one", "two").notice(None, 3.0)) == [3.0, 3.0]


def test_a_notification_before_the_answer_gives_no_delay_and_none_is_expected_later() -> None:
    for names in (("app",), None):
        own_changes = OwnChanges()
        own_changes.begin(["app"])
        assert own_changes.notice(names, 0.5) == []
        own_changes.commit(["app"], 1.0)
        assert own_changes.notice(("app",), 2.0) == []
        assert own_changes.overdue(1.0 + OVERDUE_SECONDS + 1) == 0


def test_no_notification_is_expected_for_a_change_that_failed_or_had_no_effect() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app", "refused"])
    own_changes.commit(["app"], 0.0)
    own_changes.discard("app")
    own_changes.discard("unknown")
    assert own_changes.overdue(OVERDUE_SECONDS + 1) == 0


def test_the_delay_of_two_changes_is_measured_from_the_first() -> None:
    own_changes = sent("app", at=1.0)
    own_changes.begin(["app"])
    own_changes.commit(["app"], 2.0)
    assert own_changes.notice(("app",), 3.0) == [2.0]


def test_a_notification_is_overdue_after_a_while_and_not_expected_later() -> None:
    own_changes = sent("app", at=10.0)
    assert own_changes.overdue(10.0 + OVERDUE_SECONDS) == 0
    assert own_changes.overdue(10.0 + OVERDUE_SECONDS + 0.1) == 1
    assert own_changes.overdue(10.0 + EXPECTED_SECONDS + 0.1) == 0


def test_under_poll_a_notification_is_overdue_an_interval_later_and_never_if_that_is_too_long() -> None:
    own_changes = sent("app")
    assert own_changes.overdue(100.0 + OVERDUE_SECONDS, interval=100.0) == 0
    assert own_changes.overdue(100.0 + OVERDUE_SECONDS + 0.1, interval=100.0) == 1
    assert own_changes.overdue(EXPECTED_SECONDS, interval=3600.0) == 0
    assert own_changes.overdue(EXPECTED_SECONDS + 0.1, interval=3600.0) == 0


def test_the_memory_of_own_changes_is_bounded() -> None:
    own_changes = sent(*(f"r{number}" for number in range(2 * MOST_EXPECTED)))
    assert own_changes.overdue(OVERDUE_SECONDS + 1) == MOST_EXPECTED


def test_notifications_of_own_changes_are_expected_until_they_arrive() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app"])
    assert own_changes.expects("app")
    own_changes.commit(["app"], 1.0)
    assert own_changes.expects("app")
    assert not own_changes.expects("other")
    own_changes.notice(("app",), 1.1)
    assert not own_changes.expects("app")
