"""Decides which privileges of a role are granted and revoked in one database, and which differences are drift.

A declared database is exact: undeclared privileges of the role are revoked, whoever granted them. Exceptions are what
the role owns, objects of extensions, schemas that the declaration does not manage, and kinds that cannot be declared.
In a database that only a former declaration lists, only what that declaration granted is revoked. The role of a refused
object is granted nothing; all else is as if it were accepted.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.names import spell_name
from pgrole_controller.core.privileges.acl import (
    POSTGRESQL_SCHEMAS,
    AclChange,
    DefaultAclChange,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.acl_comparison import AclComparison, DeniedPrivilege, RememberedObjects
from pgrole_controller.core.privileges.awaited_privileges import (
    AppliedDeclaration,
    PendingNames,
    SimilarRoutines,
    label_of,
    mark_object,
    mark_schema,
)
from pgrole_controller.core.privileges.default_acl_decision import DefaultsComparison
from pgrole_controller.core.privileges.grantee import Grantee, Refusal
from pgrole_controller.core.privileges.object_patterns import CompiledPrivileges, compile_privileges
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import DifferenceClassifier, PrivilegeDifference
from pgrole_controller.core.privileges.privilege_policy import check_database, check_declarable
from pgrole_controller.core.privileges.routine_signature import split_signature


@dataclass(frozen=True, slots=True)
class PrivilegeDecision:
    """What to do about one grantee in one database.

    - `changes`, `default_changes`: for each object, revokes come first.
    - `drift`: the differences that arose after the declaration was applied.
    - `extended`: privileges missing on new objects, and those that waited. `awaited`: something to grant or
      revoke waited.
    - `left_over`: what is revoked because the controller granted it on objects that were renamed, moved to another
      schema or given another owner since.
    - `denied`: as in RememberedObjects, from now on, of the objects that were read; None: nothing was compared.
    - `pending`: Refused and at most one Waiting; everything else is applied nevertheless.
    - `reported`: differences that are not corrected.
    - `confirmed`: nothing is left that only a former declaration granted; False after a partial read.
    - `current`: what was last applied is what is declared now, or is left to others.
    - `applied`: the text of the AppliedDeclaration to store with the changes; empty: none, as after a partial read.
    - `kept`: of what is stored, what stays so while some of the changes are held back.
    """

    changes: tuple[AclChange, ...] = ()
    default_changes: tuple[DefaultAclChange, ...] = ()
    drift: tuple[PrivilegeDifference, ...] = ()
    extended: tuple[PrivilegeDifference, ...] = ()
    awaited: bool = False
    left_over: tuple[PrivilegeDifference, ...] = ()
    denied: Set[DeniedPrivilege] | None = field(default=None, compare=False)
    pending: tuple[PgRoleError, ...] = ()
    reported: tuple[PrivilegeDifference, ...] = ()
    confirmed: bool = False
    current: bool = True
    applied: str = ""
    kept: str = ""


def find_objects_to_date(decision: PrivilegeDecision, observed: ObservedDatabase) -> frozenset[ObjectId]:
    """Returns the objects on which something is missing, and creators of default privileges (pg_authid): it is drift
    only if they existed when the declaration was applied.
    """
    missing = [one for one in (*decision.extended, *decision.reported) if not one.held]
    objects = {one.object.id for one in missing if one.object is not None}
    if any(one.object is None for one in missing):
        objects |= {ObjectId("pg_authid", oid) for oid in observed.roles.values()}
    return frozenset(objects)


def decide_privileges(
    grantee: Grantee,
    observed: ObservedDatabase,
    applied: str,
    *,
    new_objects: frozenset[ObjectId] | None = None,
    differing: Sequence[ObservedAcl] | None = None,
    remembered: RememberedObjects = RememberedObjects(),  # noqa: B008 -- frozen
) -> PrivilegeDecision:
    """Compares what is declared with what is held.

    - `applied`: the text of the AppliedDeclaration last stored in this database; empty if nothing was applied.
    - `new_objects`: objects that appeared since then: privileges missing on them are not drift. The id of a new creator
      (pg_authid) or schema means the same for its default privileges. None: unknown; then no missing privilege is
      drift.
    - `differing`: as `AclScreening.select`; None: every object is compared.
    """
    database = observed.facts.database
    unmanaged = _decide_unmanaged(grantee, database)
    if unmanaged is not None:
        return unmanaged
    digest, last = grantee.digest_of(database), AppliedDeclaration.parse(applied)
    declared = grantee.declared.get(database)
    # What the role was granted in a database that is given up is revoked all the same, also under policy Report.
    ignored = grantee.ignored and declared is not None and bool(last.digest)
    current = ignored or last.digest == digest
    if grantee.refused is Refusal.UNKNOWN and not current:
        return PrivilegeDecision()
    classifier = DifferenceClassifier(
        current=current,
        report_only=grantee.report_only and declared is not None,
        new_objects=new_objects,
        applied=last,
        ignored=ignored,
        refused=grantee.refused is not None,
    )
    declaration = None if declared is None else compile_privileges(declared, observed.facts.version)
    pending = PendingNames(database, only=last if ignored else None)
    comparison = AclComparison(grantee, observed, declaration, classifier, pending, remembered)
    for acl in _find_concerning(grantee, observed, declaration) if differing is None else differing:
        comparison.compare(acl)
    defaults = DefaultsComparison(grantee, observed, declaration, classifier, pending)
    if observed.defaults is not None:
        defaults.compare()
    former_held = comparison.former_held or defaults.former_held
    is_whole = observed.complete and observed.defaults is not None
    if declaration is not None and observed.complete:
        _find_missing(declaration, observed, pending)
    kept = last.without_done(pending, classifier.met) if is_whole and current else last
    undeclarable = None if declared is None else check_declarable(declared, observed.facts.version)
    return PrivilegeDecision(
        changes=tuple(comparison.changes),
        default_changes=tuple(defaults.changes),
        drift=tuple(classifier.drift),
        extended=tuple(classifier.extended),
        awaited=classifier.awaited,
        left_over=tuple(classifier.left_over),
        denied=comparison.denied,
        pending=(*([undeclarable] if undeclarable else []), *pending.errors()),
        reported=tuple(classifier.reported),
        confirmed=is_whole and not former_held,
        current=current,
        applied=_to_store(grantee, digest, kept, pending, current=current, ignored=ignored) if is_whole else "",
        kept=kept.text if is_whole else "",
    )


def _decide_unmanaged(grantee: Grantee, database: str) -> PrivilegeDecision | None:
    """Returns the decision about a database in which nothing is compared; None for all others."""
    if grantee.suspended or database not in grantee.databases:
        return PrivilegeDecision(confirmed=not grantee.suspended)
    refused = check_database(grantee.policy, database, declared=database in grantee.declared)
    return None if refused is None else PrivilegeDecision(pending=(refused,))


def _find_concerning(
    grantee: Grantee, observed: ObservedDatabase, declaration: CompiledPrivileges | None
) -> Sequence[ObservedAcl]:
    schemas = frozenset[str]() if declaration is None else declaration.schemas_among(observed.index.schemas)
    return observed.index.concerning(grantee.oid, schemas)


def _to_store(
    grantee: Grantee, digest: str, kept: AppliedDeclaration, pending: PendingNames, *, current: bool, ignored: bool
) -> str:
    """Returns the text to store as applied. `digest`: of what is declared. `kept`: of what is stored. What the role
    misses while its object is refused is no drift once that is accepted, not even after a restart.
    """
    if grantee.refused is None:
        return AppliedDeclaration.of(kept.digest if ignored else digest, pending).text
    if not kept.digest:
        return ""
    return (kept.withheld if current and not (ignored or grantee.report_only) else kept).text


def _find_missing(declaration: CompiledPrivileges, observed: ObservedDatabase, pending: PendingNames) -> None:
    """Notes schemas and objects that are declared by exact names but do not exist, or are PostgreSQL's own."""
    names = list(declaration.literal_names())
    for one in names:
        if one.kind is ObjectKind.SCHEMA and one.schema not in observed.schemas:
            pending.add_missing(f"schema {spell_name(one.schema)}", mark_schema(one.schema))
    for one in names:
        if one.kind is ObjectKind.SCHEMA or one.schema not in observed.schemas:
            continue
        existing = observed.index.names_in(one.schema)
        found, similar = existing.has(one.kind, one.name), None
        if not found and one.kind is ObjectKind.ROUTINE:
            name, types = split_signature(one.name)
            overloads = existing.routines.get(name, ())
            found = types is not None and types in overloads
            similar = SimilarRoutines(name, overloads) if overloads else None
        if not found:
            label = label_of(one.kind, one.schema, one.name)
            if one.schema in POSTGRESQL_SCHEMAS:
                pending.add_of_postgresql(label)
            else:
                mark = mark_object(one.kind, one.schema, one.name)
                pending.add_missing(label, mark, mark_schema(one.schema), similar=similar)
