"""Attributes and memberships that others granted to a role, and a policy that changes: what is revoked, what stays."""

import pytest

from tests.acceptance.two_teams import CONTROLLER_ROLE, SERVER, TwoTeams, joining, role, setting
from tests.acceptance.world import Json, condition

pytestmark = pytest.mark.slow

GROUPS = "SELECT array_agg(roleid::regrole::text ORDER BY 1) FROM pg_auth_members WHERE member = '{0}'::regrole"


class TestAcquiredPowers:
    @pytest.mark.parametrize(
        "drift",
        [{}, {"ignore": ["superuser", "bypassrls", "memberOf"]}],
        ids=["", "ignore"],
    )
    async def test_acquired_attributes_and_memberships_are_revoked_even_if_ignored_by_the_object(
        self, two_teams: TwoTeams, drift: Json
    ) -> None:
        name = role()
        await two_teams.declare("mine", name, drift=drift, memberOf=[{"role": "readers"}])
        name = two_teams.fill(name)
        await two_teams.database.execute(
            f"ALTER ROLE {name} SUPERUSER BYPASSRLS; GRANT finance, {CONTROLLER_ROLE} TO {name}"
        )
        await two_teams.database.wait_role(name, lambda row: not row["rolsuper"] and not row["rolbypassrls"], "neither")
        await two_teams.database.wait_value(GROUPS.format(name), ["readers"])
        await two_teams.teams[0].wait_event("DriftCorrected", about="mine")
        await two_teams.teams[0].wait_ready("mine")

    async def test_acquired_attributes_and_memberships_are_reported_and_kept_under_report(
        self, two_teams: TwoTeams
    ) -> None:
        name = role()
        await two_teams.declare("mine", name, drift={"policy": "Report"})
        name = two_teams.fill(name)
        await two_teams.database.execute(f"ALTER ROLE {name} SUPERUSER; GRANT finance TO {name}")
        obj = await two_teams.teams[0].wait_reason("mine", "DriftReported")
        assert obj["status"]["lastDrift"]["fields"] == ["superuser", "memberOf"]
        row = await two_teams.database.role(name)
        assert row is not None
        assert row["rolsuper"]

    async def test_ignored_changes_that_policy_allows_are_kept(self, two_teams: TwoTeams) -> None:
        name = role()
        await two_teams.declare("mine", name, drift={"ignore": ["memberOf", "connectionLimit"]})
        name = two_teams.fill(name)
        await two_teams.database.execute(f"GRANT readers TO {name}; ALTER ROLE {name} CONNECTION LIMIT 5 SUPERUSER")
        held = await two_teams.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        assert held["rolconnlimit"] == 5
        assert await two_teams.database.fetchval(GROUPS.format(name)) == ["readers"]

    @pytest.mark.parametrize(
        "refused", [{"bypassrls": True}, joining("readers", "@b_app"), setting("log_statement", "all")]
    )
    async def test_acquired_attributes_and_memberships_are_revoked_while_the_object_is_refused_for_another_reason(
        self, two_teams: TwoTeams, refused: Json
    ) -> None:
        name = role()
        a = two_teams.teams[0]
        await two_teams.declare("mine", name, login=True, comment="as it was")
        spec = {"login": True, "comment": "never", **two_teams.fill(refused)}
        await a.apply("mine", name=two_teams.fill(name), serverRef={"name": SERVER}, **spec)
        obj = await a.wait_reason("mine", "NotAllowed")
        said = condition(obj, "Ready")["message"]
        name = two_teams.fill(name)
        await two_teams.database.execute(f"ALTER ROLE {name} SUPERUSER; GRANT finance TO {name}")
        row = await two_teams.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        await two_teams.database.wait_value(GROUPS.format(name), None)
        assert (row["comment"], row["rolcanlogin"], row["rolbypassrls"]) == ("as it was", True, False)
        await a.wait_event("DriftCorrected", about="mine")
        obj = await a.wait_for("mine", lambda obj: obj["status"].get("driftCount", 0) >= 1, "driftCount")
        assert condition(obj, "Ready")["message"] == said

    @pytest.mark.since(15, "prefixes of loaded modules are reserved")
    async def test_acquired_attributes_are_revoked_while_postgresql_rejects_a_parameter_that_the_policy_allows(
        self, two_teams: TwoTeams
    ) -> None:
        a, name = two_teams.teams[0], two_teams.fill(role())
        await two_teams.allow(parameters=["plpgsql.no_such"])
        await two_teams.declare("mine", name, login=True)
        await a.apply("mine", name=name, serverRef={"name": SERVER}, login=True, **setting("plpgsql.no_such"))
        obj = await a.wait_reason("mine", "DatabaseError")
        said = condition(obj, "Ready")["message"]
        await two_teams.database.execute(f"ALTER ROLE {name} SUPERUSER")
        await two_teams.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        obj = await a.wait_for("mine", lambda obj: obj["status"].get("driftCount", 0) >= 1, "driftCount")
        assert (condition(obj, "Ready")["reason"], condition(obj, "Ready")["message"]) == ("DatabaseError", said)


