"""`doctor` on a real server: what it finds, and that each printed statement fixes the finding."""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.commands.doctor_server import check_server
from pgrole_controller.commands.server_reading import of_dsn
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.findings.finding import Finding, FindingState
from pgrole_controller.core.server_options import DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.diagnosis import read_server_facts
from pgrole_controller.postgres.privileges.database_schema import install_database
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.session_settings import PINNED
from tests.commands import run_command
from tests.integration.look_support import by_check, examined, follow, states

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN
HOSTILE = 'ev"il\x1b[31m; DROP'


@dataclass(frozen=True, slots=True)
class Patient:
    """A new database and a new login on the module's server. `admin` is a superuser in that database."""

    server: PostgresServer
    admin: Connection
    database: str
    login: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.login, self.database, password="x")

    @property
    def admins_dsn(self) -> str:
        return self.server.dsn(database=self.database)


@pytest_asyncio.fixture(loop_scope="session", params=["plain", "hostile"])
async def patient(server: PostgresServer, request: pytest.FixtureRequest) -> AsyncIterator[Patient]:
    """Its login has only LOGIN."""
    token = secrets.token_hex(4)
    database, login = (
        (f"d_{token}", f"r_{token}") if request.param == "plain" else (f"{HOSTILE}{token}", f"{HOSTILE}r{token}")
    )
    first = await asyncpg.connect(server.dsn())
    try:
        for statement in ("CREATE DATABASE {}", "CREATE ROLE {} LOGIN PASSWORD 'x'"):
            name = database if "DATABASE" in statement else login
            await first.execute(statement.format('"' + name.replace('"', '""') + '"'))
        admin = await asyncpg.connect(server.dsn(database=database))
        yield Patient(server, admin, database, login)
        await admin.close()
        await first.execute('DROP DATABASE "' + database.replace('"', '""') + '" WITH (FORCE)')
    finally:
        await first.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def of_pgserver(dsn: str) -> ServerConfig:
    """The server of a PgServer with this connection, whose detection and limits are known."""
    return replace(of_dsn(dsn), age=("2026-11-22T12:00:00Z", "uid"))


async def test_the_printed_statements_give_a_login_the_missing_rights(patient: Patient) -> None:
    found = await examined(patient.dsn)
    assert PROBLEM in states(found["privileges"])
    assert states(found["detection"]) == {WARNING}
    assert "Poll" in found["detection"][0].text
    await follow(patient.server, [*found["privileges"], *found["detection"], *found["schema pgrole"]])
    found = await examined(patient.dsn)
    assert states(found["privileges"]) == {OK}
    assert [one.text for one in found["detection"]] == ["Auto chooses Watch; changed passwords are not seen"]
    async with connect(Endpoint(patient.dsn), "work") as connection:
        await install(connection)
    found = await examined(patient.dsn)
    assert states(found["schema pgrole"]) == states(found["detection"]) == {OK}


async def test_the_printed_grants_make_a_superusers_schema_usable(patient: Patient) -> None:
    await install(patient.admin)
    await patient.admin.execute(f"ALTER ROLE {quoted(patient.login)} CREATEROLE")
    found = await examined(patient.dsn)
    assert states(found["detection"]) == {PROBLEM}
    await follow(patient.server, found["detection"])
    found = await examined(patient.dsn)
    assert states(found["detection"]) == states(found["schema pgrole"]) == states(found["claims"]) == {OK}
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_a_monitoring_login_examines_the_named_role(patient: Patient) -> None:
    await patient.admin.execute(f"GRANT pg_monitor TO {quoted(patient.login)}")
    alone = await examined(patient.dsn)
    assert states(alone["privileges"]) == states(alone["detection"]) == {UNKNOWN}
    assert not [remedy for one in alone["privileges"] for remedy in one.remedies]
    named = await examined(patient.dsn, "postgres")
    assert (states(named["privileges"]), states(named["detection"])) == ({OK}, {OK})
    missing = await examined(patient.dsn, "no such role")
    assert states(missing["privileges"]) == {UNKNOWN}
    assert states(missing["version"]) == {OK}  # the failed check hides no other


