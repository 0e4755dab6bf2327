"""One contract for both stores of claims: schema pgrole, and the objects' status."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.claim import Claim, ClaimKey, Owner
from pgrole_controller.core.diff import Create, Rename, SetAttribute
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.plan import NewOwner, Plan
from pgrole_controller.core.privileges.grantee import DatabasePrivileges
from pgrole_controller.core.privileges.kept_privileges import LARGEST, write_kept
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Role
from pgrole_controller.core.state import Observed
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import claim_store
from pgrole_controller.postgres import connection as postgres_connection
from pgrole_controller.postgres.apply import Dialect, apply_plans
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.claim_store import ClaimStore, HomeConnection
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.rows import Deferred
from pgrole_controller.postgres.status_claims import StatusClaims
from tests.integration.sql_support import renew_home, role_oid, seen

CLUSTER = "cluster"
KEY, OTHER_KEY = Key("shop", "app"), Key("shop", "other")
OWNER = Owner(CLUSTER, "shop", "ns-uid", "app", "uid-app")
OTHER = Owner(CLUSTER, "shop", "ns-uid", "other", "uid-other")
ROLES = ("app", "second", "renamed")


@dataclass(frozen=True, slots=True)
class ClaimScene:
    claims: ClaimStore
    home: HomeConnection
    hand: Connection

    async def apply(self, *plans: Plan) -> list[str]:
        """Returns the messages of the errors; empty for each plan that was committed."""
        dialect = Dialect(options=self.home.identity.version_number >= 160_000, claims=self.claims)
        return [error.message if error else "" for error in await apply_plans(self.home.connection, plans, dialect)]

    async def read(self, name: str, key: Key = KEY) -> Observed:
        (observed,) = seen(await self.claims.read_roles(self.home, [(key, name)]))
        return observed

    async def claim(self, name: str = "app") -> Claim:
        claim = (await self.read(name)).claim
        assert claim is not None
        return claim

    async def create(self, name: str = "app", owner: Owner = OWNER) -> Claim:
        plan = Plan(name, (Create(Role(name)),), None, name, None, owner, "sha256:1")
        assert await self.apply(plan) == [""]
        return await self.claim(name)


def change(claim: Claim, plan: Plan) -> Plan:
    """The plan, bound to the role of a claim that was read."""
    return replace(plan, oid=claim.role_oid, seen_as=claim.role_name, claim=claim)


@pytest_asyncio.fixture(loop_scope="session", params=["database", "guarded", "status"])
async def scene(request: pytest.FixtureRequest, server: PostgresServer) -> AsyncIterator[ClaimScene]:
    async with connect(Endpoint(server.dsn()), "test") as made, connect(Endpoint(server.dsn()), "hand") as hand:
        identity = await identify(made)
        claims: ClaimStore
        if request.param == "status":
            claims = StatusClaims().open(identity.system_identifier)
        else:
            await renew_home(made)
            claims = DatabaseClaims(guarded=request.param == "guarded")
        yield ClaimScene(claims, HomeConnection(made, identity, CLUSTER), hand)
        await hand.execute("; ".join(f"DROP ROLE IF EXISTS {name}" for name in ROLES))


async def test_a_created_role_is_read_with_its_claim(scene: ClaimScene) -> None:
    await scene.create()
    observed = await scene.read("app")
    assert observed.named is not None
    assert observed.claim == Claim(
        "app", observed.named.oid, scene.home.identity.system_identifier, OWNER, applied="sha256:1"
    )
    assert await scene.claims.read_held(scene.home) == ([(KEY, "app", "uid-app")], None)


async def test_claims_are_read_in_the_order_of_their_role_names(scene: ClaimScene) -> None:
    await scene.create("second", OTHER)
    await scene.create("app")
    first, second = (KEY, "app", "uid-app"), (OTHER_KEY, "second", "uid-other")
    assert await scene.claims.read_held(scene.home) == ([first, second], None)
    assert await scene.claims.read_held(scene.home, "app") == ([second], None)
    assert await scene.claims.read_held(scene.home, "second") == ([], None)


@pytest.mark.slow
async def test_any_number_of_claims_with_the_longest_names_can_be_read(scene: ClaimScene) -> None:
    if isinstance(scene.claims, StatusClaims):
        pytest.skip("status holds as many claims as there are objects")
    await scene.hand.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, "
        "object_uid) SELECT lpad(n::text, 63, '0'), 0, 1, $1, repeat('n', 63), 'u', repeat('o', 253), 'uid' "
        "FROM generate_series(1, 30000) AS n",
        CLUSTER,
    )
    names: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = await scene.claims.read_held(scene.home, after)
        names += [role_name for _, role_name, _ in page]
    assert names == [f"{number:063}" for number in range(1, 30001)]


async def test_an_unclaimed_role_is_read_without_a_claim(scene: ClaimScene) -> None:
    await scene.hand.execute("CREATE ROLE app")
    observed = await scene.read("app")
    assert observed.named is not None
    assert (observed.claim, observed.other_claims, observed.named.owner_elsewhere) == (None, (), None)
    assert await scene.claims.read_held(scene.home) == ([], None)


async def test_roles_are_returned_in_the_order_of_the_request(scene: ClaimScene) -> None:
    await scene.create()
    asked = [(OTHER_KEY, "second"), (KEY, "app"), (OTHER_KEY, "app")]
    second, app, same = seen(await scene.claims.read_roles(scene.home, asked))
    assert second.named is None
    assert app.claim == same.claim
    assert app.claim is not None


async def test_the_objects_claim_under_another_name_is_reported_as_former(scene: ClaimScene) -> None:
    await scene.create()
    assert (await scene.read("second")).other_claims == (("app", "uid-app"),)
    assert (await scene.read("second", OTHER_KEY)).other_claims == ()


async def test_a_renamed_role_is_found_by_its_claim_and_held_under_its_new_name(scene: ClaimScene) -> None:
    claim = await scene.create()
    await scene.hand.execute("ALTER ROLE app RENAME TO renamed")
    observed = await scene.read("app")
    assert observed.named is None
    assert observed.claimed is not None
    assert (observed.claimed.oid, observed.claimed.role.name) == (claim.role_oid, "renamed")
    stranger = (await scene.read("renamed", OTHER_KEY)).named
    assert stranger is not None
    assert stranger.owner_elsewhere == "shop/app"


async def test_a_plan_that_ignores_another_objects_claim_is_refused(scene: ClaimScene) -> None:
    claim = await scene.create()
    (error,) = await scene.apply(
        Plan("app", (SetAttribute("app", "login", True),), claim.role_oid, "app", None, OTHER, "sha256:2")
    )
    assert "changed since" in error
    assert await scene.claim() == claim
    assert not await scene.hand.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'app'")


async def test_a_plan_is_refused_after_another_object_took_the_claim(scene: ClaimScene) -> None:
    claim = await scene.create()
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    assert await scene.apply(change(await scene.claim(), Plan("app", owner=OTHER, applied="sha256:2"))) == [""]
    taken = await scene.claim()
    plan = change(claim, Plan("app", (SetAttribute("app", "login", True),), owner=OWNER, applied="sha256:3"))
    (error,) = await scene.apply(plan)
    assert "changed since" in error
    assert await scene.claim() == taken
    assert not await scene.hand.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'app'")


async def test_a_plan_for_a_replaced_role_is_refused(scene: ClaimScene) -> None:
    claim = await scene.create()
    await scene.hand.execute("DROP ROLE app; CREATE ROLE app")
    plan = change(claim, Plan("app", (SetAttribute("app", "login", True),), owner=OWNER, applied="sha256:2"))
    (error,) = await scene.apply(plan)
    assert "changed since" in error
    assert await scene.claim() == claim
    assert not await scene.hand.fetchval("SELECT rolcanlogin FROM pg_roles WHERE rolname = 'app'")


async def test_a_failed_plan_of_a_batch_leaves_no_claim(scene: ClaimScene) -> None:
    await scene.hand.execute("CREATE ROLE second")
    errors = await scene.apply(
        Plan("app", (Create(Role("app")),), None, "app", None, OWNER, "sha256:1"),
        Plan("second", (Create(Role("second")),), None, "second", None, OTHER, "sha256:1"),
    )
    assert errors[0] == ""
    assert errors[1] != ""
    assert (await scene.claim("app")).owner == OWNER
    assert (await scene.read("second")).claim is None


async def test_drift_is_counted_and_kept(scene: ClaimScene) -> None:
    claim = await scene.create()
    for count, fields in ((1, ("login",)), (2, ("comment",))):
        assert await scene.apply(change(claim, Plan("app", owner=OWNER, applied="sha256:2", drift=fields))) == [""]
        claim = await scene.claim()
        assert (claim.drift_count, claim.last_drift_fields, claim.applied) == (count, fields, "sha256:2")
        assert claim.last_drift_at is not None
    assert await scene.apply(change(claim, Plan("app", owner=OWNER, applied="sha256:3"))) == [""]
    assert await scene.claim() == replace(claim, applied="sha256:3")


async def test_the_state_of_the_password_is_kept(scene: ClaimScene) -> None:
    claim = await scene.create()
    record = PasswordRecord(source="secret/1", digest="sha256:p", rotate="now", connection="sha256:c")
    assert await scene.apply(change(claim, Plan("app", record=record))) == [""]
    assert (await scene.claim()).record == record


async def test_privileges_are_kept_across_owners_until_they_are_cleared(scene: ClaimScene) -> None:
    declared = DatabasePrivileges("or'ders", on_database=frozenset({"CONNECT"}), unmanaged=("\u2603\\",))
    kept = {"or'ders": (declared,)}
    claim = await scene.create()
    assert await scene.apply(change(claim, Plan("app", privileges=write_kept(kept)))) == [""]
    in_rows = isinstance(scene.claims, DatabaseClaims)  # status holds none
    assert (await scene.claim()).privileges == (kept if in_rows else {})
    drifted = Plan("app", owner=OWNER, applied="sha256:2", drift=("login",))
    assert await scene.apply(change(await scene.claim(), drifted)) == [""]
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    assert await scene.apply(change(await scene.claim(), Plan("app", owner=OTHER, applied="sha256:3"))) == [""]
    assert (await scene.claim()).privileges == (kept if in_rows else {})
    if in_rows:
        (error,) = await scene.apply(change(claim, Plan("app", privileges="")))
        assert "changed since" in error
    assert await scene.apply(change(await scene.claim(), Plan("app", privileges=""))) == [""]
    assert (await scene.claim()).privileges == {}


async def test_long_privileges_are_read_separately_and_oversized_ones_fail_alone(scene: ClaimScene) -> None:
    if not isinstance(scene.claims, DatabaseClaims):
        pytest.skip("status holds no privileges")
    await scene.create()
    await scene.create("second", OTHER)
    asked = [(KEY, "app"), (OTHER_KEY, "second")]
    long = replace(DatabasePrivileges("orders"), created_by=tuple(f"{number:062}" for number in range(1000)))
    await scene.hand.execute(
        "UPDATE pgrole.claim SET privileges = $1 WHERE role_name = 'app'", write_kept({"orders": (long,)})
    )
    app, second = await scene.claims.read_roles(scene.home, asked)
    assert isinstance(app, Deferred)
    assert isinstance(second, Observed)
    assert (await scene.claim()).privileges == {"orders": (long,)}
    for text in ("{", "x" * (LARGEST + 1)):
        await scene.hand.execute("UPDATE pgrole.claim SET privileges = $1 WHERE role_name = 'app'", text)
        app, second = await scene.claims.read_roles(scene.home, asked)
        assert isinstance(app, Transient)
        assert not isinstance(app, Deferred)
        assert isinstance(second, Observed)


async def test_the_roles_of_a_namespace_are_those_that_it_claims(scene: ClaimScene) -> None:
    app = await scene.create()
    elsewhere = replace(OTHER, namespace="lake", namespace_uid="ns-2")
    second = await scene.create("second", elsewhere)
    await scene.hand.execute("CREATE ROLE renamed")
    asked = [("shop", "ns-uid"), ("lake", "ns-2"), ("lake", "ns-0")]
    assert await scene.claims.read_namespace_roles(scene.home, asked) == {
        ("shop", "ns-uid"): {app.role_oid},
        ("lake", "ns-2"): {second.role_oid},
        ("lake", "ns-0"): frozenset(),
    }
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    assert (await scene.claims.read_namespace_roles(scene.home, asked[:1]))[asked[0]] == frozenset()


async def test_a_new_owner_starts_without_the_former_owners_drift_and_password_source(scene: ClaimScene) -> None:
    claim = await scene.create()
    record = PasswordRecord(source="secret/1", digest="sha256:p", rotate="now", connection="sha256:c")
    drifted = Plan("app", owner=OWNER, applied="sha256:2", record=record, drift=("login",))
    assert await scene.apply(change(claim, drifted)) == [""]
    assert await scene.apply(change(await scene.claim(), Plan("app", owner=OTHER, applied="sha256:3"))) == [""]
    taken = await scene.claim()
    assert (taken.owner, taken.applied) == (OTHER, "sha256:3")
    assert (taken.drift_count, taken.last_drift_at, taken.last_drift_fields) == (0, None, ())
    assert taken.record == replace(record, source="", connection="")
    assert await scene.claims.read_held(scene.home) == ([(OTHER_KEY, "app", "uid-other")], None)


async def test_a_released_claim_records_the_owner_and_holds_nothing(scene: ClaimScene) -> None:
    claim = await scene.create()
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-stranger"),))) == [""]
    assert await scene.claim() == claim
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    assert await scene.claim() == replace(claim, released=True)
    assert await scene.claims.read_held(scene.home) == ([], None)
    assert (await scene.read("second")).other_claims == ()
    assert await scene.apply(change(await scene.claim(), Plan("app", owner=OWNER, applied="sha256:1"))) == [""]
    assert await scene.claim() == claim


async def test_a_renamed_role_is_found_by_its_oid_until_its_claim_is_released(scene: ClaimScene) -> None:
    claim = await scene.create()
    await scene.hand.execute("ALTER ROLE app RENAME TO renamed")
    claimed = (await scene.read("app")).claimed
    assert claimed is not None
    assert (claimed.oid, claimed.role.name) == (claim.role_oid, "renamed")
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    for name, named in (("app", False), ("renamed", True)):
        observed = await scene.read(name)
        assert (observed.named is not None, observed.claimed) == (named, None)


async def test_a_forgotten_claim_is_deleted(scene: ClaimScene) -> None:
    claim = await scene.create()
    assert await scene.apply(change(claim, Plan("app", forget=True))) == [""]
    assert (await scene.read("app")).claim is None


async def test_a_rename_moves_the_claim_to_the_new_name(scene: ClaimScene) -> None:
    claim = await scene.create()
    plan = Plan(
        "second",
        (Rename("app", "second"),),
        claim.role_oid,
        "app",
        None,
        OWNER,
        "sha256:2",
        releases=(ClaimKey("app", "uid-app"),),
    )
    assert await scene.apply(plan) == [""]
    moved = await scene.claim("second")
    assert (moved.role_oid, moved.owner) == (claim.role_oid, OWNER)
    assert await scene.claims.read_held(scene.home) == ([(KEY, "second", "uid-app")], None)


async def test_a_new_owner_is_read_with_the_namespace_that_claims_it(scene: ClaimScene) -> None:
    claim = await scene.create()
    await scene.hand.execute("CREATE ROLE second")
    assert await scene.claims.read_new_owners(scene.home, ["app", "second", "absent"]) == {
        "app": NewOwner(claim.role_oid, (CLUSTER, "shop", "ns-uid")),
        "second": NewOwner(await role_oid(scene.hand, "second")),
    }
    assert await scene.apply(Plan("", releases=(ClaimKey("app", "uid-app"),))) == [""]
    assert (await scene.claims.read_new_owners(scene.home, ["app"]))["app"] == NewOwner(claim.role_oid)


async def test_verifiers_are_read_by_oid(scene: ClaimScene) -> None:
    await scene.hand.execute("CREATE ROLE app PASSWORD 'p'; CREATE ROLE second")
    oids = [await role_oid(scene.hand, name) for name in ("app", "second")]
    found = await scene.claims.read_verifiers(scene.home, oids)
    assert list(found) == oids[:1]
    stored = await scene.hand.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = 'app'")
    assert found[oids[0]] == type(found[oids[0]])(stored)


async def test_a_changed_claim_is_never_reported_as_unchanged(scene: ClaimScene) -> None:
    claim = await scene.create()
    asked, before = [(KEY, "app")], [(await scene.read("app")).row]
    kept = await scene.claims.are_unchanged(scene.home, asked, before)
    assert kept == [isinstance(scene.claims, DatabaseClaims)]  # rows of pg_authid alone say nothing about a claim
    assert await scene.apply(change(claim, Plan("app", owner=OWNER, applied="sha256:2"))) == [""]
    assert await scene.claims.are_unchanged(scene.home, asked, before) == [False]


async def test_while_changes_are_suspended_neither_role_nor_claim_is_changed(scene: ClaimScene) -> None:
    await scene.hand.execute("ALTER DATABASE postgres SET pgrole.suspend = on")
    try:
        plan = Plan("app", (Create(Role("app")),), None, "app", None, OWNER, "sha256:1")
        dialect = Dialect(claims=scene.claims)
        (error,) = await apply_plans(scene.home.connection, [plan], dialect)
    finally:
        await scene.hand.execute("ALTER DATABASE postgres RESET pgrole.suspend")
    assert error is not None
    assert error.reason is Reason.SUSPENDED
    observed = await scene.read("app")
    assert (observed.named, observed.claim) == (None, None)


async def test_a_lost_connection_raises_a_transient_error(scene: ClaimScene) -> None:
    await scene.create()
    scene.home.connection.terminate()
    with pytest.raises(Transient):
        await scene.claims.read_roles(scene.home, [(KEY, "app")])


async def test_a_transaction_without_an_answer_in_time_is_over(
    scene: ClaimScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where status holds the claims, the connection stayed in it, and no role of the server could be read."""
    plan = Plan("app", (Create(Role("app")),), None, "app", None, OWNER, "sha256:1")
    monkeypatch.setattr(claim_store, "TRANSACTION_SECONDS", 0.3)
    with pytest.raises(PgRoleError, match="no answer in time to a transaction"):
        await scene.claims.commit(scene.home.connection, [plan], "SELECT pg_catalog.pg_sleep(3)")
    assert not scene.home.connection.is_in_transaction()
    assert (await scene.read("app")).named is None


async def test_a_connection_without_an_answer_to_rollback_is_closed(
    scene: ClaimScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "TRANSACTION_SECONDS", 0.1)
    monkeypatch.setattr(postgres_connection, "_ROLLBACK_SECONDS", 0.0)

    async def begin() -> None:
        async with claim_store.limited_transaction(scene.home.connection):
            await scene.home.connection.execute("BEGIN")
            await anyio.sleep_forever()

    with pytest.raises(PgRoleError, match="no answer in time to a transaction"):
        await begin()
    assert scene.home.connection.is_closed()


async def test_a_transaction_whose_connection_was_ended_meanwhile_had_no_answer_in_time(
    scene: ClaimScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_store, "TRANSACTION_SECONDS", 0.1)

    async def begin() -> None:
        async with claim_store.limited_transaction(scene.home.connection):
            scene.home.connection.terminate()
            await anyio.sleep_forever()

    with pytest.raises(PgRoleError, match="no answer in time to a transaction"):
        await begin()
