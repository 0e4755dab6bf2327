"""Why there is no session, as far as it matters for the next attempt: read from the exception that an error is from.

Guarantees: an unknown cause is `Cause.OTHER`, which backs off. Of several hosts, the one to be spared the most decides.
"""

import errno
import re

import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.reconnect import Cause
from pgrole_controller.postgres.authentication import Unacceptable

#: From what costs the server least to what costs it most.
_SPARED = (Cause.REFUSED, Cause.STARTING, Cause.LOST, Cause.OVERTAKEN, Cause.OTHER)

_REFUSED = {errno.ECONNREFUSED}
#: A socket's file is removed with its server.
_REFUSED_SOCKET = {errno.ECONNREFUSED, errno.ENOENT}
_BROKEN = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, EOFError, asyncpg.ConnectionDoesNotExistError)

#: How asyncio names the errors of a host's several addresses, in the text of one OSError.
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class StandbyError(ConnectionError):
    """The server is in recovery: after a failover one of its peers is not, or it is promoted itself."""


def cause_of(error: PgRoleError) -> Cause:
    """`error` is from an attempt at a session, or from one that ended too soon."""
    return _classify(error, frozenset())


def _classify(error: BaseException | None, within: frozenset[int]) -> Cause:
    """`within`: ids of the errors that contain this one. An error that is raised from a group can be in that group."""
    if id(error) in within:
        return _SPARED[0]
    within |= {id(error)}
    match error:
        case BaseExceptionGroup():
            causes = [_classify(one, within) for one in error.exceptions]
            return max(causes, key=_SPARED.index)
        case PgRoleError(reason=Reason.PROGRESSING):
            return Cause.OVERTAKEN
        case PgRoleError():
            return _classify(error.__cause__, within)
        case asyncpg.CannotConnectNowError():
            return Cause.STARTING
        case Unacceptable():
            return Cause.OTHER
        case StandbyError():
            return Cause.LOST
        case OSError() if _is_refused(error):
            return Cause.REFUSED
        case _ if isinstance(error, _BROKEN):
            return Cause.LOST
    return Cause.OTHER


def _is_refused(error: OSError) -> bool:
    if error.errno is None:
        found = {int(number) for number in _ERRNO.findall(str(error))}
        return bool(found) and found <= _REFUSED
    return error.errno in (_REFUSED_SOCKET if error.filename is None else _REFUSED)
