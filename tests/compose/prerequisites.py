"""Checks what this machine lacks for `make compose-test` and `make cluster-test`, all at once, before a build."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence

from tests.compose.engine import EngineError

#: The Debian package of each program.
_PACKAGES = {
    "curl": "curl",
    "debootstrap": "debootstrap",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "psql": "postgresql-client",
    "runc": "runc",
    "setcap": "libcap2-bin",
}
_ELSEWHERE = {"kubectl": "kubectl (https://kubernetes.io/docs/tasks/tools)"}
#: Programs to run an engine for the stand-ins.
ENGINE = ("dockerd", "docker", "iptables", "debootstrap", "setcap")
_ANSWER_SECONDS = 30


def check(
    *,
    root: str = "",
    programs: Iterable[str] = (),
    built: Sequence[str] = (),
    docker: Sequence[Sequence[str]] = (),
) -> None:
    """Raises EngineError with everything that is missing.

    `root`: why root is needed, or empty. `built`: what Go must build first. `docker`: arguments with which docker must
    succeed.
    """
    lacking = [program for program in programs if shutil.which(program) is None]
    packages = sorted({_PACKAGES[program] for program in lacking if program in _PACKAGES})
    missing = [_ELSEWHERE[program] for program in lacking if program in _ELSEWHERE]
    if packages:
        missing.insert(0, f"packages: apt-get install --no-install-recommends {' '.join(packages)}")
    if root and os.geteuid() != 0:
        missing.insert(0, f"root, which {root}")
    if built and shutil.which("go") is None:
        missing.append(f"Go 1.24 or newer (https://go.dev/dl), which builds {', '.join(built)} once")
    missing += [why for arguments in docker if (why := _why_it_fails(arguments)) is not None]
    if missing:
        raise EngineError("this machine lacks:\n" + "\n".join(f"  - {one}" for one in missing))


def _why_it_fails(arguments: Sequence[str]) -> str | None:
    """Returns why `docker` fails with these arguments; None if it succeeds."""
    command = f"docker {' '.join(arguments)}"
    choice = "or choose ARGS=--stand-ins, which starts an engine of its own"
    if shutil.which("docker") is None:
        return f"docker, for `{command}`, {choice}"
    try:
        done = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"an answer to `{command}` within {_ANSWER_SECONDS} s, {choice}"
    if done.returncode == 0:
        return None
    return f"success of `{command}` ({' '.join(done.stderr.split())[:300]}), {choice}"
