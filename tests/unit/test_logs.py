"""logs: one record is one line, whatever a value contains."""

import ast
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from pgrole_controller.logs import LogFormat, _Json, _Text, name_visit, new_visit, set_up, tracing


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("pgrole_controller.x", logging.INFO, __file__, 1, message, (), None)
    vars(made).update(values)
    return made


def test_text_stays_on_one_line_and_tells_values_from_words() -> None:
    line = _Text(colours=False).format(record("role brought in", object="shop/app", note='a\nb="c"'))
    assert line.count("\n") == 0
    assert line.endswith(r'role brought in  object=shop/app note="a\nb=\"c\""')


def test_json_is_one_object_a_line() -> None:
    line = _Json().format(record("role brought in", object="shop/app", note="a\nb", count=3))
    assert line.count("\n") == 0
    said = json.loads(line)
    assert (said["message"], said["object"], said["note"], said["count"]) == ("role brought in", "shop/app", "a\nb", 3)


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x9b2J", "\x7f", "\x0b", "\x85", "\u2028", "\u202e"])
def test_no_value_makes_a_terminal_do_anything_or_begins_a_line(sign: str) -> None:
    values = {"role": f"a{sign}b", "note": f"grün {sign}"}
    text, line = _Text(colours=False).format(record("looked", **values)), _Json().format(record("looked", **values))
    for said in (text, line):
        assert said.isprintable()
    assert {name: json.loads(line)[name] for name in values} == values
    assert json.loads(text.split(" role=")[1].split(" note=")[0]) == values["role"]


def test_what_can_be_printed_stands_as_it_is() -> None:
    for form in (_Text(colours=False), _Json()):
        assert "grün 漢字 …" in form.format(record("looked", role="grün 漢字 …"))


def lines(
    form: LogFormat, *, terminal: bool, monkeypatch: pytest.MonkeyPatch, level: str = "info"
) -> Callable[[], str]:
    """Sets the log up as if standard error was this; what is called gives what was written."""
    written = Stream(terminal=terminal)
    monkeypatch.setattr(sys, "stderr", written)
    set_up(level, form)
    return written.getvalue


class Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("pgrole_controller")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


@pytest.mark.parametrize(
    ("form", "terminal", "no_color", "expected"),
    [
        ("auto", False, "", "json"),
        ("auto", True, "", "coloured"),
        ("auto", True, "1", "plain"),
        ("text", False, "", "plain"),
        ("text", True, "", "coloured"),
        ("text", True, "0", "plain"),
        ("json", True, "", "json"),
    ],
)
def test_it_is_json_in_a_cluster_and_coloured_on_a_terminal_unless_no_color_is_set(
    form: LogFormat, terminal: bool, no_color: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    said = lines(form, terminal=terminal, monkeypatch=monkeypatch)
    logging.getLogger("pgrole_controller.x").info("role brought in", extra={"object": "shop/app"})
    kind = "json" if said().startswith("{") else "coloured" if "\033[" in said() else "plain"
    assert kind == expected


def test_the_level_is_of_this_program_and_no_library_shows_what_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines("json", terminal=False, monkeypatch=monkeypatch, level="debug")
    logging.getLogger("pgrole_controller.x").debug("ours")
    for name in ("kubernetes_asyncio.client.rest", "asyncio", "asyncpg", "aiohttp.access"):
        logging.getLogger(name).debug("a body")
        logging.getLogger(name).info("a body")
    assert [json.loads(line)["message"] for line in said().splitlines()] == ["ours"]
    assert logging.getLogger("kubernetes_asyncio.client.rest").getEffectiveLevel() >= logging.INFO


async def test_what_is_done_for_a_visit_has_its_id_in_tasks_and_threads_too(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines("json", terminal=False, monkeypatch=monkeypatch)
    log = logging.getLogger("pgrole_controller.x")

    async def say(text: str) -> None:
        log.info(text)

    log.info("before")
    async with anyio.create_task_group() as tasks:
        with tracing("5e1f0a7c"):
            log.info("in it")
            tasks.start_soon(say, "a task")
            await anyio.to_thread.run_sync(log.info, "a thread")
            with tracing("5e1f0a7c.2"):
                log.info("one of several")
            tasks.start_soon(say, "the next task")
        log.info("after")
    found = {line["message"]: line.get("visit") for line in map(json.loads, said().splitlines())}
    assert found == {
        "before": None,
        "in it": "5e1f0a7c",
        "a task": "5e1f0a7c",
        "a thread": "5e1f0a7c",
        "one of several": "5e1f0a7c.2",
        "the next task": "5e1f0a7c",
        "after": None,
    }


def test_the_id_of_a_visit_is_short_and_of_several_at_once_they_begin_alike() -> None:
    batch = new_visit()
    assert len(batch) == 8
    assert new_visit() != batch
    assert name_visit(batch, 1, 1) == batch
    assert name_visit(batch, 3, 12) == f"{batch}.3"


def test_every_message_is_constant() -> None:
    """What changes stands in keys: lines can be counted and searched for by their message."""
    root = Path(__file__).parents[2] / "pgrole_controller"
    calls = [
        call
        for file in root.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ("debug", "info", "warning", "error", "exception")
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "log"
    ]
    assert len(calls) > 30
    for call in calls:
        assert isinstance(call.args[0], ast.Constant | ast.Name), ast.unparse(call)
        assert len(call.args) == 1, ast.unparse(call)
