"""controller/privileges/grantees: the registry between a server's worker and the workers of its databases."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pgrole_controller.controller.privileges.grantees import MOST_NEWS, Grantees
from pgrole_controller.core.drift_record import MOST
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeDrift, PrivilegeNews, PrivilegeResult
from pgrole_controller.core.request import Key

KEY, OTHER = Key("shop", "app"), Key("shop", "other")
ORDERS, LAKE = DatabasePrivileges("orders"), DatabasePrivileges("lake")
GRANTEE = Grantee(KEY, "uid-1", 1, "app", 20_000, {"orders": ORDERS})
RESULT = PrivilegeResult(KEY, "uid-1", "orders", GRANTEE.digest_of("orders"))
EXTENDED = PrivilegeNews(News.PRIVILEGES_EXTENDED, "SELECT on table app.orders")
DRIFT = PrivilegeNews(News.DRIFT_REPORTED, "DELETE on table app.orders was granted", first=True)
REPORTED = replace(RESULT, reported=("DELETE on table app.orders was granted",), news=(DRIFT,))
AWAY = Transient(Reason.SERVER_NOT_READY, "no answer")


class Heard:
    def __init__(self) -> None:
        self.grantees = Grantees()
        self.changes: list[tuple[str, Key, frozenset[str]]] = []
        self.results: list[tuple[str, Key]] = []
        self.announced: list[PrivilegeNews] = []
        self.crowded = False
        self.grantees.connect(
            lambda server, key, databases: self.changes.append((server, key, databases)),
            lambda server, key: self.results.append((server, key)),
            self._announce,
        )

    def _announce(self, _server: str, result: PrivilegeResult) -> bool:
        if not self.crowded:
            self.announced.extend(result.news)
        return not self.crowded


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_publishing_announces_the_former_and_new_databases_of_a_changed_grantee(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.publish("main", replace(GRANTEE))
    moved = replace(GRANTEE, declared={"lake": LAKE})
    heard.grantees.publish("main", moved)
    assert heard.changes == [("main", KEY, frozenset({"orders"})), ("main", KEY, frozenset({"orders", "lake"}))]
    assert heard.grantees.get("main", KEY) == moved
    assert heard.grantees.get("other", KEY) is None


def test_a_databases_roles_are_found_without_asking_those_of_others(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round of each database asks: with 2,000 roles in 200 databases, that took a seventh of the CPU."""
    for number in range(3):
        name = f"d{number}"
        heard.grantees.publish(
            "main", replace(GRANTEE, key=Key("shop", name), declared={name: DatabasePrivileges(name)})
        )
    monkeypatch.setattr(Grantee, "databases", None)
    assert heard.grantees.databases("main") == {"d0", "d1", "d2"}
    assert [one.key.name for one in heard.grantees.of_database("main", "d1")] == ["d1"]


def test_a_role_that_moves_or_is_withdrawn_leaves_its_databases(heard: Heard) -> None:
    grantees = heard.grantees
    other = replace(GRANTEE, key=OTHER)
    for one in (GRANTEE, other, replace(GRANTEE, declared={"lake": LAKE})):
        grantees.publish("main", one)
    assert grantees.of_database("main", "orders") == (other,)
    grantees.withdraw("main", OTHER)
    assert grantees.databases("main") == {"lake"}
    assert grantees.of_database("main", "orders") == ()
    grantees.withdraw("main", KEY)
    assert grantees.databases("main") == frozenset()


def test_a_former_database_is_served_too(heard: Heard) -> None:
    grantee = replace(GRANTEE, former={"lake": (LAKE,)})
    heard.grantees.publish("main", grantee)
    assert heard.grantees.databases("main") == {"orders", "lake"}
    assert heard.grantees.of_database("main", "lake") == (grantee,)
    assert heard.grantees.of_database("main", "elsewhere") == ()


