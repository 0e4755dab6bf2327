"""What a folded declaration leaves out, as comments in an export."""

from collections.abc import Iterable, Mapping

from pgrole_controller.core.names import name_some
from pgrole_controller.core.privileges.acl import DefaultAcl, ObservedAcl
from pgrole_controller.core.privileges.default_acl_decision import REVOKED_TYPES, name_type
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference

#: End of the reason why a schema is unmanaged in which default privileges cannot be declared.
DEFAULTS_DIFFER = "differ from what createdBy means"


def note_undeclarable(oid: int, acls: Iterable[ObservedAcl], defaults: Iterable[DefaultAcl]) -> tuple[str, ...]:
    """Names what no PgRole can declare. `acls`: of such objects. `defaults`: for the role with this oid."""
    notes: list[str] = []
    some = [acl.object.label for acl in acls if acl.object.owner != oid]
    if some:
        notes.append(f"not declarable, and left alone: privileges on {name_some(sorted(some))}")
    left = [
        f"{name_type(one.object_type)} of {one.creator_name}"
        for one in defaults
        if one.object_type not in REVOKED_TYPES and one.creator != oid
    ]
    if left:
        notes.append(f"not declarable, and left alone: default privileges on {name_some(sorted(left))}")
    return tuple(notes)


def note_reported(reported: Iterable[PrivilegeDifference]) -> tuple[str, ...]:
    """Names what keeps the object from being Ready. `reported`: by the decision about the declaration."""
    some = sorted({one.what for one in reported})
    if not some:
        return ()
    remedy = "revoke them, or list their schemas in unmanaged"
    return (f"reported as drift (DriftReported) until you {remedy}: {name_some(some)}",)


def note_unmanaged(unmanaged: Mapping[str, str]) -> tuple[str, ...]:
    """Names the schemas that are not managed, by reason. "" stands for what belongs to no schema.

    Undeclared default privileges stay there only if no PgRole of the role has declared them, which is unknown here.
    """
    by_reason: dict[str, list[str]] = {}
    for schema, why in sorted(unmanaged.items()):
        by_reason.setdefault(why, []).append(f"schema {schema}" if schema else "all schemas")
    notes = [f"unmanaged: {name_some(schemas)}: {why}" for why, schemas in by_reason.items()]
    if any(why.endswith(DEFAULTS_DIFFER) for why in by_reason):
        notes.append("if the role has a PgRole with createdBy, applying this one revokes these: plan lists them")
    return tuple(notes)
