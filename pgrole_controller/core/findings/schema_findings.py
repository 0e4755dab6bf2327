"""Judges schema pgrole, what it stores, and how changes are noticed: pure decisions of `doctor`."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from pgrole_controller.core.ddl import grants_in_schema
from pgrole_controller.core.findings.finding import Finding, FindingState, Remedy, RemedyKind, shell, sql
from pgrole_controller.core.findings.server_facts import (
    ClaimCount,
    EventTriggerFacts,
    HistoryFacts,
    RoleFacts,
    SchemaFacts,
)
from pgrole_controller.core.names import count_things
from pgrole_controller.core.server_options import DatabaseMode, HistoryConfig

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN

_ON_ITS_ROLE = "depends on the controller's role: name it with --login"
_INSTALL = shell('pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"')
_INTO_DATABASE = 'psql -v ON_ERROR_STOP=1 "$ADMIN_DSN_OF_THIS_DATABASE"'
_INSTALL_DATABASE = shell(f"pgrole-controller sql --database | {_INTO_DATABASE}")
_INSTALL_DATABASE_AGAIN = shell(
    f"{{ pgrole-controller sql --remove; pgrole-controller sql --database; }} | {_INTO_DATABASE}"
)


def judge_schema(
    area: str, schema: SchemaFacts, role: RoleFacts, database: str, version: int, *, may_install: bool
) -> list[Finding]:
    """`version`: the one that this controller installs, if it `may_install` anything."""
    if schema.elsewhere:
        text = f"another database of this server is recorded as the home: {', '.join(schema.elsewhere)}"
        return [Finding(area, "schema pgrole", PROBLEM, text)]
    if schema.owner is None:
        text = f'schema pgrole does not exist in database "{database}"'
        if schema.publications:
            return [Finding(area, "schema pgrole", WARNING, f"{text}, and {_publishes(schema.publications)}")]
        if not may_install:
            text = f"{text}, and the controller may not install it: install is false"
            return [Finding(area, "schema pgrole", WARNING, text, _INSTALL)]
        if role.superuser or role.creates:
            return [Finding(area, "schema pgrole", OK, f"{text}; the controller may create it")]
        if role.only_looks:
            return [Finding(area, "schema pgrole", UNKNOWN, f"{text}; whether it may be created {_ON_ITS_ROLE}")]
        remedy = sql("GRANT CREATE ON DATABASE {} TO {}", database, role.name)
        return [Finding(area, "schema pgrole", WARNING, f"{text}, and the controller may not create it", remedy)]
    if schema.foreign_parts and not role.only_looks:
        text = f"roles that are not trusted own parts of it, and the controller calls nothing: {schema.foreign_parts}"
        remedy = sql("DROP SCHEMA pgrole CASCADE", database=database)
        return [Finding(area, "schema pgrole", PROBLEM, f"{text}. Inspect it before you drop it", remedy)]
    findings = [_judge_schema_version(area, schema, version, updates=role.owns and may_install)]
    if schema.home and not schema.recorded:
        remedy = sql("ALTER DATABASE {} SET pgrole.home = 'on'", database)
        text = f'database "{database}" is not recorded as the home: a second one would not be noticed'
        findings.append(Finding(area, "home database", WARNING, text, remedy))
    return findings


def _judge_schema_version(area: str, schema: SchemaFacts, version: int, *, updates: bool) -> Finding:
    """`updates`: the controller can and may install it again."""
    check = "schema pgrole"
    if schema.version is None:
        if not schema.home:
            return Finding(area, check, PROBLEM, "it has no claims, so this is not the home database: name that one")
        known = "it keeps a history, so it has version 4 or later" if schema.keeps_history else "it is older than 4"
        state = UNKNOWN if schema.keeps_history else WARNING
        return Finding(
            area, check, state, f"its version cannot be read by this login; {known}", _INSTALL[: state is WARNING]
        )
    if schema.version > version + 1:
        text = f"version {schema.version} is newer than this program knows ({version}): upgrade the program"
        return Finding(area, check, PROBLEM, text)
    if schema.version < version - 1:
        text = f"version {schema.version} is too old for this controller, which needs {version - 1} or later"
        return Finding(area, check, WARNING if updates else PROBLEM, text, _INSTALL)
    if schema.version < version:
        who = "the controller updates it when it connects" if updates else "an administrator must update it"
        return Finding(area, check, WARNING, f"version {schema.version} is older than {version}; {who}", _INSTALL)
    installed, now = schema.installed_parts, schema.parts
    who = "the controller installs it again when it connects" if updates else "an administrator must install it"
    if schema.version == version and installed is not None and now != installed:
        what = "parts of schema pgrole are missing" if now < installed else "parts were added to schema pgrole"
        return Finding(area, check, PROBLEM, f"{what} ({now} instead of {installed}); {who}", _INSTALL)
    if schema.version == version and not schema.armed:
        text = f"a trigger of schema pgrole does not fire in every session, so changes are missed; {who}"
        return Finding(area, check, PROBLEM, text, _INSTALL)
    return Finding(area, check, OK, f'version {schema.version}, owner "{schema.owner}"')


def judge_detection(
    area: str, role: RoleFacts, schema: SchemaFacts, database: str, *, may_install: bool
) -> list[Finding]:
    """Which mode Auto chooses, and why not a better one."""
    check, may_watch = "detection", "Auto chooses Watch"
    if role.only_looks:
        return [Finding(area, check, UNKNOWN, f"it {_ON_ITS_ROLE}")]
    present = schema.owner is not None
    if not present and schema.publications:
        text = f"Auto chooses Poll, with claims in status: {_publishes(schema.publications)}"
        return [Finding(area, check, WARNING, text)]
    if not present and not may_install:
        text = "Auto chooses Poll, with claims in status: schema pgrole does not exist, and install is false"
        return [Finding(area, check, WARNING, text, _INSTALL)]
    if role.superuser:
        return [Finding(area, check, OK, may_watch)]
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
            return [Finding(area, check, OK, f"{may_watch}; an administrator installed the schema")]
        text = f'role "{role.name}" may not use schema pgrole, which holds the claims: no session begins'
        return [Finding(area, check, PROBLEM, text, _grants_in_schema(role, database, truncate=False))]
    if not role.sees_versions:
        text = f'Auto chooses Poll: role "{role.name}" may not read oid and xmin of pg_authid'
        return [Finding(area, check, WARNING, text, see)]
    seen = "passwords too" if role.sees_passwords else "changed passwords are not seen"
    return [Finding(area, check, OK, f"{may_watch}; {seen}")]


def _grants_in_schema(role: RoleFacts, database: str, *, truncate: bool) -> tuple[Remedy, ...]:
    templates = grants_in_schema("{}", truncate=truncate)
    return tuple(remedy for template in templates for remedy in sql(template, role.name, database=database))


def _publishes(publications: Sequence[str]) -> str:
    return (
        f"the controller does not create schema pgrole, since publication {', '.join(publications)} is FOR ALL TABLES: "
        "its subscribers would stop. Create it there first: docs/running.md"
    )


def report_missing_database(area: str, database: str) -> Finding:
    """For a database in which PgRoles declare privileges."""
    text = f'database "{database}" does not exist: PgRoles that declare privileges there are PrivilegePending'
    return Finding(area, _event_triggers_of(database), WARNING, text, sql("CREATE DATABASE {}", database))


def _event_triggers_of(database: str) -> str:
    return f'event triggers of "{database}"'


def judge_language(area: str, check: str, usable: bool | None, role: RoleFacts, database: str) -> list[Finding]:
    """`usable`: as `language` in RoleFacts."""
    if usable is None:
        remedy = sql("CREATE EXTENSION plpgsql", database=database)
        return [Finding(area, check, PROBLEM, "language plpgsql, which the controller needs, is missing", remedy)]
    if usable or role.only_looks:
        return []
    remedy = sql("GRANT USAGE ON LANGUAGE plpgsql TO {}", role.name, database=database)
    return [Finding(area, check, PROBLEM, f'role "{role.name}" may not use language plpgsql', remedy)]


def _judge_access(area: str, triggers: EventTriggerFacts, role: RoleFacts) -> list[Finding]:
    """What keeps the controller from managing privileges there; `judge_detection` judges its schema at home."""
    check, database = _event_triggers_of(triggers.database), triggers.database
    findings = judge_language(area, check, triggers.language, role, database)
    if role.only_looks:
        text = f"whether schema pgrole, which a superuser installed, may be used {_ON_ITS_ROLE}"
        return findings if triggers.uses or triggers.home else [*findings, Finding(area, check, UNKNOWN, text)]
    if not triggers.connects:
        remedy = sql("GRANT CONNECT ON DATABASE {} TO {}", database, role.name)
        findings.append(Finding(area, check, PROBLEM, f'role "{role.name}" may not connect to the database', remedy))
    if not (triggers.uses or triggers.home):
        text = f'role "{role.name}" may not use schema pgrole, which a superuser installed: no session begins'
        findings.append(Finding(area, check, PROBLEM, text, _grants_in_schema(role, database, truncate=True)))
    return findings


def judge_event_triggers(
    area: str, triggers: EventTriggerFacts, role: RoleFacts, *, may_install: bool, detection: DatabaseMode | None
) -> list[Finding]:
    """`detection`: as declared; None: it is unknown whether it uses event triggers."""
    check, used = _event_triggers_of(triggers.database), detection is not None and detection.uses_event_triggers
    database = triggers.database
    findings = _judge_access(area, triggers, role)
    if triggers.publications and detection is not None:
        text = f"not installed, and privileges are polled: {_publishes(triggers.publications)}"
        findings.append(Finding(area, check, WARNING, text))
    elif used and triggers.installed < 2:
        findings.append(_judge_missing_event_triggers(area, triggers, role, may_install=may_install))
    for name in triggers.disabled if used else ():
        text = f'"{name}" does not fire in every session, so changes are missed'
        remedy = sql("ALTER EVENT TRIGGER {} ENABLE ALWAYS", name, database=database)
        findings.append(Finding(area, check, PROBLEM, text, remedy))
    if triggers.switched_off and used:
        remedy = sql("ALTER DATABASE {} SET event_triggers = on", database)
        text = "event_triggers is off for the database or for all roles: privileges are polled"
        findings.append(Finding(area, check, WARNING, text, remedy))
    if triggers.others and role.only_looks:
        text = f"whether these event triggers are trusted {_ON_ITS_ROLE}: {', '.join(triggers.others)}"
        findings.append(Finding(area, check, UNKNOWN, text))
    elif triggers.others:
        remedies = tuple(
            one for name in triggers.others for one in sql("ALTER EVENT TRIGGER {} DISABLE", name, database=database)
        )
        text = "roles that are not trusted own event triggers, and the controller changes nothing there: "
        findings.append(Finding(area, check, PROBLEM, text + ", ".join(triggers.others), remedies))
    return findings or [Finding(area, check, OK, _describe_event_triggers(triggers, detection))]


def _describe_event_triggers(triggers: EventTriggerFacts, detection: DatabaseMode | None) -> str:
    if detection is None:
        state = "not installed" if triggers.installed < 2 else "installed"
        return f"{state}; a DSN does not tell whether the controller uses them"
    if detection.uses_event_triggers:
        return "installed and enabled"
    return f"not used: detection in databases is {detection.value}"


def _judge_missing_event_triggers(
    area: str, triggers: EventTriggerFacts, role: RoleFacts, *, may_install: bool
) -> Finding:
    check = _event_triggers_of(triggers.database)
    if may_install and (role.superuser or role.administers):
        text = "not installed; the controller installs them when a PgRole declares privileges there"
        return Finding(area, check, OK, text, _INSTALL_DATABASE)
    if role.only_looks:
        return Finding(area, check, UNKNOWN, f"not installed; whether the controller may create them {_ON_ITS_ROLE}")
    text = "not installed, and the controller may not create them: privileges are polled"
    if not triggers.plainly_owned:
        return Finding(area, check, WARNING, text, _INSTALL_DATABASE)
    if triggers.home:
        return Finding(area, check, WARNING, f'{text}, as role "{role.name}" owns schema pgrole')
    text = f"{text}; installing them also corrects drift that was only reported: docs/running.md, Install by hand"
    grants = _grants_in_schema(role, triggers.database, truncate=True)
    return Finding(area, check, WARNING, text, (*_INSTALL_DATABASE_AGAIN, *grants))


def judge_history(area: str, history: HistoryFacts, config: HistoryConfig | None, now: datetime) -> Finding:
    """`config` None: it is unknown for how long it is kept."""
    size = f"{count_things(history.rows, 'drift')}, {history.bytes / 2**20:.1f} MiB"
    if config is None:
        return Finding(area, "history", OK, size)
    size = f"{size}, kept for {config.retention_seconds / 86400:.0f} days"
    if history.rows > config.max_rows * 1.1:
        return Finding(area, "history", WARNING, f"{size}: more than history.maxRows ({config.max_rows}) are kept")
    # partitions of whole months are emptied
    limit = timedelta(seconds=config.retention_seconds) + timedelta(days=63)
    if history.oldest is not None and now - history.oldest > limit:
        text = f"{size}: the oldest dates from {history.oldest:%Y-%m-%d} and was not pruned"
        return Finding(area, "history", WARNING, text)
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
    text = f"{count_things(total, 'claim')} of {count_things(len(counts), 'cluster')}, {released} released"
    findings = [Finding(area, check, OK, text)]
    if cluster is not None and others:
        names = ", ".join(f"{count.cluster} ({count.claims - count.released})" for count in others[:5])
        text = f"other clusters hold claims: {names}. If one no longer exists, release its claims: docs/claims.md"
        remedy = shell("pgrole-controller claims list")
        findings.append(Finding(area, check, WARNING, text, remedy))
    return findings
