"""Judges what was read from a server: pure decisions of `doctor`. Each function returns findings of one question."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pgrole_controller.core.database_options import AuditSource, HistoryConfig
from pgrole_controller.core.finding import Finding, FindingState, Remedy, RemedyKind, shell, sql
from pgrole_controller.core.server_facts import (
    ClaimCount,
    EventTriggerFacts,
    HistoryFacts,
    RoleFacts,
    SchemaFacts,
    ServerFacts,
    SessionFacts,
)

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN

_OLDEST = 14
_CLOCK_SECONDS = 5.0
_EXPIRY = timedelta(days=21)
_SPARE = 0.1
_RELOAD = (Remedy(RemedyKind.SQL, "SELECT pg_catalog.pg_reload_conf()"),)
_JSONLOG = 150_000
_SESSIONS = 3


def _set(facts: ServerFacts, name: str, value: str, *, reload: bool = False) -> tuple[Remedy, ...]:
    """ALTER SYSTEM; nothing if the server's command line sets the parameter. `name`, `value`: ours, in SQL."""
    if name in facts.fixed:
        return ()
    return (Remedy(RemedyKind.SQL, f"ALTER SYSTEM SET {name} = {value}"), *(_RELOAD if reload else ()))


def judge_version(area: str, facts: ServerFacts) -> Finding:
    name = f"PostgreSQL {facts.version[:40]}"
    if facts.version_number < _OLDEST * 10_000:
        return Finding(area, "version", PROBLEM, f"{name} is too old: the controller requires {_OLDEST} or later")
    if facts.encoding != "UTF8":
        text = f'home database "{facts.database}" has encoding {facts.encoding}, but UTF8 is required'
        return Finding(area, "version", PROBLEM, text)
    return Finding(area, "version", OK, f'{name}, home database "{facts.database}", primary')


def judge_clock(area: str, facts: ServerFacts) -> Finding:
    """Compares the server's clock with this machine's."""
    if abs(facts.behind) <= _CLOCK_SECONDS + facts.uncertain:
        return Finding(area, "clock", OK, f"differs from this machine's by {abs(facts.behind):.1f} s")
    way = "behind" if facts.behind > 0 else "ahead of"
    text = f"the server is {abs(facts.behind):.0f} s {way} this machine: times in status and history are wrong by that"
    return Finding(area, "clock", WARNING, text, shell("chronyc makestep"))


def judge_encryption(area: str, facts: ServerFacts, sslmode: str, now: datetime) -> Finding:
    """`sslmode`: as declared; empty if a DSN decides."""
    if facts.by_socket:
        return Finding(area, "encryption", OK, "the connection uses a Unix socket")
    if not facts.encrypted:
        text = "the connection is not encrypted" + (f" (sslMode {sslmode})" if sslmode else "")
        offer = "the server offers TLS: use sslMode verify-full"
        if facts.settings.get("ssl") == "off":
            offer = "the server offers no TLS: give it a certificate, and set ssl = on"
        return Finding(area, "encryption", WARNING, f"{text}; {offer}")
    if not facts.verified:
        text = f"{facts.protocol}, but the server's certificate is not verified (sslMode {sslmode or 'require'})"
        return Finding(area, "encryption", WARNING, f"{text}: use verify-full")
    if facts.expires is not None and facts.expires - now < _EXPIRY:
        text = f"{facts.protocol}, but the server's certificate expires at {facts.expires:%Y-%m-%d %H:%M} UTC: renew it"
        return Finding(area, "encryption", WARNING, text)
    end = f", valid until {facts.expires:%Y-%m-%d}" if facts.expires else ""
    return Finding(area, "encryption", OK, f"{facts.protocol}, certificate verified{end}")


