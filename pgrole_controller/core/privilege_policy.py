"""Which privileges the objects of a namespace may declare on an object of a database, by its owner and name."""

from dataclasses import dataclass

from pgrole_controller.core.acl import DatabaseObject

@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What a decision about a database's privileges has to know of it besides its objects.

    - `version`: server_version_num, e.g. 180004.
    - `superusers`: oids of roles with SUPERUSER, and of the controller's own roles' owners.
    - `own_roles`: oids of the controller's own roles.
    - `search_path_schemas`: schemas in the default search_path of the database, the server or a role; `public` and
      schemas with the name of a role count anyway.
    """

    database: str
    version: int
    superusers: frozenset[int] = frozenset()
    own_roles: frozenset[int] = frozenset()
    search_path_schemas: frozenset[str] = frozenset()
