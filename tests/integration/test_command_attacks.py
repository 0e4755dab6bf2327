"""Commands under attack: names that look like psql commands, an owner who sets traps, readers that leave early."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg
import pytest

from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.trusted_schema import reading_table
from tests.commands import run_command
from tests.servers import Servers

NAMES = (
    "atk\n\\! touch %s\n--",
    "atk\x1b[31mred",
    "atk\u202ebidi\U000e0041",
    'atk"quo"te',
    "atk\\",
    "atk'; DROP ROLE x; --",
    "atk`touch %s`",
    "atk{brace}",
    "atk[bold]",
    "atk café",
)
TRAPS = """
CREATE FUNCTION public.trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'TRAPPED'; END $$;
CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.trap);
CREATE FUNCTION public.textsend(text) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'TRAPPED'; END $$;
CREATE FUNCTION public.current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'TRAPPED'; END $$;
"""

#: Makes the tenant a superuser when a superuser calls it.
CLIMB = """
CREATE FUNCTION public.climb() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT r.rolsuper FROM pg_catalog.pg_roles AS r WHERE r.rolname OPERATOR(pg_catalog.=) current_user) THEN
        ALTER ROLE atk_tenant SUPERUSER;
    END IF;
    RETURN true;
END $$;
"""
#: What a tenant can have found before PostgreSQL's own: operators, functions with better matching arguments, types.
PLANTED = {
    "operators": """
        CREATE FUNCTION public.same(name, name) RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN RETURN public.climb() AND $1 OPERATOR(pg_catalog.=) $2; END $$;
        CREATE FUNCTION public.same("char", "char") RETURNS boolean LANGUAGE plpgsql AS
        $$ BEGIN RETURN public.climb() AND $1 OPERATOR(pg_catalog.=) $2; END $$;
        CREATE OPERATOR public.= (LEFTARG = name, RIGHTARG = name, FUNCTION = public.same);
        CREATE OPERATOR public.= (LEFTARG = "char", RIGHTARG = "char", FUNCTION = public.same);
    """,
    "functions": """
        CREATE FUNCTION public.to_regnamespace(text) RETURNS regnamespace LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.climb(); RETURN pg_catalog.to_regnamespace($1); END $$;
        CREATE FUNCTION public.to_regclass(text) RETURNS regclass LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.climb(); RETURN pg_catalog.to_regclass($1); END $$;
        CREATE FUNCTION public.format(text, name) RETURNS text LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.climb(); RETURN pg_catalog.format($1, $2); END $$;
        CREATE FUNCTION public.current_database() RETURNS name LANGUAGE plpgsql AS
        $$ BEGIN PERFORM public.climb(); RETURN pg_catalog.current_database(); END $$;
    """,
    "types": """
        CREATE DOMAIN public.name AS pg_catalog.name CHECK (public.climb());
        CREATE DOMAIN public.oid AS pg_catalog.oid CHECK (public.climb());
    """,
}

#: Claims to be immutable, so that PostgreSQL calls it when it plans a query. Leaves file `ran` in the data folder.
STRIKE = """
CREATE FUNCTION pgrole.act() RETURNS int LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF current_user <> 'atk_tenant' THEN
        COPY (SELECT 1) TO PROGRAM 'cat > ran';
    END IF;
    RETURN 1;
