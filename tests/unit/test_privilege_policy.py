"""core/privileges/privilege_policy: which privileges the objects of a namespace may declare."""

from dataclasses import replace

import pytest

from pgrole_controller.core.policy import Policy, ServerPolicy
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grantee import Grantee, PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.privileges.privilege_policy import (
    DatabaseFacts,
    check_database,
    why_not_created_by,
    why_not_granted,
)
from pgrole_controller.core.request import Key

OWN, OTHER, SUPERUSER, CONTROLLER = 16500, 16600, 16700, 16800
FACTS = DatabaseFacts("orders", 180000, frozenset({SUPERUSER, 10}), frozenset({CONTROLLER}), frozenset({"shared"}))
GRANTEE = Grantee(Key("shop", "r"), "uid", 1, "shop_r", 16400, owned=frozenset({OWN, 16400}))
NAMES = {OWN: "shop_own", OTHER: "shop_other", SUPERUSER: "shop_root", CONTROLLER: "shop_pgrole", 10: "shop_boot"}


def make(
    kind: ObjectKind = ObjectKind.TABLE,
    owner: int = OTHER,
    schema: str = "app",
    name: str = "orders",
    *,
    oid: int = 20000,
    definer: bool = False,
) -> DatabaseObject:
    identity = ObjectId("c", oid)
    return DatabaseObject(identity, kind, schema, name, owner, NAMES[owner], elevated=definer)


def ruled(*rules: PrivilegeRule) -> Grantee:
    return replace(GRANTEE, policy=PrivilegePolicy(rules))


def allowed(grantee: Grantee, obj: DatabaseObject, privilege: str, *, literal: bool = False) -> bool:
    return why_not_granted(grantee, obj, privilege, FACTS, literal=literal) is None


@pytest.mark.parametrize(("owner", "may"), [(OWN, True), (OTHER, False), (SUPERUSER, False)])
def test_without_rules_ownership_decides_whatever_the_owners_name(owner: int, may: bool) -> None:
    assert allowed(GRANTEE, make(owner=owner), "SELECT", literal=True) is may


def test_a_denial_names_the_object_its_owner_and_the_remedy() -> None:
    denial = why_not_granted(GRANTEE, make(), "SELECT", FACTS, literal=False)
    assert denial is not None
    assert 'SELECT on table app.orders (owner "shop_other")' in denial.what
    assert "PgRole in this namespace" in denial.remedy
    column = why_not_granted(GRANTEE, make(), "SELECT", FACTS, column="id", literal=False)
    assert column is not None
    assert "column app.orders.id" in column.what
    by_rule = why_not_granted(ruled(), make(), "SELECT", FACTS, literal=False)
    assert by_rule is not None
    assert "PgServer.spec.allow.privileges" in by_rule.remedy


@pytest.mark.parametrize(
    ("rule", "may"),
    [
        (PrivilegeRule(), True),
        (PrivilegeRule(databases=("ord*",), schemas=("a*",), owned_by=("shop_*",)), True),
        (PrivilegeRule(databases=("warehouse",)), False),
        (PrivilegeRule(schemas=("shared",)), False),
        (PrivilegeRule(kinds=frozenset({ObjectKind.TABLE})), True),
        (PrivilegeRule(kinds=frozenset({ObjectKind.SCHEMA})), False),
        (PrivilegeRule(privileges=frozenset({"INSERT"})), False),
        (PrivilegeRule(privileges=frozenset({"SELECT"})), True),
        (PrivilegeRule(owned_by=("team_*",)), False),
    ],
)
def test_a_rule_allows_a_privilege_only_if_all_its_parts_match(rule: PrivilegeRule, may: bool) -> None:
    assert allowed(ruled(PrivilegeRule(databases=("none",)), rule), make(), "SELECT") is may


def test_kind_table_of_a_rule_includes_views_and_a_narrower_kind_does_not_include_tables() -> None:
    assert allowed(ruled(PrivilegeRule(kinds=frozenset({ObjectKind.TABLE}))), make(ObjectKind.VIEW), "SELECT")
    assert not allowed(ruled(PrivilegeRule(kinds=frozenset({ObjectKind.VIEW}))), make(), "SELECT")


def test_rules_replace_ownership() -> None:
    assert not allowed(ruled(PrivilegeRule(schemas=("x",))), make(owner=OWN), "SELECT")