def judge_rights(area: str, role: RoleFacts) -> list[Finding]:
    """Whether the role may change roles, log in and read what others do."""
    name = f'role "{role.name}"'
    if not role.superuser and not role.createrole and role.monitors:
        text = f"{name} can only read (pg_monitor): name the controller's role with --login, or use its credentials"
        return [Finding(area, "rights", UNKNOWN, text)]
    findings = [Finding(area, "rights", OK, f"{name} is a superuser" if role.superuser else f"{name} has CREATEROLE")]
    if not role.superuser and not role.createrole:
        text = f"{name} may not change roles: it has neither CREATEROLE nor SUPERUSER"
        findings = [Finding(area, "rights", PROBLEM, text, sql("ALTER ROLE {} CREATEROLE", role.name))]
    if not role.sees_system:
        text = f"{name} cannot identify the server"
        remedy = sql("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {}", role.name)
        findings.append(Finding(area, "rights", PROBLEM, text, remedy))
    if not role.login:
        remedy = sql("ALTER ROLE {} LOGIN", role.name)
        findings.append(Finding(area, "rights", PROBLEM, f"{name} may not log in", remedy))
    if role.expires_soon:
        remedy = sql("ALTER ROLE {} VALID UNTIL 'infinity'", role.name)
        findings.append(Finding(area, "rights", WARNING, f"the password of {name} expires within 14 days", remedy))
    if not role.superuser and not role.monitors:
        text = (
            f"{name} is no member of pg_monitor: it does not see other sessions' statements, so attribution knows less"
        )
        findings.append(Finding(area, "rights", WARNING, text, sql("GRANT pg_monitor TO {}", role.name)))
    return findings


def judge_schema(area: str, schema: SchemaFacts, role: RoleFacts, database: str, version: int) -> list[Finding]:
    """`version`: the one that this controller installs."""
    install = shell('pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"')
    if schema.elsewhere:
        text = f"another database of this server is recorded as the home: {', '.join(schema.elsewhere)}"
        return [Finding(area, "schema pgrole", PROBLEM, text)]
    if schema.owner is None:
        text = f'schema pgrole does not exist in database "{database}"'
        if role.superuser or role.creates:
            return [Finding(area, "schema pgrole", OK, f"{text}; the controller may create it")]
        remedy = sql("GRANT CREATE ON DATABASE {} TO {}", database, role.name)
        return [Finding(area, "schema pgrole", WARNING, f"{text}, and the controller may not create it", remedy)]
    only_looks = not (role.superuser or role.createrole) and role.monitors
    if schema.foreign_parts and not only_looks:
        text = f"roles that are not trusted own parts of it, and the controller calls nothing: {schema.foreign_parts}"
        remedy = sql("DROP SCHEMA pgrole CASCADE", database=database)
        return [Finding(area, "schema pgrole", PROBLEM, f"{text}. Inspect it before you drop it", remedy)]
    findings = [_judge_schema_version(area, schema, role, version, install)]
    if schema.home and not schema.recorded:
        remedy = sql("ALTER DATABASE {} SET pgrole.home = 'on'", database)
        text = f'database "{database}" is not recorded as the home: a second one would not be noticed'
        findings.append(Finding(area, "home database", WARNING, text, remedy))
    return findings


def _judge_schema_version(
    area: str, schema: SchemaFacts, role: RoleFacts, version: int, install: tuple[Remedy, ...]
) -> Finding:
    check = "schema pgrole"
    if schema.version is None:
        if not schema.home:
            return Finding(area, check, PROBLEM, "it has no claims, so this is not the home database: name that one")
        known = "it keeps a history, so it has version 4 or later" if schema.keeps_history else "it is older than 4"
        state = UNKNOWN if schema.keeps_history else WARNING
        return Finding(
            area, check, state, f"its version cannot be read by this login; {known}", install[: state is WARNING]
        )
    if schema.version > version + 1:
        text = f"version {schema.version} is newer than this program knows ({version}): upgrade the program"
        return Finding(area, check, PROBLEM, text)
    if schema.version < version - 1:
        text = f"version {schema.version} is too old for this controller, which needs {version - 1} or later"
        return Finding(area, check, WARNING if role.owns else PROBLEM, text, install)
    if schema.version < version:
        who = "the controller updates it when it connects" if role.owns else "an administrator must update it"
        return Finding(area, check, WARNING, f"version {schema.version} is older than {version}; {who}", install)
    return Finding(area, check, OK, f'version {schema.version}, owner "{schema.owner}"')


