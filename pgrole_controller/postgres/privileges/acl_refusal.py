"""Explains why PostgreSQL refused to change privileges, and what people can do."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from pgrole_controller.core.ddl import divide_names, spell_identifier
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.errors import DEPENDENT, LOCK_NOT_FREE, is_lacking, is_passing, shorten, sqlstate_of
from pgrole_controller.postgres.missing_privileges import explain_own_schema
from pgrole_controller.postgres.privileges.acl_locks import find_locked_table, tell_locked_table
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.rows import Row, fetch

#: Another transaction changed the same rows.
RETRIED = ("XX000", "23505", "40P01", "40001")
_ROW_TOO_BIG = "54000"
#: The object, its schema, the role or the grantor (22023) was dropped or renamed.
_GONE = ("42P01", "42883", "3F000", "42704", "42703", "22023")
#: Maximum number of characters of the statements in a message.
_LONGEST_STATEMENTS = 600
#: What to do if not even the first of the statements fits.
_PRINTED = "`pgrole-controller diff -o sql` prints the statements, which are too long for a message"
_FOR_EACH = "GRANT each grantor the privileges that it gave WITH GRANT OPTION, and REVOKE them from it with CASCADE"


class OutdatedAcl(Transient):
    """The object, or what is declared for it, changed after it was read. Reading it again shows what is left to do."""


class Postponed(Transient):
    """There was no time left to try it."""


class Ineffective(Transient):
    """The statements succeeded, and yet an object does not have the privileges that it should."""


def tell_locked(one: AclRepair | DefaultAclChange) -> PgRoleError:
    if isinstance(one, AclRepair):
        label = one.observed.object.label
    else:
        label = f'default privileges of creator "{one.creator_name}"'
    return Transient(Reason.PROGRESSING, f"another transaction has locked {label}; the controller tries again")


def tell_postponed() -> PgRoleError:
    return Postponed(Reason.PROGRESSING, "postponed: finding the changes that fail took all the time of this attempt")


def tell_outdated() -> PgRoleError:
    return OutdatedAcl(
        Reason.PROGRESSING, "spec or the server's policy changed while privileges were applied: not all of them are"
    )


def _said(error: PgRoleError) -> str:
    return shorten(str(getattr(error.__cause__, "message", "")) or error.message)


def _tell_passing(error: PgRoleError, message: str) -> PgRoleError:
    """Keeps DATABASE_ERROR for what PostgreSQL refuses: a statement that was canceled may succeed later."""
    reason = Reason.PROGRESSING if error.reason is Reason.DATABASE_ERROR else error.reason
    return Transient(reason, message)


async def explain(connection: Connection, error: PgRoleError, repair: AclRepair, version: int) -> PgRoleError:
    """Returns the error to report on the object that declares the privileges. `version`: server_version_num. Raises
    PgRoleError if the connection is lost.
    """
    label, code = repair.observed.object.label, sqlstate_of(error)
    said = _said(error)
    if code == LOCK_NOT_FREE:
        return tell_locked(repair)
    if code in RETRIED or code in _GONE:
        return Transient(Reason.PROGRESSING, f"a concurrent transaction changed {label} first: {said}")
    if code == _ROW_TOO_BIG:
        remedy = "grant it to a group role, and make the roles members of that"
        return Transient(Reason.DATABASE_ERROR, f"the ACL of {label} has no room for another role: {remedy}")
    if is_passing(error):
        return _tell_passing(error, f"{label}: {error.message}")
    if is_lacking(error) and (own := await explain_own_schema(connection, error, said)) is not None:
        return own
    text = error.message if isinstance(error, Ineffective) else f"{label}: {said}"
    if code == DEPENDENT:
        text += _revoke_from_grantors(repair, version)
    if is_lacking(error) or isinstance(error, Ineffective):
        text += await _find_remedy(connection, repair, version)
    return Transient(Reason.DATABASE_ERROR, text)


async def explain_default(
    connection: Connection, error: PgRoleError, change: DefaultAclChange, version: int
) -> PgRoleError:
    """Likewise, of default privileges."""
    if is_passing(error):
        return _tell_passing(error, error.message)
    if not is_lacking(error):
        return error
    said = _said(error)
    if (own := await explain_own_schema(connection, error, said)) is not None:
        return own
    allow = [
        _allow(row, version)
        for row in await _read_actors(connection, {change.creator_name})
        if not (row.get("allowed", bool) or row.get("superuser", bool))
    ]
    text = f'default privileges of creator "{change.creator_name}": {said}'
    return Transient(Reason.DATABASE_ERROR, text + _ask("allow it", allow))


async def explain_storing(connection: Connection, error: PgRoleError) -> PgRoleError:
    """Likewise, of what records that everything is applied."""
    if table := find_locked_table(error):
        return await tell_locked_table(connection, table)
    if not is_lacking(error) or connection.is_closed():
        return error
    return await explain_own_schema(connection, error, _said(error)) or error


async def _find_remedy(connection: Connection, repair: AclRepair, version: int) -> str:
    """Returns statements that let the controller's role make the changes, or the changes themselves if nothing should
    let it.
    """
    owner = repair.observed.object.owner_name
    by_actor: dict[str, list[AclChange]] = {}
    for change in repair.changes:
        by_actor.setdefault((change.grantor if change.revoke else "") or owner, []).append(change)
    allow: list[str] = []
    do: list[str] = []
    database = ""
    for row in await _read_actors(connection, by_actor):
        if row.get("unlimited", bool):
            return ""
        name, database = row.text("name"), row.text("database")
        if row.get("superuser", bool):
            do += _statements(by_actor[name], version, owner)
        elif not row.get("allowed", bool):
            allow.append(_allow(row, version))
    do_it = f"do it, in database {spell_identifier(database)}"
    return _ask("allow it", list(dict.fromkeys(allow))) + _ask(do_it, do, _PRINTED)


def _revoke_from_grantors(repair: AclRepair, version: int) -> str:
    """To revoke what it granted on columns, a grantor needs the grant option that it has lost. It could not lose it
    again, since other roles hold the same from it (sql/privileges/lost_options.sql).
    """
    texts: list[str] = []
    for one in repair.changes:
        if one.revoke and one.grantor and one.columns:
            given = AclChange(one.object, 0, one.grantor, one.privileges, columns=one.columns, option_only=True)
            taken = replace(given, revoke=True, option_only=False)
            both = [
                *grant_ddl.statements([given], (), version),
                *grant_ddl.statements([taken], (), version, cascade=True),
            ]
            texts.append("; ".join(each.text for each in both))
    return _ask("revoke everything that its grantors granted on the columns", texts, _FOR_EACH)


def _statements(changes: Iterable[AclChange], version: int, owner: str) -> list[str]:
    """Returns statements for a superuser. What belongs together is one text. `owner`: of the object.

    A superuser's REVOKE is in the owner's name. So another grantor must not be one meanwhile: in a transaction, which
    fails as a whole if that grantor runs it.
    """
    texts: list[str] = []
    for one in grant_ddl.statements(changes, (), version):
        text, role = one.text, spell_identifier(one.acting_as)
        if one.acting_as:
            text = f"SET ROLE {role}; {text}; RESET ROLE"
        if one.acting_as not in ("", owner):
            text = f"BEGIN; ALTER ROLE {role} NOSUPERUSER; {text}; ALTER ROLE {role} SUPERUSER; COMMIT"
        texts.append(text)
    return texts


def _allow(row: Row, version: int) -> str:
    options = " WITH INHERIT TRUE, SET TRUE" if version >= MEMBERSHIP_OPTIONS_VERSION else ""
    return f"GRANT {spell_identifier(row.text('member_of'))} TO {spell_identifier(row.text('own_role'))}{options}"


def _ask(what: str, statements: Sequence[str], otherwise: str = "") -> str:
    """Returns a sentence with these statements. It has the first ones that fit, each of them whole, and the number of
    the others, which follow once those are run. `otherwise`: what to do if the first does not fit.
    """
    if not statements:
        return ""
    ends = accumulate(len(one) + len("; ") for one in statements)
    shown = sum(end - len("; ") <= _LONGEST_STATEMENTS for end in ends)
    left = len(statements) - shown
    text = "; ".join(statements[:shown]) + (f"; and {left} more" if left else "")
    return f". A superuser can {what}: {text if shown else otherwise}"


async def _read_actors(connection: Connection, names: Iterable[str]) -> list[Row]:
    return await fetch(connection, queries.privileges("actors", raw=has_raw_names(connection)), *divide_names(names))
