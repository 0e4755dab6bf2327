"""core/privileges/grant_ddl: changes to privileges become statements, in an order that PostgreSQL accepts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pglast import ast, parse_sql

from pgrole_controller.core.privileges.acl import AclChange, DatabaseObject, DefaultAclChange, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grant_ddl import (
    GRANTEES_PER_STATEMENT,
    OBJECTS_PER_STATEMENT,
    render_types,
    statements,
)
from tests.cpu_time import within_a_callback
from tests.roles import names


def make(
    oid: int = 20000, kind: ObjectKind = ObjectKind.TABLE, *, schema: str = "app", name: str = "", arguments: str = ""
) -> DatabaseObject:
    return DatabaseObject(ObjectId("c", oid), kind, schema, name or f"t{oid}", 16500, "own", arguments)


def change(obj: DatabaseObject, privileges: str = "SELECT", **values: object) -> AclChange:
    one = AclChange(obj, 16400, "reader", tuple(privileges.split()))
    return replace(one, **values)  # type: ignore[arg-type]


def texts(*changes: AclChange, cascade: bool = False) -> list[str]:
    return [one.text for one in statements(changes, cascade=cascade)]


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (change(make()), 'GRANT SELECT ON TABLE "app"."t20000" TO "reader"'),
        (change(make(kind=ObjectKind.VIEW)), 'GRANT SELECT ON TABLE "app"."t20000" TO "reader"'),
        (change(make(kind=ObjectKind.SEQUENCE), "USAGE"), 'GRANT USAGE ON SEQUENCE "app"."t20000" TO "reader"'),
        (change(make(kind=ObjectKind.DATABASE, name="d"), "CONNECT"), 'GRANT CONNECT ON DATABASE "d" TO "reader"'),
        (change(make(kind=ObjectKind.SCHEMA, name="s"), "USAGE"), 'GRANT USAGE ON SCHEMA "s" TO "reader"'),
        (
            change(make(kind=ObjectKind.ROUTINE, name="f", arguments='bigint, app."A b"[]'), "EXECUTE"),
            'GRANT EXECUTE ON ROUTINE "app"."f"(IN bigint, IN app."A b"[]) TO "reader"',
        ),
        (
            change(make(), "SELECT UPDATE", columns=("a", 'b"')),
            'GRANT SELECT ("a", "b"""), UPDATE ("a", "b""") ON TABLE "app"."t20000" TO "reader"',
        ),
        (
            change(make(kind=ObjectKind.SEQUENCE), columns=("last_value",), revoke=True),
            'REVOKE SELECT ("last_value") ON TABLE "app"."t20000" FROM "reader"',
        ),
        (change(make(), revoke=True), 'REVOKE SELECT ON TABLE "app"."t20000" FROM "reader"'),
        (
            change(make(), revoke=True, option_only=True),
            'REVOKE GRANT OPTION FOR SELECT ON TABLE "app"."t20000" FROM "reader"',
        ),
    ],
)
def test_each_kind_of_change_has_its_statement(one: AclChange, text: str) -> None:
    (found,) = statements([one])
    assert (found.text, found.objects, found.acting_as) == (text, (one.object.id,), "")
    parse_sql(text)


def test_only_a_revoke_cascades() -> None:
    assert texts(change(make(), revoke=True), cascade=True) == [
        'REVOKE SELECT ON TABLE "app"."t20000" FROM "reader" CASCADE'
    ]
    assert not texts(change(make()), cascade=True)[0].endswith("CASCADE")


def test_objects_of_the_same_change_share_statements_of_a_hundred_sorted_by_oid() -> None:
    objects = [make(oid) for oid in range(20250, 20000, -1)]
    found = statements([change(one) for one in objects])
    assert [len(one.objects) for one in found] == [OBJECTS_PER_STATEMENT, OBJECTS_PER_STATEMENT, 50]
    assert [oid for one in found for _, oid in one.objects] == list(range(20001, 20251))
    assert found[0].text.startswith('GRANT SELECT ON TABLE "app"."t20001", "app"."t20002", ')