def judge_detection(area: str, role: RoleFacts, schema: SchemaFacts, database: str) -> list[Finding]:
    """Which mode Auto chooses, and why not a better one."""
    check, may_watch = "detection", "Auto chooses Watch"
    if not (role.superuser or role.createrole) and role.monitors:
        return [Finding(area, check, UNKNOWN, "it depends on the controller's role: name it with --login")]
    if role.superuser:
        return [Finding(area, check, OK, may_watch)]
    present = schema.owner is not None
    see = sql("GRANT SELECT (oid, xmin) ON pg_catalog.pg_authid TO {}", role.name, database=database)
    if not present and not role.creates:
        remedies = (
            *sql("GRANT CREATE ON DATABASE {} TO {}", database, role.name),
            *(() if role.sees_versions else see),
        )
        text = "Auto chooses Poll, with claims in status: schema pgrole does not exist and may not be created"
        return [Finding(area, check, WARNING, text, remedies)]
    if present and not role.owns:
        if role.uses:
            return [Finding(area, check, OK, f"{may_watch}, with the schema of an administrator")]
        remedies = (
            *sql("GRANT USAGE ON SCHEMA pgrole TO {}", role.name, database=database),
            *sql(
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgrole TO {}",
                role.name,
                database=database,
            ),
            *sql("GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO {}", role.name, database=database),
        )
        text = f'role "{role.name}" may not use schema pgrole, which holds the claims: no session begins'
        return [Finding(area, check, PROBLEM, text, remedies)]
    if not role.sees_versions:
        text = f'Auto chooses Poll: role "{role.name}" may not read oid and xmin of pg_authid'
        return [Finding(area, check, WARNING, text, see)]
    seen = "passwords too" if role.sees_passwords else "changed passwords are not seen"
    return [Finding(area, check, OK, f"{may_watch}; {seen}")]


def judge_connections(
    area: str, facts: ServerFacts, role: RoleFacts, sessions: SessionFacts, databases: int
) -> list[Finding]:
    """`databases`: with managed privileges. Limits of -1 are none."""
    check = "connections"
    needed = _SESSIONS + databases
    findings = []
    free = facts.max_connections - (0 if role.superuser else facts.reserved) - sessions.server
    used = f"{sessions.server} of {facts.max_connections} in use, {facts.reserved} reserved"
    if free < needed:
        more = facts.max_connections + max(needed, 10)
        text = f"{used}: {max(free, 0)} are free, and the controller needs {needed}. Restart the server after this"
        remedy = _set(facts, "max_connections", str(more))
        findings.append(Finding(area, check, WARNING if sessions.role else PROBLEM, text, remedy))
    elif free < _SPARE * facts.max_connections:
        findings.append(Finding(area, check, WARNING, f"{used}: few are free"))
    if not role.superuser and 0 <= role.connection_limit < needed:
        text = f'role "{role.name}" may have {role.connection_limit} connections, and the controller needs {needed}'
        findings.append(Finding(area, check, PROBLEM, text, sql("ALTER ROLE {} CONNECTION LIMIT -1", role.name)))
    if not role.superuser and 0 <= facts.database_limit < _SESSIONS:
        text = (
            f'database "{facts.database}" allows {facts.database_limit} connections; the controller needs {_SESSIONS}'
        )
        findings.append(
            Finding(area, check, PROBLEM, text, sql("ALTER DATABASE {} CONNECTION LIMIT -1", facts.database))
        )
    return findings or [Finding(area, check, OK, f"{used}; the controller needs {needed}")]


def judge_event_triggers(area: str, triggers: EventTriggerFacts, role: RoleFacts) -> list[Finding]:
    check = f'event triggers of "{triggers.database}"'
    database = triggers.database
    findings = []
    if triggers.installed < 2:
        install = shell('pgrole-controller sql --database | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN_OF_THIS_DATABASE"')
        if role.superuser or role.administers:
            text = "not installed; the controller installs them when a PgRole declares privileges there"
        else:
            text = "not installed, and the controller may not create them: privileges are polled"
        findings.append(Finding(area, check, OK if role.superuser or role.administers else WARNING, text, install))
    for name in triggers.disabled:
        text = f'"{name}" does not fire in every session, so changes are missed'
        remedy = sql("ALTER EVENT TRIGGER {} ENABLE ALWAYS", name, database=database)
        findings.append(Finding(area, check, PROBLEM, text, remedy))
    if triggers.switched_off:
        remedy = sql("ALTER DATABASE {} SET event_triggers = on", database)
        text = "event_triggers is off for the database or for all roles, so changes are missed"
        findings.append(Finding(area, check, PROBLEM, text, remedy))
    if triggers.others:
        remedies = tuple(
            one for name in triggers.others for one in sql("ALTER EVENT TRIGGER {} DISABLE", name, database=database)
        )
        text = "roles that are not trusted own event triggers, and the controller changes nothing there: "
        findings.append(Finding(area, check, PROBLEM, text + ", ".join(triggers.others), remedies))
    return findings or [Finding(area, check, OK, "installed and enabled")]


