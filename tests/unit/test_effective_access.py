"""What a role may do, and how. integration/test_access.py verifies that PostgreSQL agrees."""

import io
from collections.abc import Iterable
from dataclasses import replace

from pgrole_controller.commands.access_reading import RoleReport
from pgrole_controller.commands.access_text import print_role
from pgrole_controller.commands.output import make_console
from pgrole_controller.core.access.access_origin import Declarations
from pgrole_controller.core.access.access_report import EnclosingObjects, NamedObjects, what_can, who_can
from pgrole_controller.core.access.effective_access import (
    MOST_ROUTES,
    AccessJudge,
    AccessObject,
    EffectivePrivilege,
    Source,
    SubjectJudge,
)
from pgrole_controller.core.access.role_graph import (
    MOST_COUNTED,
    PG_DATABASE_OWNER,
    PG_READ_ALL_DATA,
    AccessRole,
    Chain,
    ChainSearch,
    GroupEdge,
    RoleGraph,
)
from pgrole_controller.core.privileges.acl import PUBLIC, AclEntry, DatabaseObject, ObjectId, ObjectKind

VERSION = 180000
OWNER, READERS, TEAM, ALICE, BOB, ROOT = range(1, 7)
NAMES = {OWNER: "owner", READERS: "readers", TEAM: "team", ALICE: "alice", BOB: "bob", ROOT: "root"}
ROLES = [AccessRole(oid, name, superuser=name == "root", login=name in ("alice", "bob")) for oid, name in NAMES.items()]
PREDEFINED = [AccessRole(PG_READ_ALL_DATA, "pg_read_all_data"), AccessRole(PG_DATABASE_OWNER, "pg_database_owner")]


def judge(*edges: GroupEdge) -> AccessJudge:
    return AccessJudge(RoleGraph([*ROLES, *PREDEFINED], edges), VERSION)


def acl(*entries: tuple[int, str], kind: ObjectKind = ObjectKind.TABLE, name: str = "orders") -> AccessObject:
    catalog = {ObjectKind.SCHEMA: "pg_namespace", ObjectKind.DATABASE: "pg_database"}.get(kind, "pg_class")
    obj = DatabaseObject(ObjectId(catalog, 20000), kind, "app", name, OWNER, "owner")
    return AccessObject(obj, tuple(AclEntry(grantee, OWNER, "owner", privilege) for grantee, privilege in entries))


def privileges(of: AccessJudge, subject: int, on: AccessObject) -> list[EffectivePrivilege]:
    return SubjectJudge(of, subject).privileges(on)


def by_name(found: Iterable[EffectivePrivilege]) -> dict[str, EffectivePrivilege]:
    return {one.privilege: one for one in found}


def test_the_shortest_route_comes_first_and_the_others_are_kept() -> None:
    of = judge(GroupEdge(ALICE, TEAM), GroupEdge(TEAM, READERS), GroupEdge(ALICE, READERS))
    (found,) = privileges(of, ALICE, acl((READERS, "SELECT"), (PUBLIC, "SELECT")))
    assert [(route.chain.roles, route.source) for route in found.routes] == [
        ((ALICE,), Source.PUBLIC),
        ((ALICE, READERS), Source.GRANT),
        ((ALICE, TEAM, READERS), Source.GRANT),
    ]
    assert found.total == 3


def test_an_owner_has_only_the_privileges_in_the_acl_but_may_grant_them() -> None:
    found = by_name(privileges(judge(), OWNER, acl((OWNER, "SELECT"))))
    assert set(found) == {"SELECT"}
    assert found["SELECT"].grantable
    assert found["SELECT"].routes[0].source is Source.OWNER


def test_a_superuser_has_every_privilege_and_members_get_them_only_by_set_role() -> None:
    of = judge(GroupEdge(ALICE, ROOT), GroupEdge(BOB, ROOT, set_role=False))
    assert len(privileges(of, ROOT, acl())) == 8
    after = privileges(of, ALICE, acl())
    assert len(after) == 8
    assert all(one.after_set_role and one.routes[0].source is Source.SUPERUSER for one in after)
    assert privileges(of, BOB, acl()) == []


def test_set_role_reaches_privileges_that_the_assumed_role_inherits() -> None:
    of = judge(GroupEdge(ALICE, TEAM, inherit=False), GroupEdge(TEAM, READERS, set_role=False))
    (found,) = privileges(of, ALICE, acl((READERS, "SELECT")))
    assert found.after_set_role
    assert found.routes[0].chain == Chain((ALICE, TEAM, READERS), 1)
    assert found.routes[0].chain.acting == TEAM
    stuck = judge(GroupEdge(ALICE, TEAM, set_role=False, inherit=False, admin=True), GroupEdge(TEAM, READERS))
    assert privileges(stuck, ALICE, acl((READERS, "SELECT"))) == []


