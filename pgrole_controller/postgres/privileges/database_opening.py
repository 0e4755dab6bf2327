"""Opens a session with one database whose privileges are managed."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.capabilities import Identity, explaining, identify
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import check_unreserved, connect_to
from pgrole_controller.postgres.errors import NAME_ONE_SERVER, convert_unexpected, is_lacking, translate_errors
from pgrole_controller.postgres.fence import Candidate, Fence, NotLeading, lead_while_away, take_lead
from pgrole_controller.postgres.missing_privileges import explain_database_access
from pgrole_controller.postgres.privileges.acl_locks import LOCK_SECONDS, explain_session
from pgrole_controller.postgres.privileges.database_schema import (
    DatabaseInstallation,
    install_database,
    turn_off_event_triggers,
)
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections
from pgrole_controller.postgres.privileges.stored_state import move_applied
from pgrole_controller.postgres.rows import fetch_row


@asynccontextmanager
async def open_database(
    endpoint: Endpoint,
    database: str,
    home: str,
    server: Identity,
    *,
    detection: DatabaseMode,
    interval: float,
    may_install: bool,
    candidate: Candidate | None,
    on_notice: Callable[[], None],
    known: Fence | None = None,
    in_turn: bool = False,
    if_template: PgRoleError | None = None,
) -> AsyncIterator[DatabaseSession]:
    """A session with one database of the server that `server` identifies. `home`: the name of the home database.
    `detection`: as declared; only Auto and Events install event triggers. `known`: the leadership that this process
    took there in an earlier session. `in_turn`: the session detects nothing and soon ends, and no other such session
    exists meanwhile, so it may take a connection that is reserved for superusers. `if_template`: as in DatabaseSession.

    `on_notice` is called when something may have changed. Raises PgRoleError if the session cannot begin; what is wrong
    with the database itself is Waiting or names the remedy.
    """
    with convert_unexpected():
        try:
            # PostgreSQL would plan the large questions of each round again: that takes longer than to answer them
            generic_plans = connect_to(endpoint, database, "database", plan_cache_mode="force_generic_plan")
            async with generic_plans as connection, AsyncExitStack() as closing:
                reading = ReadingConnections(endpoint, database, server)
                closing.push_async_callback(reading.close)
                async with explaining(connection, explain_database_access):
                    with forgetting():
                        identity = await _prepare(connection, database, server)
                        if identity.superuser and not in_turn:
                            await check_unreserved(connection, database)
                        installation = await install_database(
                            connection, allowed=may_install, event_triggers=detection.uses_event_triggers
                        )
                        fence = await _lead(connection, candidate, installation, known)
                        if installation.present:
                            guarded = installation.others_may_create
                            await move_applied(connection, identity.system_identifier, guarded=guarded)
                        row = await fetch_row(connection, resources.text("sql", "events", "database.sql"))
                        session = DatabaseSession(
                            database,
                            home,
                            connection,
                            identity,
                            installation,
                            fence,
                            row.get("oid", int),
                            reading,
                            on_notice,
                            interval=interval,
                            if_template=if_template,
                        )
                        session.check_template(row)
                        await session.detect(DatabaseMode.RESYNC if in_turn else detection)
                yield session
        except PgRoleError as error:
            raise await explain_session(error, endpoint, database) from error.__cause__


async def _prepare(connection: Connection, database: str, server: Identity) -> Identity:
    """Verifies which server it is, and sets what the controller's role may set. Raises PgRoleError."""
    identity = await _identify(connection, database)
    if not identity.is_same_server(server):
        raise Transient(Reason.SERVER_NOT_READY, f'database "{database}" is on a different server: {NAME_ONE_SERVER}')
    await turn_off_event_triggers(connection, identity.version_number)
    await _interrupt_autovacuum(connection)
    return identity


async def _identify(connection: Connection, database: str) -> Identity:
    try:
        return await identify(connection)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        raise error.reword(error.message.replace("the home database", f'database "{database}"')) from error


async def _interrupt_autovacuum(connection: Connection) -> None:
    """Has autovacuum give way within the time that a repair waits for a lock, where the controller's role may do that:
    it does so once another session has waited for deadlock_timeout, by default 1 s.
    """
    try:
        with translate_errors():
            await connection.execute(f"SET deadlock_timeout = '{round(500 * LOCK_SECONDS)}ms'")
    except PgRoleError as error:
        if not is_lacking(error):
            raise


async def _lead(
    connection: Connection, candidate: Candidate | None, installation: DatabaseInstallation, known: Fence | None
) -> Fence | None:
    if candidate is None:
        return None
    guarded = installation.others_may_create
    if known is not None and known.number is not None and installation.present and known.acting:
        known = replace(known, guarded=guarded)
        with suppress(NotLeading):
            await known.beat(connection)
            return known
    if not candidate.is_leading() and installation.present and candidate.away() > 0.0:
        fence = await lead_while_away(connection, candidate, guarded=guarded)
        if fence is None:
            raise Transient(Reason.PROGRESSING, "another process leads in this database")
        return fence
    return await take_lead(connection, candidate, guarded=guarded, fencing=installation.present)