def judge_attribution(area: str, facts: ServerFacts, role: RoleFacts, audit: AuditSource) -> list[Finding]:
    """Which source names who changes roles. `audit`: what the PgServer allows."""
    check, settings = "attribution", facts.settings
    libraries = settings.get("shared_preload_libraries")
    if libraries is None:
        text = "shared_preload_libraries is hidden from this login: connect as a member of pg_monitor"
        return [Finding(area, check, UNKNOWN, text)]
    logs = "jsonlog" in settings.get("log_destination", "") and settings.get("logging_collector") == "on"
    if audit is not AuditSource.NEVER and facts.version_number < _JSONLOG:
        return [Finding(area, check, WARNING, f"auditLog is {audit.value}, but PostgreSQL 14 writes no jsonlog")]
    findings = []
    if audit is not AuditSource.NEVER:
        findings = _judge_log(area, facts, role, audit, logs=logs, pgaudit="pgaudit" in libraries)
    if findings:
        return findings
    if audit is not AuditSource.NEVER:
        return [Finding(area, check, OK, f"{audit.value}: the log names who changes roles")]
    better = (
        "pgaudit is loaded: set attribution.auditLog of the PgServer to Pgaudit, " if "pgaudit" in libraries else ""
    )
    tier = "pg_stat_statements and sessions" if "pg_stat_statements" in libraries else "sessions only"
    size = settings.get("track_activity_query_size", "")
    small = size.isdecimal() and int(size) < 1024
    findings = [Finding(area, check, OK, f"{tier}; logs are not read ({better}see docs/attribution.md)")]
    if small:
        text = f"track_activity_query_size is {size}: long statements are cut. Restart the server after this"
        remedy = _set(facts, "track_activity_query_size", "4096")
        findings.append(Finding(area, check, WARNING, text, remedy))
    return findings


def _judge_log(
    area: str, facts: ServerFacts, role: RoleFacts, audit: AuditSource, *, logs: bool, pgaudit: bool
) -> list[Finding]:
    check, findings = "attribution", []
    if not logs:
        text = f"auditLog is {audit.value}, but the server writes no jsonlog. Restart it after this"
        remedies = (
            *_set(facts, "logging_collector", "on"),
            *_set(facts, "log_destination", "'jsonlog'"),
        )
        findings.append(Finding(area, check, WARNING, text, remedies))
    if audit is AuditSource.PGAUDIT and not pgaudit:
        text = "auditLog is Pgaudit, but shared_preload_libraries does not name pgaudit"
        findings.append(Finding(area, check, WARNING, f"{text}: install it, add it there, and restart the server"))
    elif audit is AuditSource.PGAUDIT and not {"role", "all", "ddl"} & _words(facts.settings.get("pgaudit.log", "")):
        remedies = _set(facts, "pgaudit.log", "'role'", reload=True)
        findings.append(Finding(area, check, WARNING, "pgaudit.log does not include role", remedies))
    if audit is AuditSource.STATEMENTS and facts.settings.get("log_statement") not in ("ddl", "mod", "all"):
        remedies = _set(facts, "log_statement", "'ddl'", reload=True)
        findings.append(Finding(area, check, WARNING, "auditLog is Statements, but log_statement is none", remedies))
    if not role.superuser and not role.reads_logs:
        remedies = (
            *sql("GRANT pg_monitor TO {}", role.name),
            *sql(
                "GRANT EXECUTE ON FUNCTION pg_catalog.pg_read_binary_file(text, bigint, bigint, boolean) TO {}",
                role.name,
                database=facts.database,
            ),
            *sql(
                "GRANT EXECUTE ON FUNCTION pg_catalog.pg_stat_file(text, boolean) TO {}",
                role.name,
                database=facts.database,
            ),
        )
        findings.append(Finding(area, check, WARNING, f'role "{role.name}" may not read the log', remedies))
    return findings


def _words(text: str) -> set[str]:
    return {word.strip().lower() for word in text.split(",")}


def judge_history(area: str, history: HistoryFacts, config: HistoryConfig, now: datetime) -> Finding:
    size = (
        f"{history.rows} drifts, {history.bytes / 2**20:.1f} MiB, kept for {config.retention_seconds / 86400:.0f} days"
    )
    if history.rows > config.max_rows * 1.1:
        return Finding(area, "history", WARNING, f"{size}: more than history.maxRows ({config.max_rows}) are kept")
    # partitions of whole months are emptied
    limit = timedelta(seconds=config.retention_seconds) + timedelta(days=63)
    if history.oldest is not None and now - history.oldest > limit:
        return Finding(area, "history", WARNING, f"{size}: the oldest is of {history.oldest:%Y-%m-%d}, not pruned")
    return Finding(area, "history", OK, size)


