"""`export`: objects that declare what roles are and hold, so that applying them changes nothing."""

import io
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio.to_thread
import asyncpg
import pytest
import pytest_asyncio
import yaml
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from rich.progress import Progress

from pgrole_controller import cli
from pgrole_controller.commands import export
from pgrole_controller.commands.export import Export, ExportOptions, export_roles, render
from pgrole_controller.commands.server_reading import of_dsn
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from tests.commands import choose
from tests.integration.export_support import (
    OBSERVER,
    Step,
    add_observer,
    apply_to,
    check_unchanged,
    export_from,
    is_exact,
    read_script,
    run_script,
    superuser,
    take_columns,
)
from tests.servers import Servers

SETUPS = Path(__file__).parent.parent / "data" / "setups"


@dataclass(frozen=True, slots=True)
class ObservedServer:
    """A server, and the DSN of a login that has only pg_monitor and CONNECT."""

    server: PostgresServer
    dsn: str


async def _start(stack: AsyncExitStack, servers: Servers, steps: Iterable[Step]) -> ObservedServer:
    server = await stack.enter_async_context(servers.run())
    await run_script(server, steps)
    return ObservedServer(server, await add_observer(server))


@pytest.mark.parametrize("name", ["supabase", "zalando", "gitlab"])
@pytest.mark.slow
async def test_an_export_changes_nothing_and_recreates_an_equal_server(
    servers: Servers, name: str, api_server: ApiServer, namespace: str
) -> None:
    text = (SETUPS / f"{name}.sql").read_text(encoding="utf-8")
    async with AsyncExitStack() as stack:
        made = await _start(stack, servers, read_script(text))
        exported = await export_from(made.dsn)
        assert exported.errors == []
        await check_unchanged(made.server, exported.objects)
        for one in exported.objects:
            path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"
            await api_server.request("POST", path, one.document, query={"dryRun": "All", "fieldValidation": "Strict"})
        empty = await _start(stack, servers, read_script(text, bare=True))
        await apply_to(empty.server, exported.objects)
        again = await export_from(empty.dsn)
    _check_equal(exported, again)
    assert len([one for one in exported.objects if is_exact(one)]) >= len(exported.objects) / 2


def _check_equal(exported: Export, again: Export) -> None:
    """Objects that declare everything come back as they were."""
    found = {one.role_name: one for one in again.objects}
    for one in exported.objects:
        if is_exact(one):
            assert take_columns(found[one.role_name]) == take_columns(one)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def made(servers: Servers) -> AsyncIterator[ObservedServer]:
    """A server set up by gitlab.sql."""
    text = (SETUPS / "gitlab.sql").read_text(encoding="utf-8")
    async with AsyncExitStack() as stack:
        yield await _start(stack, servers, read_script(text))


def _documents(exported: Export) -> dict[str, dict[str, Any]]:
    documents = [one for one in yaml.safe_load_all("".join(render(exported))) if one is not None]
    return {one["metadata"]["name"]: one for one in documents}


async def test_an_object_declares_the_attributes_memberships_and_privileges_of_its_role(made: ObservedServer) -> None:
    documents = _documents(await export_from(made.dsn))
    assert documents["grafana.reports"]["spec"] == {
        "login": True,
        "validUntil": "2031-05-01T12:30:00Z",
        "memberOf": [{"role": "gitlab_readonly"}],
        "parameters": {"default_transaction_read_only": "on"},
        "adopt": True,
    }
    reader = documents["gitlab-readonly"]["spec"]
    assert (reader["name"], reader["comment"]) == ("gitlab_readonly", "Reports: read-only access to GitLab's tables")
    (database,) = reader["privileges"]
    assert database["database"] == "gitlabhq_production"
    assert "unmanaged" not in database
    assert {one["name"]: one.get("except") for one in database["schemas"]}["gitlab_partitions_dynamic"] is None


async def test_groups_come_before_members(made: ObservedServer) -> None:
    names = [one.role_name for one in (await export_from(made.dsn)).objects]
    assert names.index("gitlab_readonly") < names.index("grafana.reports")
    assert OBSERVER not in names
    assert "postgres" not in names


