"""controller/privileges/database_worker with a real database: it enforces what published roles declare, whatever
others do.
"""

import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any

import anyio
import asyncpg
import pytest

from bench.privilege_repairs import MIXED
from pgrole_controller import logs, metrics
from pgrole_controller.controller.privileges import (
    database_worker,
    large_rounds,
    privilege_attribution,
    privilege_decisions,
    read_pace,
    small_rounds,
)
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.privileges.privilege_decisions import RoundDecisions
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.controller.privileges.privilege_round import run_round
from pgrole_controller.controller.privileges.read_pace import CompleteReads
from pgrole_controller.core import contest as contests
from pgrole_controller.core.approval import read_approval
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.attribution import ChangedRow
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegeRule,
    SchemaAccess,
)
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference, combine_drifts
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, News
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges import acl_attribution, searches
from pgrole_controller.postgres.privileges.acl_attribution import PatientAttribution
from pgrole_controller.postgres.privileges.acl_refusal import Ineffective
from pgrole_controller.postgres.privileges.acl_transaction import AclTransactions
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EventReader, PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.searches import LONGEST_PAUSE_SECONDS, UnexplainedWrites
from pgrole_controller.postgres.privileges.stored_state import split_origin
from pgrole_controller.postgres.server_catalog import HeldQuestion, read_owning, read_unheld
from tests.integration.database_world import (
    DEADLINE,
    KEY,
    OTHER,
    POLICY,
    READ,
    SERVER,
    WRITE,
    DatabaseWorkerWorld,
    full_queue,
    make_world,
    note_sessions,
)
from tests.servers import Servers


def counted(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, {"server": SERVER} | labels) or 0.0


async def test_the_worker_grants_exactly_the_declared_privileges(world: DatabaseWorkerWorld) -> None:
    before, repairs = (
        counted("pgrole_privilege_reads_total", scope="full"),
        counted("pgrole_privilege_repair_seconds_count"),
    )
    await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
    world.declare(READ)
    async with world.working() as worker:
        result = await world.wait_settled()
        assert worker.mode is DatabaseMode.EVENTS
        assert worker.memory.largest_acl >= 1
    assert counted("pgrole_privilege_reads_total", scope="full") > before
    assert counted("pgrole_privilege_repair_seconds_count") == repairs, "nothing drifted"
    assert result.drift_count == 0
    assert await world.may("SELECT", "app.orders")
    assert await world.may("SELECT", "app.items")
    assert not await world.may("DELETE", "app.items")