def judge_suspension(area: str, settings: Sequence[tuple[bool, bool]], role: RoleFacts, database: str) -> Finding:
    """`settings`: for each that suspends changes, whether it is of the database and whether it is of the role."""
    if not settings:
        return Finding(area, "suspended", OK, "changes are not suspended")
    remedies: tuple[Remedy, ...] = ()
    for of_database, of_role in settings:
        if of_role and of_database:
            remedies += sql("ALTER ROLE {} IN DATABASE {} RESET pgrole.suspend", role.name, database)
        elif of_role:
            remedies += sql("ALTER ROLE {} RESET pgrole.suspend", role.name)
        elif of_database:
            remedies += sql("ALTER DATABASE {} RESET pgrole.suspend", database)
        else:
            remedies += (Remedy(RemedyKind.SQL, "ALTER ROLE ALL RESET pgrole.suspend"),)
    return Finding(area, "suspended", WARNING, "pgrole.suspend is on: the controller changes nothing", remedies)


def judge_claims(area: str, counts: Sequence[ClaimCount], cluster: str | None) -> list[Finding]:
    """`cluster`: id of the cluster that was asked; None if none was."""
    check = "claims"
    total = sum(count.claims for count in counts)
    released = sum(count.released for count in counts)
    others = [count for count in counts if count.cluster != cluster and count.claims > count.released]
    findings = [Finding(area, check, OK, f"{total} claims of {len(counts)} clusters, {released} released")]
    if cluster is not None and others:
        names = ", ".join(f"{count.cluster} ({count.claims - count.released})" for count in others[:5])
        text = f"other clusters hold claims: {names}. If one no longer exists, release its claims: docs/claims.md"
        remedy = shell("pgrole-controller claims list")
        findings.append(Finding(area, check, WARNING, text, remedy))
    return findings


def judge_passwords(area: str, facts: ServerFacts, md5_roles: int | None) -> list[Finding]:
    """`md5_roles`: roles with an MD5 verifier; None if this login may not see that."""
    check, findings = "passwords", []
    if facts.settings.get("password_encryption") == "md5":
        remedies = _set(facts, "password_encryption", "'scram-sha-256'", reload=True)
        text = "password_encryption is md5: passwords that others set are stored as MD5"
        findings.append(Finding(area, check, WARNING, text, remedies))
    if md5_roles:
        text = f"{md5_roles} roles log in with an MD5 verifier: set their passwords again, with SCRAM"
        findings.append(Finding(area, check, WARNING, text))
    known = "" if md5_roles is not None else "; this login may not see verifiers"
    return findings or [Finding(area, check, OK, f"new passwords are stored as SCRAM{known}")]


def judge_settings(area: str, facts: ServerFacts) -> list[Finding]:
    """Settings of the server that are known to hurt."""
    check, findings, settings = "settings", [], facts.settings
    if settings.get("max_prepared_transactions", "0") != "0":
        text = "max_prepared_transactions is not 0: privilege events send no notification, so they are polled"
        findings.append(Finding(area, check, WARNING, text))
    if settings.get("session_replication_role", "origin") == "replica":
        remedies = _set(facts, "session_replication_role", "origin", reload=True)
        findings.append(Finding(area, check, WARNING, "session_replication_role is replica for all sessions", remedies))
    if settings.get("fsync") == "off":
        remedies = _set(facts, "fsync", "on", reload=True)
        findings.append(Finding(area, check, WARNING, "fsync is off: a crash can lose claims and roles", remedies))
    return findings or [Finding(area, check, OK, "no setting is known to cause problems")]


def judge_old_transactions(area: str, found: Sequence[tuple[str, int]], *, sees_all: bool) -> Finding:
    """`found`: what holds back vacuum, and for how many seconds."""
    check = "old transactions"
    if found:
        texts = ", ".join(f"{what} for {seconds // 3600} h" for what, seconds in found)
        return Finding(area, check, WARNING, f"vacuum is held back by {texts}: end it")
    if not sees_all:
        return Finding(area, check, UNKNOWN, "other sessions are hidden: connect as a member of pg_monitor")
    return Finding(area, check, OK, "no transaction is older than an hour")
