"""Lines of PostgreSQL's jsonlog about role DDL: those of pgaudit, and those of the statement log.

Statements of role DDL may contain passwords: only the identifiers in them are kept, never a literal or the text.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence

#: PostgreSQL writes jsonlog since this version.
JSONLOG_VERSION = 150_000

#: Maximum distance of a subtransaction's id above its transaction's.
MOST_BELOW = 64

_LONGEST_STATEMENT = 100_000
_MOST_NAMES = 200
_NAME_BYTES = 63
_XIDS = 1 << 32

#: Commands that pgaudit has in class ROLE although they change no role; those of memberships are GRANT ROLE and REVOKE
#: ROLE.
_OF_PRIVILEGES = frozenset({"GRANT", "REVOKE", "ALTER DEFAULT PRIVILEGES"})


@dataclass(frozen=True, slots=True)
class RoleCommand:
    """A command that changes roles, as the log has it. A tenant can choose every field.

    - `txid`: of the transaction, 32 bits; 0 in the statement log, which is written before the command has one.
    - `command`: as pgaudit spells it, e.g. `ALTER ROLE`; empty in the statement log.
    - `names`: identifiers in the statement, keywords included.
    """

    txid: int
    command: str
    names: frozenset[str]
    login: str
    application: str
    address: str
    time: datetime | None

    def to_author(self, proof: Evidence) -> DriftAuthor:
        """Returns a DriftAuthor without a statement, which may contain a password."""
        return DriftAuthor(proof, self.login, "", self.application, self.address, self.time)


def read_lines(lines: Iterable[bytes], zone: int = 0) -> Iterator[RoleCommand]:
    """Returns the role commands among lines of jsonlog, and ignores anything else.

    `zone`: the log's, in seconds east of UTC, for times whose zone is an abbreviation.
    """
    for line in lines:
        if (b"AUDIT: " in line and b",ROLE," in line) or _may_be_statement(line):
            command = _read_line(line, zone)
            if command is not None:
                yield command


_SAID = re.compile(rb'"message":"(?:statement|execute [^:"]{0,100}): ')
_WORD_OF_ROLE_DDL = re.compile(rb"role|user|group|grant|revoke", re.IGNORECASE)
_ROLE_DDL = re.compile(r"\b(?:(?:alter|create|drop|comment\s+on)\s+(?:role|user|group)|grant|revoke)\b", re.IGNORECASE)
_STATEMENT = re.compile(r"(?:statement|execute [^:]{0,100}): ")


def _may_be_statement(line: bytes) -> bool:
    said = _SAID.search(line)
    return said is not None and _WORD_OF_ROLE_DDL.search(line, said.end()) is not None


def _read_line(line: bytes, zone: int) -> RoleCommand | None:
    try:
        entry = json.loads(line.decode(errors="backslashreplace"))
    except (ValueError, RecursionError):  # partial, or not JSON
        return None
    if not isinstance(entry, dict) or not isinstance(message := entry.get("message"), str):
        return None
    if message.startswith("AUDIT: "):
        fields = _split(message.removeprefix("AUDIT: ")[:_LONGEST_STATEMENT])
        if len(fields) < 8 or fields[3] != "ROLE" or fields[4] in _OF_PRIVILEGES:
            return None
        return _command(entry, fields[4], fields[7], zone)
    said = _STATEMENT.match(message)
    if said is None or not _ROLE_DDL.search(message, said.end(), said.end() + _LONGEST_STATEMENT):
        return None
    return _command(entry, "", message[said.end() :], zone)


def _split(fields: str) -> list[str]:
    """pgaudit: AUDIT_TYPE,STATEMENT_ID,SUBSTATEMENT_ID,CLASS,COMMAND,OBJECT_TYPE,OBJECT_NAME,STATEMENT,PARAMETER.

    `fields`: cut, since csv refuses a field of more than 131,072 characters.
    """
    try:
        return next(csv.reader([fields], strict=False), [])
    except csv.Error:
        return []


def _command(entry: dict[str, Any], command: str, statement: str, zone: int) -> RoleCommand:
    txid = entry.get("txid")
    return RoleCommand(
        txid=txid if type(txid) is int and 0 <= txid < _XIDS else 0,
        command=command[:_NAME_BYTES],
        names=frozenset(_identifiers(statement[:_LONGEST_STATEMENT])),
        login=_short(entry.get("user")),
        application=_short(entry.get("application_name")),
        address=_short(entry.get("remote_host")),
        time=_time(entry.get("timestamp"), zone),
    )


def _short(value: object) -> str:
    text = value[:255] if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text).strip()


_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)                                  # comments
    |[eE]'(?:[^'\\]|''|\\.)*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)         # literals
    |\$(?P<tag>[^\x00-@\[-^`{-\x7f]?\w*)\$.*?(?:\$(?P=tag)\$|\Z)
    |"(?P<quoted>(?:[^"]|"")*)(?:"|\Z)
    |(?P<plain>[^\x00-@\[-^`{-\x7f][\w$]*)""",
    re.VERBOSE | re.DOTALL,
)


