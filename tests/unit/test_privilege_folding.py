"""core/folding/privilege_folding: a folded declaration means the same, and is short."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.api.pgrole import PgRole
from pgrole_controller.commands.export_objects import count_names, privileges_to_spec
from pgrole_controller.core.desired import privileges_of
from pgrole_controller.core.folding.privilege_folding import FoldedDatabase, PrivilegeFolder
from pgrole_controller.core.names import is_pattern
from pgrole_controller.core.privileges.acl import (
    DECLARABLE,
    AclEntry,
    DatabaseObject,
    DefaultAcl,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.acl_decision import decide_privileges
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key

ME, OWNER, DELEGATE, ADMIN = 16400, 16500, 16600, 10
NAMES = {ME: "reader", OWNER: "own", DELEGATE: "x1", ADMIN: "postgres"}
FACTS = DatabaseFacts("orders", 180000, superusers=frozenset({ADMIN}))
CATALOGS = {ObjectKind.ROUTINE: "pg_proc", ObjectKind.SCHEMA: "pg_namespace", ObjectKind.DATABASE: "pg_database"}
MANAGED = "if the role has a PgRole with createdBy, applying this one revokes these: plan lists them"


class AclBuilder:
    """Objects of one database with the privileges that ME holds on them."""

    def __init__(self) -> None:
        self.acls: list[ObservedAcl] = []
        self.defaults: list[DefaultAcl] = []
        self.schemas: set[str] = set()

    def add(
        self,
        name: str,
        privileges: str = "",
        *,
        kind: ObjectKind = ObjectKind.TABLE,
        schema: str = "app",
        owner: int = OWNER,
        extension: bool = False,
        arguments: str = "",
        grantable: bool = False,
        grantor: int = OWNER,
        elevated: bool = False,
    ) -> None:
        """`privileges`: words; `SELECT:id` means column id."""
        obj = DatabaseObject(
            ObjectId(CATALOGS.get(kind, "pg_class"), 20000 + len(self.acls)),
            kind,
            schema,
            name,
            owner,
            NAMES[owner],
            arguments,
            extension,
            elevated,
        )
        words = (word.partition(":") for word in privileges.split())
        entries = tuple(
            AclEntry(ME, grantor, NAMES[grantor], privilege, grantable, column) for privilege, _, column in words
        )
        self.acls.append(ObservedAcl(obj, entries))

    def add_schema(self, name: str = "app", privileges: str = "USAGE", *, owner: int = OWNER) -> None:
        self.schemas.add(name)
        self.add(name, privileges, kind=ObjectKind.SCHEMA, schema=name, owner=owner)

    def add_default(self, object_type: str, privileges: str, schema: str = "app", creator: int = OWNER) -> None:
        entries = tuple(AclEntry(ME, creator, NAMES[creator], one) for one in privileges.split())
        self.defaults.append(DefaultAcl(creator, NAMES[creator], schema, object_type, entries))

    @property
    def observed(self) -> ObservedDatabase:
        roles = {name: oid for oid, name in NAMES.items()}
        return ObservedDatabase(FACTS, self.acls, self.defaults, roles, frozenset(self.schemas))

    def fold(
        self, *, exact: bool = False, policy: PrivilegePolicy | None = None, roles: frozenset[int] = frozenset()
    ) -> FoldedDatabase:
        """Folds it, and verifies that the result is a valid object that changes nothing."""
        folded = PrivilegeFolder(self.observed, exact=exact, policy=policy, roles=roles).fold(ME, "reader")
        if folded.declared is not None:
            self.verify(folded.declared)
        return folded

    def verify(self, declared: DatabasePrivileges) -> None:
        obj = PgRole.model_validate(
            {"metadata": {"name": "reader"}, "spec": {"privileges": [privileges_to_spec(declared)]}}
        )
        (parsed,) = (privileges_of(obj) or {}).values()
        assert parsed == declared
        policy = PrivilegePolicy(databases=("*",))
        owned = frozenset({OWNER, DELEGATE, ADMIN})
        grantee = Grantee(Key("shop", "reader"), "", 1, "reader", ME, {"orders": parsed}, policy=policy, owned=owned)
        decision = decide_privileges(grantee, self.observed, "")
        assert (decision.changes, decision.default_changes) == ((), ())

    def declare(self, *, exact: bool = False) -> DatabasePrivileges:
        declared = self.fold(exact=exact).declared
        assert declared is not None
        return declared


class CountedEntries(tuple[AclEntry, ...]):
    """Entries of an ACL that count how often they are looked through."""

    looks = 0

    def __iter__(self) -> Iterator[AclEntry]:
        self.looks += 1
        return super().__iter__()


@pytest.fixture
def database() -> AclBuilder:
    made = AclBuilder()
    made.add_schema()
    return made


def access_in(declared: DatabasePrivileges) -> dict[str, tuple[frozenset[Access], tuple[str, ...]]]:
    return {one.schema: (one.access, one.exceptions) for one in declared.schemas}


READ, WRITE = frozenset({Access.READ}), frozenset({Access.WRITE})


def test_select_on_everything_is_read(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT")
    database.add("a_id_seq", "SELECT", kind=ObjectKind.SEQUENCE)
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ())}
    assert declared.objects == ()


def test_a_table_without_the_privilege_is_an_exception(database: AclBuilder) -> None:
    for name in ("a", "b", "c"):
        database.add(name, "SELECT INSERT UPDATE DELETE")
    database.add("secret")
    assert access_in(database.declare()) == {"app": (WRITE, ("secret",))}


def test_a_routine_whose_name_reads_like_one_with_arguments_is_no_exception(database: AclBuilder) -> None:
    for name in ("a", "b", "c"):
        database.add(name, "EXECUTE", kind=ObjectKind.ROUTINE)
    database.add("a(int)", kind=ObjectKind.ROUTINE)
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ("*",))}
    assert {name for one in declared.objects for name in one.names} == {"a", "b", "c"}


def test_sequences_without_the_privilege_share_a_pattern(database: AclBuilder) -> None:
    for name in ("a", "b", "c"):
        database.add(name, "SELECT")
        database.add(f"{name}_id_seq", kind=ObjectKind.SEQUENCE)
    assert access_in(database.declare()) == {"app": (READ, ("*_seq",))}


def test_privileges_beyond_an_access_become_a_pattern(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT TRUNCATE")
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ())}
    assert declared.objects == (ObjectPrivileges(ObjectKind.TABLE, "app", ("*",), frozenset({"TRUNCATE"})),)


def test_a_single_table_is_listed_by_name(database: AclBuilder) -> None:
    database.add("a", "SELECT")
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ("*",))}
    assert declared.objects == (ObjectPrivileges(ObjectKind.TABLE, "app", ("a",), frozenset({"SELECT"})),)


def test_with_default_privileges_a_single_table_becomes_an_access(database: AclBuilder) -> None:
    database.add("a", "SELECT")
    database.add_default("r", "SELECT")
    database.add_default("S", "SELECT")
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ())}
    assert declared.created_by == ("own",)
    assert declared.unmanaged == ()


def test_default_privileges_that_created_by_cannot_express_leave_the_schema_unmanaged(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT")
    database.add_default("r", "SELECT")
    folded = database.fold()
    assert folded.declared is not None
    assert folded.declared.unmanaged == ("app",)
    assert folded.notes == (
        "unmanaged: schema app: default privileges of own differ from what createdBy means",
        MANAGED,
    )


def test_default_privileges_of_the_whole_database_leave_it_unmanaged(database: AclBuilder) -> None:
    database.add_default("r", "SELECT", schema="")
    assert database.declare().unmanaged == ("*",)


def test_access_without_default_privileges_of_the_creator_is_declared_by_patterns(database: AclBuilder) -> None:
    database.add_schema("hr")
    for schema in ("app", "hr"):
        for name in ("a", "b"):
            database.add(name, "SELECT", schema=schema)
    for object_type in "rS":
        database.add_default(object_type, "SELECT")
    declared = database.declare()
    assert access_in(declared) == {"app": (READ, ()), "hr": (READ, ("*",))}
    assert declared.created_by == ("own",)
    assert declared.unmanaged == ()


def test_exact_mode_lists_names(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT")
    declared = database.declare(exact=True)
    assert access_in(declared) == {"app": (READ, ("*",))}
    assert declared.objects == (ObjectPrivileges(ObjectKind.TABLE, "app", ("a", "b"), frozenset({"SELECT"})),)


def test_exact_mode_warns_of_default_privileges_that_a_present_object_declares(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT")
    for object_type in "rS":
        database.add_default(object_type, "SELECT")
    present, folded = database.declare(), database.fold(exact=True)
    assert folded.declared is not None
    assert (present.created_by, folded.declared.created_by) == (("own",), ())
    assert folded.notes[-1] == MANAGED
    grantee = Grantee(
        Key("shop", "reader"),
        "",
        1,
        "reader",
        ME,
        {"orders": folded.declared},
        policy=PrivilegePolicy(databases=("*",)),
        owned=frozenset({OWNER}),
        former={"orders": (present,)},
    )
    decision = decide_privileges(grantee, database.observed, "")
    assert decision.changes == ()
    assert {(one.object_type, one.revoke) for one in decision.default_changes} == {("r", True), ("S", True)}


def test_exact_mode_lists_routines_with_their_arguments(database: AclBuilder) -> None:
    database.add("f", "EXECUTE", kind=ObjectKind.ROUTINE, arguments="integer")
    (item,) = database.declare(exact=True).objects
    assert item.names == ("f(integer)",)


def test_exact_mode_shares_no_pattern_of_schemas() -> None:
    database = AclBuilder()
    for number in range(100):
        database.add_schema(f"tenant_{number}")
        database.add("a", "SELECT", schema=f"tenant_{number}")
    declared = database.declare(exact=True)
    schemas = [one.schema for one in declared.schemas] + [one.schema for one in declared.objects]
    assert not any(map(is_pattern, schemas))
    assert len(declared.objects) == 32
    assert declared.unmanaged == ("*",)


@pytest.mark.parametrize("extension", [False, True])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [(ObjectKind.TABLE, "a*", ""), (ObjectKind.ROUTINE, "f?", ""), (ObjectKind.ROUTINE, "f", '"odd*type"')],
)
def test_an_object_whose_name_would_be_a_pattern_is_not_listed(
    database: AclBuilder, kind: ObjectKind, name: str, arguments: str, exact: bool, extension: bool
) -> None:
    privilege = "EXECUTE" if kind is ObjectKind.ROUTINE else "SELECT"
    database.add(name, privilege, kind=kind, arguments=arguments, extension=extension)
    if arguments:
        database.add(name, kind=kind, extension=extension)
    folded = database.fold(exact=exact)
    assert folded.declared is not None
    assert (folded.declared.objects, folded.declared.unmanaged) == ((), ("app",))
    why = "an object's name cannot be listed: it contains * or ?, is too long or is not UTF-8"
    assert folded.notes == (f"unmanaged: schema app: {why}",)


def test_a_pattern_stands_for_objects_whose_names_cannot_be_listed(database: AclBuilder) -> None:
    for name in ("a*", "a?"):
        database.add(name, "SELECT TRIGGER")
    folded = database.fold()
    assert folded.declared is not None
    assert folded.notes == ()
    assert access_in(folded.declared) == {"app": (READ, ())}


@pytest.mark.parametrize("kind", [ObjectKind.TABLE, ObjectKind.ROUTINE])
def test_what_the_policy_allows_only_by_exact_names_is_listed_by_name(database: AclBuilder, kind: ObjectKind) -> None:
    for name in ("a", "b"):
        database.add(name, "EXECUTE" if kind is ObjectKind.ROUTINE else "SELECT TRIGGER", kind=kind, elevated=True)
    for number in range(100):
        schema = f"tenant_{number}"
        database.add_schema(schema)
        for name in ("a", "b"):
            database.add(name, "SELECT", schema=schema)
    rules = (PrivilegeRule(schemas=("app",)), PrivilegeRule(schemas=("tenant_*",)))
    policy = PrivilegePolicy(rules=rules, databases=("*",))
    folded = database.fold(policy=policy)
    assert folded.declared is not None
    assert folded.notes == ()
    assert access_in(folded.declared) == {"app": (READ, ("*",)), "tenant_*": (READ, ())}
    names = ("a()", "b()") if kind is ObjectKind.ROUTINE else ("a", "b")
    assert [one.names for one in folded.declared.objects] == [names]
    grantee = Grantee(Key("shop", "reader"), "", 1, "reader", ME, {"orders": folded.declared}, policy=policy)
    assert decide_privileges(grantee, database.observed, "").pending == ()


@pytest.mark.parametrize("rules", [None, (), (PrivilegeRule(),)])
def test_what_needs_exact_names_is_listed_so_that_a_later_rule_allows_it(
    database: AclBuilder, rules: tuple[PrivilegeRule, ...] | None
) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT TRIGGER")
    declared = database.fold(policy=PrivilegePolicy(rules=rules, databases=("*",))).declared
    assert declared is not None
    assert [one.names for one in declared.objects] == [("a", "b")]
    later = PrivilegePolicy(rules=(PrivilegeRule(schemas=("app",)),), databases=("*",))
    grantee = Grantee(Key("shop", "reader"), "", 1, "reader", ME, {"orders": declared}, policy=later)
    assert decide_privileges(grantee, database.observed, "").pending == ()
    own = database.fold(policy=PrivilegePolicy(rules=rules, databases=("*",)), roles=frozenset({OWNER})).declared
    assert own is not None
    assert [one.names for one in own.objects] == [("*",)]


def test_what_the_policy_does_not_allow_is_declared_and_noted(database: AclBuilder) -> None:
    for name in ("a", "b"):
        database.add(name, "SELECT TRIGGER")
    policy = PrivilegePolicy(rules=(PrivilegeRule(),), databases=("*",))
    folded = database.fold(policy=policy)
    assert folded.declared is not None
    assert folded.notes == (
        "TRIGGER on table app.a, TRIGGER on table app.b: the server's policy does not allow it, so the controller does "
        "not adopt the role",
    )
    assert database.fold(policy=policy, roles=frozenset({OWNER})).notes == ()


@pytest.mark.parametrize(
    ("privileges", "grantable", "why"),
    [("USAGE CREATE", False, "CREATE on a schema"), ("USAGE", True, "grant options")],
)
def test_undeclarable_privileges_leave_the_schema_unmanaged(privileges: str, grantable: bool, why: str) -> None:
    database = AclBuilder()
    database.schemas.add("app")
    database.add("app", privileges, kind=ObjectKind.SCHEMA, grantable=grantable)
    folded = database.fold()
    assert folded.declared is not None
    assert folded.declared.unmanaged == ("app",)
    assert folded.notes == (f"unmanaged: schema app: {why} cannot be declared",)


def test_columns_of_a_sequence_leave_only_their_schema_unmanaged(database: AclBuilder) -> None:
    database.add("ids", "SELECT:last_value", kind=ObjectKind.SEQUENCE)
    database.add_schema("hr")
    folded = database.fold()
    assert folded.declared is not None
    assert [one.schema for one in folded.declared.schemas] == ["app", "hr"]
    assert folded.notes == ("unmanaged: schema app: privileges on columns of a sequence cannot be declared",)


def test_an_overload_is_listed_with_its_arguments(database: AclBuilder) -> None:
    database.add("f", "EXECUTE", kind=ObjectKind.ROUTINE, arguments="integer, text[]")
    database.add("f", "", kind=ObjectKind.ROUTINE, arguments="bigint")
    database.add("g", "EXECUTE", kind=ObjectKind.ROUTINE, arguments="bigint")
    (item,) = database.declare().objects
    assert item.names == ("f(integer, text[])", "g")


def test_objects_of_a_superusers_extension_are_left_alone(database: AclBuilder) -> None:
    database.add("pg_stat", "SELECT", extension=True, owner=ADMIN)
    database.add("a", "SELECT")
    database.add("b", "SELECT")
    assert access_in(database.declare()) == {"app": (READ, ())}


def test_objects_of_another_extension_are_declared_by_name(database: AclBuilder) -> None:
    database.add("spatial", "SELECT", extension=True)
    (item,) = database.declare().objects
    assert item.names == ("spatial",)


def test_too_many_items_leave_the_largest_schema_unmanaged() -> None:
    database = AclBuilder()
    for schema in ("app", "hr"):
        database.add_schema(schema)
    words = [one for one in DECLARABLE[ObjectKind.TABLE] if one != "MAINTAIN"]
    for number in range(1, 80):
        some = [word for place, word in enumerate(words) if number >> place & 1]
        database.add(f"t{number}", " ".join(some))
    database.add("people", "SELECT", schema="hr")
    folded = database.fold()
    assert folded.declared is not None
    assert folded.declared.unmanaged == ("app",)
    assert access_in(folded.declared) == {"hr": (READ, ("*",))}


def test_many_schemas_share_a_pattern() -> None:
    database = AclBuilder()
    for number in range(100):
        schema = f"tenant_{number}"
        database.add_schema(schema)
        for name in ("a", "b"):
            database.add(name, "SELECT", schema=schema)
    database.add_schema("other", "")
    declared = database.declare()
    assert access_in(declared) == {"tenant_*": (READ, ())}


def test_many_unlike_schemas_are_left_unmanaged() -> None:
    database = AclBuilder()
    for number in range(100):
        database.add_schema(f"{number}s")
        database.add_schema(f"{number}t", "")
    assert database.declare().unmanaged == ("*",)


def test_a_thousand_schemas_that_share_no_pattern_are_folded_in_seconds() -> None:
    database = AclBuilder()
    for number in range(1000):
        database.add_schema(f"{number}s")
        database.add(f"t{number}", "SELECT", schema=f"{number}s")
        database.add_schema(f"{number}t", "")
    begin = time.process_time()
    declared = database.declare()
    assert time.process_time() - begin < 8
    assert len(declared.objects) == 32
    assert declared.unmanaged == ("*",)


def test_what_others_hold_is_looked_through_once_for_all_roles(database: AclBuilder) -> None:
    others = [AclEntry(oid, OWNER, "own", "SELECT") for oid in range(20000, 20010)]
    database.add("a", "SELECT")
    shared = database.acls.pop()
    entries = CountedEntries([*shared.entries, *others])
    database.acls.append(replace(shared, entries=entries))
    folder = PrivilegeFolder(database.observed)
    assert folder.fold(ME, "reader").declared is not None
    looks = entries.looks
    for one in others:
        assert folder.fold(one.grantee, "other").declared is not None
    assert entries.looks == looks


def test_a_role_without_privileges_gets_no_declaration(database: AclBuilder) -> None:
    other = AclBuilder()
    other.add_schema(privileges="")
    other.add("a")
    assert other.fold() == FoldedDatabase()


def test_kinds_that_cannot_be_declared_are_noted(database: AclBuilder) -> None:
    database.add("colour", "USAGE", kind=ObjectKind.TYPE)
    database.add_default("T", "USAGE")
    note, default, reported = database.fold().notes
    assert note == "not declarable, and left alone: privileges on type app.colour"
    assert default.startswith("not declarable, and left alone: default privileges on ")
    assert reported == (
        "reported as drift (DriftReported) until you revoke them, or list their schemas in unmanaged: USAGE on future "
        "types in schema app created by own, USAGE on type app.colour"
    )


def test_kinds_that_cannot_be_declared_are_reported_only_where_the_controller_manages_something() -> None:
    database = AclBuilder()
    database.schemas.add("app")
    database.add("colour", "USAGE", kind=ObjectKind.TYPE)
    note = "not declarable, and left alone: privileges on type app.colour"
    assert database.fold() == FoldedDatabase(notes=(note,))
    database.add("app", "USAGE CREATE", kind=ObjectKind.SCHEMA)
    assert database.fold().notes == (note, "unmanaged: schema app: CREATE on a schema cannot be declared")


_SCHEMAS = ("app", "hr", "pgrole", "odd*", "x\udcff")
_NAMES = ("a", "b", "c", "a_id_seq", "b_id_seq", "*", "a?", "f(int)", "é", "n\udcff")
_KINDS = (
    ObjectKind.TABLE,
    ObjectKind.VIEW,
    ObjectKind.MATERIALIZED_VIEW,
    ObjectKind.FOREIGN_TABLE,
    ObjectKind.SEQUENCE,
    ObjectKind.ROUTINE,
)


def _privileges(kind: ObjectKind) -> st.SearchStrategy[str]:
    words = list(DECLARABLE[kind])
    usual = ["", "SELECT", "SELECT INSERT UPDATE DELETE"] if "INSERT" in words else ["", *words, " ".join(words)]
    return st.one_of(st.sampled_from(usual), st.lists(st.sampled_from(words), unique=True).map(" ".join))


@st.composite
def databases(draw: st.DrawFn) -> AclBuilder:
    """Small databases with everything that an ACL can hold."""
    made = AclBuilder()
    owners = st.sampled_from([OWNER, OWNER, OWNER, ME, ADMIN])
    rarely = st.sampled_from([False] * 9 + [True])
    made.add("orders", draw(_privileges(ObjectKind.DATABASE)), kind=ObjectKind.DATABASE, schema="")
    odd = draw(rarely)
    some = draw(st.lists(st.sampled_from(_SCHEMAS if odd else _SCHEMAS[:2]), unique=True, min_size=1, max_size=3))
    for schema in some:
        privileges = draw(st.sampled_from(["USAGE"] * 8 + ["", "", "CREATE", "USAGE CREATE"]))
        made.add_schema(schema, privileges, owner=draw(owners))
        usual = {kind: draw(_privileges(kind)) for kind in _KINDS}
        for name in draw(st.lists(st.sampled_from(_NAMES if odd else _NAMES[:5]), unique=True, max_size=8)):
            kind = draw(st.sampled_from(_KINDS))
            held = draw(st.one_of(st.just(usual[kind]), _privileges(kind)))
            if kind is ObjectKind.TABLE and draw(rarely):
                held += " SELECT:id UPDATE:name UPDATE:id"
            made.add(
                name,
                held,
                kind=kind,
                schema=schema,
                owner=draw(owners),
                extension=draw(rarely),
                grantable=draw(rarely),
                grantor=draw(st.sampled_from([OWNER, DELEGATE])),
                arguments=draw(st.sampled_from(["", "integer", '"odd(type)"'])) if kind is ObjectKind.ROUTINE else "",
            )
    places = [*sorted(made.schemas), ""] if odd else sorted(made.schemas)
    for schema in draw(st.lists(st.sampled_from(places), max_size=2, unique=True)):
        for creator in draw(st.lists(st.sampled_from([OWNER, DELEGATE]), unique=True)):
            given_types = draw(st.sampled_from([("r", "S"), ("r",), ("f",), ("r", "S", "f"), ("T",)]))
            for object_type in given_types:
                word = {"f": "EXECUTE", "T": "USAGE"}.get(object_type)
                words = word or draw(st.sampled_from(["SELECT", "SELECT", "SELECT UPDATE"]))
                made.add_default(object_type, words, schema, creator)
    return made


@given(databases(), st.booleans())
def test_applying_a_folded_declaration_changes_nothing(database: AclBuilder, exact: bool) -> None:
    folded = database.fold(exact=exact)
    held = any(one.entries and one.object.owner != ME for one in database.acls) or database.defaults
    assert folded.declared is not None or folded.notes or not _is_declared(database) or not held


def _is_declared(database: AclBuilder) -> bool:
    """Tells whether the role holds anything that the controller would revoke if it were not declared."""
    return any(
        one.entries and one.object.owner != ME and not (one.object.extension and one.object.owner == ADMIN)
        for one in database.acls
    )


@given(databases())
def test_a_fold_is_not_longer_than_a_list_of_names(database: AclBuilder) -> None:
    short, plain = database.fold().declared, database.fold(exact=True).declared
    assert (short is None) == (plain is None)
    if short is not None and plain is not None and not (short.unmanaged or plain.unmanaged or short.created_by):
        assert count_names(short) <= count_names(plain)
