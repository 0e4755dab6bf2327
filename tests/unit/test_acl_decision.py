"""core/privileges/acl_decision: which privileges are granted and revoked, which differences are drift, what is
pending.
"""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges import awaited_privileges
from pgrole_controller.core.privileges.acl import (
    AclChange,
    AclEntry,
    DatabaseObject,
    DefaultAcl,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.awaited_privileges import MOST_ON_OBJECTS, AppliedDeclaration
from pgrole_controller.core.privileges.grant_ddl import statements
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
    Refusal,
    SchemaAccess,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase, SchemaNames
from pgrole_controller.core.privileges.privilege_difference import phrases
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key

ME, OWNER, DELEGATE, STRANGER, ADMIN = 16400, 16500, 16600, 16700, 16800
NAMES = {ME: "reader", OWNER: "own", DELEGATE: "x1", STRANGER: "stranger", ADMIN: "admin"}
READ = DatabasePrivileges("orders", schemas=(SchemaAccess("app", frozenset({Access.READ})),))
NOTHING = DatabasePrivileges("orders")
POLICY = PrivilegePolicy(databases=("orders",))


def make(
    name: str = "orders",
    kind: ObjectKind = ObjectKind.TABLE,
    *,
    schema: str = "app",
    owner: int = OWNER,
    oid: int = 20000,
    extension: bool = False,
    arguments: str = "",
    elevated: bool = False,
) -> DatabaseObject:
    identity = ObjectId("pg_class", oid)
    return DatabaseObject(identity, kind, schema, name, owner, NAMES[owner], arguments, extension, elevated)


TABLE = make()


def entry(
    privilege: str, column: str = "", *, grantor: int = OWNER, grantable: bool = False, grantee: int = ME
) -> AclEntry:
    return AclEntry(grantee, grantor, NAMES[grantor], privilege, grantable, column)


def grantee(
    declared: DatabasePrivileges | None = READ, *former: DatabasePrivileges, policy: PrivilegePolicy = POLICY
) -> Grantee:
    return Grantee(
        Key("shop", "reader"),
        "uid",
        1,
        "reader",
        ME,
        {} if declared is None else {"orders": declared},
        {"orders": former} if former else {},
        policy,
        frozenset({OWNER, ME}),
    )


def observe(
    *acls: tuple[DatabaseObject, tuple[AclEntry, ...]],
    defaults: tuple[DefaultAcl, ...] = (),
    schemas: Iterable[str] = ("app",),
    columns: Iterable[str] | None = None,
    complete: bool = True,
) -> ObservedDatabase:
    return ObservedDatabase(
        DatabaseFacts("orders", 180000, frozenset({ADMIN})),
        tuple(ObservedAcl(obj, entries) for obj, entries in acls),
        defaults,
        {"own": OWNER, "stranger": STRANGER, "reader": ME},
        frozenset(schemas),
        complete,
        {} if columns is None else {obj.id: frozenset(columns) for obj, _ in acls},
    )


def decide(
    one: Grantee,
    observed: ObservedDatabase,
    *,
    current: bool = True,
    new: frozenset[ObjectId] | None = frozenset(),
) -> PrivilegeDecision:
    applied = one.digest_of("orders") if current else ""
    return decide_privileges(one, observed, applied, new_objects=new)


def texts(decision: PrivilegeDecision) -> list[str]:
    found = statements(decision.changes, decision.default_changes)
    return [(f"as {one.acting_as}: " if one.acting_as else "") + one.text.replace('"', "") for one in found]


def of_objects(*items: ObjectPrivileges) -> DatabasePrivileges:
    return DatabasePrivileges("orders", objects=items)


def table(privileges: str, *columns: str, name: str = "orders") -> ObjectPrivileges:
    return ObjectPrivileges(ObjectKind.TABLE, "app", (name,), frozenset(privileges.split()), columns)


class TestOneObject:
    @pytest.mark.parametrize(
        ("declared", "held", "expected"),
        [
            (READ, (), ["GRANT SELECT ON TABLE app.orders TO reader"]),
            (READ, (entry("SELECT"),), []),
            (READ, (entry("SELECT", grantor=DELEGATE),), []),
            (NOTHING, (entry("SELECT"),), ["REVOKE SELECT ON TABLE app.orders FROM reader"]),
            (
                READ,
                (entry("SELECT"), entry("DELETE", grantor=DELEGATE), entry("DELETE")),
                [
                    "as x1: REVOKE DELETE ON TABLE app.orders FROM reader",
                    "REVOKE DELETE ON TABLE app.orders FROM reader",
                ],
            ),
            (
                READ,
                (entry("SELECT", grantable=True),),
                ["REVOKE GRANT OPTION FOR SELECT ON TABLE app.orders FROM reader"],
            ),
            (READ, (entry("SELECT"), entry("SELECT", "id")), ["REVOKE SELECT (id) ON TABLE app.orders FROM reader"]),
            (of_objects(table("SELECT", "id")), (), ["GRANT SELECT (id) ON TABLE app.orders TO reader"]),
            (of_objects(table("SELECT", "id")), (entry("SELECT", "id", grantor=DELEGATE),), []),
            (
                of_objects(table("SELECT UPDATE", "id", "name")),
                (entry("UPDATE", "id"),),
                [
                    "GRANT SELECT (id, name) ON TABLE app.orders TO reader",
                    "GRANT UPDATE (name) ON TABLE app.orders TO reader",
                ],
            ),
            # A declared privilege on the table covers the one on a column; a redundant column grant may stay.
            (of_objects(table("SELECT", "id"), table("SELECT")), (entry("SELECT"),), []),
            (of_objects(table("SELECT", "id"), table("SELECT")), (entry("SELECT"), entry("SELECT", "id")), []),
            # REVOKE on the table also removes the column grants of the same grantor.
            (
                of_objects(table("SELECT", "id")),
                (entry("SELECT"), entry("SELECT", "id"), entry("SELECT", "name")),
                [
                    "REVOKE SELECT ON TABLE app.orders FROM reader",
                    "GRANT SELECT (id) ON TABLE app.orders TO reader",
                ],
            ),
            (
                of_objects(table("SELECT", "id")),
                (entry("SELECT"), entry("SELECT", "id", grantor=DELEGATE)),
                ["REVOKE SELECT ON TABLE app.orders FROM reader"],
            ),
            (READ, (entry("SELECT"), entry("DELETE", grantee=STRANGER)), []),
        ],
    )
    def test_the_role_ends_up_with_exactly_the_declared_privileges(
        self, declared: DatabasePrivileges, held: tuple[AclEntry, ...], expected: list[str]
    ) -> None:
        decision = decide(grantee(declared), observe((TABLE, held), columns=("id", "name")), current=False)
        assert texts(decision) == expected
        assert not decision.pending
        assert not decision.drift
        assert not decision.extended
        assert not decision.reported

    @pytest.mark.parametrize(
        ("obj", "declared"),
        [
            (make(owner=ME), NOTHING),
            (make(extension=True, owner=ADMIN), NOTHING),
            (make(schema="scratch_1"), replace(NOTHING, unmanaged=("scratch_*",))),
            (make(schema="pg_temp_3"), NOTHING),
        ],
    )
    def test_privileges_on_own_extension_unmanaged_and_temporary_objects_are_left_alone(
        self, obj: DatabaseObject, declared: DatabasePrivileges
    ) -> None:
        held = (entry("DELETE"), entry("SELECT", grantable=True), entry("UPDATE", "id"))
        one = grantee(declared)
        digest = one.digest_of("orders")
        assert decide(one, observe((obj, held))) == PrivilegeDecision(confirmed=True, applied=digest, kept=digest)

    def test_an_owner_cannot_hide_grants_by_adding_objects_to_an_extension(self) -> None:
        decision = decide(grantee(), observe((make(extension=True), (entry("DELETE"),))))
        assert texts(decision) == ["REVOKE DELETE ON TABLE app.orders FROM reader"]

    def test_former_privileges_are_revoked_in_unmanaged_schemas_and_on_extensions_too(self) -> None:
        former = of_objects(table("SELECT"))
        for obj, declared in (
            (TABLE, replace(NOTHING, unmanaged=("app",))),
            (make(extension=True, owner=ADMIN), NOTHING),
        ):
            held = (entry("SELECT", grantor=obj.owner), entry("DELETE", grantor=obj.owner))
            decision = decide(grantee(declared, former), observe((obj, held)))
            assert texts(decision) == ["REVOKE SELECT ON TABLE app.orders FROM reader"]
            assert not decision.confirmed

    def test_what_stays_on_columns_is_granted_again_with_what_a_revoke_on_the_table_takes(self) -> None:
        column = of_objects(table("SELECT UPDATE", "id"))
        former, unmanaged = of_objects(table("SELECT")), replace(NOTHING, unmanaged=("app",))
        table_and_column = (entry("SELECT"), entry("SELECT", "id"))
        revoke, grant = (
            "REVOKE SELECT ON TABLE app.orders FROM reader",
            "GRANT SELECT (id) ON TABLE app.orders TO reader",
        )
        for one in (
            grantee(unmanaged, former),  # others may grant there
            grantee(column, policy=PrivilegePolicy((), ("orders",))),  # granted before policy denied it
            grantee(None, former),
        ):
            assert texts(decide(one, observe((TABLE, table_and_column), columns=("id",)))) == [revoke, grant]
        with_option = (entry("SELECT"), entry("SELECT", "id", grantable=True))
        of_others = (entry("SELECT", grantor=DELEGATE), entry("SELECT", "id", grantor=DELEGATE))
        for held, revoked in ((with_option, revoke), (of_others, f"as x1: {revoke}")):
            assert texts(decide(grantee(unmanaged, former), observe((TABLE, held), columns=("id",)))) == [revoked]
        some = (*table_and_column, entry("SELECT", "no"), entry("UPDATE", "no"))
        decision = decide(grantee(replace(column, unmanaged=("app",)), former), observe((TABLE, some), columns=("id",)))
        assert texts(decision) == [
            revoke,
            "GRANT SELECT (id), UPDATE (id) ON TABLE app.orders TO reader",
            "GRANT SELECT (no) ON TABLE app.orders TO reader",
        ]

    def test_only_former_privileges_are_revoked_in_a_database_no_longer_listed(self) -> None:
        held = (entry("SELECT"), entry("DELETE", grantor=DELEGATE), entry("SELECT", "id", grantor=DELEGATE))
        decision = decide(grantee(None, READ), observe((TABLE, held)), current=False)
        assert texts(decision) == ["REVOKE SELECT ON TABLE app.orders FROM reader"]
        assert not decision.confirmed
        assert decide(grantee(None, READ), observe((TABLE, held[1:]))).confirmed
        assert not decide(grantee(None, READ), observe((TABLE, ()), complete=False)).confirmed

    def test_privileges_that_the_policy_denies_are_neither_granted_nor_revoked(self) -> None:
        foreign = make(owner=STRANGER)
        option = "REVOKE GRANT OPTION FOR SELECT ON TABLE app.orders FROM reader"  # which is not declared
        for held, revoked in (
            ((), []),
            ((entry("SELECT", grantor=STRANGER),), []),
            ((entry("SELECT", grantor=STRANGER, grantable=True),), [option]),
        ):
            decision = decide(grantee(), observe((foreign, held), (make("own", oid=20001), ())))
            assert texts(decision) == [*revoked, "GRANT SELECT ON TABLE app.own TO reader"]
            assert [one.what for one in decision.drift] == [
                *("grant option for SELECT on table app.orders" for _ in revoked),
                "SELECT on table app.own",
            ]
            (refused,) = decision.pending
            assert refused.reason is Reason.NOT_ALLOWED
            assert 'SELECT on table app.orders (owner "stranger")' in refused.message

    def test_privileges_on_undeclarable_kinds_are_only_reported(self) -> None:
        lake = make("lake", ObjectKind.FOREIGN_SERVER, schema="")
        decision = decide(grantee(), observe((lake, (entry("USAGE"),))))
        assert not decision.changes
        assert not decision.drift
        assert phrases(decision.reported) == ("USAGE on foreign server lake was granted",)

    def test_privileges_on_this_database_and_its_schemas_are_corrected(self) -> None:
        declared = replace(READ, on_database=frozenset({"CONNECT"}))
        database = make("orders", ObjectKind.DATABASE, schema="", oid=5)
        other = make("others", ObjectKind.DATABASE, schema="", oid=6)
        schema = make("app", ObjectKind.SCHEMA, oid=20001)
        observed = observe((database, (entry("CREATE"),)), (other, (entry("CREATE"),)), (schema, ()))
        assert texts(decide(grantee(declared), observed)) == [
            "REVOKE CREATE ON DATABASE orders FROM reader",
            "GRANT CONNECT ON DATABASE orders TO reader",
            "GRANT USAGE ON SCHEMA app TO reader",
        ]

    def test_a_routine_privilege_is_granted_only_on_the_declared_signature(self) -> None:
        declared = of_objects(ObjectPrivileges(ObjectKind.ROUTINE, "app", ("close(bigint)",), frozenset({"EXECUTE"})))
        routines = [
            make("close", ObjectKind.ROUTINE, oid=20000 + at, arguments=one)
            for at, one in enumerate(("bigint", "text"))
        ]
        decision = decide(grantee(declared), observe(*((one, ()) for one in routines)))
        assert texts(decision) == ["GRANT EXECUTE ON ROUTINE app.close(IN bigint) TO reader"]
        assert decision.pending == ()


class TestDrift:
    def test_differences_are_not_drift_before_the_declaration_is_applied(self) -> None:
        decision = decide(grantee(), observe((TABLE, (entry("DELETE"),))), current=False, new=None)
        assert len(decision.changes) == 2
        assert decision.drift == decision.extended == ()

    def test_every_difference_is_described_as_drift_once_the_declaration_is_applied(self) -> None:
        declared = of_objects(table("SELECT"), table("UPDATE", "id"))
        held = (entry("DELETE"), entry("SELECT", "no"), entry("SELECT", grantable=True, grantor=DELEGATE))
        decision = decide(grantee(declared), observe((TABLE, held), columns=("id",)))
        assert phrases(decision.drift) == (
            "DELETE on table app.orders was granted",
            "SELECT on column app.orders.no was granted",
            "grant option for SELECT on table app.orders was granted",
            "UPDATE on column app.orders.id was revoked",
        )
        assert [one.grantor_name for one in decision.drift] == ["own", "own", "x1", ""]
        assert phrases(decision.drift, 1) == ("DELETE on table app.orders was granted", "and 3 more")

    def test_privileges_missing_on_a_new_object_are_not_drift(self) -> None:
        observed = observe((TABLE, ()), (make("b", oid=20001), (entry("DELETE"),)))
        known = decide(grantee(), observed, new=frozenset({TABLE.id}))
        assert [one.what for one in known.extended] == ["SELECT on table app.orders"]
        assert phrases(known.drift) == ("DELETE on table app.b was granted", "SELECT on table app.b was revoked")
        unknown = decide(grantee(), observed, new=None)
        assert [one.what for one in unknown.extended] == ["SELECT on table app.orders", "SELECT on table app.b"]
        assert len(known.changes) == len(unknown.changes) == 3

    def test_reported_drift_is_not_corrected(self) -> None:
        one = replace(grantee(), report_only=True)
        observed = observe((TABLE, (entry("DELETE"),)), (make("new", oid=20001), ()))
        decision = decide(one, observed, new=frozenset({ObjectId("pg_class", 20001)}))
        assert texts(decision) == ["GRANT SELECT ON TABLE app.new TO reader"]
        assert decision.reported == decision.drift
        assert len(decision.drift) == 2
        assert decide(one, observed, new=None).changes == ()
        assert len(decide(one, observed, current=False).changes) == 3

    def test_former_privileges_that_are_granted_again_are_revoked_in_a_database_no_longer_listed(self) -> None:
        one = replace(grantee(None, READ), report_only=True)
        decision = decide(one, observe((TABLE, (entry("SELECT"), entry("DELETE")))))
        assert texts(decision) == ["REVOKE SELECT ON TABLE app.orders FROM reader"]
        assert decision.reported == ()

    def test_ignored_privileges_are_applied_once(self) -> None:
        one = replace(grantee(), ignored=True)
        observed = observe((TABLE, (entry("DELETE"), entry("UPDATE", grantable=True))))
        digest = one.digest_of("orders")
        unchanged = PrivilegeDecision(confirmed=True, applied=digest, kept=digest)
        assert decide(one, observed) == unchanged
        assert len(decide(one, observed, current=False).changes) == 2
        changed = replace(one, declared={"orders": of_objects(table("INSERT"), table("INSERT", name="absent"))})
        assert decide_privileges(changed, observed, one.digest_of("orders")) == unchanged
        former = replace(changed, declared={}, former={"orders": (of_objects(table("DELETE")),)})
        after = decide_privileges(former, observed, one.digest_of("orders"))
        assert texts(after) == ["REVOKE DELETE ON TABLE app.orders FROM reader"]

    def test_nothing_changes_while_suspended_or_without_permission_for_the_database(self) -> None:
        observed = observe((TABLE, (entry("DELETE"),)))
        assert decide(replace(grantee(), suspended=True), observed) == PrivilegeDecision()
        decision = decide(grantee(policy=PrivilegePolicy()), observed)
        assert (decision.changes, decision.confirmed) == ((), False)
        assert "PgServer.spec.databases" in str(decision.pending[0])


class TestPending:
    def test_missing_schemas_objects_columns_and_creators_are_named_and_the_rest_is_granted(self) -> None:
        declared = DatabasePrivileges(
            "orders",
            schemas=(SchemaAccess("app", frozenset({Access.READ})), SchemaAccess("later", frozenset({Access.READ}))),
            objects=(table("INSERT", name="missing"), table("INSERT", "no", "id"), table("INSERT", "x", name="o*")),
            created_by=("nobody",),
        )
        decision = decide(grantee(declared), observe((TABLE, ()), columns=("id",)))
        assert texts(decision) == [
            "GRANT SELECT ON TABLE app.orders TO reader",
            "GRANT INSERT (id) ON TABLE app.orders TO reader",
        ]
        (waiting,) = decision.pending
        assert waiting.reason is Reason.PRIVILEGE_PENDING
        for name in ("schema later", "table app.missing", "column app.orders.no", "role nobody"):
            assert name in waiting.message
        assert "column app.orders.x" not in waiting.message
        partial = decide(grantee(declared), observe((TABLE, ()), columns=("id", "no"), complete=False))
        assert partial.pending == ()

    def test_the_names_of_a_schema_are_collected_once_for_all_roles(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collected: list[list[str]] = []
        collect = SchemaNames.of

        def count(objects: Iterable[DatabaseObject]) -> SchemaNames:
            some = [*objects]
            collected.append([one.name for one in some])
            return collect(some)

        monkeypatch.setattr(SchemaNames, "of", count)
        view, elsewhere = make("seen", ObjectKind.VIEW, oid=20001), make("other", schema="misc", oid=20002)
        sequence = make("ids", ObjectKind.SEQUENCE, oid=20003)
        observed = observe(*((one, ()) for one in (TABLE, view, elsewhere, sequence)), schemas=("app", "misc"))
        declared = of_objects(*(table("INSERT", name=name) for name in ("orders", "seen", "other", "ids")))
        for oid in (ME, DELEGATE):
            (waiting,) = decide(replace(grantee(declared), oid=oid), observed).pending
            assert "waiting for table app.ids, table app.other:" in waiting.message
        assert collected == [["orders", "seen", "ids"]], "once, and only of the schema that is named"

    def test_the_message_for_a_missing_routine_lists_its_existing_overloads(self) -> None:
        declared = of_objects(ObjectPrivileges(ObjectKind.ROUTINE, "app", ("close(text)",), frozenset({"EXECUTE"})))
        some = ("integer", "bigint", "date", "b" * 300, "uuid")
        routines = [make("close", ObjectKind.ROUTINE, oid=20000 + at, arguments=one) for at, one in enumerate(some)]
        other = make("open", ObjectKind.ROUTINE, oid=30000, arguments="integer")
        (waiting,) = decide(grantee(declared), observe(*((one, ()) for one in [*routines, other]))).pending
        text = f"routine app.close(text) (there is close({'b' * 94}…, close(bigint), close(date) and 2 more):"
        assert text in waiting.message

    def test_columns_of_unread_tables_are_pending(self) -> None:
        decision = decide(grantee(of_objects(table("SELECT", "id"))), observe((TABLE, ())))
        assert decision.changes == ()
        assert "column app.orders.id" in str(decision.pending[0])

    def test_system_objects_except_those_of_extensions_cannot_be_declared(self) -> None:
        routine = ObjectPrivileges(ObjectKind.ROUTINE, "pg_catalog", ("pg_ls_dir(text)",), frozenset({"EXECUTE"}))
        observed = observe((TABLE, ()))
        observed = replace(observed, schemas=observed.schemas | {"pg_catalog"})
        (refused,) = decide(grantee(of_objects(routine)), observed).pending
        assert refused.reason is Reason.INVALID_SPEC
        assert "routine pg_catalog.pg_ls_dir(text)" in refused.message
        of_extension = replace(
            make("pg_ls_dir", ObjectKind.ROUTINE, arguments="text"), schema="pg_catalog", extension=True
        )
        found = replace(observe((of_extension, ())), schemas=observed.schemas)
        assert not any(one.reason is Reason.INVALID_SPEC for one in decide(grantee(of_objects(routine)), found).pending)

    @pytest.mark.parametrize("schema", ["pg_catalog", "information_schema"])
    def test_system_schemas_and_patterns_in_them_cannot_be_declared(self, schema: str) -> None:
        observed = replace(observe((TABLE, ())), schemas=frozenset({"app", schema}))
        whole = SchemaAccess(schema, frozenset({Access.READ}))
        names = ObjectPrivileges(ObjectKind.TABLE, schema, ("t*", "*"), frozenset({"SELECT"}))
        for declared, named in (
            (replace(READ, schemas=(*READ.schemas, whole)), f"schema {schema}: "),
            (replace(READ, objects=(table("SELECT"), names)), f"{schema}.t* (objects[1].names) and 1 more: "),
        ):
            decision = decide(grantee(declared), observed)
            (refused,) = decision.pending
            assert refused.reason is Reason.INVALID_SPEC
            assert f"{named}privileges on PostgreSQL's own objects are not managed: remove them" in refused.message
            assert texts(decision) == ["GRANT SELECT ON TABLE app.orders TO reader"]

    def test_a_privilege_missing_on_an_added_column_is_not_drift(self) -> None:
        declared = replace(grantee(of_objects(table("INSERT", "id"))), report_only=True)
        applied = declared.digest_of("orders")
        before = decide_privileges(declared, observe((TABLE, ()), columns=("no",)), applied, new_objects=frozenset())
        assert before.applied.startswith(applied)
        observed = observe((TABLE, ()), columns=("id",))
        after = decide_privileges(declared, observed, before.applied, new_objects=frozenset())
        assert texts(after) == ["GRANT INSERT (id) ON TABLE app.orders TO reader"]
        assert (after.drift, after.reported) == ((), ())

    @pytest.mark.parametrize("report_only", [False, True])
    def test_a_privilege_missing_on_a_column_that_a_table_of_a_pattern_gets_later_is_not_drift(
        self, *, report_only: bool
    ) -> None:
        declared = of_objects(
            ObjectPrivileges(ObjectKind.TABLE, "a*", ("orders",), frozenset({"INSERT"}), ("id", "no"))
        )
        one = replace(grantee(declared), report_only=report_only)
        held = (TABLE, (entry("INSERT", "id"),))
        before = decide(one, observe(held, columns=("id",)))
        assert (before.changes, before.pending, before.awaited) == ((), (), False)
        after = decide_privileges(one, observe(held, columns=("id", "no")), before.applied, new_objects=frozenset())
        assert texts(after) == ["GRANT INSERT (no) ON TABLE app.orders TO reader"]
        assert (after.drift, after.reported, after.awaited) == ((), (), True)
        assert after.applied == one.digest_of("orders")

    def test_newly_allowed_privileges_are_not_drift_but_other_missing_ones_are(self) -> None:
        declared = of_objects(table("SELECT"), table("INSERT", "id"), table("SELECT", name="other"))
        allowed = replace(grantee(declared), report_only=True)
        denied = replace(allowed, owned=frozenset({STRANGER}))
        other = make("other", oid=20001, owner=STRANGER)
        observed = observe((TABLE, ()), (other, ()), columns=("id",))
        first = decide(denied, observed, current=False)
        assert texts(first) == ["GRANT SELECT ON TABLE app.other TO reader"]
        applied = decide_privileges(denied, observed, first.applied, new_objects=frozenset())
        assert applied.pending[0].reason is Reason.NOT_ALLOWED
        assert phrases(applied.drift) == ("SELECT on table app.other was revoked",)
        assert applied.applied == first.applied
        for new in (frozenset[ObjectId](), None):
            both = replace(allowed, owned=frozenset({OWNER, STRANGER}))
            then = decide_privileges(both, observed, first.applied, new_objects=new)
            assert texts(then) == [
                "GRANT SELECT ON TABLE app.orders TO reader",
                "GRANT INSERT (id) ON TABLE app.orders TO reader",
            ]
            assert phrases(then.reported) == ("SELECT on table app.other was revoked",)
            assert [one.what for one in then.extended] == [
                "SELECT on table app.orders",
                "INSERT on column app.orders.id",
            ]
            assert then.applied == allowed.digest_of("orders")

    def test_newly_allowed_default_privileges_are_not_drift_but_other_missing_ones_are(self) -> None:
        declared = DatabasePrivileges("orders", schemas=READ.schemas, created_by=("own", "stranger"))
        allowed = replace(grantee(declared), report_only=True, owned=frozenset({ME, OWNER, STRANGER}))
        denied = replace(allowed, owned=frozenset({ME, STRANGER}))
        first = decide(denied, observe(), current=False)
        then = decide_privileges(allowed, observe(), first.applied, new_objects=frozenset())
        assert [one.what for one in then.extended] == [
            f"SELECT on future {kind} in schema app created by own" for kind in ("sequences", "tables")
        ]
        assert {one.creator for one in then.default_changes} == {OWNER}
        assert phrases(then.reported) == (
            "SELECT on future sequences in schema app created by stranger was revoked",
            "SELECT on future tables in schema app created by stranger was revoked",
        )

    def test_a_database_denied_by_policy_or_partly_read_counts_as_not_applied(self) -> None:
        assert decide(grantee(policy=PrivilegePolicy()), observe(), current=False).applied == ""
        assert decide(grantee(), observe(complete=False), current=False).applied == ""

    def test_ignored_privileges_are_granted_as_soon_as_they_are_first_possible(self) -> None:
        later = SchemaAccess("later", frozenset({Access.READ}))
        declared = DatabasePrivileges("orders", schemas=(*READ.schemas, later), objects=(table("INSERT", name="new"),))
        one = replace(grantee(declared), ignored=True)
        foreign = make("foreign", oid=20001, owner=STRANGER)
        observed = observe((TABLE, ()), (foreign, ()))
        first = decide(one, observed, current=False)
        assert texts(first) == ["GRANT SELECT ON TABLE app.orders TO reader"]
        left = decide_privileges(one, observed, first.applied, new_objects=frozenset())
        assert (left.changes, left.drift, left.reported) == ((), (), ())
        assert [error.reason for error in left.pending] == [Reason.NOT_ALLOWED, Reason.PRIVILEGE_PENDING]
        for name in ("schema later", "table app.new"):
            assert name in str(left.pending[1])
        schema = replace(
            make("later", ObjectKind.SCHEMA, schema="later", oid=20002), id=ObjectId("pg_namespace", 20002)
        )
        some = ((schema, ()), (make("a", schema="later", oid=20003), ()), (make("new", oid=20004), ()))
        unasked = (make("unasked", oid=20005), ())
        observed = observe((TABLE, ()), (foreign, ()), *some, unasked, schemas=("app", "later"))
        then = decide_privileges(replace(one, owned=frozenset({*one.owned, STRANGER})), observed, left.applied)
        assert texts(then) == [
            "GRANT SELECT ON TABLE app.foreign, later.a TO reader",
            "GRANT USAGE ON SCHEMA later TO reader",
            "GRANT INSERT, SELECT ON TABLE app.new TO reader",
        ]
        assert (then.pending, then.drift, then.applied) == ((), (), one.digest_of("orders"))
        assert decide_privileges(one, observed, then.applied).changes == ()

    @pytest.mark.parametrize("kind", ["ignored", "report", "correct"])
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (make(owner=STRANGER), make()),
            (make(kind=ObjectKind.ROUTINE, elevated=True), make(kind=ObjectKind.ROUTINE)),
        ],
        ids=["owner", "security definer"],
    )
    def test_what_policy_denied_on_an_object_is_granted_once_when_the_object_makes_it_possible(
        self, kind: str, before: DatabaseObject, after: DatabaseObject
    ) -> None:
        access = SchemaAccess("app", frozenset({Access.READ, Access.EXECUTE}))
        declared = DatabasePrivileges("orders", schemas=(access,))
        rule = PrivilegeRule(schemas=("*",), owned_by=("own",))
        one = replace(grantee(declared, policy=PrivilegePolicy((rule,), ("orders",))), owned=frozenset({ME}))
        one = replace(one, ignored=kind == "ignored", report_only=kind == "report")
        other = (replace(before, name="other", id=ObjectId("pg_class", 20001)), ())
        first = decide(one, observe((before, ()), other), current=False)
        assert not first.changes
        left = decide_privileges(one, observe((before, ()), other), first.applied, new_objects=frozenset())
        assert (left.changes, left.drift, left.reported, left.applied) == ((), (), (), first.applied)
        then = decide_privileges(one, observe((after, ()), other), left.applied, new_objects=frozenset())
        assert [change.object for change in then.changes] == [after]
        assert (then.drift, then.reported, len(then.extended)) == ((), (), 1)
        again = decide_privileges(one, observe((after, ()), other), then.applied, new_objects=frozenset())
        assert len(again.drift) == (kind != "ignored")
        assert not again.extended

    def test_denied_objects_have_marks_of_their_own_only_while_there_is_room(self) -> None:
        many = [(make(f"f{at}", owner=STRANGER, oid=20001 + at), ()) for at in range(MOST_ON_OBJECTS + 1)]
        applied = decide(grantee(), observe(*many), current=False).applied
        assert applied == decide(grantee(), observe(*reversed(many)), current=False).applied
        assert len(AppliedDeclaration.parse(applied).awaited) == MOST_ON_OBJECTS + 1, "and one of all of them"
        allowed = replace(grantee(), owned=frozenset({STRANGER}))
        then = decide_privileges(allowed, observe(*many), applied, new_objects=frozenset())
        assert (len(then.extended), then.drift) == (len(many), ())

    def test_columns_that_the_tables_of_a_pattern_lack_fit_into_what_a_small_round_reads(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """sql/events/short_applied.sql leaves out longer rows, which take another query."""
        spelled, spell = list[object](), awaited_privileges._spell

        def note(mark: awaited_privileges.ObjectMark) -> str:
            spelled.append(mark)
            return spell(mark)

        monkeypatch.setattr(awaited_privileges, "_spell", note)
        declared = of_objects(table("SELECT", "id", "total", name="*"))
        many = [(make(f"t{at}", oid=20001 + at), ()) for at in range(500)]
        applied = decide(grantee(declared), observe(*many, columns=("other",)), current=False).applied
        assert len(applied) < 1_800
        assert len(spelled) == MOST_ON_OBJECTS

    def test_the_mark_of_what_policy_denies_is_the_same_in_every_version(self) -> None:
        """Its digest is stored: after an upgrade, what waited must not count as drift."""
        routine = make("f", ObjectKind.ROUTINE, owner=STRANGER, elevated=True)
        mark = awaited_privileges.mark_denied(routine, "EXECUTE", literal=False)
        assert mark == f"denied EXECUTE Routine ({STRANGER}, True, False, False, False) app"

    def test_a_message_names_five_objects_and_counts_the_rest(self) -> None:
        declared = of_objects(*(table("SELECT", name=f"t{at}") for at in range(7)))
        foreign = [(make(f"f{at}", owner=STRANGER, oid=20001 + at), ()) for at in range(7)]
        refused, waiting = decide(grantee(replace(declared, schemas=READ.schemas)), observe(*foreign)).pending
        assert "table app.t4 and 2 more" in waiting.message
        assert 'table app.f4 (owner "stranger") and 2 more' in refused.message

    def test_a_message_does_not_depend_on_the_order_in_which_objects_are_read(self) -> None:
        names = ("id", "no", "x", "y", "z", "zz")
        declared = replace(
            of_objects(table("UPDATE", *names), table("INSERT", *names, name="f1")), schemas=READ.schemas
        )
        read = [(make(f"f{at}", owner=STRANGER, oid=20001 + at), ()) for at in range(3)]
        read += [(make(f"v{at}", ObjectKind.VIEW, owner=ADMIN, oid=20011 + at), ()) for at in range(4)]
        read += [(TABLE, ()), (make(oid=20030, kind=ObjectKind.SEQUENCE, owner=STRANGER), ())]
        tables = frozenset({ObjectKind.TABLE})
        rules = (PrivilegeRule(owned_by=("own",)), PrivilegeRule(owned_by=("strange*",), kinds=tables))
        guarded = replace(declared, objects=(*declared.objects, table("TRIGGER", name="f*")))
        for policy in (POLICY, replace(POLICY, rules=rules)):
            found = {
                tuple(error.message for error in decide(grantee(guarded, policy=policy), observe(*order)).pending)
                for order in (read, read[::-1], read[4:] + read[:4], sorted(read, key=lambda one: one[0].id.oid % 5))
            }
            assert len(found) == 1
            assert [*map(len, found)] == [3]

    def test_a_routine_is_found_by_name_or_signature(self) -> None:
        names = ("close", "close(bigint)", "close(text)", "open()")
        declared = of_objects(ObjectPrivileges(ObjectKind.ROUTINE, "app", names, frozenset({"EXECUTE"})))
        routine = make("close", ObjectKind.ROUTINE, arguments="bigint")
        (waiting,) = decide(grantee(declared), observe((routine, ()))).pending
        assert "routine app.close(text) (there is close(bigint)), routine app.open():" in waiting.message
        assert waiting.message.endswith("needs its schema, such as f(app.state))")

    @pytest.mark.parametrize(
        ("name", "shown", "explained"),
        [
            ('"Order Items"', '"""Order Items"""', True),
            ("Order Items", '"Order Items"', False),
            ("größe.select", '"größe.select"', False),
            ("Orders", "Orders", False),
        ],
    )
    def test_a_missing_name_is_quoted_as_in_sql_and_its_own_double_quotes_are_explained(
        self, name: str, shown: str, explained: bool
    ) -> None:
        (waiting,) = decide(grantee(of_objects(table("SELECT", name=name))), observe()).pending
        assert f"table app.{shown}:" in waiting.message
        assert waiting.message.endswith("without double quotes)") == explained

    @pytest.mark.parametrize(("name", "explained"), [("*", True), ("absent_?", True), ("absent", False)])
    def test_a_missing_creator_whose_name_looks_like_a_pattern_is_explained(self, name: str, explained: bool) -> None:
        (waiting,) = decide(grantee(replace(READ, created_by=(name,))), observe()).pending
        shown = f'"{name}"' if explained else name
        assert f"role {shown} (createdBy):" in waiting.message
        assert waiting.message.endswith("(names here are not patterns: * and ? match only themselves)") == explained

    def test_a_missing_routine_is_quoted_but_not_its_types(self) -> None:
        names = ("a b(text)", 'f(app."T x")')
        declared = of_objects(ObjectPrivileges(ObjectKind.ROUTINE, "app", names, frozenset({"EXECUTE"})))
        routine = make("a b", ObjectKind.ROUTINE, arguments="bigint")
        (waiting,) = decide(grantee(declared), observe((routine, ()))).pending
        assert 'routine app."a b"(text) (there is "a b"(bigint)), routine app.f(app."T x"):' in waiting.message

    def test_a_missing_schema_and_creator_are_quoted(self) -> None:
        declared = replace(READ, schemas=(SchemaAccess("a, b", frozenset({Access.READ})),), created_by=("c d",))
        (waiting,) = decide(grantee(declared), observe()).pending
        assert 'role "c d" (createdBy), schema "a, b":' in waiting.message

    def test_a_routine_is_found_by_aliases_of_its_argument_types(self) -> None:
        names = ("close(int8, variadic timestamptz[])", "open()")
        declared = of_objects(ObjectPrivileges(ObjectKind.ROUTINE, "app", names, frozenset({"EXECUTE"})))
        routine = make("close", ObjectKind.ROUTINE, arguments="bigint, timestamp with time zone[]")
        decision = decide(grantee(declared), observe((routine, ())))
        types = "IN bigint, IN timestamp with time zone[]"
        assert texts(decision) == [f"GRANT EXECUTE ON ROUTINE app.close({types}) TO reader"]
        (waiting,) = decision.pending
        assert waiting.message.endswith(
            "waiting for routine app.open(): the controller grants the privileges once each exists"
        )


def default(*entries: AclEntry, creator: int = OWNER, schema: str = "app", object_type: str = "r") -> DefaultAcl:
    return DefaultAcl(creator, NAMES[creator], schema, object_type, entries)


class TestDefaults:
    DECLARED = replace(READ, created_by=("own",))

    def test_default_privileges_are_granted_for_declared_creators_in_named_schemas(self) -> None:
        access = frozenset({Access.WRITE, Access.EXECUTE})
        wide = (SchemaAccess("app", access), SchemaAccess("b*", access), SchemaAccess("c", access, ("x",)))
        declared = DatabasePrivileges("orders", schemas=wide, created_by=("own", "reader"))
        expected = [
            "GRANT SELECT, UPDATE, USAGE ON SEQUENCES TO reader",
            "GRANT EXECUTE ON ROUTINES TO reader",
            "GRANT DELETE, INSERT, SELECT, UPDATE ON TABLES TO reader",
        ]
        found = texts(decide(grantee(declared), observe(schemas=("app", "b1", "c"))))
        assert found == [f"ALTER DEFAULT PRIVILEGES FOR ROLE own IN SCHEMA app {one}" for one in expected]

    def test_undeclared_default_privileges_are_revoked_and_those_on_types_reported(self) -> None:
        found = (
            default(entry("SELECT"), entry("DELETE", grantable=True)),
            default(entry("SELECT"), schema=""),
            default(entry("USAGE"), object_type="T", schema=""),
            default(entry("SELECT"), creator=ME),
            default(entry("SELECT", grantee=STRANGER), creator=DELEGATE),
        )
        decision = decide(grantee(self.DECLARED), observe(defaults=(*found, default(entry("SELECT"), object_type="S"))))
        assert texts(decision) == [
            "ALTER DEFAULT PRIVILEGES FOR ROLE own IN SCHEMA app REVOKE DELETE ON TABLES FROM reader",
            "ALTER DEFAULT PRIVILEGES FOR ROLE own REVOKE SELECT ON TABLES FROM reader",
        ]
        assert phrases(decision.drift) == (
            "DELETE on future tables in schema app created by own was granted",
            "SELECT on future tables created by own was granted",
        )
        assert phrases(decision.reported) == ("USAGE on future types created by own was granted",)

    def test_a_grant_option_is_revoked(self) -> None:
        held = (default(entry("SELECT", grantable=True)), default(entry("SELECT"), object_type="S"))
        assert texts(decide(grantee(self.DECLARED), observe(defaults=held))) == [
            "ALTER DEFAULT PRIVILEGES FOR ROLE own IN SCHEMA app REVOKE GRANT OPTION FOR SELECT ON TABLES FROM reader"
        ]

    def test_a_grant_option_stays_in_unmanaged_schemas(self) -> None:
        held = (default(entry("SELECT", grantable=True)), default(entry("SELECT"), object_type="S"))
        declared = replace(self.DECLARED, unmanaged=("a*",))
        assert texts(decide(grantee(declared), observe(defaults=held))) == []

    def test_unread_default_privileges_are_not_changed(self) -> None:
        observed = replace(observe(), defaults=None)
        decision = decide(grantee(self.DECLARED), observed)
        assert (decision.default_changes, decision.confirmed) == ((), False)

    def test_a_creator_outside_the_policy_is_refused_and_its_default_privileges_extend_to_no_new_objects(self) -> None:
        one = grantee(replace(READ, created_by=("stranger",)))
        observed = observe(defaults=(default(entry("SELECT"), creator=STRANGER),))
        corrected, reported = (decide(replace(one, report_only=report_only), observed) for report_only in (False, True))
        for decision in (corrected, reported):
            assert texts(decision) == [
                "ALTER DEFAULT PRIVILEGES FOR ROLE stranger IN SCHEMA app REVOKE SELECT ON TABLES FROM reader"
            ]
            assert "createdBy" in str(decision.pending[0])
            assert (decision.drift, decision.reported) == ((), ())
        again = decide_privileges(one, observed, corrected.applied, new_objects=frozenset())
        assert again.default_changes == corrected.default_changes
        assert phrases(again.drift) == ("SELECT on future tables in schema app created by stranger was granted",)
        assert decide(replace(one, ignored=True), observed).default_changes == ()

    def test_only_former_default_privileges_are_revoked_in_unmanaged_schemas_and_unlisted_databases(self) -> None:
        held = (default(entry("SELECT"), entry("DELETE")),)
        for one in (grantee(None, self.DECLARED), grantee(replace(NOTHING, unmanaged=("a*",)), self.DECLARED)):
            decision = decide(one, observe(defaults=held))
            assert texts(decision) == [
                "ALTER DEFAULT PRIVILEGES FOR ROLE own IN SCHEMA app REVOKE SELECT ON TABLES FROM reader"
            ]
            assert not decision.confirmed

    def test_default_privileges_missing_for_a_new_schema_or_creator_are_not_drift(self) -> None:
        schema = make("app", ObjectKind.SCHEMA)
        observed = observe((schema, (entry("USAGE"),)))
        for new in (schema.id, ObjectId("pg_authid", OWNER)):
            decision = decide(grantee(self.DECLARED), observed, new=frozenset({new}))
            assert decision.drift == ()
            assert len(decision.extended) == 2
        assert len(decide(grantee(self.DECLARED), observed).drift) == 2


class TestDecisionsForRefusedObjects:
    """The role gains nothing, and loses what others granted."""

    REFUSED = replace(grantee(replace(READ, created_by=("own",))), refused=Refusal.KNOWN)
    ACCEPTED = replace(REFUSED, refused=None)
    OLD, NEW, BOTH = make("old"), make("new", oid=20001), make("both", oid=20002)
    SEEN = observe((OLD, ()), (NEW, ()), (BOTH, (entry("SELECT"), entry("DELETE"))))

    def test_nothing_is_granted_and_what_others_granted_is_revoked_as_drift(self) -> None:
        decision = decide(self.REFUSED, self.SEEN, new=frozenset({self.NEW.id}))
        assert texts(decision) == ["REVOKE DELETE ON TABLE app.both FROM reader"]
        assert phrases(decision.drift) == ("DELETE on table app.both was granted",)
        assert (decision.extended, decision.reported, decision.pending) == ((), (), ())

    @pytest.mark.parametrize("applied", ["", "sha256:another"])
    def test_a_declaration_that_was_not_applied_before_is_not_applied_either(self, applied: str) -> None:
        decision = decide_privileges(self.REFUSED, self.SEEN, applied, new_objects=frozenset())
        assert texts(decision) == ["REVOKE DELETE ON TABLE app.both FROM reader"]
        assert (decision.drift, decision.applied) == ((), applied)

    def test_once_it_is_accepted_everything_is_granted_without_drift(self) -> None:
        refused = decide(self.REFUSED, self.SEEN)
        again = decide_privileges(self.REFUSED, self.SEEN, refused.applied, new_objects=frozenset())
        assert again.applied == refused.applied != self.REFUSED.digest_of("orders")
        accepted = decide_privileges(self.ACCEPTED, self.SEEN, again.applied, new_objects=frozenset())
        defaults = "ALTER DEFAULT PRIVILEGES FOR ROLE own IN SCHEMA app GRANT SELECT ON"
        assert texts(accepted) == [
            "REVOKE DELETE ON TABLE app.both FROM reader",
            "GRANT SELECT ON TABLE app.old, app.new TO reader",
            f"{defaults} SEQUENCES TO reader",
            f"{defaults} TABLES TO reader",
        ]
        assert phrases(accepted.drift) == ("DELETE on table app.both was granted",)
        assert (len(accepted.extended), accepted.applied) == (4, self.ACCEPTED.digest_of("orders"))
        later = decide_privileges(self.ACCEPTED, self.SEEN, accepted.applied, new_objects=frozenset())
        assert len(later.drift) == 5

    @pytest.mark.parametrize("refused", [None, Refusal.KNOWN])
    def test_what_drift_policy_leaves_is_never_granted_after_a_refusal(self, refused: Refusal | None) -> None:
        reporting = replace(self.ACCEPTED, report_only=True, refused=refused)
        applied = decide(replace(reporting, refused=Refusal.KNOWN), self.SEEN, new=frozenset({self.NEW.id})).applied
        observed = replace(self.SEEN, defaults=None)
        decision = decide_privileges(reporting, observed, applied, new_objects=frozenset({self.NEW.id}))
        assert texts(decision) == ([] if refused else ["GRANT SELECT ON TABLE app.new TO reader"])
        assert phrases(decision.reported) == (
            "SELECT on table app.old was revoked",
            "DELETE on table app.both was granted",
        )
        ignoring = replace(self.REFUSED, ignored=True)
        applied = decide(ignoring, self.SEEN).applied
        assert decide_privileges(replace(ignoring, refused=None), self.SEEN, applied).changes == ()

    def test_a_declaration_of_which_no_one_knows_whether_it_was_accepted_counts_where_it_was_applied(self) -> None:
        unknown = replace(self.REFUSED, refused=Refusal.UNKNOWN)
        assert texts(decide(unknown, self.SEEN)) == ["REVOKE DELETE ON TABLE app.both FROM reader"]
        nothing = decide(unknown, self.SEEN, current=False)
        assert (texts(nothing), nothing.applied, nothing.confirmed) == ([], "", False)

    def test_columns_that_a_revoke_takes_are_granted_again(self) -> None:
        one = replace(grantee(of_objects(table("SELECT", "id"))), refused=Refusal.KNOWN)
        held = (TABLE, (entry("SELECT"), entry("SELECT", "id")))
        assert texts(decide(one, observe(held, columns=("id",)))) == [
            "REVOKE SELECT ON TABLE app.orders FROM reader",
            "GRANT SELECT (id) ON TABLE app.orders TO reader",
        ]
        assert texts(decide(one, observe((TABLE, ()), columns=("id",)))) == []


Entries = frozenset[AclEntry]
COLUMNS = ("id", "name")
PRIVILEGES = ("SELECT", "UPDATE", "DELETE")


def run(state: Entries, change: AclChange) -> Entries:
    """Applies a change to one object as PostgreSQL does: REVOKE removes only its grantor's grants, and on a table also
    those on columns.
    """
    owner = change.object.owner
    grantor = next((oid for oid, name in NAMES.items() if name == change.grantor), owner)

    def concerns(one: AclEntry) -> bool:
        whole = not change.columns
        where = whole or one.column in change.columns
        return one.grantee == change.grantee and one.grantor == grantor and one.privilege in change.privileges and where

    if change.revoke and change.option_only:
        return frozenset(replace(one, grantable=False) if concerns(one) else one for one in state)
    if change.revoke:
        return frozenset(one for one in state if not concerns(one))
    added = {
        AclEntry(change.grantee, owner, NAMES[owner], privilege, False, column)
        for privilege in change.privileges
        for column in change.columns or ("",)
    }
    held = {(one.grantee, one.grantor, one.privilege, one.column) for one in state}
    return state | {one for one in added if (one.grantee, one.grantor, one.privilege, one.column) not in held}


@st.composite
def entries(draw: st.DrawFn) -> Entries:
    one = st.builds(
        lambda who, by, privilege, column, grantable: AclEntry(
            who, by, NAMES[by], privilege, grantable, "" if privilege == "DELETE" else column
        ),
        st.sampled_from([ME, ME, STRANGER]),
        st.sampled_from([OWNER, DELEGATE]),
        st.sampled_from(PRIVILEGES),
        st.sampled_from(["", *COLUMNS]),
        st.booleans(),
    )
    some = draw(st.lists(one, max_size=8, unique_by=lambda e: (e.grantee, e.grantor, e.privilege, e.column)))
    return frozenset(some)


@st.composite
def declarations(draw: st.DrawFn) -> DatabasePrivileges:
    item = st.builds(
        lambda privileges, columns: table(" ".join(privileges - {"DELETE"} if columns else privileges), *columns),
        st.frozensets(st.sampled_from(PRIVILEGES)),
        st.lists(st.sampled_from(COLUMNS), unique=True),
    )
    access = st.frozensets(st.sampled_from([Access.READ, Access.WRITE]), max_size=1)
    return DatabasePrivileges(
        "orders",
        schemas=(SchemaAccess("app", draw(access), ("o*",) if draw(st.booleans()) else ()),),
        objects=tuple(draw(st.lists(item, max_size=3))),
        unmanaged=("app",) if draw(st.booleans()) else (),
    )


@given(declarations(), st.none() | declarations(), entries(), st.booleans())
def test_a_second_decision_finds_nothing_to_do_whatever_the_role_held(
    declared: DatabasePrivileges, former: DatabasePrivileges | None, held: Entries, listed: bool
) -> None:
    one = grantee(declared if listed else None, *([former] if former else []))
    first = decide(one, observe((TABLE, tuple(held)), columns=COLUMNS))
    after = held
    for change in first.changes:
        after = run(after, change)
    second = decide(one, observe((TABLE, tuple(after)), columns=COLUMNS))
    assert second.changes == ()
    assert second.drift == ()
    assert second.confirmed
    assert {entry for entry in held if entry.grantee != ME} == {entry for entry in after if entry.grantee != ME}
    if not listed:
        assert after <= held
    elif not declared.unmanaged:
        exact = declared.objects or declared.schemas
        assert exact
        assert not any(entry.grantable for entry in after if entry.grantee == ME)


@given(declarations(), entries())
def test_every_change_is_necessary_and_affects_only_this_role_and_object(
    declared: DatabasePrivileges, held: Entries
) -> None:
    state = held
    for change in decide(grantee(declared), observe((TABLE, tuple(held)), columns=COLUMNS)).changes:
        assert (change.grantee, change.object) == (ME, TABLE)
        after = run(state, change)
        assert after != state
        state = after