async def test_a_controller_that_installs_nothing_is_not_expected_to(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGROLE_INSTALL", "false")
    declared = (patient.database,)
    found = by_check(await check_server(of_pgserver(patient.admins_dsn), None, declared, None))
    triggers = f'event triggers of "{patient.database}"'
    for check in ("schema pgrole", "detection", triggers):
        assert [one.state for one in found[check]] == [WARNING]
        assert found[check][0].remedies[0].command.startswith("pgrole-controller sql ")
    assert found["detection"][0].text.startswith("Auto chooses Poll, with claims in status: ")
    await install(patient.admin)
    await patient.admin.execute(queries.install_event_triggers())
    found = by_check(await check_server(of_pgserver(patient.admins_dsn), None, declared, None))
    assert states(found["schema pgrole"]) == states(found["detection"]) == states(found[triggers]) == {OK}
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_an_older_schema_is_reported_with_its_version(patient: Patient) -> None:
    await install(patient.admin)
    await patient.admin.execute("UPDATE pgrole.installation SET version = version - 1")
    (finding,) = (await examined(patient.admins_dsn))["schema pgrole"]
    assert finding.state is WARNING
    assert "version 3 is older than 4" in finding.text
    await check_remedy(patient.admins_dsn, "pgrole-controller", "pgrole-controller sql | psql")
    await check_remedy(patient.admins_dsn, "kubectl-pgrole", "kubectl pgrole sql | psql")
    await install(patient.admin)
    assert states((await examined(patient.admins_dsn))["schema pgrole"]) == {OK}
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_an_incomplete_schema_is_a_problem_until_it_is_installed_again(patient: Patient) -> None:
    await install(patient.admin)
    assert states((await examined(patient.admins_dsn))["schema pgrole"]) == {OK}
    await patient.admin.execute("DROP FUNCTION pgrole.take_claim, pgrole.expect_applied CASCADE")
    (finding,) = (await examined(patient.admins_dsn))["schema pgrole"]
    assert finding.state is PROBLEM
    assert finding.text.startswith("parts of schema pgrole are missing (")
    await check_remedy(patient.admins_dsn, "pgrole-controller", "pgrole-controller sql | psql")
    await install(patient.admin)
    assert states((await examined(patient.admins_dsn))["schema pgrole"]) == {OK}
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


@pytest.mark.parametrize("how", ["DISABLE TRIGGER", "ENABLE TRIGGER", "ENABLE REPLICA TRIGGER"])
async def test_a_trigger_that_does_not_fire_in_every_session_is_a_problem_until_it_is_installed_again(
    patient: Patient, how: str
) -> None:
    await install(patient.admin)
    await patient.admin.execute(f"ALTER TABLE pgrole.role_state {how} announce_update")
    (finding,) = (await examined(patient.admins_dsn))["schema pgrole"]
    assert finding.state is PROBLEM
    assert finding.text.startswith("a trigger of schema pgrole does not fire in every session")
    await patient.admin.execute(queries.install())
    assert states((await examined(patient.admins_dsn))["schema pgrole"]) == {OK}
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_a_locked_table_is_not_taken_for_one_that_the_login_may_not_read(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PINNED, "lock_timeout", "300ms")
    await install(patient.admin)
    async with patient.admin.transaction():
        await patient.admin.execute("LOCK TABLE pgrole.claim IN ACCESS EXCLUSIVE MODE")
        found, strangers = await examined(patient.admins_dsn), await examined(patient.dsn)
    for check in ("claims", "databases"):
        assert [one.state for one in found[check]] == [UNKNOWN]
        assert found[check][0].text.startswith("pgrole.claim is locked by another session: try again")
    assert strangers["claims"][0].text.startswith("not readable by this login")
    assert "event triggers" not in found, "another login would not see the databases either"
    assert states(found["schema pgrole"]) == {OK}
    found = await examined(patient.admins_dsn)
    assert (states(found["claims"]), "databases" in found) == ({OK}, False)
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def check_remedy(dsn: str, program: str, shown: str) -> None:
    """The remedy names the program as its user calls it."""
    answer = await run_command("doctor", program=program, PGROLE_DSN=dsn)
    assert f"shell> {shown}" in answer.out
    found = (await run_command("doctor", "-o", "json", program=program, PGROLE_DSN=dsn)).json()
    assert any(one["command"].startswith(shown) for finding in found["findings"] for one in finding["remedies"])


async def test_code_in_a_schema_of_another_role_is_not_run(patient: Patient) -> None:
    """A role that may create schemas sets a trap for a superuser who runs `doctor`."""
    login = quoted(patient.login)
    await patient.admin.execute(f"GRANT CREATE ON DATABASE {quoted(patient.database)} TO {login}")
    async with connect(Endpoint(patient.dsn), "work") as trap:
        await trap.execute(
            """
            CREATE SCHEMA pgrole; GRANT USAGE ON SCHEMA pgrole TO PUBLIC;
            CREATE FUNCTION pgrole.trap() RETURNS integer LANGUAGE plpgsql AS
            $$ BEGIN PERFORM set_config('pgrole.trapped', 'on', false); RAISE EXCEPTION 'trapped'; END $$;
            CREATE VIEW pgrole.installation AS SELECT pgrole.trap() AS version;
            CREATE VIEW pgrole.claim AS SELECT pgrole.trap() AS cluster, pgrole.trap()::text AS privileges;
            CREATE VIEW pgrole.drift_history AS SELECT pgrole.trap() AS last_at;
            """
        )
    found = await examined(patient.admins_dsn)
    assert not [one for group in found.values() for one in group if "trapped" in one.text]
    assert states(found["schema pgrole"]) == {PROBLEM}
    history = await run_command("history", PGROLE_DSN=patient.admins_dsn)
    assert (history.code, "trapped" in history.err) == (1, False)
    assert "its owner, or what was added to it, could run code" in history.err
    await follow(patient.server, found["schema pgrole"])
    assert states((await examined(patient.admins_dsn))["schema pgrole"]) == {OK}


async def test_the_printed_statements_resume_suspended_changes(patient: Patient) -> None:
    login, database = quoted(patient.login), quoted(patient.database)
    for statement in (
        f"ALTER DATABASE {database} SET pgrole.suspend = on",
        f"ALTER ROLE {login} SET pgrole.suspend = on",
        f"ALTER ROLE {login} IN DATABASE {database} SET pgrole.suspend = on",
    ):
        await patient.admin.execute(statement)
    found = await examined(patient.dsn)
    assert states(found["suspended"]) == {WARNING}
    assert len(found["suspended"][0].remedies) == 3
    await follow(patient.server, found["suspended"])
    assert states((await examined(patient.dsn))["suspended"]) == {OK}


async def test_the_printed_statements_lift_connection_limits(patient: Patient) -> None:
    await patient.admin.execute(f"ALTER ROLE {quoted(patient.login)} CONNECTION LIMIT 2")
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} CONNECTION LIMIT 2")
    found = await examined(patient.dsn)
    assert [one.state for one in found["connections"]] == [PROBLEM, PROBLEM]
    await follow(patient.server, found["connections"])
    assert states((await examined(patient.dsn))["connections"]) == {OK}


