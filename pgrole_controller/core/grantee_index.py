"""Finds the roles that objects concern, so that a change costs nothing for all the others."""

import re
from collections.abc import Iterable

from pgrole_controller.core.grantee import Grantee
from pgrole_controller.core.object_patterns import schema_patterns
from pgrole_controller.core.observed_database import ObservedDatabase
from pgrole_controller.core.request import Key


class GranteeIndex:
    """The roles with privileges in one database, by oid and by the schemas that their declarations name."""

    def __init__(self, database: str, grantees: Iterable[Grantee]) -> None:
        self._by_oid: dict[int, Key] = {}
        self._by_schema: dict[str, list[Key]] = {}
        self._wide: dict[re.Pattern[str], list[Key]] = {}
        self._on_database: list[Key] = []
        for one in grantees:
            self._by_oid[one.oid] = one.key
            declared = one.declared.get(database)
            if declared is None:
                continue
            if declared.on_database:
                self._on_database.append(one.key)
            names, pattern = schema_patterns(declared)
            for name in names:
                self._by_schema.setdefault(name, []).append(one.key)
            if pattern is not None:
                self._wide.setdefault(pattern, []).append(one.key)

    def concerned(self, observed: ObservedDatabase) -> set[Key]:
        """The roles that may hold something on an object that was read, or declare something for it."""
        index = observed.index
        found = {self._by_oid[oid] for oid in index.grantees if oid in self._by_oid}
        if index.has_database:
            found.update(self._on_database)
        for schema in index.schemas:
            found.update(self._by_schema.get(schema, ()))
        for pattern, keys in self._wide.items():
            if any(map(pattern.fullmatch, index.schemas)):
                found.update(keys)
        return found
