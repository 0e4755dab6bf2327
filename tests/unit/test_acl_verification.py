"""postgres/privileges/acl_verification and acl_batches: thousands of roles on one object, or on many at once."""

from dataclasses import replace

from pgrole_controller.core.privileges.acl import AclChange, AclEntry, DatabaseObject, ObjectId, ObjectKind, ObservedAcl
from pgrole_controller.postgres.privileges.acl_batches import CHANGES, split_large
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_script import render_repairs
from pgrole_controller.postgres.privileges.acl_verification import find_lost, find_wrong, grant_again
from tests.cpu_time import within_a_callback

OWNER = 16500
#: About as many as the ACL of one object has room for.
ROLES = 2400


def make(oid: int = 20000) -> DatabaseObject:
    return DatabaseObject(ObjectId("pg_class", oid), ObjectKind.TABLE, "app", f"t{oid}", OWNER, "own")


def entries(number: int) -> tuple[AclEntry, ...]:
    return tuple(AclEntry(30000 + n, OWNER, "own", "SELECT", column="id") for n in range(number))


def changes(obj: DatabaseObject, number: int, *, revoke: bool) -> tuple[AclChange, ...]:
    columns = ("id",) if revoke else ()
    return tuple(AclChange(obj, 30000 + n, f"r{n}", ("SELECT",), revoke, columns) for n in range(number))


def test_an_object_that_thousands_of_roles_hold_is_verified_within_a_callback() -> None:
    before = ObservedAcl(make(), entries(ROLES))
    repair = AclRepair(before, changes(before.object, ROLES, revoke=True))
    with within_a_callback():
        assert not find_lost(repair, ObservedAcl(before.object))
    with within_a_callback():
        assert not find_wrong(repair, ObservedAcl(before.object))


def test_what_is_left_after_a_revoke_is_found_whether_the_change_names_the_owner_or_no_grantor() -> None:
    before = ObservedAcl(make(), (*entries(1), AclEntry(30000, 16600, "delegate", "SELECT", column="id")))
    (revoke,) = changes(before.object, 1, revoke=True)
    for grantor, left in (("", before.entries[0]), ("own", before.entries[0]), ("delegate", before.entries[1])):
        repair = AclRepair(before, (replace(revoke, grantor=grantor),))
        assert "did not revoke SELECT" in find_wrong(repair, replace(before, entries=(left,)))
        assert find_lost(repair, replace(before, entries=())) == [one for one in before.entries if one != left]


def test_the_changes_of_one_transaction_are_rendered_within_a_callback() -> None:
    tables = [make(20000 + n) for n in range(100)]
    repairs = [AclRepair(ObservedAcl(one), changes(one, ROLES, revoke=False)) for one in tables]
    pieces = split_large([repairs, repairs[:1]])
    assert [one for piece in pieces for one in piece] == [*repairs, *repairs[:1]]
    assert {len(piece) for piece in pieces} == {CHANGES // ROLES, 1}
    with within_a_callback():
        assert not render_repairs(pieces[0], 180000, [], [])  # as one message, it would verify too much


def test_one_transaction_changes_few_tables_if_these_have_very_many_columns() -> None:
    columns = tuple(f"c{n}" for n in range(1600))
    tables = [make(20000 + n) for n in range(100)]
    repairs = [AclRepair(ObservedAcl(one), (AclChange(one, 30000, "r", ("SELECT",), True, columns),)) for one in tables]
    assert {len(piece) for piece in split_large([repairs])} == {CHANGES // 1600, 1}
    more = [
        replace(one, changes=(replace(one.changes[0], privileges=("SELECT", "INSERT", "UPDATE")),)) for one in repairs
    ]
    assert {len(piece) for piece in split_large([more])} == {CHANGES // (3 * 1600)}


def test_what_was_lost_is_granted_again_by_privilege_whatever_the_number_of_columns() -> None:
    columns = tuple(f"c{n}" for n in range(1600))
    held = [
        AclEntry(30000, OWNER, "own", privilege, column=one) for privilege in ("SELECT", "UPDATE") for one in columns
    ]
    whole = [AclEntry(30000, OWNER, "own", "SELECT"), AclEntry(30001, OWNER, "own", "SELECT", column="c7")]
    dropped = AclEntry(30002, OWNER, "own", "SELECT", column="c7")
    before = ObservedAcl(make(), (*held, *whole, dropped))
    again = grant_again(AclRepair(before, ()), [*before.entries, *held[:2]], {30000: "r", 30001: "s"})
    assert [(one.grantee_name, one.privileges, one.columns) for one in again] == [
        ("r", ("SELECT",), columns),
        ("r", ("UPDATE",), columns),
        ("r", ("SELECT",), ()),
        ("s", ("SELECT",), ("c7",)),
    ]
    assert not any(one.revoke or one.option_only for one in again)


def test_a_statement_for_an_administrator_quotes_the_grantors_name() -> None:
    before = ObservedAcl(make(), (AclEntry(30000, 16600, 'a"b', "SELECT"),))
    (revoke,) = changes(before.object, 1, revoke=True)
    repair = AclRepair(before, (replace(revoke, columns=(), grantor='a"b'),))
    assert 'ALTER ROLE "a""b" NOSUPERUSER' in find_wrong(repair, before)