@pytest.mark.parametrize(
    ("databases", "needed"), [(None, 3), (DatabasesConfig(("*",), max=1), 5), (DatabasesConfig(("*",)), 7)]
)
async def test_only_databases_that_have_a_connection_at_once_need_one(
    server: PostgresServer, databases: DatabasesConfig | None, needed: int
) -> None:
    config = replace(of_dsn(server.dsn()), databases=databases)
    found = by_check(await check_server(config, None, ("a", "b", "c", "d"), None))
    assert found["connections"][0].text.endswith(f"; the controller needs {needed}")


async def test_the_printed_statements_enable_event_triggers_again(patient: Patient) -> None:
    admin, name = patient.admin, f'event triggers of "{patient.database}"'

    async def ask(login: str | None = None) -> dict[str, list[Finding]]:
        return by_check(await check_server(of_pgserver(patient.admins_dsn), login, None, None))

    await install(admin)
    await admin.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,"
        " object_uid, privileges) VALUES ('r', 1, 1, 'c', 'n', 'u', 'o', 'u',"
        " jsonb_build_object($1::text, '[]'::jsonb)::text)",
        patient.database,
    )
    found = await ask()
    assert "not installed" in found[name][0].text
    unknown = await ask("no such role")
    assert states(unknown[name]) == {UNKNOWN}, "what was not checked is no problem"
    await admin.execute(queries.install_event_triggers())
    assert states((await ask())[name]) == {OK}
    await admin.execute("UPDATE pgrole.claim SET privileges = jsonb_build_object('no such', '[]'::jsonb)::text")
    (missing,) = (await ask())['event triggers of "no such"']
    assert missing.text.startswith('database "no such" does not exist: ')
    assert missing.state is WARNING
    await admin.execute("UPDATE pgrole.claim SET released_at = now()")
    assert 'event triggers of "no such"' not in await ask(), "no object declares anything there"
    await admin.execute("UPDATE pgrole.claim SET released_at = NULL")
    await admin.execute(
        "UPDATE pgrole.claim SET privileges = jsonb_build_object($1::text, '[]'::jsonb)::text", patient.database
    )
    await admin.execute("ALTER EVENT TRIGGER pgrole_on_ddl ENABLE; ALTER EVENT TRIGGER pgrole_on_drop DISABLE")
    found = await ask()
    assert [one.state for one in found[name]] == [PROBLEM, PROBLEM]
    await follow(patient.server, found[name])
    assert states((await ask())[name]) == {OK}
    await admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_a_dsn_does_not_tell_whether_event_triggers_are_used(patient: Patient) -> None:
    """`run` polls the server of its own DSN by default, and the DSN may be that of a PgServer."""
    admin, name = patient.admin, f'event triggers of "{patient.database}"'
    await admin.execute(f"ALTER ROLE {quoted(patient.login)} CREATEROLE")

    async def ask(login: str | None = None) -> Finding:
        found = await check_server(of_dsn(patient.admins_dsn), login, (patient.database,), None)
        (finding,) = by_check(found)[name]
        return finding

    for login in (None, patient.login):
        finding = await ask(login)
        assert (finding.state, finding.remedies) == (OK, ())
        assert finding.text == "not installed; a DSN does not tell whether the controller uses them"
    await admin.execute(f"CREATE SCHEMA pgrole; {queries.install_database()}")
    await admin.execute(queries.install_event_triggers())
    await admin.execute("ALTER EVENT TRIGGER pgrole_on_ddl DISABLE")
    finding = await ask()
    assert (finding.state, finding.remedies) == (OK, ())
    assert finding.text == "installed; a DSN does not tell whether the controller uses them"


