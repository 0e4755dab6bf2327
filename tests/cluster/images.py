"""The images for the cluster, which pulls none from a registry while it runs."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import anyio

from pgrole_controller import __version__
from pgrole_controller.local.display import Display
from pgrole_controller.local.postgres import DEFAULT_VERSION, find_programs
from tests.cluster.node import PAUSE
from tests.compose.engine import engine, run, say
from tests.compose.images import ROOT, make_bases, make_postgres, names

DNS = "pgrole.dev/dns:1"
CONTROLLER = f"ghcr.io/pgrole-dev/pgrole-controller:{__version__}"
_BUILD_SECONDS = 1800


@contextmanager
def docker(cache: Path, *, stand_ins: bool) -> Iterator[Mapping[str, str]]:
    """Yields the environment for docker; with `stand_ins`, a separate engine that needs no registry."""
    if not stand_ins:
        yield os.environ
        return
    programs = anyio.run(find_programs, DEFAULT_VERSION, Display(sys.stdout))
    with engine(cache) as environment:
        make_bases(environment, cache)
        make_postgres(environment, cache, DEFAULT_VERSION, programs, names()["postgres"])
        yield environment


def save_images(environment: Mapping[str, str], programs: Path, folder: Path) -> list[Path]:
    """Saves archives of all images, made by the Docker of `environment`. Raises EngineError."""
    here = Path(__file__).parent
    for name in (PAUSE, DNS):
        file = here / name.partition(":")[0].rpartition("/")[2] / "Dockerfile"
        _docker(environment, "build", "--quiet", f"--tag={name}", f"--file={file}", str(programs))
    say(f"building {CONTROLLER} from the Dockerfile")
    _docker(environment, "build", "--quiet", f"--tag={CONTROLLER}", f"--build-arg=VERSION={__version__}", str(ROOT))
    archives = []
    for name, image in {"pause": PAUSE, "dns": DNS, "controller": CONTROLLER, "postgres": names()["postgres"]}.items():
        archive = folder / f"{name}.tar"
        if not _docker(environment, "images", "--quiet", image).strip():
            _docker(environment, "pull", image)
        _docker(environment, "save", f"--output={archive}", image)
        archives.append(archive)
    return archives


def _docker(environment: Mapping[str, str], *arguments: str) -> str:
    return run(["docker", *arguments], environment=environment, seconds=_BUILD_SECONDS)
