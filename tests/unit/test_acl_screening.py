"""core/privileges/acl_screening: selects the roles that need a decision after a change, and skips the others."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgrole_controller.core.privileges import acl_screening
from pgrole_controller.core.privileges.acl import AclEntry, DatabaseObject, ObjectId, ObjectKind, ObservedAcl
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.acl_screening import AclScreening, GranteeIndex, PrivilegeTerms
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
    SchemaAccess,
)
from pgrole_controller.core.privileges.object_patterns import compile_privileges
from pgrole_controller.core.privileges.observed_database import AclIndex, ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key

OWNER, STRANGER = 20_000, 20_001
FACTS = DatabaseFacts("orders", 180_000, frozenset({10}))
OPEN = PrivilegePolicy(databases=("*",))
RULED = PrivilegePolicy((PrivilegeRule(privileges=frozenset({"SELECT", "USAGE"})),), ("*",))
CLOSED = PrivilegePolicy(databases=())

_DECLARED = (
    DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.READ})),)),
    DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.WRITE}), ("t_1",)),)),
    DatabasePrivileges(
        "orders", objects=(ObjectPrivileges(ObjectKind.TABLE, "app", ("t_0",), frozenset({"SELECT"}), ("id",)),)
    ),
    DatabasePrivileges(
        "orders", objects=(ObjectPrivileges(ObjectKind.SCHEMA, "", ("app",), frozenset({"USAGE", "CREATE"})),)
    ),
    DatabasePrivileges("orders", on_database=frozenset({"CONNECT"}), unmanaged=("app",)),
    DatabasePrivileges("orders", schemas=(SchemaAccess("*", frozenset({Access.READ})),)),
    DatabasePrivileges("orders", schemas=(SchemaAccess("lake", frozenset({Access.READ})),)),
    DatabasePrivileges("orders", objects=(ObjectPrivileges(ObjectKind.SCHEMA, "a*", (), frozenset({"USAGE"})),)),
    None,
)


def _grantee(number: int, chance: random.Random) -> Grantee:
    declared = chance.choice(_DECLARED)
    return Grantee(
        Key("shop", f"r{number}"),
        f"uid{number}",
        1,
        f"r{number}",
        30_000 + number,
        {} if declared is None else {"orders": declared},
        {"orders": (_DECLARED[1],)} if declared is None else {},
        chance.choice((OPEN, OPEN, RULED, CLOSED)),
        frozenset({OWNER}) if chance.random() < 0.8 else frozenset(),
        suspended=chance.random() < 0.1,
        report_only=chance.random() < 0.1,
    )


def _acl(number: int, grantees: list[Grantee], chance: random.Random) -> ObservedAcl:
    kind = chance.choice((ObjectKind.TABLE, ObjectKind.TABLE, ObjectKind.SCHEMA, ObjectKind.DATABASE))
    place = chance.choice(("app", "app", "lake"))
    catalog, schema, name, some = {
        ObjectKind.TABLE: ("pg_class", place, f"t_{number}", ("SELECT", "INSERT", "UPDATE", "DELETE")),
        ObjectKind.SCHEMA: ("pg_namespace", place, place, ("USAGE", "CREATE")),
        ObjectKind.DATABASE: ("pg_database", "", chance.choice(("orders", "other")), ("CONNECT",)),
    }[kind]
    owner = chance.choice((OWNER, OWNER, STRANGER, grantees[0].oid))
    entries = []
    for one in grantees:
        privileges = chance.choice(((), (), some[:1], some[:1], some, chance.sample(some, 1)))
        entries += [
            AclEntry(one.oid, owner, "owner", privilege, chance.random() < 0.05, "id" if chance.random() < 0.03 else "")
            for privilege in privileges
        ]
    found = DatabaseObject(ObjectId(catalog, 40_000 + number), kind, schema, name, owner, "owner")
    return ObservedAcl(found, tuple(entries))


def _screen(grantees: list[Grantee], observed: ObservedDatabase) -> list[Grantee]:
    return [one for one, acls in _select(grantees, observed) if acls]


def _select(grantees: list[Grantee], observed: ObservedDatabase) -> list[tuple[Grantee, Sequence[ObservedAcl]]]:
    equal: dict[PrivilegeTerms, PrivilegeTerms] = {}
    screening = AclScreening(observed)
    terms = [PrivilegeTerms.of(one, "orders") for one in grantees]
    return [(one, screening.select(one, equal.setdefault(its, its))) for one, its in zip(grantees, terms, strict=True)]


def test_screened_out_roles_need_no_decision() -> None:
    left_out = 0
    for seed in range(300):
        chance = random.Random(seed)
        grantees = [_grantee(number, chance) for number in range(6)]
        acls = tuple(_acl(number, grantees, chance) for number in range(chance.randint(1, 3)))
        observed = ObservedDatabase(FACTS, acls, complete=False)
        differing = _screen(grantees, observed)
        for one in grantees:
            if one in differing:
                continue
            left_out += 1
            decision = decide_privileges(one, observed, one.digest_of("orders"), new_objects=frozenset())
            if one.policy is CLOSED:  # the database is denied, whatever was read
                assert (decision.changes, decision.drift, decision.reported) == ((), (), ())
            else:
                assert decision == PrivilegeDecision(confirmed=decision.confirmed), (seed, one, acls)
    assert left_out > 200


def test_a_role_differs_if_an_object_is_selected_for_it() -> None:
    answers = set[bool]()
    for seed in range(300):
        chance = random.Random(seed)
        grantees = [_grantee(number, chance) for number in range(6)]
        acls = tuple(_acl(number, grantees, chance) for number in range(chance.randint(1, 3)))
        screening = AclScreening(ObservedDatabase(FACTS, acls, complete=False))
        for one in grantees:
            terms = PrivilegeTerms.of(one, "orders")
            differs = screening.differs(one, terms)
            assert differs == bool(screening.select(one, terms)), (seed, one, acls)
            answers.add(differs)
    assert answers == {True, False}


def test_screening_does_not_change_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing each role only with the objects on which it may differ leads to the same decision."""
    decided = []
    for every in (False, True):
        if every:
            monkeypatch.setattr(AclIndex, "concerning", lambda index, _grantee, _schemas: index._acls)
        for seed in range(200):
            chance = random.Random(seed)
            grantees = [_grantee(number, chance) for number in range(4)]
            acls = tuple(_acl(number, grantees, chance) for number in range(8))
            acls += tuple(replace(one, object=replace(one.object, name=f"{one.object.name}_2")) for one in acls)
            observed = ObservedDatabase(FACTS, acls, schemas=frozenset({"app"}))
            some = [
                decide_privileges(one, observed, "", new_objects=frozenset(), differing=None if every else differing)
                for one, differing in _select(grantees, observed)
            ]
            decided += [replace(one, pending=tuple(map(str, one.pending))) for one in some]  # type: ignore[arg-type]
    half = len(decided) // 2
    assert decided[:half] == decided[half:]
    assert sum(bool(one.changes) for one in decided) > 200


