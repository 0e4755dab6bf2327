"""Log lines: constant messages with values as keys, for a terminal as text, elsewhere as JSON.

Each reconcile has a short id, which stands as `visit` in every line that is written for it, in whatever room
(`tracing`).

Much of what is logged was written by somebody else, or happens as often as somebody else likes: values, tracebacks and
the repetition of a warning have a bound.
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


#: Of one value, and of one traceback, in characters.
LONGEST_VALUE = 2000
LONGEST_TRACEBACK = 12_000

#: How often the same warning of the same server or object is written in so many seconds.
REPEATS = 20
REPEAT_SECONDS = 60.0
MOST_REPEATED = 10_000

_reconcile_id: ContextVar[str] = ContextVar("visit", default="")


def set_up(level: str, form: LogFormat) -> None:
    """Logs to standard error from now on. Colours only on a terminal, unless NO_COLOR is set to anything."""
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    text = form == "text" or (form == "auto" and terminal)
    handler.setFormatter(_Text(colours=terminal and not os.environ.get("NO_COLOR")) if text else _Json())
    handler.addFilter(_add_reconcile_id)
    handler.addFilter(RepeatFilter().admit)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("pgrole_controller").setLevel(level.upper())
    # At DEBUG it prints bodies, Secrets among them.
    logging.getLogger("kubernetes_asyncio.client.rest").setLevel(logging.WARNING)


def new_reconcile_id() -> str:
    """An id that no other reconcile of these days has."""
    return secrets.token_hex(4)


def batch_member_id(batch: str, place: int, of: int) -> str:
    """The id of one reconcile of a batch, which begins with that of the batch; of a batch of one, the same."""
    return batch if of == 1 else f"{batch}.{place}"


def current_reconcile_id() -> str:
    """The id of the reconcile that this is done for; empty where it is for none."""
    return _reconcile_id.get()


@contextmanager
def tracing(reconcile_id: str) -> Iterator[None]:
    """What is logged in here, and in tasks and threads that are started here, is for this reconcile."""
    token = _reconcile_id.set(reconcile_id)
    try:
        yield
    finally:
        _reconcile_id.reset(token)


#: Of one stack, the innermost frames; of tracebacks, so many within a minute are logged in full.
FRAMES = 30
TRACEBACKS = 10


def describe_stack(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Where code stands, the innermost last: file, line and function, and no values."""
    codes = ((frame.f_code, line) for frame, line in frames)
    places = [f"{_module(code.co_filename)}:{line} {code.co_name}" for code, line in codes]
    return " > ".join(places[-FRAMES:])


def describe_error(error: BaseException) -> dict[str, str]:
    """For a log line: the type of an unexpected error and its traceback, without its text, which may quote a secret."""
    described = {"error": type(error).__name__}
    if not _tracebacks.admit():
        return described
    causes = [describe_stack(traceback.walk_tb(one.__traceback__)) for one in _chain(error)]
    return {**described, "traceback": "; while handling: ".join(causes)}


class RateLimit:
    """So many of something within so many seconds."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._times: deque[float] = deque(maxlen=most)
        self._seconds = seconds
        self._clock = clock

    def admit(self) -> bool:
        now = self._clock()
        if len(self._times) == self._times.maxlen and now - self._times[0] < self._seconds:
            return False
        self._times.append(now)
        return True


_tracebacks = RateLimit(TRACEBACKS, 60.0)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from or while handling."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen and len(seen) < 5:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _module(filename: str) -> str:
    """The last parts of a path: which package and file."""
    return "/".join(filename.replace(os.sep, "/").split("/")[-2:])


def _add_reconcile_id(record: logging.LogRecord) -> bool:
    if reconcile_id := _reconcile_id.get():
        record.visit = reconcile_id
    return True


class RepeatFilter:
    """Leaves out warnings and errors that were just written often enough; the next one says how many were."""

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
        about = (getattr(record, "server", ""), getattr(record, "object", ""))
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
    """The beginning, and the end: what was raised last. Its words may be somebody else's."""
    raw = formatter.formatException(record.exc_info) if record.exc_info else ""
    text = "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in raw)
    if len(text) <= LONGEST_TRACEBACK:
        return text
    first = LONGEST_TRACEBACK // 3
    last = LONGEST_TRACEBACK - first
    return f"{text[:first]}\n… ({len(text) - LONGEST_TRACEBACK} more)\n{text[-last:]}"


class _Text(logging.Formatter):
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


class _Json(logging.Formatter):
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
    """As JSON, with escapes for what a terminal would obey or not show: names come from whoever can make a role."""
    text = _as_it_is(value)
    return text if text.isprintable() else _escaped(value)
