"""controller/telemetry: notifications of the controller's own changes, and drifts by hour."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.telemetry import KEPT, MOST, OVERDUE, DriftCounts, OwnChanges
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews
from pgrole_controller.core.request import Key
from pgrole_controller.core.role_drift import RoleDrift
from pgrole_controller.kube.stored_object import Stored


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
        assert own_changes.overdue(1.0 + OVERDUE + 1) == 0


def test_no_notification_is_expected_for_a_change_that_failed_or_had_no_effect() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app", "refused"])
    own_changes.commit(["app"], 0.0)
    own_changes.discard("app")
    own_changes.discard("unknown")
    assert own_changes.overdue(OVERDUE + 1) == 0


def test_the_delay_of_two_changes_is_measured_from_the_first() -> None:
    own_changes = sent("app", at=1.0)
    own_changes.begin(["app"])
    own_changes.commit(["app"], 2.0)
    assert own_changes.notice(("app",), 3.0) == [2.0]


def test_a_notification_is_overdue_after_a_while_and_not_expected_later() -> None:
    own_changes = sent("app", at=10.0)
    assert own_changes.overdue(10.0 + OVERDUE) == 0
    assert own_changes.overdue(10.0 + OVERDUE + 0.1) == 1
    assert own_changes.overdue(10.0 + KEPT + 0.1) == 0


def test_the_memory_of_own_changes_is_bounded() -> None:
    own_changes = sent(*(f"r{number}" for number in range(2 * MOST)))
    assert own_changes.overdue(OVERDUE + 1) == MOST


def test_notifications_of_own_changes_are_expected_until_they_arrive() -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app"])
    assert own_changes.expects("app")
    own_changes.commit(["app"], 1.0)
    assert own_changes.expects("app")
    assert not own_changes.expects("other")
    own_changes.notice(("app",), 1.1)
    assert not own_changes.expects("app")


KEY = Key("shop", "app")
NOW = datetime.now(UTC)


def a_result(**given: Any) -> Result:
    return Result(Target(KEY, stored=given.pop("stored", cast("Stored", object()))), decided=True, **given)


def reported(*fields: str, at: datetime = NOW, observed_at: datetime = NOW) -> Result:
    drift = RoleDrift("app", 1, "u", fields or ("superuser",), corrected=False, at=at)
    return a_result(drift=drift, observed_at=observed_at)


def counts_of(*results: Result) -> tuple[int, int]:
    counts = DriftCounts()
    for one in results:
        counts.count(one)
    pairs = counts.counted.hours.values()
    return sum(one for one, _ in pairs), sum(two for _, two in pairs)


def test_each_reconcile_that_corrects_drift_and_each_news_item_about_it_counts_once() -> None:
    news = (PrivilegeNews(News.DRIFT_CORRECTED, ""), PrivilegeNews(News.PRIVILEGES_EXTENDED, ""))
    assert counts_of(a_result(corrected=("superuser", "login"))) == (1, 0)
    assert counts_of(a_result(news=news), a_result(news=(PrivilegeNews(News.DRIFT_REPORTED, ""),))) == (1, 1)
    assert counts_of(a_result()) == (0, 0)


def test_drift_that_is_only_reported_counts_once_while_it_lasts() -> None:
    assert counts_of(reported(), reported()) == (0, 1)
    assert counts_of(reported(), reported("login")) == (0, 2)
    assert counts_of(reported(), a_result(), reported()) == (0, 2)


def test_drift_that_an_earlier_process_reported_is_not_counted_again() -> None:
    assert counts_of(reported(at=NOW - timedelta(hours=1))) == (0, 0)


def test_reported_drift_counts_whatever_the_clock_of_its_server_shows() -> None:
    long_ago = NOW - timedelta(days=365)
    assert counts_of(reported(at=long_ago, observed_at=long_ago)) == (0, 1)
