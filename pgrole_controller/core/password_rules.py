"""Is the role's password what was asked for? What to set, what to remember, and what must be fetched first.

Nothing is read or hashed as long as the Secret has the version that the claim remembers, and the role the verifier that
was set. Else an errand fetches what is missing, and the next look settles it with what the errand brought.
"""

from dataclasses import dataclass, replace

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.connection_secret import inputs_digest
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.password import (
    Credential,
    Errand,
    Origin,
    Record,
    SecretsSeen,
    SecretVersion,
    is_due,
    within_bounds,
)
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.role import UNSEEN, Found, Password
from pgrole_controller.core.state import Ask, Server, Sight

#: Sources that are no Secret.
NO_PASSWORD = "none"  # noqa: S105 -- a word
LEFT = "left"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What follows for one look. `left`: the password stays whatever it is; else it shall be `password`.

    `known`: the password was brought in from the same source before, so that another one is drift. `spoiled`: somebody
    changed the connection Secret, and under Report it is left so. `rotated`: another password was generated.
    """

    record: Record
    left: bool = True
    password: Password | None = None
    known: bool = False
    errand: Errand | None = None
    pending: PgRoleError | None = None
    spoiled: bool = False
    rotated: bool = False


def settle(
    ask: Ask, claim: Claim | None, there: Found | None, sight: Sight, server: Server, policy: Policy
) -> Settlement:
    record = _record(ask, claim)
    if there is None and record != Record():  # what was set went with the role
        record = replace(record, source="", digest="")
    left = _is_left(ask, there, claim, record)
    if server.away:
        return _keep(ask, claim, there, left=left)
    if ask.credential is not None and _is_for(ask.credential, ask):
        settled = _use(ask, ask.credential, there, record, left=left)
        if there is None or not _is_overtaken(ask.credential, ask.secrets):
            return settled
        return replace(settled, errand=_errand(ask, there, settled.record, sight, server, policy, left=left))
    needed = False
    if left:
        settled = _leave(ask, record)
    elif ask.password.origin is Origin.NOWHERE:
        settled = _disable(there, record)
    else:
        settled = Settlement(record)
        needed = not _is_settled(ask, there, record, sight)
    why = _obstacle(ask, left=left)
    if why is not None or there is None:
        return replace(settled, pending=why)
    delivered = ask.connection is None or (bool(record.connection) and record.connection == _delivery(ask, server))
    if not needed and delivered and not ask.secrets.stale:
        return settled
    return replace(settled, errand=_errand(ask, there, record, sight, server, policy, left=left))


def _record(ask: Ask, claim: Claim | None) -> Record:
    """What is remembered of this very object's password."""
    if claim is None or (claim.owner.cluster, claim.owner.object_uid) != (ask.owner.cluster, ask.owner.object_uid):
        return Record()
    return claim.record


def _is_left(ask: Ask, there: Found | None, claim: Claim | None, record: Record) -> bool:
    if ask.password.origin is Origin.ELSEWHERE:
        return True
    # Left to others once the role is there: when it is adopted at once, else after the first that was set.
    return "password" in ask.ignore and there is not None and (claim is None or bool(record.source))


def _leave(ask: Ask, record: Record) -> Settlement:
    if ask.password.origin is Origin.ELSEWHERE:
        return Settlement(replace(record, source="", digest="") if record.source or record.digest else record)
    return Settlement(replace(record, source=record.source or LEFT))


def _disable(there: Found | None, record: Record) -> Settlement:
    known = record.source == NO_PASSWORD
    new = replace(record, source=NO_PASSWORD, digest="")
    if known and there is not None and there.role.password == UNSEEN:
        return Settlement(new)
    return Settlement(new, left=False, password=None, known=known)


def _obstacle(ask: Ask, *, left: bool) -> PgRoleError | None:
    """Why the Secrets of an object cannot be used, as far as metadata tells."""
    needs_password = ask.password.origin is Origin.SECRET and not (left and ask.connection is None)
    if not needs_password and ask.connection is None:
        return None
    if needs_password and ask.connection is not None and ask.connection.name == ask.password.secret:
        return Refused(
            Reason.INVALID_SPEC,
            f'spec.password.secretRef and spec.connectionSecret both name Secret "{ask.connection.name}", so the '
            f"controller would read back what it writes as the password: choose another name for one of them",
        )
    if ask.secrets.unknown is not None:
        return Waiting(Reason.SECRET_MISSING, f"the controller does not know the Secrets: {ask.secrets.unknown}")
    if needs_password and ask.secrets.password is None:
        return Waiting(
            Reason.SECRET_MISSING,
            f'spec.password.secretRef: Secret "{ask.password.secret}" does not exist in namespace '
            f"{ask.owner.namespace}; the role keeps its current password",
        )
    return None


def _is_settled(ask: Ask, there: Found | None, record: Record, sight: Sight) -> bool:
    if there is None or not record.source or record.source != source_of(ask):
        return False
    if ask.password.origin is Origin.GENERATED and is_due(ask.password, record.rotated_at, {record.rotate}, sight.at):
        return False
    return there.role.password in (UNSEEN, Password(record.digest))


