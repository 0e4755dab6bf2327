"""postgres: after a transaction, a real server matches the plan."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgrole_controller.core.claim import Owner
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.ddl import quote_identifier, quote_literal, statements
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import SetAttribute, SetParameter, diff
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordResult,
    SecretVersion,
)
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import POWERS, Role
from pgrole_controller.core.state import Dependents, Desired, Observed, Server
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import catalog
from pgrole_controller.postgres.apply import Dialect, apply_plans
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.claim_store import HomeConnection
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.role_attribution import read_role_xmins
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session
from tests.roles import GROUPS, names, roles, texts
from tests.servers import Servers

CLUSTER = "cluster-a"
ADDRESS = Address("db", 5432, "app", "require")
KEY = Key("shop", "orders-app")
OWNER = Owner(CLUSTER, KEY.namespace, "ns-uid", KEY.name, "uid-1")
ALLOWING = Policy(attributes=frozenset(POWERS))

# One connection serves all examples: each leaves nothing behind.
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def connection(server: PostgresServer) -> AsyncIterator[Connection]:
    async with connect(Endpoint(server.dsn()), "test") as made:
        await install(made)
        await made.execute(";".join(f"CREATE ROLE {quote_identifier(group)}" for group in GROUPS))
        yield made


async def see(connection: Connection, name: str, key: Key = KEY, desired_role: Role | None = None) -> Observed:
    (observed,) = await DatabaseClaims().read_roles(
        HomeConnection(connection, await identify(connection), CLUSTER), [(key, name)]
    )
    assert isinstance(observed, Observed)
    if desired_role is None:
        return observed
    groups = frozenset(membership.role for membership in desired_role.member_of)
    databases = frozenset(database for database, _ in desired_role.database_parameters)
    version = (await identify(connection)).version_number
    mentioned = catalog.ReferencedNames(groups, desired_role.parameter_names, databases)
    references = await catalog.read_references(connection, mentioned, version)
    return replace(observed, references=references)


async def known(connection: Connection) -> Server:
    identity = await identify(connection)
    return Server(identity.system_identifier, identity.own_roles, ADDRESS)


async def bring_in(connection: Connection, desired: Desired) -> Plan:
    observed = await see(connection, desired.role.name, desired_role=desired.role)
    plan = decide(desired, observed, await known(connection), ALLOWING)
    dialect = Dialect(options=observed.references.options, claims=DatabaseClaims(guarded=True))
    assert await apply_plans(connection, [plan], dialect) == [None]
    return plan


def as_known_before_16(role: Role) -> Role:
    """The role with memberships as they always were before PostgreSQL 16: with INHERIT and SET."""
    return replace(role, member_of=tuple(replace(one, inherit=True, set=True) for one in role.member_of))


async def bring_in_whole(connection: Connection, desired_role: Role) -> Desired:
    """Applies the role with its password: none, or one from a Secret that a password task reads. Returns what is
    desired.
    """
    if desired_role.password is None:
        desired = Desired(OWNER, desired_role, adopt=True, password=DesiredPassword(PasswordOrigin.NOWHERE))
        await bring_in(connection, desired)
        return desired
    seen = SecretVersion("uid", "1")
    asked = DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password")
    desired = Desired(OWNER, desired_role, adopt=True, password=asked, secrets=ObservedSecrets(password=seen))
    await bring_in(connection, desired)
    password_task = (await bring_in(connection, desired)).password_task
    brought = PasswordResult(
        source=f"{seen}/password", verifier=desired_role.password.verifier, password_task=password_task
    )
    await bring_in(connection, replace(desired, password_result=brought))
    return desired


async def clean(connection: Connection, *names_: str) -> None:
    for name in names_:
        await connection.execute(f"DROP ROLE IF EXISTS {quote_identifier(name)}")
    await connection.execute("DELETE FROM pgrole.claim")


def without_what_creation_gave(role: Role, desired_role: Role) -> Role:
    """A grant of ADMIN alone, to a role with CREATEROLE, counts as the one that PostgreSQL gives a role's creator."""
    declared = {one.role for one in desired_role.member_of}
    return replace(role, member_of=tuple(one for one in role.member_of if one.role in declared or not one.by_creation))