def test_different_changes_do_not_share_a_statement() -> None:
    one = change(make())
    others = [
        change(make(20001), "INSERT"),
        change(make(20002), columns=("a",)),
        change(make(20003), grantee_name="b"),
        change(make(20004), revoke=True),
        change(make(20005), revoke=True, option_only=True),
        change(make(20006), revoke=True, grantor="x1"),
        change(make(20007, ObjectKind.SEQUENCE)),
    ]
    assert len(statements([one, *others])) == 8


def test_grantees_of_the_same_change_of_the_same_objects_share_statements_of_a_hundred() -> None:
    objects = [make(20001), make(20002)]
    readers = [f"r{at:03}" for at in range(101)]
    changes = [change(one, grantee_name=reader) for reader in readers for one in objects]
    first, second, third = texts(*changes, change(make(20001), grantee_name="some"))
    assert first.startswith('GRANT SELECT ON TABLE "app"."t20001", "app"."t20002" TO "r000", "r001", ')
    assert first.count(", ") == GRANTEES_PER_STATEMENT
    assert second == 'GRANT SELECT ON TABLE "app"."t20001", "app"."t20002" TO "r100"'
    assert third == 'GRANT SELECT ON TABLE "app"."t20001" TO "some"'
    both = [change(make(), grantee_name=reader, revoke=True) for reader in ("a", "b")]
    assert texts(*both, cascade=True) == ['REVOKE SELECT ON TABLE "app"."t20000" FROM "a", "b" CASCADE']
    parse_sql(first)


def test_revokes_start_at_the_end_of_the_delegation_chain_and_precede_all_grants() -> None:
    table = make()
    chain = [
        change(table, grantee_name="new"),
        change(table, grantee_name="a", revoke=True),
        change(table, grantee_name="b", revoke=True, grantor="a"),
        change(table, grantee_name="c", revoke=True, grantor="b"),
        change(table, grantee_name="b", revoke=True, grantor="b"),
    ]
    expected = [("b", "c"), ("b", "b"), ("a", "b"), ("", "a"), ("", "new")]
    for order in (chain, chain[::-1], chain[2:] + chain[:2]):
        found = [(one.acting_as, one.text.split('"')[-2]) for one in statements(order)]
        assert found == expected


def test_a_row_of_thousands_of_delegates_is_ordered_within_a_callback() -> None:
    chain = [change(make(), grantee_name=f"r{n + 1}", revoke=True, grantor=f"r{n}") for n in range(2400)]
    with within_a_callback():
        found = statements(chain)
    assert [one.acting_as for one in found] == [one.grantor for one in reversed(chain)]


def test_a_long_delegation_chain_and_a_cycle_are_ordered() -> None:
    table = make()
    chain = [change(table, grantee_name=f"r{at + 1}", revoke=True, grantor=f"r{at}") for at in range(300)]
    assert [one.acting_as for one in statements(chain)] == [f"r{at}" for at in reversed(range(300))]
    cycle = [change(table, grantee_name=one, revoke=True, grantor=by) for one, by in (("a", "b"), ("b", "a"))]
    assert len(statements(cycle)) == 2


DEFAULT = DefaultAclChange(16500, "own", "app", "r", 16400, "reader", ("SELECT",))


@pytest.mark.parametrize(
    ("one", "end"),
    [
        (DEFAULT, ' IN SCHEMA "app" GRANT SELECT ON TABLES TO "reader"'),
        (replace(DEFAULT, object_type="S"), ' IN SCHEMA "app" GRANT SELECT ON SEQUENCES TO "reader"'),
        (
            replace(DEFAULT, object_type="f", privileges=("EXECUTE",)),
            ' IN SCHEMA "app" GRANT EXECUTE ON ROUTINES TO "reader"',
        ),
        (
            replace(DEFAULT, object_type="n", privileges=("USAGE",), schema="", revoke=True),
            ' REVOKE USAGE ON SCHEMAS FROM "reader"',
        ),
        (
            replace(DEFAULT, revoke=True, option_only=True),
            ' IN SCHEMA "app" REVOKE GRANT OPTION FOR SELECT ON TABLES FROM "reader"',
        ),
    ],
)
def test_each_change_of_default_privileges_has_its_statement(one: DefaultAclChange, end: str) -> None:
    (found,) = statements([], [one])
    assert found.text == f'ALTER DEFAULT PRIVILEGES FOR ROLE "own"{end}'
    assert (found.objects, found.acting_as) == ((), "")
    parse_sql(found.text)


