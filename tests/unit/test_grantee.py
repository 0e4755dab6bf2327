"""Declarations of privileges are stored in claims and compared by digest."""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    Refusal,
    SchemaAccess,
    Takeover,
    find_outdated,
    from_json,
    to_json,
)
from pgrole_controller.core.request import Key

DECLARED = DatabasePrivileges(
    "orders",
    frozenset({"CONNECT", "TEMPORARY"}),
    (SchemaAccess("app", frozenset({Access.READ, Access.EXECUTE}), ("tmp_*",)), SchemaAccess("x", frozenset())),
    (
        ObjectPrivileges(ObjectKind.TABLE, "app", ("orders", "a b"), frozenset({"INSERT", "UPDATE"}), ("id",)),
        ObjectPrivileges(ObjectKind.ROUTINE, "app", ("close(bigint)",), frozenset({"EXECUTE"})),
    ),
    ("owner",),
    ("scratch_*",),
)
GRANTEE = Grantee(Key("shop", "app"), "uid", 1, "app", 16400, {"orders": DECLARED})


def test_a_stored_declaration_reads_back_equal() -> None:
    assert from_json(to_json(DECLARED)) == DECLARED
    assert from_json(to_json(DatabasePrivileges("empty"))) == DatabasePrivileges("empty")


@pytest.mark.parametrize("stored", [{}, {"database": "a", "schemas": [{}]}, {"database": "a", "objects": [1]}])
def test_an_invalid_stored_declaration_raises_an_error(stored: dict[str, object]) -> None:
    with pytest.raises((LookupError, TypeError, ValueError)):
        from_json(stored)


def test_the_digest_covers_only_what_matters_in_its_database() -> None:
    digest = GRANTEE.digest_of("orders")
    assert (
        replace(GRANTEE, generation=2, declared={**GRANTEE.declared, "b": DatabasePrivileges("b")}).digest_of("orders")
        == digest
    )
    for other in (
        replace(GRANTEE, oid=16401),
        replace(GRANTEE, declared={"orders": replace(DECLARED, unmanaged=())}),
        replace(GRANTEE, former={"orders": (DECLARED,)}),
        replace(GRANTEE, declared={}),
    ):
        assert other.digest_of("orders") != digest


def test_what_is_stored_in_a_database_belongs_to_the_object_and_to_this_database() -> None:
    one = Grantee(Key("shop", "app"), "uid", 1, "app", 16_400)
    names = ("orders", "orders_copy", "caf\u00e9", "caf\\xe9", "\u5b57")
    holders = [each.holder_in(name) for each in (one, replace(one, uid="other")) for name in names]
    assert holders[:2] == ["uid/orders", "uid/orders_copy"]
    assert len({*holders}) == len(holders)
    assert all(holder.isascii() for holder in holders)


def test_the_digest_changes_with_the_namespaces_roles_only_for_an_adoptee() -> None:
    adoptee = replace(GRANTEE, adoptee=Takeover.NEW)
    assert GRANTEE.with_owned(frozenset({1})).digest_of("orders") == GRANTEE.digest_of("orders")
    assert adoptee.with_owned(frozenset({1})).digest_of("orders") != adoptee.digest_of("orders")


def test_a_result_from_before_a_refusal_is_no_answer_after_it() -> None:
    refused = replace(GRANTEE, refused=Refusal.KNOWN)
    assert refused.digest_of("orders") == GRANTEE.digest_of("orders")
    assert refused.drift_options != GRANTEE.drift_options


@pytest.mark.parametrize(
    ("published", "outdated"),
    [
        (None, True),
        (GRANTEE, False),
        (replace(GRANTEE, generation=2), True),
        (replace(GRANTEE, suspended=True), True),
        (replace(GRANTEE, refused=Refusal.KNOWN), True),
        (GRANTEE.with_owned(frozenset({1, 2, 3})), False),
        (replace(GRANTEE, owned=frozenset({1, 2, 3})), False),
        (GRANTEE.with_owned(frozenset({1})), True),
        (replace(GRANTEE, owned=frozenset({1, 3})), True),
        (replace(GRANTEE, owned=frozenset({1, 2, 3}), suspended=True), True),
    ],
)
def test_a_grantee_is_outdated_unless_its_namespace_only_owns_more(published: Grantee | None, outdated: bool) -> None:
    read = GRANTEE.with_owned(frozenset({1, 2}))
    if published is GRANTEE:
        published = read
    by_key = {} if published is None else {published.key: published}
    assert find_outdated([read], by_key) == ([read] if outdated else [])
