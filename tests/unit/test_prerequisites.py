"""Everything that a machine lacks for compose-test and cluster-test is named at once."""

import os
import shutil
from pathlib import Path

import pytest

from tests.compose.engine import EngineError
from tests.compose.prerequisites import check


def put(folder: Path, name: str, script: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_all_missing_prerequisites_are_named_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    put(path, "psql")
    with pytest.raises(EngineError) as error:
        check(
            root="mounts",
            programs=("psql", "curl", "dockerd", "docker", "kubectl"),
            built=("kubelet", "helm"),
            docker=[["info"]],
        )
    lines = str(error.value).splitlines()[1:]
    assert lines[:2] == [
        "  - root, which mounts",
        "  - packages: apt-get install --no-install-recommends curl docker.io",
    ]
    assert lines[2].startswith("  - kubectl (https://")
    assert lines[3].startswith("  - Go ")
    assert lines[3].endswith("which builds kubelet, helm once")
    assert lines[4].startswith("  - docker, for `docker info`, or choose ARGS=--stand-ins")
    assert len(lines) == 5


def test_go_is_required_only_if_something_has_to_be_built(path: Path) -> None:
    check(built=())
    with pytest.raises(EngineError, match="Go "):
        check(built=("kubelet",))
    put(path, "go")
    check(built=("kubelet",))


def test_a_docker_that_fails_is_named_with_its_message(path: Path) -> None:
    put(path, "docker", '[ "$1" = compose ] && exit 0; echo Cannot connect >&2; exit 1')
    assert shutil.which("docker") is not None
    check(docker=[["compose", "version"]])
    with pytest.raises(EngineError, match=r"`docker info` \(Cannot connect\), or choose"):
        check(docker=[["info"], ["compose", "version"]])
