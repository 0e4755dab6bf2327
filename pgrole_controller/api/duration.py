"""Durations as Go writes them, such as 720h or 1h30m. Settings are read with it too: pydantic only for models."""

import re
from datetime import timedelta
from typing import Any

from pgrole_controller.api.cel import rule, rules

_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|h|m|s))+$"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def read_duration(text: str) -> timedelta:
    """Raises ValueError for what is no duration, and for one that is longer than anything."""
    if not re.fullmatch(_PATTERN, text):
        raise ValueError("not a duration")
    parts = re.findall(r"([0-9.]+)(ms|h|m|s)", text)
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError as error:
        raise ValueError("too long") from error


def between(least: str, most: str, message: str) -> Any:  # noqa: ANN401 -- pydantic's marker
    """The check of a field; `message` is what is said of any other text."""
    from pydantic import AfterValidator
    from pydantic_core import PydanticCustomError

    lowest, highest = read_duration(least), read_duration(most)

    def check(text: str) -> str:
        try:
            fits = lowest <= read_duration(text) <= highest
        except ValueError:
            fits = False
        if not fits:
            raise PydanticCustomError("duration", message)
        return text

    return AfterValidator(check)


def duration_schema(least: str, most: str, message: str) -> dict[str, Any]:
    """The same as the API server checks it."""
    expression = f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')"
    return {"maxLength": 64, "pattern": _PATTERN, **rules(rule(expression, message))}
