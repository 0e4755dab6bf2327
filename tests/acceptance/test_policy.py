"""Ways to gain power, tried by the author of one team's PgRoles: each is refused with a message, and nothing
changes.
"""

import pytest

from pgrole_controller.local.apiserver import LocalApiError
from tests.acceptance.two_teams import CONTROLLER_ROLE, SERVER, TwoTeams, joining, role, setting
from tests.acceptance.world import Json, is_ready

OWN = {"name": "@a_new"}

#: Requested spec, reason of the refusal, and words of its message.
ATTACKS: dict[str, tuple[Json, str, list[str]]] = {
    **{
        f"is {power}": ({**OWN, power: True}, "NotAllowed", [power])
        for power in ("superuser", "createrole", "createdb")
    },
    **{f"is {power}": ({**OWN, power: True}, "NotAllowed", [power]) for power in ("replication", "bypassrls")},
    "adopts the bootstrap superuser": ({"name": "postgres"}, "Protected", ["postgres"]),
    "adopts the controller's role": ({"name": CONTROLLER_ROLE}, "Protected", ["the controller's own role"]),
    "takes another team's name": ({"name": "@b_app"}, "NotAllowed", ["spec.name", "@a_*"]),
    "takes another team's free name": ({"name": "@b_free"}, "NotAllowed", ["spec.name"]),
    "takes a group": ({"name": "readers"}, "NotAllowed", ["spec.name"]),
    "takes what another team has under a shared name": ({"name": "shared_theirs"}, "Conflict", ["@b/shared"]),
    "takes a protected name": ({"name": "rds_superuser"}, "Protected", ["rds*"]),
    "takes a protected name of its own": ({"name": "@a_holy_one"}, "Protected", ["@a_holy*"]),
    "adopts a way to the superuser": ({"name": "@a_way"}, "NotAllowed", ["adoption", "postgres"]),
    "adopts a long way to the superuser": ({"name": "@a_far"}, "NotAllowed", ["adoption", "postgres"]),
    "adopts a way to the controller": ({"name": "@a_near"}, "NotAllowed", ["adoption", CONTROLLER_ROLE]),
    "adopts createrole": ({"name": "@a_maker"}, "NotAllowed", ["adoption", "createrole"]),
    "adopts bypassrls": ({"name": "@a_seer"}, "NotAllowed", ["adoption", "bypassrls"]),
    "adopts a member of what it may not join": ({"name": "@a_legacy"}, "NotAllowed", ["adoption", "finance"]),
    "adopts it and leaves the membership to others": (
        {"name": "@a_legacy", "drift": {"ignore": ["memberOf"]}},
        "NotAllowed",
        ["adoption", "finance"],
    ),
    "adopts it and only reports": (
        {"name": "@a_legacy", "drift": {"policy": "Report"}},
        "NotAllowed",
        ["adoption", "finance"],
    ),
    "joins a superuser": ({**OWN, **joining("postgres")}, "NotAllowed", ['membership in "postgres"']),
    "joins the controller": ({**OWN, **joining(CONTROLLER_ROLE)}, "NotAllowed", [f'membership in "{CONTROLLER_ROLE}"']),
    "joins another team": ({**OWN, **joining("@b_app")}, "NotAllowed", ['membership in "@b_app"']),
    "joins another team without inheriting": (
        {**OWN, **joining("@b_app", inherit=False, set=False)},
        "NotAllowed",
        ['membership in "@b_app"'],
    ),
    "joins what reads all": ({**OWN, **joining("pg_read_all_data")}, "NotAllowed", ["pg_read_all_data"]),
    "joins what runs programs": ({**OWN, **joining("pg_execute_server_program")}, "NotAllowed", ["pg_execute"]),
    "joins a way to the superuser": ({**OWN, **joining("@a_way")}, "NotAllowed", ["would reach", "postgres"]),
    "joins a long way to it": ({**OWN, **joining("readers", "@a_far")}, "NotAllowed", ["would reach", "postgres"]),
    "joins a way to the controller": ({**OWN, **joining("@a_near")}, "NotAllowed", ["would reach", CONTROLLER_ROLE]),
    "joins a way to programs": ({**OWN, **joining("@a_program")}, "NotAllowed", ["pg_execute_server_program"]),
    "joins createrole": ({**OWN, **joining("@a_maker")}, "NotAllowed", ["@a_maker (createrole)"]),
    "joins replication": ({**OWN, **joining("@a_clone")}, "NotAllowed", ["@a_clone (replication)"]),
    "joins bypassrls": ({**OWN, **joining("@a_seer")}, "NotAllowed", ["@a_seer (bypassrls)"]),
    "joins a way to a protected role": ({**OWN, **joining("@a_guard")}, "NotAllowed", ["rds_superuser (protected)"]),
    "passes a common group on": ({**OWN, **joining("readers", admin=True)}, "NotAllowed", ['admin of "readers"']),
    "joins a look-alike of readers": ({**OWN, **joining("re\u0430ders")}, "NotAllowed", ["re\u0430ders"]),
    "joins readers in capitals": ({**OWN, **joining("READERS")}, "NotAllowed", ["READERS"]),
    "joins readers and a space": ({**OWN, **joining("readers ")}, "NotAllowed", ["membership"]),
    "joins readers and nothing visible": ({**OWN, **joining("readers\u200b")}, "NotAllowed", ["membership"]),
    "joins whatever there is": ({**OWN, **joining("*")}, "NotAllowed", ['membership in "*"']),
    "sets role": ({**OWN, **setting("role", "postgres")}, "NotAllowed", ['"role"']),
    "sets session_authorization": (
        {**OWN, **setting("Session_Authorization", "postgres")},
        "NotAllowed",
        ['"session_authorization"'],
    ),
    "sets role in one database": (
        {**OWN, "databaseParameters": [{"database": "postgres", "parameters": {"ROLE": "postgres"}}]},
        "NotAllowed",
        ['"role"'],
    ),
    **{
        f"sets {name}": ({**OWN, **setting(name, value)}, "NotAllowed", [f'"{name.lower()}"'])
        for name, value in {
            "session_preload_libraries": "evil",
            "Log_Statement": "none",
            "log_min_duration_statement": "-1",
            "log_min_messages": "panic",
            "session_replication_role": "replica",
            "allow_system_table_mods": "on",
            "dynamic_library_path": "/tmp",
            "lo_compat_privileges": "on",
            "plpgsql.variable_conflict": "use_variable",
            "auto_explain.log_min_duration": "0",
            "plperl.on_init": "system('id')",
            "PLPerl.On_Init": "system('id')",
            "pg_stat_statements.track": "none",
        }.items()
    },
    "sets what only the server sets": (
        {**OWN, **setting("shared_preload_libraries")},
        "InvalidSpec",
        ["shared_preload"],
    ),
    "sets what there is not": ({**OWN, **setting("no_such_thing")}, "InvalidSpec", ["no_such_thing"]),
}

