"""What a role was given by others, and a policy that changes: what is taken away, and what stays."""

import pytest

from tests.acceptance.court import SERVER, STEWARD, Court, joining, role, setting
from tests.acceptance.world import Json, condition

pytestmark = pytest.mark.slow

GROUPS = "SELECT array_agg(roleid::regrole::text ORDER BY 1) FROM pg_auth_members WHERE member = '{0}'::regrole"


class TestPowersThatWereAcquired:
    @pytest.mark.parametrize(
        "drift",
        [{}, {"ignore": ["superuser", "bypassrls", "memberOf"]}],
        ids=["", "ignore"],
    )
    async def test_are_taken_away_whatever_the_object_leaves_to_others(self, court: Court, drift: Json) -> None:
        name = role()
        await court.declare("mine", name, drift=drift, memberOf=[{"role": "readers"}])
        name = court.fill(name)
        await court.database.execute(f"ALTER ROLE {name} SUPERUSER BYPASSRLS; GRANT finance, {STEWARD} TO {name}")
        await court.database.wait_role(name, lambda row: not row["rolsuper"] and not row["rolbypassrls"], "neither")
        await court.database.wait_value(GROUPS.format(name), ["readers"])
        await court.teams[0].wait_event("DriftCorrected", about="mine")
        await court.teams[0].wait_ready("mine")

    async def test_are_said_and_left_under_report(self, court: Court) -> None:
        name = role()
        await court.declare("mine", name, drift={"policy": "Report"})
        name = court.fill(name)
        await court.database.execute(f"ALTER ROLE {name} SUPERUSER; GRANT finance TO {name}")
        obj = await court.teams[0].wait_reason("mine", "DriftReported")
        assert obj["status"]["lastDrift"]["fields"] == ["superuser", "memberOf"]
        row = await court.database.role(name)
        assert row is not None
        assert row["rolsuper"]

    async def test_what_the_object_could_have_asked_for_is_left(self, court: Court) -> None:
        name = role()
        await court.declare("mine", name, drift={"ignore": ["memberOf", "connectionLimit"]})
        name = court.fill(name)
        await court.database.execute(f"GRANT readers TO {name}; ALTER ROLE {name} CONNECTION LIMIT 5 SUPERUSER")
        held = await court.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        assert held["rolconnlimit"] == 5
        assert await court.database.fetchval(GROUPS.format(name)) == ["readers"]

    @pytest.mark.parametrize(
        "refused", [{"bypassrls": True}, joining("readers", "@b_app"), setting("log_statement", "all")]
    )
    async def test_are_taken_away_while_the_object_is_refused_for_something_else(
        self, court: Court, refused: Json
    ) -> None:
        name = role()
        a = court.teams[0]
        await court.declare("mine", name, login=True, comment="as it was")
        spec = {"login": True, "comment": "never", **court.fill(refused)}
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **spec)
        obj = await a.wait_reason("mine", "NotAllowed")
        said = condition(obj, "Ready")["message"]
        name = court.fill(name)
        await court.database.execute(f"ALTER ROLE {name} SUPERUSER; GRANT finance TO {name}")
        row = await court.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        await court.database.wait_value(GROUPS.format(name), None)
        assert (row["comment"], row["rolcanlogin"], row["rolbypassrls"]) == ("as it was", True, False)
        await a.wait_event("DriftCorrected", about="mine")
        obj = await a.wait_for("mine", lambda obj: obj["status"].get("driftCount", 0) >= 1, "driftCount")
        assert condition(obj, "Ready")["message"] == said


async def test_a_chain_that_an_administrator_makes_powerful_is_said_of_every_link_and_no_link_is_added(
    court: Court,
) -> None:
    lower, upper, third = role(), role(), role()
    a = court.teams[0]
    await court.declare("upper", upper, **joining("readers"))
    await court.declare("lower", lower, **joining(upper))
    await court.database.execute("GRANT pg_execute_server_program TO readers")
    before = await court.picture()
    # What lies behind a role that was joined is seen when the object is looked at.
    await a.patch("lower", {"metadata": {"labels": {"looked": "at"}}})
    try:
        await a.apply("third", name=court.fill(third), serverRef={"name": SERVER}, **court.fill(joining(lower)))
        await court.refused(a, "third", "NotAllowed", "pg_execute_server_program")
        await court.refused(a, "upper", "NotAllowed", "pg_execute_server_program")
        assert await court.picture() == before
    finally:
        await court.database.execute("REVOKE pg_execute_server_program FROM readers")
    for name in ("upper", "lower", "third"):
        await a.wait_ready(name)


