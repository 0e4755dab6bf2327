"""What there is in the home database of a server, and what the controller's role may do there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.state import Claims, Mode
from pgrole_controller.postgres import inspect
from pgrole_controller.postgres.access import Access, read_access
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.inspect import Identity
from pgrole_controller.postgres.install import SchemaMissing, SchemaState, install, is_current, others_may_create
from pgrole_controller.postgres.privilege import explain_access, is_lacking


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What was found in the home database. `missing`: why there is no schema pgrole; then claims are in status."""

    identity: Identity
    access: Access
    schema_state: SchemaState
    guarded: bool
    missing: SchemaMissing | None

    @property
    def claims(self) -> Claims:
        return "Status" if self.missing else "Database"


async def read_capabilities(writer: Connection) -> Capabilities | None:
    """Where there is nothing to bring in; changes nothing."""
    if not await is_current(writer):
        return None
    identity, access = await inspect.identify(writer), await read_access(writer)
    return Capabilities(identity, access, SchemaState.PRESENT, await others_may_create(writer), None)


async def prepare_schema(
    writer: Connection, detection: Mode, may_install: bool, seen: Capabilities | None
) -> Capabilities:
    """`seen`: as it was found before this process led; what changes are noticed by must be so still."""
    if seen is not None:
        found = await read_capabilities(writer)
        if found is None or (found.access, found.guarded) != (seen.access, seen.guarded):
            raise Transient(Reason.SERVER_NOT_READY, "the controller's privileges changed while another process led")
        await install(writer, allowed=may_install)
        return found
    identity = await inspect.identify(writer)
    access = await read_access(writer)
    try:
        schema_state = await install(writer, allowed=may_install)
    except SchemaMissing as error:
        if detection is Mode.WATCH:
            raise
        return Capabilities(identity, access, SchemaState.NONE, False, error)
    if schema_state is not SchemaState.PRESENT:
        access = await read_access(writer)
    return Capabilities(identity, access, schema_state, await others_may_create(writer), None)


@asynccontextmanager
async def explaining(writer: Connection) -> AsyncIterator[None]:
    """Where a privilege is lacking for a session: the error names the grant."""
    try:
        yield
    except PgRoleError as error:
        if not is_lacking(error) or writer.is_closed():
            raise
        raise await explain_access(writer, error) from error.__cause__