def _is_remembered(ask: Ask, record: Record) -> bool:
    return ask.remembered is not None and bool(record.digest) and ask.remembered.digest == record.digest


def _restore(ask: Ask, record: Record) -> Settlement:
    return Settlement(record, left=False, password=Password(record.digest, ask.remembered), known=True)


def _keep(ask: Ask, claim: Claim | None, there: Found | None, *, left: bool) -> Settlement:
    """While Kubernetes is away: the verifier that was set last is set again, if this process knows it."""
    record = _record(ask, claim)
    if left:
        return _leave(ask, record)
    if ask.password.origin is Origin.NOWHERE:
        return _disable(there, record)
    if there is not None and there.role.password in (UNSEEN, Password(record.digest)):
        return Settlement(record)
    if _is_remembered(ask, record):
        return _restore(ask, record)
    why = "the controller cannot reach Kubernetes to read the Secret, and restores the password once it can"
    return Settlement(record, pending=Transient(Reason.PROGRESSING, why))


def source_of(ask: Ask) -> str:
    """What the password is made from, as far as metadata tells."""
    if ask.password.origin is Origin.GENERATED:
        return name_source(ask.secrets.connection)
    return name_source(ask.secrets.password, ask.password.key)


def name_source(secret: SecretVersion | None, key: str = "") -> str:
    if secret is None:
        return ""
    return f"{secret}/{key}" if key else str(secret)


def _delivery(ask: Ask, server: Server) -> str:
    return name_delivery(ask.secrets.connection, *_inputs(ask, server))


def _inputs(ask: Ask, server: Server) -> tuple[str, str]:
    inputs = inputs_digest(ask.connection, ask.wanted.name, server.address) if ask.connection else ""
    return inputs, source_of(ask) if ask.password.origin is Origin.SECRET else ""


def name_delivery(secret: SecretVersion | None, inputs: str, source: str) -> str:
    """The connection Secret that was written, what went into it, and the password that was copied into it."""
    return "" if secret is None else f"{secret} {inputs} {source}"


def _errand(
    ask: Ask, there: Found, record: Record, sight: Sight, server: Server, policy: Policy, *, left: bool
) -> Errand:
    inputs, source = _inputs(ask, server)
    _, written, copied = (record.connection + "  ").split(" ", 2)
    rendered = bool(written) and written == inputs
    delivered = rendered and copied.strip() == source
    return Errand(
        namespace=ask.owner.namespace,
        role_name=ask.wanted.name,
        password=ask.password,
        connection=ask.connection,
        secrets=ask.secrets,
        record=record,
        address=server.address,
        at=sight.at,
        iterations=within_bounds(sight.iterations),
        forbidden=policy.forbidden_metadata,
        rendered=rendered,
        delivered=delivered,
        restore=not (ask.report_only and delivered),
        left=left,
        oid=there.oid,
    )


def _is_for(credential: Credential, ask: Ask) -> bool:
    """Whether the object still asks for what the errand was sent for."""
    sent = credential.errand
    return sent is not None and (sent.password, sent.connection) == (ask.password, ask.connection)


def _is_overtaken(credential: Credential, now: SecretsSeen) -> bool:
    """Whether a Secret has changed since the errand was sent, to something else than what it found."""
    if credential.errand is None:
        return False
    before = credential.errand.secrets
    found = ("/".join(credential.source.split("/")[:2]), credential.connection.partition(" ")[0])
    return any(
        new != old and (new is None or str(new) not in found)
        for old, new in ((before.password, now.password), (before.connection, now.connection))
    )


def _use(ask: Ask, credential: Credential, there: Found | None, record: Record, *, left: bool) -> Settlement:
    """What an errand brought. It may be known by now that the role logs in with something else again."""
    kept = replace(record, connection=credential.connection or record.connection)
    if left:
        settled = _leave(ask, kept)
    elif ask.password.origin is Origin.NOWHERE:
        settled = _disable(there, kept)
    elif not credential.source:
        settled = Settlement(kept)
    else:
        settled = _set(credential, there.role.password if there else None, record, kept)
    problem = credential.problem or settled.pending
    return replace(settled, pending=problem, spoiled=credential.spoiled)


def _set(credential: Credential, stored: Password | None, record: Record, kept: Record) -> Settlement:
    new = replace(kept, source=credential.source, rotated_at=credential.rotated_at, rotate=credential.rotate)
    known = record.source == credential.source
    if known and stored in (UNSEEN, Password(record.digest)):
        return Settlement(new)
    if credential.fits and stored == Password(credential.fits):
        return Settlement(replace(new, digest=credential.fits))
    if credential.verifier is None:
        again = Transient(Reason.PROGRESSING, "the password changed again while the controller read it")
        return Settlement(record, pending=again)
    password = Password(credential.verifier.digest, credential.verifier)
    return Settlement(
        replace(new, digest=password.digest),
        left=False,
        password=password,
        known=known,
        rotated=record.rotated_at is not None and credential.rotated_at != record.rotated_at,
    )
