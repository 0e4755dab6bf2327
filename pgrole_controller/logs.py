"""Logging: constant messages with values as keys, as text on a terminal and as JSON elsewhere.

Each reconcile has a short id, which every line logged for it carries as `reconcile_id`, from whatever module
(`tracing`). Much logged text comes from others or repeats as often as others cause it, so values, tracebacks and
repeated warnings are bounded.
"""

import json
import logging
import os
import secrets
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import FrameType
from typing import Any, Literal

LogFormat = Literal["auto", "text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {"DEBUG": "\033[2m", "INFO": "\033[32m", "WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_RESET = "\033[0m"


#: Maximum length of one value and of one traceback, in characters.
LONGEST_VALUE = 2000
LONGEST_TRACEBACK = 12_000

#: Maximum number of identical warnings for one server, object, namespace, database or resource in REPEAT_SECONDS.
REPEATS = 20
REPEAT_SECONDS = 60.0
MOST_REPEATED = 10_000
#: Values that tell what a warning is about.
_ABOUT = ("server", "object", "namespace", "database", "resource")

_reconcile_id: ContextVar[str] = ContextVar("reconcile_id", default="")


def set_up(level: str, form: LogFormat) -> None:
    """Configures logging to standard error. Colours only on a terminal, and not if NO_COLOR is set."""
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    text = form == "text" or (form == "auto" and terminal)
    handler.setFormatter(
        _TextFormatter(colours=terminal and not os.environ.get("NO_COLOR")) if text else _JsonFormatter()
    )
    handler.addFilter(_add_reconcile_id)
    handler.addFilter(RepeatFilter().admit)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pgrole_controller").setLevel(level.upper())
    # At DEBUG it logs request bodies, including Secrets.
    logging.getLogger("kubernetes_asyncio.client.rest").setLevel(logging.WARNING)


def new_reconcile_id() -> str:
    """Returns an id that is unique for practical purposes."""
    return secrets.token_hex(4)


def batch_member_id(batch: str, place: int, of: int) -> str:
    """Returns the id of one reconcile in a batch. It begins with the batch's id; in a batch of one, it equals it."""
    return batch if of == 1 else f"{batch}.{place}"


def current_reconcile_id() -> str:
    """Returns the id of the current reconcile; empty outside one."""
    return _reconcile_id.get()


@contextmanager
def tracing(reconcile_id: str) -> Iterator[None]:
    """Attributes everything logged inside, also by tasks and threads started inside, to this reconcile."""
    token = _reconcile_id.set(reconcile_id)
    try:
        yield
    finally:
        _reconcile_id.reset(token)


#: Limits: innermost frames per stack, and full tracebacks per minute.
FRAMES = 30
TRACEBACKS = 10


def describe_stack(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Describes where code is, innermost frame last: file, line and function, without values."""
    codes = ((frame.f_code, line) for frame, line in frames)
    places = [f"{_module(code.co_filename)}:{line} {code.co_name}" for code, line in codes]
    return " > ".join(places[-FRAMES:])


def describe_error(error: BaseException) -> dict[str, str]:
    """Describes an unexpected error for a log line: type and traceback, without its text, which may quote a secret."""
    described = {"error": type(error).__name__}
    if not _tracebacks.admit():
        return described
    causes = [describe_stack(traceback.walk_tb(one.__traceback__)) for one in _chain(error)]
    return {**described, "traceback": "; while handling: ".join(causes)}


class RateLimit:
    """Allows a number of occurrences within a number of seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        self._times: deque[float] = deque(maxlen=most)
        self._seconds = seconds

    def admit(self) -> bool:
        now = time.monotonic()
        if len(self._times) == self._times.maxlen and now - self._times[0] < self._seconds:
            return False
        self._times.append(now)
        return True


_tracebacks = RateLimit(TRACEBACKS, 60.0)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields the error and the chain of its causes and contexts."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < 5:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _module(filename: str) -> str:
    """Returns the last parts of a path: package and file."""
    return "/".join(filename.replace(os.sep, "/").split("/")[-2:])


def _add_reconcile_id(record: logging.LogRecord) -> bool:
    if reconcile_id := _reconcile_id.get():
        record.reconcile_id = reconcile_id
    return True


class RepeatFilter:
    """Drops warnings and errors that repeat too often; the next one logged says how many were dropped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._written: dict[tuple[object, ...], int] = {}
        self._left_out: dict[tuple[object, ...], int] = {}

    def admit(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now = self._clock()
        if now - self._since >= REPEAT_SECONDS:
            self._since, self._written = now, {}
            if len(self._left_out) > MOST_REPEATED:
                self._left_out = {}
        about = (getattr(record, name, "") for name in _ABOUT)
        which = (record.name, record.levelno, record.msg, *map(str, about))
        self._written[which] = self._written.get(which, 0) + 1
        if self._written[which] > REPEATS:
            self._left_out[which] = self._left_out.get(which, 0) + 1
            return False
        if left_out := self._left_out.pop(which, 0):
            record.left_out = left_out
        return True


def _values(record: logging.LogRecord) -> dict[str, Any]:
    return {key: _cut(value) for key, value in vars(record).items() if key not in _STANDARD}


def _cut(value: object) -> object:
    if isinstance(value, int | float | bool) or value is None:
        return value
    text = str(value)
    return value if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}… ({len(text) - LONGEST_VALUE} more)"


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Keeps the beginning and the end, which shows the last error. Its text may come from others."""
    raw = formatter.formatException(record.exc_info) if record.exc_info else ""
    text = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in raw)
    if len(text) <= LONGEST_TRACEBACK:
        return text
    first = LONGEST_TRACEBACK // 3
    last = LONGEST_TRACEBACK - first
    return f"{text[:first]}\n… ({len(text) - LONGEST_TRACEBACK} more)\n{text[-last:]}"


class _TextFormatter(logging.Formatter):
    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        level = record.levelname
        shown = f"{_COLOURS.get(level, '')}{level:<7}{_RESET}" if self._colours else f"{level:<7}"
        values = " ".join(f"{key}={_plain(value)}" for key, value in _values(record).items())
        line = f"{moment} {shown} {_cut(record.getMessage())}{'  ' + values if values else ''}"
        return f"{line}\n{_traceback(self, record)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **_values(record),
        }
        if record.exc_info:
            line["exception"] = _traceback(self, record)
        return _quote(line)


def _plain(value: object) -> str:
    # One record is one line, whatever a role's name contains.
    text = str(value)
    return _quote(text) if not text or set(text) & set(' "=') or not text.isprintable() else text


_as_it_is = json.JSONEncoder(default=str, ensure_ascii=False).encode
_escaped = json.JSONEncoder(default=str).encode


def _quote(value: object) -> str:
    """Renders JSON with terminal control and non-printing characters escaped: anyone who can create roles chooses
    names.
    """
    text = _as_it_is(value)
    return text if text.isprintable() else _escaped(value)
