"""controller/echo: our own changes on their way back."""

from pgrole_controller.controller.telemetry import KEPT, MOST, OVERDUE, Echoes


def sent(*names: str, at: float = 0.0) -> Echoes:
    echoes = Echoes()
    echoes.send(names)
    echoes.answer(names, at)
    return echoes


def test_the_delay_is_from_the_answer_to_the_first_notification() -> None:
    echoes = sent("app", at=1.0)
    assert echoes.hear(("other",), 1.2) == []
    assert echoes.hear(("app",), 1.5) == [0.5]
    assert echoes.hear(("app",), 1.6) == []


def test_a_renamed_role_is_heard_by_either_name() -> None:
    assert sent("app", at=1.0).hear(("app", "was"), 2.0) == [1.0]


def test_all_of_them_answers_for_each() -> None:
    assert sorted(sent("one", "two").hear(None, 3.0)) == [3.0, 3.0]


def test_what_is_heard_before_the_answer_tells_nothing_and_is_not_waited_for() -> None:
    for names in (("app",), None):
        echoes = Echoes()
        echoes.send(["app"])
        assert echoes.hear(names, 0.5) == []
        echoes.answer(["app"], 1.0)
        assert echoes.hear(("app",), 2.0) == []
        assert echoes.overdue(1.0 + OVERDUE + 1) == 0


def test_what_was_not_changed_or_had_no_effect_is_not_waited_for() -> None:
    echoes = Echoes()
    echoes.send(["app", "refused"])
    echoes.answer(["app"], 0.0)
    echoes.forget("app")
    echoes.forget("unknown")
    assert echoes.overdue(OVERDUE + 1) == 0


def test_of_two_changes_the_first_counts() -> None:
    echoes = sent("app", at=1.0)
    echoes.send(["app"])
    echoes.answer(["app"], 2.0)
    assert echoes.hear(("app",), 3.0) == [2.0]


def test_an_echo_is_overdue_after_a_while_and_is_given_up_later() -> None:
    echoes = sent("app", at=10.0)
    assert echoes.overdue(10.0 + OVERDUE) == 0
    assert echoes.overdue(10.0 + OVERDUE + 0.1) == 1
    assert echoes.overdue(10.0 + KEPT + 0.1) == 0


def test_memory_is_bounded() -> None:
    echoes = sent(*(f"r{number}" for number in range(2 * MOST)))
    assert echoes.overdue(OVERDUE + 1) == MOST


def test_own_changes_are_expected_until_they_are_heard_of() -> None:
    echoes = Echoes()
    echoes.send(["app"])
    assert echoes.expects("app")
    echoes.answer(["app"], 1.0)
    assert echoes.expects("app")
    assert not echoes.expects("other")
    echoes.hear(("app",), 1.1)
    assert not echoes.expects("app")
