"""core/privileges/adoption_findings: what adoption would revoke in one database, and what its object could not
have declared.
"""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import AclEntry, DatabaseObject, DefaultAcl, ObjectKind
from pgrole_controller.core.privileges.adoption_findings import find_for_adoption
from pgrole_controller.core.privileges.grantee import (
    DatabasePrivileges,
    Grantee,
    PrivilegePolicy,
    PrivilegeRule,
    Takeover,
)
from pgrole_controller.core.privileges.privilege_result import AdoptionFindings
from tests.unit.test_acl_decision import (
    ADMIN,
    DELEGATE,
    ME,
    NAMES,
    NOTHING,
    OWNER,
    READ,
    STRANGER,
    TABLE,
    entry,
    grantee,
    make,
    observe,
    table,
)

THEIRS = make("secrets", owner=STRANGER, oid=20001)
OPEN = PrivilegePolicy((PrivilegeRule(),), ("orders",))
NAMED = PrivilegePolicy((PrivilegeRule(schemas=("app",)),), ("orders",))


def adoptee(
    declared: DatabasePrivileges = READ, *former: DatabasePrivileges, policy: PrivilegePolicy | None = None
) -> Grantee:
    kind = Takeover.RETAINED if former else Takeover.NEW
    one = replace(grantee(declared, *former), adoptee=kind)
    return one if policy is None else replace(one, policy=policy)


def find(
    obj: DatabaseObject,
    *entries: AclEntry,
    one: Grantee | None = None,
    defaults: tuple[DefaultAcl, ...] = (),
) -> AdoptionFindings:
    return find_for_adoption(one or adoptee(), observe((obj, entries), defaults=defaults))


def future(*entries: AclEntry, creator: int = OWNER, kind: str = "r", schema: str = "app") -> DefaultAcl:
    return DefaultAcl(creator, NAMES[creator], schema, kind, entries)


class TestRevoked:
    def test_each_privilege_is_named_as_drift_would_be_whoever_granted_it(self) -> None:
        held = (entry("SELECT"), entry("DELETE"), entry("DELETE", grantor=DELEGATE), entry("UPDATE", "id"))
        found = find(TABLE, *held, one=adoptee(policy=OPEN))
        assert found.revoked == ("DELETE on table app.orders", "UPDATE on column app.orders.id")
        assert (found.revoked_count, found.beyond_count) == (2, 0)

    def test_what_is_missing_is_not_named(self) -> None:
        assert find(TABLE) == AdoptionFindings()

    def test_grant_options_and_default_privileges_are_named(self) -> None:
        found = find(TABLE, entry("SELECT", grantable=True), defaults=(future(entry("DELETE")),))
        assert found.revoked == (
            "DELETE on future tables in schema app created by own",
            "grant option for SELECT on table app.orders",
        )

    def test_the_first_are_named_and_all_are_counted(self) -> None:
        some = [(make(f"t{number:03}", oid=20000 + number), (entry("DELETE"),)) for number in range(40)]
        found = find_for_adoption(adoptee(NOTHING), observe(*reversed(some)))
        assert found.revoked == tuple(f"DELETE on table app.t{number:03}" for number in range(5))
        assert found.revoked_count == 40

    def test_schemas_that_are_not_managed_lose_nothing(self) -> None:
        found = find(TABLE, entry("DELETE"), one=adoptee(replace(NOTHING, unmanaged=("app",))))
        assert found == AdoptionFindings()

    def test_long_names_are_cut(self) -> None:
        routine = make("f", ObjectKind.ROUTINE, arguments=", ".join(["character varying"] * 90))
        (words,) = find(routine, entry("EXECUTE"), one=adoptee(NOTHING)).revoked
        assert len(words) == 200

    def test_nothing_is_concluded_from_a_partial_read(self) -> None:
        for partial in (observe(complete=False), replace(observe(), defaults=None)):
            with pytest.raises(ValueError, match="complete"):
                find_for_adoption(adoptee(), partial)