async def test_a_chain_of_roles_that_becomes_powerful_is_refused_and_gets_no_new_member(
    two_teams: TwoTeams,
) -> None:
    lower, upper, third = role(), role(), role()
    a = two_teams.teams[0]
    await two_teams.declare("upper", upper, **joining("readers"))
    await two_teams.declare("lower", lower, **joining(upper))
    await two_teams.database.execute("GRANT pg_execute_server_program TO readers")
    before = await two_teams.snapshot()
    # The controller notices changes beyond a joined role when it reconciles the object.
    await a.patch("lower", {"metadata": {"labels": {"looked": "at"}}})
    try:
        await a.apply("third", name=two_teams.fill(third), serverRef={"name": SERVER}, **two_teams.fill(joining(lower)))
        await two_teams.refused(a, "third", "NotAllowed", "pg_execute_server_program")
        await two_teams.refused(a, "upper", "NotAllowed", "pg_execute_server_program")
        assert await two_teams.snapshot() == before
    finally:
        await two_teams.database.execute("REVOKE pg_execute_server_program FROM readers")
    for name in ("upper", "lower", "third"):
        await a.wait_ready(name)


#: Spec of an object, a policy that allows it, and one that does not.
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


class TestPolicyChanges:
    @pytest.mark.parametrize("which", POLICIES)
    async def test_a_stricter_policy_refuses_and_keeps_roles_and_a_looser_one_applies_immediately(
        self, two_teams: TwoTeams, which: str
    ) -> None:
        spec, loose, tight = POLICIES[which]
        a, name = two_teams.teams[0], role()
        await two_teams.allow(**loose)
        await a.apply("mine", name=two_teams.fill(name), serverRef={"name": SERVER}, **two_teams.fill(spec))
        await a.wait_ready("mine")
        before = await two_teams.snapshot()
        await two_teams.allow(**tight)
        await two_teams.refused(a, "mine", "NotAllowed")
        late = role()
        await a.apply("late", name=two_teams.fill(late), serverRef={"name": SERVER}, **two_teams.fill(spec))
        await two_teams.refused(a, "late", "NotAllowed")
        assert await two_teams.snapshot() == before
        await self._drift(two_teams, two_teams.fill(name))
        for one in ("mine", "late"):
            await two_teams.controller.back_off(a, one)
        await two_teams.allow(**loose)
        # Sooner than by back-off, which is longer by now.
        await a.wait_ready("mine")
        await a.wait_ready("late")

    async def _drift(self, two_teams: TwoTeams, name: str) -> None:
        """Makes changes of others, of which the controller reverts those that give power, and keeps restrictions."""
        await two_teams.database.execute(
            f"ALTER ROLE {name} SUPERUSER REPLICATION LOGIN CONNECTION LIMIT 7; GRANT {CONTROLLER_ROLE} TO {name};"
            f"ALTER ROLE {name} SET temp_buffers = '1MB'"
        )
        row = await two_teams.database.wait_role(
            name, lambda row: not (row["rolsuper"] or row["rolreplication"] or row["rolcanlogin"]), "nothing given"
        )
        assert row["rolconnlimit"] == 7
        assert CONTROLLER_ROLE not in (await two_teams.database.fetchval(GROUPS.format(name)) or [])
        assert "temp_buffers=1MB" not in (row["rolconfig"] or [])
        obj = await two_teams.teams[0].get("mine")
        assert obj is not None
        assert condition(obj, "Ready")["reason"] == "NotAllowed"

    async def test_a_newly_protected_role_is_neither_changed_nor_dropped(self, two_teams: TwoTeams) -> None:
        a, name = two_teams.teams[0], role()
        await two_teams.declare("mine", name, deletionPolicy="Drop")
        before = await two_teams.snapshot()
        await two_teams.servers.patch(SERVER, {"spec": {"protectedRoles": [two_teams.fill(name)]}})
        await two_teams.refused(a, "mine", "Protected", name)
        await a.patch("mine", {"spec": {"comment": "changed"}})
        await a.delete("mine")
        await a.wait_reason("mine", "DropBlocked")
        assert await two_teams.snapshot() == before
        await two_teams.servers.patch(SERVER, {"spec": {"protectedRoles": two_teams.fill(["rds*", "@a_holy*"])}})
        await a.wait_gone("mine")

    async def test_adoption_and_drops_happen_only_while_policy_allows_them(self, two_teams: TwoTeams) -> None:
        a, there, mine = two_teams.teams[0], two_teams.fill(role()), role()
        await two_teams.database.execute(f"CREATE ROLE {there}")
        await two_teams.declare("mine", mine, deletionPolicy="Drop")
        await two_teams.allow(adopt=False, drop=False)
        before = await two_teams.snapshot()
        await a.apply("there", name=there, adopt=True, serverRef={"name": SERVER})
        await two_teams.refused(a, "there", "NotAllowed", "adoption")
        await a.delete("mine")
        await two_teams.refused(a, "mine", "DropBlocked", "does not allow objects to drop")
        assert await two_teams.snapshot() == before
        for one in ("there", "mine"):
            await two_teams.controller.back_off(a, one)
        await two_teams.allow()
        await a.wait_ready("there")
        await a.wait_gone("mine")
