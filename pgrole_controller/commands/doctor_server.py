"""The checks of `doctor` on one PostgreSQL server."""

from dataclasses import dataclass
from datetime import UTC, datetime

from pgrole_controller.commands.doctor_checks import CheckList
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.findings import attribution_findings, schema_findings, server_findings
from pgrole_controller.core.findings.finding import Finding, FindingState
from pgrole_controller.core.findings.server_facts import RoleFacts, SchemaFacts, ServerFacts
from pgrole_controller.postgres import diagnosis
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import DatabaseMissing, connect_read_only
from pgrole_controller.postgres.schema import VERSION

#: Maximum number of databases whose event triggers are read, one connection after the other.
MOST_DATABASES = 50
_HISTORY_UNREAD = "not readable: connect as the controller's role, or as a member of pg_monitor that is no superuser"


@dataclass(slots=True)
class _Basis:
    """Facts that later checks build on; None: it could not be read."""

    server: ServerFacts | None = None
    role: RoleFacts | None = None
    schema: SchemaFacts | None = None


async def check_server(
    config: ServerConfig, login: str | None, databases: tuple[str, ...] | None, cluster: str | None
) -> list[Finding]:
    """Checks one server. `login`: the controller's role, if another role logs in. `databases`: with managed
    privileges, if the cluster says. `cluster`: id in claims.
    """
    area = f"server {config.name}"
    checks = CheckList(area)
    endpoint = config.endpoint
    if endpoint is None:
        why = config.problem.message if config.problem else "its address is unknown"
        text = f"not checked: {why}. Set PGROLE_DSN to check it without its Secret"
        return [Finding(area, "connection", FindingState.UNKNOWN, text)]

    async def connect() -> list[Finding]:
        async with connect_read_only(endpoint) as connection:
            await _ask_all(checks, connection, config, endpoint, login, databases, cluster)
        return []

    await checks.run("connection", connect, failed=FindingState.PROBLEM)
    return checks.findings


async def _ask_all(
    checks: CheckList,
    connection: Connection,
    config: ServerConfig,
    endpoint: Endpoint,
    login: str | None,
    databases: tuple[str, ...] | None,
    cluster: str | None,
) -> None:
    area, basis, now = checks.area, _Basis(), datetime.now(UTC)

    async def ask_server() -> list[Finding]:
        basis.server = await diagnosis.read_server_facts(connection)
        sslmode = endpoint.ssl or ""
        return [
            server_findings.judge_version(area, basis.server),
            server_findings.judge_clock(area, basis.server),
            server_findings.judge_encryption(area, basis.server, sslmode, now),
            *server_findings.judge_settings(area, basis.server),
        ]

    async def ask_role() -> list[Finding]:
        basis.role = await diagnosis.read_role_facts(connection, login)
        return server_findings.judge_rights(area, basis.role)

    async def ask_schema() -> list[Finding]:
        server, role = _server(basis), _role(basis)
        basis.schema = await diagnosis.read_schema_facts(connection, role.name)
        return [
            *schema_findings.judge_schema(area, basis.schema, role, server.database, VERSION),
            *schema_findings.judge_detection(area, role, basis.schema, server.database),
        ]

    async def ask_connections() -> list[Finding]:
        server, role = _server(basis), _role(basis)
        sessions = await diagnosis.read_session_facts(connection, role.name)
        return server_findings.judge_connections(area, server, role, sessions, len(databases or ()))

    async def ask_attribution() -> list[Finding]:
        return attribution_findings.judge_attribution(area, _server(basis), _role(basis), config.attribution.audit_log)

    async def ask_history() -> list[Finding]:
        history = await diagnosis.read_history_facts(connection)
        if history is None:
            kept = basis.schema is not None and basis.schema.keeps_history
            text = _HISTORY_UNREAD if kept else "no history is kept in this database"
            return [Finding(area, "history", FindingState.UNKNOWN if kept else FindingState.OK, text)]
        return [schema_findings.judge_history(area, history, config.history, now)]

    async def ask_suspension() -> list[Finding]:
        server, role = _server(basis), _role(basis)
        found = await diagnosis.read_suspending_settings(connection, role.name)
        return [schema_findings.judge_suspension(area, found, role, server.database)]

    async def ask_claims() -> list[Finding]:
        counts = await diagnosis.read_claim_counts(connection)
        if counts is None:
            there = basis.schema is not None and basis.schema.home
            text = "not readable by this login: use the controller's" if there else "none are kept in this database"
            return [Finding(area, "claims", FindingState.UNKNOWN if there else FindingState.OK, text)]
        return schema_findings.judge_claims(area, counts, cluster)

    async def ask_passwords() -> list[Finding]:
        own = await diagnosis.read_role_facts(connection, None)  # the login of this command
        roles = await diagnosis.count_md5_roles(connection) if own.superuser else None
        return server_findings.judge_passwords(area, _server(basis), roles)

    async def ask_transactions() -> list[Finding]:
        own = await diagnosis.read_role_facts(connection, None)
        found = await diagnosis.read_old_transactions(connection)
        return [server_findings.judge_old_transactions(area, found, sees_all=own.superuser or own.monitors)]

    if databases is None:

        async def ask_databases() -> list[Finding]:
            nonlocal databases
            databases = await diagnosis.read_declared_databases(connection)
            return []

        await checks.run("databases", ask_databases)
    for name, check in (
        ("server", ask_server),
        ("privileges", ask_role),
        ("schema pgrole", ask_schema),
        ("connections", ask_connections),
        ("attribution", ask_attribution),
        ("history", ask_history),
        ("suspended", ask_suspension),
        ("claims", ask_claims),
        ("passwords", ask_passwords),
        ("old transactions", ask_transactions),
    ):
        await checks.run(name, check)
    await _ask_databases(checks, endpoint, basis, databases)


async def _ask_databases(
    checks: CheckList, endpoint: Endpoint, basis: _Basis, databases: tuple[str, ...] | None
) -> None:
    """Event triggers of each database with declared privileges."""
    area = checks.area
    if databases is None:
        text = "databases with declared privileges are unknown: use --server, or the controller's login"
        checks.findings.append(Finding(area, "event triggers", FindingState.UNKNOWN, text))
        return
    if not databases:
        text = "no PgRole declares privileges in a database"
        checks.findings.append(Finding(area, "event triggers", FindingState.OK, text))
    failed = FindingState.UNKNOWN if basis.role is None else FindingState.PROBLEM
    for name in databases[:MOST_DATABASES]:

        async def ask_event_triggers(name: str = name) -> list[Finding]:
            role = _role(basis)
            try:
                async with connect_read_only(endpoint, name) as connection:
                    triggers = await diagnosis.read_event_trigger_facts(connection, role.name)
            except DatabaseMissing:
                return [schema_findings.report_missing_database(area, name)]
            return schema_findings.judge_event_triggers(area, triggers, role)

        await checks.run(f'event triggers of "{name}"', ask_event_triggers, failed=failed)
    if len(databases) > MOST_DATABASES:
        text = f"{len(databases) - MOST_DATABASES} more databases are not checked"
        checks.findings.append(Finding(area, "event triggers", FindingState.UNKNOWN, text))


def _server(basis: _Basis) -> ServerFacts:
    if basis.server is None:
        raise Refused(Reason.SERVER_NOT_READY, "not checked: the server's version and settings could not be read")
    return basis.server


def _role(basis: _Basis) -> RoleFacts:
    if basis.role is None:
        raise Refused(Reason.SERVER_NOT_READY, "not checked: the privileges of the controller's role could not be read")
    return basis.role
