"""Reads JSON from the API server. It may be anything: proxies answer too, and objects may have bypassed the schema."""

from typing import Any

from pgrole_controller.kube.errors import BadStream
from pgrole_controller.kube.nesting import read_json


def mapping(value: object) -> dict[str, Any]:
    """Returns the value if it is a mapping, else an empty one: an object may have bypassed the schema."""
    return value if isinstance(value, dict) else {}


def sequence(value: object) -> list[Any]:
    """Returns the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def whole(value: object) -> int:
    """Returns the value if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0


def parse(answer: bytes) -> dict[str, Any]:
    """Parses an answer with one object. Raises BadStream: a proxy may answer 200 with an HTML page."""
    try:
        parsed: dict[str, Any] = read_json(answer)
        metadata_of(parsed)
    except (ValueError, AttributeError) as error:
        raise BadStream(f"the API server's answer is not an object: {len(answer)} bytes") from error
    return parsed


def parse_mapping(answer: bytes) -> dict[str, Any]:
    """Parses an answer that need not be an object, such as the API server's version. Raises BadStream."""
    try:
        return mapping(read_json(answer))
    except ValueError as error:
        raise BadStream(f"the API server's answer is not JSON: {len(answer)} bytes") from error


def metadata_of(obj: dict[str, Any]) -> dict[str, Any]:
    """Raises ValueError if there is none."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError("an object without metadata")
    return metadata