async def test_a_database_that_the_controller_may_not_enter_or_use_is_a_problem_until_the_statements_ran(
    patient: Patient,
) -> None:
    admin, name = patient.admin, f'event triggers of "{patient.database}"'
    login, database = quoted(patient.login), quoted(patient.database)
    await admin.execute(f"ALTER ROLE {login} CREATEROLE; REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
    await admin.execute(f"CREATE SCHEMA pgrole; {queries.install_database()}")
    await admin.execute(queries.install_event_triggers())

    async def ask() -> list[Finding]:
        config = of_dsn(patient.admins_dsn)
        return by_check(await check_server(config, patient.login, (patient.database,), None))[name]

    found = await ask()
    assert [one.state for one in found] == [PROBLEM, PROBLEM]
    assert "may not connect" in found[0].text
    assert "may not use schema pgrole" in found[1].text
    await follow(patient.server, found)
    assert states(await ask()) == {OK}
    async with connect(Endpoint(patient.dsn), "work") as connection:
        assert (await install_database(connection, allowed=True)).notifies


@pytest.mark.parametrize("break_it", ["DROP EXTENSION plpgsql", "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC"])
async def test_a_database_whose_language_the_controller_cannot_use_is_a_problem_until_the_statement_ran(
    patient: Patient, break_it: str
) -> None:
    await patient.admin.execute(f"ALTER ROLE {quoted(patient.login)} CREATEROLE; {break_it}")

    async def ask() -> list[Finding]:
        found = by_check(await check_server(of_dsn(patient.dsn), None, (patient.database,), None))
        some = [*found["privileges"], *found[f'event triggers of "{patient.database}"']]
        return [one for one in some if "language plpgsql" in one.text]

    found = await ask()
    assert [one.state for one in found] == [PROBLEM, PROBLEM]
    for finding in found:
        assert [one.database for one in finding.remedies] == [patient.database]
    await follow(patient.server, found[:1])
    assert await ask() == []


async def test_a_login_for_reading_gets_no_problem_and_no_statement_that_lets_it_write(patient: Patient) -> None:
    admin, login = patient.admin, quoted(patient.login)
    await admin.execute(f"GRANT pg_monitor TO {login}; CREATE SCHEMA pgrole; {queries.install_database()}")
    await admin.execute(queries.install_event_triggers())
    here = patient.server.dsn(patient.login, password="x")
    for connects in (True, False):
        if not connects:
            await admin.execute(f"REVOKE CONNECT ON DATABASE {quoted(patient.database)} FROM PUBLIC")
        for config in (of_dsn(here), of_pgserver(here)):
            found = await check_server(config, None, (patient.database,), None)
            assert PROBLEM not in states(found)
            assert not [remedy for one in found for remedy in one.remedies if "GRANT" in remedy.command]
            (triggers,) = by_check(found)[f'event triggers of "{patient.database}"']
            assert (triggers.state, triggers.remedies) == (UNKNOWN, ())


async def test_the_cluster_id_of_the_environment_tells_own_claims_from_those_of_others(
    patient: Patient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install(patient.admin)
    await patient.admin.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,"
        " object_uid) VALUES ('r', 1, 1, 'eu-1', 'n', 'u', 'o', 'u')"
    )
    for own, expected in (("eu-1", {OK}), ("eu-2", {OK, WARNING})):
        monkeypatch.setenv("PGROLE_CLUSTER_ID", own)
        assert states((await examined(patient.admins_dsn))["claims"]) == expected
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


@pytest.mark.parametrize(("reported", "state"), [((), OK), (None, UNKNOWN)])
async def test_a_login_that_may_not_read_claims_believes_what_the_controller_reports(
    patient: Patient, reported: tuple[str, ...] | None, state: FindingState
) -> None:
    await install(patient.admin)
    found = by_check(await check_server(of_dsn(patient.dsn), None, reported, None))
    assert [one.state for one in found["event triggers"]] == [state]
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_the_age_of_a_history_is_judged_only_by_the_retention_of_a_pgserver(patient: Patient) -> None:
    await install(patient.admin)
    await patient.admin.execute(
        "INSERT INTO pgrole.drift_history (slot, role, kind, corrected, last_at)"
        " VALUES (1, 'r', 'role', true, '2020-01-01')"
    )
    for one, state in ((of_dsn(patient.admins_dsn), OK), (of_pgserver(patient.admins_dsn), WARNING)):
        found = by_check(await check_server(one, None, None, None))
        assert [finding.state for finding in found["history"]] == [state]
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_event_triggers_that_the_controller_turns_off_for_itself_are_no_problem(patient: Patient) -> None:
    """It does so since PostgreSQL 17 if its role may, and disabling them would only break what others use them for."""
    admin, name = patient.admin, f'event triggers of "{patient.database}"'
    await install(admin)
    await admin.execute(queries.install_event_triggers())
    await admin.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,"
        " object_uid, privileges) VALUES ('r', 1, 1, 'c', 'n', 'u', 'o', 'u',"
        " jsonb_build_object($1::text, '[]'::jsonb)::text)",
        patient.database,
    )
    await admin.execute(
        "CREATE FUNCTION public.audit() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';"
        f"ALTER FUNCTION public.audit() OWNER TO {quoted(patient.login)};"
        "CREATE EVENT TRIGGER audit ON ddl_command_end EXECUTE FUNCTION public.audit()"
    )
    spared = await admin.fetchval("SELECT current_setting('server_version_num')::int >= 170000")
    assert states((await examined(patient.admins_dsn))[name]) == ({OK} if spared else {PROBLEM})
    await admin.execute(f"CREATE ROLE {quoted('plain_' + patient.login)}")
    found = (await examined(patient.admins_dsn, "plain_" + patient.login))[name]
    untrusted = "roles that are not trusted own event triggers"
    assert any(untrusted in one.text for one in found if one.state is PROBLEM)
    plain = quoted("plain_" + patient.login)
    for allow in ("GRANT SET ON PARAMETER event_triggers TO {}", "ALTER ROLE {} SET event_triggers = off"):
        if spared:
            await admin.execute(allow.format(plain))
            found = (await examined(patient.admins_dsn, "plain_" + patient.login))[name]
            assert not any(untrusted in one.text for one in found)
            await admin.execute(f"DROP OWNED BY {plain}")
    await admin.execute(f"DROP ROLE {plain}")
    await admin.execute(f"ALTER DATABASE {quoted(patient.database)} RESET pgrole.home")


