"""core/folding/public_privileges: what an export says about PUBLIC."""

from pgrole_controller.core.folding.public_privileges import describe_public
from pgrole_controller.core.privileges.acl import PUBLIC, AclEntry, DatabaseObject, ObjectId, ObjectKind, ObservedAcl
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts

OWNER = 16500


def acl(kind: ObjectKind, name: str, privileges: str, schema: str = "app") -> ObservedAcl:
    """`privileges`: words; `SELECT:id` means column id."""
    obj = DatabaseObject(ObjectId("pg_class", 20000), kind, schema, name, OWNER, "own")
    words = (word.partition(":") for word in privileges.split())
    return ObservedAcl(obj, tuple(AclEntry(PUBLIC, OWNER, "own", one, column=column) for one, _, column in words))


def describe(*acls: ObservedAcl) -> tuple[str, ...]:
    return describe_public(ObservedDatabase(DatabaseFacts("orders", 180000), acls))


def test_defaults_are_left_out() -> None:
    found = describe(
        acl(ObjectKind.DATABASE, "orders", "CONNECT TEMPORARY CREATE", ""),
        acl(ObjectKind.SCHEMA, "public", "USAGE", "public"),
        acl(ObjectKind.SCHEMA, "app", "USAGE"),
        acl(ObjectKind.ROUTINE, "fn", "EXECUTE"),
        acl(ObjectKind.TABLE, "one", "SELECT"),
        acl(ObjectKind.VIEW, "two", "SELECT"),
        acl(ObjectKind.SEQUENCE, "seq", "USAGE"),
    )
    assert found == (
        "PUBLIC has CREATE on the database",
        "PUBLIC has USAGE on schema app",
        "PUBLIC has USAGE on 1 sequence in schema app",
        "PUBLIC has SELECT on 2 tables in schema app",
    )


def test_privileges_on_types_servers_and_large_objects_are_not_those_of_their_schema_or_the_database() -> None:
    """An explicit ACL of a type also has PUBLIC's default."""
    found = describe(
        acl(ObjectKind.TYPE, "t", "USAGE"),
        acl(ObjectKind.LANGUAGE, "plperl", "USAGE", ""),
        acl(ObjectKind.FOREIGN_SERVER, "lake", "USAGE", ""),
        acl(ObjectKind.LARGE_OBJECT, "4711", "SELECT", ""),
    )
    assert found == ()


def test_privileges_on_columns_are_not_those_on_the_table() -> None:
    found = describe(
        acl(ObjectKind.TABLE, "people", "SELECT:id SELECT:name"),
        acl(ObjectKind.TABLE, "orders", "SELECT UPDATE:id SELECT:id"),
    )
    assert found == (
        "PUBLIC has SELECT on columns of 1 table in schema app",
        "PUBLIC has UPDATE on columns of 1 table in schema app",
        "PUBLIC has SELECT on 1 table in schema app",
    )