NAMES = [
    "{A}_app",
    "@b_",
    "@",
    "@a",
    "\u0430@a_x",
    "@a\u200b_x",
    " @a_x",
    "@a _x",
    "@a\uff3fx",
    "@a-x",
    "\n@a_x",
    "*",
    "?*",
    "[a-z]*",
    "[@a]_x",
    "{namespace}_x",
    "Shared_x",
    "sh\u0430red_x",
]


async def test_an_attack_is_refused_with_the_violated_rule_and_changes_nothing(two_teams: TwoTeams) -> None:
    before = await two_teams.snapshot()
    team = two_teams.teams[0]
    attacks = {f"attack-{number}": attack for number, attack in enumerate(ATTACKS.values())}
    await team.apply_all(
        {
            name: {
                "adopt": True,
                "deletionPolicy": "Drop",
                **two_teams.fill({**spec, "name": spec["name"].replace("@a_new", f"@a_new_{name}")}),
                "serverRef": {"name": SERVER},
            }
            for name, (spec, _, _) in attacks.items()
        }
    )
    for name, (_, reason, words) in attacks.items():
        await two_teams.refused(team, name, reason, *words)
    assert await two_teams.snapshot() == before
    await team.delete_each(attacks)
    for name in attacks:
        await team.wait_gone(name)
    assert await two_teams.snapshot() == before


