"""memberOf is exact: listed memberships are granted with their options, and all others are revoked, whoever granted
them.
"""

import secrets
from typing import Any

import pytest

from tests.acceptance.world import Database, Json, Kube, Stage, condition, running, says

OPTIONS = pytest.mark.since(16, "INHERIT and SET of a membership")
GRANTORS = pytest.mark.since(16, "a grant depends on its grantor's")


@pytest.fixture
def prefix() -> str:
    return f"m{secrets.token_hex(3)}"


async def memberships(database: Database, role: str) -> dict[str, tuple[bool, bool, bool]]:
    """Returns the effective options of each membership."""
    rows = await database.connection.fetch(
        # before PostgreSQL 16 both options always hold, and have no column
        "SELECT roleid::regrole::text AS name, bool_or(admin_option) AS admin,"
        " bool_or(coalesce((to_jsonb(m) ->> 'inherit_option')::boolean, true)) AS inherit,"
        " bool_or(coalesce((to_jsonb(m) ->> 'set_option')::boolean, true)) AS set"
        " FROM pg_auth_members AS m WHERE member = to_regrole($1) GROUP BY 1",
        role,
    )
    return {row["name"]: (row["admin"], row["inherit"], row["set"]) for row in rows}


def drifts(count: int) -> Any:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def declare(kube: Kube, prefix: str, *groups: str | Json) -> Json:
    member_of = [{"role": group} if isinstance(group, str) else group for group in groups]
    await kube.apply("app", name=f"{prefix}_app", memberOf=member_of)
    return await kube.wait_ready("app")


async def test_listed_memberships_are_granted(kube: Kube, database: Database, prefix: str) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_b")
    await declare(kube, prefix, f"{prefix}_a", {"role": f"{prefix}_b", "admin": True})
    assert await memberships(database, f"{prefix}_app") == {
        f"{prefix}_a": (False, True, True),
        f"{prefix}_b": (True, True, True),
    }


@OPTIONS
async def test_listed_memberships_are_granted_with_their_options(kube: Kube, database: Database, prefix: str) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_b; CREATE ROLE {prefix}_c")
    await declare(
        kube,
        prefix,
        f"{prefix}_a",
        {"role": f"{prefix}_b", "admin": True, "set": False},
        {"role": f"{prefix}_c", "inherit": False, "set": False},
    )
    assert await memberships(database, f"{prefix}_app") == {
        f"{prefix}_a": (False, True, True),
        f"{prefix}_b": (True, True, False),
        f"{prefix}_c": (False, False, False),
    }