@pytest.mark.parametrize("owner", [SUPERUSER, CONTROLLER, 10])
def test_a_pattern_of_owners_does_not_match_superusers(owner: int) -> None:
    assert not allowed(ruled(PrivilegeRule(owned_by=("shop_*",))), make(owner=owner), "SELECT")
    assert allowed(ruled(PrivilegeRule(owned_by=("x", NAMES[owner]))), make(owner=owner), "SELECT")


DANGEROUS = [
    (make(ObjectKind.ROUTINE, definer=True), "EXECUTE"),
    (make(), "TRIGGER"),
    (make(), "REFERENCES"),
    (make(), "MAINTAIN"),
    (make(ObjectKind.VIEW), "TRIGGER"),
    (make(ObjectKind.SCHEMA, schema="public", name="public"), "CREATE"),
    (make(ObjectKind.SCHEMA, schema="shared", name="shared"), "CREATE"),
    (make(ObjectKind.SCHEMA, schema="shop_other", name="shop_other"), "CREATE"),
    (make(schema="pg_catalog"), "SELECT"),
    (make(schema="information_schema"), "SELECT"),
    (make(oid=16383), "SELECT"),
]


@pytest.mark.parametrize(("obj", "privilege"), DANGEROUS, ids=lambda one: getattr(one, "label", one))
def test_dangerous_privileges_need_exact_names_on_both_sides(obj: DatabaseObject, privilege: str) -> None:
    wide, exact = ruled(PrivilegeRule()), ruled(PrivilegeRule(schemas=("x", obj.schema)))
    assert not allowed(wide, obj, privilege)
    assert not allowed(wide, obj, privilege, literal=True)
    assert not allowed(exact, obj, privilege)
    assert allowed(exact, obj, privilege, literal=True)
    denied_elsewhere = ruled(PrivilegeRule(), PrivilegeRule(schemas=(obj.schema,), owned_by=("team",)))
    assert not allowed(denied_elsewhere, obj, privilege, literal=True)


@pytest.mark.parametrize(("obj", "privilege"), DANGEROUS[:8], ids=lambda one: getattr(one, "label", one))
def test_dangerous_privileges_are_allowed_on_the_namespaces_own_objects(obj: DatabaseObject, privilege: str) -> None:
    assert allowed(GRANTEE, replace(obj, owner=OWN), privilege)
    assert not allowed(GRANTEE, obj, privilege, literal=True)


def test_other_privileges_on_the_same_objects_are_not_dangerous() -> None:
    wide = ruled(PrivilegeRule())
    assert allowed(wide, make(ObjectKind.ROUTINE), "EXECUTE")
    assert allowed(wide, make(ObjectKind.SCHEMA, schema="public", name="public"), "USAGE")
    assert allowed(wide, make(ObjectKind.SCHEMA, schema="app", name="app"), "CREATE")


def test_create_on_any_schema_needs_exact_names_while_a_search_path_is_too_long_to_be_read() -> None:
    schema, cut = make(ObjectKind.SCHEMA, schema="app", name="app"), replace(FACTS, search_paths_cut=True)
    denial = why_not_granted(ruled(PrivilegeRule()), schema, "CREATE", cut, literal=False)
    assert denial is not None
    assert "too long to be read" in denial.remedy
    assert why_not_granted(ruled(PrivilegeRule(schemas=("app",))), schema, "CREATE", cut, literal=True) is None
    assert why_not_granted(replace(GRANTEE, owned=frozenset({OTHER})), schema, "CREATE", cut, literal=False) is None


def test_create_on_a_database_of_another_owner_needs_its_name_in_a_rule() -> None:
    database = make(ObjectKind.DATABASE, schema="", name="orders", oid=5)
    assert not allowed(ruled(PrivilegeRule()), database, "CREATE", literal=True)
    assert allowed(ruled(PrivilegeRule()), database, "CONNECT", literal=True)
    assert allowed(ruled(PrivilegeRule(databases=("orders",))), database, "CREATE", literal=True)
    assert allowed(GRANTEE, replace(database, owner=OWN), "CREATE", literal=True)
    assert not allowed(ruled(PrivilegeRule(schemas=("app",))), database, "CONNECT", literal=True)


MADE = [
    ("schemas", "shop", make(schema="shop"), "TRIGGER"),
    ("schemas", "public", make(ObjectKind.SCHEMA, schema="public", name="public"), "CREATE"),
    ("databases", "orders", make(ObjectKind.DATABASE, schema="", name="orders", oid=5), "CREATE"),
    ("owned_by", "shop_root", make(owner=SUPERUSER), "SELECT"),
]


