"""A separate Docker Engine for the stand-in images, with the two plugins that Debian does not package.

The programs come from Debian (`docker.io iptables debootstrap libcap2-bin`); Go builds the plugins once from its module
proxy. The engine has its own socket and folder, and does not affect another one on the machine.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

#: For each plugin: module, version, and the program's package.
PLUGINS: Mapping[str, tuple[str, str, str]] = {
    "docker-compose": ("github.com/docker/compose/v2", "v2.40.3", "cmd"),
    "docker-buildx": ("github.com/docker/buildx", "v0.29.1", "cmd/buildx"),
}
ETCD = "v3.6.8"
_READY_SECONDS = 60.0
_STOP_SECONDS = 60.0
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


class EngineError(Exception):
    """The engine, or a program that it needs, is unavailable; the message says what to do."""


@contextmanager
def engine(cache: Path) -> Iterator[dict[str, str]]:
    """Runs dockerd; yields the environment in which docker finds it. Raises EngineError.

    Its images stay in `cache` for later runs. Needs root.
    """
    config = _plugins(cache)
    failures = []
    with _network_restored():
        for extra in ([], ["--storage-driver=vfs"], ["--storage-driver=vfs", "--iptables=false"]):
            process = _start(cache, extra)
            try:
                environment = {
                    **os.environ,
                    "DOCKER_HOST": f"unix://{cache / 'docker.sock'}",
                    "DOCKER_CONFIG": str(config),
                    "DOCKER_BUILDKIT": "1",
                }
                if _is_ready(process, environment):
                    yield environment
                    return
                failures.append(f"dockerd {' '.join(extra)}\n{_end_of(cache / 'dockerd.log')}")
            finally:
                _stop(process)
    raise EngineError("dockerd does not start:\n" + "\n".join(failures))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def build_etcdctl(cache: Path) -> Path:
    """Builds etcdctl, which the health check of etcd's image runs, in the version of that image's tag."""
    program = _etcdctl(cache)
    if not program.exists():
        say(f"building etcdctl {ETCD} with Go (1 minute)")
        module = cache / "etcdctl-source"
        shutil.rmtree(module, ignore_errors=True)
        module.mkdir()
        _go(["mod", "init", "standin"], module)
        _go(["get", f"go.etcd.io/etcd/etcdctl/v3@{ETCD}"], module)
        _go(["build", "-trimpath", "-ldflags=-s -w", "-o", str(program), "go.etcd.io/etcd/etcdctl/v3"], module)
        shutil.rmtree(module)
    return program


def unbuilt(cache: Path) -> list[str]:
    """Returns the plugins that Go must still build."""
    return [name for name in PLUGINS if not (cache / "config" / "cli-plugins" / name).exists()]


def unbuilt_etcdctl(cache: Path) -> list[str]:
    """Returns etcdctl if Go must still build it."""
    return [] if _etcdctl(cache).exists() else ["etcdctl"]


def _etcdctl(cache: Path) -> Path:
    return cache / f"etcdctl-{ETCD}"


@contextmanager
def _network_restored() -> Iterator[None]:
    """Undoes what dockerd leaves behind: firewall rules, forwarding and the bridge, unless they existed before."""
    before, forwarding = _firewall(), _FORWARDING.read_text(encoding="ascii")
    bridge = Path("/sys/class/net/docker0")
    theirs = bridge.exists()
    try:
        yield
    finally:
        if not theirs:
            subprocess.run(["iptables-restore"], input=as_before(before, _firewall()), text=True, check=True)
            if _FORWARDING.read_text(encoding="ascii") != forwarding:
                _FORWARDING.write_text(forwarding, encoding="ascii")
            if bridge.exists():
                subprocess.run(["ip", "link", "delete", "docker0"], check=True)


def _firewall() -> str:
    return subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout


def as_before(before: str, after: str) -> str:
    """Returns the input with which iptables-restore makes `before` of `after`, both as iptables-save prints them.

    iptables-restore leaves alone a table that its input lacks. So tables that came since, such as every table on a
    machine that had no rule, are in the input without rules.
    """
    lines, is_new = before.splitlines(), False
    for line in after.splitlines():
        if line.startswith("*"):
            is_new = line not in lines
        chain, _, policy = line.partition(" ")
        if is_new and (line.startswith("*") or line == "COMMIT"):
            lines.append(line)
        elif is_new and chain.startswith(":") and not policy.startswith("-"):  # one of iptables itself
            lines.append(f"{chain} ACCEPT [0:0]")
    return "".join(f"{line}\n" for line in lines)


def _start(cache: Path, extra: list[str]) -> subprocess.Popen[bytes]:
    command = [
        "dockerd",
        f"--host=unix://{cache / 'docker.sock'}",
        f"--data-root={cache / 'engine'}",
        f"--exec-root={cache / 'run'}",
        f"--pidfile={cache / 'docker.pid'}",
        *extra,
    ]
    with (cache / "dockerd.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _is_ready(process: subprocess.Popen[bytes], environment: Mapping[str, str]) -> bool:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        asked = subprocess.run(["docker", "info"], env=environment, capture_output=True, check=False)
        if asked.returncode == 0:
            return True
        time.sleep(0.1)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _plugins(cache: Path) -> Path:
    """Returns the folder for DOCKER_CONFIG; builds missing plugins."""
    config = cache / "config"
    folder = config / "cli-plugins"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (module, version, package) in PLUGINS.items():
        if not (folder / name).exists():
            say(f"building {name} {version} with Go (2 minutes)")
            _build(cache, module, version, package, folder / name)
    return config


def _build(cache: Path, module: str, version: str, package: str, program: Path) -> None:
    """Builds in a copy of the module, because `go install` rejects directives of its go.mod."""
    found = json.loads(_go(["mod", "download", "-json", f"{module}@{version}"], cache))
    source = cache / f"{program.name}-source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(found["Dir"], source)
    run(["chmod", "-R", "u+w", "."], folder=source)
    flags = f"-s -w -X {module}/{'internal' if package == 'cmd' else 'version'}.Version={version}"
    _go(["build", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", str(program), f"./{package}"], source)
    shutil.rmtree(source)


def _go(arguments: Sequence[str], folder: Path) -> str:
    return run(["go", *arguments], folder=folder, environment={**os.environ, "CGO_ENABLED": "0"})


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    seconds: float | None = None,
) -> str:
    """Returns the output. Raises EngineError with its end."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode != 0:
        said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        raise EngineError(f"{' '.join(command)} failed with {done.returncode}:\n{said}")
    return done.stdout


def _end_of(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