def _identifiers(statement: str) -> Iterator[str]:
    """Identifiers as PostgreSQL stores them, at most 200. Literals and comments are skipped."""
    count = 0
    for token in _TOKEN.finditer(statement):
        if token["quoted"] is not None:
            name = token["quoted"].replace('""', '"')
        elif token["plain"] is not None:
            name = token["plain"].lower()
        else:
            continue
        yield name.encode(errors="replace")[:_NAME_BYTES].decode(errors="ignore")
        count += 1
        if count >= _MOST_NAMES:
            return


_ZONE = re.compile(r"(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?")


def _time(value: object, seconds: int) -> datetime | None:
    """`2026-11-22 18:17:37.326 UTC`."""
    if not isinstance(value, str):
        return None
    moment, _, zone = value.rpartition(" ")
    try:
        naive = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S.%f")  # noqa: DTZ007 -- the zone follows
        if zone in ("UTC", "GMT"):
            return naive.replace(tzinfo=UTC)
        if (offset := _ZONE.fullmatch(zone)) is not None:
            seconds = int(offset["hours"]) * 3600 + int(offset["minutes"] or 0) * 60
            seconds = -seconds if offset["sign"] == "-" else seconds
        return naive.replace(tzinfo=timezone(timedelta(seconds=seconds))).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class ChangedRole:
    """A role that someone changed.

    `xmins`: of its rows with the change, if they were read before the repair. `since`: the role was as declared then,
    by the server's clock.
    """

    role_name: str
    xmins: tuple[int, ...] = ()
    since: datetime | None = None


def find_author(commands: Iterable[RoleCommand], changed: ChangedRole, own_login: str = "") -> DriftAuthor | None:
    """Who changed the role, by the log. `commands`: oldest first.

    Proof is TRANSACTION if a command of pgaudit has the transaction id of a changed row, or names the role and has an
    id at most MOST_BELOW below (the row was written in a subtransaction) and not below that of a repair. Otherwise the
    last command that names the role, with proof LOG. `own_login`: the controller's, whose commands are left out, and
    rows that they wrote as well: the drift removed a later one. None if no command fits.

    Before `since`, only the command that wrote the row counts, with proof LOG: it may have been committed later, or be
    of an earlier change, if the drift removed a row.
    """
    latest = [*reversed(list(commands))]
    others = [one for one in latest if not _is_own(one, own_login)]
    own = [one for one in latest if _is_own(one, own_login)]
    own_ids = {one.txid for one in own}
    repairs = {one.txid for one in own if one.txid >= 3 and changed.role_name in one.names}
    naming = [one for one in others if changed.role_name in one.names]
    recent = [one for one in naming if _is_since(one, changed.since)]
    written = [xmin for xmin in changed.xmins if xmin >= 3 and xmin not in own_ids]
    for xmin in written:
        for one in (*recent, *others):
            if one.txid == xmin and _is_since(one, changed.since):
                return one.to_author(Evidence.TRANSACTION)
        most = min([MOST_BELOW, *((xmin - repair) % _XIDS for repair in repairs)])
        for one in recent:
            if one.txid >= 3 and 0 < (xmin - one.txid) % _XIDS <= most:
                return one.to_author(Evidence.TRANSACTION)
    found = recent or [one for one in naming if one.txid in written]
    return found[0].to_author(Evidence.LOG) if found else None


def _is_since(command: RoleCommand, since: datetime | None) -> bool:
    return since is None or (command.time is not None and command.time >= since)


def _is_own(command: RoleCommand, own_login: str) -> bool:
    """Whether the command is the controller's: any client can use its application name, but not its login."""
    return bool(own_login) and command.login == own_login and command.application.startswith("pgrole-controller")
