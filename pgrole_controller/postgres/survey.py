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
from pgrole_controller.postgres.install import Installation, Missing, install, is_current, others_may_create
from pgrole_controller.postgres.privilege import explain_access, is_lacking


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found in the home database. `missing`: why there is no schema pgrole; then claims are in status."""

    identity: Identity
    access: Access
    installation: Installation
    guarded: bool
    missing: Missing | None

    @property
    def claims(self) -> Claims:
        return "Status" if self.missing else "Database"


async def look(writer: Connection) -> Survey | None:
    """Where there is nothing to bring in; changes nothing."""
    if not await is_current(writer):
        return None
    identity, access = await inspect.identify(writer), await read_access(writer)
    return Survey(identity, access, Installation.PRESENT, await others_may_create(writer), None)


async def survey(writer: Connection, detection: Mode, may_install: bool, seen: Survey | None) -> Survey:
    """`seen`: as it was found before this process led; what changes are noticed by must be so still."""
    if seen is not None:
        found = await look(writer)
        if found is None or (found.access, found.guarded) != (seen.access, seen.guarded):
            raise Transient(Reason.SERVER_NOT_READY, "the controller's privileges changed while another process led")
        await install(writer, allowed=may_install)
        return found
    identity = await inspect.identify(writer)
    access = await read_access(writer)
    try:
        installation = await install(writer, allowed=may_install)
    except Missing as error:
        if detection is Mode.WATCH:
            raise
        return Survey(identity, access, Installation.NONE, False, error)
    if installation is not Installation.PRESENT:
        access = await read_access(writer)
    return Survey(identity, access, installation, await others_may_create(writer), None)


@asynccontextmanager
async def explaining(writer: Connection) -> AsyncIterator[None]:
    """Where a privilege is lacking for a session: the error names the grant."""
    try:
        yield
    except PgRoleError as error:
        if not is_lacking(error) or writer.is_closed():
            raise
        raise await explain_access(writer, error) from error.__cause__
