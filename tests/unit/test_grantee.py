"""Declarations of privileges are stored in claims and compared by digest."""

from dataclasses import replace

import pytest

from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
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