@EXAMPLES
@given(names())
async def test_names_are_quoted_as_the_server_itself_would_read_them(connection: Connection, name: str) -> None:
    assert await connection.fetchval(f"SELECT '1' AS {quote_identifier(name)}") == "1"
    row = await connection.fetchrow(f"SELECT 1 AS {quote_identifier(name)}, quote_ident($1) AS theirs", name)
    assert row is not None
    assert next(iter(row.keys())) == name
    assert row["theirs"] in (quote_identifier(name), name)


@EXAMPLES
@given(texts())
async def test_texts_are_quoted_as_quote_literal_does(connection: Connection, text: str) -> None:
    assert await connection.fetchval("SELECT quote_literal($1::text)", text) == quote_literal(text)
    for conforming in ("on", "off"):
        await connection.execute(f"SET standard_conforming_strings = {conforming}")
        assert await connection.fetchval(f"SELECT {quote_literal(text)}::text") == text
    await connection.execute("RESET standard_conforming_strings")


@EXAMPLES
@given(roles(), st.none() | roles())
async def test_any_existing_role_becomes_as_declared_and_a_second_plan_is_empty(
    servers: Servers, connection: Connection, desired_role: Role, there: Role | None
) -> None:
    before = None if there is None else replace(there, name=desired_role.name)
    options = servers.version >= 16
    if not options:
        desired_role = as_known_before_16(desired_role)
        before = None if before is None else as_known_before_16(before)
    try:
        for statement in statements(diff(before, None), options=options) if before else ():
            await connection.execute(statement)
        desired = await bring_in_whole(connection, desired_role)
        observed = await see(connection, desired_role.name, desired_role=desired_role)
        assert observed.named is not None
        assert without_what_creation_gave(observed.named.role, desired_role) == desired_role
        second = decide(desired, observed, await known(connection), ALLOWING)
        assert not second.writes
        assert second.password_task is None
        assert second.pending == ()
    finally:
        await clean(connection, desired_role.name)


async def test_which_transactions_wrote_the_roles_is_known_of_each_that_is_repaired_alone(
    connection: Connection, server: PostgresServer
) -> None:
    """A batch falls apart: one repair fails, and each of the others has a transaction of its own."""
    identity = await identify(connection)
    session = Session(identity, SchemaState.PRESENT, CLUSTER, DatabaseClaims(), connection)
    names_ = [f"drifted{number}" for number in range(4)]
    plans = []
    async with connect(Endpoint(server.dsn()), "hand") as hand:
        for name in names_:
            await hand.execute(f"CREATE ROLE {name} CREATEDB")
            oid = int(await hand.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name))
            plans.append(Plan(name, (SetAttribute(name, "createdb", False),), oid, name, drift=("createdb",)))
        written = {plan.oid: await read_role_xmins(hand, plan.oid or 0, ("createdb",)) for plan in plans}
        plans[1] = replace(plans[1], changes=(SetParameter(names_[1], None, "no_such_parameter", "1"),))
        try:
            await connection.execute("SELECT set_config('pgrole.drifted', E'[]\n{\"7\": [8', false)")
            failures = await session.apply_plans(plans[:3], notes_rows=True)
            assert [failure is None for failure in failures] == [True, False, True]
            assert await session.apply_plans(plans[3:], notes_rows=True) == [None]
            noted = await session.read_noted_rows()
            assert noted == {plan.oid: written[plan.oid] for plan in (plans[0], plans[2], plans[3])}
            assert await session.read_noted_rows() == {}, "each is asked about once"
        finally:
            await clean(hand, *names_)


@pytest.mark.parametrize(
    "valid_until", ["infinity", "-infinity", "294276-12-31 23:59:59+00", "4713-01-01 00:00:00+00 BC", "2027-01-01"]
)
async def test_any_valid_until_that_postgresql_stores_can_be_read_and_corrected(
    connection: Connection, valid_until: str
) -> None:
    try:
        await bring_in(connection, Desired(OWNER, Role("moments", login=True)))
        await connection.execute(f"ALTER ROLE moments VALID UNTIL '{valid_until}'")
        plan = await bring_in(connection, Desired(OWNER, Role("moments", login=True)))
        assert plan.drift == (() if valid_until == "infinity" else ("validUntil",))
        after = await see(connection, "moments")
        assert after.named is not None
        assert after.named.role.valid_until is None
    finally:
        await clean(connection, "moments")


