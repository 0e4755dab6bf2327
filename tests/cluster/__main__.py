"""`make cluster-test`: creates a one-node cluster on this machine, installs the product, checks it, and removes all of
it.

Needs root, Go and Docker; with --stand-ins no registry, see tests/compose. Leaves only cached files.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from pgrole_controller.local.binaries import cache_directory
from pgrole_controller.local.display import Display
from pgrole_controller.local.process import LocalError
from tests.cluster.checks import check_all
from tests.cluster.cluster import cluster
from tests.cluster.database import start_database, start_dns
from tests.cluster.images import docker, save_images
from tests.cluster.programs import check_machine, find_programs
from tests.compose.engine import EngineError, say
from tests.deploy import programs as tools


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--stand-ins", action="store_true", help="reach no registry: make the images here")
    parser.add_argument("--images", type=Path, help="a folder that keeps the images' archives, or has them")
    parser.add_argument("command", nargs="*", help="run this instead of the checks, with the cluster's KUBECONFIG")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that cleanup runs
    try:
        cache = cache_directory() / "cluster"
        kept = sorted(chosen.images.glob("*.tar")) if chosen.images else []
        check_machine(cache, stand_ins=chosen.stand_ins, docker=not kept)
        cache.mkdir(parents=True, exist_ok=True)
        programs = find_programs(cache)
        commands = anyio.run(tools.find, Display(sys.stdout))
        with tempfile.TemporaryDirectory(prefix="pgrole-images-") as folder:
            archives = kept
            if not archives:
                with docker(cache_directory() / "compose", stand_ins=chosen.stand_ins) as environment:
                    archives = save_images(environment, programs, chosen.images or Path(folder))
            started = time.monotonic()
            with cluster(programs, commands) as found:
                for archive in archives:
                    found.node.load(archive)
                say(f"ok  the node is Ready ({time.monotonic() - started:.0f} s)")
                start_dns(found)
                if chosen.command:
                    return subprocess.run(chosen.command, env=found.environment, check=False).returncode
                try:
                    check_all(start_database(found))
                except AssertionError:
                    say(found.describe())
                    raise
    except (EngineError, LocalError, AssertionError) as error:
        say(f"FAILED: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
