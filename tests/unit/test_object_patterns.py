"""core/privileges/object_patterns: which privileges a declaration grants on an object."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.names import matches
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, ObjectPrivileges, SchemaAccess
from pgrole_controller.core.privileges.object_patterns import NOTHING_WANTED, CompiledPrivileges, Wanted
from pgrole_controller.core.privileges.privilege_policy import check_declarable
from pgrole_controller.core.privileges.routine_signature import normalize_arguments, split_signature
from tests.cpu_time import within_a_callback

READ, WRITE, EXECUTE = (frozenset({one}) for one in Access)
TABLES = (ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.FOREIGN_TABLE)


def make(
    kind: ObjectKind = ObjectKind.TABLE,
    schema: str = "app",
    name: str = "orders",
    *,
    oid: int = 20000,
    arguments: str = "",
    extension: bool = False,
) -> DatabaseObject:
    return DatabaseObject(ObjectId("c", oid), kind, schema, name, 16500, "own", arguments, extension)


def schema_object(name: str, oid: int = 20000) -> DatabaseObject:
    return make(ObjectKind.SCHEMA, name, name, oid=oid)


def of_access(schema: str, access: frozenset[Access], *exceptions: str) -> DatabasePrivileges:
    return DatabasePrivileges("orders", schemas=(SchemaAccess(schema, access, exceptions),))


def of_objects(
    kind: ObjectKind, schema: str, *names: str, privileges: str = "SELECT", columns: tuple[str, ...] = ()
) -> DatabasePrivileges:
    items = (ObjectPrivileges(kind, schema, names, frozenset(privileges.split()), columns),)
    return DatabasePrivileges("orders", objects=items)


def wanted(declared: DatabasePrivileges, obj: DatabaseObject, version: int) -> Wanted:
    return CompiledPrivileges(declared, version).wanted(obj)


def found(declared: DatabasePrivileges, obj: DatabaseObject, version: int = 180000) -> set[str]:
    return set(wanted(declared, obj, version).privileges)


@pytest.mark.parametrize(
    ("access", "tables", "sequence", "routine", "schema"),
    [
        (READ, "SELECT", "SELECT", "", "USAGE"),
        (WRITE, "SELECT INSERT UPDATE DELETE", "SELECT USAGE UPDATE", "", "USAGE"),
        (EXECUTE, "", "", "EXECUTE", "USAGE"),
        (READ | EXECUTE, "SELECT", "SELECT", "EXECUTE", "USAGE"),
        (frozenset[Access](), "", "", "", ""),
    ],
)
def test_an_access_gives_privileges_on_everything_in_the_schema(
    access: frozenset[Access], tables: str, sequence: str, routine: str, schema: str
) -> None:
    declared = of_access("app", access)
    for kind in TABLES:
        assert found(declared, make(kind)) == set(tables.split())
    assert found(declared, make(ObjectKind.SEQUENCE)) == set(sequence.split())
    assert found(declared, make(ObjectKind.ROUTINE)) == set(routine.split())
    assert found(declared, schema_object("app")) == set(schema.split())
    assert wanted(declared, make(schema="other"), 180000) == NOTHING_WANTED
    assert wanted(declared, make(ObjectKind.TYPE), 180000) == NOTHING_WANTED


def test_exceptions_exclude_objects_but_not_the_schema() -> None:
    declared = of_access("app", WRITE, "salaries", "tmp_*", "app")
    assert found(declared, make(name="salaries")) == set()
    assert found(declared, make(ObjectKind.SEQUENCE, name="tmp_1")) == set()
    assert found(declared, make(name="tmp")) == {"SELECT", "INSERT", "UPDATE", "DELETE"}
    assert found(declared, schema_object("app")) == {"USAGE"}


@pytest.mark.parametrize(
    ("exception", "left"),
    [
        ("f(int)", {"text", "integer,app.state"}),
        ("f(int4, *)", {"integer", "text"}),
        ("f(*)", set()),
        ("f", set()),
        ("*(text)", {"integer", "integer,app.state"}),
        ("g(int)", {"integer", "text", "integer,app.state"}),
    ],
)
def test_an_exception_can_name_one_overload_of_a_routine(exception: str, left: set[str]) -> None:
    declared = of_access("app", EXECUTE | READ, exception)
    overloads = ("integer", "text", "integer,app.state")
    routines = {one: make(ObjectKind.ROUTINE, name="f", arguments=one) for one in overloads}
    assert {one for one, routine in routines.items() if found(declared, routine)} == left
    assert bool(found(declared, make(name="f(int)"))) == (exception not in ("f(int)", "f(*)")), (
        "a table has no overloads"
    )


def test_an_exception_applies_only_to_its_own_access() -> None:
    declared = DatabasePrivileges(
        "orders",
        schemas=(SchemaAccess("app", READ), SchemaAccess("a*", WRITE, ("orders",))),
        objects=(ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"TRUNCATE"})),),
    )
    assert found(declared, make()) == {"SELECT", "TRUNCATE"}
    assert found(declared, make(name="others")) == {"SELECT", "INSERT", "UPDATE", "DELETE"}


@pytest.mark.parametrize(
    ("declared", "kinds"),
    [
        (ObjectKind.TABLE, set(TABLES)),
        (ObjectKind.VIEW, {ObjectKind.VIEW}),
        (ObjectKind.FOREIGN_TABLE, {ObjectKind.FOREIGN_TABLE}),
        (ObjectKind.SEQUENCE, {ObjectKind.SEQUENCE}),
    ],
)
def test_kind_table_includes_views_and_narrower_kinds_only_themselves(
    declared: ObjectKind, kinds: set[ObjectKind]
) -> None:
    one = of_objects(declared, "app", "orders")
    assert {kind for kind in ObjectKind if found(one, make(kind))} == kinds


def test_a_name_is_a_pattern_with_two_wildcards_only() -> None:
    one = of_objects(ObjectKind.TABLE, "a?p*", "order[s]", "x*", "y?")
    assert found(one, make(schema="app2", name="order[s]")) == {"SELECT"}
    assert found(one, make(schema="app2", name="orders")) == set()
    assert found(one, make(schema="ap", name="x")) == set()
    assert found(one, make(name="x")) == {"SELECT"}
    assert found(one, make(name="y1")) == {"SELECT"}
    assert found(one, make(name="y12")) == set()


TEXTS = st.text("ab*?[]!\n.|(", max_size=8)


@given(TEXTS, st.text("ab[]!\n.|(*", max_size=8))
def test_patterns_match_like_those_of_policies(pattern: str, name: str) -> None:
    one = of_objects(ObjectKind.TABLE, "app", pattern)
    assert bool(found(one, make(name=name))) == matches(name, [pattern])
    assert matches(name, [pattern]) == fnmatchcase(name, pattern.replace("[", "[[]"))


def test_a_pattern_of_many_asterisks_is_decided_at_once() -> None:
    one = of_objects(ObjectKind.TABLE, "app", "*a" * 30 + "*b")
    assert found(one, make(name="a" * 63)) == set()
    assert found(one, make(name="a" * 62 + "b")) == {"SELECT"}


@pytest.mark.parametrize(
    ("name", "matched"),
    [
        ("close(bigint, text)", True),
        ("close(bigint,text)", True),
        ("close( BIGINT ,  Text )", True),
        ("close", True),
        ("clo*", True),
        ("close(bigint)", False),
        ("close()", False),
        ("close(*)", True),
        ("c*(bigint, *)", True),
        ("c*(text, *)", False),
    ],
)
def test_routines_match_by_name_or_with_the_types_of_arguments(name: str, matched: bool) -> None:
    one = of_objects(ObjectKind.ROUTINE, "app", name, privileges="EXECUTE")
    assert bool(found(one, make(ObjectKind.ROUTINE, name="close", arguments="bigint, text"))) is matched


def test_routines_without_arguments_or_with_parentheses_in_their_names_are_matched() -> None:
    one = of_objects(ObjectKind.ROUTINE, "app", "now()", 'odd(x)(app."T")', privileges="EXECUTE")
    assert found(one, make(ObjectKind.ROUTINE, name="now")) == {"EXECUTE"}
    assert found(one, make(ObjectKind.ROUTINE, name="now", arguments="text")) == set()
    assert found(one, make(ObjectKind.ROUTINE, name="now()", arguments="text")) == set()
    assert found(one, make(ObjectKind.ROUTINE, name="odd(x)", arguments='app."T"')) == {"EXECUTE"}
    assert found(one, make(ObjectKind.ROUTINE, name="odd", arguments="x")) == set()
    assert normalize_arguments("Character  Varying,  integer[]") == "character varying,integer[]"


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ('"int8", "text"[], "varchar"(3)', "bigint,text[],character varying"),
        ('"bit", "numeric", "timestamptz", a "bool"', "bit,numeric,timestamp with time zone,boolean"),
        ('"pg_catalog"."int4", pg_catalog."char"', 'integer,"char"'),
        ('app."int4", "app"."Weird type,(x)", "app".int', 'app.int4,app."Weird type,(x)",app.int'),
        ('app."order"', "app.order"),
        ('"char", "any", "int", "character", "Text", "a""b"', '"char","any","int","character","Text","a""b"'),
        ('"out" int, "in" text', "integer,text"),
        ('app."order", *', "app.order,*"),
        ('app."a b*", "char"?', 'app."a b*","char"?'),
    ],
)
def test_needless_quotes_of_types_do_not_matter(declared: str, shown: str) -> None:
    assert normalize_arguments(declared) == shown
    assert normalize_arguments(shown) == shown


@pytest.mark.parametrize("text", ["f" + "(" * 254 + ")", "f" + "(a," * 84 + ")", 'f("' + "(a" * 126 + ")"])
def test_many_parentheses_in_a_routine_are_read_without_delay(text: str) -> None:
    """A PgRole can list 2,000 such names, and they are read once for each schema."""
    with within_a_callback():
        for place in range(200):
            split_signature(text[:-4] + f"{place:03})")


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("f(x(int)", "f(x", "integer"),
        ("f)(int)", "f)", "integer"),
        ('we"(ird(int)', 'we"(ird', "integer"),
        ('f(app."x)(""y"[], int)', "f", 'app."x)(""y"[],integer'),
        ("f(numeric(10, 2), int)", "f", "numeric,integer"),
        ('f(*y")', "f", '*y"'),
        ("f(((x)", "f((", "x"),
    ],
)
def test_names_and_types_with_parentheses_are_told_apart(text: str, name: str, arguments: str) -> None:
    assert split_signature(text) == (name, arguments)


@pytest.mark.parametrize("text", ["int" + "[ ]" * 80 + "x", 'app."' + "[ ]" * 20 + 'x"', "int" + " [" * 100])
def test_many_brackets_are_normalized_without_delay(text: str) -> None:
    """Anyone who may create a type or write a PgRole can choose such a text."""
    assert normalize_arguments(text)


@pytest.mark.parametrize(
    ("declared", "arguments"),
    [
        ("int", "integer"),
        ("INT4, int2, int8", "integer, smallint, bigint"),
        ("bool,float,float4,float8", "boolean, double precision, real, double precision"),
        ("float(24), float(25)", "real, double precision"),
        ("varchar(10), numeric(10, 2), dec", "character varying, numeric, numeric"),
        ("char(3), bpchar, national character varying", "character, character, character varying"),
        (
            "timestamptz, timestamp(3), timetz",
            "timestamp with time zone, timestamp without time zone, time with time zone",
        ),
        ("timestamp (3) with time zone, time", "timestamp with time zone, time without time zone"),
        ("varbit, bit(3), interval second(3)", "bit varying, bit, interval"),
        ("variadic int[]", "integer[]"),
        ("int array, text[3][]", "integer[], text[]"),
        ("in id bigint, out int, inout name text", "bigint, text"),
        ("pg_catalog.int4[], pg_catalog.text", "integer[], text"),
        ('"char", pg_catalog."char", char', '"char", "char", character'),
        ('app."A, (B"(3), App.State', 'app."A, (B", app.state'),
    ],
)
def test_argument_types_can_be_declared_by_any_of_their_names_in_postgresql(declared: str, arguments: str) -> None:
    one = of_objects(ObjectKind.ROUTINE, "app", f"f({declared})", privileges="EXECUTE")
    assert found(one, make(ObjectKind.ROUTINE, name="f", arguments=arguments)) == {"EXECUTE"}
    pattern = of_objects(ObjectKind.ROUTINE, "app", f"?({declared})", privileges="EXECUTE")
    assert found(pattern, make(ObjectKind.ROUTINE, name="f", arguments=arguments)) == {"EXECUTE"}


@pytest.mark.parametrize(
    ("declared", "arguments"),
    [
        ('"int"', "integer"),
        ("char", '"char"'),
        ("app.int4", "integer"),
        ("state", "app.state"),
        ('app."State"', 'app."state"'),
        ('app."a  b"', 'app."a b"'),
        ("int", "integer[]"),
        ("out x)(y", ""),
        ("10)", ""),
    ],
)
def test_quoted_types_and_types_of_other_schemas_are_not_aliases(declared: str, arguments: str) -> None:
    one = of_objects(ObjectKind.ROUTINE, "app", f"f({declared})", privileges="EXECUTE")
    assert found(one, make(ObjectKind.ROUTINE, name="f", arguments=arguments)) == set()


def test_wildcards_match_types_as_postgresql_shows_them() -> None:
    one = of_objects(ObjectKind.ROUTINE, "app", "f(int, *)", "f(time*)", privileges="EXECUTE")
    for arguments in ("integer, text", "integer, text, text", "timestamp with time zone"):
        assert found(one, make(ObjectKind.ROUTINE, name="f", arguments=arguments)) == {"EXECUTE"}
    assert found(one, make(ObjectKind.ROUTINE, name="f", arguments="text, integer")) == set()


@given(st.lists(st.sampled_from(['"', '""', "(", ")", ",", ".", "[", "]", " ", "int", "out", "3", "a", "A", "*"])))
def test_normalizing_any_text_twice_changes_nothing_more(parts: list[str]) -> None:
    text = "".join(parts)
    for once in (normalize_arguments(text), normalize_arguments(f"f {text}")):
        assert normalize_arguments(once) == once


@pytest.mark.parametrize(
    "obj",
    [
        make(oid=16383),
        make(schema="pg_catalog"),
        make(schema="information_schema"),
        make(schema="pgrole"),
        make(schema="pg_toast"),
        make(schema="pg_temp_3"),
        make(extension=True),
    ],
)
def test_reserved_objects_match_only_exact_names(obj: DatabaseObject) -> None:
    assert found(of_access(obj.schema, READ), obj) == set()
    assert found(of_objects(ObjectKind.TABLE, obj.schema, "order?"), obj) == set()
    assert found(of_objects(ObjectKind.TABLE, "*", "orders"), obj) == set()
    literal = wanted(of_objects(ObjectKind.TABLE, obj.schema, "orders"), obj, 180000)
    assert literal.privileges == literal.literal == {"SELECT"}


def test_usage_of_a_reserved_schema_needs_its_exact_name_and_public_is_not_reserved_whatever_its_name_is() -> None:
    assert found(of_access("*", READ), schema_object("pg_catalog", 11)) == set()
    assert found(of_access("pg_catalog", READ), schema_object("pg_catalog", 11)) == {"USAGE"}
    assert found(of_access("*", READ), schema_object("public", 2200)) == {"USAGE"}
    assert found(of_access("*", READ), schema_object("shop", 2200)) == {"USAGE"}


def test_exact_names_are_recorded_per_privilege_and_column() -> None:
    declared = DatabasePrivileges(
        "orders",
        objects=(
            ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"})),
            ObjectPrivileges(ObjectKind.TABLE, "app", ("*",), frozenset({"TRIGGER"})),
            ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"REFERENCES"}), ("id",)),
            ObjectPrivileges(ObjectKind.TABLE, "*", ("orders",), frozenset({"REFERENCES"}), ("no",)),
        ),
    )
    one = wanted(declared, make(), 180000)
    assert one.privileges == {"SELECT", "TRIGGER"}
    assert one.literal == {"SELECT"}
    assert one.columns == {"REFERENCES": frozenset({"id", "no"})}
    assert one.literal_columns == {"REFERENCES": frozenset({"id"})}
    assert one.has("REFERENCES", "no")
    assert not one.has("REFERENCES")
    assert not one.has_literal("REFERENCES", "no")


def test_privileges_on_schemas_and_on_the_database_are_wanted_as_declared() -> None:
    declared = DatabasePrivileges(
        "orders",
        frozenset({"CONNECT"}),
        objects=(ObjectPrivileges(ObjectKind.SCHEMA, "", ("app", "x*"), frozenset({"CREATE"})),),
    )
    exact, other = (wanted(declared, schema_object(name), 180000) for name in ("app", "x1"))
    assert exact.privileges == exact.literal == other.privileges == {"CREATE"}
    assert not other.literal
    database = wanted(declared, make(ObjectKind.DATABASE, "", "orders", oid=5), 180000)
    assert database.privileges == database.literal == {"CONNECT"}


def test_privileges_that_a_kind_does_not_have_are_not_wanted() -> None:
    both = of_objects(ObjectKind.SEQUENCE, "app", "*", privileges="USAGE DELETE")
    assert found(both, make(ObjectKind.SEQUENCE)) == {"USAGE"}


def test_maintain_needs_postgresql_17() -> None:
    declared = of_objects(ObjectKind.TABLE, "app", "*", privileges="SELECT MAINTAIN")
    assert found(declared, make(), 170000) == {"SELECT", "MAINTAIN"}
    assert found(declared, make(), 160009) == {"SELECT"}
    assert check_declarable(declared, 170000) is None
    refused = check_declarable(declared, 160009)
    assert refused is not None
    assert refused.reason is Reason.INVALID_SPEC
    assert "objects[0].privileges" in refused.message
    assert "17" in refused.message


def test_unmanaged_schemas_are_matched_by_pattern() -> None:
    compiled = CompiledPrivileges(DatabasePrivileges("orders", unmanaged=("scratch_*",)), 180000)
    assert [compiled.is_unmanaged(name) for name in ("scratch_1", "scratch", "scratch_1")] == [True, False, True]
    assert not CompiledPrivileges(DatabasePrivileges("orders"), 180000).is_unmanaged("")


def test_a_compiled_declaration_answers_as_if_it_were_new() -> None:
    declared = DatabasePrivileges(
        "orders",
        schemas=(SchemaAccess("app", READ, ("x*",)), SchemaAccess("a*", WRITE, ("*y",))),
        objects=(ObjectPrivileges(ObjectKind.TABLE, "app", ("xy",), frozenset({"TRIGGER"})),),
    )
    compiled = CompiledPrivileges(declared, 180000)
    objects = [make(kind, name=name) for kind in TABLES for name in ("x", "y", "xy", "z")] * 2
    assert [compiled.wanted(one) for one in objects] == [wanted(declared, one, 180000) for one in objects]


@pytest.mark.parametrize("kind", [ObjectKind.TABLE, ObjectKind.ROUTINE])
def test_many_names_in_many_schemas_are_looked_up_at_once(kind: ObjectKind) -> None:
    """Also where there are more schemas than a compiled declaration remembers."""
    end = "(integer)" if kind is ObjectKind.ROUTINE else ""
    names = [f"name_{number}{end}" for number in range(2000)]
    objects = tuple(
        ObjectPrivileges(kind, "*", tuple(names[start : start + 64]), frozenset({"SELECT", "EXECUTE"}))
        for start in range(0, len(names), 64)
    )
    compiled = CompiledPrivileges(DatabasePrivileges("orders", objects=objects), 180000)
    with within_a_callback():
        for schema in range(600):
            name, has = ("name_1999", True) if schema % 2 else ("name_2000", False)
            obj = DatabaseObject(ObjectId("pg_class", 20_000), kind, f"s{schema}", name, 1, "owner", end.strip("()"))
            assert (compiled.wanted(obj) != NOTHING_WANTED) is has
