"""Acts on the approval of reported privilege drift, in a round of one database.

Where the database stores nothing, no approval is offered: it could act again after a restart.
"""

from dataclasses import replace

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.approval import Approval, PrivilegeOffer, digest_privilege_drift, tell_approval
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.acl_comparison import RememberedObjects
from pgrole_controller.core.privileges.acl_decision import decide_privileges
from pgrole_controller.core.privileges.awaited_privileges import AppliedDeclaration
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import phrases
from pgrole_controller.core.privileges.privilege_result import PrivilegeNews
from pgrole_controller.postgres.privileges.database_session import DatabaseSession

#: Characters of an Event's note that are left for what was corrected.
_NOTE = 800


def consider_approval(
    one: PrivilegeProgress,
    observed: ObservedDatabase,
    new_objects: frozenset[ObjectId] | None,
    remembered: RememberedObjects,
    session: DatabaseSession,
) -> None:
    """Notes what can be approved. If exactly that is approved, the decision becomes its correction."""
    one.approval, one.role.offer = None, None
    grantee, decision = one.grantee, one.decision
    is_whole = observed.complete and observed.defaults is not None
    if (decision.changes or decision.default_changes) and one.role.failure is None:
        return  # what new objects need is granted first, if it can be
    if not (grantee.report_only and decision.reported and is_whole and session.stores) or grantee.refused:
        return
    correction = decide_privileges(
        replace(grantee, report_only=False),
        observed,
        one.applied.declaration,
        new_objects=new_objects,
        remembered=remembered,
    )
    left = set(correction.reported)
    corrected = [difference for difference in decision.reported if difference not in left]
    if not corrected:
        return
    place = (
        session.identity.system_identifier,
        session.database,
        grantee.uid,
        grantee.generation,
        grantee.oid,
        AppliedDeclaration.parse(one.applied.declaration).digest,
    )
    digest = digest_privilege_drift(place, correction.changes, correction.default_changes)
    one.role.offer = PrivilegeOffer(digest, phrases(corrected))
    if not session.enforcing and grantee.approval.covers(digest, one.applied.approve_handled):
        one.decision, one.approval, one.role.offer = correction, grantee.approval, None


def mention_approval(news: PrivilegeNews, approval: Approval) -> PrivilegeNews:
    """Says in the Event that someone approved the correction."""
    return replace(news, note=f"{news.note[:_NOTE]}; {tell_approval(approval)}")
