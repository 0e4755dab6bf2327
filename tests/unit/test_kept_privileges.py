"""core/privileges/kept_privileges: which declared privileges a claim holds, and when it forgets them."""

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy, References
from pgrole_controller.core.privileges.acl import DECLARABLE, DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    ObjectPrivileges,
    PrivilegePolicy,
    SchemaAccess,
)
from pgrole_controller.core.privileges.kept_privileges import (
    LARGEST,
    former_of,
    grantee_of,
    keep_privileges,
    merge_former,
    read_kept,
    unconfirmed,
    unite,
    write_kept,
)
from pgrole_controller.core.privileges.object_patterns import CompiledPrivileges
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole, Role, digest
from pgrole_controller.core.state import Desired, Observed, Server

ME = Owner("cluster-a", "shop", "ns-uid", "app", "uid-1")
KEY = Key("shop", "app")
SERVER = Server(7, frozenset({"keeper"}), Address("db", 5432, "app", "require"), has_current_schema=True)
STATUS_SERVER = replace(SERVER, claims="Status", has_current_schema=False)
OID = 20_000
ROLE = Role("app", login=True)
READ = DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.READ})),))
WRITE = DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.WRITE})),))
LAKE = DatabasePrivileges("lake", on_database=frozenset({"CONNECT"}))
KNOWN = Generations(0, SERVER.uid, SERVER.generation)


def desired(*declared: DatabasePrivileges, **values: object) -> Desired:
    some = {one.database: one for one in declared}
    return replace(Desired(owner=ME, role=ROLE, privileges=some or None), **values)  # type: ignore[arg-type]


def see(kept: Mapping[str, tuple[DatabasePrivileges, ...]], **values: object) -> Observed:
    claim = Claim("app", OID, 7, ME, digest(ROLE), generations=KNOWN, privileges=kept)
    references = References(databases=frozenset({"orders", "lake"}))
    return replace(Observed(named=ObservedRole(OID, ROLE), claim=claim, references=references), **values)  # type: ignore[arg-type]


def confirm(asked: Desired, kept: Mapping[str, tuple[DatabasePrivileges, ...]], *databases: str) -> Desired:
    grantee = grantee_of(asked, kept, OID)
    results = {name: PrivilegeResult(KEY, "uid-1", name, grantee.digest_of(name), confirmed=True) for name in databases}
    return replace(asked, privilege_results=results)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
texts = st.lists(names, max_size=3).map(tuple)
declarations = st.builds(
    DatabasePrivileges,
    names,
    st.frozensets(st.sampled_from(DECLARABLE[ObjectKind.DATABASE])),
    st.lists(st.builds(SchemaAccess, names, st.frozensets(st.sampled_from(Access)), texts), max_size=2).map(tuple),
    st.lists(
        st.builds(
            ObjectPrivileges,
            st.sampled_from(sorted(DECLARABLE)),
            names,
            texts,
            st.frozensets(st.sampled_from(("SELECT", "EXECUTE", "USAGE"))),
            texts,
        ),
        max_size=2,
    ).map(tuple),
    texts,
    texts,
)


class TestJson:
    @given(st.dictionaries(names, st.lists(declarations, min_size=1, max_size=2).map(tuple), max_size=3))
    def test_the_json_is_ascii_and_reads_back_unchanged(self, kept: dict[str, tuple[DatabasePrivileges, ...]]) -> None:
        text = write_kept(kept)
        assert text.isascii()
        assert read_kept(text) == kept

    def test_the_json_does_not_depend_on_the_order_of_sets_and_databases(self) -> None:
        some = replace(READ, on_database=frozenset({"CONNECT", "TEMPORARY", "CREATE"}))
        assert write_kept({"orders": (some,), "lake": (LAKE,)}) == write_kept({"lake": (LAKE,), "orders": (some,)})
        assert json.loads(write_kept({"orders": (some,)}))["orders"][0]["on_database"] == [
            "CONNECT",
            "CREATE",
            "TEMPORARY",
        ]

    def test_no_privileges_are_an_empty_text(self) -> None:
        assert write_kept({}) == ""
        assert read_kept("") == {}

    @pytest.mark.parametrize(
        "text", ["{", "[]", "1", '{"orders": 1}', '{"orders": [1]}', '{"orders": [{}]}', "[" * 100_000]
    )
    def test_unreadable_json_is_an_error_of_the_object(self, text: str) -> None:
        with pytest.raises(Transient) as caught:
            read_kept(text)
        assert caught.value.reason is Reason.DATABASE_ERROR


