"""Lets schemas with the same declaration share one pattern, where there are more than an object can list individually.

A pattern also applies to schemas that are created later. So it is used only if there are too many schemas, and every
existing schema that matches has the same declaration. Schemas that need exact names share none.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pgrole_controller.core.folding.schema_folding import FoldedSchema
from pgrole_controller.core.names import is_pattern
from pgrole_controller.core.privileges.grantee import ObjectPrivileges, SchemaAccess

#: Minimum number of schemas that share a pattern.
_LEAST = 3

_Item = TypeVar("_Item", SchemaAccess, ObjectPrivileges)


def share_schemas(
    folded: Mapping[str, FoldedSchema], existing: frozenset[str], most_schemas: int, most_objects: int
) -> tuple[list[SchemaAccess], list[ObjectPrivileges]]:
    """Returns the access and the objects of all schemas, with patterns of schemas where they exceed the limits."""
    access = [one.access for one in folded.values() if one.access is not None]
    objects = [item for one in folded.values() for item in one.objects]
    exact = frozenset(name for name, one in folded.items() if one.exact)
    if len(access) > most_schemas:
        access = list(_share(access, sorted(existing), exact))
    if len(objects) > most_objects:
        objects = list(_share(objects, sorted(existing), exact))
    return access, objects


def _share(items: Sequence[_Item], existing: Sequence[str], exact: frozenset[str]) -> Iterator[_Item]:
    yield from (item for item in items if item.schema in exact)
    same: dict[object, list[_Item]] = {}
    for item in items:
        if item.schema in exact:
            continue
        same.setdefault(replace(item, schema=""), []).append(item)
    for some in same.values():
        by_schema = {item.schema: item for item in some}
        for pattern, schemas in _patterns(sorted(by_schema), existing):
            yield replace(by_schema[schemas[0]], schema=pattern)


def _patterns(schemas: list[str], existing: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields patterns that match only these of the existing schemas, each with the schemas it matches. Arguments are
    sorted.
    """
    prefix = _common_prefix(schemas)
    usable = len(schemas) >= _LEAST and prefix and not is_pattern(prefix) and len(prefix.encode()) < 63
    if usable and _matches_only(prefix, frozenset(schemas), existing):
        yield f"{prefix}*", schemas
        return
    by_next: dict[str, list[str]] = {}
    for name in schemas:
        by_next.setdefault(name[: len(prefix) + 1], []).append(name)
    if len(by_next) == 1 or len(schemas) < _LEAST:
        yield from ((name, [name]) for name in schemas)
        return
    for some in by_next.values():
        yield from _patterns(some, existing)


def _matches_only(prefix: str, schemas: frozenset[str], existing: Sequence[str]) -> bool:
    at = bisect_left(existing, prefix)
    while at < len(existing) and existing[at].startswith(prefix):
        if existing[at] not in schemas:
            return False
        at += 1
    return True


def _common_prefix(names: Sequence[str]) -> str:
    first, last = min(names), max(names)
    length = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:length]
