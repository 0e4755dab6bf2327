"""cli: what ends with which exit code, and says why."""

from pathlib import Path

import pytest

from pgrole_controller.api import crd
from pgrole_controller.cli import FAILED, MISUSED, main


def end(*arguments: str) -> object:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "COMMAND"),
        (("walk",), "walk"),
        (("run", "--leader", "true"), "--leader true"),
        (("run", "--leader-election", "maybe"), "--leader-election"),
        (("run", "--lease", "Leader!"), "--lease"),
        (("run", "--kubeconfig", "/nowhere/at/all"), "--kubeconfig"),
    ],
)
def test_whoever_misuses_it_is_told_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    assert end(*arguments) == MISUSED
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGROLE_DSN", "postgresql://admin:hunter2/3@host/db")
    assert end("run") == MISUSED
    said = capsys.readouterr()
    assert "PGROLE_DSN" in said.err
    assert "hunter2" not in said.out + said.err


def test_definitions_are_written_into_a_folder_that_need_not_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "crds"
    assert end("crds", "--check", str(folder)) == FAILED
    assert end("crds", "--write", str(folder)) == 0
    assert {path.name for path in folder.iterdir()} == set(crd.files())
    assert end("crds", "--check", str(folder)) == 0
