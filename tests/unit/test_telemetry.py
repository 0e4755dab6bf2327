"""controller/telemetry: drifts by hour."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.telemetry import DriftCounts, count_news
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews
from pgrole_controller.core.request import Key
from pgrole_controller.core.role_drift import RoleDrift
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.metrics import REGISTRY, forget_server

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


def test_news_about_privileges_is_counted_by_what_was_done() -> None:
    reasons = (News.PRIVILEGES_EXTENDED, *[News.DRIFT_CORRECTED] * 2, *[News.DRIFT_REPORTED] * 3)
    count_news("told", [PrivilegeNews(reason, "") for reason in reasons])
    assert REGISTRY.get_sample_value("pgrole_privileges_extended_total", {"server": "told"}) == 1
    for action, count in (("corrected", 2), ("reported", 3)):
        labels = {"server": "told", "field": "privileges", "action": action}
        assert REGISTRY.get_sample_value("pgrole_drifts_total", labels) == count
    forget_server("told")
