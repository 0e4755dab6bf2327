"""What a round in one database records there: digests, counts, last drifts, history, approvals that were acted on."""

from collections.abc import Iterable
from dataclasses import dataclass

from pgrole_controller.controller.privileges.privilege_approval import build_approval_statements
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress, shorten_drift
from pgrole_controller.core.database_options import HistoryConfig
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, PrivilegeDrift
from pgrole_controller.postgres.drift_history import RecordedDrift, build_record_statement
from pgrole_controller.postgres.privileges.acl_transaction import Statement
from pgrole_controller.postgres.privileges.stored_state import build_applied_statement


@dataclass(frozen=True, slots=True)
class RoundRecords:
    """Builds the statements. `cluster`: of this controller's objects. `stores`: the database has its part of schema
    pgrole; without, there are none.
    """

    database: str
    cluster: str
    history: HistoryConfig
    stores: bool

    def build(self, some: Iterable[PrivilegeProgress]) -> list[Statement]:
        """What these roles' repairs corrected; of those without an error also that everything is applied."""
        statements: list[str] = []
        history: list[RecordedDrift] = []
        for one in some if self.stores else ():
            if one.error is None and not (one.needs_storing or one.told or one.approval):
                continue
            if one.error is None or one.told:
                statements.append(_store(one))
            statements += build_approval_statements([one])
            history += self.record_told(one)
        if history:
            statements.append(build_record_statement(history, self.history))
        return [(";\n".join(statements), ())] if statements else []

    def record_told(self, one: PrivilegeProgress) -> list[RecordedDrift]:
        """What this role's repairs corrected."""
        return [self.record(one.grantee, drift, by) for drift, _, by in one.told]

    def record(self, grantee: Grantee, drift: PrivilegeDrift, by: DriftAuthor) -> RecordedDrift:
        return RecordedDrift(
            grantee.role_name,
            ("privileges",),
            drift.corrected,
            database=self.database,
            at=drift.time,
            by=by,
            cluster=self.cluster,
            words=drift.words,
        )


def _store(one: PrivilegeProgress) -> str:
    grantee = one.grantee
    applied = one.declaration if one.error is None else one.applied.declaration
    drift = shorten_drift(one.told[-1][0]) if one.told else None
    return build_applied_statement(grantee.oid, grantee.role_name, grantee.uid, applied, drift)
