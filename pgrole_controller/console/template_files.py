"""The pages' templates and static files, read once: later, no file descriptor may be left (EMFILE)."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from urllib.parse import quote

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from pgrole_controller.core.errors import make_legible
from pgrole_controller.program import program_name

_FOLDER = Path(__file__).parent
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@cache
def static_files() -> Mapping[str, tuple[str, bytes]]:
    """Returns content type and content of each file below /static/, by name."""
    return {each.name: (_TYPES[each.suffix], each.read_bytes()) for each in sorted((_FOLDER / "static").iterdir())}


@cache
def environment() -> Environment:
    """Returns the templates. Each value is escaped, and characters that cannot be seen are made visible."""
    texts = {each.name: each.read_text(encoding="utf-8") for each in sorted((_FOLDER / "templates").iterdir())}
    made = Environment(
        loader=DictLoader(texts),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(ago=tell_time, segment=quote_segment, number=group_digits)
    made.globals["program"] = program_name()
    return made


def finalize(value: object) -> object:
    """Makes the characters of names and messages legible. Markup comes from a template, and was made so before."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else make_legible(str(value))


def group_digits(number: int) -> str:
    return f"{number:,}"


def quote_segment(name: str) -> str:
    """Returns a name as one segment of a URL's path."""
    return quote(name.encode("utf-8", "replace"), safe="")


def tell_time(time: datetime | None, now: datetime) -> Markup:
    """Returns a <time>: relative for reading, absolute in its title."""
    if time is None:
        return Markup("unknown")
    exact = time.astimezone(UTC)
    shown = f"{exact:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        exact.isoformat(timespec="seconds"), shown, tell_distance(exact - now)
    )


def tell_distance(distance: timedelta) -> str:
    """Returns "3 min ago", "in 2 h" or "now"; static/live.js does the same."""
    seconds = int(abs(distance).total_seconds())
    for size, unit in _UNITS:
        if seconds >= size:
            words = f"{seconds // size:,} {unit}"
            return f"in {words}" if distance > timedelta() else f"{words} ago"
    return "now"
