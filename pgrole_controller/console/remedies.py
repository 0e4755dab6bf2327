"""What each reason of a condition means, and what to do about it, in words for the person on call."""

from dataclasses import dataclass

from pgrole_controller.core.outcome import CONNECTED, RECONCILED, mention_privileges

#: Messages of Ready that say no more than its meaning.
_PLAIN = frozenset({RECONCILED.message, mention_privileges(RECONCILED.message), CONNECTED.message})


@dataclass(frozen=True, slots=True)
class ReasonAdvice:
    """`meaning` of a reason, and what to do. `action` is empty if there is nothing to do."""

    meaning: str
    action: str

    def covers(self, message: str) -> bool:
        """Whether the condition's message says no more."""
        return message in _PLAIN or message == self.meaning


_ROLES = {
    "Reconciled": ReasonAdvice("The role in the database is as declared.", ""),
    "Progressing": ReasonAdvice("The controller is still applying the spec, or the deletion.", "Wait a moment."),
    "Suspended": ReasonAdvice(
        "The controller neither compares nor changes the role.",
        "Set spec.suspend to false, or end the suspension of the server.",
    ),
    "MembershipPending": ReasonAdvice(
        "A role in spec.memberOf does not exist. Everything else is applied.",
        "Create that role. The membership follows at once.",
    ),
    "PrivilegePending": ReasonAdvice(
        "A database, schema, object or creator in spec.privileges does not exist, or cannot be reached. "
        "Everything else is applied.",
        "Create what the message names. The privileges follow.",
    ),
    "SecretMissing": ReasonAdvice(
        "A Secret, a key of it, or the permission to read it is missing. Everything else is applied.",
        "Create the Secret, or grant the controller the permission in this namespace.",
    ),
    "Conflict": ReasonAdvice(
        "Another PgRole has the role, the connection Secret belongs to something else, or something removes or "
        "refuses the object's finalizer.",
        "For the role: delete this object and create it with another spec.name. For the Secret: name another one. "
        "For the finalizer: let the webhook keep it, or set spec.deletionPolicy to Retain.",
    ),
    "RoleExists": ReasonAdvice(
        "The role existed before this object, and it is not this object's.",
        "Set spec.adopt to true to take it over, or delete this object and create it with another spec.name.",
    ),
    "ServerNotReady": ReasonAdvice(
        "The controller cannot use the server now. It tries again by itself.",
        "Look at the server's page for the cause.",
    ),
    "ServerGone": ReasonAdvice(
        "No PgServer has the name in spec.serverRef.",
        "Create the PgServer, or delete this object and create it with another serverRef.",
    ),
    "NotAllowed": ReasonAdvice(
        "The server's policy denies the spec, or what the existing role holds.",
        "Remove what the message names from the spec, or have the server's administrator extend spec.allow.",
    ),
    "Protected": ReasonAdvice(
        "No PgRole may change that role.", "Delete this object and create it with another spec.name."
    ),
    "InvalidSpec": ReasonAdvice(
        "PostgreSQL cannot accept a field, the password, or a template.",
        "Correct the field that the message names.",
    ),
    "NameTaken": ReasonAdvice(
        "Someone renamed roles in the database, and another role now has the name.",
        "Drop or rename one of the two roles.",
    ),
    "ClaimedElsewhere": ReasonAdvice(
        "An object in another cluster has the role.",
        "Delete that object with spec.deletionPolicy Retain, then adopt the role here. Or move the claims.",
    ),
    "DropBlocked": ReasonAdvice(
        "The role cannot be dropped yet.",
        "Remove what the message names. Or set spec.deletionPolicy to Retain, which releases the object at once.",
    ),
    "DatabaseError": ReasonAdvice(
        "PostgreSQL refused a statement, or a database does not exist. The controller tries again.",
        "Look at the message: it has PostgreSQL's answer.",
    ),
    "Contested": ReasonAdvice(
        "Something else reverts every repair, so the controller repairs less often.",
        "Stop the other writer, or list the field in spec.drift.ignore.",
    ),
    "InternalError": ReasonAdvice(
        "The controller met an unexpected error with this object. Other objects are not affected.",
        "Report it with the controller's log.",
    ),
    "DriftReported": ReasonAdvice(
        "The role differs from the spec, and the controller leaves it as it is.",
        "Undo the change in the database, approve its correction, or change the spec. Revoke privileges that no PgRole "
        "can declare.",
    ),
}
_SERVERS = {
    "Reconciled": ReasonAdvice("The controller is connected and keeps the roles of this server.", ""),
    "Progressing": ReasonAdvice("The controller's first attempt to connect has not finished.", "Wait a moment."),
    "Suspended": ReasonAdvice(
        "A superuser suspended all changes on this server.",
        "End the suspension in the database: see docs/running.md, Suspend a server.",
    ),
    "ServerNotReady": ReasonAdvice(
        "The controller is not connected. It tries again by itself.",
        "Look at the message: it has the cause. Check hosts, certificates, credentials and the network.",
    ),
    "Conflict": ReasonAdvice(
        "An older PgServer names the same live server.",
        "Delete one of the two PgServers, or point this one to another server.",
    ),
    "InvalidSpec": ReasonAdvice(
        "This version of the controller cannot accept the spec.", "Correct the field in the message."
    ),
}
_UNKNOWN = ReasonAdvice("", "")
_MISSING = ReasonAdvice(
    "The controller has not processed this object yet.", "Check that the controller runs and leads."
)
_OUTLOOKS = {
    "stalled": "This does not end by itself: someone has to change something.",
    "retrying": "The controller keeps trying by itself.",
}


def find_role_remedy(reason: str) -> ReasonAdvice:
    """Returns meaning and remedy of a PgRole's reason; both are empty if the reason is unknown."""
    return _ROLES.get(reason, _UNKNOWN) if reason else _MISSING


def find_server_remedy(reason: str) -> ReasonAdvice:
    """Returns meaning and remedy of a PgServer's reason; both are empty if the reason is unknown."""
    return _SERVERS.get(reason, _UNKNOWN) if reason else _MISSING


def describe_outlook(state: str) -> str:
    """Says whether a state ends by itself; empty for other states."""
    return _OUTLOOKS.get(state, "")
