"""What somebody does to a role behind the controller's back, for every mode of detection."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Drift:
    """`{}` stands for the role. `field` is its name in lastDrift, `column` where pg_roles shows it."""

    statement: str
    field: str
    column: str = ""


ATTRIBUTES = (
    Drift("ALTER ROLE {} NOLOGIN", "login", "rolcanlogin"),
    Drift("ALTER ROLE {} CREATEDB", "createdb", "rolcreatedb"),
    Drift("ALTER ROLE {} CREATEROLE", "createrole", "rolcreaterole"),
    Drift("ALTER ROLE {} NOINHERIT", "inherit", "rolinherit"),
    Drift("ALTER ROLE {} CONNECTION LIMIT 99", "connectionLimit", "rolconnlimit"),
    Drift("ALTER ROLE {} VALID UNTIL 'infinity'", "validUntil", "rolvaliduntil"),
    Drift("ALTER ROLE {} VALID UNTIL '-infinity'", "validUntil", "rolvaliduntil"),
    Drift("COMMENT ON ROLE {} IS 'tampered'", "comment", "comment"),
    Drift("COMMENT ON ROLE {} IS NULL", "comment", "comment"),
)
#: Only a superuser takes these away.
POWERFUL = (
    Drift("ALTER ROLE {} SUPERUSER", "superuser", "rolsuper"),
    Drift("ALTER ROLE {} REPLICATION", "replication", "rolreplication"),
    Drift("ALTER ROLE {} BYPASSRLS", "bypassrls", "rolbypassrls"),
)
#: Without those of a role's existence.
OTHERS = (
    Drift("ALTER ROLE {} SET work_mem = '1MB'", "parameters", "rolconfig"),
    Drift("ALTER ROLE {} RESET ALL", "parameters", "rolconfig"),
    Drift("ALTER ROLE {} IN DATABASE template1 SET work_mem = '1MB'", "databaseParameters"),
    Drift("ALTER ROLE {} IN DATABASE template1 RESET ALL", "databaseParameters"),
    Drift("ALTER ROLE {} RENAME TO {}_stolen", "name"),
)
DROPPED = Drift("DROP ROLE {}", "role")
