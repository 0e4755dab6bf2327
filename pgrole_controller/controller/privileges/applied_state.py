"""What was last applied for a role, and its last drift: as a database stores them, and as a round takes them over."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.controller.privileges.role_memory import AppliedState
from pgrole_controller.core.privileges.awaited_privileges import AppliedDeclaration
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, PrivilegeDrift
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.stored_state import StoredState


def restore_applied(
    one: PrivilegeProgress, stored: StoredState, remembered: Mapping[int, AppliedState], session: DatabaseSession
) -> None:
    """Takes over what was last applied. `remembered`, by oid: where the database stores nothing."""
    oid, database = one.grantee.oid, session.database
    if not session.stores:
        set_applied(one, remembered.get(oid, AppliedState()), database)
        return
    found = stored.find(oid)
    if found is None or found.holder != one.grantee.holder_in(database):
        set_applied(one, AppliedState(), database)
        return
    declaration, moved = found.declaration, found.made_for != (session.identity.system_identifier, oid)
    if moved and found.made_for is not None:
        declaration = _translate(declaration, one.grantee, database, found.made_for[1])
    set_applied(one, AppliedState(declaration, found.drift_count, found.approve_handled, moved), database)
    if not one.role.last_drifts:
        one.role.last_drifts = _restore_drift(found.last_drift)


def set_applied(one: PrivilegeProgress, applied: AppliedState, database: str) -> None:
    """Sets what was last applied. The digest covers former declarations, too: when the claim forgets them, the present
    one stays applied. Otherwise the next round would take a drift for a part of a new declaration.
    """
    last, role = AppliedDeclaration.parse(applied.declaration), one.role
    spec = one.grantee.spec_of(database)
    if last.digest == role.digest:
        role.applied_as = role.applied_as if applied.stale else (last.digest, *spec)
    elif role.applied_as == (last.digest, *spec):
        applied = replace(applied, declaration=AppliedDeclaration(role.digest, last.awaited).text, stale=True)
    else:
        role.applied_as = None
    one.applied = applied


def _translate(stored: str, grantee: Grantee, database: str, oid: int) -> str:
    """`stored`: applied on another server, where the role had this oid. Returns the text for its present oid."""
    last = AppliedDeclaration.parse(stored)
    if last.digest != replace(grantee, oid=oid).digest_of(database):
        return stored
    return AppliedDeclaration(grantee.digest_of(database), last.awaited).text


def _restore_drift(stored: Mapping[str, object] | None) -> tuple[PrivilegeDrift, ...]:
    """The drift that `shorten_drift` stored; none if another version stored it."""
    match stored:
        case {"time": str(time), "words": [*words], "count": int(count), "login": str(login), "proof": str(proof)}:
            try:
                at = datetime.fromisoformat(time)
                by = DriftAuthor(Evidence(proof), login)
            except ValueError:
                return ()
            return (PrivilegeDrift(at, tuple(map(str, words)), count, corrected=True, by=by),)
    return ()


def shorten_drift(drift: PrivilegeDrift) -> dict[str, object]:
    return {
        "time": drift.time.isoformat(),
        "words": [words[:120] for words in drift.words[:5]],
        "count": drift.count,
        "login": drift.by.login,
        "proof": drift.by.proof.value,
    }
