"""Decides whether the role's password is the declared one: what to set, what to record, and what to fetch first.

While the Secret has the recorded version and the role the recorded verifier, nothing is read or hashed. Otherwise a
background task fetches what is missing, and the next reconcile decides with its result.
"""

from dataclasses import dataclass, replace

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.connection_secret import inputs_digest
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.password import (
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
    PasswordTask,
    SecretVersion,
    is_due,
    within_bounds,
)
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.role import UNSEEN, ObservedRole, Password
from pgrole_controller.core.state import Desired, Observed, Server

#: Sources that are not Secrets. UNSET: the controller creates the role and sets its first password, which is ignored
#: from then on.
NO_PASSWORD = "none"  # noqa: S105 -- a word
LEFT = "left"
UNSET = "unset"

#: Ends messages about a Secret that cannot be used.
LEFT_AS_IS = "the controller leaves the role's password as it is"


@dataclass(frozen=True, slots=True)
class PasswordDecision:
    """The decision for one reconcile. `left`: the password stays as it is; otherwise it becomes `password`.

    `known`: a password from the same source was applied before, so another one is drift. `spoiled`: someone changed the
    connection Secret, and policy Report leaves it so. `altered`: so the generated password in it is not set again,
    although the role has another one. `rotated`: a new password was generated.
    """

    record: PasswordRecord
    left: bool = True
    password: Password | None = None
    known: bool = False
    password_task: PasswordTask | None = None
    pending: PgRoleError | None = None
    spoiled: bool = False
    altered: bool = False
    rotated: bool = False


def decide_password(
    desired: Desired,
    claim: Claim | None,
    existing: ObservedRole | None,
    observed: Observed,
    server: Server,
    policy: Policy,
) -> PasswordDecision:
    record = _record(desired, claim)
    if existing is None:  # the password was dropped with the role
        record = replace(record, source=UNSET if "password" in desired.ignore else "", digest="")
    elif claim is not None and _is_replaced(desired, existing, claim, server):
        record = replace(record, source="", digest="")
    left = _is_left(desired, existing, observed.claim, record)
    if server.enforcing:
        return _keep_known(desired, _record(desired, claim), existing, record, left=left)
    if desired.password_result is not None and _is_for(desired.password_result, desired):
        decided = _use_result(desired, desired.password_result, existing, record, left=left)
        if existing is None or not _is_overtaken(desired.password_result, desired.secrets):
            return decided
        return replace(
            decided,
            password_task=_password_task(desired, existing, decided.record, observed, server, policy, left=left),
        )
    needed = False
    if left:
        decided = _leave(desired, record)
    elif desired.password.origin is PasswordOrigin.NOWHERE:
        decided = _disable(existing, record)
    else:
        decided = PasswordDecision(record)
        needed = not _is_current(desired, existing, record, observed)
    why = _blocker(desired, left=left)
    if why is not None or existing is None:
        return replace(decided, pending=why)
    delivered = desired.connection is None or (
        bool(record.connection) and record.connection == _delivery(desired, server)
    )
    if not needed and delivered and not desired.secrets.stale:
        return decided
    return replace(
        decided, password_task=_password_task(desired, existing, record, observed, server, policy, left=left)
    )


def _record(desired: Desired, claim: Claim | None) -> PasswordRecord:
    """The record of this very object's password; empty if the claim is another object's."""
    return claim.record if claim is not None and _is_own(desired, claim) else PasswordRecord()


def is_cleared(record: PasswordRecord) -> bool:
    """Whether this is the record of a role whose password is still to be set."""
    return record.source in ("", UNSET) and not record.digest


def _is_own(desired: Desired, claim: Claim) -> bool:
    owner = desired.owner
    return (claim.owner.cluster, claim.owner.object_uid) == (owner.cluster, owner.object_uid)


def _is_replaced(desired: Desired, existing: ObservedRole, claim: Claim, server: Server) -> bool:
    """Whether someone dropped the role and created it again, and its password cannot be read. Policy Report reports
    that as drift of the role, so the password is set once that is approved, or with another spec; on another server, it
    is no drift.
    """
    if desired.report_only and claim.system_identifier != server.system_identifier:
        return False
    unknown = existing.role.password == UNSEEN and existing.oid != claim.role_oid
    return unknown and "password" not in desired.ignore


def _is_left(desired: Desired, existing: ObservedRole | None, claim: Claim | None, record: PasswordRecord) -> bool:
    if desired.password.origin is PasswordOrigin.ELSEWHERE:
        return True
    if "password" not in desired.ignore or existing is None:
        return False
    # It is set once in a role that this object created, unless others did that before. Status does not tell who did.
    created = claim is not None and _is_own(desired, claim)
    if not created or record.source not in ("", UNSET):
        return True
    return existing.role.password not in ((None, UNSEEN) if record.source == UNSET else (None,))