#: What an object asks for, and the policy by which it may, or may not.
POLICIES: dict[str, tuple[Json, Json, Json]] = {
    "attributes": (
        {"createdb": True, "bypassrls": True},
        {"attributes": ["createdb", "bypassrls"]},
        {"attributes": []},
    ),
    "memberOf": (joining("finance", "readers"), {"memberOf": ["finance", "readers"]}, {"memberOf": ["readers"]}),
    "a way to programs": (
        joining("@a_program"),
        {"memberOf": ["{namespace}_*", "pg_execute_server_program"]},
        {"memberOf": ["{namespace}_*"]},
    ),
    "parameters": (
        {"parameters": {"log_statement": "all", "work_mem": "8MB"}},
        {"parameters": ["LOG_STATEMENT"]},
        {"parameters": []},
    ),
    "roleNames": ({"comment": "mine"}, {}, {"roleNames": ["shared_*"]}),
    "namespaces": ({"comment": "mine"}, {}, {"namespaces": {"matchNames": ["nobody"]}}),
}


class TestAPolicyThatChanges:
    @pytest.mark.parametrize("which", POLICIES)
    async def test_refuses_and_keeps_what_is_there_and_applies_at_once_what_it_allows_again(
        self, court: Court, which: str
    ) -> None:
        spec, loose, tight = POLICIES[which]
        a, name = court.teams[0], role()
        await court.allow(**loose)
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **court.fill(spec))
        await a.wait_ready("mine")
        before = await court.picture()
        await court.allow(**tight)
        await court.refused(a, "mine", "NotAllowed")
        late = role()
        await a.apply("late", name=court.fill(late), serverRef={"name": SERVER}, **court.fill(spec))
        await court.refused(a, "late", "NotAllowed")
        assert await court.picture() == before
        await self._drift(court, court.fill(name))
        for one in ("mine", "late"):
            await court.controller.weary(a, one)
        await court.allow(**loose)
        # At once: the back-off of what was refused is longer by now.
        await a.wait_ready("mine")
        await a.wait_ready("late")

    async def _drift(self, court: Court, name: str) -> None:
        """What others do meanwhile is taken back as far as it gives something, and not where it takes something."""
        await court.database.execute(
            f"ALTER ROLE {name} SUPERUSER REPLICATION LOGIN CONNECTION LIMIT 7; GRANT {STEWARD} TO {name};"
            f"ALTER ROLE {name} SET temp_buffers = '1MB'"
        )
        row = await court.database.wait_role(
            name, lambda row: not (row["rolsuper"] or row["rolreplication"] or row["rolcanlogin"]), "nothing given"
        )
        assert row["rolconnlimit"] == 7
        assert STEWARD not in (await court.database.fetchval(GROUPS.format(name)) or [])
        assert "temp_buffers=1MB" not in (row["rolconfig"] or [])
        obj = await court.teams[0].get("mine")
        assert obj is not None
        assert condition(obj, "Ready")["reason"] == "NotAllowed"

    async def test_protects_a_role_from_then_on(self, court: Court) -> None:
        a, name = court.teams[0], role()
        await court.declare("mine", name, deletionPolicy="Drop")
        before = await court.picture()
        await court.servers.patch(SERVER, {"spec": {"protectedRoles": [court.fill(name)]}})
        await court.refused(a, "mine", "Protected", name)
        await a.patch("mine", {"spec": {"comment": "changed"}})
        await a.delete("mine")
        await a.wait_reason("mine", "DropBlocked")
        assert await court.picture() == before
        await court.servers.patch(SERVER, {"spec": {"protectedRoles": court.fill(["rds*", "@a_holy*"])}})
        await a.wait_gone("mine")

    async def test_forbids_adoption_and_drops(self, court: Court) -> None:
        a, there, mine = court.teams[0], court.fill(role()), role()
        await court.database.execute(f"CREATE ROLE {there}")
        await court.declare("mine", mine, deletionPolicy="Drop")
        await court.allow(adopt=False, drop=False)
        before = await court.picture()
        await a.apply("there", name=there, adopt=True, serverRef={"name": SERVER})
        await court.refused(a, "there", "NotAllowed", "adoption")
        await a.delete("mine")
        await court.refused(a, "mine", "DropBlocked", "does not allow objects to drop")
        assert await court.picture() == before
        for one in ("there", "mine"):
            await court.controller.weary(a, one)
        await court.allow()
        await a.wait_ready("there")
        await a.wait_gone("mine")
