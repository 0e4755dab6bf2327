"""Reads JSON from the API server. It may be anything: proxies answer too, and objects may have bypassed the schema.

Its nesting is bounded, so that one object cannot exhaust the stack. Objects that a CRD's schema admits have a dozen
levels. An API server without validation, or a proxy in between, may send thousands. What is nested deeper than DEEPEST
becomes an empty list or map, so the value keeps its type, and whoever reads the object refuses it like any other value
that the schema does not permit.
"""

import json
import re
from typing import Any

from pgrole_controller.kube.errors import BadStream

DEEPEST = 64
#: Bytes of a text that is searched for nested brackets, which takes a second for 16 MiB.
LONGEST_SEARCHED = 16 * 2**20

#: A string that does not end reaches to the end, rather than being read again from each quote in it.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


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


def read_json(text: bytes) -> Any:  # noqa: ANN401 -- any JSON
    """Parses JSON of any depth. Raises ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        if len(text) > LONGEST_SEARCHED:
            message = f"nested too deeply: {len(text)} bytes"
            raise ValueError(message) from None
        return json.loads(_cut_text(text))


def limit_depth(value: Any) -> Any:  # noqa: ANN401 -- any JSON
    """Returns the value itself, or a copy that is cut if it is nested too deeply."""
    return _cut(value, 1) if _is_too_deep(value) else value


def _is_too_deep(value: object) -> bool:
    held = [value]
    for _ in range(DEEPEST):
        held = [
            inner
            for each in held
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not held:
            return False
    return True


def _cut(value: object, depth: int) -> object:
    if not isinstance(value, dict | list):
        return value
    if depth > DEEPEST:
        return type(value)()
    if isinstance(value, dict):
        return {name: _cut(inner, depth + 1) for name, inner in value.items()}
    return [_cut(inner, depth + 1) for inner in value]


def _cut_text(text: bytes) -> bytes:
    """Drops what is inside brackets deeper than DEEPEST."""
    kept: list[bytes] = []
    depth, begin = 0, 0
    for token in _TOKEN.finditer(text):
        bracket = text[token.start()]
        if bracket in b"[{":
            depth += 1
            if depth == DEEPEST + 1:
                kept.append(text[begin : token.end()])
        elif bracket in b"]}":
            if depth == DEEPEST + 1:
                begin = token.start()
            depth -= 1
    if depth <= DEEPEST:
        kept.append(text[begin:])
    return b"".join(kept)