def _leave(desired: Desired, record: PasswordRecord) -> PasswordDecision:
    if desired.password.origin is PasswordOrigin.ELSEWHERE:
        return PasswordDecision(replace(record, source="", digest="") if record.source or record.digest else record)
    return PasswordDecision(replace(record, source=LEFT if record.source in ("", UNSET) else record.source))


def _disable(existing: ObservedRole | None, record: PasswordRecord) -> PasswordDecision:
    known = record.source == NO_PASSWORD
    new = replace(record, source=NO_PASSWORD, digest="")
    if known and existing is not None and existing.role.password == UNSEEN:
        return PasswordDecision(new)
    return PasswordDecision(new, left=False, password=None, known=known)


def _blocker(desired: Desired, *, left: bool) -> PgRoleError | None:
    """Returns why the object's Secrets cannot be used, as far as their metadata shows."""
    needs_password = desired.password.origin is PasswordOrigin.SECRET and not (left and desired.connection is None)
    if not needs_password and desired.connection is None:
        return None
    if needs_password and desired.connection is not None and desired.connection.name == desired.password.secret:
        return Refused(
            Reason.INVALID_SPEC,
            f'spec.password.secretRef and spec.connectionSecret both name Secret "{desired.connection.name}", so the '
            f"controller would read back what it writes as the password: choose another name for one of them",
        )
    if desired.secrets.unknown is not None:
        return Waiting(Reason.SECRET_MISSING, f"the controller cannot list Secrets: {desired.secrets.unknown}")
    if needs_password and desired.secrets.password is None:
        return Waiting(
            Reason.SECRET_MISSING,
            f'spec.password.secretRef: Secret "{desired.password.secret}" does not exist in namespace '
            f'{desired.owner.namespace}: create it with key "{desired.password.key}"; until then, {LEFT_AS_IS}',
        )
    return None


def _is_current(desired: Desired, existing: ObservedRole | None, record: PasswordRecord, observed: Observed) -> bool:
    if existing is None or not record.source or record.source != source_of(desired):
        return False
    if desired.password.origin is PasswordOrigin.GENERATED and is_due(
        desired.password, record.rotated_at, {record.rotate}, observed.at
    ):
        return False
    return existing.role.password in (UNSEEN, Password(record.digest))


def _keep_known(
    desired: Desired, before: PasswordRecord, existing: ObservedRole | None, record: PasswordRecord, *, left: bool
) -> PasswordDecision:
    """Without Kubernetes: sets the last verifier again, if this process remembers it. Otherwise, a new role's record
    stays cleared, so that its password is set later. `before`: what the claim records.
    """
    if left:
        return _leave(desired, record)
    if desired.password.origin is PasswordOrigin.NOWHERE:
        return _disable(existing, record)
    if existing is not None and record.digest and existing.role.password in (UNSEEN, Password(record.digest)):
        return PasswordDecision(record)
    remembered = desired.remembered
    if remembered is not None and before.digest and remembered.digest == before.digest:
        password = Password(before.digest, remembered)
        return PasswordDecision(before, left=False, password=password, known=bool(record.digest))
    why = "the controller cannot reach Kubernetes to read the Secret, and restores the password once it can"
    return PasswordDecision(record, pending=Transient(Reason.PROGRESSING, why))


def source_of(desired: Desired) -> str:
    """Identifies the source of the password, as far as metadata shows."""
    if desired.password.origin is PasswordOrigin.GENERATED:
        return name_source(desired.secrets.connection)
    return name_source(desired.secrets.password, desired.password.key)


def name_source(secret: SecretVersion | None, key: str = "") -> str:
    if secret is None:
        return ""
    return f"{secret}/{key}" if key else str(secret)


def _delivery(desired: Desired, server: Server) -> str:
    return name_delivery(desired.secrets.connection, *_inputs(desired, server))


def _inputs(desired: Desired, server: Server) -> tuple[str, str]:
    inputs = inputs_digest(desired.connection, desired.role.name, server.address) if desired.connection else ""
    return inputs, name_copied(desired.password.origin, source_of(desired))


def name_copied(origin: PasswordOrigin, source: str) -> str:
    """Identifies the password that a connection Secret contains. A generated one has no name: it is nowhere else."""
    if origin is PasswordOrigin.SECRET:
        return source
    return "" if origin is PasswordOrigin.GENERATED else NO_PASSWORD


