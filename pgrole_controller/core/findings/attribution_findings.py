"""Judges which source names who changes roles: pure decisions of `doctor` about logs and statistics."""

from pgrole_controller.core.audit_line import JSONLOG_VERSION
from pgrole_controller.core.findings.finding import Finding, FindingState, sql
from pgrole_controller.core.findings.server_facts import RoleFacts, ServerFacts
from pgrole_controller.core.findings.server_findings import alter_system
from pgrole_controller.core.server_options import AuditSource

OK, WARNING, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.UNKNOWN

#: What both settings can list. A remedy keeps these: others may rely on them.
_DESTINATIONS = ("stderr", "csvlog", "jsonlog", "syslog", "eventlog")
_CLASSES = ("all", "ddl", "function", "misc", "misc_set", "read", "role", "write")


def judge_attribution(area: str, facts: ServerFacts, role: RoleFacts, audit: AuditSource) -> list[Finding]:
    """Which source names who changes roles. `audit`: what the PgServer allows."""
    check, settings = "attribution", facts.settings
    libraries = settings.get("shared_preload_libraries")
    if libraries is None:
        text = "shared_preload_libraries is hidden from this login: connect as a member of pg_monitor"
        return [Finding(area, check, UNKNOWN, text)]
    logs = "jsonlog" in settings.get("log_destination", "") and settings.get("logging_collector") == "on"
    if audit is not AuditSource.NEVER and facts.version_number < JSONLOG_VERSION:
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
        remedy = alter_system(facts, "track_activity_query_size", "4096")
        findings.append(Finding(area, check, WARNING, text, remedy))
    return findings


def _judge_log(
    area: str, facts: ServerFacts, role: RoleFacts, audit: AuditSource, *, logs: bool, pgaudit: bool
) -> list[Finding]:
    check, findings = "attribution", []
    if not logs:
        text = f"auditLog is {audit.value}, but the server writes no jsonlog. Restart it after this"
        remedies = (
            *alter_system(facts, "logging_collector", "on"),
            *alter_system(facts, "log_destination", _join(facts, "log_destination", _DESTINATIONS, "jsonlog")),
        )
        findings.append(Finding(area, check, WARNING, text, remedies))
    if audit is AuditSource.PGAUDIT and not pgaudit:
        text = "auditLog is Pgaudit, but shared_preload_libraries does not name pgaudit"
        findings.append(Finding(area, check, WARNING, f"{text}: install it, add it there, and restart the server"))
    elif audit is AuditSource.PGAUDIT and not _audits_roles(facts.settings.get("pgaudit.log", "")):
        classes = _join(facts, "pgaudit.log", (*_CLASSES, *(f"-{name}" for name in _CLASSES if name != "role")), "role")
        remedies = alter_system(facts, "pgaudit.log", classes, reload=True)
        findings.append(Finding(area, check, WARNING, "pgaudit.log does not include role", remedies))
    if audit is AuditSource.STATEMENTS and facts.settings.get("log_statement") not in ("ddl", "mod", "all"):
        remedies = alter_system(facts, "log_statement", "'ddl'", reload=True)
        findings.append(Finding(area, check, WARNING, "auditLog is Statements, but log_statement is none", remedies))
    language = facts.settings.get("lc_messages", "")
    if audit is AuditSource.STATEMENTS and not _is_english(language):
        text = f"auditLog is Statements, but lc_messages is {language[:40]}: translated lines are not recognised"
        remedies = alter_system(facts, "lc_messages", "'C'", reload=True)
        findings.append(Finding(area, check, WARNING, text, remedies))
    if role.only_looks and not role.reads_logs:
        text = "whether the log may be read depends on the controller's role: name it with --login"
        findings.append(Finding(area, check, UNKNOWN, text))
    elif not role.superuser and not role.reads_logs:
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


def _is_english(locale: str) -> bool:
    """Whether messages are in English in this locale. The empty one is the server's environment, which is not known."""
    return locale in ("", "C", "POSIX") or locale.lower().startswith(("c.", "en_", "en-", "english"))


def _audits_roles(setting: str) -> bool:
    """Whether pgaudit.log includes role, which ddl does not. A later entry of the list overrides an earlier one."""
    found = False
    for word in _words(setting):
        if word.removeprefix("-") in ("role", "all"):
            found = not word.startswith("-")
    return found


def _join(facts: ServerFacts, name: str, known: tuple[str, ...], more: str) -> str:
    """Returns a list in SQL: what the setting lists now, and one more."""
    kept = [word for word in _words(facts.settings.get(name, "")) if word in known and word != more]
    return f"'{','.join((*kept, more))}'"


def _words(text: str) -> list[str]:
    return [word.strip().lower() for word in text.split(",")]