@pytest.mark.parametrize(("field", "namespace", "obj", "privilege"), MADE, ids=lambda one: getattr(one, "label", one))
def test_what_the_namespace_makes_of_a_rule_is_no_exact_name(
    field: str, namespace: str, obj: DatabaseObject, privilege: str
) -> None:
    def ruled_within(*entries: str) -> Grantee:
        rule = replace(PrivilegeRule(), **{field: entries})  # type: ignore[arg-type]
        template = Policy(privileges=PrivilegePolicy((rule,)))
        return replace(GRANTEE, policy=ServerPolicy(template).policy(namespace, {}).privileges)

    assert not allowed(ruled_within("{namespace}"), obj, privilege, literal=True)
    assert allowed(ruled_within("{namespace}", namespace), obj, privilege, literal=True)
    harmless = ruled_within("{namespace}"), replace(obj, owner=OTHER, owner_name=namespace)
    assert allowed(*harmless, "CONNECT" if obj.kind is ObjectKind.DATABASE else "SELECT")


def test_no_rule_allows_the_controllers_own_schema() -> None:
    exact = ruled(PrivilegeRule(schemas=("pgrole",)))
    assert not allowed(exact, make(schema="pgrole"), "SELECT", literal=True)
    assert not allowed(exact, make(ObjectKind.SCHEMA, OWN, "pgrole", "pgrole"), "USAGE", literal=True)


@pytest.mark.parametrize(
    ("policy", "may"),
    [
        (PrivilegePolicy(), False),
        (PrivilegePolicy(databases=("*",)), True),
        (PrivilegePolicy(databases=("ord*",), but=("orders",)), False),
        (PrivilegePolicy(databases=("warehouse",)), False),
    ],
)
def test_a_database_must_be_included_by_its_pgserver(policy: PrivilegePolicy, may: bool) -> None:
    refused = check_database(policy, "orders")
    assert (refused is None) is may
    assert may or "PgServer.spec.databases" in str(refused)


def test_the_refusal_of_a_database_lists_the_allowed_ones() -> None:
    assert "allowed: a*, except ab*" in str(check_database(PrivilegePolicy((), ("a*",), ("ab*",)), "abc"))
    patterns = tuple(f"a{number}*" for number in range(100))
    assert str(check_database(PrivilegePolicy((), patterns, patterns), "b")).count("and 88 more") == 2


@pytest.mark.parametrize(
    ("databases", "may"),
    [(("*",), False), (("base*",), False), (("base",), True), (("*", "base"), True)],
)
def test_a_template_must_be_included_by_its_exact_name(databases: tuple[str, ...], may: bool) -> None:
    policy = PrivilegePolicy(databases=databases, templates=frozenset({"base"}))
    refused = check_database(policy, "base")
    assert (refused is None) is may
    if refused is not None:
        assert "CREATE DATABASE from it fails" in refused.message
        assert "IS_TEMPLATE false" in refused.message
    assert check_database(PrivilegePolicy(databases=("*",), templates=frozenset({"base"})), "orders") is None


@pytest.mark.parametrize("rules", [None, (PrivilegeRule(owned_by=("*",)),), (PrivilegeRule(owned_by=("shop_other",)),)])
@pytest.mark.parametrize("creator", [OWN, OTHER])
def test_a_protected_role_is_no_creator_whatever_a_rule_names(
    rules: tuple[PrivilegeRule, ...] | None, creator: int
) -> None:
    template = Policy(protected=("rds*", NAMES[creator]), privileges=PrivilegePolicy(rules))
    policy = ServerPolicy(template).policy("shop", {}).privileges
    denial = why_not_created_by(replace(GRANTEE, policy=policy), creator, NAMES[creator], FACTS)
    assert denial is not None
    assert "protectedRoles matches: remove it from spec" in denial.remedy


def test_creators_are_the_namespaces_roles_or_owners_that_a_rule_names() -> None:
    def may(creator: int, *rules: PrivilegeRule) -> bool:
        return why_not_created_by(ruled(*rules), creator, NAMES[creator], FACTS) is None

    assert may(OWN)
    assert not may(OTHER)
    assert not may(OTHER, PrivilegeRule())
    assert not may(OTHER, PrivilegeRule(databases=("x",), owned_by=("shop_*",)))
    assert may(OTHER, PrivilegeRule(owned_by=("shop_*",)))
    assert not may(SUPERUSER, PrivilegeRule(owned_by=("shop_*",)))
    assert may(SUPERUSER, PrivilegeRule(owned_by=("shop_root",)))
