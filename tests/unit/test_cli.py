"""cli: what ends with which exit code, and says why."""

from pathlib import Path

import pytest

from pgrole_controller.api import crd
from pgrole_controller.cli import FAILED, MISUSED, main
from pgrole_controller.settings import DSN, SETTINGS


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
        (("claims", "release", "--all-released"), "--forget"),
        (("claims", "release", "--role", "app", "--namespace", "shop"), "--cluster"),
        (("claims", "list"), "PGROLE_DSN"),
    ],
)
def test_whoever_misuses_it_is_told_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.delenv("PGROLE_DSN", raising=False)
    assert end(*arguments) == MISUSED
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_variable_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGROLE_DSN", "postgresql://admin:hunter2/3@host/db")
    assert end("run") == MISUSED
    said = capsys.readouterr()
    assert "PGROLE_DSN" in said.err
    assert "hunter2" not in said.out + said.err


def test_help_names_each_flag_with_its_variable_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("run", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        described = f"({setting.variable}; default: {setting.default})" if setting.default else f"({setting.variable}"
        assert f"{setting.flag} {setting.metavar} " in said or setting.secret
        assert described in said.replace("- ", "-") or setting.secret
    assert f"{DSN.variable} (environment only)" in said


def test_definitions_are_written_into_a_folder_that_need_not_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "crds"
    assert end("crds", "--check", str(folder)) == FAILED
    assert end("crds", "--write", str(folder)) == 0
    assert {path.name for path in folder.iterdir()} == set(crd.files())
    assert end("crds", "--check", str(folder)) == 0
