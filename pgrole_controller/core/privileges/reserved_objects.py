"""Objects that patterns never match: those of PostgreSQL, of the controller, of extensions and of sessions."""

from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.names import is_pattern, name_some
from pgrole_controller.core.policy import FIRST_NORMAL_OID
from pgrole_controller.core.privileges.acl import MAINTAIN_SINCE, DatabaseObject, ObjectKind
from pgrole_controller.core.privileges.grantee import DatabasePrivileges

#: Schemas that PostgreSQL was initialized with, except public. Of their objects, only those of extensions are managed.
POSTGRESQL_SCHEMAS = frozenset({"pg_catalog", "information_schema"})

#: What to do about a declaration that concerns these objects.
NOT_MANAGED = (
    "privileges on PostgreSQL's own objects are not managed: remove them from spec, and list a predefined role in "
    "memberOf or have a superuser grant them"
)

#: The schema of the controller's own objects. No rule opens it.
OWN_SCHEMA = "pgrole"

#: Schemas whose objects are never matched by a pattern.
SYSTEM_SCHEMAS = POSTGRESQL_SCHEMAS | {OWN_SCHEMA}

#: Prefixes of schemas that belong to sessions, or to PostgreSQL's storage.
TEMPORARY_SCHEMAS = ("pg_temp_", "pg_toast")


def is_reserved(obj: DatabaseObject) -> bool:
    """Tells whether only an exact name may match: objects of PostgreSQL, of the controller and of extensions. Schema
    `public` comes with every database, but is for its users.
    """
    if obj.extension or is_of_system(obj.schema):
        return True
    return obj.id.oid < FIRST_NORMAL_OID and not (
        obj.kind is ObjectKind.DATABASE or (obj.kind is ObjectKind.SCHEMA and obj.name == "public")
    )


def is_of_system(schema: str) -> bool:
    return schema in SYSTEM_SCHEMAS or schema.startswith(TEMPORARY_SCHEMAS)


def check_declarable(declared: DatabasePrivileges, version: int) -> Refused | None:
    """Returns which part of the declaration no server supports, or not this version (server_version_num); None if none.

    Of the schemas of PostgreSQL, only objects of extensions can be declared, by exact names.
    """
    where = f'spec.privileges: database "{declared.database}"'
    if version < MAINTAIN_SINCE:
        for index, one in enumerate(declared.objects):
            if "MAINTAIN" in one.privileges:
                return Refused(
                    Reason.INVALID_SPEC,
                    f"{where}: objects[{index}].privileges: MAINTAIN requires PostgreSQL 17 or later, this server has "
                    f"{version // 10000}: remove it",
                )
    own = [f"schema {one.schema}" for one in declared.schemas if one.schema in POSTGRESQL_SCHEMAS]
    for index, one in enumerate(declared.objects):
        if one.schema in POSTGRESQL_SCHEMAS:
            own += [f"{one.schema}.{name} (objects[{index}].names)" for name in one.names if is_pattern(name)]
    if own:
        return Refused(Reason.INVALID_SPEC, f"{where}: {name_some(own, most=1)}: {NOT_MANAGED}")
    return None