async def test_a_name_that_only_resembles_the_teams_own_is_refused(two_teams: TwoTeams) -> None:
    before = await two_teams.snapshot()
    team = two_teams.teams[0]
    names = [two_teams.fill(name.replace("{A}", two_teams.a.upper())) for name in NAMES]
    await team.apply_all(
        {
            f"name-{number}": {"name": name, "adopt": True, "deletionPolicy": "Drop", "serverRef": {"name": SERVER}}
            for number, name in enumerate(names)
        }
    )
    for number in range(len(names)):
        await two_teams.refused(team, f"name-{number}", "NotAllowed", "spec.name", "@a_*")
    assert await two_teams.snapshot() == before


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "pg_mine"},
        {"name": "public"},
        {"name": "@a_" + "x" * 63},
        {"name": "@a_" + "\u00fc" * 30},
        {"name": "@a_nul\0"},
        {"name": ""},
        {**OWN, **joining("x" * 64)},
        {**OWN, **joining(*(f"@a_{number}" for number in range(65)))},
        {**OWN, **setting("work_mem; ALTER ROLE x SUPERUSER")},
        {**OWN, **setting("work_mem", "x" * 1025)},
        {**OWN, "comment": "x" * 1025},
        {**OWN, "reassignOwnedTo": "x" * 64, "deletionPolicy": "Drop"},
    ],
)
async def test_an_invalid_spec_is_refused_at_admission(two_teams: TwoTeams, spec: Json) -> None:
    with pytest.raises(LocalApiError) as caught:
        await two_teams.teams[0].apply("unfit", **two_teams.fill(spec), serverRef={"name": SERVER})
    assert caught.value.status == 422


@pytest.mark.parametrize("change", [{"name": "@b_app"}, {"name": None}, {"serverRef": {"name": "default"}}])
async def test_an_object_with_a_role_cannot_change_its_name_or_server(two_teams: TwoTeams, change: Json) -> None:
    await two_teams.declare("mine", role())
    before = await two_teams.snapshot()
    with pytest.raises(LocalApiError) as caught:
        await two_teams.teams[0].patch("mine", {"spec": two_teams.fill(change)})
    assert caught.value.status == 422
    assert await two_teams.snapshot() == before


async def test_a_refused_change_leaves_the_role_unchanged(two_teams: TwoTeams) -> None:
    name = role()
    await two_teams.declare("mine", name, comment="as it was", memberOf=[{"role": "readers"}])
    before = await two_teams.snapshot()
    await two_teams.teams[0].apply(
        "mine", name=two_teams.fill(name), serverRef={"name": SERVER}, login=True, comment="mine", superuser=True
    )
    await two_teams.refused(two_teams.teams[0], "mine", "NotAllowed", "superuser")
    assert await two_teams.snapshot() == before


async def test_the_attacks_leave_the_neighbours_objects_as_they_were(two_teams: TwoTeams) -> None:
    """Ready alone would be the state before the attacks: their drift is still repaired and counted."""
    b = two_teams.teams[1]
    for name, owned in (("app", f"{two_teams.b}_app"), ("shared", "shared_theirs")):
        obj = await b.wait_ready(name)
        assert obj["status"]["role"]["name"] == owned
        count = obj["status"].get("driftCount", 0) + 1
        await two_teams.database.execute(f'ALTER ROLE "{owned}" CREATEDB')
        await b.wait_for(
            name,
            lambda obj, count=count: is_ready(obj) and obj["status"].get("driftCount") == count,  # type: ignore[misc]
            "its drift is repaired",
        )
        assert not (await two_teams.database.role(owned) or {})["rolcreatedb"]