def test_a_member_of_pg_read_all_data_can_select_without_an_acl_entry() -> None:
    of = judge(GroupEdge(ALICE, PG_READ_ALL_DATA))
    (found,) = privileges(of, ALICE, acl())
    assert (found.privilege, found.routes[0].source) == ("SELECT", Source.PREDEFINED)


def test_a_grant_option_on_a_column_is_shown_beside_the_privilege_on_the_whole_table() -> None:
    table = acl((ALICE, "SELECT"), (BOB, "SELECT"))
    entries = [replace(table.entries[0], column=name, grantable=name == "id") for name in ("id", "note")]
    found = privileges(judge(), ALICE, replace(table, entries=(*table.entries, *entries)))
    assert [(one.column, one.grantable) for one in found] == [("", False), ("id", True)]
    (grantable,) = [replace(one, grantable=True) for one in table.entries if one.grantee == ALICE]
    (whole,) = privileges(judge(), ALICE, replace(table, entries=(grantable, *entries)))
    assert (whole.column, whole.grantable) == ("", True)


def test_an_update_grant_on_a_catalog_has_no_effect_for_a_non_superuser() -> None:
    catalog = acl((ALICE, "SELECT"), (ALICE, "UPDATE"))
    catalog = AccessObject(
        DatabaseObject(ObjectId("pg_class", 1260), ObjectKind.TABLE, "pg_catalog", "pg_authid", ROOT, "root"),
        catalog.entries,
    )
    assert set(by_name(privileges(judge(), ALICE, catalog))) == {"SELECT"}


def test_the_owner_of_a_database_is_a_member_of_pg_database_owner_there_only() -> None:
    graph = RoleGraph([*ROLES, *PREDEFINED], ())
    schema = acl((PG_DATABASE_OWNER, "CREATE"), kind=ObjectKind.SCHEMA)
    here = AccessJudge(graph.in_database(ALICE, by_role=False), VERSION)
    assert set(by_name(privileges(here, ALICE, schema))) == {"CREATE"}
    assert privileges(AccessJudge(graph, VERSION), ALICE, schema) == []


def test_missing_privileges_that_make_a_privilege_useless_are_named() -> None:
    of = judge(GroupEdge(ALICE, READERS), GroupEdge(BOB, TEAM))
    table = acl((READERS, "SELECT"), (BOB, "SELECT"))
    schema, database = (
        acl((READERS, "USAGE"), kind=ObjectKind.SCHEMA, name="app"),
        acl((BOB, "CONNECT"), kind=ObjectKind.DATABASE, name="shop"),
    )
    users = who_can(of, table, EnclosingObjects(database, schema), 10)
    lacking = {of.graph.name(user.role): user.obstacles for user in users.users}
    assert lacking == {
        "alice": ("CONNECT on database shop",),
        "bob": ("USAGE on schema app",),
        "readers": (),
    }


def test_a_privilege_after_set_role_lacks_what_that_role_lacks() -> None:
    of = judge(GroupEdge(ALICE, READERS, inherit=False), GroupEdge(BOB, READERS, inherit=False))
    table = acl((ALICE, "SELECT"), (READERS, "INSERT"), (BOB, "SELECT"))
    schema = acl((READERS, "USAGE"), kind=ObjectKind.SCHEMA, name="app")
    (alice,) = [one for one in who_can(of, table, EnclosingObjects(schema=schema), 10).users if one.role == ALICE]
    lacking = {one.privilege: some for one, some in zip(alice.privileges, alice.lacks, strict=True)}
    assert lacking == {"SELECT": ("USAGE on schema app",), "INSERT": ()}
    assert alice.obstacles == ()

    schema = acl((ALICE, "USAGE"), kind=ObjectKind.SCHEMA, name="app")
    (alice,) = [one for one in who_can(of, table, EnclosingObjects(schema=schema), 10).users if one.role == ALICE]
    lacking = {one.privilege: some for one, some in zip(alice.privileges, alice.lacks, strict=True)}
    assert lacking == {"SELECT": (), "INSERT": ("USAGE on schema app",)}


def test_a_privilege_is_useful_if_one_of_its_ways_is() -> None:
    of = judge(GroupEdge(ALICE, READERS, inherit=False), GroupEdge(ALICE, TEAM, inherit=False))
    table = acl((READERS, "SELECT"), (TEAM, "SELECT"))
    for useful in (READERS, TEAM):
        around = EnclosingObjects(schema=acl((useful, "USAGE"), kind=ObjectKind.SCHEMA, name="app"))
        (alice,) = [one for one in who_can(of, table, around, 10).users if one.role == ALICE]
        assert alice.lacks == ((),)