@pytest.mark.before(16, "memberships have no INHERIT and SET")
@pytest.mark.parametrize("option", ["inherit", "set"])
async def test_an_option_the_server_does_not_support_is_refused(
    kube: Kube, database: Database, prefix: str, option: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a")
    await kube.apply("app", name=f"{prefix}_app", memberOf=[{"role": f"{prefix}_a", option: False}])
    obj = await kube.wait_reason("app", "InvalidSpec")
    assert "inherit: false and set: false require PostgreSQL 16" in condition(obj, "Ready")["message"]
    assert await database.role(f"{prefix}_app") is None
    await declare(kube, prefix, f"{prefix}_a")
    assert await memberships(database, f"{prefix}_app") == {f"{prefix}_a": (False, True, True)}


@pytest.mark.parametrize(
    "statement",
    [
        "REVOKE {0}_a FROM {0}_app",
        "GRANT {0}_b TO {0}_app",
        "GRANT {0}_a TO {0}_app WITH ADMIN OPTION",
        pytest.param("GRANT {0}_a TO {0}_app WITH INHERIT FALSE", marks=OPTIONS),
        pytest.param("GRANT {0}_a TO {0}_app WITH SET FALSE", marks=OPTIONS),
        "GRANT {0}_b TO {0}_keeper WITH ADMIN OPTION; GRANT {0}_b TO {0}_app GRANTED BY {0}_keeper",
        "GRANT {0}_a TO {0}_keeper WITH ADMIN OPTION; GRANT {0}_a TO {0}_app WITH ADMIN OPTION GRANTED BY {0}_keeper",
    ],
)
async def test_a_changed_membership_is_restored(kube: Kube, database: Database, prefix: str, statement: str) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_b; CREATE ROLE {prefix}_keeper")
    await declare(kube, prefix, f"{prefix}_a")
    before = await memberships(database, f"{prefix}_app")
    await database.execute(statement.format(prefix))
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
    assert await memberships(database, f"{prefix}_app") == before


async def test_a_second_grant_of_the_same_membership_is_no_drift(kube: Kube, database: Database, prefix: str) -> None:
    await database.execute(
        f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_keeper; GRANT {prefix}_a TO {prefix}_keeper WITH ADMIN OPTION"
    )
    await declare(kube, prefix, f"{prefix}_a")
    await database.execute(f"GRANT {prefix}_a TO {prefix}_app GRANTED BY {prefix}_keeper")
    await database.execute(f"ALTER ROLE {prefix}_app CREATEDB")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == ["createdb"]


async def test_a_membership_waits_for_its_role_while_the_rest_is_applied(
    kube: Kube, database: Database, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a")
    await kube.apply(
        "app", name=f"{prefix}_app", login=True, memberOf=[{"role": f"{prefix}_a"}, {"role": f"{prefix}_later"}]
    )
    obj = await kube.wait_reason("app", "MembershipPending")
    assert f"{prefix}_later" in condition(obj, "Ready")["message"]
    assert await memberships(database, f"{prefix}_app") == {f"{prefix}_a": (False, True, True)}
    await database.execute(f"CREATE ROLE {prefix}_later")
    obj = await kube.wait_ready("app")
    assert f"{prefix}_later" in await memberships(database, f"{prefix}_app")
    assert obj["status"]["driftCount"] == 0


async def test_under_report_a_role_that_appears_is_joined_and_reported_drift_stays(
    kube: Kube, database: Database, prefix: str
) -> None:
    await kube.apply("app", name=f"{prefix}_app", memberOf=[{"role": f"{prefix}_later"}], drift={"policy": "Report"})
    await kube.wait_reason("app", "MembershipPending")
    await database.execute(f"ALTER ROLE {prefix}_app CREATEDB")
    obj = await kube.wait_reason("app", "DriftReported")
    assert f"{prefix}_later" in condition(obj, "Ready")["message"]
    await database.execute(f"CREATE ROLE {prefix}_later")
    await kube.wait_for(
        "app", lambda obj: says(obj, "DriftReported") and not says(obj, "DriftReported", f"{prefix}_later"), "joined"
    )
    assert f"{prefix}_later" in await memberships(database, f"{prefix}_app")
    assert (await kube.wait_event("RoleChanged", about="app"))["note"] == "altered the role: memberOf"
    assert (await database.role(f"{prefix}_app") or {})["rolcreatedb"]
    await database.execute(f"DROP ROLE {prefix}_later")
    obj = await kube.wait_for("app", lambda obj: says(obj, "DriftReported", f"{prefix}_later"), "pending again")
    assert (await database.role(f"{prefix}_app") or {})["rolcreatedb"]
    assert obj["status"]["driftCount"] == 0


async def test_a_membership_is_granted_again_after_its_group_was_dropped_and_recreated(
    kube: Kube, database: Database, prefix: str
) -> None:
    await kube.apply("group", name=f"{prefix}_group", deletionPolicy="Drop")
    await kube.wait_ready("group")
    await declare(kube, prefix, f"{prefix}_group")
    await database.execute(f"DROP ROLE {prefix}_group")
    await kube.wait_for("group", drifts(1), "the group is recreated")
    await database.wait_value(
        f"SELECT count(*) FROM pg_auth_members WHERE roleid = to_regrole('{prefix}_group')"
        f" AND member = to_regrole('{prefix}_app')",
        1,
    )
    await kube.wait_ready("app")


@GRANTORS
async def test_revoking_admin_option_also_revokes_dependent_grants(kube: Kube, database: Database, prefix: str) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_third")
    await declare(kube, prefix, {"role": f"{prefix}_a", "admin": True})
    await database.execute(f"GRANT {prefix}_a TO {prefix}_third GRANTED BY {prefix}_app")
    await kube.patch("app", {"spec": {"memberOf": [{"role": f"{prefix}_a"}]}})
    await kube.wait_ready("app")
    event = await kube.wait_event("RoleChanged", about="app")
    assert f'revoked with CASCADE: membership in "{prefix}_a" from "{prefix}_third"' in event["note"]
    assert await memberships(database, f"{prefix}_app") == {f"{prefix}_a": (False, True, True)}
    assert await memberships(database, f"{prefix}_third") == {}


@pytest.mark.before(16, "no grant depends on its grantor's")
async def test_before_16_revoking_a_membership_keeps_grants_made_with_it(
    kube: Kube, database: Database, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a; CREATE ROLE {prefix}_third")
    await declare(kube, prefix, {"role": f"{prefix}_a", "admin": True})
    await database.execute(f"GRANT {prefix}_a TO {prefix}_third GRANTED BY {prefix}_app")
    await declare(kube, prefix)
    assert await memberships(database, f"{prefix}_app") == {}
    assert await memberships(database, f"{prefix}_third") == {f"{prefix}_a": (False, True, True)}


@GRANTORS
async def test_a_declared_membership_revoked_by_a_cascade_is_granted_again(
    kube: Kube, database: Database, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a")
    await kube.apply("third", name=f"{prefix}_third", memberOf=[{"role": f"{prefix}_a"}])
    await kube.wait_ready("third")
    await declare(kube, prefix, {"role": f"{prefix}_a", "admin": True})
    await database.execute(
        f"REVOKE {prefix}_a FROM {prefix}_third; GRANT {prefix}_a TO {prefix}_third GRANTED BY {prefix}_app"
    )
    await kube.apply("app", name=f"{prefix}_app")
    await kube.wait_ready("app")
    await kube.wait_ready("third")
    await database.wait_value(
        f"SELECT count(*) FROM pg_auth_members WHERE roleid = to_regrole('{prefix}_a')"
        f" AND member = to_regrole('{prefix}_third')",
        1,
    )


@pytest.mark.parametrize(
    "group",
    ["pg_execute_server_program", "pg_read_server_files", "pg_write_server_files", "pg_write_all_data", "postgres"],
)
async def test_a_membership_that_reaches_a_powerful_role_is_refused(
    kube: Kube, database: Database, prefix: str, group: str
) -> None:
    await database.execute(
        f"CREATE ROLE {prefix}_step; GRANT {group} TO {prefix}_step; CREATE ROLE {prefix}_next IN ROLE {prefix}_step"
    )
    for name, through in (("direct", group), ("indirect", f"{prefix}_next")):
        await kube.apply(name, name=f"{prefix}_{name}", memberOf=[{"role": through}])
        obj = await kube.wait_reason(name, "NotAllowed")
        assert group in condition(obj, "Ready")["message"]
        assert await database.role(f"{prefix}_{name}") is None


async def test_members_of_a_group_that_becomes_superuser_report_not_allowed(
    kube: Kube, database: Database, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a")
    await declare(kube, prefix, f"{prefix}_a")
    await database.execute(f"ALTER ROLE {prefix}_a SUPERUSER")
    await kube.wait_reason("app", "NotAllowed")
    await database.execute(f"ALTER ROLE {prefix}_a NOSUPERUSER")
    await kube.wait_ready("app")


async def test_a_circular_membership_is_refused(kube: Kube, database: Database, prefix: str) -> None:
    await kube.apply("self", name=f"{prefix}_self", memberOf=[{"role": f"{prefix}_self"}])
    obj = await kube.wait_reason("self", "InvalidSpec")
    assert "itself" in condition(obj, "Ready")["message"]
    await kube.apply("one", name=f"{prefix}_one")
    await kube.wait_ready("one")
    await kube.apply("two", name=f"{prefix}_two", memberOf=[{"role": f"{prefix}_one"}])
    await kube.wait_ready("two")
    await kube.apply("one", name=f"{prefix}_one", memberOf=[{"role": f"{prefix}_two"}])
    obj = await kube.wait_reason("one", "InvalidSpec")
    assert "is a member of" in condition(obj, "Ready")["message"]


async def test_ignored_fields_are_applied_at_creation_and_then_left_unchanged(
    kube: Kube, database: Database, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_a")
    await kube.apply(
        "app",
        name=f"{prefix}_app",
        connectionLimit=5,
        drift={"ignore": ["memberOf", "connectionLimit", "parameters"]},
    )
    await kube.wait_ready("app")
    role = await database.role(f"{prefix}_app")
    assert role is not None
    assert role["rolconnlimit"] == 5
    await database.execute(
        f"GRANT {prefix}_a TO {prefix}_app; ALTER ROLE {prefix}_app CONNECTION LIMIT 9;"
        f"ALTER ROLE {prefix}_app SET work_mem = '1MB'; ALTER ROLE {prefix}_app LOGIN"
    )
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == ["login"]
    role = await database.role(f"{prefix}_app")
    assert role is not None
    assert (role["rolconnlimit"], role["rolconfig"]) == (9, ["work_mem=1MB"])
    assert await memberships(database, f"{prefix}_app") == {f"{prefix}_a": (False, True, True)}


@OPTIONS
@pytest.mark.slow
async def test_the_implicit_membership_in_a_role_it_created_is_no_drift(stage: Stage, prefix: str) -> None:
    async with running(stage.controller(None, "--allow", "createrole")), stage.database() as database:
        await stage.kube.apply("app", name=f"{prefix}_app", createrole=True)
        await stage.kube.wait_ready("app")
        await database.execute(f"SET ROLE {prefix}_app; CREATE ROLE {prefix}_made; RESET ROLE")
        await stage.kube.apply("app", name=f"{prefix}_app", createrole=True, comment="looked at")
        await database.wait_role(f"{prefix}_app", lambda row: row["comment"] == "looked at", "comment")
        assert await memberships(database, f"{prefix}_app") == {f"{prefix}_made": (True, False, False)}
        await database.execute(f"GRANT {prefix}_made TO {prefix}_app WITH SET TRUE")
        obj = await stage.kube.wait_for("app", drifts(1), "driftCount 1")
        assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
        await database.execute(f"DROP ROLE {prefix}_made")
