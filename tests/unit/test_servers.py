"""Which PostgreSQL the tests run against: --postgres, the requested container, and the table of all versions."""

from typing import Any

import pytest
from testcontainers.community import postgres as testcontainers_postgres
from testcontainers.core import container as testcontainers_container

from tests.matrix import main, read, table
from tests.servers import VERSIONS, ContainerServer, Servers, read_choice

REPORT = (
    """<testsuites><testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="4.5"/></testsuites>"""
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The containers requested from testcontainers; none is started."""
    made: list[Any] = []
    container = testcontainers_postgres.PostgresContainer
    monkeypatch.setattr(testcontainers_container, "DockerClient", lambda **_: None)

    def start(one: Any) -> None:
        one._container = object()
        made.append(one)

    monkeypatch.setattr(container, "start", start)
    monkeypatch.setattr(container, "stop", lambda one: made.remove(one))
    monkeypatch.setattr(container, "get_container_host_ip", lambda _: "docker.example")
    monkeypatch.setattr(container, "get_exposed_port", lambda _, port: 40_000 + port)
    return made


@pytest.mark.parametrize(("text", "desired"), [("14", Servers(14)), ("docker:17", Servers(17, docker=True))])
def test_a_version_means_a_local_server_unless_docker_is_named(text: str, desired: Servers) -> None:
    assert read_choice(text) == desired


@pytest.mark.parametrize("text", ["", "13", "docker", "docker:", "podman:16", "16.4"])
def test_another_choice_is_refused_and_the_known_ones_are_named(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="14, 15, 16, 17, 18"):
        read_choice(text)


@pytest.mark.parametrize("version", VERSIONS)
async def test_docker_is_asked_for_the_official_image_of_the_version(asked: list[Any], version: int) -> None:
    async with read_choice(f"docker:{version}").run({"autovacuum": "off"}) as server:
        (container,) = asked
        container._configure()
        assert container.image == f"postgres:{version}"
        assert list(container.ports) == ["5432"]
        assert container.env["POSTGRES_USER"] == container.env["POSTGRES_DB"] == "postgres"
        assert container.env["POSTGRES_PASSWORD"] == server.password
        assert "--locale=C" in container.env["POSTGRES_INITDB_ARGS"]
        assert " ".join(container._command).startswith("postgres -c ")
        assert "autovacuum=off" in container._command
        assert server.dsn(database="a b") == f"postgresql://postgres:{server.password}@docker.example:45432/a%20b"
    assert asked == []


async def test_a_container_that_failed_to_start_is_removed(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def start(one: Any) -> None:
        one._container = object()
        asked.append(one)
        raise OSError("the port is taken")

    monkeypatch.setattr(testcontainers_postgres.PostgresContainer, "start", start)
    with pytest.raises(OSError, match="the port is taken"):
        async with read_choice("docker:16").run():
            pass
    assert asked == []


async def test_the_error_of_a_container_that_was_never_created_is_raised(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_one: Any) -> None:
        raise OSError("no such image")

    monkeypatch.setattr(testcontainers_postgres.PostgresContainer, "start", start)
    with pytest.raises(OSError, match="no such image"):
        async with read_choice("docker:16").run():
            pass


async def test_operations_that_would_break_a_container_skip_the_test_with_the_reason() -> None:
    server = ContainerServer("127.0.0.1", 5432, "p")
    for breaking in (server.start, server.stop, server.restart, server.kill):
        with pytest.raises(pytest.skip.Exception, match=r"PostgreSQL.* on this machine only"):
            await breaking()
    for freezing in (server.pause, server.resume, lambda: server.process, lambda: server.psql):
        with pytest.raises(pytest.skip.Exception, match="on this machine only"):
            freezing()


def test_the_table_shows_each_version_and_what_failed() -> None:
    well = read("14", 0, REPORT.replace('errors="1" failures="2"', 'errors="0" failures="0"'))
    badly = read("docker:15", 1, REPORT)
    nothing = read("16", 5, None)
    assert [(result.passed, result.failed, result.well) for result in (well, badly, nothing)] == [
        (7, 0, True),
        (4, 3, False),
        (0, 0, False),
    ]
    rows = table([well, badly, nothing]).splitlines()[1:]
    assert rows[0].split() == ["14", "7", "0", "3", "4"]
    assert ["FAILED" in row for row in rows] == [False, True, True]


def test_a_matrix_of_an_unknown_version_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["14", "12"]) == 2
    assert "12" in capsys.readouterr().err
