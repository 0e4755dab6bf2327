"""The checks of `doctor` on one PostgreSQL server."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from pgrole_controller.commands.doctor_checks import CheckList
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.findings import attribution_findings, schema_findings, server_findings
from pgrole_controller.core.findings.finding import Finding, FindingState
from pgrole_controller.core.findings.server_facts import RoleFacts, SchemaFacts, ServerFacts
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.postgres import diagnosis
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import DatabaseMissing, connect_read_only
from pgrole_controller.postgres.schema import VERSION

#: Maximum number of databases whose event triggers are read, one connection after the other.
MOST_DATABASES = 50
_HISTORY_UNREAD = "not readable: connect as the controller's role, or as a member of pg_monitor that is not a superuser"


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
            await ServerChecks(checks, connection, config, endpoint, login, databases, cluster).run()
        return []

    await checks.run("connection", connect, failed=FindingState.PROBLEM)
    return checks.findings


@dataclass(slots=True)
class ServerChecks:
    """The checks of one server, one method for each question. `login`, `databases`, `cluster`: as in `check_server`.

    Later questions build on `server`, `role` and `schema`; None: it could not be read.
    """

    checks: CheckList
    connection: Connection
    config: ServerConfig
    endpoint: Endpoint
    login: str | None
    databases: tuple[str, ...] | None
    cluster: str | None
    server: ServerFacts | None = None
    role: RoleFacts | None = None
    schema: SchemaFacts | None = None
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    async def run(self) -> None:
        """Adds to `checks`. A question that fails is a finding."""
        # a status without databases may be older than the claims that name some
        asked = bool(self.databases) or await self.checks.run("databases", self._ask_declared_databases)
        for name, check in (
            ("server", self._ask_server),
            ("privileges", self._ask_role),
            ("schema pgrole", self._ask_schema),
            ("connections", self._ask_connections),
            ("attribution", self._ask_attribution),
            ("history", self._ask_history),
            ("suspended", self._ask_suspension),
            ("claims", self._ask_claims),
            ("passwords", self._ask_passwords),
            ("old transactions", self._ask_transactions),
        ):
            await self.checks.run(name, check)
        if asked:
            await self._check_databases()

    @property
    def _area(self) -> str:
        return self.checks.area

    @property
    def _server(self) -> ServerFacts:
        if self.server is None:
            raise Refused(Reason.SERVER_NOT_READY, "not checked: the server's version and settings could not be read")
        return self.server

    @property
    def _role(self) -> RoleFacts:
        if self.role is None:
            text = "not checked: the privileges of the controller's role could not be read"
            raise Refused(Reason.SERVER_NOT_READY, text)
        return self.role

    async def _ask_declared_databases(self) -> list[Finding]:
        declared = await diagnosis.read_declared_databases(self.connection)
        self.databases = self.databases if declared is None else declared
        return []

    async def _ask_server(self) -> list[Finding]:
        server = self.server = await diagnosis.read_server_facts(self.connection)
        return [
            server_findings.judge_version(self._area, server),
            server_findings.judge_clock(self._area, server),
            server_findings.judge_encryption(self._area, server, self.endpoint.ssl or "", self.now),
            *server_findings.judge_settings(self._area, server),
        ]

    async def _ask_role(self) -> list[Finding]:
        role = self.role = await diagnosis.read_role_facts(self.connection, self.login)
        language = schema_findings.judge_language(self._area, "privileges", role.language, role, self._server.database)
        return [*server_findings.judge_rights(self._area, role), *language]

    async def _ask_schema(self) -> list[Finding]:
        server, role = self._server, self._role
        schema = self.schema = await diagnosis.read_schema_facts(self.connection, role.name)
        allowed = self.config.may_install
        return [
            *schema_findings.judge_schema(self._area, schema, role, server.database, VERSION, may_install=allowed),
            *schema_findings.judge_detection(self._area, role, schema, server.database, may_install=allowed),
        ]

    async def _ask_connections(self) -> list[Finding]:
        server, role = self._server, self._role
        sessions = await diagnosis.read_session_facts(self.connection, role.name)
        databases = self.config.databases
        most = 0 if databases is None else databases.max + 1  # one for those that are polled in turn
        served = min(len(self.databases or ()), most)
        return server_findings.judge_connections(self._area, server, role, sessions, served)

    async def _ask_attribution(self) -> list[Finding]:
        audit_log = self.config.attribution.audit_log
        return attribution_findings.judge_attribution(self._area, self._server, self._role, audit_log)

    async def _ask_history(self) -> list[Finding]:
        history = await diagnosis.read_history_facts(self.connection, self.cluster)
        if history is None:
            kept = self.schema is not None and self.schema.keeps_history
            text = _HISTORY_UNREAD if kept else "no history is kept in this database"
            return [Finding(self._area, "history", FindingState.UNKNOWN if kept else FindingState.OK, text)]
        config = self.config.history if self.config.uid else None  # a DSN may be that of a PgServer with other limits
        return [schema_findings.judge_history(self._area, history, config, self.now)]

    async def _ask_suspension(self) -> list[Finding]:
        server, role = self._server, self._role
        found = await diagnosis.read_suspensions(self.connection, role=role.name)
        return [
            schema_findings.judge_suspension(
                self._area, [(bool(one.database), bool(one.role)) for one in found], role, server.database
            )
        ]

    async def _ask_claims(self) -> list[Finding]:
        counts = await diagnosis.read_claim_counts(self.connection)
        if counts is None:
            there = self.schema is not None and self.schema.home
            text = "not readable by this login: use the controller's" if there else "this database holds no claims"
            return [Finding(self._area, "claims", FindingState.UNKNOWN if there else FindingState.OK, text)]
        return schema_findings.judge_claims(self._area, counts, self.cluster)

    async def _ask_passwords(self) -> list[Finding]:
        own = await diagnosis.read_role_facts(self.connection, None)  # the login of this command
        roles = await diagnosis.count_md5_roles(self.connection) if own.superuser else None
        return server_findings.judge_passwords(self._area, self._server, roles)

    async def _ask_transactions(self) -> list[Finding]:
        own = await diagnosis.read_role_facts(self.connection, None)
        found = await diagnosis.read_old_transactions(self.connection)
        sees_all = own.superuser or own.monitors
        return [server_findings.judge_old_transactions(self._area, found, sees_all=sees_all)]

    async def _check_databases(self) -> None:
        """Event triggers of each database with declared privileges."""
        if self.databases is None:
            text = "databases with declared privileges are unknown: use --server, or the controller's login"
            self._add("event triggers", FindingState.UNKNOWN, text)
            return
        if not self.databases:
            self._add("event triggers", FindingState.OK, "no PgRole declares privileges in a database")
        unknown = self.role is None or self.role.only_looks
        failed = FindingState.UNKNOWN if unknown else FindingState.PROBLEM
        for name in self.databases[:MOST_DATABASES]:
            ask = partial(self._ask_event_triggers, name)
            await self.checks.run(f'event triggers of "{name}"', ask, failed=failed)
        if len(self.databases) > MOST_DATABASES:
            text = f"{len(self.databases) - MOST_DATABASES} more databases are not checked"
            self._add("event triggers", FindingState.UNKNOWN, text)

    async def _ask_event_triggers(self, database: str) -> list[Finding]:
        role = self._role
        try:
            async with connect_read_only(self.endpoint, database) as connection:
                triggers = await diagnosis.read_event_trigger_facts(connection, role.name)
        except DatabaseMissing:
            return [schema_findings.report_missing_database(self._area, database)]
        databases, allowed = self.config.databases, self.config.may_install
        detection = DatabaseMode.AUTO if databases is None else databases.detection
        known = detection if self.config.uid else None  # a DSN may be that of a PgServer with another one
        return schema_findings.judge_event_triggers(self._area, triggers, role, may_install=allowed, detection=known)

    def _add(self, check: str, state: FindingState, text: str) -> None:
        self.checks.findings.append(Finding(self._area, check, state, text))
