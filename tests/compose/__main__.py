"""`make compose-test`: starts compose.yaml, checks it from outside, and removes it.

With --stand-ins, for a machine without a registry, it uses its own Docker Engine and the images of
tests/compose/images.py; compose.yaml and Dockerfile stay the same. Project, ports and folder differ from those of a
demonstration that may be running.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio

from pgrole_controller.local.binaries import cache_directory, find, find_present
from pgrole_controller.local.display import Display
from pgrole_controller.local.postgres import DEFAULT_VERSION, find_programs
from pgrole_controller.local.process import LocalError
from tests.compose import images
from tests.compose.checks import Project, check_all
from tests.compose.engine import EngineError, build_etcdctl, engine, say, unbuilt, unbuilt_etcdctl
from tests.compose.prerequisites import ENGINE, check


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument("--stand-ins", action="store_true", help="reach no registry: make the images here (root)")
    parser.add_argument("command", nargs="*", help="run this instead of the checks, with that engine")
    chosen = parser.parse_args(arguments)
    try:
        _check_machine(stand_ins=chosen.stand_ins, checks=not chosen.command)
        with _docker(stand_ins=chosen.stand_ins) as environment:
            if chosen.command:
                return os.spawnvpe(os.P_WAIT, chosen.command[0], chosen.command, environment)
            with tempfile.TemporaryDirectory(prefix="pgrole-compose-") as folder:
                check_all(Project(environment, Path(folder)))
    except (EngineError, LocalError, AssertionError) as error:
        say(f"FAILED: {error}")
        return 1
    return 0


def _check_machine(*, stand_ins: bool, checks: bool) -> None:
    """Raises EngineError with everything that is missing."""
    programs = ("kubectl", "psql", "curl") if checks else ()
    if not stand_ins:
        check(programs=programs, docker=[["info"], ["compose", "version"]])
        return
    cache = cache_directory() / "compose"
    built = [*unbuilt(cache), *unbuilt_etcdctl(cache), *(() if find_present() else ("kube-apiserver", "etcd"))]
    check(root="starts an engine", programs=(*ENGINE, *programs), built=built)


@contextmanager
def _docker(*, stand_ins: bool) -> Iterator[Mapping[str, str]]:
    """Yields the environment for docker and docker compose."""
    if not stand_ins:
        yield os.environ
        return
    cache = cache_directory() / "compose"
    cache.mkdir(parents=True, exist_ok=True)
    display = Display(sys.stdout)
    binaries = anyio.run(find, display)
    programs = anyio.run(find_programs, DEFAULT_VERSION, display)
    etcdctl = build_etcdctl(cache)
    with engine(cache) as environment:
        images.make_bases(environment, cache)
        images.make_control_plane(environment, binaries, etcdctl)
        for tag in (images.names()["postgres"], f"postgres:{DEFAULT_VERSION}"):
            images.make_postgres(environment, cache, DEFAULT_VERSION, programs, tag)
        yield environment


if __name__ == "__main__":
    sys.exit(main())