def test_memory_for_many_different_terms_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_screening, "MOST_PLACES", 25)
    chance = random.Random(1)
    grantees = [_grantee(number, chance) for number in range(60)]
    observed = ObservedDatabase(FACTS, tuple(_acl(number, grantees[:3], chance) for number in range(10)))
    screening = AclScreening(observed)
    kept = [PrivilegeTerms.of(one, "orders") for one in grantees]
    selected = [len(screening.select(one, terms)) for one, terms in zip(grantees, kept, strict=True)]
    assert 0 < sum(len(screen.places) for some in screening._known.values() for screen in some.screens) <= 25
    monkeypatch.setattr(acl_screening, "MOST_PLACES", 10_000)
    assert selected == [len(acls) for _, acls in _select(grantees, observed)]


def test_every_role_that_differs_is_among_the_concerned() -> None:
    left_out = 0
    for seed in range(300):
        chance = random.Random(seed)
        grantees = [_grantee(number, chance) for number in range(6)]
        observed = ObservedDatabase(FACTS, (_acl(0, grantees[:2], chance),), complete=False)
        concerned = GranteeIndex(FACTS, grantees).concerned(observed)
        assert {one.key for one in _screen(grantees, observed)} <= concerned
        left_out += len(grantees) - len(concerned)
    assert left_out > 200


def test_a_role_stores_nothing_for_schemas_that_only_others_declare() -> None:
    """A thousand roles with a schema each would cost 2 GiB, and seconds after each change, if each met every object."""
    schemas = [f"tenant_{number}" for number in range(50)]
    acls = [
        ObservedAcl(DatabaseObject(ObjectId("pg_class", 40_000 + n), ObjectKind.TABLE, name, "t", OWNER, "owner"), ())
        for n, name in enumerate(schemas)
    ]
    observed = ObservedDatabase(FACTS, acls, schemas=frozenset(schemas))
    for number, name in enumerate(schemas):
        declared = DatabasePrivileges("orders", schemas=(SchemaAccess(name, frozenset({Access.READ})),))
        key = Key("shop", name)
        grantee = Grantee(key, name, 1, name, 30_000 + number, {"orders": declared}, {}, OPEN, frozenset({OWNER}))
        compiled = compile_privileges(declared, FACTS.version)
        (change,) = decide_privileges(grantee, observed, "").changes
        assert change.object.schema == name
        assert {schema for schema, _ in compiled._parts} == {name}


def test_roles_that_differ_are_found_among_many() -> None:
    chance = random.Random(1)
    grantees = [_grantee(number, chance) for number in range(20)]
    readers = [
        Grantee(one.key, one.uid, 1, one.role_name, one.oid, {"orders": _DECLARED[0]}, {}, OPEN, frozenset({OWNER}))
        for one in grantees
    ]
    table = DatabaseObject(ObjectId("pg_class", 40_000), ObjectKind.TABLE, "app", "t_0", OWNER, "owner")
    held = [AclEntry(one.oid, OWNER, "owner", "SELECT") for one in readers[1:]]
    held.append(AclEntry(readers[7].oid, OWNER, "owner", "DELETE"))
    observed = ObservedDatabase(FACTS, (ObservedAcl(table, tuple(held)),), complete=False)
    assert _screen(readers, observed) == [readers[0], readers[7]]