async def test_the_language_of_the_log_is_read(patient: Patient) -> None:
    await patient.admin.execute(f"ALTER DATABASE {quoted(patient.database)} SET lc_messages = 'POSIX'")
    async with connect(Endpoint(patient.admins_dsn), "doctor") as looking:
        assert (await read_server_facts(looking)).settings["lc_messages"] == "POSIX"


async def test_the_printed_statements_fix_harmful_settings(server: PostgresServer) -> None:
    admin = await asyncpg.connect(server.dsn())
    try:
        await admin.execute("ALTER SYSTEM SET password_encryption = 'md5'")
        await admin.execute("ALTER SYSTEM SET session_replication_role = 'replica'")
        if has_iterations := admin.get_server_version().major >= 16:
            await admin.execute("ALTER SYSTEM SET scram_iterations = 600000")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.execute("SELECT pg_sleep(0.2)")
        found = await examined(server.dsn())
        assert WARNING in states(found["passwords"])
        assert any("the controller uses 100000" in one.text for one in found["passwords"]) is has_iterations
        texts = [one.text for one in found["settings"]]
        assert [text for text in texts if text.startswith("session_replication_role")]
        # set on the command line of test servers: no statement would change it
        assert [one.remedies for one in found["settings"] if one.text.startswith("fsync")] == [()]
        await follow(server, [one for one in (*found["passwords"], *found["settings"]) if one.remedies])
        await admin.execute("SELECT pg_sleep(0.2)")
        found = await examined(server.dsn())
        assert states(found["passwords"]) == {OK}
        assert not [one for one in found["settings"] if one.text.startswith("session_replication_role")]
    finally:
        await admin.execute("ALTER SYSTEM RESET ALL")
        await admin.execute("SELECT pg_reload_conf()")
        await admin.close()


