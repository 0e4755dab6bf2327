"""Translates a PgRole object into the desired state."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pgrole_controller.api.validation import read_duration
from pgrole_controller.core.approval import APPROVE, read_approval
from pgrole_controller.core.claim import Owner, Proof
from pgrole_controller.core.connection_secret import DesiredSecret
from pgrole_controller.core.errors import PgRoleError, Refused
from pgrole_controller.core.parameters import Parameters, canonical
from pgrole_controller.core.password import DesiredPassword, ObservedSecrets, PasswordOrigin, PasswordResult, request_of
from pgrole_controller.core.plan import ReassignResult
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, ObjectPrivileges, SchemaAccess
from pgrole_controller.core.role import FIELD_NAMES, Membership, Role, to_microseconds
from pgrole_controller.core.state import Desired, Rival

if TYPE_CHECKING:  # imported with the first object: see `api.reading`
    from pgrole_controller.api.pgrole import PgRole
    from pgrole_controller.api.privileges import DatabasePrivilegesSpec, ObjectPrivilegesSpec, SchemaPrivilegesSpec

#: Every new value of this annotation requests another generated password.
ROTATE = "pgrole.dev/rotate"


#: Fields of Role by their name in spec, for drift.ignore.
_FIELDS = {name: field for field, name in FIELD_NAMES.items()}


def desired_role_of(pgrole: "PgRole") -> Role:
    """Returns the declared role. Raises Refused for settings that the models admit and PostgreSQL cannot read."""
    spec = pgrole.spec
    return Role(
        name=pgrole.role_name,
        login=spec.login,
        superuser=spec.superuser,
        createdb=spec.createdb,
        createrole=spec.createrole,
        inherit=spec.inherit,
        replication=spec.replication,
        bypassrls=spec.bypassrls,
        connection_limit=spec.connection_limit,
        valid_until=None if spec.valid_until is None else to_microseconds(spec.valid_until),
        comment=spec.comment or None,
        member_of=_memberships(pgrole),
        parameters=canonical(spec.parameters),
        database_parameters=_database_parameters(pgrole),
    )


def _read_role(pgrole: "PgRole") -> tuple[Role, Refused | None]:
    """Returns the declared role, and why its settings, which it lacks then, are refused."""
    try:
        return desired_role_of(pgrole), None
    except Refused as refusal:
        spec = pgrole.spec.model_copy(update={"parameters": {}, "database_parameters": []})
        return desired_role_of(pgrole.model_copy(update={"spec": spec})), refusal


def _memberships(pgrole: "PgRole") -> tuple[Membership, ...]:
    held = [Membership(one.role, one.admin, one.inherit, one.set_) for one in pgrole.spec.member_of]
    return tuple(sorted(held, key=lambda membership: membership.role))


def _database_parameters(pgrole: "PgRole") -> tuple[tuple[str, Parameters], ...]:
    declared = ((one.database, canonical(one.parameters)) for one in pgrole.spec.database_parameters)
    return tuple(sorted((database, parameters) for database, parameters in declared if parameters))


def privileges_of(pgrole: "PgRole") -> dict[str, DatabasePrivileges] | None:
    """Returns what the role may do, by database, in canonical order; None if that is not managed."""
    declared = pgrole.spec.privileges
    return None if declared is None else {one.database: _in_database(one) for one in declared}


def _in_database(declared: "DatabasePrivilegesSpec") -> DatabasePrivileges:
    return DatabasePrivileges(
        database=declared.database,
        on_database=frozenset(declared.on_database),
        schemas=tuple(sorted(map(_in_schema, declared.schemas), key=lambda one: one.schema)),
        objects=tuple(sorted(set(map(_on_objects, declared.objects)), key=lambda one: one.rank)),
        created_by=_sorted(declared.created_by),
        unmanaged=_sorted(declared.unmanaged),
    )


def _in_schema(declared: "SchemaPrivilegesSpec") -> SchemaAccess:
    return SchemaAccess(declared.name, frozenset(map(Access, declared.access)), _sorted(declared.except_))


def _on_objects(declared: "ObjectPrivilegesSpec") -> ObjectPrivileges:
    return ObjectPrivileges(
        ObjectKind(declared.kind),
        declared.schema_,
        _sorted(declared.names),
        frozenset(declared.privileges),
        _sorted(declared.columns or ()),
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def desired_of(
    pgrole: "PgRole",
    owner: Owner,
    rivals: Iterable[tuple["PgRole", Policy]],
    proof: Proof | None,
    *,
    secrets: ObservedSecrets | None = None,
    background_result: PasswordResult | ReassignResult | None = None,
) -> Desired:
    """Builds the desired state. `rivals` are the other objects that name the same role on the same server, each with
    its namespace's policy.

    `secrets` are the observed Secrets that the object names. `background_result`: the result of the background task
    started by the last reconcile.
    """
    spec = pgrole.spec
    some = list(rivals)
    role, refusal = _read_role(pgrole)
    return Desired(
        owner=owner,
        role=role,
        refusal=refusal,
        generation=pgrole.metadata.generation or 0,
        adopt=spec.adopt,
        report_only=spec.drift.policy == "Report",
        ignore=frozenset(_FIELDS[name] for name in spec.drift.ignore if name in _FIELDS),
        drop=spec.deletion_policy == "Drop",
        suspended=spec.suspend,
        terminating=pgrole.metadata.deletion_timestamp is not None,
        proof=proof,
        older_rivals=_older(pgrole, some),
        proven_rivals=tuple(_proofs(rival for rival, _ in some)),
        password=_password(pgrole),
        connection=_connection(pgrole),
        secrets=secrets or ObservedSecrets(),
        password_result=background_result if isinstance(background_result, PasswordResult) else None,
        new_owner=spec.reassign_owned_to,
        terminate_sessions=spec.terminate_sessions,
        reassign_result=background_result if isinstance(background_result, ReassignResult) else None,
        privileges=privileges_of(pgrole),
        privileges_ignored="privileges" in spec.drift.ignore,
        approval=read_approval((pgrole.metadata.annotations or {}).get(APPROVE)),
    )


def _password(pgrole: "PgRole") -> DesiredPassword:
    password = pgrole.spec.password
    if password is None:
        return DesiredPassword()
    if password.secret_ref is not None:
        return DesiredPassword(PasswordOrigin.SECRET, secret=password.secret_ref.name, key=password.secret_ref.key)
    if password.generate is None:
        return DesiredPassword(PasswordOrigin.NOWHERE)
    every = password.generate.rotate_every
    return DesiredPassword(
        PasswordOrigin.GENERATED,
        length=password.generate.length,
        rotate_every=read_duration(every) if every else None,
        rotate=request_of((pgrole.metadata.annotations or {}).get(ROTATE)),
    )


def _connection(pgrole: "PgRole") -> DesiredSecret | None:
    secret = pgrole.spec.connection_secret
    if secret is None:
        return None
    template = secret.template
    return DesiredSecret(
        name=secret.name,
        labels=tuple(sorted(template.metadata.labels.items())),
        annotations=tuple(sorted(template.metadata.annotations.items())),
        data=tuple(sorted(template.data.items())),
    )


def proof_of(status: Mapping[str, Any], server_name: str) -> Proof | None:
    """Reads from status what proves ownership of a role on this server; None if it proves nothing."""
    role, server = status.get("role") or {}, status.get("server") or {}
    try:
        if server["name"] != server_name:
            return None
        return Proof(
            role["name"],
            int(role["oid"]),
            int(server["systemIdentifier"]),
            role.get("applied", ""),
            int(status.get("driftCount") or 0),
            str(status.get("passwordSecretVersion") or ""),
            str((status.get("approval") or {}).get("handled") or ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _proofs(rivals: Iterable["PgRole"]) -> Iterator[tuple[str, Proof]]:
    for rival in rivals:
        status = rival.status
        if status and status.role and status.server and status.server.system_identifier.isdecimal():
            proof = Proof(status.role.name, status.role.oid, int(status.server.system_identifier), status.role.applied)
            yield f"{rival.metadata.namespace}/{rival.metadata.name}", proof


def _older(pgrole: "PgRole", rivals: Iterable[tuple["PgRole", Policy]]) -> tuple[Rival, ...]:
    """Returns the older rivals that are active, oldest first. Age is creationTimestamp, then uid."""
    older = sorted(
        ((rival, policy) for rival, policy in rivals if _age(rival) < _age(pgrole)), key=lambda one: _age(one[0])
    )
    return tuple(rival for one, policy in older if (rival := _rival(one, policy)) is not None)


def _age(pgrole: "PgRole") -> tuple[str, str]:
    created = pgrole.metadata.creation_timestamp
    return (created.isoformat() if created else "", pgrole.metadata.uid or "")


def _rival(rival: "PgRole", policy: Policy) -> Rival | None:
    if rival.spec.suspend or rival.metadata.deletion_timestamp is not None:
        return None
    try:
        desired_role = desired_role_of(rival)
    except PgRoleError:
        return None  # it cannot claim anything, and reports its own error
    return Rival(f"{rival.metadata.namespace}/{rival.metadata.name}", desired_role, policy, rival.spec.adopt)
