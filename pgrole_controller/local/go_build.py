"""Builds kube-apiserver and etcd with Go, from the module proxy."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import anyio

from pgrole_controller.local.display import Display
from pgrole_controller.local.process import tied_to_parent

_MODULE = Path(__file__).with_name("controlplane")


class BuildError(Exception):
    """Go is missing or failed; the message contains its last lines."""


async def build(into: Path, version: str, display: Display, environment: Mapping[str, str] = os.environ) -> None:
    """Builds both programs into a folder; they report `version`, like 1.36.3. Raises BuildError."""
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise BuildError("`go` is not on the PATH")
    # An older Go downloads the toolchain that go.mod requires; "local" is often set and forbids that.
    settings = {**environment, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    with tempfile.TemporaryDirectory(prefix="pgrole-controlplane-") as scratch:
        module = Path(scratch)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(_MODULE / name, module / name)
        display.say(
            "Building kube-apiserver and etcd with Go, once: 4 minutes on 2 cores (seconds if Go has them cached)"
        )
        display.say("  counting packages (the first time Go fetches their sources now, about 300 MB)")
        packages = await _run([go, "list", "-deps", "tool"], module, settings, display, "fetched {} modules")
        total = len(packages)
        await _run(
            [go, "build", "-v", "-trimpath", f"-ldflags={_ldflags(version)}", "-o", f"{into}/", "tool"],
            module,
            settings,
            display,
            f"compiled {{}} of at most {total} packages",
        )
    (into / "server").rename(into / "etcd")


def _ldflags(version: str) -> str:
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    return f"-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


async def _run(
    command: list[str], folder: Path, environment: Mapping[str, str], display: Display, progress: str
) -> list[str]:
    """Returns the lines that a Go command prints; counts its other lines in `progress`."""
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *tied_to_parent(command, signal.SIGTERM),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert process.stderr is not None  # noqa: S101
    tail: deque[str] = deque(maxlen=12)
    try:
        count = 0
        async for line in process.stderr:
            count += 1
            tail.append(line.decode(errors="replace").rstrip())
            display.advance(progress.format(count))
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
    if code != 0:
        last = "\n".join(f"      {line}" for line in tail)
        raise BuildError(f"`go {command[1]}` failed with exit code {code}:\n{last}")
    return (folder / "output").read_text(encoding="utf-8").splitlines()
