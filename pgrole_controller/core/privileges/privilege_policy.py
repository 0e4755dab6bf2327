"""Which privileges a role may be declared to have on an object: by the object's owner, or by a rule of the server.

Without rules, the objects of a namespace may declare privileges on what the namespace's own roles own: privileges that
they could grant by logging in as the owner. Some privileges give more than they seem to. On other owners' objects,
these need exact names on both sides, in the declaration and in the rule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.names import explain_names, is_pattern, matches, name_most, name_some, names_itself
from pgrole_controller.core.privileges.acl import (
    FIRST_NORMAL_OID,
    MAINTAIN_SINCE,
    OWN_SCHEMA,
    POSTGRESQL_SCHEMAS,
    TABLE_KINDS,
    DatabaseObject,
    ObjectKind,
    needs_exact_name,
)
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.privileges.object_patterns import covers

#: What to do about a declaration that concerns these objects.
NOT_MANAGED = (
    "privileges on PostgreSQL's own objects are not managed: remove them from spec, and list a predefined role in "
    "memberOf or have a superuser grant them"
)

_ASK = "ask the server's administrator"
_OWNER = f"its owner must be a role of a PgRole in this namespace: change the owner, remove it from spec, or {_ASK}"
_RULES = f"no rule of PgServer.spec.allow.privileges allows it: remove it from spec, or {_ASK}"
_NEVER = "schema pgrole belongs to the controller: remove it from spec"


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """What policies need to know about a database besides its objects.

    - `version`: server_version_num, e.g. 180004.
    - `superusers`: oids of roles with SUPERUSER.
    - `own_roles`: oids of the controller's own roles.
    - `search_path_schemas`: schemas in the search_path of the database, a role or a routine, and schemas with the name
      of a role, because of "$user". `public` is implied. `search_paths_cut`: there may be others, since not every
      search_path was read.
    """

    database: str
    version: int
    superusers: frozenset[int] = frozenset()
    own_roles: frozenset[int] = frozenset()
    search_path_schemas: frozenset[str] = frozenset()
    search_paths_cut: bool = False


@dataclass(frozen=True, slots=True)
class Denial:
    """A privilege that the policy denies: `what`, with the object and its owner, and the `remedy`."""

    what: str
    remedy: str


def check_database(policy: PrivilegePolicy, database: str, *, declared: bool = True) -> Refused | None:
    """Returns why the controller does not manage privileges in this database; None if it does. `declared`: by the spec,
    rather than by former ones.
    """
    remove = "Remove it from spec.privileges, or ask" if declared else "Ask"
    if policy.databases is None:
        why = f"PgServer.spec.databases is absent, so no database has managed privileges: {_ASK} to set it"
    elif not matches(database, policy.databases) or matches(database, policy.but):
        allowed = name_most(policy.databases)
        besides = f", except {name_most(policy.but)}" if policy.but else ""
        why = (
            f"PgServer.spec.databases does not include it; allowed: {allowed}{besides}. {remove} the server's "
            "administrator to include it"
        )
    elif database in policy.templates and not names_itself(database, policy.databases):
        why = (
            "it is a template, and CREATE DATABASE from it fails while the controller is connected to it. "
            f"{remove} the server's administrator to run ALTER DATABASE … IS_TEMPLATE false, or to name it exactly in "
            "PgServer.spec.databases.matchNames"
        )
    else:
        return None
    return Refused(Reason.NOT_ALLOWED, f'spec.privileges: database "{database}": {why}')


def check_template(allowed: tuple[str, ...], database: str) -> Refused | None:
    """Returns why the controller does not manage privileges in this database if that is a template; None if it does.
    `allowed`: as `PrivilegePolicy.databases`.
    """
    return check_database(PrivilegePolicy(databases=allowed, templates=frozenset({database})), database)


def check_declarable(declared: DatabasePrivileges, version: int) -> Refused | None:
    """Returns which part of the declaration no server supports, or not this version (server_version_num); None if none.

    Of the schemas of PostgreSQL, only objects of extensions can be declared, by exact names.
    """
    where = f'spec.privileges: database "{declared.database}"'
    if version < MAINTAIN_SINCE:
        for index, one in enumerate(declared.objects):
            if "MAINTAIN" in one.privileges:
                return Refused(
                    Reason.INVALID_SPEC,
                    f"{where}: objects[{index}].privileges: MAINTAIN requires PostgreSQL 17 or later, this server has "
                    f"{version // 10000}: remove it",
                )
    own = [f"schema {one.schema}" for one in declared.schemas if one.schema in POSTGRESQL_SCHEMAS]
    for index, one in enumerate(declared.objects):
        if one.schema in POSTGRESQL_SCHEMAS:
            own += [f"{one.schema}.{name} (objects[{index}].names)" for name in one.names if is_pattern(name)]
    if own:
        return Refused(Reason.INVALID_SPEC, f"{where}: {name_some(own, most=1)}: {NOT_MANAGED}")
    return None


def find_problems(grantee: Grantee, existing: frozenset[str]) -> dict[str, PgRoleError]:
    """Returns, by database, why no worker can serve it. `existing`: the ones of these databases that exist."""
    problems: dict[str, PgRoleError] = {}
    for database in sorted(grantee.databases):
        refused = check_database(grantee.policy, database, declared=database in grantee.declared)
        if refused is not None:
            problems[database] = refused
        elif database not in existing and database in grantee.declared:
            problems[database] = Waiting(
                Reason.PRIVILEGE_PENDING,
                f'spec.privileges: database "{database}" does not exist yet: create it, or remove it from spec'
                f"{explain_names([database])}",
            )
    return problems


def traits_of(obj: DatabaseObject) -> tuple[object, ...]:
    """Returns what of the object decides whether `why_not_granted` denies a privilege on it."""
    return obj.owner, obj.kind, obj.schema, obj.elevated, obj.extension, obj.id.oid < FIRST_NORMAL_OID


def why_not_granted(
    grantee: Grantee, obj: DatabaseObject, privilege: str, facts: DatabaseFacts, *, column: str = "", literal: bool
) -> Denial | None:
    """Returns why the grantee's object may not declare this privilege; None if it may.

    `literal`: the declaration names the object and its schema exactly. The answer depends on the object's name only in
    its text.
    """
    remedy = _remedy(grantee, obj, privilege, facts, literal=literal)
    if remedy is None:
        return None
    where = obj.label_column(column) if column else obj.label
    return Denial(f'{privilege} on {where} (owner "{obj.owner_name}")', remedy)


def needs_exact_names(grantee: Grantee, obj: DatabaseObject, privilege: str, facts: DatabaseFacts) -> bool:
    """Tells whether a policy can allow this privilege only where both the declaration and a rule have exact names."""
    return obj.schema != OWN_SCHEMA and _guard(grantee, obj, privilege, facts) is not None


def why_not_created_by(grantee: Grantee, creator: int, creator_name: str, facts: DatabaseFacts) -> Denial | None:
    """Returns why the grantee's object may not declare default privileges of this creator; None if it may.

    They change another role's state, so a rule without `owned_by` does not open them, and none opens those of a
    protected role.
    """
    what = f'default privileges of creator "{creator_name}"'
    if matches(creator_name, grantee.policy.protected):
        remedy = "createdBy must not name a role that PgServer.spec.protectedRoles matches: remove it from spec"
        return Denial(what, remedy)
    if creator in grantee.owned and creator not in facts.own_roles:
        return None
    for rule in grantee.policy.rules or ():
        named = rule.owned_by is not None and matches(facts.database, rule.databases)
        if named and _is_owner_allowed(rule, creator, creator_name, facts):
            return None
    return Denial(
        what,
        f"createdBy must name a role of a PgRole in this namespace, or one that ownedBy of a rule of "
        f"PgServer.spec.allow.privileges names: remove it from spec, or {_ASK}",
    )


def _remedy(
    grantee: Grantee, obj: DatabaseObject, privilege: str, facts: DatabaseFacts, *, literal: bool
) -> str | None:
    if obj.schema == OWN_SCHEMA:
        return _NEVER
    guard = _guard(grantee, obj, privilege, facts)
    if grantee.policy.rules is None:
        return guard or (None if obj.owner in grantee.owned else _OWNER)
    allowing = list(_allowing(grantee.policy.rules, obj, privilege, facts))
    if not allowing:
        return _RULES
    if guard is None or (literal and _is_named(allowing, obj, facts)):
        return None
    return guard


def _guard(grantee: Grantee, obj: DatabaseObject, privilege: str, facts: DatabaseFacts) -> str | None:
    """Returns the remedy for a privilege that needs exact names on both sides; None if it needs none."""
    both = "name it exactly in spec, and its schema exactly in a rule of PgServer.spec.allow.privileges"
    if needs_exact_name(obj) and (obj.schema in POSTGRESQL_SCHEMAS or not obj.extension):
        return f"objects of PostgreSQL itself, and in its schemas, need exact names: {both}"
    if obj.owner in grantee.owned:
        return None
    if obj.kind is ObjectKind.ROUTINE and obj.elevated:
        what = "a routine that is SECURITY DEFINER, or in an untrusted language such as C, can do more than its caller"
        return f"{what}: list it in except, or {both}"
    if obj.kind in TABLE_KINDS and privilege in ("TRIGGER", "REFERENCES", "MAINTAIN"):
        return f"{privilege} on a table of another owner can run code as that owner, or block it: {both}"
    if obj.kind is ObjectKind.DATABASE and privilege == "CREATE":
        return (
            "CREATE on a database of another owner allows schemas and extensions: name the database exactly in a rule "
            "of PgServer.spec.allow.privileges"
        )
    if obj.kind is ObjectKind.SCHEMA and privilege == "CREATE":
        if _is_searched(obj, grantee, facts):
            return (
                f"the schema is in the search_path of other roles or of routines, so objects in it can replace those "
                f"they use: {both}"
            )
        if facts.search_paths_cut:
            return (
                f"settings of roles, databases or routines are too long to be read, so the schema may be in the "
                f"search_path of others: {both}"
            )
    return None


def _is_searched(schema: DatabaseObject, grantee: Grantee, facts: DatabaseFacts) -> bool:
    named = ("public", schema.owner_name, grantee.role_name)
    return schema.name in named or schema.name in facts.search_path_schemas


def _allowing(
    rules: Iterable[PrivilegeRule], obj: DatabaseObject, privilege: str, facts: DatabaseFacts
) -> Iterator[PrivilegeRule]:
    """Returns the rules that allow it. A rule with schemas allows nothing on the database, which has no schema."""
    for rule in rules:
        if (
            matches(facts.database, rule.databases)
            and matches(obj.schema, rule.schemas)
            and (rule.kinds is None or any(covers(kind, obj.kind) for kind in rule.kinds))
            and (rule.privileges is None or privilege in rule.privileges)
            and _is_owner_allowed(rule, obj.owner, obj.owner_name, facts)
        ):
            yield rule


def _is_owner_allowed(rule: PrivilegeRule, owner: int, owner_name: str, facts: DatabaseFacts) -> bool:
    """Tells whether a rule names the owner. Superusers, PostgreSQL's own roles and the controller's roles need their
    exact names: a pattern such as `shop_*` or `{namespace}_owner` is meant for a team's roles.
    """
    if rule.owned_by is None:
        return True
    if _is_powerful(owner, facts):
        return names_itself(owner_name, rule.as_written.owned_by or ())
    return matches(owner_name, rule.owned_by)


def _is_powerful(owner: int, facts: DatabaseFacts) -> bool:
    return owner in facts.superusers or owner in facts.own_roles or owner < FIRST_NORMAL_OID


def _is_named(rules: Iterable[PrivilegeRule], obj: DatabaseObject, facts: DatabaseFacts) -> bool:
    if obj.kind is ObjectKind.DATABASE:
        return any(names_itself(facts.database, rule.as_written.databases) for rule in rules)
    return any(names_itself(obj.schema, rule.as_written.schemas) for rule in rules)
