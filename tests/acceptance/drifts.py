"""Drifts of a role, for every detection mode."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tampering:
    """`{}` is the role. `field` is its name in lastDrift, `column` its column in pg_roles."""

    statement: str
    field: str
    column: str = ""


ATTRIBUTES = (
    Tampering("ALTER ROLE {} NOLOGIN", "login", "rolcanlogin"),
    Tampering("ALTER ROLE {} CREATEDB", "createdb", "rolcreatedb"),
    Tampering("ALTER ROLE {} CREATEROLE", "createrole", "rolcreaterole"),
    Tampering("ALTER ROLE {} NOINHERIT", "inherit", "rolinherit"),
    Tampering("ALTER ROLE {} CONNECTION LIMIT 99", "connectionLimit", "rolconnlimit"),
    Tampering("ALTER ROLE {} VALID UNTIL 'infinity'", "validUntil", "rolvaliduntil"),
    Tampering("ALTER ROLE {} VALID UNTIL '-infinity'", "validUntil", "rolvaliduntil"),
    Tampering("COMMENT ON ROLE {} IS 'tampered'", "comment", "comment"),
    Tampering("COMMENT ON ROLE {} IS NULL", "comment", "comment"),
)
#: Only a superuser can revoke these.
POWERFUL = (
    Tampering("ALTER ROLE {} SUPERUSER", "superuser", "rolsuper"),
    Tampering("ALTER ROLE {} REPLICATION", "replication", "rolreplication"),
    Tampering("ALTER ROLE {} BYPASSRLS", "bypassrls", "rolbypassrls"),
)
#: All except creating and dropping the role.
OTHERS = (
    Tampering("ALTER ROLE {} SET work_mem = '1MB'", "parameters", "rolconfig"),
    Tampering("ALTER ROLE {} RESET ALL", "parameters", "rolconfig"),
    Tampering("ALTER ROLE {} IN DATABASE template1 SET work_mem = '1MB'", "databaseParameters"),
    Tampering("ALTER ROLE {} IN DATABASE template1 RESET ALL", "databaseParameters"),
    Tampering("ALTER ROLE {} RENAME TO {}_stolen", "name"),
)
DROPPED = Tampering("DROP ROLE {}", "role")