class TestUnion:
    def test_declared_privileges_come_first_and_nothing_appears_twice(self) -> None:
        kept = {"orders": (WRITE, READ)}
        assert unite({"orders": READ, "lake": LAKE}, kept) == {"lake": (LAKE,), "orders": (READ, WRITE)}

    def test_former_privileges_are_kept_but_not_declared(self) -> None:
        kept = {"orders": (READ, WRITE), "lake": (LAKE,)}
        assert former_of({"orders": READ}, kept) == {"orders": (WRITE,), "lake": (LAKE,)}
        assert former_of({"orders": READ, "lake": LAKE}, {"orders": (READ,), "lake": (LAKE,)}) == {}


def on_tables(*names: str, columns: tuple[str, ...] = ()) -> DatabasePrivileges:
    some = (ObjectPrivileges(ObjectKind.TABLE, "app", names, frozenset({"SELECT"}), columns),)
    return DatabasePrivileges("orders", objects=some)


class TestMergedFormerOnes:
    def test_what_they_share_is_kept_once(self) -> None:
        but = replace(WRITE, schemas=(replace(WRITE.schemas[0], exceptions=("secrets",)),))
        some = (READ, WRITE, but, on_tables("a", "b"), on_tables("b", "c"), on_tables("a", columns=("id",)))
        (merged,) = merge_former(some)
        assert merged.schemas == (SchemaAccess("app", frozenset({Access.READ, Access.WRITE})), *but.schemas)
        assert merged.objects == (*on_tables("a", "b", "c").objects, *on_tables("a", columns=("id",)).objects)
        assert merge_former((merged, *some)) == (merged,)

    def test_creators_get_no_default_privileges_in_the_schemas_of_others(self) -> None:
        other = replace(on_tables("a"), created_by=("own",))
        assert merge_former((READ, other, replace(READ, created_by=("own",)))) == (
            READ,
            replace(other, schemas=READ.schemas),
        )

    @given(st.lists(declarations, min_size=1, max_size=4), st.sampled_from(sorted(DECLARABLE)), names, names)
    def test_they_want_what_any_of_them_wants(
        self, some: list[DatabasePrivileges], kind: ObjectKind, schema: str, name: str
    ) -> None:
        schemas = [access.schema for each in some for access in each.schemas]
        schemas += [one.schema for each in some for one in each.objects]
        named = [text for each in some for one in each.objects for text in one.names]
        for place, what in itertools.product({schema, *schemas}, {name, *named}):
            obj = DatabaseObject(ObjectId("pg_class", 20_000), kind, place, what, 10, "own")
            assert _wanted(merge_former(some), obj) == _wanted(some, obj)


def _wanted(some: Iterable[DatabasePrivileges], obj: DatabaseObject) -> set[tuple[str, str]]:
    found = set[tuple[str, str]]()
    for one in some:
        wanted = CompiledPrivileges(one, 180_000).wanted(obj)
        found |= {(privilege, "") for privilege in wanted.privileges}
        found |= {(privilege, column) for privilege, columns in wanted.columns.items() for column in columns}
    return found


