"""Completion as users experience it: real shells with a terminal, and kubectl's protocol."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_SECONDS = 60.0
_PROGRAMS = Path(sys.executable).parent
_START = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}
_PREPARE = {
    "bash": "PS1='READY> '; bind 'set enable-bracketed-paste off'; source <({program} completion bash)",
    "zsh": "PS1='READY> '; autoload -U compinit; compinit -u -D; source <({program} completion zsh)",
}


def need(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed: apt-get install {shell}")
    return found


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user with the programs on the PATH, and nothing else."""
    return {"PATH": f"{_PROGRAMS}:{os.environ['PATH']}", "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}


@dataclass(slots=True)
class TypedShell:
    """A shell with a terminal; `said` is everything that it wrote."""

    terminal: int
    said: str = ""

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> None:
        begin, end = len(self.said), time.monotonic() + _SECONDS
        while text not in self.said[begin:]:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                raise AssertionError(f"{text!r} is not in what the shell wrote: {self.said[begin:]!r}")
            self.said += os.read(self.terminal, 1 << 16).decode(errors="replace")


@contextmanager
def typed(shell: str, program: str, folder: Path) -> Iterator[TypedShell]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        _START[shell], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment(folder),
        start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    try:
        made = TypedShell(ours)
        made.type(_PREPARE[shell].format(program=program) + "; echo prep''ared\n")
        made.wait_for("prepared")
        yield made
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("program", ["pgrole-controller", pytest.param("kubectl-pgrole", marks=pytest.mark.slow)])
def test_tab_completes_commands_choices_and_files(shell: str, program: str, tmp_path: Path) -> None:
    need(shell)
    (tmp_path / "role files").mkdir()
    (tmp_path / "role files" / "orders.yaml").touch()
    with typed(shell, program, tmp_path) as it:
        it.type(f"{program} his\t")
        it.wait_for("history")
        it.type("--outp\t")
        it.wait_for("--output")
        it.type("j\t")
        it.wait_for("json")
        it.type(f"\x15{program} plan -f role\t")
        it.wait_for("role\\ files/")
        it.type("\t")
        it.wait_for("orders.yaml")


def test_fish_completes_commands_with_their_descriptions(tmp_path: Path) -> None:
    fish = need("fish")
    (tmp_path / "orders.yaml").touch()

    def complete(line: str) -> list[str]:
        script = f'pgrole-controller completion fish | source; complete -C "{line}"'
        done = subprocess.run(
            [fish, "--no-config", "-c", script], cwd=tmp_path, env=environment(tmp_path), capture_output=True,
            text=True, check=True, timeout=_SECONDS,
        )  # fmt: skip
        return done.stdout.splitlines()

    assert complete("pgrole-controller his") == ["history\tshow drifts with their author"]
    assert {line.split("\t")[0] for line in complete("pgrole-controller completion ")} == {
        "bash",
        "fish",
        "kubectl",
        "zsh",
    }
    assert complete("pgrole-controller plan -f ord") == ["orders.yaml"]


def ask(folder: Path, *words: str, through: dict[str, str] | None = None) -> tuple[list[str], str]:
    """Returns the completions that kubectl receives, without descriptions, and the directive."""
    done = subprocess.run(
        ["kubectl_complete-pgrole", *words], cwd=folder, env=environment(folder) | (through or {}),
        capture_output=True, text=True, check=True, timeout=_SECONDS,
    )  # fmt: skip
    assert done.stderr == ""
    *found, directive = done.stdout.splitlines()
    return [line.split("\t")[0] for line in found], directive


@pytest.mark.parametrize(
    ("words", "found", "directive"),
    [
        (("acc",), ["access"], ":4"),
        (("run",), [], ":4"),
        (("claims", "re"), ["release"], ":4"),
        (("plan", "-o", ""), ["text", "json", "sql"], ":4"),
        (("plan", "--output=j"), ["--output=json"], ":4"),
        (("plan", "-f", "it's"), ["it's one/"], ":6"),
        (("plan", "-f", "it's one/"), ["it's one/a b.yaml"], ":4"),
        (("export", "--output-dir", ""), ["it's one/"], ":6"),
        (("access", ""), [], ":4"),
        (("plan", "--server", "file"), [], ":4"),
        (("plan", "-f", "missing/"), [], ":4"),
        (("plan", "'unbalanced"), [], ":4"),
    ],
)
def test_completions_for_kubectl_follow_its_protocol(
    words: tuple[str, ...], found: list[str], directive: str, tmp_path: Path
) -> None:
    (tmp_path / "it's one").mkdir()
    (tmp_path / "it's one" / "a b.yaml").touch()
    (tmp_path / "file").touch()
    (tmp_path / "bad\x1b[2Jname").touch()
    assert ask(tmp_path, *words) == (found, directive)


def test_the_printed_completion_program_for_kubectl_works(tmp_path: Path) -> None:
    """krew links only one executable of a plugin, and this is a second one."""
    place = tmp_path / "bin"
    place.mkdir()
    printed = subprocess.run(
        ["kubectl-pgrole", "completion", "kubectl"], env=environment(tmp_path), capture_output=True, check=True
    )
    (place / "kubectl_complete-pgrole").write_bytes(printed.stdout)
    (place / "kubectl_complete-pgrole").chmod(0o755)
    path = f"{place}:{_PROGRAMS}:{os.environ['PATH']}"
    assert ask(tmp_path, "doc", through={"PATH": path}) == (["doctor"], ":4")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_never_executes_a_users_argument(shell: str, tmp_path: Path) -> None:
    need(shell)
    (tmp_path / "$(touch run)").touch()
    (tmp_path / "$(touch run)2").touch()
    if shell == "fish":
        script = "pgrole-controller completion fish | source; complete -C 'pgrole-controller plan -f \\$'"
        subprocess.run(
            ["fish", "--no-config", "-c", script], cwd=tmp_path, env=environment(tmp_path), check=True,
            capture_output=True,
        )  # fmt: skip
    else:
        with typed(shell, "pgrole-controller", tmp_path) as it:
            it.type("pgrole-controller plan -f \\$\t")
            it.wait_for("touch")
            it.type("\x15echo en''ded\n")
            it.wait_for("ended")
    assert not (tmp_path / "run").exists()
