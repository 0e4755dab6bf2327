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

from pgrole_controller import logs
from pgrole_controller.controller import orphans, session_keeper, worker
from pgrole_controller.logs import (
    LogFormat,
    RepeatFilter,
    _JsonFormatter,
    _TextFormatter,
    batch_member_id,
    new_reconcile_id,
    set_up,
    tracing,
)


def record(message: str, **values: object) -> logging.LogRecord:
    made = logging.LogRecord("pgrole_controller.x", logging.INFO, __file__, 1, message, (), None)
    vars(made).update(values)
    return made


def test_a_text_record_stays_on_one_line_and_quotes_its_values() -> None:
    line = _TextFormatter(colours=False).format(record("role reconciled", object="shop/app", note='a\nb="c"'))
    assert line.count("\n") == 0
    assert line.endswith(r'role reconciled  object=shop/app note="a\nb=\"c\""')


def test_json_is_one_object_a_line() -> None:
    line = _JsonFormatter().format(record("role reconciled", object="shop/app", note="a\nb", count=3))
    assert line.count("\n") == 0
    said = json.loads(line)
    assert (said["message"], said["object"], said["note"], said["count"]) == ("role reconciled", "shop/app", "a\nb", 3)


@pytest.mark.parametrize("sign", ["\x1b[2J", "\x9b2J", "\x7f", "\x0b", "\x85", "\u2028", "\u202e"])
def test_no_value_can_control_a_terminal_or_begin_a_line(sign: str) -> None:
    values = {"role": f"a{sign}b", "note": f"grün {sign}"}
    text, line = (
        _TextFormatter(colours=False).format(record("looked", **values)),
        _JsonFormatter().format(record("looked", **values)),
    )
    for said in (text, line):
        assert said.isprintable()
    assert {name: json.loads(line)[name] for name in values} == values
    assert json.loads(text.split(" role=")[1].split(" note=")[0]) == values["role"]


def test_printable_characters_are_written_unchanged() -> None:
    for form in (_TextFormatter(colours=False), _JsonFormatter()):
        assert "grün 漢字 …" in form.format(record("looked", role="grün 漢字 …"))