async def test_one_failing_plan_does_not_stop_the_others(connection: Connection) -> None:
    server = await known(connection)
    good = Desired(replace(OWNER, object="good", object_uid="g"), Role("good_one"))
    bad = Desired(replace(OWNER, object="bad", object_uid="b"), Role("bad_one", connection_limit=-5))
    plans = [decide(desired, await see(connection, desired.role.name), server, ALLOWING) for desired in (good, bad)]
    try:
        failures = await apply_plans(connection, plans, Dialect())
        assert failures[0] is None
        assert failures[1] is not None
        assert failures[1].reason is Reason.INVALID_SPEC
        assert (await see(connection, "good_one")).named is not None
        assert (await see(connection, "bad_one")).claim is None
    finally:
        await clean(connection, "good_one", "bad_one")


async def test_a_role_that_was_replaced_since_it_was_read_is_not_touched(connection: Connection) -> None:
    try:
        desired = Desired(OWNER, Role("replaced", login=True))
        await bring_in(connection, desired)
        await connection.execute("ALTER ROLE replaced NOLOGIN")
        plan = decide(desired, await see(connection, "replaced"), await known(connection), ALLOWING)
        await connection.execute("DROP ROLE replaced; CREATE ROLE replaced SUPERUSER")
        (failure,) = await apply_plans(connection, [plan], Dialect(claims=DatabaseClaims(guarded=True)))
        assert failure is not None
        assert failure.reason is Reason.PROGRESSING
        after = await see(connection, "replaced")
        assert after.named is not None
        assert after.named.role.superuser
    finally:
        await clean(connection, "replaced")


@pytest.mark.since(16, "no grant depends on its grantor's")
async def test_a_membership_that_was_passed_on_after_it_was_read_is_read_again(connection: Connection) -> None:
    """PostgreSQL rejects REVOKE without CASCADE then, with the SQLSTATE of a role that cannot be dropped."""
    try:
        desired = Desired(OWNER, Role("passing"))
        await bring_in(connection, desired)
        await connection.execute(
            "CREATE ROLE passed_to; CREATE ROLE passed_on; GRANT passed_on TO passing WITH ADMIN true"
        )
        plan = decide(desired, await see(connection, "passing"), await known(connection), ALLOWING)
        await connection.execute("GRANT passed_on TO passed_to GRANTED BY passing")
        (failure,) = await apply_plans(connection, [plan], Dialect(superuser=True))
        assert failure is not None
        assert (type(failure), failure.reason) == (Transient, Reason.PROGRESSING)
        again = decide(desired, await see(connection, "passing"), await known(connection), ALLOWING)
        assert await apply_plans(connection, [again], Dialect(superuser=True)) == [None]
        after = await see(connection, "passing")
        assert after.named is not None
        assert after.named.role.member_of == ()
    finally:
        await clean(connection, "passed_on", "passed_to", "passing")


async def test_a_database_that_was_dropped_after_it_was_read_is_not_taken_for_the_home_database(
    connection: Connection,
) -> None:
    try:
        await connection.execute("CREATE DATABASE dropped_soon")
        role = Role("setting_there", database_parameters=(("dropped_soon", (("work_mem", "64kB"),)),))
        desired = Desired(OWNER, role)
        seen = await see(connection, "setting_there", desired_role=role)
        plan = decide(desired, seen, await known(connection), ALLOWING)
        await connection.execute("DROP DATABASE dropped_soon")
        (failure,) = await apply_plans(connection, [plan], Dialect(superuser=True))
        assert failure is not None
        assert (type(failure), failure.reason) == (Transient, Reason.PROGRESSING)
        assert "database" in failure.message
    finally:
        await connection.execute("DROP DATABASE IF EXISTS dropped_soon")
        await clean(connection, "setting_there")


async def test_a_claim_that_another_object_took_meanwhile_stops_the_whole_change(connection: Connection) -> None:
    try:
        plan = decide(Desired(OWNER, Role("raced")), await see(connection, "raced"), await known(connection), ALLOWING)
        other = replace(OWNER, object="other", object_uid="uid-2")
        await bring_in(connection, Desired(other, Role("raced", login=True)))
        (failure,) = await apply_plans(connection, [plan], Dialect(claims=DatabaseClaims(guarded=True)))
        assert failure is not None
        after = await see(connection, "raced")
        assert after.named is not None
        assert after.named.role.login
        assert after.claim is not None
        assert after.claim.owner == other
    finally:
        await clean(connection, "raced")