class TestTheClaim:
    def test_however_often_a_spec_changes_the_claim_holds_each_former_name_once(self) -> None:
        kept: Mapping[str, tuple[DatabasePrivileges, ...]] = {}
        for number in range(20):
            plan = decide(desired(on_tables("all", f"t{number}")), see(kept), SERVER, Policy())
            kept = read_kept(plan.privileges or "")
        declared, former = kept["orders"]
        assert declared == on_tables("all", "t19")
        assert former == on_tables("all", *(f"t{number}" for number in sorted(range(19), key=str)))
        assert not decide(desired(declared), see(kept), SERVER, Policy()).writes

    def test_nothing_is_written_without_privileges(self) -> None:
        assert not decide(desired(), see({}), SERVER, Policy()).writes

    def test_role_and_declaration_are_written_in_one_plan(self) -> None:
        plan = decide(desired(READ), Observed(), SERVER, Policy())
        assert plan.owner == ME
        assert read_kept(plan.privileges or "") == {"orders": (READ,)}

    def test_a_new_declaration_keeps_those_of_earlier_specs(self) -> None:
        plan = decide(desired(WRITE), see({"orders": (READ,), "lake": (LAKE,)}), SERVER, Policy())
        assert read_kept(plan.privileges or "") == {"orders": (WRITE, READ), "lake": (LAKE,)}
        assert (plan.owner, plan.changes) == (None, ())

    def test_an_unchanged_declaration_is_not_written_again(self) -> None:
        assert not decide(desired(READ), see({"orders": (READ,)}), SERVER, Policy()).writes
        assert not decide(desired(READ), see({"orders": (READ, WRITE)}), SERVER, Policy()).writes

    def test_only_a_database_that_confirmed_is_forgotten(self) -> None:
        kept = {"orders": (READ, WRITE), "lake": (LAKE,)}
        asked = confirm(desired(READ), kept, "orders")
        plan = decide(asked, see(kept), SERVER, Policy())
        assert read_kept(plan.privileges or "") == {"orders": (READ,), "lake": (LAKE,)}
        plan = decide(confirm(desired(READ), kept, "orders", "lake"), see(kept), SERVER, Policy())
        assert read_kept(plan.privileges or "") == {"orders": (READ,)}

    def test_the_claim_is_empty_once_every_database_confirmed_the_revocation(self) -> None:
        kept = {"orders": (READ,)}
        assert not decide(desired(), see(kept), SERVER, Policy()).writes
        assert decide(confirm(desired(), kept, "orders"), see(kept), SERVER, Policy()).privileges == ""

    @pytest.mark.parametrize("change", ["digest", "uid", "confirmed"])
    def test_a_result_about_another_declaration_confirms_nothing(self, change: str) -> None:
        kept = {"orders": (READ, WRITE)}
        asked = confirm(desired(READ), kept, "orders")
        values = {"digest": "sha256:other", "uid": "uid-0", "confirmed": False}
        other = replace(asked.privilege_results["orders"], **{change: values[change]})  # type: ignore[arg-type]
        assert not decide(replace(asked, privilege_results={"orders": other}), see(kept), SERVER, Policy()).writes

    def test_a_result_about_an_earlier_role_with_this_name_confirms_nothing(self) -> None:
        kept = {"orders": (READ, WRITE)}
        asked, again = confirm(desired(READ), kept, "orders"), ObservedRole(OID + 1, ROLE)
        plan = decide(asked, see(kept, named=again), SERVER, Policy())
        assert plan.owner == ME
        assert plan.privileges is None

    def test_a_dropped_database_is_forgotten(self) -> None:
        kept = {"orders": (READ,), "lake": (LAKE,)}
        observed = see(kept, references=References(databases=frozenset({"orders"})))
        assert unconfirmed(desired(), kept, OID, observed.references.databases) == {"orders"}
        plan = decide(desired(READ), observed, SERVER, Policy())
        assert read_kept(plan.privileges or "") == {"orders": (READ,)}

    def test_a_database_that_no_worker_serves_is_forgotten_if_the_role_has_nothing_there(self) -> None:
        kept = {"orders": (READ,), "lake": (LAKE,)}
        observed = see(kept, unheld=frozenset({"lake"}))
        refused = Refused(Reason.NOT_ALLOWED, "not included")
        asked = desired(READ)
        result = PrivilegeResult(KEY, "uid-1", "lake", grantee_of(asked, kept, OID).digest_of("lake"), refused)
        plan = decide(replace(asked, privilege_results={"lake": result}), observed, SERVER, Policy())
        assert read_kept(plan.privileges or "") == {"orders": (READ,)}
        held = decide(replace(asked, privilege_results={"lake": result}), see(kept), SERVER, Policy())
        assert not held.writes, "it may have privileges there"
        assert not decide(asked, observed, SERVER, Policy()).writes, "its worker may still grant what was declared"
        earlier = replace(result, digest=grantee_of(desired(READ, LAKE), kept, OID).digest_of("lake"))
        plan = decide(replace(asked, privilege_results={"lake": earlier}), observed, SERVER, Policy())
        assert not plan.writes, "its worker may not know yet that the spec no longer lists it"

    def test_in_a_declared_database_only_its_worker_confirms(self) -> None:
        kept = {"orders": (READ, WRITE)}
        asked = confirm(desired(READ), kept, "orders")
        result = replace(asked.privilege_results["orders"], confirmed=False)
        observed = see(kept, unheld=frozenset({"orders"}))
        assert not decide(replace(asked, privilege_results={"orders": result}), observed, SERVER, Policy()).writes

    def test_an_object_that_takes_over_a_claim_inherits_pending_revocations(self) -> None:
        other = replace(ME, object="other", object_uid="uid-9")
        claim = Claim("app", OID, 7, other, "sha256:x", released=True, privileges={"lake": (LAKE,)})
        observed = see({}, claim=claim, unheld=frozenset({"orders"}))
        plan = decide(desired(READ, adopt=True), observed, SERVER, Policy())
        assert plan.owner == ME
        assert read_kept(plan.privileges or "") == {"orders": (READ,), "lake": (LAKE,)}

    def test_what_was_declared_for_a_lost_role_is_not_revoked_from_one_that_has_its_name(self) -> None:
        claim = Claim("app", OID, 7, ME, "sha256:x", released=True, privileges={"old": (LAKE,)})
        observed = see({}, claim=claim, named=ObservedRole(OID + 1, ROLE), unheld=frozenset({"orders"}))
        for asked, kept in (desired(READ, adopt=True), {"orders": (READ,)}), (desired(adopt=True), {}):
            plan = decide(asked, observed, SERVER, Policy())
            assert (plan.owner, plan.privileges is not None) == (ME, True)
            assert read_kept(plan.privileges or "") == kept

    @pytest.mark.parametrize("server", [STATUS_SERVER, replace(SERVER, has_current_schema=False)])
    def test_privileges_are_not_written_where_claims_cannot_hold_them(self, server: Server) -> None:
        assert decide(desired(READ), Observed(), server, Policy()).privileges is None

    def test_a_refused_object_adds_no_privileges_to_the_claim(self) -> None:
        asked = desired(READ, role=replace(ROLE, superuser=True))
        plan = decide(asked, see({}), SERVER, Policy())
        assert [type(one) for one in plan.pending] == [Refused]
        assert plan.privileges is None
        drifted = see({}, named=ObservedRole(OID, replace(ROLE, bypassrls=True)))
        assert decide(asked, drifted, SERVER, Policy()).privileges is None
        rejection = Transient(Reason.DATABASE_ERROR, "PostgreSQL rejects it")
        assert decide(desired(READ), see({}), SERVER, Policy(), rejection).privileges is None

    def test_the_claim_does_not_change_while_kubernetes_is_unreachable(self) -> None:
        away = replace(SERVER, enforcing=True)
        assert not decide(desired(READ), see({}), away, Policy()).writes

    def test_a_declaration_too_large_for_the_claim_is_refused_but_the_role_is_still_kept(self) -> None:
        many = replace(READ, created_by=tuple(f"{number:063}" for number in range(LARGEST // 60)))
        plan = decide(desired(many), see({}, named=ObservedRole(OID, replace(ROLE, login=False))), SERVER, Policy())
        assert plan.changes
        assert plan.privileges is None
        assert [(type(one), one.reason) for one in plan.pending] == [(Refused, Reason.INVALID_SPEC)]

    def test_another_objects_claim_is_left_alone(self) -> None:
        claim = Claim("app", OID, 7, replace(ME, object_uid="uid-9", object="other"), "sha256:x")
        assert keep_privileges(Plan("app"), desired(READ), see({}, claim=claim), SERVER).privileges is None


EXISTING = Observed(named=ObservedRole(OID, ROLE), references=References(databases=frozenset({"orders", "lake"})))
SERVED = Policy(privileges=PrivilegePolicy(databases=("*",)))


class TestAdoption:
    @pytest.mark.parametrize(
        ("named", "words"),
        [
            (ROLE, 'adoption would revoke undeclared privileges in "lake", "orders". To take'),
            (replace(ROLE, login=False), "would change login, and would revoke undeclared privileges in"),
        ],
    )
    def test_the_message_names_the_databases_where_privileges_would_become_exact(self, named: Role, words: str) -> None:
        with pytest.raises(PgRoleError) as caught:
            decide(desired(READ, LAKE), replace(EXISTING, named=ObservedRole(OID, named)), SERVER, SERVED)
        assert caught.value.reason is Reason.ROLE_EXISTS
        assert words in caught.value.message

    def test_the_message_names_no_database_where_the_role_has_no_privileges(self) -> None:
        def adopt(*unheld: str) -> str:
            observed = replace(EXISTING, unheld=frozenset(unheld))
            with pytest.raises(PgRoleError) as caught:
                decide(desired(READ, LAKE), observed, SERVER, SERVED)
            return caught.value.message

        assert 'would revoke undeclared privileges in "orders". To take' in adopt("lake")
        assert "adoption would change nothing. To take" in adopt("lake", "orders")