def lines(
    form: LogFormat, *, terminal: bool, monkeypatch: pytest.MonkeyPatch, level: str = "info"
) -> Callable[[], str]:
    """Sets up logging with a stream in place of standard error. Returns a function that gives the written text."""
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
def test_the_log_is_json_in_a_cluster_and_coloured_on_a_terminal_unless_no_color_is_set(
    form: LogFormat, terminal: bool, no_color: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    said = lines(form, terminal=terminal, monkeypatch=monkeypatch)
    logging.getLogger("pgrole_controller.x").info("role reconciled", extra={"object": "shop/app"})
    kind = "json" if said().startswith("{") else "coloured" if "\033[" in said() else "plain"
    assert kind == expected


def test_the_level_applies_only_to_this_program_and_no_library_logs_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines("json", terminal=False, monkeypatch=monkeypatch, level="debug")
    logging.getLogger("pgrole_controller.x").debug("ours")
    for name in ("kubernetes_asyncio.client.rest", "asyncio", "asyncpg", "aiohttp.access"):
        logging.getLogger(name).debug("a body")
        logging.getLogger(name).info("a body")
    assert [json.loads(line)["message"] for line in said().splitlines()] == ["ours"]
    assert logging.getLogger("kubernetes_asyncio.client.rest").getEffectiveLevel() >= logging.INFO


async def test_log_lines_of_a_reconcile_have_its_id_even_in_tasks_and_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    found = {line["message"]: line.get("reconcile_id") for line in map(json.loads, said().splitlines())}
    assert found == {
        "before": None,
        "in it": "5e1f0a7c",
        "a task": "5e1f0a7c",
        "a thread": "5e1f0a7c",
        "one of several": "5e1f0a7c.2",
        "the next task": "5e1f0a7c",
        "after": None,
    }


def test_a_reconcile_id_is_short_and_the_ids_in_a_batch_share_their_beginning() -> None:
    batch = new_reconcile_id()
    assert len(batch) == 8
    assert new_reconcile_id() != batch
    assert batch_member_id(batch, 1, 1) == batch
    assert batch_member_id(batch, 3, 12) == f"{batch}.3"


def test_every_message_is_constant() -> None:
    """Variable parts are in keys, so lines can be counted and searched by their message."""
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


#: Takes 12 bytes in JSON, where it is escaped because a terminal might interpret it.
WIDE = "\U000e0001"
FORMS = pytest.mark.parametrize("form", [_TextFormatter(colours=False), _JsonFormatter()], ids=["text", "json"])


@FORMS
@pytest.mark.parametrize("value", ["Q" * 9000, ["Q" * 9000], b"Q" * 9000, OSError("Q" * 9000)], ids=type)
def test_a_long_value_is_cut_and_the_missing_characters_are_counted(form: logging.Formatter, value: object) -> None:
    line = form.format(record("looked", note=value, short="y" * logs.LONGEST_VALUE, count=3))
    assert logs.LONGEST_VALUE - 20 <= line.count("Q") <= logs.LONGEST_VALUE
    assert line.count("y") == logs.LONGEST_VALUE
    assert f"… ({len(str(value)) - logs.LONGEST_VALUE} more)" in line


@FORMS
def test_a_long_message_of_a_library_is_cut(form: logging.Formatter) -> None:
    line = form.format(logging.LogRecord("asyncio", logging.ERROR, __file__, 1, "a task: %s", ("Q" * 9000,), None))
    assert line.count("Q") < logs.LONGEST_VALUE
    assert "more)" in line


def raised(text: str, deep: int = 0) -> logging.LogRecord:
    """Returns a record with the traceback of an error that has this text and this number of causes."""

    def fail(left: int) -> None:
        if left == 0:
            raise RuntimeError(text)
        try:
            fail(left - 1)
        except RuntimeError as error:
            raise RuntimeError(f"{text} {left}") from error

    made = record("it failed")
    try:
        fail(deep)
    except RuntimeError:
        made.exc_info = sys.exc_info()
    return made


@pytest.mark.parametrize(("text", "deep"), [("x" * 60_000, 0), ("x" * 999, 50)], ids=["long", "deep"])
def test_a_long_traceback_keeps_its_beginning_and_its_end(text: str, deep: int) -> None:
    said = json.loads(_JsonFormatter().format(raised(f"{text} at the end", deep)))["exception"]
    assert said.startswith("Traceback (most recent call last)")
    assert said.endswith(f"at the end {deep}" if deep else "at the end")
    assert " more)\n" in said
    assert logs.LONGEST_TRACEBACK < len(said) < logs.LONGEST_TRACEBACK + 50


def test_a_short_traceback_is_complete_and_cannot_control_a_terminal() -> None:
    line = _TextFormatter(colours=False).format(raised("a\x1b[2J\x9b2J\rb"))
    assert line.replace("\n", "").isprintable()
    assert line.endswith("RuntimeError: a?[2J?2J?b")
    assert "more)" not in line


def warning(message: str = "no session", level: int = logging.WARNING, **values: object) -> logging.LogRecord:
    made = record(message, **values)
    made.levelno = level
    return made


def test_a_repeated_warning_is_limited_per_minute_and_the_next_one_counts_the_omitted_ones() -> None:
    now = 0.0
    repetition = RepeatFilter(lambda: now)
    assert sum(repetition.admit(warning(server="one")) for _ in range(500)) == logs.REPEATS
    for other in (
        warning(server="two"),
        warning(server="one", object="shop/app"),
        warning(server="one", database="orders"),
        warning(namespace="shop"),
        warning(resource="secrets"),
        warning("session ended", server="one"),
        warning(level=logging.ERROR, server="one"),
    ):
        assert repetition.admit(other)
        assert "left_out" not in vars(other)
    now = logs.REPEAT_SECONDS - 0.01
    assert not repetition.admit(warning(server="one"))
    now = logs.REPEAT_SECONDS
    first, second = warning(server="one"), warning(server="one")
    assert repetition.admit(first)
    assert vars(first)["left_out"] == 501 - logs.REPEATS
    assert repetition.admit(second)
    assert "left_out" not in vars(second)


def test_records_below_warning_are_always_written() -> None:
    repetition = RepeatFilter()
    assert all(repetition.admit(record("role reconciled", server="one")) for _ in range(500))


@pytest.mark.slow
def test_counts_of_omitted_warnings_are_not_kept_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_REPEATED", 100)
    now = 0.0
    repetition = RepeatFilter(lambda: now)
    for number in range(logs.MOST_REPEATED + 1):
        for _ in range(logs.REPEATS + 1):
            repetition.admit(warning(object=number))
    now = logs.REPEAT_SECONDS
    repetition.admit(warning())
    assert len(repetition._left_out) + len(repetition._written) <= 1


def warnings_of_worker() -> set[str]:
    """Warnings and errors that the tasks of one server write."""
    modules = (orphans, session_keeper, worker)
    trees = [ast.parse(Path(str(one.__file__)).read_text(encoding="utf-8")) for one in modules]
    calls = [call for tree in trees for call in ast.walk(tree) if isinstance(call, ast.Call)]
    written = {ast.unparse(call.args[0]) for call in calls if ast.unparse(call.func) in ("log.warning", "log.error")}
    return {*written - {"message"}, "session with PostgreSQL ended", "no session with PostgreSQL"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_warnings_about_one_server_stay_below_5_mb_per_minute(form: LogFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    said = lines(form, terminal=False, monkeypatch=monkeypatch)
    log, messages = logging.getLogger("pgrole_controller.controller.worker"), warnings_of_worker()
    assert len(messages) >= 5
    for message in messages:
        for _ in range(200):
            log.warning(message, extra={"server": "one", "error": WIDE * 60_000})
    assert len(said().splitlines()) == logs.REPEATS * len(messages)
    assert len(said().encode()) < 5_000_000