async def test_drift_is_counted_in_the_claim_by_the_transaction_that_corrects_it(connection: Connection) -> None:
    desired = Desired(OWNER, Role("counted", login=True))
    try:
        await bring_in(connection, desired)
        for expected in (1, 2):
            await connection.execute("ALTER ROLE counted CREATEDB CREATEROLE")
            await bring_in(connection, desired)
            claim = (await see(connection, "counted")).claim
            assert claim is not None
            assert claim.drift_count == expected
            assert claim.last_drift_fields == ("createdb", "createrole")
            assert claim.last_drift_at is not None
    finally:
        await clean(connection, "counted")


async def test_a_released_role_is_taken_by_the_next_object_of_that_name(connection: Connection) -> None:
    try:
        await bring_in(connection, Desired(OWNER, Role("kept", login=True)))
        await bring_in(connection, Desired(OWNER, Role("kept", login=True), terminating=True))
        claim = (await see(connection, "kept")).claim
        assert claim is not None
        assert claim.released
        again = replace(OWNER, object_uid="uid-2")
        await bring_in(connection, Desired(again, Role("kept", login=True)))
        claim = (await see(connection, "kept")).claim
        assert claim is not None
        assert (claim.owner, claim.released) == (again, False)
    finally:
        await clean(connection, "kept")


async def test_the_powers_that_a_role_reaches_are_read_through_nested_memberships(connection: Connection) -> None:
    try:
        await connection.execute(
            "CREATE ROLE reach_a; CREATE ROLE reach_b; CREATE ROLE reach_c SUPERUSER;"
            "GRANT reach_c TO reach_b; GRANT reach_b TO reach_a; GRANT pg_execute_server_program TO reach_b"
        )
        observed = await see(connection, "reach_a")
        assert observed.named is not None
        assert observed.named.reaches == ("pg_execute_server_program", "reach_c")
    finally:
        await clean(connection, "reach_a", "reach_b", "reach_c")


async def test_dependents_of_a_role_are_counted_by_database(connection: Connection) -> None:
    try:
        await connection.execute(
            "CREATE ROLE needed; CREATE ROLE member IN ROLE needed; CREATE SCHEMA AUTHORIZATION needed"
        )
        oid = await connection.fetchval("SELECT oid FROM pg_roles WHERE rolname = 'needed'")
        dependents = (await catalog.read_dependents(connection, [oid]))[oid]
        assert {dependent.database: dependent.count for dependent in dependents} == {"postgres": 1, "": 1}
    finally:
        await connection.execute("DROP SCHEMA IF EXISTS needed")
        await clean(connection, "member", "needed")