END $$;
CREATE FUNCTION pgrole.strike() RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN RETURN pgrole.act(); END $$;
"""
#: What an owner can add to a table ({0}) so that planning a query of it calls a function.
ADDED = {
    "index": "CREATE INDEX ON pgrole.{0} ((pgrole.strike()))",
    "predicate": "CREATE INDEX ON pgrole.{0} ((1)) WHERE pgrole.strike() > 0",
    "statistics": "CREATE STATISTICS pgrole.s_{0} ON (pgrole.strike()) FROM pgrole.{0}",
    "child": "CREATE TABLE pgrole.c_{0} () INHERITS (pgrole.{0}); CREATE INDEX ON pgrole.c_{0} ((pgrole.strike()))",
    "partition": """
        DROP TABLE pgrole.{0} CASCADE;
        CREATE TABLE pgrole.{0} (LIKE pgrole.copy_of_{0}) PARTITION BY RANGE (({1}));
        CREATE TABLE pgrole.p_{0} PARTITION OF pgrole.{0} DEFAULT PARTITION BY RANGE (({1}));
        CREATE TABLE pgrole.q_{0} PARTITION OF pgrole.p_{0} DEFAULT;
        CREATE INDEX ON pgrole.q_{0} ((pgrole.strike()))
    """,
}
#: The tables of schema pgrole that commands read, with a column of each.
READ_TABLES = {
    "claim": "role_name",
    "ddl_event": "id",
    "applied": "role_oid",
    "drift_history": "slot",
    "installation": "version",
}


def write_objects(place: Path, database: str, names: list[str], *, adopt: bool) -> Path:
    """A role for each name: a member of it, with its text as comment and parameter, and a table of that name."""
    items = [
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": f"atk{number}"},
            "spec": {
                "name": f"atk_of_{database}_{number}",
                "adopt": adopt,
                "comment": name.replace("\x1b", "") + " :x :'HOME' $1 %s \\gexec",
                "memberOf": [{"role": name}],
                "parameters": {"app.text": name.replace("\x1b", "")},
                "privileges": [
                    {
                        "database": database,
                        "objects": [
                            {"kind": "Table", "schema": "public", "names": [name[:60]], "privileges": ["SELECT"]}
                        ],
                    }
                ],
            },
        }
        for number, name in enumerate(names)
        if "\x1b" not in name or not adopt
    ]
    file = place / "roles.json"
    file.write_text(json.dumps({"kind": "List", "items": items}, ensure_ascii=False), encoding="utf-8")
    return file


def run_psql(server: PostgresServer, dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PGCLIENTENCODING": "LATIN1"}
    command = [str(server.psql), "-X", "-d", dsn]
    return subprocess.run(command, input=script, capture_output=True, env=environment, encoding="utf-8", check=False)


async def test_psql_runs_a_plans_script_as_intended_despite_hostile_names(
    postgres_server: PostgresServer, database: str, tmp_path: Path
) -> None:
    name = database.rpartition("/")[2]
    pwned = Path(f"/tmp/{name}")
    names = [one.replace("%s", str(pwned))[:50] + name[-4:] for one in NAMES]
    connection = await asyncpg.connect(database)
    try:
        for one in names:
            await connection.execute(f"CREATE ROLE {quote_identifier(one)}")
            await connection.execute(f"CREATE TABLE public.{quote_identifier(one)} (a int)")
        await connection.execute(TRAPS)
        for setting in ("search_path = public, pg_catalog", "standard_conforming_strings = off"):
            await connection.execute(f"ALTER DATABASE {name} SET {setting}")
        file = write_objects(tmp_path, name, names, adopt=False)
        answer = await run_command("plan", "-f", str(file), "-o", "sql", PGROLE_DSN=database)
        assert answer.code == 3, answer.err
        assert all(line.isprintable() for line in answer.out.splitlines())
        done = await anyio.to_thread.run_sync(run_psql, postgres_server, postgres_server.dsn(), answer.out)
        assert (done.returncode, done.stderr) == (0, "")
        assert not await anyio.Path(pwned).exists()
        file = write_objects(tmp_path, name, names, adopt=True)
        planned = json.loads((await run_command("plan", "-f", str(file), "-o", "json", PGROLE_DSN=database)).out)
        assert {one["action"] for one in planned["objects"]} == {"claim"}
        assert [one["changes"] for one in planned["objects"] if one["changes"]] == []
    finally:
        made = [f"atk_of_{name}_{number}" for number in range(len(names))]
        quoted = [quote_identifier(one) for one in (*made, *names)]
        for one in quoted:
            with_role = await connection.fetchval("SELECT pg_catalog.to_regrole($1)", one)
            if with_role is not None:
                await connection.execute(f"DROP OWNED BY {one}; DROP ROLE {one}")
        await connection.close()


@pytest.mark.parametrize("planted", PLANTED)
async def test_an_administrator_who_runs_a_printed_script_runs_no_code_of_the_databases_owner(
    planted: str, own_postgres: PostgresServer
) -> None:
    admin = await asyncpg.connect(own_postgres.dsn())
    await admin.execute("CREATE ROLE atk_tenant LOGIN PASSWORD 'm'")
    await admin.execute("CREATE DATABASE orders OWNER atk_tenant")
    await admin.execute("ALTER DATABASE orders SET search_path = public, pg_catalog")
    await admin.execute("ALTER DATABASE orders SET standard_conforming_strings = off")
    tenant = await asyncpg.connect(own_postgres.dsn("atk_tenant", password="m", database="orders"))
    await tenant.execute("SET search_path = pg_catalog")
    await tenant.execute(CLIMB + PLANTED[planted])
    await tenant.close()
    for words in ("--database", "--remove", "", "--remove"):
        script = await run_command("sql", *words.split())
        dsn = own_postgres.dsn(database="orders")
        done = await anyio.to_thread.run_sync(run_psql, own_postgres, dsn, f"\\set ON_ERROR_STOP on\n{script.out}")
        climbed = await admin.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = 'atk_tenant'")
        assert (climbed, done.returncode) == (False, 0), (words, done.stderr)
    await admin.close()


@pytest.mark.parametrize("reader", [pytest.param("superuser", marks=pytest.mark.slow), "looker"])
@pytest.mark.parametrize("added", ADDED)
async def test_commands_run_no_code_of_the_owner_of_the_tables_that_they_read(
    added: str, reader: str, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """The owner has CREATEROLE, as the controller's role does: a login that is no superuser trusts it otherwise."""
    admin = await asyncpg.connect(own_postgres.dsn())
    await admin.execute("""
        CREATE ROLE atk_tenant LOGIN CREATEROLE PASSWORD 'm';
        CREATE ROLE looker LOGIN PASSWORD 'm'; GRANT pg_monitor, pg_execute_server_program TO looker
    """)
    await admin.execute("CREATE DATABASE orders OWNER atk_tenant")
    tenant = await asyncpg.connect(own_postgres.dsn("atk_tenant", password="m", database="orders"))
    await tenant.execute(f"CREATE TABLE public.t (a int); CREATE SCHEMA pgrole; {queries.install()}")
    await tenant.execute("GRANT USAGE ON SCHEMA pgrole TO PUBLIC")
    login = "looker" if reader == "looker" else None
    dsn = own_postgres.dsn(login, password="m", database="orders") if login else own_postgres.dsn(database="orders")
    file = write_objects(tmp_path, "orders", ["t"], adopt=True)

    async def run_commands() -> str:
        shown = ""
        for words in (
            ("access", "--on", "public.t", "--database", "orders"),
            ("plan", "-f", str(file)),
            ("history",),
            ("doctor",),
        ):
            answer = await run_command(*words, PGROLE_DSN=dsn)
            assert "Traceback" not in answer.err
            shown += answer.out + answer.err
        return shown

    await tenant.execute("GRANT SELECT ON ALL TABLES IN SCHEMA pgrole TO PUBLIC")
    assert ("could run code" in await run_commands()) is (reader == "superuser")
    await tenant.execute(STRIKE)
    for table, column in READ_TABLES.items():
        if added == "partition":
            await tenant.execute(f"CREATE TABLE pgrole.copy_of_{table} (LIKE pgrole.{table})")
        if not (added == "child" and table == "drift_history"):
            await tenant.execute(ADDED[added].format(table, column))
    await tenant.execute("GRANT SELECT ON ALL TABLES IN SCHEMA pgrole TO PUBLIC")
    assert "could run code" in await run_commands()
    assert await admin.fetchval("SELECT (pg_stat_file('ran', true)).size IS NULL")
    # the trap works: whoever does not ask runs it
    for table in READ_TABLES:
        unguarded = await asyncpg.connect(dsn)
        if not (added == "child" and table == "drift_history"):
            await unguarded.execute(f"SELECT count(*) FROM pgrole.{table}")
            assert await admin.fetchval("SELECT (pg_stat_file('ran', true)).size IS NOT NULL"), table
        await unguarded.close()
    await tenant.close()
    await admin.close()


