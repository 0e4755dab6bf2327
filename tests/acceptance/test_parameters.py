"""parameters and databaseParameters are exact, in the form in which PostgreSQL stores them."""

import secrets
from typing import Any

import pytest

from tests.acceptance.world import Database, Kube, condition


@pytest.fixture
def role() -> str:
    return f"p{secrets.token_hex(4)}"


async def settings(database: Database, role: str) -> dict[str, list[str]]:
    rows = await database.connection.fetch(
        "SELECT coalesce(d.datname::text, '') AS database, s.setconfig FROM pg_db_role_setting AS s"
        " LEFT JOIN pg_database AS d ON d.oid = s.setdatabase WHERE s.setrole = to_regrole($1)",
        role,
    )
    return {row["database"]: sorted(row["setconfig"]) for row in rows}


def drifts(count: int) -> Any:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def test_parameters_are_set_as_declared_including_lists(kube: Kube, database: Database, role: str) -> None:
    await kube.apply(
        "app",
        name=role,
        parameters={
            "statement_timeout": "30s",
            "search_path": '"$user", App, "Odd, ""one"""',
            "DateStyle": "ISO, DMY",
            "app.tenant": "it's; DROP ROLE postgres; --",
        },
        databaseParameters=[{"database": "postgres", "parameters": {"work_mem": "64MB"}}],
    )
    await kube.wait_ready("app")
    assert await settings(database, role) == {
        "": sorted(
            [
                "statement_timeout=30s",
                'search_path="$user", app, "Odd, ""one"""',
                "DateStyle=ISO, DMY",
                "app.tenant=it's; DROP ROLE postgres; --",
            ]
        ),
        "postgres": ["work_mem=64MB"],
    }
    obj = await kube.get("app")
    assert obj is not None
    assert obj["status"]["driftCount"] == 0


@pytest.mark.parametrize(
    ("statement", "field"),
    [
        ("ALTER ROLE {} SET statement_timeout = '1min'", "parameters"),
        ("ALTER ROLE {} RESET statement_timeout", "parameters"),
        ("ALTER ROLE {} SET lock_timeout = '1s'", "parameters"),
        ("ALTER ROLE {} RESET ALL", "parameters"),
        ("ALTER ROLE {} SET search_path = 'app, public'", "parameters"),
        ("ALTER ROLE {} SET session_replication_role = 'replica'", "parameters"),
        ("ALTER ROLE {} IN DATABASE postgres SET work_mem = '1MB'", "databaseParameters"),
        ("ALTER ROLE {} IN DATABASE postgres RESET ALL", "databaseParameters"),
        ("ALTER ROLE {} IN DATABASE template1 SET work_mem = '1MB'", "databaseParameters"),
    ],
)
async def test_a_changed_setting_is_restored(
    kube: Kube, database: Database, role: str, statement: str, field: str
) -> None:
    await kube.apply(
        "app",
        name=role,
        parameters={"statement_timeout": "30s", "search_path": "app, public"},
        databaseParameters=[{"database": "postgres", "parameters": {"work_mem": "64MB"}}],
    )
    await kube.wait_ready("app")
    before = await settings(database, role)
    await database.execute(statement.format(role))
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == [field]
    assert await settings(database, role) == before
    assert obj["status"]["driftCount"] == 1


@pytest.mark.parametrize(
    ("parameters", "reason", "words"),
    [
        ({"no_such_parameter": "1"}, "InvalidSpec", "no_such_parameter"),
        ({"log_statement": "none"}, "NotAllowed", "log_statement"),
        ({"search_path": '"unfinished'}, "InvalidSpec", "search_path"),
        ({"shared_buffers": "1GB"}, "InvalidSpec", "shared_buffers"),
        ({"work_mem": "plenty"}, "InvalidSpec", "work_mem"),
        ({"work_mem": "64 Mb"}, "InvalidSpec", 'Valid units for this parameter are "B", "kB", "MB"'),
        ({"transaction_isolation": "serializable"}, "InvalidSpec", "begins with default_"),
    ],
)
async def test_invalid_or_disallowed_parameters_are_refused_by_name(
    kube: Kube, database: Database, role: str, parameters: dict[str, str], reason: str, words: str
) -> None:
    await kube.apply("app", name=role, parameters=parameters)
    obj = await kube.wait_reason("app", reason)
    assert words in condition(obj, "Ready")["message"]
    assert await database.role(role) is None


@pytest.mark.parametrize("parameters", [{"work_mem": "plenty"}, {"search_path": '"unfinished'}])
async def test_what_others_grant_is_revoked_while_a_parameter_is_invalid(
    kube: Kube, database: Database, role: str, parameters: dict[str, str]
) -> None:
    await kube.apply("app", name=role, login=True)
    await kube.wait_ready("app")
    await kube.apply("app", name=role, login=False, parameters=parameters)
    await kube.wait_reason("app", "InvalidSpec")
    await database.execute(f'ALTER ROLE "{role}" SUPERUSER')
    await database.wait_role(role, lambda row: not row["rolsuper"], "NOSUPERUSER")
    obj = await kube.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "one drift")
    assert obj["status"]["lastDrift"]["fields"] == ["superuser"]
    assert condition(obj, "Ready")["reason"] == "InvalidSpec"
    row = await database.role(role)
    assert row is not None
    assert row["rolcanlogin"]


async def test_parameters_that_only_superusers_set_are_reset_even_if_parameters_are_ignored(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply("app", name=role, drift={"ignore": ["parameters"]})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} SET work_mem = '2MB'")
    await database.execute(f"ALTER ROLE {role} SET session_replication_role = replica")
    await kube.wait_for("app", lambda obj: obj["status"]["driftCount"] == 1, "one drift")
    assert await settings(database, role) == {"": ["work_mem=2MB"]}


async def test_a_missing_database_is_named_and_the_rest_is_applied(kube: Kube, database: Database, role: str) -> None:
    await kube.apply(
        "app",
        name=role,
        parameters={"work_mem": "2MB"},
        databaseParameters=[{"database": f"{role}_db", "parameters": {"work_mem": "64MB"}}],
    )
    obj = await kube.wait_reason("app", "DatabaseError")
    assert f"{role}_db" in condition(obj, "Ready")["message"]
    assert await settings(database, role) == {"": ["work_mem=2MB"]}
    await database.execute(f"CREATE DATABASE {role}_db")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0
    await database.execute(f"DROP DATABASE {role}_db")


async def test_parameters_removed_from_the_spec_are_reset(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, parameters={"work_mem": "2MB"})
    await kube.wait_ready("app")
    await kube.apply("app", name=role)
    await kube.wait_ready("app")
    assert await settings(database, role) == {}
