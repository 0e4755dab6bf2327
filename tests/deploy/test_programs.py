"""Where helm, kubectl and promtool come from."""

import io
from pathlib import Path

import pytest

from pgrole_controller.local.binaries import KUBERNETES
from pgrole_controller.local.display import Display
from tests.deploy.programs import BuildFailed, NoPrograms, Programs, Version, find, find_promtool, fits, run, wanted


def write_program(folder: Path, name: str, says: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def helm(folder: Path, version: str) -> Path:
    return write_program(folder, "helm", version)


def kubectl(folder: Path, version: str) -> Path:
    return write_program(folder, "kubectl", f'{{"clientVersion": {{"gitVersion": "{version}"}}}}')


def test_the_wanted_kubectl_has_the_api_servers_version() -> None:
    assert str(wanted()["kubectl"]) == KUBERNETES


def test_version_skew_follows_the_rules_of_kubernetes_and_helm() -> None:
    wish = wanted()
    minor = wish["kubectl"].minor
    assert [fits("kubectl", Version(1, minor + by, 0)) for by in (-2, -1, 0, 1, 2)] == [False, True, True, True, False]
    assert fits("helm", wish["helm"])
    assert not fits("helm", Version(wish["helm"].major, wish["helm"].minor - 1, 9))
    assert not fits("helm", Version(wish["helm"].major + 1, 0, 0))


def test_the_wanted_promtool_has_the_version_of_its_go_module() -> None:
    """Prometheus 3.15.0 is module v0.315.0."""
    version = wanted()["promtool"]
    text = (Path(__file__).parent / "tools/promtool/go.mod").read_text(encoding="utf-8")
    assert f"github.com/prometheus/prometheus v0.{version.major}{version.minor:02}.{version.patch} " in text
    assert fits("promtool", Version(version.major, version.minor + 1, 0))
    assert not fits("promtool", Version(2, 53, 3))


async def test_promtool_is_found_separately_from_the_other_programs(tmp_path: Path) -> None:
    version = wanted()["promtool"]
    there = write_program(tmp_path / "bin", "promtool", f"promtool, version {version} (branch: , revision: unknown)")
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin", "PGROLE_CACHE_DIR": str(tmp_path / "cache")}
    assert await find_promtool(Display(io.StringIO()), environment) == there
    write_program(tmp_path / "bin", "promtool", "promtool, version 2.53.3+ds1 (branch: debian/sid)")
    environment["PATH"] = str(tmp_path / "bin")
    with pytest.raises(NoPrograms, match=rf"promtool not found, like promtool v{version}: .* or Go"):
        await find_promtool(Display(io.StringIO()), environment)


async def test_suitable_programs_on_the_path_are_used(tmp_path: Path) -> None:
    versions = wanted()
    there = Programs(
        helm(tmp_path / "bin", f"v{versions['helm']}"), kubectl(tmp_path / "bin", f"v{versions['kubectl']}")
    )
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin", "PGROLE_CACHE_DIR": str(tmp_path / "cache")}
    assert await find(Display(io.StringIO()), environment) == there


async def test_outdated_programs_are_rejected_and_without_go_the_remedy_is_named(tmp_path: Path) -> None:
    helm(tmp_path / "bin", "v3.0.0")
    kubectl(tmp_path / "bin", "v1.20.0")
    environment = {"PATH": str(tmp_path / "bin"), "PGROLE_CACHE_DIR": str(tmp_path / "cache")}
    with pytest.raises(NoPrograms, match=rf"like helm v{wanted()['helm']}, kubectl v{wanted()['kubectl']}: .* or Go"):
        await find(Display(io.StringIO()), environment)


async def test_a_failed_build_leaves_nothing_and_reports_the_reason(tmp_path: Path) -> None:
    go = write_program(tmp_path / "bin", "go", "")
    go.write_text("#!/bin/sh\necho 'no route to host' >&2\nexit 1\n", encoding="utf-8")
    cache = tmp_path / "cache"
    environment = {"PATH": f"{tmp_path / 'bin'}:/bin:/usr/bin", "PGROLE_CACHE_DIR": str(cache)}
    with pytest.raises(BuildFailed, match="no route to host"):
        await find(Display(io.StringIO()), environment)
    assert [path.name for path in cache.iterdir()] == ["tools.lock"]


async def test_the_built_helm_reports_its_version_and_renders_the_chart(programs: Programs) -> None:
    versions = wanted()
    said = await run(programs.helm, "version", "--template", "{{.Version}}")
    assert said.out.startswith(f"v{versions['helm'].major}.")
    answer = await run(programs.helm, "template", "x", Path(__file__).parents[2] / "deploy/helm/pgrole-controller")
    assert answer.code == 0, "helm assumes another Kubernetes version than the chart requires"


async def test_the_built_promtool_reports_its_version(promtool: Path) -> None:
    said = await run(promtool, "--version")
    assert said.out.startswith(f"promtool, version {wanted()['promtool'].major}.")