def test_withdrawing_announces_once_and_forgets_the_results(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.grantees.withdraw("main", KEY)
    heard.grantees.withdraw("main", KEY)
    assert heard.changes[1:] == [("main", KEY, frozenset({"orders"}))]
    assert heard.grantees.results("main", KEY) == {}
    assert heard.grantees.published("main") == ()


def test_withdrawing_a_server_removes_all_its_grantees(heard: Heard) -> None:
    for key in (KEY, OTHER):
        heard.grantees.publish("main", replace(GRANTEE, key=key))
    heard.grantees.publish("second", GRANTEE)
    heard.grantees.withdraw_all("main")
    assert heard.grantees.databases("main") == frozenset()
    assert heard.grantees.databases("second") == {"orders"}


def test_a_result_is_announced_when_it_differs(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.grantees.report("main", replace(RESULT))
    heard.grantees.report("main", replace(RESULT, confirmed=True))
    assert heard.results == [("main", KEY)] * 2
    assert heard.grantees.results("main", KEY) == {"orders": replace(RESULT, confirmed=True)}


def test_a_result_is_no_answer_to_the_same_declaration_after_another_one(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", replace(RESULT, drift_count=2))
    changed = replace(GRANTEE, declared={"orders": replace(ORDERS, unmanaged=("scratch",))})
    heard.grantees.publish("main", changed)
    heard.grantees.publish("main", GRANTEE)
    result = heard.grantees.results("main", KEY)["orders"]
    assert (result.digest, result.drift_count) == ("", 2), "its worker may be applying the other one"
    heard.grantees.report("main", replace(RESULT, drift_count=2))
    assert heard.grantees.results("main", KEY)["orders"].digest == GRANTEE.digest_of("orders")
    assert len(heard.results) == 2


@pytest.mark.parametrize(
    "changed",
    [replace(GRANTEE, report_only=True), replace(GRANTEE, ignored=True), replace(GRANTEE, suspended=True)],
    ids=["reported", "ignored", "suspended"],
)
def test_a_result_is_no_answer_once_drift_is_treated_otherwise(heard: Heard, changed: Grantee) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.grantees.publish("main", replace(GRANTEE, generation=2))
    assert heard.grantees.results("main", KEY)["orders"].digest == RESULT.digest
    heard.grantees.publish("main", changed)
    assert heard.grantees.results("main", KEY)["orders"].digest == ""


@pytest.mark.parametrize("result", [replace(RESULT, uid="uid-0"), replace(RESULT, key=OTHER)])
def test_a_result_for_a_role_that_is_not_published_is_ignored(heard: Heard, result: PrivilegeResult) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", result)
    assert heard.results == []
    assert heard.grantees.results("main", result.key) == {}


def test_a_new_object_with_the_same_name_starts_without_results(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.grantees.publish("main", replace(GRANTEE, uid="uid-2"))
    assert heard.grantees.results("main", KEY) == {}


def test_news_accumulate_until_they_are_taken_once(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    other = PrivilegeNews(News.DRIFT_CORRECTED, "DELETE on table app.orders")
    heard.grantees.report("main", replace(RESULT, news=(EXTENDED,)))
    heard.grantees.report("main", replace(RESULT, confirmed=True, news=(other,)))
    assert heard.grantees.take_news("main", KEY) == (EXTENDED, other)
    assert heard.grantees.take_news("main", KEY) == ()
    assert heard.grantees.results("main", KEY)["orders"].confirmed


def test_the_drifts_of_earlier_rounds_are_kept_for_the_history(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    drifts = [PrivilegeDrift(now + timedelta(seconds=each), (str(each),), 1, corrected=True) for each in range(13)]
    reported = PrivilegeDrift(now, ("reported",), 1, corrected=False)
    heard.grantees.report("main", replace(RESULT, last_drifts=(reported,)))
    for one in drifts:
        heard.grantees.report("main", replace(RESULT, last_drifts=(one,)))
        heard.grantees.report("main", replace(RESULT, last_drifts=(one,), confirmed=True))
    result = heard.grantees.results("main", KEY)["orders"]
    assert result.last_drifts == (drifts[-1],)
    assert result.earlier_drifts == tuple(drifts[-1 - MOST : -1])


@pytest.mark.parametrize(
    ("between", "now", "is_news"),
    [
        ((), REPORTED, False),
        ((replace(RESULT, error=AWAY),), REPORTED, False),
        ((RESULT,), REPORTED, True),
        ((), replace(REPORTED, reported=("UPDATE on table app.orders was granted",)), True),
        ((replace(RESULT, digest="other"),), REPORTED, True),
        ((), replace(REPORTED, news=(replace(DRIFT, first=False),)), True),
    ],
    ids=["reconnected", "after an outage", "undone", "another drift", "another spec", "in the same session"],
)
def test_standing_drift_that_a_new_session_reports_again_is_no_news(
    heard: Heard, between: tuple[PrivilegeResult, ...], now: PrivilegeResult, is_news: bool
) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", REPORTED)
    assert heard.grantees.take_news("main", KEY) == (DRIFT,)
    for one in between:
        heard.grantees.report("main", one)
    heard.grantees.report("main", now)
    news = (*heard.announced, *heard.grantees.take_news("main", KEY))
    assert [one.reason for one in news] == [News.DRIFT_REPORTED] * is_news
    assert heard.grantees.results("main", KEY)["orders"].reported == now.reported


def test_news_that_nothing_takes_are_bounded_and_the_last_are_kept(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    some = [
        PrivilegeNews(News.PRIVILEGES_EXTENDED, f"SELECT on table app.t{number}") for number in range(MOST_NEWS + 5)
    ]
    for one in some:
        heard.grantees.report("main", replace(RESULT, news=(one,)))
    assert heard.grantees.take_news("main", KEY) == tuple(some[5:])


def test_news_without_a_changed_result_are_announced_without_a_reconcile(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.grantees.report("main", replace(RESULT, news=(EXTENDED,)))
    heard.grantees.report("main", replace(RESULT, news=(EXTENDED,)))
    assert heard.announced == [EXTENDED, EXTENDED]
    assert heard.results == [("main", KEY)]
    assert heard.grantees.take_news("main", KEY) == ()


def test_news_that_cannot_be_announced_now_are_left_to_a_reconcile(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", RESULT)
    heard.crowded = True
    heard.grantees.report("main", replace(RESULT, news=(EXTENDED,)))
    assert heard.announced == []
    assert heard.results == [("main", KEY)] * 2
    assert heard.grantees.take_news("main", KEY) == (EXTENDED,)


def test_news_wait_for_a_reconcile_that_an_earlier_result_requested(heard: Heard) -> None:
    heard.grantees.publish("main", GRANTEE)
    heard.grantees.report("main", replace(RESULT, news=(EXTENDED,)))
    other = PrivilegeNews(News.PRIVILEGES_EXTENDED, "SELECT on table app.items")
    heard.grantees.report("main", replace(RESULT, news=(other,)))
    assert heard.announced == []
    assert heard.grantees.take_news("main", KEY) == (EXTENDED, other)


def test_the_result_of_a_removed_database_is_kept_until_its_news_are_taken(heard: Heard) -> None:
    heard.grantees.publish("main", replace(GRANTEE, former={"lake": (LAKE,)}))
    heard.grantees.report("main", RESULT)
    heard.grantees.report("main", replace(RESULT, database="lake", news=(EXTENDED,)))
    heard.grantees.publish("main", GRANTEE)
    assert set(heard.grantees.results("main", KEY)) == {"orders", "lake"}
    assert heard.grantees.take_news("main", KEY) == (EXTENDED,)
    heard.grantees.publish("main", replace(GRANTEE, generation=2))
    assert set(heard.grantees.results("main", KEY)) == {"orders"}