async def test_omitted_roles_are_named(made: ObservedServer) -> None:
    exported = await export_from(made.dsn)
    assert f'role "{OBSERVER}" is left out: it is the login of this export' in exported.remarks
    assert "".join(render(exported)).count("left out") == len(exported.remarks) - _public(exported)


def _public(exported: Export) -> int:
    return len([one for one in exported.remarks if "PUBLIC has" in one])


async def test_a_selection_limits_roles_and_databases(made: ObservedServer) -> None:
    exported = await export_from(made.dsn, "gitlab_r*", databases=("registry",))
    assert [one.role_name for one in exported.objects] == ["gitlab_readonly", "gitlab_replicator"]
    assert all("privileges" not in one.document["spec"] for one in exported.objects)


async def test_a_pattern_that_no_role_matches_is_named(made: ObservedServer) -> None:
    exported = await export_from(made.dsn, "gitlab_r*", "gitlap_*")
    assert exported.warnings == ["no role matches --roles gitlap_*"]


async def test_a_note_says_if_the_policy_would_refuse_an_object(made: ObservedServer) -> None:
    (one,) = (await export_from(made.dsn, "gitlab_replicator")).objects
    assert one.notes[0].startswith(
        "The controller refuses this object as the server is: the server's policy does not allow replication"
    )


async def test_a_note_says_if_the_policy_allows_no_adoption(made: ObservedServer) -> None:
    server = of_dsn(made.dsn)
    template = replace(server.server_policy.template, adopt=False)
    closed = replace(server, server_policy=replace(server.server_policy, template=template))
    options = ExportOptions(choose(dsn=made.dsn), ("gitlab_readonly",))
    (one,) = (await export_roles(closed, options, Progress(disable=True))).objects
    assert one.notes[0].startswith(
        "The controller refuses this object as the server is: the server's policy does not allow adoption"
    )