def test_default_privileges_are_revoked_before_others_are_granted() -> None:
    found = statements([], [DEFAULT, replace(DEFAULT, schema="", revoke=True)])
    assert ["REVOKE" in one.text for one in found] == [True, False]


@pytest.mark.parametrize(
    "one",
    [
        change(make(kind=ObjectKind.TYPE), "USAGE"),
        change(make(), "EXECUTE"),
        change(make(), "SELECT; DROP"),
        change(make(), ""),
        change(make(), "DELETE", columns=("a",)),
        change(make(kind=ObjectKind.SEQUENCE), "UPDATE", columns=("a",)),
        change(make(name="x" * 64)),
        change(make(name="a\0b")),
    ],
)
def test_a_change_without_a_statement_is_an_error(one: AclChange) -> None:
    with pytest.raises(ValueError, match=r"name|privilege|columns"):
        statements([one])


def test_maintain_before_postgresql_17_and_unknown_types_of_defaults_raise_errors() -> None:
    assert statements([change(make(), "MAINTAIN")], version=170000)
    with pytest.raises(ValueError, match="MAINTAIN"):
        statements([change(make(), "MAINTAIN")], version=160000)
    with pytest.raises(ValueError, match='"L"'):
        statements([], [replace(DEFAULT, object_type="L")])


@pytest.mark.parametrize(
    "types",
    [
        "integer; DROP",
        "a) TO x; --",
        "integer\n",
        "integer\0",
        '"a',
        'a"b"c"',
        "a'b'",
        "int--",
        "a/*",
        "$$",
        'a""b',
        "é",
    ],
)
def test_argument_types_that_format_type_never_returns_raise_errors(types: str) -> None:
    with pytest.raises(ValueError, match="type"):
        render_types(types)


@pytest.mark.parametrize(
    ("types", "rendered"),
    [
        ("", ""),
        ("bigint, text", "IN bigint, IN text"),
        ("character varying", "IN character varying"),
        ('app."A;b"[]', 'IN app."A;b"[]'),
        ('"char"', 'IN "char"'),
        ('app."x"", (y", text', 'IN app."x"", (y", IN text'),
        ("timestamp without time zone", "IN timestamp without time zone"),
    ],
)
def test_argument_types_that_format_type_returns_are_rendered_as_those_of_input_arguments(
    types: str, rendered: str
) -> None:
    assert render_types(types) == rendered


@given(schema=names(), name=names(), role=names(), column=names(), oid=st.sampled_from([1, 2]))
def test_no_name_changes_the_meaning_of_a_statement(schema: str, name: str, role: str, column: str, oid: int) -> None:
    obj = make(oid, schema=schema, name=name)
    (found,) = statements([change(obj, grantee_name=role, columns=(column,), revoke=oid == 1)])
    (parsed,) = parse_sql(found.text)
    grant = parsed.stmt
    assert isinstance(grant, ast.GrantStmt)
    assert grant.objects
    assert grant.grantees
    assert grant.privileges
    assert (grant.objects[0].schemaname, grant.objects[0].relname) == (schema, name)
    assert grant.grantees[0].rolename == role
    assert [one.sval for one in grant.privileges[0].cols] == [column]


def test_names_that_are_not_utf_8_are_looked_up_by_the_statement() -> None:
    hostile = "caf\udce9"
    routine = make(kind=ObjectKind.ROUTINE, schema=hostile, name=hostile, arguments=f'"{hostile}"[]')
    for one in (change(make(name=hostile), columns=(hostile,), grantee_name=hostile), change(routine, "EXECUTE")):
        (text,) = texts(one)
        text.encode()
        parse_sql(text)
        assert "636166e9" in text
        for catalog in ("pg_roles", "pg_class", "pg_namespace", "pg_proc", "pg_type", "pg_attribute"):
            assert f"pg_catalog.{catalog}" in text