async def test_findings_decide_the_exit_code_and_names_are_escaped(patient: Patient) -> None:
    refused = await run_command("doctor", PGROLE_DSN=patient.dsn)
    assert (refused.code, "\x1b" in refused.out) == (1, False)
    assert "✗ problem  privileges:" in refused.out
    allowed = await run_command("doctor", "-o", "json", PGROLE_DSN=patient.server.dsn())
    assert allowed.code == 0
    shape = allowed.json()
    assert {"area", "check", "state", "found", "remedies"} == set(shape["findings"][0])
    assert "not checked" in shape["findings"][0]["found"]  # the cluster


async def test_a_cluster_that_was_named_wrongly_is_misuse_and_one_of_the_environment_is_unknown(
    server: PostgresServer, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text("contexts: [{name: eu, context: {cluster: c}}]", encoding="utf-8")
    here = {"PGROLE_DSN": server.dsn(), "KUBECONFIG": str(config)}
    for words, why in (
        (("--kubeconfig", "/missing"), "kubeconfig /missing does not exist"),
        (("--context", "prod"), f'--context: kubeconfig {config} has no context "prod"; it has: eu'),
    ):
        answer = await run_command("doctor", *words, **here)
        assert (answer.code, answer.out, answer.err.startswith(f"pgrole-controller: {why}")) == (2, "", True)
    unnamed = await run_command("doctor", "-o", "json", **here)
    assert (unnamed.code, unnamed.json()["findings"][0]["state"]) == (0, "unknown")
    assert f"not checked: kubeconfig {config} is not usable" in unnamed.json()["findings"][0]["found"]


async def test_an_unreachable_server_is_a_problem_and_a_missing_target_a_usage_error() -> None:
    answer = await run_command("doctor", PGROLE_DSN="postgresql://nobody@127.0.0.1:1/postgres")
    assert (answer.code, "✗ problem  connection:" in answer.out) == (1, True)
    assert (await run_command("doctor")).code == 2