async def test_each_object_is_made_and_judged_once(made: ObservedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Counter[str]()

    def count(name: str) -> None:
        counted = getattr(export, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return counted(*arguments, **options)

        monkeypatch.setattr(export, name, call)

    count("make_object")
    count("find_refusal")
    roles = len((await export_from(made.dsn)).objects)
    assert calls == {"make_object": roles, "find_refusal": roles}


async def test_a_note_names_privileges_that_keep_the_role_from_being_adopted(made: ObservedServer) -> None:
    async with superuser(made.server, "registry") as connection:
        await connection.execute(
            "CREATE ROLE root_like SUPERUSER; CREATE ROLE team_owner; CREATE ROLE watcher; CREATE SCHEMA watched;"
            "CREATE TABLE watched.foreign_one (); ALTER TABLE watched.foreign_one OWNER TO root_like;"
            "CREATE TABLE watched.own_one (); ALTER TABLE watched.own_one OWNER TO team_owner;"
            "GRANT TRIGGER ON ALL TABLES IN SCHEMA watched TO watcher"
        )
        try:
            some = await export_from(made.dsn, "watcher", "team_owner", "root_like", databases=("registry",))
        finally:
            await connection.execute("DROP SCHEMA watched CASCADE; DROP ROLE root_like, team_owner, watcher")
    (watcher,) = (one for one in some.objects if one.role_name == "watcher")
    (database,) = watcher.document["spec"]["privileges"]
    assert [one["names"] for one in database["objects"]] == [["foreign_one", "own_one"]]
    notes = watcher.notes
    assert notes == (
        "registry: TRIGGER on table watched.foreign_one: the server's policy does not allow it, so the controller does "
        "not adopt the role",
    )


async def test_a_note_names_ignored_parameters_that_the_controller_resets(made: ObservedServer) -> None:
    async with superuser(made.server) as connection:
        await connection.execute("CREATE ROLE logged")
        try:
            await connection.execute("ALTER ROLE logged SET log_statement = 'all'")
            await connection.execute(f"ALTER ROLE logged SET app.tags = '{'x' * 2000}'")
            (one,) = (await export_from(made.dsn, "logged")).objects
        finally:
            await connection.execute("DROP ROLE logged")
    assert one.document["spec"]["drift"] == {"ignore": ["parameters"]}
    assert one.notes[0].startswith(
        "The controller resets parameters although drift.ignore lists their field: log_statement: for superusers"
    )


async def test_an_unreadable_database_is_a_warning_and_an_error_if_it_was_named(made: ObservedServer) -> None:
    async with superuser(made.server) as connection:
        await connection.execute(f"REVOKE CONNECT ON DATABASE registry FROM {OBSERVER}")
        try:
            some = await export_from(made.dsn)
            named = await export_from(made.dsn, databases=("registry", "missing"))
        finally:
            await connection.execute(f"GRANT CONNECT ON DATABASE registry TO {OBSERVER}")
    text = 'privileges in database "registry" are left out: this login may not connect to it: GRANT CONNECT'
    assert some.errors == []
    assert text in some.warnings
    assert text in some.remarks
    assert named.errors == [text, 'database "missing" does not exist']


async def test_a_database_that_admits_no_one_is_named_unless_it_is_a_template(made: ObservedServer) -> None:
    async with superuser(made.server) as connection:
        await connection.execute("CREATE DATABASE closed ALLOW_CONNECTIONS false")
        try:
            exported = await export_from(made.dsn)
        finally:
            await connection.execute("DROP DATABASE closed")
    text = 'privileges in database "closed" are left out: no role may connect to it'
    assert exported.errors == []
    assert text in exported.warnings
    assert text in exported.remarks
    assert "template0" not in "".join(exported.warnings + exported.remarks)


async def test_export_writes_one_file_per_role_and_reports_stale_ones(
    made: ObservedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "roles"
    monkeypatch.setenv("PGROLE_DSN", made.dsn)
    assert await _run("export", "--output-dir", str(folder), "-n", "shop") == 0
    files = sorted(folder.iterdir())
    assert folder / "gitlab-readonly.yaml" in files
    assert yaml.safe_load((folder / "gitlab-readonly.yaml").read_text())["metadata"]["namespace"] == "shop"
    before = {file: file.stat().st_mtime_ns for file in files}
    (folder / "old.yaml").write_text((folder / "gitlab.yaml").read_text())
    (folder / "mine.yaml").write_text("kind: ConfigMap\n")
    capsys.readouterr()
    assert await _run("export", "--output-dir", str(folder), "-n", "shop") == 0
    assert {file: file.stat().st_mtime_ns for file in files} == before
    errors = capsys.readouterr().err
    assert "old.yaml belongs to no exported role" in errors
    assert "mine.yaml" not in errors
    assert (folder / "old.yaml").exists()


async def test_a_folder_that_cannot_be_written_is_named(
    made: ObservedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PGROLE_DSN", made.dsn)
    assert await _run("export", "--roles", "gitlab", "--output-dir", str(tmp_path / "file")) == 1
    errors = capsys.readouterr().err  # before PostgreSQL 15 also what everyone may in schema public
    assert f"pgrole-controller: File exists: '{tmp_path / 'file'}'\n" in errors
    assert "Traceback" not in errors


async def test_standard_output_is_yaml(
    made: ObservedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGROLE_DSN", made.dsn)
    assert await _run("export", "--roles", "gitlab") == 0
    (document,) = (one for one in yaml.safe_load_all(capsys.readouterr().out) if one is not None)
    assert document["metadata"] == {"name": "gitlab"}


async def test_standard_output_is_utf8_whatever_the_encoding_of_the_terminal(
    made: ObservedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await asyncpg.connect(made.server.dsn())
    written = io.BytesIO()
    try:
        await admin.execute("CREATE ROLE accented; COMMENT ON ROLE accented IS 'Größe 漢'")
        monkeypatch.setenv("PGROLE_DSN", made.dsn)
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert await _run("export", "--roles", "accented") == 0
        sys.stdout.flush()
    finally:
        await admin.execute("DROP ROLE accented")
        await admin.close()
    (document,) = (one for one in yaml.safe_load_all(written.getvalue().decode()) if one is not None)
    assert document["spec"]["comment"] == "Größe 漢"


async def test_a_missing_database_fails_and_the_rest_is_printed(
    made: ObservedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGROLE_DSN", made.dsn)
    assert await _run("export", "--roles", "gitlab", "--database", "no\x1b[31m") == 1
    printed = capsys.readouterr()
    assert "name: gitlab" in printed.out
    assert printed.err == 'pgrole-controller: database "no\\x1b[31m" does not exist\n'
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    assert await _run("export", "--roles", "gitlab", "--database", "missing") == 1
    assert capsys.readouterr().err == 'kubectl pgrole: database "missing" does not exist\n'


async def _run(*arguments: str) -> int:
    return await anyio.to_thread.run_sync(_exit_code, arguments)


def _exit_code(arguments: tuple[str, ...]) -> int:
    with pytest.raises(SystemExit) as exited:
        cli.main(arguments)
    assert isinstance(exited.value.code, int)
    return exited.value.code


ODD = 'x"; DROP ROLE x; --\x1b[31m'
NAMES = ("x_a", "x-b", "X c", ODD, "x.é", "true")
OWNER = "x_owner"
_QUOTED = ['"' + name.replace('"', '""') + '"' for name in NAMES]
_STRUCTURE = [f"CREATE ROLE {name}" for name in (*_QUOTED, OWNER)] + [
    f"""CREATE SCHEMA {schema} AUTHORIZATION {OWNER}; SET ROLE {OWNER};
    CREATE TABLE {schema}.one (id serial, name text); CREATE TABLE {schema}.two (id int, "n*" text);
    CREATE VIEW {schema}.seen AS SELECT * FROM {schema}.one; CREATE TABLE {schema}."odd*" (id int);
    CREATE FUNCTION {schema}.fn(int, text[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION {schema}.fn(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE TYPE {schema}.colour AS ENUM ('red'); RESET ROLE"""
    for schema in ("app", "hr")
]
_SCHEMA = st.sampled_from(["app", "app", "hr"])
_ROLE = st.sampled_from(_QUOTED)
_OPTION = st.sampled_from([""] * 9 + [" WITH GRANT OPTION"])
_TARGETS = st.one_of(
    st.builds("{} ON ALL TABLES IN SCHEMA {}".format, st.sampled_from(["SELECT", "SELECT, INSERT", "ALL"]), _SCHEMA),
    st.builds("{} ON ALL SEQUENCES IN SCHEMA {}".format, st.sampled_from(["SELECT", "ALL"]), _SCHEMA),
    st.builds("EXECUTE ON ALL FUNCTIONS IN SCHEMA {}".format, _SCHEMA),
    st.builds("SELECT (last_value) ON {}.one_id_seq".format, _SCHEMA),
    st.builds(
        "{} ON {}.{}".format,
        st.sampled_from(["SELECT", "UPDATE", "SELECT (id)", "DELETE, TRIGGER", "ALL"]),
        _SCHEMA,
        st.sampled_from(["one", "two", "seen", '"odd*"']),
    ),
    st.builds("EXECUTE ON FUNCTION {}.fn({})".format, _SCHEMA, st.sampled_from(["text", "int, text[]"])),
    st.builds("{} ON SCHEMA {}".format, st.sampled_from(["USAGE", "USAGE", "USAGE", "CREATE"]), _SCHEMA),
    st.builds("USAGE ON TYPE {}.colour".format, _SCHEMA),
    st.builds("{} ON DATABASE postgres".format, st.sampled_from(["CONNECT", "TEMPORARY", "CREATE"])),
)
_DEFAULT = f"ALTER DEFAULT PRIVILEGES FOR ROLE {OWNER}"
_EVENTS = st.one_of(
    st.builds("GRANT {} TO {}{}".format, _TARGETS, _ROLE, _OPTION),
    st.builds("GRANT {} TO {}".format, _TARGETS, _ROLE),
    st.builds("REVOKE {} FROM {}".format, _TARGETS, _ROLE),
    st.builds(
        "{0} IN SCHEMA {1} GRANT SELECT ON TABLES TO {2}; {0} IN SCHEMA {1} GRANT SELECT ON SEQUENCES TO {2}".format,
        st.just(_DEFAULT),
        _SCHEMA,
        _ROLE,
    ),
    st.builds(
        "{} {} GRANT UPDATE ON TABLES TO {}".format, st.just(_DEFAULT), st.sampled_from(["", "IN SCHEMA hr"]), _ROLE
    ),
    st.builds(
        "ALTER ROLE {} {}".format,
        _ROLE,
        st.sampled_from(
            [
                "LOGIN",
                "SUPERUSER",
                "CREATEDB CREATEROLE",
                "NOINHERIT BYPASSRLS",
                "CONNECTION LIMIT 3",
                "VALID UNTIL '2030-02-03 04:05:06.7+00'",
                "VALID UNTIL '-infinity'",
                """SET search_path = "$user", app, 'Odd "name"'""",
                "SET work_mem = '8MB'",
                "SET custom.Setting = 'a: b\n# c'",
                "IN DATABASE postgres SET role = 'x_a'",
            ]
        ),
    ),
    st.builds(
        "COMMENT ON ROLE {} IS {}".format,
        _ROLE,
        st.sampled_from(["'no'", "E'two\\nlines \u202e # \\x1b[2J'", "' é: 1e3'", f"'{'x' * 1025}'"]),
    ),
    st.builds("GRANT {} TO {}{}".format, _ROLE, _ROLE, st.sampled_from(["", "", " WITH ADMIN OPTION"])),
    st.builds("ALTER TABLE {}.two OWNER TO {}".format, _SCHEMA, _ROLE),
)

#: A role may not be a member of itself, nor roles of each other.
_NO_EFFECT = ("0LP01", "42704")


async def _reset(server: PostgresServer) -> None:
    async with superuser(server) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS app, hr CASCADE")
        for role in (*_QUOTED, OWNER):
            try:
                await connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")
            except asyncpg.UndefinedObjectError:
                continue
        for statement in _STRUCTURE:
            await connection.execute(statement)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(servers: Servers) -> AsyncIterator[tuple[ObservedServer, ObservedServer]]:
    async with AsyncExitStack() as stack:
        yield await _start(stack, servers, ()), await _start(stack, servers, ())


async def _check_round_trip(pair: tuple[ObservedServer, ObservedServer], events: list[str], *, exact: bool) -> None:
    origin, copy = pair
    owners = [event for event in events if " OWNER TO " in event]
    for one, some in ((origin, events), (copy, owners)):
        await _reset(one.server)
        async with superuser(one.server) as connection:
            for event in some:
                try:
                    await connection.execute(event)
                except asyncpg.PostgresError as error:
                    if error.sqlstate not in _NO_EFFECT:
                        raise
    exported = await export_from(origin.dsn, exact=exact)
    assert exported.errors == []
    assert len(exported.objects) == len(NAMES) + 1
    await check_unchanged(origin.server, exported.objects)
    await apply_to(copy.server, exported.objects)
    _check_equal(exported, await export_from(copy.dsn, exact=exact))


_CASES = given(events=st.lists(_EVENTS, min_size=5, max_size=25), exact=st.sampled_from([False, False, True]))
_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@_CASES
@example(
    events=[
        'GRANT SELECT ON ALL TABLES IN SCHEMA app TO "X c"',
        'GRANT SELECT (id) ON app.one TO "X c"',
        "GRANT UPDATE (id) ON app.one TO x_a",
    ],
    exact=False,
)
@settings(
    max_examples=4,
    deadline=None,
    suppress_health_check=_CHECKS,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)
@pytest.mark.slow
async def test_an_export_of_a_random_server_recreates_it(
    pair: tuple[ObservedServer, ObservedServer], events: list[str], exact: bool
) -> None:
    await _check_round_trip(pair, events, exact=exact)


@pytest.mark.slow
@_CASES
@settings(max_examples=int(os.environ.get("EXAMPLES", "10")), deadline=None, suppress_health_check=_CHECKS)
async def test_exports_of_many_random_servers_recreate_them(
    pair: tuple[ObservedServer, ObservedServer], events: list[str], exact: bool
) -> None:
    await _check_round_trip(pair, events, exact=exact)