async def test_the_worker_revokes_a_grant_and_names_its_author(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        world.news()
        before, named = (
            counted("pgrole_privilege_repair_seconds_sum"),
            counted("pgrole_privilege_reads_total", scope="named"),
        )
        repairs, began = counted("pgrole_privilege_repair_seconds_count"), anyio.current_time()
        alice = await asyncpg.connect(world.server.dsn(world.alice, password="a", database=world.database))
        await alice.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await alice.close()
        await world.wait_may("DELETE", "app.orders", expected=False)
        result = await world.wait(lambda result: result.drift_count == 1)
        assert counted("pgrole_privilege_repair_seconds_count") == repairs + 1
        assert 0 < counted("pgrole_privilege_repair_seconds_sum") - before < anyio.current_time() - began
        assert counted("pgrole_privilege_reads_total", scope="named") > named
    assert result.error is None
    assert result.last_drift is not None
    assert result.last_drift.by.login == world.alice
    assert result.last_drift.by.proof is Evidence.TRANSACTION
    ((reason, note),) = world.news()
    assert reason is News.DRIFT_CORRECTED
    assert note.startswith(f"DELETE on table app.orders (database {world.database}) was granted by ")
    assert note.endswith("and revoked")
    row = await world.hand.fetchrow("SELECT drift_count, holder FROM pgrole.applied WHERE role_name = $1", world.role)
    assert row is not None
    assert tuple(row) == (1, f"uid-1/{world.database}")
    history = await world.hand.fetchrow("SELECT * FROM pgrole.history WHERE role = $1", world.role)
    assert history is not None
    assert history["corrected"]
    assert history["login"] == world.alice
    assert history["fields"] == ["privileges"]
    assert json.loads(history["details"]) == {"words": ["DELETE on table app.orders was granted"]}


async def test_schema_public_is_managed_under_the_name_that_it_was_given(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public RENAME TO shop")

    async def is_exact() -> bool:
        query = "SELECT has_schema_privilege($1, 'shop', 'USAGE') AND NOT has_schema_privilege($1, 'shop', 'CREATE')"
        return bool(await world.hand.fetchval(query, world.role))

    world.declare(replace(READ, schema="shop"))
    async with world.working():
        await world.wait_settled()
        assert await is_exact()
        await world.hand.execute(
            f"GRANT CREATE ON SCHEMA shop TO {world.role}; REVOKE USAGE ON SCHEMA shop FROM {world.role}"
        )
        assert await reached(is_exact, DEADLINE), world.result


def note_decisions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list to which every later decision adds its role."""
    decided: list[str] = []

    def decide(grantee: Grantee, *arguments: Any, **options: Any) -> PrivilegeDecision:
        decided.append(grantee.role_name)
        return decide_privileges(grantee, *arguments, **options)

    monkeypatch.setattr(privilege_decisions, "decide_privileges", decide)
    return decided


async def test_a_change_is_decided_only_for_the_roles_that_it_concerns(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ)
    other = world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {other}")
        await world.wait_may("DELETE", "app.orders", expected=False, role=other)
        decided = note_decisions(monkeypatch)
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
    assert decided == [world.role]


@pytest.mark.parametrize("complete", [True, False])
async def test_a_decision_that_raises_is_reported_and_what_is_new_stays_new(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, *, complete: bool
) -> None:
    world.declare(READ, report_only=True)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait(lambda result: bool(result.reported))
        world.news()
        with monkeypatch.context() as patch:

            def fail(*_arguments: Any, **_options: Any) -> PrivilegeDecision:
                raise AssertionError("about this role")

            patch.setattr(privilege_decisions, "decide_privileges", fail)
            await world.hand.execute("CREATE TABLE app.fresh ()")
            if complete:
                worker.note_everything()
            failed = await world.wait(lambda result: result.error is not None)
            assert failed.error is not None
            assert failed.error.reason is Reason.INTERNAL_ERROR
        await world.wait_may("SELECT", "app.fresh")
        result = await world.wait(lambda result: result.error is None)
    assert [words for words in result.reported if "DELETE" not in words] == []
    assert [reason for reason, _ in world.news()] == [News.PRIVILEGES_EXTENDED]


async def find_nothing(_writes: UnexplainedWrites, *_arguments: Any) -> PrivilegeRead:
    return PrivilegeRead()


async def test_a_large_number_of_changes_is_applied_role_by_role(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    monkeypatch.setattr(large_rounds, "MOST_CHANGES", 2)
    decided = note_decisions(monkeypatch)
    world.declare(READ)
    other = world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
        assert await world.may("SELECT", "app.items", other)
        assert decided[0] != decided[-1]
        assert decided == sorted(decided, key=decided.index), "a role was decided before the previous one was done"
        await world.hand.execute("CREATE TABLE app.one (); CREATE TABLE app.two (); CREATE TABLE app.three ()")
        for role in (world.role, other):
            await world.wait_may("SELECT", "app.three", role=role)
            await world.wait_may("SELECT", "app.one", role=role)
        await world.hand.execute(
            f"GRANT DELETE ON app.one TO {world.role}, {other}; GRANT UPDATE ON app.two TO {other}"
        )
        for role in (world.role, other):
            await world.wait_may("DELETE", "app.one", expected=False, role=role)
        await world.wait_may("UPDATE", "app.two", expected=False, role=other)
        result = await world.wait(lambda result: result.drift_count == 1)
    assert result.error is None


async def test_changes_of_many_columns_are_a_large_number(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    monkeypatch.setattr(large_rounds, "MOST_CHANGES", 6)
    world.declare(READ)
    other = world.declare_other(READ)
    await world.hand.execute("CREATE TABLE app.wide (a int, b int, c int)")
    decide, numbers = RoundDecisions.decide, list[tuple[int, int]]()

    async def note(decisions: RoundDecisions, some: Sequence[PrivilegeProgress], most_changes: int) -> int:
        number = await decide(decisions, some, most_changes)
        numbers.append((len(some), number))
        return number

    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
        monkeypatch.setattr(RoundDecisions, "decide", note)
        await world.hand.execute(f"GRANT INSERT (a, b, c), UPDATE (a, b, c) ON app.wide TO {world.role}, {other}")
        held = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'app.wide'::regclass AND attacl IS NOT NULL"

        async def are_revoked() -> bool:
            return not await world.hand.fetchval(held)

        assert await reached(are_revoked, DEADLINE)
    assert numbers[0] == (2, 1), "both roles were decided at once"


def note_refusals(monkeypatch: pytest.MonkeyPatch) -> list[PgRoleError]:
    """Returns a list to which every later transaction that fails adds its error."""
    errors: list[PgRoleError] = []
    run, run_parts = AclTransactions.run, AclTransactions.run_parts

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        async def note(*arguments: Any, **options: Any) -> Any:
            try:
                return await call(*arguments, **options)
            except PgRoleError as error:
                errors.append(error)
                raise

        return note

    monkeypatch.setattr(AclTransactions, "run", noting(run))
    monkeypatch.setattr(AclTransactions, "run_parts", noting(run_parts))
    return errors


@pytest.mark.parametrize(
    "statement",
    [
        "REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA app FROM {role}",
        "GRANT UPDATE (id) ON app.orders, app.items TO {role}",
        # the other role's EXECUTE depends on what is revoked
        "BEGIN; GRANT EXECUTE ON FUNCTION app.f1() TO {role} WITH GRANT OPTION; REVOKE EXECUTE ON FUNCTION app.f1()"
        " FROM {other}; SET LOCAL ROLE {role}; GRANT EXECUTE ON FUNCTION app.f1() TO {other}; COMMIT",
    ],
)
async def test_a_repair_beside_privileges_of_another_role_succeeds_at_once(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    await world.hand.execute(
        "CREATE FUNCTION app.f1() RETURNS int LANGUAGE sql RETURN 1; REVOKE ALL ON FUNCTION app.f1() FROM PUBLIC;"
        "CREATE FUNCTION app.f2() RETURNS int LANGUAGE sql RETURN 2; REVOKE ALL ON FUNCTION app.f2() FROM PUBLIC"
    )
    both = SchemaAccess("app", frozenset({Access.READ, Access.EXECUTE}))
    world.declare(both)
    other = world.declare_other(both)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
        errors = note_refusals(monkeypatch)
        await world.hand.execute(statement.format(role=world.role, other=other))
        await world.wait(lambda result: result.drift_count == 1 and result.error is None)
        assert [error for error in errors if isinstance(error, Ineffective)] == []
        for role in (world.role, other):
            for function in ("app.f1()", "app.f2()"):
                query = "SELECT has_function_privilege($1, $2, 'EXECUTE')"
                assert await world.hand.fetchval(query, role, function), f"{role} has lost {function}"
        query = "SELECT has_function_privilege($1, 'app.f1()', 'EXECUTE WITH GRANT OPTION')"
        assert not await world.hand.fetchval(query, world.role)


def note_threads(monkeypatch: pytest.MonkeyPatch, *functions: tuple[ModuleType, str]) -> list[threading.Thread]:
    """Returns a list to which every later call of these functions adds its thread."""
    threads: list[threading.Thread] = []

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return call(*arguments, **options)

        return note

    for module, name in functions:
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    return threads


async def test_decisions_about_many_objects_run_in_a_thread(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = note_threads(monkeypatch, (privilege_decisions, "decide_privileges"))
    monkeypatch.setattr(large_rounds, "MANY_COMPARISONS", 1)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait_may("DELETE", "app.orders", expected=False)
        await world.wait(lambda result: result.drift_count == 1)
    assert threads
    assert threading.main_thread() not in threads


async def test_all_reported_drift_is_put_into_words_in_the_thread_that_decides(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelled: list[tuple[PrivilegeDifference, threading.Thread]] = []
    words = vars(PrivilegeDifference)["words"]
    spell: Callable[[PrivilegeDifference], str] = words.func

    def note(difference: PrivilegeDifference) -> str:
        spelled.append((difference, threading.current_thread()))
        return spell(difference)

    for number in range(10):
        await world.hand.execute(f"CREATE TABLE app.extra_{number} (id int)")
    monkeypatch.setattr(words, "func", note)
    monkeypatch.setattr(large_rounds, "MANY_COMPARISONS", 1)
    world.declare(READ, report_only=True)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON ALL TABLES IN SCHEMA app TO {world.role}")
        await world.wait(lambda result: result.reported[-1:] == ("and 2 more",))
        count = len(spelled)
        worker.note_everything()
        await world.hand.execute(f"REVOKE DELETE ON app.items FROM {world.role}")
        await world.wait(lambda result: result.reported[-1:] == ("and 1 more",))
    assert len(spelled) > count >= 12
    assert {thread for _, thread in spelled}.isdisjoint({threading.main_thread()})
    assert len({id(one) for one, _ in spelled}) == len(spelled), "each once"


async def test_comparisons_with_many_patterns_run_in_a_thread(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comparison with 2,000 patterns takes several milliseconds."""
    threads = note_threads(monkeypatch, (privilege_decisions, "decide_privileges"))
    patterns = tuple(tuple(f"*{part}_{number}*" for number in range(128)) for part in range(15))
    items = tuple(ObjectPrivileges(ObjectKind.TABLE, "app", some, frozenset({"SELECT"})) for some in patterns)
    for number in range(10):
        await world.hand.execute(f"CREATE TABLE app.extra_{number} (id int)")
    declared = DatabasePrivileges(world.database, objects=items)
    world.grantees.publish(
        SERVER, Grantee(KEY, "uid-1", 1, world.role, world.oid, {world.database: declared}, policy=POLICY)
    )
    async with world.working():
        await world.wait_settled()
    assert threads
    assert threading.main_thread() not in threads


async def test_comparisons_of_many_columns_of_one_table_run_in_a_thread(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = [f"c{number}" for number in range(large_rounds.MANY_COMPARISONS // 4 + 1)]
    await world.hand.execute(f"CREATE TABLE app.wide ({', '.join(f'{one} bool' for one in columns)})")
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        threads = note_threads(
            monkeypatch, (privilege_decisions, "decide_privileges"), (privilege_attribution, "group_by_author")
        )
        each = ", ".join(f"{one} ({', '.join(columns)})" for one in ("INSERT", "UPDATE", "REFERENCES", "SELECT"))
        await world.hand.execute(f"GRANT {each} ON app.wide TO {world.role}")
        result = await world.wait(lambda result: result.drift_count == 1)
    assert [one.by.login for one in result.last_drifts] == ["postgres"]
    assert len(threads) > 1
    assert threading.main_thread() not in threads


@pytest.mark.parametrize(
    "statement",
    [
        *(f"GRANT /*{'x' * length}*/ DELETE ON app.orders TO {{role}}" for length in (900, 990, 1100, 9000)),
        f"GRANT {'SELECT, ' * 122} DELETE ON app.orders TO {{role}}",
        'GRANT /*"*/ DELETE ON app.orders TO {role} /*"*/',
        'GRANT --"\n DELETE ON app.orders TO {role} --"',
        'GRANT DELETE ON app."Ärger", app."orders" TO {role}',
        "GRANT DELETE ON app.Ärger, app.ORDERS TO {role}",
        "GRANT UPDATE (id) ON app.orders TO {role}",
    ],
)
async def test_a_grant_is_detected_however_it_is_written(world: DatabaseWorkerWorld, statement: str) -> None:
    """An event has the first 1,000 characters of its statement, which only suggest where to look."""
    await world.hand.execute('CREATE TABLE app."Ärger" (id int)')
    world.declare(READ)
    held = (
        f"SELECT bool_or(a.attacl::text LIKE '%{world.role}=w%') FROM pg_attribute AS a WHERE attrelid = $1::regclass"
    )
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(statement.format(role=world.role))
        await world.wait_may("DELETE", "app.orders", expected=False)
        await world.wait_may("DELETE", 'app."Ärger"', expected=False)

        async def is_revoked() -> bool:
            return not await world.hand.fetchval(held, "app.orders")

        assert await reached(is_revoked, DEADLINE)


async def test_column_privileges_are_revoked_with_those_on_the_table(world: DatabaseWorkerWorld) -> None:
    world.declare()
    held = "SELECT count(*) FROM pg_attribute AS a WHERE a.attacl::text LIKE '%' || $1 || '%'"

    async def is_revoked() -> bool:
        return not await world.hand.fetchval(held, world.role)

    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT SELECT (id), UPDATE, INSERT (id) ON app.orders TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
        await world.hand.execute(
            f"BEGIN; GRANT SELECT ON app.orders TO {world.role}; GRANT SELECT (id) ON app.orders TO {world.role}; END"
        )
        await world.wait(lambda result: result.drift_count == 2)
        await world.wait_may("SELECT", "app.orders", expected=False)
        assert await is_revoked()


@pytest.mark.parametrize(
    "statement", ["{0} /**/", 'REVOKE SELECT ("größe") ON app.people FROM {1}', "DO $$ BEGIN {0}; END $$"]
)
async def test_revoking_a_column_from_its_last_grantee_is_detected(world: DatabaseWorkerWorld, statement: str) -> None:
    """Only the column's row shows it, since the table's row is not written."""
    await world.hand.execute('CREATE TABLE app.people (id int, "größe" int)')
    columns = ObjectPrivileges(ObjectKind.TABLE, "app", ("people",), frozenset({"SELECT"}), ("id", "größe"))
    declared = DatabasePrivileges(world.database, objects=(columns,))
    grantee = Grantee(KEY, "uid-1", 1, world.role, world.oid, {world.database: declared}, policy=POLICY)
    world.grantees.publish(SERVER, grantee)
    held = "SELECT bool_and(has_column_privilege($1, 'app.people', c, 'SELECT')) FROM unnest(ARRAY['id', 'größe']) AS c"

    async def is_held() -> bool:
        return bool(await world.hand.fetchval(held, world.role))

    async with world.working():
        await world.wait_settled()
        assert await is_held()
        await world.hand.execute(statement.format(f"REVOKE SELECT (id) ON app.people FROM {world.role}", world.role))
        assert await reached(is_held, DEADLINE)
        await world.wait(lambda result: result.drift_count == 1)


@pytest.mark.parametrize(
    "statement", ["ALTER TABLE app.bills OWNER TO {role}", "ALTER TABLE app.bills SET SCHEMA {schema}"]
)
async def test_moving_a_table_to_another_owner_or_schema_updates_its_sequences_privileges(
    world: DatabaseWorkerWorld, statement: str
) -> None:
    """ALTER TABLE causes an event for the table only."""
    hand, schema = world.hand, f"{world.role}_away"
    await hand.execute(f"CREATE SCHEMA {schema}")
    await hand.execute("CREATE TABLE app.bills (id serial, n int GENERATED ALWAYS AS IDENTITY)")
    if "OWNER" in statement:
        await hand.execute(f"ALTER TABLE app.bills OWNER TO {world.role}")
        statement = "ALTER TABLE app.bills OWNER TO postgres"  # a former owner loses its implicit privileges
        wanted = SchemaAccess("app", frozenset({Access.WRITE}))
    else:
        wanted = SchemaAccess(schema, frozenset({Access.WRITE}))
    held = (
        "SELECT bool_and(has_sequence_privilege($1, d.objid, 'USAGE')) FROM pg_depend AS d JOIN pg_class AS s"
        " ON s.oid = d.objid AND s.relkind = 'S' WHERE d.refobjid = $2::oid AND d.deptype IN ('a', 'i')"
    )
    table = await hand.fetchval("SELECT 'app.bills'::regclass::oid")
    world.declare(wanted)

    async def is_held() -> bool:
        return bool(await hand.fetchval(held, world.role, table))

    async with world.working():
        await world.wait_settled()
        await hand.execute(statement.format(role=world.role, schema=schema))
        assert await reached(is_held, DEADLINE)


@pytest.mark.parametrize("comment", ["", "/**/"])
async def test_a_grant_is_detected_even_if_an_older_transaction_wrote_the_row_later(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, comment: str
) -> None:
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    older = await asyncpg.connect(world.server.dsn(database=world.database))
    try:
        async with world.working():
            await world.wait_settled()
            await older.execute("BEGIN; SELECT pg_current_xact_id()")
            async with sessions[0].lock:  # nothing is read before both have committed
                await world.hand.execute(f"GRANT {comment} DELETE ON app.items TO {world.role}")
                await older.execute("TRUNCATE app.items; COMMIT")
            await world.wait_may("DELETE", "app.items", expected=False)
    finally:
        await older.close()


async def test_a_recent_read_includes_the_database_itself_only_on_request(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRANT ON DATABASE causes no event. The home database's worker reports it."""
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        (session,) = sessions
        await world.hand.execute(f"GRANT TEMPORARY ON DATABASE {world.database} TO {world.other}")
        xid = 1 + int(await world.hand.fetchval("SELECT pg_current_xact_id()::text"))
        reach = PrivilegeReach.of(world.database, ())
        for to_read, found in ((session.own_acl, True), (PrivilegeRead(), False)):
            async with session.lock:
                observed, _ = await session.read([world.oid], reach, to_read | PrivilegeRead(Scope.RECENT, xid=xid))
            assert any(one.object.kind is ObjectKind.DATABASE for one in observed.acls) is found


async def test_a_grant_by_a_foreign_event_trigger_within_a_grant_is_detected(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(
        f"""
        CREATE FUNCTION app.more() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
            IF current_query() LIKE '%items%' AND NOT has_table_privilege('{world.role}', 'app.orders', 'DELETE') THEN
                GRANT DELETE ON app.orders TO {world.role};
            END IF;
        END $$;
        CREATE EVENT TRIGGER more ON ddl_command_end WHEN TAG IN ('GRANT') EXECUTE FUNCTION app.more();
        """
    )
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await as_alice(world, f"GRANT DELETE ON app.items TO {world.role}")
        await world.wait_may("DELETE", "app.items", expected=False)
        await world.wait_may("DELETE", "app.orders", expected=False)


async def test_the_query_of_the_first_repair_is_planned_in_advance(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()

        async def is_planned() -> bool:
            query = "SELECT FROM pg_prepared_statements WHERE statement LIKE '%$6 name[]%' AND generic_plans > 0"
            async with sessions[0].lock:
                return bool(await sessions[0].connection.fetch(query))

        assert await reached(is_planned, DEADLINE)


async def test_privileges_extend_to_new_tables_of_any_creator(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        world.news()
        alice = await asyncpg.connect(world.server.dsn(world.alice, password="a", database=world.database))
        await alice.execute("CREATE TABLE app.invoices (id int)")
        await alice.close()
        await world.wait_may("SELECT", "app.invoices")

        async def is_told() -> bool:
            told.extend(world.news())
            return bool(told)

        told: list[tuple[News, str]] = []
        assert await reached(is_told, DEADLINE)
    assert told == [
        (
            News.PRIVILEGES_EXTENDED,
            f"granted declared privileges (database {world.database}): SELECT on table app.invoices",
        )
    ]
    assert world.result is not None
    assert world.result.drift_count == 0


async def test_a_revoke_on_a_recently_created_table_is_drift(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute("CREATE TABLE app.late (id int)")
        await world.wait_may("SELECT", "app.late")
        await world.hand.execute(f"REVOKE SELECT ON app.late FROM {world.role}")
        await world.wait_may("SELECT", "app.late")
        await world.wait(lambda result: result.drift_count == 1)


def failed_sessions() -> float:
    return metrics.REGISTRY.get_sample_value("pgrole_database_session_failures_total", {"server": SERVER}) or 0.0


async def test_a_grant_hidden_in_a_do_block_is_corrected_in_the_same_session(
    world: DatabaseWorkerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        failed = failed_sessions()
        await world.hand.execute(
            f"DO $$ BEGIN EXECUTE 'GRANT UPDATE ON ' || 'app.' || 'orders TO {world.role}'; END $$"
        )
        result = await world.wait(lambda result: result.drift_count == 1)
        assert not await world.may("UPDATE", "app.orders")
    assert failed_sessions() == failed, "a new session would read everything"
    assert result.last_drift is not None
    assert result.last_drift.by.login == "postgres"
    assert "no session with a database" not in caplog.text  # a new session reads everything


async def test_an_unexpected_error_is_logged_with_the_database_and_the_place_and_without_its_text(
    world: DatabaseWorkerWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr("pgrole_controller.controller.privileges.database_worker.run_round", fail)
    monkeypatch.setattr(logs, "_tracebacks", logs.RateLimit(logs.TRACEBACKS, 60.0))
    world.declare(READ)
    async with world.working():
        await world.wait(lambda result: result.error is not None)
    some = [record for record in caplog.records if record.message == "unexpected error in a session"]
    assert some
    for record in some:
        told = vars(record)
        assert (record.levelname, told["server"], told["database"]) == ("ERROR", SERVER, world.database)
        assert told["traceback"].endswith(" fail")
    assert "a secret" not in "".join(str(vars(record)) for record in caplog.records)


async def test_grants_that_commit_out_of_order_are_both_corrected(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working():
        await world.wait_settled()
        first = world.hand.transaction()
        await first.start()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await other.execute(f"GRANT DELETE ON app.items TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
        await first.commit()
        await world.wait(lambda result: result.drift_count == 2)
    assert not await world.may("UPDATE", "app.orders")
    assert not await world.may("DELETE", "app.items")
    await other.close()


async def test_a_transaction_with_more_events_than_recorded_is_corrected_completely(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(
            "DO $$ BEGIN FOR i IN 1 .. 150 LOOP EXECUTE format('CREATE TABLE app.many_%s ()', i); "
            f"EXECUTE format('GRANT TRUNCATE ON app.many_%s TO {world.role}', i); END LOOP; END $$"
        )
        await world.wait_may("SELECT", "app.many_150")

        async def are_revoked() -> bool:
            return not await world.hand.fetchval(
                "SELECT bool_or(has_table_privilege($1, oid, 'TRUNCATE')) FROM pg_class WHERE relname LIKE 'many%'",
                world.role,
            )

        assert await reached(are_revoked, DEADLINE)
        assert await world.hand.fetchval(
            "SELECT bool_and(has_table_privilege($1, oid, 'SELECT')) FROM pg_class WHERE relname LIKE 'many%'",
            world.role,
        )


async def test_commands_that_cause_complete_reads_get_a_part_of_the_time_and_delay_no_correction(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "_REST_TIMES", 1e9)
    monkeypatch.setattr(read_pace, "_LONGEST_REST", 3600.0)
    looks = list[Scope]()
    moderate = CompleteReads.moderate

    def note_moderated(self: CompleteReads, to_read: PrivilegeRead, now: float, *, forced: bool) -> PrivilegeRead:
        found = moderate(self, to_read, now, forced=forced)
        looks.append(found.scope)
        return found

    monkeypatch.setattr(CompleteReads, "moderate", note_moderated)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute("CREATE SCHEMA another")

        async def is_read() -> bool:
            return Scope.FULL in looks[1:]

        assert await reached(is_read, DEADLINE)
        looks.clear()
        for n in range(3):
            await world.hand.execute("ALTER SCHEMA another RENAME TO renamed")
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            await world.hand.execute(f"ALTER SCHEMA renamed RENAME TO another; CREATE TABLE app.new_{n} ()")
            await world.wait_may("SELECT", f"app.new_{n}")
        assert Scope.RECENT in looks
        assert Scope.FULL not in looks


async def test_a_changed_declaration_is_not_drift_and_is_confirmed(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        write = SchemaAccess("app", frozenset({Access.WRITE}))
        world.declare(write)
        await world.wait_settled()
        assert await world.may("DELETE", "app.orders")
        before = world.declare(READ)
        await world.wait_settled()
        assert not await world.may("DELETE", "app.orders")
        former = {world.database: (before.declared[world.database],)}
        world.grantees.publish(SERVER, replace(before, declared={}, former=former))
        result = await world.wait_settled()
        assert result.confirmed
        assert not await world.may("SELECT", "app.orders")
        assert result.drift_count == 0


async def test_what_was_declared_before_is_confirmed_as_revoked_while_something_else_is_pending(
    world: DatabaseWorkerWorld,
) -> None:
    def select(name: str) -> ObjectPrivileges:
        return ObjectPrivileges(ObjectKind.TABLE, "app", (name,), frozenset({"SELECT"}))

    await world.hand.execute(f"GRANT SELECT ON app.orders TO {world.role}")
    former = DatabasePrivileges(world.database, objects=(select("missing"), select("orders")), unmanaged=("app",))
    declared = replace(former, objects=(select("missing"),))
    one = world.declare()
    one = replace(one, declared={world.database: declared}, former={world.database: (former,)})
    world.grantees.publish(SERVER, one)
    async with world.working():
        result = await world.wait(lambda result: result.confirmed)
    assert result.error is not None
    assert result.error.reason is Reason.PRIVILEGE_PENDING
    assert not await world.may("SELECT", "app.orders")


async def test_a_grant_made_as_the_connection_is_lost_is_corrected_and_attributed(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        async with world.hand.transaction():
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.home.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = $1 AND application_name = 'pgrole-controller database'",
                world.database,
            )
        await world.wait_may("UPDATE", "app.orders", expected=False)
        result = await world.wait(lambda result: result.drift_count == 1 and result.error is None)
    assert result.last_drift is not None
    assert result.last_drift.by.login == "postgres"


async def test_a_database_that_is_dropped_and_created_again_gets_its_privileges(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.close()
        await world.home.execute(f"DROP DATABASE {world.database} WITH (FORCE)")
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.PRIVILEGE_PENDING
        assert world.database in result.error.message
        await world.home.execute(f"CREATE DATABASE {world.database}")
        world.hand = await asyncpg.connect(world.server.dsn(database=world.database))
        await world.hand.execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int)")
        worker.note_database()
        await world.wait_settled()
        assert await world.may("SELECT", "app.orders")


@pytest.mark.parametrize("installs", [True, False])
async def test_nothing_counts_as_revoked_in_a_database_that_replaces_one_of_the_same_name(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, installs: bool
) -> None:
    """Schema public has the same oid in every database. Without schema pgrole, memory holds what was applied."""
    monkeypatch.setattr(database_worker, "_SOONEST_SECONDS", 0.0)
    if not installs:
        world.config = replace(world.config, may_install=False, interval=0.2)
        await world.uninstall()
    world.declare(SchemaAccess("public", frozenset({Access.READ})), report_only=True)
    held = """
        SELECT EXISTS (
            SELECT FROM pg_namespace, aclexplode(nspacl) AS a WHERE nspname = 'public' AND a.grantee = $1::int8::oid
        )
    """
    async with world.working() as worker:
        await world.wait_settled()
        assert await world.hand.fetchval(held, world.oid)
        await world.hand.close()
        await world.home.execute(f"DROP DATABASE {world.database} WITH (FORCE)")
        await world.home.execute(f"CREATE DATABASE {world.database}")
        world.hand = await asyncpg.connect(world.server.dsn(database=world.database))
        worker.note_database()

        async def is_granted() -> bool:
            return bool(await world.hand.fetchval(held, world.oid))

        assert await reached(is_granted, DEADLINE)
        result = await world.wait(lambda result: result.error is None)
    assert (result.drift_count, result.reported) == (0, ())


async def test_the_worker_polls_where_it_may_not_install(world: DatabaseWorkerWorld) -> None:
    await world.poll_without_schema()
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is DatabaseMode.POLL
        assert await world.hand.fetchval("SELECT to_regnamespace('pgrole') IS NULL")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.wait(lambda result: result.drift_count == 1)
        assert not worker.memory.drifts.take_recorded()
        (drift,) = worker.memory.drifts.take_unstored()
    assert (drift.role, drift.database, drift.corrected) == (world.role, world.database, True)
    assert drift.words == ("UPDATE on table app.orders was granted",)
    assert drift.key


async def test_a_drift_of_unknown_author_has_the_time_of_the_server(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind, read = timedelta(days=365), DatabaseSession.read

    async def read_behind(*arguments: Any, **options: Any) -> Any:
        observed, stored = await read(*arguments, **options)
        return observed, replace(stored, at=stored.at - behind)

    async def find_nobody(*_: Any) -> dict[ChangedRow, DriftAuthor]:
        return {}

    monkeypatch.setattr(DatabaseSession, "read", read_behind)
    monkeypatch.setattr(DatabaseSession, "read_authors", find_nobody)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        began = await world.hand.fetchval("SELECT clock_timestamp()")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        (drift,) = (await world.wait(lambda result: result.drift_count == 1)).last_drifts
        assert began - behind <= drift.time <= await world.hand.fetchval("SELECT clock_timestamp()") - behind


async def test_a_column_that_gets_a_declared_name_is_noticed_by_polling(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the column's row shows it, which has no ACL."""
    monkeypatch.setattr(read_pace, "RETRY", Backoff(300.0, 300.0))
    world.config = replace(world.config, interval=0.1, databases=DatabasesConfig(("*",), detection=DatabaseMode.POLL))
    column = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}), ("name",))
    declared = DatabasePrivileges(world.database, objects=(column,))
    world.grantees.publish(SERVER, replace(world.declare(), declared={world.database: declared}))
    async with world.working():
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert "waiting for column app.orders.name" in result.error.message
        await anyio.sleep(1.0)  # nothing is left to notice
        await world.hand.execute("ALTER TABLE app.orders RENAME total TO name")
        await world.wait_settled()
        query = "SELECT has_column_privilege($1, 'app.orders', 'name', 'SELECT')"
        assert await world.hand.fetchval(query, world.role)


async def test_a_shorter_resync_interval_takes_effect_at_once(world: DatabaseWorkerWorld) -> None:
    databases = DatabasesConfig(("*",), detection=DatabaseMode.RESYNC)
    world.config = replace(world.config, databases=databases)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        world.config = replace(world.config, resync_seconds=0.2)
        worker.note_config()
        await anyio.sleep(0.5)  # what this read is over
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_a_long_round_does_not_delay_the_next_poll(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = DatabaseSession.read

    async def read_slowly(*arguments: Any) -> Any:
        await anyio.sleep(0.4)
        return await read(*arguments)

    monkeypatch.setattr(DatabaseSession, "read", read_slowly)
    databases = DatabasesConfig(("*",), detection=DatabaseMode.POLL)
    world.config = replace(world.config, interval=0.1, databases=databases)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await anyio.sleep(1.5)  # its own changes are read once more
        began = anyio.current_time()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        assert anyio.current_time() - began < LONGEST_PAUSE_SECONDS / 2


async def test_drift_is_not_corrected_while_suspended_or_report_only(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        world.suspended = True
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.SUSPENDED
        assert await world.may("UPDATE", "app.orders")
        world.suspended = False
        worker.note_everything()
        await world.wait_settled()
        assert not await world.may("UPDATE", "app.orders")
        world.declare(READ, report_only=True)
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: bool(result.reported))
        assert result.reported == ("UPDATE on table app.orders was granted",)
        assert result.declarable
        assert await world.may("UPDATE", "app.orders")


async def test_a_missing_routine_is_reported_with_the_routines_of_that_name(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute("CREATE FUNCTION app.close(bigint, app.items) RETURNS int LANGUAGE sql RETURN 1")
    routine = ObjectPrivileges(ObjectKind.ROUTINE, "app", ("close(bigint)",), frozenset({"EXECUTE"}))
    declared = DatabasePrivileges(world.database, objects=(routine,))
    world.grantees.publish(SERVER, replace(world.declare(), declared={world.database: declared}))
    async with world.working():
        result = await world.wait(lambda result: result.error is not None)
    assert result.error is not None
    assert "routine app.close(bigint) (there is close(bigint,app.items))" in result.error.message


async def test_everything_that_is_denied_or_missing_is_named_and_the_rest_is_granted(
    world: DatabaseWorkerWorld,
) -> None:
    await world.hand.execute("CREATE SCHEMA b; CREATE FUNCTION app.climb() RETURNS int LANGUAGE sql RETURN 1")
    await world.hand.execute("ALTER FUNCTION app.climb() SECURITY DEFINER")
    tables = ObjectPrivileges(ObjectKind.TABLE, "app", ("*",), frozenset({"SELECT", "TRIGGER", "REFERENCES"}))
    schemas = (SchemaAccess("app", frozenset({Access.EXECUTE})), *(SchemaAccess(one, READ.access) for one in "bc"))
    declared = DatabasePrivileges(world.database, frozenset({"CONNECT", "CREATE"}), schemas, (tables,), ("nobody",))
    rules = (PrivilegeRule(schemas=("a*", "")),)
    published = replace(world.declare(), declared={world.database: declared}, policy=replace(POLICY, rules=rules))
    world.grantees.publish(SERVER, published)
    async with world.working():
        error = (await world.wait(lambda result: result.error is not None)).error
        await world.wait_may("SELECT", "app.orders")
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.drift_count == 1)
    assert isinstance(error, Refused)
    assert result.error is error, "a later round reports no other error"
    assert error.reason is Reason.NOT_ALLOWED
    for words in (
        *("EXECUTE on routine app.climb()", "TRIGGER on table app.items", "REFERENCES on table app.items"),
        *("USAGE on schema b ", "CREATE on database", "waiting for role nobody (createdBy), schema c"),
    ):
        assert words in error.message, words
    assert error.message.index("waiting for") > error.message.index("USAGE on schema b ")


def note_scopes(monkeypatch: pytest.MonkeyPatch) -> list[Scope]:
    """Returns a list to which every later read adds its scope."""
    scopes: list[Scope] = []
    read = DatabaseSession.read

    async def note(session: DatabaseSession, roles: Any, reach: Any, to_read: PrivilegeRead, *a: Any, **o: Any) -> Any:
        scopes.append(to_read.scope)
        return await read(session, roles, reach, to_read, *a, **o)

    monkeypatch.setattr(DatabaseSession, "read", note)
    return scopes


def note_rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[Scope]]:
    """Returns a list to which every later round adds the scopes of its reads when it ends."""
    scopes, rounds = note_scopes(monkeypatch), list[list[Scope]]()

    async def note(*arguments: Any) -> Any:
        before = len(scopes)
        results = await run_round(*arguments)
        rounds.append(scopes[before:])
        return results

    monkeypatch.setattr(database_worker, "run_round", note)
    return rounds


@pytest.mark.parametrize("cause", ["reported", "failed", "contested"])
async def test_a_role_that_is_not_as_declared_causes_no_full_read_for_unrelated_changes(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    for name in ("RETRY", "LOCK_RETRY"):
        monkeypatch.setattr(read_pace, name, Backoff(3600.0, 3600.0))
    for name in ("_REST_TIMES", "_LONGEST_REST"):
        monkeypatch.setattr(read_pace, name, 1e9)
    monkeypatch.setattr(contests, "FIRST_DELAY", 3600.0)
    await world.hand.execute("CREATE SCHEMA elsewhere")
    world.declare(READ, report_only=cause == "reported")
    world.declare_other(SchemaAccess("elsewhere", READ.access))
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working() as worker:
        await world.wait_settled()
        rounds = note_rounds(monkeypatch)
        grant = f"GRANT UPDATE ON app.orders TO {world.role}"
        if cause == "contested":
            await contest(world)
        elif cause == "failed":
            await other.execute("BEGIN; LOCK TABLE app.orders IN SHARE UPDATE EXCLUSIVE MODE")
        await world.hand.execute(grant)
        await world.wait(lambda result: bool(result.reported) or result.error is not None)
        before = world.result
        assert before is not None
        await world.hand.execute("CREATE TABLE elsewhere.first (id int)")
        await world.wait_may("SELECT", "elsewhere.first", role=world.other)

        async def was_read() -> bool:
            return any(Scope.FULL in one for one in rounds)

        assert await reached(was_read, DEADLINE), "nothing was read for the role"
        del rounds[:]
        await world.hand.execute("CREATE TABLE elsewhere.second (id int); CREATE TABLE app.others (id int)")
        await world.wait_may("SELECT", "elsewhere.second", role=world.other)
        await world.wait_may("SELECT", "app.others")
        await world.hand.execute(f"GRANT UPDATE ON elsewhere.second TO {world.other}")
        await world.wait_may("UPDATE", "elsewhere.second", role=world.other, expected=False)
        assert rounds
        assert not await was_read()
        now = world.result
        assert now is not None
        assert (now.reported, now.error) == (before.reported, before.error)
        await other.execute("ROLLBACK")
        await world.hand.execute(f"REVOKE UPDATE ON app.orders FROM {world.role}")
        worker.note_everything()
        if cause != "contested":
            await world.wait(lambda result: result.error is None and not result.reported)
    await other.close()


async def test_a_drop_causes_a_full_read_only_if_a_declaration_may_now_wait_for_the_object(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await world.hand.execute("CREATE SCHEMA elsewhere; CREATE INDEX one ON app.orders (id)")
    items = ObjectPrivileges(ObjectKind.TABLE, "app", ("items",), frozenset({"SELECT"}))
    named = DatabasePrivileges(world.database, objects=(items,))
    plain = world.declare(READ, SchemaAccess("elsewhere", READ.access))
    async with world.working():
        await world.wait_settled()
        scopes = note_scopes(monkeypatch)
        await world.hand.execute("DROP INDEX app.one; ALTER TABLE app.orders DROP COLUMN total; DROP TABLE app.orders")
        await world.hand.execute("CREATE TABLE app.later (id int)")
        await world.wait_may("SELECT", "app.later")
        assert scopes
        assert Scope.FULL not in scopes
        await world.hand.execute("DROP SCHEMA elsewhere")
        await world.wait(lambda result: result.error is not None and "elsewhere" in result.error.message)
        world.grantees.publish(SERVER, replace(plain, declared={world.database: named}))
        await world.wait_settled()
        await world.hand.execute("DROP TABLE app.items")
        await world.wait(lambda result: result.error is not None and "app.items" in result.error.message)


@pytest.mark.parametrize("change", ["RENAME TO renamed", "SET SCHEMA elsewhere"])
async def test_after_a_rename_a_declaration_that_names_the_object_waits_for_it(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await world.hand.execute("CREATE SCHEMA elsewhere; CREATE TABLE app.first (id int)")
    items = ObjectPrivileges(ObjectKind.TABLE, "app", ("items",), frozenset({"SELECT"}))
    plain = world.declare(READ)
    async with world.working():
        await world.wait_settled()
        scopes = note_scopes(monkeypatch)
        await world.hand.execute(f"ALTER TABLE app.first {change}; CREATE TABLE app.later (id int)")
        await world.wait_may("SELECT", "app.later")
        assert Scope.FULL not in scopes
        world.grantees.publish(
            SERVER, replace(plain, declared={world.database: DatabasePrivileges(world.database, objects=(items,))})
        )
        await world.wait_settled()
        await world.hand.execute(f"ALTER TABLE app.items {change.replace('renamed', 'other')}")
        await world.wait(lambda result: result.error is not None and "app.items" in result.error.message)


@pytest.mark.parametrize("change", ["RENAME TO renamed", "OWNER TO pg_database_owner", "SET SCHEMA elsewhere"])
async def test_what_is_reported_as_revoked_stays_so_if_the_object_is_renamed_or_gets_another_owner(
    world: DatabaseWorkerWorld, change: str
) -> None:
    await world.hand.execute("CREATE SCHEMA elsewhere")
    world.declare(READ, SchemaAccess("elsewhere", READ.access), report_only=True)
    oid = await world.hand.fetchval("SELECT 'app.items'::regclass::oid")
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"REVOKE SELECT ON app.items FROM {world.role}")
        await world.wait(lambda result: any("app.items was revoked" in one for one in result.reported))
        await world.hand.execute(f"ALTER TABLE app.items {change}; CREATE TABLE app.later (id int)")
        await world.wait_may("SELECT", "app.later")
        await world.wait(lambda result: any("was revoked" in one for one in result.reported))
        query = "SELECT has_table_privilege($1::name, $2::oid, 'SELECT')"
        assert not await world.hand.fetchval(query, world.role, oid)


async def test_a_waiting_role_causes_no_full_read_for_unrelated_changes(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_pace, "RETRY", Backoff(3600.0, 3600.0))
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await world.hand.execute("CREATE SCHEMA elsewhere")
    later = ObjectPrivileges(ObjectKind.TABLE, "app", ("later",), frozenset({"SELECT"}))
    declared = DatabasePrivileges(world.database, schemas=(SchemaAccess("absent", READ.access),), objects=(later,))
    waiting = replace(world.declare(), declared={world.database: declared})
    world.grantees.publish(SERVER, waiting)
    world.declare_other(SchemaAccess("elsewhere", READ.access))
    async with world.working():
        await world.wait(lambda result: result.error is not None)
        await world.hand.execute("CREATE TABLE elsewhere.first (id int)")
        await world.wait_may("SELECT", "elsewhere.first", role=world.other)
        scopes = note_scopes(monkeypatch)
        await world.hand.execute("CREATE TABLE elsewhere.second (id int); CREATE TABLE app.others (id int)")
        await world.wait_may("SELECT", "elsewhere.second", role=world.other)
        await world.hand.execute(f"GRANT UPDATE ON elsewhere.second TO {world.other}")
        await world.wait_may("UPDATE", "elsewhere.second", role=world.other, expected=False)
        assert scopes
        assert Scope.FULL not in scopes
        await world.hand.execute("CREATE SCHEMA absent")
        await world.wait(lambda result: result.error is not None and "absent" not in result.error.message)
        # The awaited table appears with its privileges: nothing is left to grant, but the result changes.
        async with world.hand.transaction():
            await world.hand.execute("CREATE TABLE app.later (id int)")
            await world.hand.execute(f"GRANT SELECT ON app.later TO {world.role}")
        await world.wait_settled()


async def test_adding_a_declared_column_and_changing_a_tables_owner_are_not_drift(
    world: DatabaseWorkerWorld,
) -> None:
    column = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"UPDATE"}), ("note",))
    declared = DatabasePrivileges(world.database, schemas=(READ,), objects=(column,))
    plain = replace(world.declare(READ, report_only=True), declared={world.database: declared})
    world.grantees.publish(SERVER, plain)
    async with world.working():
        await world.wait(lambda result: result.error is not None)
        await world.hand.execute("ALTER TABLE app.orders ADD COLUMN note text")
        result = await world.wait_settled()
        assert result.reported == ()
        query = "SELECT has_column_privilege($1, 'app.orders', 'note', 'UPDATE')"
        assert await world.hand.fetchval(query, world.role)
        await world.hand.execute(f"ALTER TABLE app.items OWNER TO {world.role}; CREATE TABLE app.others (id int)")
        await world.wait_may("SELECT", "app.others")
        await world.hand.execute("ALTER TABLE app.items OWNER TO postgres")
        await world.wait_may("SELECT", "app.items")
        result = await world.wait_settled()
    assert result.reported == ()


@pytest.mark.parametrize("restarted", ["", "while denied", "meanwhile"])
async def test_a_privilege_that_policy_denied_and_later_allows_is_not_drift(
    world: DatabaseWorkerWorld, restarted: str
) -> None:
    await world.hand.execute("CREATE SCHEMA b; CREATE TABLE b.denied (id int)")
    declared = world.declare(READ, SchemaAccess("b", frozenset({Access.READ})), report_only=True)
    denied = replace(declared, policy=replace(POLICY, rules=(PrivilegeRule(schemas=("app",)),)))

    async def wait_denied() -> None:
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.NOT_ALLOWED)

    world.grantees.publish(SERVER, denied)
    async with world.working():
        await wait_denied()
        assert await world.may("SELECT", "app.orders")
        await world.hand.execute(f"REVOKE SELECT ON app.items FROM {world.role}")
        await world.wait(lambda result: result.reported == ("SELECT on table app.items was revoked",))
        if not restarted:
            world.grantees.publish(SERVER, declared)
            await world.wait_may("SELECT", "b.denied")
            await world.wait_settled()
    if restarted:
        world.grantees = Grantees()
        world.grantees.publish(SERVER, denied if restarted == "while denied" else declared)
        async with world.working():
            if restarted == "while denied":
                await wait_denied()
                world.grantees.publish(SERVER, declared)
            await world.wait_may("SELECT", "b.denied")
            result = await world.wait_settled()
    result = await world.wait_settled()
    assert result.reported == ("SELECT on table app.items was revoked",)
    assert not await world.may("SELECT", "app.items")
    assert result.drift_count == 0
    notes = [note for reason, note in world.news() if reason is News.PRIVILEGES_EXTENDED]
    assert any("b.denied" in note for note in notes)
    query = "SELECT digest FROM pgrole.applied WHERE role_oid = $1"
    stored, _ = split_origin(await world.hand.fetchval(query, world.oid))
    assert stored == declared.digest_of(world.database)


async def test_a_denied_privilege_whose_grant_fails_at_first_is_not_drift(world: DatabaseWorkerWorld) -> None:
    declared = world.declare(READ, report_only=True)
    world.grantees.publish(SERVER, replace(declared, policy=replace(POLICY, rules=())))
    async with world.working() as worker:
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.NOT_ALLOWED)
        async with world.hand.transaction():
            await world.hand.execute("LOCK TABLE app.orders IN ACCESS EXCLUSIVE MODE")
            world.grantees.publish(SERVER, declared)
            await world.wait(lambda result: result.error is not None and result.error.reason is Reason.PROGRESSING)
        worker.note_everything()
        result = await world.wait_settled()
        assert await world.may("SELECT", "app.orders")
    assert (result.reported, result.drift_count) == ((), 0)


async def test_what_policy_denies_by_now_stays_on_a_column_although_a_grant_on_its_table_is_revoked(
    world: DatabaseWorkerWorld,
) -> None:
    table = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}), ("id",))
    plain = world.declare()
    plain = replace(plain, declared={world.database: replace(plain.declared[world.database], objects=(table,))})
    world.grantees.publish(SERVER, plain)
    async with world.working():
        await world.wait_settled()
        world.grantees.publish(SERVER, replace(plain, policy=replace(POLICY, rules=())))
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.NOT_ALLOWED)
        await world.hand.execute(f"GRANT SELECT ON app.orders TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
    assert not await world.may("SELECT", "app.orders")
    assert await world.hand.fetchval("SELECT has_column_privilege($1, 'app.orders', 'id', 'SELECT')", world.role)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_waiting_privilege_of_an_ignored_role_is_granted_once(
    world: DatabaseWorkerWorld, restarted: bool
) -> None:
    later = SchemaAccess("later", frozenset({Access.READ}))
    plain = replace(world.declare(READ, later), ignored=True)
    world.grantees.publish(SERVER, plain)
    create = "CREATE SCHEMA later; CREATE TABLE later.a (id int)"
    async with world.working() as worker:
        await world.wait(lambda result: result.error is not None and "schema later" in result.error.message)
        await world.hand.execute(
            f"GRANT UPDATE ON app.orders TO {world.role}; REVOKE SELECT ON app.items FROM {world.role}"
        )
        if not restarted:
            await world.hand.execute(create)
            await world.wait_may("SELECT", "later.a")
            await world.wait_settled()
            await world.hand.execute(f"REVOKE SELECT ON later.a FROM {world.role}")
            changed = replace(plain, generation=2, declared=world.declare(READ, WRITE).declared)
            world.grantees.publish(SERVER, changed)
            other = world.declare_other(READ, later)
            await world.wait_may("SELECT", "later.a", role=other)
            worker.note_everything()
            await world.wait_settled()
            assert not await world.may("SELECT", "later.a")
            assert not await world.may("DELETE", "app.orders")
    if restarted:
        await world.hand.execute(create)
        world.grantees = Grantees()
        world.grantees.publish(SERVER, plain)
        async with world.working():
            await world.wait_may("SELECT", "later.a")
            await world.wait_settled()
    assert await world.may("UPDATE", "app.orders")
    assert not await world.may("SELECT", "app.items")
    assert world.result is not None
    assert (world.result.drift_count, world.result.reported) == (0, ())


async def test_a_column_that_a_table_of_a_pattern_gets_later_is_granted_once_under_report(
    world: DatabaseWorkerWorld,
) -> None:
    table = ObjectPrivileges(ObjectKind.TABLE, "a*", ("orders",), frozenset({"SELECT"}), ("id", "name"))
    one = world.declare(report_only=True)
    declared = {world.database: replace(one.declared[world.database], objects=(table,))}
    world.grantees.publish(SERVER, replace(one, declared=declared))

    async def is_granted() -> bool:
        query = "SELECT has_column_privilege($1, 'app.orders', 'name', 'SELECT')"
        return bool(await world.hand.fetchval(query, world.role))

    async def is_settled() -> bool:
        query = "SELECT split_part(digest, ' ', 2) LIKE '@%' FROM pgrole.applied WHERE role_name = $1"
        return bool(await world.hand.fetchval(query, world.role))

    async with world.working():
        await world.wait_settled()
        await world.hand.execute("ALTER TABLE app.orders ADD COLUMN name text")
        assert await reached(is_granted, DEADLINE), world.result
        assert await reached(is_settled, DEADLINE)
        await world.hand.execute(f"REVOKE SELECT (name) ON app.orders FROM {world.role}")
        result = await world.wait(lambda result: bool(result.reported))
    assert result.reported == ("SELECT on column app.orders.name was revoked",)
    assert not await is_granted()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("ignored", [False, True])
async def test_what_policy_denied_is_granted_once_when_its_object_makes_it_possible(
    world: DatabaseWorkerWorld, *, restarted: bool, ignored: bool
) -> None:
    """A role of the namespace becomes the owner of one of two tables that policy denies for their owner."""
    table = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders", "items"), frozenset({"SELECT"}))
    declared = replace(world.declare().declared[world.database], objects=(table,))
    one = replace(world.declare(), declared={world.database: declared}, policy=replace(POLICY, rules=None))
    one = replace(one, owned=frozenset({world.oid, world.other_oid}), ignored=ignored, report_only=not ignored)
    world.grantees.publish(SERVER, one)
    change = f"ALTER TABLE app.orders OWNER TO {world.other}"
    async with world.working():
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.NOT_ALLOWED)
        if not restarted:
            await world.hand.execute(change)
            await world.wait_may("SELECT", "app.orders")
    if restarted:
        await world.hand.execute(change)
        world.grantees = Grantees()
        world.grantees.publish(SERVER, one)
        async with world.working():
            await world.wait_may("SELECT", "app.orders")
            await world.wait(lambda result: result.error is not None)
    assert not await world.may("SELECT", "app.items")
    assert world.result is not None
    assert (world.result.drift_count, world.result.reported) == (0, ())


async def test_a_repair_that_something_keeps_undoing_is_delayed_and_others_are_not(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        for _ in range(5):
            count = world.result.drift_count if world.result else 0
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_more_drifts(count)
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.CONTESTED
        await world.hand.execute("CREATE TABLE app.others (id int)")
        await world.wait_may("SELECT", "app.others")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def contest(world: DatabaseWorkerWorld) -> None:
    """Undoes the same repair until the worker holds it back."""
    for _ in range(5):
        count = world.result.drift_count if world.result else 0
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_more_drifts(count)
    await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
    await world.wait(lambda result: result.error is not None and result.error.reason is Reason.CONTESTED)


async def test_a_new_object_is_granted_and_no_drift_although_a_grant_on_it_is_contested(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contests, "FIRST_DELAY", 600.0)
    plain = world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await contest(world)
        await world.hand.execute(f"CREATE TABLE app.others (id int); GRANT UPDATE ON app.others TO {world.role}")
        await world.wait_may("SELECT", "app.others")
        assert await world.may("UPDATE", "app.others")
        world.grantees.publish(SERVER, replace(plain, generation=2))  # ends the contest
        await world.wait_may("UPDATE", "app.others", expected=False)
        await world.wait_settled()
    assert world.result is not None
    drifts = world.result.last_drifts
    words = {word for drift in drifts for word in drift.words}
    assert words == {"UPDATE on table app.orders was granted", "UPDATE on table app.others was granted"}
    assert {drift.by.proof for drift in drifts} == {Evidence.TRANSACTION}


async def test_default_privileges_in_a_new_schema_are_set_although_others_of_their_creator_are_contested(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contests, "FIRST_DELAY", 600.0)
    creator = await declare_with_creator(world, SchemaAccess("later", READ.access))
    again = f"ALTER DEFAULT PRIVILEGES FOR ROLE {creator} IN SCHEMA app GRANT INSERT ON TABLES TO {world.role}"
    async with world.working():
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.PRIVILEGE_PENDING)
        for count in range(5):
            await world.hand.execute(again)
            await world.wait_more_drifts(count)
        await world.hand.execute(again)
        await world.wait(lambda result: result.error is not None and result.error.reason is Reason.CONTESTED)
        await world.hand.execute("CREATE SCHEMA later; CREATE TABLE later.one (id int)")
        await world.wait_may("SELECT", "later.one")
        query = "SELECT defaclnamespace::regnamespace::text, defaclacl::text FROM pg_default_acl"

        async def is_set() -> bool:
            acls = {(schema, "=r/" in acl, "=ar/" in acl) for schema, acl in await world.hand.fetch(query)}
            return {("later", True, False), ("app", False, True)} <= acls

        assert await reached(is_set, DEADLINE), await world.hand.fetch(query)
    await world.hand.execute(f"DROP OWNED BY {creator}")
    await world.home.execute(f"DROP ROLE {creator}")


async def test_any_change_of_the_spec_ends_a_contest(world: DatabaseWorkerWorld) -> None:
    plain = world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await contest(world)
        world.grantees.publish(SERVER, replace(plain, generation=2, ignored=True))
        result = await world.wait(lambda result: result.error is None)
        assert result.reported == ()
        assert await world.may("UPDATE", "app.orders")
        world.grantees.publish(SERVER, replace(plain, generation=3, report_only=True))
        await world.wait(lambda result: result.reported == ("UPDATE on table app.orders was granted",))
        world.grantees.publish(SERVER, replace(plain, generation=4))
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.wait_settled()


@pytest.mark.parametrize(
    ("again", "other", "held"),
    [
        (
            "SET ROLE {one}; GRANT INSERT ON app.orders TO {reader}; RESET ROLE",
            "GRANT DELETE ON app.orders TO {reader}",
            "has_table_privilege('{reader}', 'app.orders', '{privilege}')",
        ),
        (
            "ALTER DEFAULT PRIVILEGES FOR ROLE {one} IN SCHEMA app GRANT INSERT ON TABLES TO {reader}",
            "ALTER DEFAULT PRIVILEGES FOR ROLE {two} IN SCHEMA app GRANT DELETE ON TABLES TO {reader}",
            "EXISTS (SELECT FROM pg_default_acl AS d, aclexplode(d.defaclacl) AS a"
            " WHERE a.grantee = '{reader}'::regrole AND a.privilege_type = '{privilege}')",
        ),
    ],
)
async def test_a_contest_delays_only_repairs_with_the_same_grantor(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, again: str, other: str, held: str
) -> None:
    monkeypatch.setattr(contests, "FIRST_DELAY", 600.0)
    names = {"reader": world.role, "one": f"{world.database}_one", "two": f"{world.database}_two"}
    await world.hand.execute(
        "CREATE ROLE {one}; CREATE ROLE {two}; GRANT USAGE ON SCHEMA app TO {one};"
        "GRANT INSERT ON app.orders TO {one} WITH GRANT OPTION".format(**names)
    )
    world.declare()

    async def is_revoked(privilege: str) -> bool:
        return not await world.hand.fetchval(f"SELECT {held.format(**names, privilege=privilege)}")

    async with world.working():
        await world.wait_settled()
        for count in range(5):
            await world.hand.execute(again.format(**names))
            await world.wait_more_drifts(count)
        await world.hand.execute(again.format(**names))
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.CONTESTED
        await world.hand.execute(other.format(**names))
        assert await reached(lambda: is_revoked("DELETE"), DEADLINE)
        assert not await is_revoked("INSERT")
    await world.hand.execute("DROP OWNED BY {one}, {two}; DROP ROLE {one}, {two}".format(**names))


async def test_a_notification_is_enough_to_notice_a_drift(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "UNEXPLAINED_SECONDS", 3600.0)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_the_worker_needs_no_notification_where_transactions_can_be_prepared(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searches, "UNEXPLAINED_SECONDS", 3600.0)
    async with servers.run({"max_prepared_transactions": "5"}) as own, make_world(own) as world:
        world.declare(READ)
        async with world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.EVENTS
            await world.hand.execute(f"BEGIN; GRANT UPDATE ON app.orders TO {world.role}; PREPARE TRANSACTION 'later'")
            await world.hand.execute("COMMIT PREPARED 'later'")
            await world.wait_may("UPDATE", "app.orders", expected=False)
            await world.wait(lambda result: result.drift_count == 1)


@pytest.mark.since(17, "max_notify_queue_pages: before, the queue has 8 GB")
async def test_drift_is_corrected_while_the_servers_notification_queue_is_nearly_full(servers: Servers) -> None:
    async with servers.run({"max_notify_queue_pages": "64"}) as own, make_world(own) as world:
        world.declare(READ)
        async with world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.EVENTS
            async with full_queue(own):
                await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
                await world.wait_may("UPDATE", "app.orders", expected=False)
                await world.wait(lambda result: result.drift_count == 1)


async def test_report_only_applies_to_changes_that_an_event_names(world: DatabaseWorkerWorld) -> None:
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: bool(result.reported))
        assert result.error is None
        await world.hand.execute(f"REVOKE UPDATE ON app.orders FROM {world.role}")
        await world.wait(lambda result: not result.reported)


async def test_an_approval_corrects_a_drift_once_and_the_next_worker_does_not_reuse_it(
    world: DatabaseWorkerWorld,
) -> None:
    plain = world.declare(READ, report_only=True)
    drift = f"GRANT UPDATE, DELETE ON app.orders TO {world.role}"
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(drift)
        offer = (await world.wait(lambda result: result.offer is not None)).offer
        assert offer is not None
        approval = read_approval(f"{offer.digest}/ticket-7")
        approved = replace(plain, approval=approval)
        world.grantees.publish(SERVER, approved)
        result = await world.wait(lambda result: result.approve_handled == approval.value and not result.reported)
        assert (result.offer, result.unfit, result.drift_count) == (None, False, 1)
        assert not await world.may("DELETE", "app.orders")
        assert any(
            '"ticket-7" is unverified' in note for reason, note in world.news() if reason is News.DRIFT_CORRECTED
        )
        await world.hand.execute(drift)
        await world.wait(lambda result: result.offer == offer)
    world.grantees.withdraw(SERVER, KEY)
    world.grantees.publish(SERVER, approved)
    async with world.working() as worker:
        await world.wait(lambda result: result.offer == offer)
        worker.note_everything()
        await world.hand.execute("CREATE TABLE app.later (id int)")
        await world.wait_may("SELECT", "app.later")
        assert await world.may("DELETE", "app.orders")
        world.grantees.publish(SERVER, replace(plain, approval=read_approval(f"{offer.digest}/ticket-8")))
        await world.wait_may("DELETE", "app.orders", expected=False)


async def test_an_approval_of_another_drift_is_reported_and_corrects_nothing(world: DatabaseWorkerWorld) -> None:
    plain = world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        offer = (await world.wait(lambda result: result.offer is not None)).offer
        assert offer is not None
        await world.hand.execute(f"GRANT UPDATE ON app.items TO {world.role}")
        await world.wait(lambda result: result.offer not in (None, offer))
        world.grantees.publish(SERVER, replace(plain, approval=read_approval(f"{offer.digest}/x")))
        result = await world.wait(lambda result: result.unfit)
        assert len(result.reported) == 2
        assert result.approve_handled == ""
        assert await world.may("UPDATE", "app.orders")


async def test_an_approval_is_spent_even_if_only_part_of_the_drift_was_corrected(world: DatabaseWorkerWorld) -> None:
    plain = world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders, app.items TO {world.role}")
        offer = (await world.wait(lambda result: len(result.reported) == 2 and result.offer is not None)).offer
        assert offer is not None
        async with world.hand.transaction():
            await world.hand.execute("LOCK TABLE app.items IN ACCESS EXCLUSIVE MODE")
            approval = read_approval(f"{offer.digest}/x")
            world.grantees.publish(SERVER, replace(plain, approval=approval))
            await world.wait(lambda result: result.error is not None)
        result = await world.wait(lambda result: result.error is None and len(result.reported) == 1)
        assert result.approve_handled == approval.value
        assert not await world.may("UPDATE", "app.orders")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait(lambda result: result.offer == offer)
        assert await world.may("UPDATE", "app.orders")


async def test_a_privilege_that_cannot_be_declared_is_reported_with_the_reason(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    await world.hand.execute("CREATE TYPE app.mood AS ENUM ()")
    async with world.working():
        await world.wait_settled()
        world.news()
        await world.hand.execute(f"GRANT USAGE ON TYPE app.mood TO {world.role}")
        result = await world.wait(lambda result: bool(result.reported))
        assert not result.declarable
    ((reason, note),) = world.news()
    assert reason is News.DRIFT_REPORTED
    assert note.endswith("not corrected, since no PgRole can declare it: revoke it if it is not wanted")


async def test_a_reported_drift_that_another_repeats_is_recorded_as_theirs_and_by_no_restart_again(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ, report_only=True)
    change, to_read = "DELETE ON app.orders {} " + world.role, "SELECT login, count FROM pgrole.history ORDER BY at"
    expected = [(world.alice, 1)]

    async def is_recorded() -> bool:
        return [tuple(row) for row in await world.hand.fetch(to_read)] == expected

    async def restart() -> None:
        async with world.working() as worker:

            async def is_repeated() -> bool:
                return worker.memory.drifts.take_recorded()

            assert await reached(is_repeated, DEADLINE)
            assert await is_recorded(), await world.hand.fetch(to_read)

    async with world.working() as worker:
        await world.wait_settled()
        await as_alice(world, f"GRANT {change.format('TO')}")
        assert await reached(is_recorded, DEADLINE)
        await world.hand.execute(f"REVOKE {change.format('FROM')}")
        await world.wait(lambda result: not result.reported)
        await world.hand.execute(f"GRANT {change.format('TO')}")
        expected.append(("postgres", 1))
        assert await reached(is_recorded, DEADLINE), await world.hand.fetch(to_read)
        assert worker.memory.drifts.take_recorded()
    await restart()
    await world.hand.execute("DELETE FROM pgrole.ddl_event")
    await restart()


async def test_a_reported_drift_is_recorded_once_even_after_a_restart(world: DatabaseWorkerWorld) -> None:
    world.declare(READ, report_only=True)
    to_read = "SELECT fields, details ->> 'words', corrected, count FROM pgrole.history"
    expected = [(["privileges"], '["UPDATE on table app.orders was granted"]', False, 1)]

    async def is_recorded() -> bool:
        return [tuple(row) for row in await world.hand.fetch(to_read)] == expected

    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        assert await reached(is_recorded, DEADLINE)
        assert worker.memory.drifts.take_recorded()
        assert not worker.memory.drifts.take_recorded()
        worker.note_everything()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait(lambda result: len(result.reported) == 2)
    await world.hand.execute("DELETE FROM pgrole.drift_history WHERE details::text NOT LIKE '%UPDATE%'")
    await world.hand.execute(f"REVOKE DELETE ON app.orders FROM {world.role}")
    async with world.working() as worker:

        async def is_repeated() -> bool:
            return worker.memory.drifts.take_recorded()

        assert await reached(is_repeated, DEADLINE)
        assert await is_recorded()
    news = [*world.announced, *world.grantees.take_news(SERVER, KEY)]
    told = [one.first for one in news if one.reason is News.DRIFT_REPORTED]
    assert told == [False, False, True], "only what the first read of a process finds may be announced already"


async def test_drift_of_default_privileges_is_corrected(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT INSERT ON TABLES TO {world.role}")
        await world.wait(lambda result: result.drift_count == 1)
        assert not await world.hand.fetchval("SELECT count(*) FROM pg_default_acl")


async def test_the_next_session_installs_a_dropped_schema_again(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute("DROP SCHEMA pgrole CASCADE")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.home.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = $1 AND application_name = 'pgrole-controller database'",
            world.database,
        )
        await world.wait_may("UPDATE", "app.orders", expected=False)
        assert await world.hand.fetchval("SELECT count(*) = 2 FROM pg_event_trigger WHERE evtname LIKE 'pgrole%'")


async def as_alice(world: DatabaseWorkerWorld, statement: str) -> None:
    alice = await asyncpg.connect(world.server.dsn(world.alice, password="a", database=world.database))
    await alice.execute(statement)
    await alice.close()


@pytest.mark.parametrize("report_only", [False, True])
async def test_revokes_while_no_controller_ran_are_drift_and_new_objects_are_not(
    world: DatabaseWorkerWorld, report_only: bool
) -> None:
    await world.hand.execute("CREATE SEQUENCE app.numbers; CREATE VIEW app.shown AS SELECT 1 AS one")
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
    await as_alice(
        world,
        f"REVOKE SELECT ON app.orders, app.shown FROM {world.role}; REVOKE USAGE ON SCHEMA app FROM {world.role};"
        f"REVOKE SELECT ON SEQUENCE app.numbers FROM {world.role}; CREATE TABLE app.new_one ();"
        f"GRANT SELECT ON app.new_one TO {world.alice}; CREATE VIEW app.new_view AS SELECT 1 AS one",
    )
    world.grantees = Grantees()
    world.declare(READ, report_only=report_only)
    async with world.working():
        result = await world.wait(lambda result: result.last_drift is not None)
        await world.wait_may("SELECT", "app.new_one")
        news = world.news()
    assert result.last_drift is not None
    assert sorted(result.last_drift.words) == [
        "SELECT on sequence app.numbers was revoked",
        "SELECT on table app.orders was revoked",
        "SELECT on view app.shown was revoked",
        "USAGE on schema app was revoked",
    ]
    assert result.last_drift.corrected is not report_only
    assert (result.last_drift.by.login, result.last_drift.by.proof) == (world.alice, Evidence.TRANSACTION)
    (extension,) = [note for reason, note in news if reason is News.PRIVILEGES_EXTENDED]
    assert "app.new_one" in extension
    assert "app.new_view" in extension
    assert "app.orders" not in extension
    assert await world.may("SELECT", "app.orders") is not report_only


async def test_reported_drift_is_attributed(world: DatabaseWorkerWorld) -> None:
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        await as_alice(world, f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.last_drift is not None)
        news = world.news()

        async def is_recorded() -> bool:
            return bool(await world.hand.fetchval("SELECT count(*) FROM pgrole.history"))

        assert await reached(is_recorded, DEADLINE)
    assert result.last_drift is not None
    assert not result.last_drift.corrected
    assert (result.last_drift.by.login, result.last_drift.by.proof) == (world.alice, Evidence.TRANSACTION)
    ((reason, note),) = [one for one in news if one[0] is not News.PRIVILEGES_EXTENDED]
    assert reason is News.DRIFT_REPORTED
    assert f"was granted by {world.alice}" in note
    assert await world.hand.fetchval("SELECT login FROM pgrole.history") == world.alice


async def declare_with_creator(world: DatabaseWorkerWorld, *schemas: SchemaAccess) -> str:
    """Declares default privileges, too. Returns the role whose future objects they are about."""
    creator = f"{world.database}_creator"
    await world.home.execute(f"CREATE ROLE {creator}")
    declared = replace(DatabasePrivileges(world.database, schemas=(READ, *schemas)), created_by=(creator,))
    policy = replace(POLICY, rules=(PrivilegeRule(), PrivilegeRule(owned_by=(creator,))))
    grantee = Grantee(KEY, "uid-1", 1, world.role, world.oid, {world.database: declared}, policy=policy)
    world.grantees.publish(SERVER, grantee)
    return creator


async def test_drift_of_default_privileges_is_attributed(world: DatabaseWorkerWorld) -> None:
    creator = await declare_with_creator(world)
    change = f"ALTER DEFAULT PRIVILEGES FOR ROLE {creator} IN SCHEMA app"
    async with world.working():
        await world.wait_settled()
        await as_alice(world, f"{change} GRANT INSERT ON TABLES TO {world.role}")
        granted = await world.wait(lambda result: result.drift_count == 1)
        assert granted.last_drift is not None
        assert (granted.last_drift.by.login, granted.last_drift.by.proof) == (world.alice, Evidence.TRANSACTION)
        # the row was deleted: only the last matching event is known
        await as_alice(world, f"{change} REVOKE SELECT ON TABLES FROM {world.role}")
        revoked = await world.wait(lambda result: result.drift_count == 2)
        assert revoked.last_drift is not None
        assert (revoked.last_drift.by.login, revoked.last_drift.by.proof) == (world.alice, Evidence.SESSION)
    await world.hand.execute(f"DROP OWNED BY {creator}")
    await world.home.execute(f"DROP ROLE {creator}")


async def test_two_people_in_one_round_are_both_named(world: DatabaseWorkerWorld) -> None:
    bob = world.role.replace("reader", "bob")
    await world.home.execute(f"CREATE ROLE {bob} LOGIN SUPERUSER PASSWORD 'a'")
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
    await as_alice(world, f"GRANT DELETE ON app.orders TO {world.role}")
    session = await asyncpg.connect(world.server.dsn(bob, password="a", database=world.database))
    await session.execute(f"GRANT DELETE ON app.items TO {world.role}")
    await session.close()
    async with world.working():
        result = await world.wait(lambda result: result.drift_count == 1)
    assert [one.by.login for one in result.last_drifts] == [world.alice, bob]
    combined = combine_drifts(result.last_drifts)
    assert combined.words == (
        "DELETE on table app.items was granted",
        f"DELETE on table app.orders was granted by {world.alice}",
    )
    assert combined.by.login == bob
    await world.home.execute(f"DROP ROLE {bob}")


@asynccontextmanager
async def logged_in_as_bob(world: DatabaseWorkerWorld) -> AsyncIterator[Connection]:
    bob = world.role.replace("reader", "bob")
    await world.home.execute(f"CREATE ROLE {bob} LOGIN SUPERUSER PASSWORD 'a'")
    session = await asyncpg.connect(world.server.dsn(bob, password="a", database=world.database))
    try:
        yield session
    finally:
        await session.close()
        await world.hand.execute(f"DROP OWNED BY {bob}; DROP ROLE {bob}")


async def attribute(
    world: DatabaseWorkerWorld,
    monkeypatch: pytest.MonkeyPatch,
    statements: Sequence[tuple[Connection | None, str]],
    *,
    live: bool,
) -> dict[str, tuple[str, Evidence]]:
    """By its words, who caused each drift. `None` stands for alice. `live`: the worker reads once all have committed;
    otherwise it starts afterwards.
    """
    sessions = note_sessions(monkeypatch)
    grantees = [one for key in (KEY, OTHER) if (one := world.grantees.get(SERVER, key)) is not None]
    world.grantees = Grantees()  # without earlier results
    for grantee in grantees:
        world.grantees.publish(SERVER, grantee)

    async def change() -> None:
        for session, statement in statements:
            if session is None:
                await as_alice(world, statement.format(role=world.role))
            else:
                await session.execute(statement.format(role=world.role))

    async with world.working():
        result = await world.wait_settled()
        count = result.drift_count
        if live:
            async with sessions[0].lock:
                await change()
            await world.wait_more_drifts(count)
    if not live:
        await change()
        async with world.working():
            await world.wait_more_drifts(count)
    assert world.result is not None
    return {words: (one.by.login, one.by.proof) for one in world.result.last_drifts for words in one.words}


DELETE_GRANTED = "DELETE on table app.orders was granted"


async def renew_orders(world: DatabaseWorkerWorld) -> None:
    """Replaces table app.orders and forgets what happened and was applied before, as in a new database."""
    await world.hand.execute(
        "DELETE FROM pgrole.ddl_event; DELETE FROM pgrole.applied;"
        "DROP TABLE app.orders; CREATE TABLE app.orders (id int, total int, name text)"
    )


#: Whether a controller runs while the changes are made. `make test` tries only that.
LIVE = pytest.mark.parametrize("live", [pytest.param(False, marks=pytest.mark.slow), True])


@LIVE
async def test_a_later_writer_of_a_row_is_not_blamed_for_anothers_grant(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with logged_in_as_bob(world) as bob:
        for later in (
            "ALTER TABLE app.orders ADD COLUMN later int",
            "ALTER TABLE app.orders SET (fillfactor = 70)",
            "GRANT SELECT ON app.orders TO pg_monitor",
            "BEGIN; CREATE TABLE app.bobs (id int); TRUNCATE app.orders; COMMIT",
            f"GRANT UPDATE (id) ON app.orders TO {world.other}",
        ):
            await renew_orders(world)
            statements = [(None, "GRANT DELETE ON app.orders TO {role}"), (bob, later)]
            found = await attribute(world, monkeypatch, statements, live=live)
            # bob's GRANT on a column leaves alice's transaction in the table's row, which proves hers
            proof = Evidence.TRANSACTION if "(id)" in later else Evidence.SESSION
            assert found == {DELETE_GRANTED: (world.alice, proof)}, later


#: What alice does, and the words for the drift.
ALICES = [
    ("GRANT DELETE ON app.orders TO {role}", DELETE_GRANTED),
    ('grant all privileges on "app"."orders" to {role}', DELETE_GRANTED),
    ("GRANT /* ON */ INSERT, Delete ON ALL TABLES IN SCHEMA app TO {role}", DELETE_GRANTED),
    ("REVOKE SELECT ON app.orders FROM {role}", "SELECT on table app.orders was revoked"),
    (
        "GRANT SELECT ON app.orders TO {role} WITH GRANT OPTION",
        "grant option for SELECT on table app.orders was granted",
    ),
]
#: What bob does later.
BOBS = [
    "GRANT SELECT (id), UPDATE ON app.orders TO {role}",
    "REVOKE INSERT ON app.orders FROM {role}",
    "GRANT SELECT ON ALL TABLES IN SCHEMA app TO {role}",
    "GRANT UPDATE ON app.orders TO {role} -- and no more",
    "DO $$ BEGIN GRANT UPDATE ON app.orders TO {role}; END $$",
    "BEGIN; SAVEPOINT one; GRANT UPDATE ON app.orders TO {role}; RELEASE one; COMMIT",
]


@LIVE
async def test_who_grants_another_privilege_later_is_not_blamed(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    """Each change and each later one. What else a text may change: tests/unit/test_recorded_statement.py."""
    world.declare(READ)
    async with logged_in_as_bob(world) as bob:
        for number, later in enumerate(BOBS):
            change, words = ALICES[(number + live) % len(ALICES)]
            if "SELECT ON app.orders" in change and "SELECT" in later:
                later = later.replace("SELECT", "UPDATE")  # not what the change is about
            await renew_orders(world)
            found = await attribute(world, monkeypatch, [(None, change), (bob, later)], live=live)
            # the row has bob's transaction, so it proves nothing about alice's
            assert found[words] == (world.alice, Evidence.SESSION), (change, later)
            granted = "UPDATE on table app.orders was granted"
            if "all" not in change and granted in found and not later.startswith(("DO", "BEGIN")):
                assert found[granted] == (world.role.replace("reader", "bob"), Evidence.TRANSACTION), (change, later)


@LIVE
async def test_who_changes_two_privileges_of_a_table_in_a_row_is_the_author_of_both(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    world.declare(READ)
    change = "GRANT DELETE ON app.orders TO {role}"
    async with logged_in_as_bob(world) as bob:
        for later in (
            "GRANT SELECT ON app.orders TO {role}",
            "GRANT UPDATE ON app.orders TO {role}",
            "GRANT UPDATE ON app.orders TO {role} -- and no more",
            "DO $$ BEGIN GRANT UPDATE ON app.orders TO {role}; END $$",
            "BEGIN; SAVEPOINT one; GRANT UPDATE ON app.orders TO {role}; RELEASE one; COMMIT",
        ):
            await renew_orders(world)
            statements = [(bob, change), (None, change), (None, later)]
            found = await attribute(world, monkeypatch, statements, live=live)
            assert DELETE_GRANTED in found, later
            assert set(found.values()) == {(world.alice, Evidence.TRANSACTION)}, later


@LIVE
async def test_who_changes_a_column_or_default_privileges_later_is_not_blamed(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    creator = await declare_with_creator(world)
    defaults = f"ALTER DEFAULT PRIVILEGES FOR ROLE {creator} IN SCHEMA app"
    async with logged_in_as_bob(world) as bob:
        statements = [
            (None, "GRANT UPDATE (id) ON app.orders TO {role}"),
            (None, f"{defaults} GRANT INSERT ON TABLES TO {{role}}"),
            (bob, "GRANT REFERENCES (id), UPDATE (total) ON app.orders TO {role}"),
            (bob, f"{defaults} GRANT SELECT ON TABLES TO {{role}}"),
        ]
        found = await attribute(world, monkeypatch, statements, live=live)
    of_bob = (world.role.replace("reader", "bob"), Evidence.TRANSACTION)
    assert found.pop("UPDATE on column app.orders.id was granted") == (world.alice, Evidence.SESSION)
    assert found.pop("REFERENCES on column app.orders.id was granted") == of_bob
    assert found.pop("UPDATE on column app.orders.total was granted") == of_bob
    assert list(found.values()) == [(world.alice, Evidence.SESSION)]
    await world.hand.execute(f"DROP OWNED BY {creator}")
    await world.home.execute(f"DROP ROLE {creator}")


@LIVE
@pytest.mark.parametrize("statement", ["{}", "DO $$ BEGIN {}; END $$"])
async def test_who_created_a_table_is_not_blamed_for_a_column_that_another_revoked(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, statement: str, live: bool
) -> None:
    columns = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}), ("id",))
    declared = DatabasePrivileges(world.database, objects=(columns,))
    grantee = Grantee(KEY, "uid-1", 1, world.role, world.oid, {world.database: declared}, policy=POLICY)
    world.grantees.publish(SERVER, grantee)
    revoked = statement.format("REVOKE SELECT (id) ON app.orders FROM {role}")
    found = await attribute(world, monkeypatch, [(None, revoked)], live=live)
    assert found == {"SELECT on column app.orders.id was revoked": (world.alice, Evidence.SESSION)}


@pytest.mark.parametrize("live", [False, True])
async def test_an_earlier_grant_that_was_taken_back_is_not_blamed_for_a_hidden_one(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    world.declare(READ)
    grant, hidden = "GRANT DELETE ON app.orders TO {role}", "DO $$ BEGIN GRANT DELETE ON app.orders TO {role}; END $$"
    async with logged_in_as_bob(world) as bob:
        expected = {DELETE_GRANTED: (world.role.replace("reader", "bob"), Evidence.TRANSACTION)}
        found = await attribute(world, monkeypatch, [(None, grant)], live=True)
        assert found == {DELETE_GRANTED: (world.alice, Evidence.TRANSACTION)}
        assert await attribute(world, monkeypatch, [(bob, hidden)], live=live) == expected
        taken_back = "REVOKE DELETE ON app.orders FROM {role}"
        statements = [(None, grant), (None, taken_back), (bob, hidden)]
        assert await attribute(world, monkeypatch, statements, live=live) == expected
        elsewhere = "CREATE TABLE orders (); GRANT DELETE ON orders TO {role}"
        statements = [(None, elsewhere), (None, "GRANT DELETE ON public.orders TO {role}"), (bob, hidden)]
        assert (await attribute(world, monkeypatch, statements, live=live))[DELETE_GRANTED] == expected[DELETE_GRANTED]


@LIVE
async def test_the_authors_of_more_than_a_hundred_transactions_in_one_round_are_named(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    number = acl_attribution.MOST_ROWS + 20
    await world.hand.execute(
        f"DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE format('CREATE TABLE app.t%s ()', i); END LOOP; END $$"
    )
    world.declare(READ)
    async with logged_in_as_bob(world) as bob:
        statements = [(bob, f"GRANT DELETE ON app.t{place + 1} TO {{role}}") for place in range(number)]
        await attribute(world, monkeypatch, statements, live=live)
    assert world.result is not None
    found = [(one.by.login, one.by.proof, one.count) for one in world.result.last_drifts]
    assert found == [(world.role.replace("reader", "bob"), Evidence.TRANSACTION, number)]


async def test_events_are_not_asked_for_again_after_a_look_for_others(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer_nothing(*_arguments: Any) -> dict[ChangedRow, DriftAuthor]:
        return {}

    monkeypatch.setattr(PatientAttribution, "ask", answer_nothing)
    monkeypatch.setattr(DatabaseSession, "unannounced_seconds", 0.0)
    monkeypatch.setattr(small_rounds, "_SHORT_SECONDS", 0.0)
    world.declare(READ)
    found = await attribute(world, monkeypatch, [(None, "GRANT DELETE ON app.orders TO {role}")], live=True)
    assert found == {DELETE_GRANTED: (world.alice, Evidence.TRANSACTION)}


@LIVE
async def test_each_kind_of_drift_that_the_benchmark_counts_is_attributed_to_its_transaction(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, live: bool
) -> None:
    world.declare(READ)
    for statement in MIXED:
        await renew_orders(world)
        statements = [(None, statement.format("app.orders", world.role).replace("{", "{{").replace("}", "}}"))]
        found = await attribute(world, monkeypatch, statements, live=live)
        assert list(found.values()) == [(world.alice, Evidence.TRANSACTION)], statement


async def test_a_statement_that_is_not_among_the_first_of_its_transaction_is_attributed(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last events of a transaction are compared: this one has too many."""
    world.declare(READ)
    async with logged_in_as_bob(world) as bob:

        async def migrate() -> None:
            async with bob.transaction():
                await bob.execute(f"GRANT DELETE ON app.orders TO {world.role}")
                for _ in range(acl_attribution.MOST_EVENTS + 5):
                    await bob.execute(f"GRANT SELECT ON app.orders TO {world.role}")

        async with world.working():
            await world.wait_settled()
            await migrate()
            result = await world.wait(lambda result: result.drift_count == 1)
            assert result.last_drift is not None
            assert result.last_drift.by.proof is Evidence.TRANSACTION
            await as_alice(world, f"GRANT DELETE ON app.items TO {world.role}")
            await world.wait(lambda result: result.drift_count == 2)
        await migrate()
        async with world.working():
            result = await world.wait(lambda result: result.drift_count == 3)
    assert result.last_drift is not None
    expected = (world.role.replace("reader", "bob"), Evidence.TRANSACTION)
    assert (result.last_drift.by.login, result.last_drift.by.proof) == expected


async def test_a_correction_is_recorded_even_if_another_repair_of_the_role_fails(
    world: DatabaseWorkerWorld,
) -> None:
    await world.hand.execute("CREATE TABLE app.held ()")
    world.declare(READ)
    recorded = (
        "SELECT (SELECT sum(h.count) FROM pgrole.history AS h WHERE h.role = $1) = 2"
        " AND (SELECT a.drift_count FROM pgrole.applied AS a WHERE a.role_name = $1) = 2"
    )

    async def is_recorded() -> bool:
        return bool(await world.hand.fetchval(recorded, world.role))

    holder = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working():
        await world.wait_settled()
        await holder.execute(f"REVOKE SELECT ON app.held FROM {world.role}")
        await world.wait_may("SELECT", "app.held")
        await world.wait(lambda result: result.drift_count == 1)
        # one round for both; a GRANT locks the object's row, but not the table
        await holder.execute(
            f"BEGIN; REVOKE SELECT ON app.held FROM {world.role}; GRANT DELETE ON app.orders TO {world.role}; COMMIT;"
            "BEGIN; GRANT SELECT ON app.held TO pg_monitor"
        )
        await world.wait_may("DELETE", "app.orders", expected=False)
        assert await reached(is_recorded, DEADLINE)
        await holder.execute("ROLLBACK")
        await world.wait_may("SELECT", "app.held")
    await holder.close()


async def test_drift_is_corrected_even_if_attribution_times_out(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = note_sessions(monkeypatch)
    monkeypatch.setattr(EventReader, "_find_authors", lambda _reader, _rows: {})
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        monkeypatch.setattr(acl_attribution, "ATTRIBUTION_SECONDS", 1e-6)
        for number in range(2):
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_more_drifts(number)
            await world.wait_may("DELETE", "app.orders", expected=False)
    result = world.result
    assert result is not None
    assert result.last_drift is not None
    assert result.last_drift.by.proof is Evidence.NONE
    assert len(sessions) == 1


@pytest.mark.parametrize("is_known", [True, False])
async def test_the_last_drift_is_still_reported_after_a_restart(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        if not is_known:
            monkeypatch.setattr(EventReader, "_find_authors", lambda _reader, _rows: {})
            monkeypatch.setattr(acl_attribution, "ATTRIBUTION_SECONDS", 1e-6)
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        before = (await world.wait(lambda result: result.drift_count == 1)).last_drift
    assert before is not None
    assert (before.by == DriftAuthor()) != is_known
    world.grantees = Grantees()
    world.declare(READ)
    async with world.working():
        found = await world.wait_settled()
    assert found.drift_count == 1
    assert found.last_drift is not None
    assert (found.last_drift.time, found.last_drift.words) == (before.time, before.words)
    assert found.last_drift.by == DriftAuthor(before.by.proof, before.by.login)


@pytest.mark.parametrize(
    "statement",
    [
        "GRANT CONNECT ON DATABASE {database} TO {role}",
        "GRANT SELECT (id) ON app.orders TO {role}",
        "GRANT USAGE ON SCHEMA app TO {role}",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO {role}",
    ],
)
async def test_the_home_database_shows_where_a_role_has_privileges(world: DatabaseWorkerWorld, statement: str) -> None:
    asked = [
        HeldQuestion(world.oid, frozenset({world.database, "postgres"})),
        HeldQuestion(world.other_oid, frozenset()),
    ]
    assert await read_unheld(world.home, asked) == [{world.database, "postgres"}, frozenset()]
    await world.hand.execute(statement.format(database=world.database, role=world.role))
    assert await read_unheld(world.home, asked) == [{"postgres"}, frozenset()]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER DATABASE {database} OWNER TO {role}",
        "ALTER TABLE app.orders OWNER TO {role}",
        "ALTER DEFAULT PRIVILEGES FOR ROLE {role} IN SCHEMA app GRANT SELECT ON TABLES TO PUBLIC",
    ],
)
async def test_the_home_database_shows_where_a_role_owns_something(world: DatabaseWorkerWorld, statement: str) -> None:
    roles, databases = [world.oid, world.other_oid], [world.database, "postgres"]
    assert await read_owning(world.home, roles, databases) == frozenset()
    await world.hand.execute(statement.format(database=world.database, role=world.role))
    assert await read_owning(world.home, roles, databases) == {world.database}
    assert await read_owning(world.home, [world.other_oid], databases) == frozenset()
    assert await read_owning(world.home, roles, ["postgres"]) == frozenset()


async def test_a_role_that_owns_very_much_may_own_something_in_any_database(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(f"SET ROLE {world.role}; SELECT lo_create(0) FROM generate_series(1, 10000); RESET ROLE")
    assert await read_owning(world.home, [world.oid], [world.database, "postgres"]) == {world.database, "postgres"}


async def test_a_database_with_a_workers_session_is_not_reported_as_unheld(world: DatabaseWorkerWorld) -> None:
    asked = [HeldQuestion(world.oid, frozenset({world.database}))]
    async with connect(Endpoint(world.server.dsn(database=world.database)), "database"):
        assert await read_unheld(world.home, asked) == [frozenset()]
        assert await read_unheld(world.home, [replace(asked[0], served=True)]) == [{world.database}]

    async def is_unheld() -> bool:
        return await read_unheld(world.home, asked) == [{world.database}]

    assert await reached(is_unheld, DEADLINE)
    world.declare()
    async with world.working():
        await world.wait_settled()
        assert await read_unheld(world.home, asked) == [frozenset()]


async def test_a_session_that_only_copies_the_application_name_does_not_count(world: DatabaseWorkerWorld) -> None:
    asked = [HeldQuestion(world.oid, frozenset({world.database}))]
    await world.hand.execute(f"ALTER ROLE {world.alice} NOSUPERUSER")
    dsn = world.server.dsn(user=world.alice, password="a", database=world.database)
    async with connect(Endpoint(dsn), "database"):
        assert await read_unheld(world.home, asked) == [{world.database}]
        await world.hand.execute(f"ALTER ROLE {world.alice} CREATEROLE")
        assert await read_unheld(world.home, asked) == [frozenset()]
