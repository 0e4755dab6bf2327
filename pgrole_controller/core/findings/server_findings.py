"""Judges one PostgreSQL server and the controller's rights there: pure decisions of `doctor`.

Each function returns findings of one question. Those about schema pgrole are in `schema_findings`, those about who
changes roles in `attribution_findings`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pgrole_controller.core.findings.finding import Finding, FindingState, Remedy, RemedyKind, shell, sql
from pgrole_controller.core.findings.server_facts import RoleFacts, ServerFacts, SessionFacts
from pgrole_controller.core.password import within_bounds
from pgrole_controller.core.state import OLDEST_VERSION

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN

_CLOCK_SECONDS = 5.0
_EXPIRY = timedelta(days=21)
_SPARE = 0.1
_RELOAD = (Remedy(RemedyKind.SQL, "SELECT pg_catalog.pg_reload_conf()"),)
_SESSIONS = 3


def alter_system(facts: ServerFacts, name: str, value: str, *, reload: bool = False) -> tuple[Remedy, ...]:
    """ALTER SYSTEM; nothing if the server's command line sets the parameter. `name`, `value`: ours, in SQL."""
    if name in facts.fixed:
        return ()
    return (Remedy(RemedyKind.SQL, f"ALTER SYSTEM SET {name} = {value}"), *(_RELOAD if reload else ()))


def judge_version(area: str, facts: ServerFacts) -> Finding:
    name = f"PostgreSQL {facts.version[:40]}"
    if facts.version_number < OLDEST_VERSION * 10_000:
        return Finding(
            area, "version", PROBLEM, f"{name} is too old: the controller requires {OLDEST_VERSION} or later"
        )
    if facts.encoding != "UTF8":
        text = f'home database "{facts.database}" has encoding {facts.encoding}, but UTF8 is required'
        return Finding(area, "version", PROBLEM, text)
    return Finding(area, "version", OK, f'{name}, home database "{facts.database}", primary')


def judge_clock(area: str, facts: ServerFacts) -> Finding:
    """Compares the server's clock with this machine's."""
    if abs(facts.behind) <= _CLOCK_SECONDS + facts.uncertain:
        return Finding(area, "clock", OK, f"differs from this machine's by {abs(facts.behind):.1f} s")
    way = "behind" if facts.behind > 0 else "ahead of"
    text = (
        f"the server is {abs(facts.behind):.0f} s {way} this machine, and times in status and history may be wrong by "
        "that: set the clock of the machine that is wrong; there run"
    )
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
    if role.only_looks:
        text = f"{name} can only read (pg_monitor): name the controller's role with --login, or use its credentials"
        return [Finding(area, "privileges", UNKNOWN, text)]
    findings = [
        Finding(area, "privileges", OK, f"{name} is a superuser" if role.superuser else f"{name} has CREATEROLE")
    ]
    if not role.superuser and not role.createrole:
        text = (
            f"{name} may not change roles: it has neither CREATEROLE nor SUPERUSER. If the controller has "
            "another role, name that with --login; if it has this one, run"
        )
        findings = [Finding(area, "privileges", PROBLEM, text, sql("ALTER ROLE {} CREATEROLE", role.name))]
    if not role.sees_system:
        text = f"{name} cannot identify the server"
        remedy = sql("GRANT EXECUTE ON FUNCTION pg_catalog.pg_control_system() TO {}", role.name)
        findings.append(Finding(area, "privileges", PROBLEM, text, remedy))
    if not role.login:
        remedy = sql("ALTER ROLE {} LOGIN", role.name)
        findings.append(Finding(area, "privileges", PROBLEM, f"{name} may not log in", remedy))
    if role.expires_soon:
        remedy = sql("ALTER ROLE {} VALID UNTIL 'infinity'", role.name)
        findings.append(Finding(area, "privileges", WARNING, f"the password of {name} expires within 14 days", remedy))
    if not role.superuser and not role.monitors:
        text = (
            f"{name} is not a member of pg_monitor: it does not see other sessions' statements, so attribution knows "
            "less"
        )
        findings.append(Finding(area, "privileges", WARNING, text, sql("GRANT pg_monitor TO {}", role.name)))
    return findings


def judge_connections(
    area: str, facts: ServerFacts, role: RoleFacts, sessions: SessionFacts, databases: int
) -> list[Finding]:
    """`databases`: those with managed privileges that have a connection at once. Limits of -1 are none."""
    check = "connections"
    needed = _SESSIONS + databases
    findings = []
    # a superuser's sessions with databases leave the reserved connections alone, too
    reserved = 0 if role.superuser and not databases else facts.reserved
    free = facts.max_connections - reserved - sessions.server
    used = f"{sessions.server} of {facts.max_connections} in use, {facts.reserved} reserved"
    if free < needed:
        more = facts.max_connections + max(needed, 10)
        text = f"{used}: {max(free, 0)} are free, and the controller needs {needed}. Restart the server after this"
        remedy = alter_system(facts, "max_connections", str(more))
        findings.append(Finding(area, check, WARNING if sessions.role else PROBLEM, text, remedy))
    elif free < _SPARE * facts.max_connections:
        findings.append(Finding(area, check, WARNING, f"{used}: few are free"))
    if not (role.superuser or role.only_looks) and 0 <= role.connection_limit < needed:
        text = f'role "{role.name}" may have {role.connection_limit} connections, and the controller needs {needed}'
        findings.append(Finding(area, check, PROBLEM, text, sql("ALTER ROLE {} CONNECTION LIMIT -1", role.name)))
    if not role.superuser and 0 <= facts.database_limit < _SESSIONS:
        state = WARNING if role.only_looks else PROBLEM  # it does not hold for a controller that is a superuser
        text = (
            f'database "{facts.database}" allows {facts.database_limit} connections; the controller needs {_SESSIONS}'
        )
        findings.append(Finding(area, check, state, text, sql("ALTER DATABASE {} CONNECTION LIMIT -1", facts.database)))
    return findings or [Finding(area, check, OK, f"{used}; the controller needs {needed}")]


def judge_passwords(area: str, facts: ServerFacts, md5_roles: int | None) -> list[Finding]:
    """`md5_roles`: roles with an MD5 verifier; None if this login may not see that."""
    check, findings = "passwords", []
    if facts.settings.get("password_encryption") == "md5":
        remedies = alter_system(facts, "password_encryption", "'scram-sha-256'", reload=True)
        text = "password_encryption is md5: passwords that others set are stored as MD5"
        findings.append(Finding(area, check, WARNING, text, remedies))
    iterations = facts.settings.get("scram_iterations", "")  # since PostgreSQL 16
    if iterations.isdecimal() and (used := within_bounds(int(iterations))) != int(iterations):
        remedies = alter_system(facts, "scram_iterations", str(used), reload=True)
        text = (
            f"scram_iterations is {iterations}, but the controller uses {used}: if someone sets a declared password "
            "again, the controller sets it once more"
        )
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
        remedies = alter_system(facts, "session_replication_role", "origin", reload=True)
        findings.append(Finding(area, check, WARNING, "session_replication_role is replica for all sessions", remedies))
    if settings.get("fsync") == "off":
        remedies = alter_system(facts, "fsync", "on", reload=True)
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
