"""Guarantees of compose.yaml and the Dockerfile that the files themselves show."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgrole_controller.local.binaries import KUBERNETES
from pgrole_controller.local.postgres import DEFAULT_VERSION
from tests.compose.engine import ETCD
from tests.compose.images import names

ROOT = Path(__file__).parents[2]
OURS = ("keys", "cluster", "controller", "console", "guide")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def test_images_have_the_versions_that_dev_and_the_tests_use() -> None:
    images = names()
    assert images["kube-apiserver"].endswith(f":v{KUBERNETES}")
    assert images["etcd"].endswith(f":{ETCD.removeprefix('v')}-0")
    assert images["postgres"].startswith(f"postgres:{DEFAULT_VERSION}.")


def test_ports_are_published_only_on_loopback(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_setting_and_published_port_is_documented() -> None:
    settings = set(re.findall(r"\$\{(DEMO_\w+):-([^}]*)\}", (ROOT / "compose.yaml").read_text(encoding="utf-8")))
    documented = (ROOT / "docs" / "running.md").read_text(encoding="utf-8")
    assert len(settings) == 5
    for name, default in settings:
        assert f"`{name}`" in documented
        assert default.removeprefix("./") in documented


@pytest.mark.parametrize("name", OURS)
def test_our_services_run_with_minimal_capabilities_on_a_read_only_file_system(
    services: dict[str, Any], name: str
) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("cap_add", []) == (["CHOWN", "DAC_OVERRIDE"] if name == "cluster" else [])
    assert "privileged" not in service


def test_services_wait_for_conditions_instead_of_sleeping(services: dict[str, Any]) -> None:
    for service in services.values():
        spelled = " ".join(service.get("command", []))
        assert "sleep" not in spelled
        for condition in service.get("depends_on", {}).values():
            assert condition["condition"] in ("service_healthy", "service_completed_successfully", "service_started")


def test_both_base_images_have_the_python_version_that_the_image_starts() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    settled = (ROOT / "deploy" / "image" / "settle.sh").read_text(encoding="utf-8")
    (version,) = set(re.findall(r"python(3\.\d+)", text + settled))
    assert f"UV_PYTHON={version}" in text
    assert f"-python{version}-trixie-slim" in names()["build"]


def test_every_source_of_the_wheel_reaches_the_image_build() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[tool.hatch.build.targets.wheel.force-include]\n")[2].partition("\n\n")[0]
    sources = re.findall(r'^"([^"]+)"', section, re.MULTILINE)
    copied = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    admitted = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sources
    for source in sources:
        assert f"COPY {source} {source}\n" in copied
        assert f"!{source}" in admitted