def test_a_role_that_may_grant_itself_a_group_is_told_so() -> None:
    edges = [
        GroupEdge(ALICE, READERS, inherit=False, set_role=False, admin=True),
        GroupEdge(ALICE, TEAM, inherit=False, set_role=False),
    ]
    stream = io.StringIO()
    print_role(make_console(stream), RoleReport(ALICE, RoleGraph(ROLES, edges), [], Declarations(VERSION)))
    assert stream.getvalue().splitlines()[1:] == [
        "member, without INHERIT or SET, of readers, team",
        "may grant membership (ADMIN), to itself as well, in readers",
    ]


def test_the_list_of_users_is_cut_but_all_are_counted() -> None:
    many = [AccessRole(100 + number, f"user_{number:04}") for number in range(3000)]
    graph = RoleGraph([*ROLES, *many], [GroupEdge(role.oid, READERS) for role in many])
    users = who_can(AccessJudge(graph, VERSION), acl((READERS, "SELECT")), EnclosingObjects(), 50)
    assert (len(users.users), users.total) == (50, 3001)


def test_equal_privileges_on_many_tables_are_one_line() -> None:
    groups = [
        NamedObjects(AccessObject(acl((ALICE, "SELECT")).object, acl((ALICE, "SELECT")).entries, 239), ("a", "b")),
        NamedObjects(
            AccessObject(acl((ALICE, "SELECT")).object, acl((ALICE, "SELECT"), (BOB, "SELECT")).entries), ("c",)
        ),
    ]
    (line,) = what_can(judge(), ALICE, groups, {("app", ObjectKind.TABLE): 240}, EnclosingObjects(), {})
    assert (line.count, line.total, line.names) == (240, 240, ("a", "b", "c"))


def test_the_search_of_a_dense_lattice_of_memberships_is_bounded() -> None:
    width, depth = 20, 30
    roles = [AccessRole(10, "bottom"), AccessRole(11, "top")]
    roles += [
        AccessRole(100 + layer * width + one, f"r{layer}_{one}") for layer in range(depth) for one in range(width)
    ]
    edges = [GroupEdge(10, 100 + one) for one in range(width)]
    edges += [
        GroupEdge(100 + layer * width + one, 100 + (layer + 1) * width + other)
        for layer in range(depth - 1)
        for one in range(width)
        for other in range(width)
    ]
    edges += [GroupEdge(100 + (depth - 1) * width + one, 11) for one in range(width)]
    chains, total = ChainSearch(RoleGraph(roles, edges), 11).chains(10, after_set_role=False, most=MOST_ROUTES)
    assert len(chains) == MOST_ROUTES
    assert {len(chain.roles) for chain in chains} == {depth + 2}
    assert total == MOST_COUNTED


def test_the_search_ends_on_a_long_chain_and_on_a_cycle() -> None:
    length = 10_000
    roles = [AccessRole(number, str(number)) for number in range(1, length + 1)]
    edges = [GroupEdge(number, number + 1) for number in range(1, length)]
    search = ChainSearch(RoleGraph(roles, edges), length)
    for after_set_role, switch in ((False, 0), (True, 1)):
        (chain,), total = search.chains(1, after_set_role=after_set_role, most=5)
        assert (len(chain.roles), chain.switch, total) == (length, switch, 1)
    cycle = RoleGraph(roles[:3], [GroupEdge(1, 2), GroupEdge(2, 3), GroupEdge(3, 1)])
    assert ChainSearch(cycle, 3).chains(1, after_set_role=False, most=5)[0][0].roles == (1, 2, 3)


def test_a_privilege_is_useful_by_a_way_that_is_not_shown() -> None:
    """Ways after SET ROLE are not shown if there is one without it, and neither are any beyond MOST_ROUTES."""
    groups = tuple(AccessRole(17_000 + number, f"group{number}") for number in range(MOST_ROUTES + 3))
    edges = [GroupEdge(ALICE, group.oid, inherit=False) for group in groups]
    graph = RoleGraph([*ROLES, *groups], [*edges, GroupEdge(ALICE, READERS, inherit=False)])
    for entries, useful in (
        ([(ALICE, "SELECT"), (READERS, "SELECT")], READERS),
        ([(group.oid, "SELECT") for group in groups], groups[-1].oid),
    ):
        table = acl(*entries)
        for user, expected in ((useful, ()), (TEAM, ("USAGE on schema app",))):
            around = EnclosingObjects(schema=acl((user, "USAGE"), kind=ObjectKind.SCHEMA, name="app"))
            users = who_can(AccessJudge(graph, VERSION), table, around, 100).users
            (alice,) = [one for one in users if one.role == ALICE]
            assert alice.lacks == (expected,), (useful, user)