def name_delivery(secret: SecretVersion | None, inputs: str, copied: str) -> str:
    """Identifies the connection Secret as written: its version, its inputs, and the password copied into it."""
    return "" if secret is None else f"{secret} {inputs} {copied}"


def _password_task(
    desired: Desired,
    existing: ObservedRole,
    record: PasswordRecord,
    observed: Observed,
    server: Server,
    policy: Policy,
    *,
    left: bool,
) -> PasswordTask:
    inputs, source = _inputs(desired, server)
    _, written, copied = (record.connection + "  ").split(" ", 2)
    rendered = bool(written) and written == inputs
    delivered = rendered and copied.strip() == source
    remembered, was_set = desired.remembered, _record(desired, observed.claim).digest
    return PasswordTask(
        namespace=desired.owner.namespace,
        role_name=desired.role.name,
        password=desired.password,
        connection=desired.connection,
        secrets=desired.secrets,
        record=record,
        address=server.address,
        at=observed.at,
        iterations=within_bounds(observed.iterations),
        forbidden=policy.forbidden_metadata,
        rendered=rendered,
        delivered=delivered,
        restore=not (desired.report_only and delivered),
        left=left,
        oid=existing.oid,
        last=remembered if remembered and remembered.digest == was_set else None,
    )


def _is_for(password_result: PasswordResult, desired: Desired) -> bool:
    """Tells whether the object still declares what the password task was started for."""
    sent = password_result.password_task
    return sent is not None and (sent.password, sent.connection) == (desired.password, desired.connection)


def _is_overtaken(password_result: PasswordResult, now: ObservedSecrets) -> bool:
    """Tells whether a Secret has changed since the task was started, to something other than the task found."""
    if password_result.password_task is None:
        return False
    before = password_result.password_task.secrets
    found = ("/".join(password_result.source.split("/")[:2]), password_result.connection.partition(" ")[0])
    return any(
        new != old and (new is None or str(new) not in found)
        for old, new in ((before.password, now.password), (before.connection, now.connection))
    )


def _use_result(
    desired: Desired,
    password_result: PasswordResult,
    existing: ObservedRole | None,
    record: PasswordRecord,
    *,
    left: bool,
) -> PasswordDecision:
    """Applies the result of a password task. The role's password may have changed again in the meantime."""
    kept = replace(record, connection=password_result.connection or record.connection)
    if left:
        decided = _leave(desired, kept)
    elif desired.password.origin is PasswordOrigin.NOWHERE:
        decided = _disable(existing, kept)
    elif not password_result.source:
        decided = PasswordDecision(kept, altered=password_result.spoiled and _is_altered(existing, record))
    else:
        decided = _set(password_result, existing.role.password if existing else None, record, kept)
    problem = password_result.problem or decided.pending
    return replace(decided, pending=problem, spoiled=password_result.spoiled)


def _is_altered(existing: ObservedRole | None, record: PasswordRecord) -> bool:
    """Whether the role has another password than the last one that was set, as far as that can be read."""
    stored = existing.role.password if existing else UNSEEN
    return bool(record.digest) and stored not in (UNSEEN, Password(record.digest))


def _set(
    password_result: PasswordResult, stored: Password | None, record: PasswordRecord, kept: PasswordRecord
) -> PasswordDecision:
    new = replace(
        kept, source=password_result.source, rotated_at=password_result.rotated_at, rotate=password_result.rotate
    )
    known = record.source == password_result.source
    unchanged = stored in (UNSEEN, Password(record.digest))
    if known and unchanged:
        return PasswordDecision(new)
    if password_result.fits and stored == Password(password_result.fits):
        return PasswordDecision(replace(new, digest=password_result.fits))
    if password_result.verifier is None:
        changed = Transient(Reason.PROGRESSING, "the password changed again while the controller read it")
        return PasswordDecision(record, pending=changed)
    password = Password(password_result.verifier.digest, password_result.verifier)
    return PasswordDecision(
        replace(new, digest=password.digest),
        left=False,
        password=password,
        known=known or (not unchanged and _is_set_last(password_result, record)),
        rotated=None not in (record.rotated_at, password_result.rotated_at)
        and password_result.rotated_at != record.rotated_at,
    )


def _is_set_last(password_result: PasswordResult, record: PasswordRecord) -> bool:
    """Whether the Secret was only written again, and has the password that was set last."""
    if not record.digest:
        return False
    if password_result.rotated_at is not None:
        return password_result.rotated_at == record.rotated_at
    return password_result.same and _without_version(password_result.source) == _without_version(record.source)


def _without_version(source: str) -> tuple[str, ...]:
    uid, _, version_and_key = source.partition("/")
    return uid, *version_and_key.split("/")[1:]