#: Owners of schema and table, who reads, and whether the table is readable.
OWNERS = (
    ("postgres", "postgres", "looker", True),
    ("maker", "maker", "looker", True),
    ("maker", "maker", "maker", True),
    ("plain", "plain", "plain", True),
    ("maker", "maker", "postgres", False),
    ("plain", "plain", "looker", False),
    ("plain", "postgres", "postgres", False),
    ("plain", "postgres", "looker", False),
    ("postgres", "plain", "postgres", False),
)


async def test_a_table_is_read_only_if_no_untrusted_owner_could_replace_it_meanwhile(
    own_postgres: PostgresServer,
) -> None:
    """`maker` has CREATEROLE, as the controller's role does; `plain` has no attribute."""
    admin = await asyncpg.connect(own_postgres.dsn())
    await admin.execute("""
        CREATE ROLE maker LOGIN CREATEROLE PASSWORD 'm'; CREATE ROLE plain LOGIN PASSWORD 'm';
        CREATE ROLE looker LOGIN PASSWORD 'm'; ALTER ROLE postgres PASSWORD 'm';
        CREATE SCHEMA pgrole; CREATE TABLE pgrole.claim (privileges text);
        GRANT USAGE ON SCHEMA pgrole TO PUBLIC; GRANT SELECT ON pgrole.claim TO PUBLIC
    """)
    for schema_owner, table_owner, reader, readable in OWNERS:
        await admin.execute(
            f"ALTER SCHEMA pgrole OWNER TO {schema_owner}; ALTER TABLE pgrole.claim OWNER TO {table_owner}"
        )
        async with (
            connect(Endpoint(own_postgres.dsn(reader, password="m")), "test") as connection,
            reading_table(connection, "claim") as found,
        ):
            state = (found.exists, found.permitted, found.readable, found.unsafe)
            assert state == (True, True, readable, not readable), (schema_owner, table_owner, reader)
    await admin.close()


