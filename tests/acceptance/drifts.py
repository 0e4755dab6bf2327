"""What somebody does to a role behind the controller's back, for every mode of detection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tampering:
    """`{}` stands for the role. `field` is its name in lastDrift, `column` where pg_roles shows it."""

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
#: Only a superuser takes these away.
POWERFUL = (
    Tampering("ALTER ROLE {} SUPERUSER", "superuser", "rolsuper"),
    Tampering("ALTER ROLE {} REPLICATION", "replication", "rolreplication"),
    Tampering("ALTER ROLE {} BYPASSRLS", "bypassrls", "rolbypassrls"),
)
#: Without those of a role's existence.
OTHERS = (
    Tampering("ALTER ROLE {} SET work_mem = '1MB'", "parameters", "rolconfig"),
    Tampering("ALTER ROLE {} RESET ALL", "parameters", "rolconfig"),
    Tampering("ALTER ROLE {} IN DATABASE template1 SET work_mem = '1MB'", "databaseParameters"),
    Tampering("ALTER ROLE {} IN DATABASE template1 RESET ALL", "databaseParameters"),
    Tampering("ALTER ROLE {} RENAME TO {}_stolen", "name"),
)
DROPPED = Tampering("DROP ROLE {}", "role")
