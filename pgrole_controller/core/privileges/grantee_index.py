"""Finds the roles that objects concern, so that a change costs nothing for all the others."""

import re
from collections.abc import Iterable

from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.object_patterns import compile_privileges
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key


class GranteeIndex:
    """The roles with privileges in one database, by oid and by the schemas that their declarations name."""

    def __init__(self, facts: DatabaseFacts, grantees: Iterable[Grantee]) -> None:
        self._by_oid: dict[int, list[Key]] = {}  # two objects while one takes a role over
        self._by_schema: dict[str, list[Key]] = {}
        self._wide: dict[re.Pattern[str], list[Key]] = {}
        self._on_database: list[Key] = []
        for one in grantees:
            self._by_oid.setdefault(one.oid, []).append(one.key)
            declared = one.declared.get(facts.database)
            if declared is None:
                continue
            if declared.on_database:
                self._on_database.append(one.key)
            compiled = compile_privileges(declared, facts.version)
            for name in compiled.schema_names:
                self._by_schema.setdefault(name, []).append(one.key)
            if compiled.schema_pattern is not None:
                self._wide.setdefault(compiled.schema_pattern, []).append(one.key)

    def concerned(self, observed: ObservedDatabase) -> set[Key]:
        """The roles that may hold something on an object that was read, or declare something for it."""
        index = observed.index
        found = {key for oid in index.grantees for key in self._by_oid.get(oid, ())}
        if index.has_database:
            found.update(self._on_database)
        for schema in index.schemas:
            found.update(self._by_schema.get(schema, ()))
        for pattern, keys in self._wide.items():
            if any(map(pattern.fullmatch, index.schemas)):
                found.update(keys)
        return found