async def test_dependents_in_more_than_twenty_databases_are_counted_together(connection: Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute("SET LOCAL allow_system_table_mods = on; CREATE ROLE needed; CREATE ROLE other")
        oid = await connection.fetchval("SELECT oid FROM pg_roles WHERE rolname = 'needed'")
        await connection.execute("GRANT needed TO other")
        await connection.execute("""
            INSERT INTO pg_database
            SELECT (jsonb_populate_record(d, jsonb_build_object('oid', 4000000000 + n, 'datname', 'many_' || n))).*
            FROM pg_database AS d, generate_series(1, 30) AS n WHERE d.datname = 'template0'
        """)
        await connection.execute(f"""
            INSERT INTO pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype)
            SELECT 4000000000 + n, 'pg_class'::regclass, 4000000000 + i, 0, 'pg_authid'::regclass, {oid}, 'o'
            FROM generate_series(1, 30) AS n, generate_series(1, n) AS i
        """)
        shared, *named, others = (await catalog.read_dependents(connection, [oid]))[oid]
    finally:
        await transaction.rollback()
    assert (shared.database, shared.members, shared.others) == ("", 1, 0)
    assert named == sorted((Dependents(f"many_{n}", n) for n in range(1, 20)), key=lambda one: one.database)
    assert others == Dependents("", sum(range(20, 31)), others=11)


async def test_parameters_that_only_superusers_see_are_known_to_a_controller_that_is_none(
    server: PostgresServer, connection: Connection
) -> None:
    version = (await identify(connection)).version_number
    settable = await connection.fetch(
        "SELECT lower(name) FROM pg_settings WHERE context LIKE 'superuser%' AND strpos(name, '.') = 0"
    )
    mentioned = catalog.ReferencedNames(parameters=frozenset(row[0] for row in settable) | {"extension_control_path"})
    seen = (await catalog.read_references(connection, mentioned, version)).contexts
    assert {"dynamic_library_path", "session_preload_libraries", "log_statement"} <= seen.keys()
    assert ("extension_control_path" in seen) is (version >= 180_000)
    try:
        await connection.execute("CREATE ROLE steward LOGIN CREATEROLE PASSWORD 'p'")
        async with connect(Endpoint(server.dsn("steward", password="p")), "test") as steward:
            assert (await catalog.read_references(steward, mentioned, version)).contexts == seen
    finally:
        await clean(connection, "steward")


async def test_a_list_that_the_query_truncates_is_known_to_be_incomplete(connection: Connection) -> None:
    """The queries and the code that reads their rows have the same limits."""
    reached = [f"powerful_{number}" for number in range(201)]
    try:
        await connection.execute("CREATE ROLE hub; " + "; ".join(f"CREATE ROLE {name} CREATEDB" for name in reached))
        await connection.execute(f"GRANT {', '.join(reached[:199])} TO hub")
        version = (await identify(connection)).version_number
        mentioned = catalog.ReferencedNames(groups=frozenset({"hub"}))
        assert (await catalog.read_references(connection, mentioned, version)).groups["hub"] == ()
        await connection.execute(f"GRANT {', '.join(reached[199:])} TO hub")
        references = await catalog.read_references(connection, mentioned, version)
        assert references.groups["hub"] == ("more roles than the controller can read",)
    finally:
        await clean(connection, "hub", *reached)


@pytest.mark.parametrize("cut", [False, True])
async def test_memberships_that_the_query_truncates_are_not_mistaken_for_all(connection: Connection, cut: bool) -> None:
    """With PostgreSQL 16 and later, a few groups can have any number of grants, each by another grantor."""
    if (await identify(connection)).version_number < catalog.MEMBERSHIP_OPTIONS_VERSION:
        pytest.skip("before PostgreSQL 16 a group has one grant")
    grantors = [f"grantor_{number}" for number in range(1000 if cut else 998)]
    try:
        await connection.execute(
            "CREATE ROLE joined; CREATE ROLE hub; " + "; ".join(f"CREATE ROLE {g}" for g in grantors)
        )
        await connection.execute(f"GRANT hub TO {', '.join(grantors)} WITH ADMIN OPTION")
        await connection.execute("; ".join(f"GRANT hub TO joined GRANTED BY {grantor}" for grantor in grantors))
        (observed,) = await DatabaseClaims().read_roles(
            HomeConnection(connection, await identify(connection), CLUSTER), [(KEY, "joined")]
        )
        if cut:
            assert isinstance(observed, PgRoleError)
            assert "1000 or more grants of memberships" in observed.message
        else:
            assert isinstance(observed, Observed)
            assert observed.named is not None
            assert [membership.role for membership in observed.named.role.member_of] == ["hub"]
    finally:
        await connection.execute("REVOKE hub FROM joined CASCADE; DROP ROLE hub; DROP ROLE joined")
        await clean(connection, *grantors)


async def test_any_number_of_roles_is_read_in_one_query_and_in_order(connection: Connection) -> None:
    desired_role = [f"many_{number}" for number in range(300)]
    try:
        await connection.execute(";".join(f"CREATE ROLE {name}" for name in desired_role[::2]))
        observations = await DatabaseClaims().read_roles(
            HomeConnection(connection, await identify(connection), CLUSTER),
            [(Key("shop", name), name) for name in desired_role],
        )
        found = [
            observed.named.role.name if isinstance(observed, Observed) and observed.named else None
            for observed in observations
        ]
        assert found == [name if place % 2 == 0 else None for place, name in enumerate(desired_role)]
    finally:
        await clean(connection, *desired_role[::2])
