"""`pgrole-controller claims` with the claims of a real database, on a terminal and in a pipe, as a separate process."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import pytest
import pytest_asyncio
from rich.cells import cell_len

from pgrole_controller.claims import command
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.claims import Selection, list_claims, release
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.schema import install
from tests.acceptance.privileges import CONTROLLER_ROLE, role_sql
from tests.acceptance.privileges import PASSWORD as CONTROLLER_PASSWORD
from tests.commands import CommandAnswer, make_environment, run_command
from tests.integration.sql_support import NotificationListener, listening, renew_home, role_oid

PASSWORD = "hunter2"

#: role, cluster, namespace, namespace uid, object, applied, drifts, released
CLAIMS = [
    ("a1", "lost", "shop", "ns-1", "one", "sha256:x", 3, False),
    ("a2", "lost", "shop", "ns-1", "two", "", 0, False),
    ("a3", "lost", "bank", "ns-2", "three", "sha256:z", 0, True),
    ("b1", "kept", "shop", "ns-9", "one", "sha256:y", 0, False),
]


@dataclass(frozen=True, slots=True)
class ClaimsTrial:
    """The command against a server, and a superuser in its home database."""

    server: PostgresServer
    home: Connection

    async def run(self, *arguments: str, **environment: str | None) -> CommandAnswer:
        """Runs the command without a terminal."""
        environment.setdefault("PGROLE_DSN", self.server.dsn())
        return await run_command("claims", *arguments, program="pgrole-controller", **environment)

    async def listed(self, *arguments: str) -> dict[str, dict[str, Any]]:
        """Returns the output of `claims list`, by role."""
        answer = await self.run("list", "--output", "json", *arguments)
        assert answer.code == 0, answer.err
        return {one["role"]: one for one in json.loads(answer.out)}

    async def claims(self) -> dict[str, tuple[str, str, bool]]:
        """Returns cluster, namespace uid and whether it is released, by role."""
        rows = await self.home.fetch("SELECT role_name, cluster, namespace_uid, released_at FROM pgrole.claim")
        return {row[0]: (row[1], row[2], row[3] is not None) for row in rows}


@pytest_asyncio.fixture(loop_scope="session")
async def trial(server: PostgresServer) -> AsyncIterator[ClaimsTrial]:
    """Schema pgrole is new and holds CLAIMS, each with its role."""
    connection = await asyncpg.connect(server.dsn())
    try:
        await renew_home(connection)
        for role, cluster, namespace, uid, name, applied, drifts, released in CLAIMS:
            await connection.execute(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role}")
            await connection.execute(
                "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid,"
                " object, object_uid, applied, drift_count, last_drift_at, last_drift_fields, released_at,"
                " password_digest)"
                " SELECT $1, $2, s.system_identifier, $3, $4, $5, $6, 'uid of ' || $1::text, $7, $8,"
                " CASE WHEN $8::bigint > 0 THEN timestamptz '2026-11-21 12:00:00Z' END, ARRAY['login'],"
                " CASE WHEN $9::boolean THEN timestamptz '2026-11-20 12:00:00Z' END, 'sha256:of a verifier'"
                " FROM pg_control_system() AS s",
                *(role, await role_oid(connection, role), cluster, namespace, uid, name, applied, drifts, released),
            )
        yield ClaimsTrial(server, connection)
    finally:
        await connection.close()


async def run_on_terminal(dsn: str, answer: str, *arguments: str) -> CommandAnswer:
    """Runs the command on a terminal, and types the answer."""
    return await anyio.to_thread.run_sync(partial(_run_on_terminal, dsn, answer, arguments))


def _run_on_terminal(dsn: str, answer: str, arguments: tuple[str, ...]) -> CommandAnswer:
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())  # kept by the terminal until it is read
        ended = subprocess.run(
            [sys.executable, "-m", "pgrole_controller", "claims", *arguments],
            env=make_environment(PGROLE_DSN=dsn),
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert "Traceback" not in ended.stderr, ended.stderr
    return CommandAnswer(ended.returncode, ended.stdout, ended.stderr)


BEFORE = {role: (cluster, uid, released) for role, cluster, _, uid, _, _, _, released in CLAIMS}


class TestList:
    async def test_every_claim_is_listed_as_a_row(self, trial: ClaimsTrial) -> None:
        answer = await trial.run("list")
        assert (answer.code, answer.err) == (0, "")
        heading, *rows = answer.out.splitlines()
        assert heading.split() == [
            "ROLE",
            "IN",
            "DATABASE",
            "CLUSTER",
            "OBJECT",
            "STATE",
            "APPLIED",
            "DRIFTS",
            "LAST",
            "DRIFT",
            "RELEASED",
        ]
        cells = {row.split()[0]: row.split() for row in rows}
        assert cells == {
            "a1": ["a1", "there", "lost", "shop/one", "held", "yes", "3", "2026-11-21T12:00:00Z", "login"],
            "a2": ["a2", "there", "lost", "shop/two", "held", "no", "0"],
            "a3": ["a3", "there", "lost", "bank/three", "released", "yes", "0", "2026-11-20T12:00:00Z"],
            "b1": ["b1", "there", "kept", "shop/one", "held", "yes", "0"],
        }
        assert "verifier" not in answer.out

    async def test_json_output_has_the_same_content(self, trial: ClaimsTrial) -> None:
        one = (await trial.listed())["a1"]
        assert one["roleOid"] == await role_oid(trial.home, "a1")
        assert one["lastDrift"] == {"time": "2026-11-21T12:00:00Z", "fields": ["login"]}
        assert (one["cluster"], one["namespace"], one["namespaceUid"], one["object"]) == ("lost", "shop", "ns-1", "one")
        assert (one["state"], one["inDatabase"], one["releasedAt"]) == ("held", "there", None)
        assert "verifier" not in json.dumps(one)

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (("--cluster", "lost"), {"a1", "a2", "a3"}),
            (("--cluster", "lost", "--namespace", "shop"), {"a1", "a2"}),
            (("--namespace", "shop"), {"a1", "a2", "b1"}),
            (("--role", "b1"), {"b1"}),
            (("--released",), {"a3"}),
            (("--cluster", "kept", "--released"), set()),
            (("--cluster", "lo%"), set()),
        ],
    )
    async def test_options_filter_the_list(
        self, trial: ClaimsTrial, arguments: tuple[str, ...], expected: set[str]
    ) -> None:
        assert set(await trial.listed(*arguments)) == expected

    async def test_the_list_shows_renamed_dropped_replaced_and_unproven_roles(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("ALTER ROLE a1 RENAME TO stolen; DROP ROLE a2; DROP ROLE b1; CREATE ROLE b1")
        await trial.home.execute("UPDATE pgrole.claim SET system_identifier = 1 WHERE role_name = 'a3'")
        try:
            seen = {role: (one["inDatabase"], one["seenAs"]) for role, one in (await trial.listed()).items()}
            table = (await trial.run("list", "--role", "a1")).out
        finally:
            await trial.home.execute("DROP ROLE stolen")
        assert seen == {
            "a1": ("renamed", "stolen"),
            "a2": ("gone", None),
            "b1": ("replaced", None),
            "a3": ("unproven", None),
        }
        assert "renamed to stolen" in table

    async def test_a_name_in_another_encoding_is_valid_in_json(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
        latin = await asyncpg.connect(trial.server.dsn(database="latin"))
        try:
            await latin.execute('ALTER ROLE a1 RENAME TO "r\xf4le"')
            listed = await trial.listed()
        finally:
            await latin.execute('DROP ROLE IF EXISTS "r\xf4le"')
            await latin.close()
            await trial.home.execute("DROP DATABASE latin")
        assert listed["a1"]["seenAs"] == "r\\xf4le"

    async def test_control_characters_are_escaped(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("UPDATE pgrole.claim SET role_name = E'a1\\x1b[2J\\nb1 there' WHERE role_name = 'a1'")
        out = (await trial.run("list")).out
        assert "\x1b" not in out
        assert "a1\\x1b[2J\\nb1 there" in out
        assert len(out.splitlines()) == 1 + len(CLAIMS)

    async def test_wide_characters_keep_the_columns_and_a_terminal_that_lacks_them_is_no_error(
        self, trial: ClaimsTrial
    ) -> None:
        await trial.home.execute("UPDATE pgrole.claim SET role_name = '漢字' WHERE role_name = 'a1'")
        heading, *rows = (await trial.run("list")).out.splitlines()
        places = {cell_len(line.partition(word)[0]) for line in rows for word in ("there", "gone") if word in line}
        assert places == {heading.index("IN DATABASE")}
        ended = await anyio.run_process(
            [sys.executable, "-m", "pgrole_controller", "claims", "list"],
            env=make_environment(PGROLE_DSN=trial.server.dsn(), PYTHONIOENCODING="ascii"),
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert b"\\u6f22\\u5b57" in ended.stdout

    async def test_a_reader_that_stops_early_causes_no_traceback(self, trial: ClaimsTrial) -> None:
        await trial.home.execute(
            "INSERT INTO pgrole.claim SELECT 'many ' || i, i, 1, 'c', 'n', 'nu', 'o', 'ou'"
            " FROM generate_series(1, 3000) AS i"
        )
        command = [sys.executable, "-m", "pgrole_controller", "claims", "list"]
        with subprocess.Popen(  # noqa: ASYNC220 -- its output is read in part
            command, env=make_environment(PGROLE_DSN=trial.server.dsn()), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            await anyio.to_thread.run_sync(process.stdout.readline)
            process.stdout.close()
            said = await anyio.to_thread.run_sync(process.stderr.read)
        assert (process.returncode, said) == (0, b"")


class TestRelease:
    async def test_one_role_is_released_and_notified(self, trial: ClaimsTrial) -> None:
        async with listening(trial.server.dsn()) as listener:
            answer = await trial.run("release", "--role", "a1", "--yes")
            assert (answer.code, answer.err) == (0, "")
            assert await _told(listener) == {"a1"}
        assert "shop/one" in answer.out
        assert "takes its role back" in answer.out
        assert await trial.claims() == {**BEFORE, "a1": ("lost", "ns-1", True)}

    async def test_releasing_a_cluster_keeps_the_time_of_earlier_releases(self, trial: ClaimsTrial) -> None:
        answer = await trial.run("release", "--cluster", "lost", "--yes")
        assert "2 claims" in answer.out
        assert {role for role, (_, _, released) in (await trial.claims()).items() if released} == {"a1", "a2", "a3"}
        assert (await trial.listed())["a3"]["releasedAt"] == "2026-11-20T12:00:00Z"

    async def test_a_namespace_of_a_cluster_is_released(self, trial: ClaimsTrial) -> None:
        assert (await trial.run("release", "--cluster", "lost", "--namespace", "bank", "--yes")).code == 0
        assert await trial.claims() == BEFORE
        assert (await trial.run("release", "--cluster", "lost", "--namespace", "shop", "--yes")).code == 0
        assert await trial.claims() == {**BEFORE, "a1": ("lost", "ns-1", True), "a2": ("lost", "ns-1", True)}

    @pytest.mark.parametrize("which", [("--all-released",), ("--cluster", "lost"), ("--role", "a3")])
    async def test_forget_deletes_released_claims_only(self, trial: ClaimsTrial, which: tuple[str, ...]) -> None:
        async with listening(trial.server.dsn()) as listener:
            answer = await trial.run("release", *which, "--forget", "--yes")
            assert answer.code == 0
            assert "except one that still exists and whose status says that it has the role" in answer.out
            assert await _told(listener) == {"a3"}
        assert await trial.claims() == {role: claim for role, claim in BEFORE.items() if role != "a3"}
        assert await trial.home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'a3'") == 1

    async def test_forget_keeps_a_held_claim(self, trial: ClaimsTrial) -> None:
        answer = await trial.run("release", "--role", "a1", "--forget", "--yes")
        assert answer.code == 0
        assert "nothing to do" in answer.out
        assert await trial.claims() == BEFORE


class TestTransfer:
    async def test_held_claims_move_to_any_namespace_of_that_name_and_released_ones_keep_theirs(
        self, trial: ClaimsTrial
    ) -> None:
        async with listening(trial.server.dsn()) as listener:
            answer = await trial.run("transfer", "--from", "lost", "--to", "new", "--yes")
            assert (answer.code, answer.err) == (0, "")
            assert await _told(listener) == {"a1", "a2", "a3"}
        assert "Cluster new has no claims yet" in answer.out
        assert await trial.claims() == {
            **BEFORE,
            "a1": ("new", "", False),
            "a2": ("new", "", False),
            "a3": ("new", "ns-2", True),
        }
        assert (await trial.listed())["a1"]["state"] == "transferred"

    async def test_with_released_also_moves_released_claims_to_any_namespace_of_that_name(
        self, trial: ClaimsTrial
    ) -> None:
        assert (await trial.run("transfer", "--from", "lost", "--to", "kept", "--with-released", "--yes")).code == 0
        assert (await trial.claims())["a3"] == ("kept", "", True)
        assert "released, for any namespace of that name" in (await trial.run("list", "--role", "a3")).out

    async def test_one_namespace_is_transferred(self, trial: ClaimsTrial) -> None:
        assert (await trial.run("transfer", "--from", "lost", "--to", "new", "--namespace", "bank", "--yes")).code == 0
        assert await trial.claims() == {**BEFORE, "a3": ("new", "ns-2", True)}

    async def test_a_rebuilt_cluster_with_the_same_id_takes_over_from_itself(self, trial: ClaimsTrial) -> None:
        answer = await trial.run("transfer", "--from", "lost", "--to", "lost", "--yes")
        assert answer.code == 0
        assert "a3" not in answer.out
        assert await trial.claims() == {**BEFORE, "a1": ("lost", "", False), "a2": ("lost", "", False)}

    async def test_a_repeated_transfer_does_nothing_and_lists_the_clusters(self, trial: ClaimsTrial) -> None:
        first = await trial.run("transfer", "--from", "lost", "--to", "new", "--yes")
        again = await trial.run("transfer", "--from", "lost", "--to", "new", "--yes")
        assert (first.code, again.code) == (0, 0)
        assert "nothing to do" in again.out
        assert "new (held: 2, released: 1)" in again.out
        assert "kept (held: 1, released: 0)" in again.out


class TestConfirmation:
    async def test_without_a_terminal_the_command_shows_its_plan_and_refuses(self, trial: ClaimsTrial) -> None:
        answer = await trial.run("release", "--cluster", "lost")
        assert answer.code == 2
        assert "to be released: 2 claims" in answer.out
        assert "--yes" in answer.err
        assert await trial.claims() == BEFORE

    @pytest.mark.parametrize(("typed", "agreed"), [("Yes", True), ("y", True), ("", False), ("no", False)])
    def test_only_yes_agrees(self, monkeypatch: pytest.MonkeyPatch, typed: str, agreed: bool) -> None:
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
        monkeypatch.setattr("builtins.input", lambda _prompt: typed)
        assert command._is_agreed() is agreed

    @pytest.mark.parametrize(("typed", "code"), [("yes\n", 0), ("\x04", 1)])
    async def test_on_a_terminal_the_command_asks_first(self, trial: ClaimsTrial, typed: str, code: int) -> None:
        answer = await run_on_terminal(trial.server.dsn(), typed, "release", "--role", "a1")
        assert answer.code == code
        assert "continue?" in answer.out
        assert (await trial.claims())["a1"] == ("lost", "ns-1", code == 0)


class TestTheControllersOwnRole:
    async def test_the_controllers_role_may_run_every_action_if_it_installed_the_schema(
        self, trial: ClaimsTrial
    ) -> None:
        await trial.home.execute(role_sql(trial.home.get_server_version().major))
        dsn = trial.server.dsn(CONTROLLER_ROLE, password=CONTROLLER_PASSWORD)
        try:
            await trial.home.execute("DROP SCHEMA pgrole CASCADE")
            async with connect(Endpoint(dsn), "test") as connection:
                await install(connection)
            await trial.home.execute("INSERT INTO pgrole.claim SELECT 'a1', 1, 1, 'lost', 'n', 'nu', 'o', 'ou'")
            for action in (("transfer", "--from", "lost", "--to", "new"), ("release", "--role", "a1")):
                answer = await trial.run(*action, "--yes", PGROLE_DSN=dsn)
                assert (answer.code, answer.err) == (0, "")
            answer = await trial.run("release", "--role", "a1", "--forget", "--yes", PGROLE_DSN=dsn)
            assert (answer.code, answer.err) == (0, "")
            assert await trial.claims() == {}
        finally:
            await trial.home.execute(
                f"DROP SCHEMA pgrole CASCADE; DROP OWNED BY {CONTROLLER_ROLE}; DROP ROLE {CONTROLLER_ROLE}"
            )


class TestOneTransaction:
    async def test_a_claim_changed_since_it_was_shown_stops_the_whole_release(self, trial: ClaimsTrial) -> None:
        async with connect(Endpoint(trial.server.dsn()), "test") as connection:
            selection = Selection(cluster="lost", released=False)
            shown = await list_claims(connection, selection)
            await trial.home.execute("UPDATE pgrole.claim SET object_uid = 'other' WHERE role_name = 'a2'")
            with pytest.raises(PgRoleError, match="changed after they were shown"):
                await release(connection, selection, shown)
        assert await trial.claims() == BEFORE

    async def test_a_claim_that_was_not_shown_stops_the_whole_release(self, trial: ClaimsTrial) -> None:
        async with connect(Endpoint(trial.server.dsn()), "test") as connection:
            selection = Selection(cluster="lost", released=False)
            shown = await list_claims(connection, selection)
            await trial.home.execute("UPDATE pgrole.claim SET cluster = 'lost' WHERE role_name = 'b1'")
            with pytest.raises(PgRoleError, match="changed after they were shown"):
                await release(connection, selection, shown)
        assert not (await trial.claims())["a1"][2]

    async def test_the_command_fails_while_a_controller_holds_the_lock(self, trial: ClaimsTrial) -> None:
        async with trial.home.transaction():
            await trial.home.execute("SELECT pgrole.lock_changes()")
            answer = await trial.run("release", "--role", "a1", "--yes")
        assert answer.code == 1
        assert "lock" in answer.err
        assert await trial.claims() == BEFORE

    async def test_a_rule_that_discards_the_update_is_detected(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("CREATE RULE swallow AS ON UPDATE TO pgrole.claim DO INSTEAD NOTHING")
        answer = await trial.run("release", "--cluster", "lost", "--yes")
        assert answer.code == 1
        assert "the command changes 2 claims" in answer.err


class TestMisuse:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("release",), ["--role", "--cluster", "--all-released"]),
            (("release", "--role", "a1", "--cluster", "lost"), ["not allowed with"]),
            (("release", "--role", "a1", "--namespace", "shop"), ["--namespace", "--cluster"]),
            (("release", "--all-released"), ["--forget"]),
            (("release", "--role", "", "--yes"), ["--role", "empty"]),
            (("transfer", "--from", "lost"), ["--to"]),
            (("transfer", "--from", "lost", "--to", " \x1b"), ["--to", "printable"]),
            (("list", "--output", "yaml"), ["--output", "json"]),
            ((), ["ACTION"]),
        ],
    )
    async def test_wrong_arguments_are_named_and_change_nothing(
        self, trial: ClaimsTrial, arguments: tuple[str, ...], words: list[str]
    ) -> None:
        answer = await trial.run(*arguments)
        assert (answer.code, answer.out) == (2, "")
        for word in words:
            assert word in answer.err
        assert await trial.claims() == BEFORE

    @pytest.mark.parametrize("dsn", [None, f"mysql://root:{PASSWORD}@db"])
    async def test_a_wrong_or_missing_dsn_is_refused_by_variable_name_without_its_password(
        self, trial: ClaimsTrial, dsn: str | None
    ) -> None:
        answer = await trial.run("list", PGROLE_DSN=dsn)
        assert answer.code == 2
        assert "PGROLE_DSN" in answer.err
        assert PASSWORD not in answer.err


class TestFailure:
    @pytest.mark.parametrize(
        "dsn", [f"postgresql://nobody:{PASSWORD}@127.0.0.1:9/postgres", f"postgresql://nobody:{PASSWORD}@[::1/postgres"]
    )
    async def test_an_unreachable_server_or_malformed_dsn_fails_without_showing_the_password(
        self, trial: ClaimsTrial, dsn: str
    ) -> None:
        answer = await trial.run("list", PGROLE_DSN=dsn)
        assert answer.code in (1, 2)
        assert "pgrole-controller:" in answer.err
        assert PASSWORD not in answer.out + answer.err

    async def test_a_missing_schema_pgrole_is_reported(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("DROP SCHEMA pgrole CASCADE")
        answer = await trial.run("list")
        assert answer.code == 1
        assert "schema pgrole" in answer.err
        assert "Set PGROLE_DSN to the home database" in answer.err

    async def test_a_database_other_than_the_home_is_told_with_the_name_of_the_home(self, trial: ClaimsTrial) -> None:
        """Whether the controller manages privileges there or not."""
        await trial.home.execute("CREATE DATABASE managed")
        dsn = trial.server.dsn(database="managed")
        other = await asyncpg.connect(dsn)
        try:
            for more in ("SELECT", f"CREATE SCHEMA pgrole; {queries.install_database()}"):
                await other.execute(more)
                for words in (("list",), ("release", "--cluster", "lost", "--yes")):
                    answer = await trial.run(*words, PGROLE_DSN=dsn)
                    assert (answer.code, answer.out) == (1, "")
                    assert "is postgres, not managed: connect to database postgres" in answer.err
            await trial.home.execute("ALTER DATABASE postgres RESET pgrole.home")
            answer = await trial.run("list", PGROLE_DSN=dsn)
            assert (answer.code, "incomplete" in answer.err) == (1, False)
            assert "schema pgrole has no claims in this database. Set PGROLE_DSN to the home database" in answer.err
            await install(other)
            await trial.home.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")
            assert (await trial.run("list", PGROLE_DSN=dsn)).code == 0, "claims of a second home can be listed"
        finally:
            await other.close()
            await trial.home.execute("DROP DATABASE managed")
            await trial.home.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")

    async def test_a_schema_of_another_role_is_not_trusted_and_runs_no_code(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("DROP SCHEMA pgrole CASCADE; CREATE ROLE mallory")
        try:
            await trial.home.execute(
                "CREATE SCHEMA pgrole AUTHORIZATION mallory; SET ROLE mallory;"
                "CREATE VIEW pgrole.turn_to_look AS SELECT true; CREATE VIEW pgrole.turn_to_change AS SELECT true;"
                "CREATE FUNCTION pgrole.trap() RETURNS text LANGUAGE plpgsql AS"
                " $$BEGIN CREATE ROLE trapped SUPERUSER; RETURN ''; END$$;"
                "CREATE VIEW pgrole.claim AS SELECT pgrole.trap() AS role_name;"
                "RESET ROLE"
            )
            answer = await trial.run("list")
            assert answer.code == 1
            assert "not trusted" in answer.err
            assert await trial.home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'trapped'") == 0
        finally:
            await trial.home.execute("RESET ROLE; DROP SCHEMA pgrole CASCADE; DROP ROLE mallory")

    async def test_a_role_without_privileges_is_shown_the_missing_grant(self, trial: ClaimsTrial) -> None:
        await trial.home.execute("DROP ROLE IF EXISTS guest")
        await trial.home.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
        try:
            answer = await trial.run("list", PGROLE_DSN=trial.server.dsn("guest", password=PASSWORD))
        finally:
            await trial.home.execute("DROP ROLE guest")
        assert answer.code == 1
        assert "GRANT" in answer.err
        assert "Better set PGROLE_DSN to the controller's login" in answer.err
        assert PASSWORD not in answer.err


async def _told(listener: NotificationListener) -> set[str]:
    return {message["name"] for message in await listener.so_far() if message.get("op") == "claim"}
