"""Reads values from objects of any shape: what has another type than expected counts as absent, and texts are cut.

The API server validates objects, but an older CRD, or another version of the controller, can have written them.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pgrole_controller.core.drift_record import read_moment

#: Characters of one text on a page, and entries of one list. No field of a CRD allows more, except spec.privileges.
LONGEST_TEXT = 4096
MOST_ENTRIES = 512


def read_map(value: object, *path: str) -> Mapping[str, Any]:
    """Returns the map at `path`, or an empty one."""
    for name in path:
        if not isinstance(value, Mapping):
            return {}
        value = value.get(name)
    return value if isinstance(value, Mapping) else {}


def read_text(value: object, *path: str, most: int = LONGEST_TEXT) -> str:
    """Returns the text at `path`, cut to `most` characters, or an empty one."""
    found = read_map(value, *path[:-1]).get(path[-1]) if path else value
    return found[:most] if isinstance(found, str) else ""


def read_number(value: object, *path: str) -> int | None:
    """Returns the whole number at `path`. None if there is none, or if it exceeds 64 bits."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    return found if abs(found) < 2**63 else None


def read_flag(value: object, *path: str) -> bool | None:
    """Returns the boolean at `path`, or None."""
    found = read_map(value, *path[:-1]).get(path[-1])
    return found if isinstance(found, bool) else None


def read_maps(value: object, *path: str, most: int = MOST_ENTRIES) -> Iterator[Mapping[str, Any]]:
    """Yields the maps in the list at `path`, at most `most`."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if isinstance(found, list):
        yield from (each for each in found[:most] if isinstance(each, Mapping))


def read_texts(value: object, *path: str, most: int = MOST_ENTRIES) -> tuple[str, ...]:
    """Returns the texts in the list at `path`, at most `most`."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if not isinstance(found, list):
        return ()
    return tuple(each[:LONGEST_TEXT] for each in found[:most] if isinstance(each, str))


def read_time(value: object, *path: str) -> datetime | None:
    """Returns the RFC 3339 time at `path` in UTC, or None."""
    return read_moment(read_text(value, *path, most=64))