async def test_read_only_commands_write_nothing(servers: Servers, tmp_path: Path) -> None:
    async with servers.run({"autovacuum": "off"}) as server:  # it uses transaction ids, too
        await check_that_read_only_commands_write_nothing(server.dsn(), tmp_path)


async def check_that_read_only_commands_write_nothing(dsn: str, tmp_path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("CREATE ROLE app LOGIN; CREATE TABLE public.t (a int); GRANT SELECT ON public.t TO app")
    query = "SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())"
    before = await connection.fetchval(query)
    file = write_objects(tmp_path, "postgres", ["app"], adopt=True)
    for words in (
        ("plan", "-f", str(file)),
        ("access", "app"),
        ("access", "--on", "public.t"),
        ("history",),
        ("doctor",),
    ):
        answer = await run_command(*words, PGROLE_DSN=dsn)
        assert "Traceback" not in answer.err
    assert await connection.fetchval(query) == before
    assert await connection.fetchval("SELECT count(*) FROM pg_catalog.pg_locks WHERE locktype = 'advisory'") == 0
    await connection.close()


def start(*words: str, stdout: int, dsn: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "KUBECONFIG": "/nonexistent", "PGROLE_DSN": dsn}
    # A background job of a shell ignores SIGINT, and so do the processes that it starts.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{heeding}; from pgrole_controller.cli import main; main()", *words]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, env=environment, text=True)


@pytest.mark.parametrize("words", ["sql", "crds", "completion bash", "access postgres", "access postgres -o json"])
async def test_a_reader_that_closes_the_pipe_causes_no_message(words: str, postgres_server: PostgresServer) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with start(*words.split(), stdout=writing, dsn=postgres_server.dsn()) as command:
        os.close(writing)
        _, shown = await anyio.to_thread.run_sync(command.communicate)
    assert (command.returncode, shown) == (141, "")


@pytest.mark.parametrize("words", ["sql", "access postgres"])
async def test_a_full_disk_is_reported_on_one_line(words: str, postgres_server: PostgresServer) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with start(*words.split(), stdout=full, dsn=postgres_server.dsn()) as command:
        os.close(full)
        _, shown = await anyio.to_thread.run_sync(command.communicate)
    assert (command.returncode, shown) == (1, "pgrole-controller: No space left on device\n")


async def test_an_interrupted_command_exits_without_a_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        dsn = f"postgresql://u:s3cret@127.0.0.1:{silent.getsockname()[1]}/db"
        with start("access", "app", stdout=subprocess.DEVNULL, dsn=dsn) as command:
            accepted, _ = await anyio.to_thread.run_sync(silent.accept)
            command.send_signal(signal.SIGINT)
            _, shown = await anyio.to_thread.run_sync(command.communicate)
            accepted.close()
    assert (command.returncode, shown) == (130, "")