class TestBeyond:
    def test_the_namespaces_own_objects_are_within_the_policy(self) -> None:
        held = (entry("DELETE"), entry("TRIGGER"), entry("UPDATE", "id"), entry("INSERT", grantable=True))
        elsewhere = PrivilegePolicy((PrivilegeRule(databases=("lake",)),), ("orders",))
        for policy in (None, OPEN, NAMED, PrivilegePolicy((), ("orders",)), elsewhere):
            one, defaults = adoptee(policy=policy), (future(entry("DELETE"), kind="f"),)
            assert find(TABLE, *held, one=one, defaults=defaults).beyond == ()
            assert find(make("state", ObjectKind.TYPE), entry("USAGE"), one=one).beyond == ()
            ours = find(make(schema="pgrole"), entry("SELECT"), one=one)
            assert ours.beyond == ("SELECT on table pgrole.orders",)

    @pytest.mark.parametrize("declared", [READ, NOTHING, replace(NOTHING, unmanaged=("*",))])
    def test_other_owners_objects_are_beyond_it_declared_or_not(self, declared: DatabasePrivileges) -> None:
        found = find(THEIRS, entry("SELECT"), one=adoptee(declared))
        assert (found.beyond, found.beyond_count) == (("SELECT on table app.secrets",), 1)

    def test_columns_count_as_well(self) -> None:
        found = find(THEIRS, entry("SELECT", "id"), one=adoptee(NOTHING))
        assert found.beyond == ("SELECT on column app.secrets.id",)

    def test_what_a_rule_allows_is_within_it(self) -> None:
        assert find(THEIRS, entry("SELECT"), one=adoptee(policy=OPEN)).beyond == ()
        only = PrivilegePolicy((PrivilegeRule(privileges=frozenset({"SELECT"})),), ("orders",))
        found = find(THEIRS, entry("SELECT"), entry("DELETE"), one=adoptee(policy=only))
        assert found.beyond == ("DELETE on table app.secrets",)

    def test_a_hard_rule_needs_the_exact_name_in_the_policy_only(self) -> None:
        definer = replace(make("f", ObjectKind.ROUTINE, owner=STRANGER), elevated=True)
        for obj, privilege in ((THEIRS, "TRIGGER"), (definer, "EXECUTE")):
            assert find(obj, entry(privilege), one=adoptee(policy=OPEN)).beyond_count == 1
            assert find(obj, entry(privilege), one=adoptee(policy=NAMED)).beyond_count == 0

    @pytest.mark.parametrize(
        "kind",
        [ObjectKind.LANGUAGE, ObjectKind.FOREIGN_DATA_WRAPPER, ObjectKind.FOREIGN_SERVER, ObjectKind.LARGE_OBJECT],
    )
    def test_kinds_that_no_pgrole_can_declare_are_beyond_it_whatever_a_rule_says(self, kind: ObjectKind) -> None:
        for policy in (OPEN, NAMED):
            assert find(make("it", kind, owner=STRANGER), entry("USAGE"), one=adoptee(policy=policy)).beyond_count == 1
        assert find(make("it", kind), entry("USAGE")).beyond_count == 0, "the owner could grant it"

    def test_types_are_judged_by_the_rules(self) -> None:
        theirs = make("state", ObjectKind.TYPE, owner=STRANGER)
        assert find(theirs, entry("USAGE"), one=adoptee(policy=OPEN)).beyond_count == 0
        assert find(theirs, entry("USAGE")).beyond == ("USAGE on type app.state",)
        assert find(make("state", ObjectKind.TYPE), entry("USAGE")).beyond_count == 0

    def test_more_of_them_than_a_read_has_are_beyond_it_whoever_owns_them(self) -> None:
        some = [(make(f"t{number}", ObjectKind.TYPE, oid=20000 + number), (entry("USAGE"),)) for number in range(1000)]
        assert find_for_adoption(adoptee(), observe(*some[:-1])).beyond_count == 0
        found = find_for_adoption(adoptee(), observe(*some))
        assert found.beyond == ("more privileges than the controller reads at once",)

    def test_the_grant_option_is_beyond_it_on_other_owners_objects(self) -> None:
        found = find(THEIRS, entry("SELECT", grantable=True), one=adoptee(policy=OPEN))
        assert found.beyond == ("grant option for SELECT on table app.secrets",)

    def test_objects_of_extensions_and_of_superusers_count(self) -> None:
        view = make("pg_stat_statements", ObjectKind.VIEW, owner=ADMIN, extension=True)
        assert find(view, entry("SELECT"), one=adoptee(NOTHING)).beyond_count == 1

    def test_what_the_role_owns_and_what_others_hold_do_not_count(self) -> None:
        NAMES.setdefault(ME, "reader")
        assert find(make("mine", owner=ME), entry("SELECT", grantor=ME)).beyond == ()
        assert find(THEIRS, entry("SELECT", grantee=0), entry("DELETE", grantee=DELEGATE)).beyond == ()

    @pytest.mark.parametrize(
        ("default", "allowed"),
        [
            (future(entry("SELECT")), True),
            (future(entry("SELECT", grantable=True)), True),
            (future(entry("USAGE"), kind="n", schema=""), True),
            (future(entry("USAGE"), kind="T"), True),
            (future(entry("SELECT"), creator=STRANGER), False),
            (future(entry("USAGE"), creator=STRANGER, kind="T"), False),
            (future(entry("SELECT", grantee=0), creator=STRANGER), True),
            (future(entry("SELECT"), creator=ME), True),
        ],
    )
    def test_default_privileges(self, default: DefaultAcl, *, allowed: bool) -> None:
        assert (find(TABLE, defaults=(default,)).beyond_count == 0) is allowed

    @pytest.mark.parametrize(("kind", "allowed"), [("r", True), ("T", True), ("f", False), ("n", False), ("L", False)])
    def test_default_privileges_of_a_creator_that_a_rule_names(self, kind: str, *, allowed: bool) -> None:
        policy = PrivilegePolicy((PrivilegeRule(owned_by=("stranger",)),), ("orders",))
        default = future(entry("SELECT"), creator=STRANGER, kind=kind)
        assert (find(TABLE, one=adoptee(policy=policy), defaults=(default,)).beyond_count == 0) is allowed
        option = future(entry("SELECT", grantable=True), creator=STRANGER)
        assert find(TABLE, one=adoptee(policy=policy), defaults=(option,)).beyond_count == 1

    def test_a_retained_role_may_hold_what_its_claim_records(self) -> None:
        recorded = DatabasePrivileges("orders", objects=(table("SELECT", name="secrets"),))
        held = (entry("SELECT"), entry("DELETE"))
        assert find(THEIRS, *held, one=adoptee(READ, recorded)).beyond == ("DELETE on table app.secrets",)
        fresh = replace(adoptee(READ, recorded), adoptee=Takeover.NEW)
        assert find(THEIRS, *held, one=fresh).beyond_count == 2
