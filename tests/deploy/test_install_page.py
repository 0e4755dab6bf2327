"""What docs/install.md says to do, done: each section on an API server of its own."""

import os
import re
import shlex
from pathlib import Path

import anyio
import pytest
import yaml

from pgrole_controller.local.apiserver import api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.process import bound_to_us
from tests.deploy.manifests import CHART, COMPONENTS, ROOT
from tests.deploy.programs import Programs
from tests.deploy.rendering import of_kind, render_kustomization, write_overlay

TEXT = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
SECTIONS = {
    heading: re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    for heading, text in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)
}
#: What a section takes to be done.
BEFORE = {"A server": SECTIONS["One file"], "From 0.1.0": SECTIONS["One file"]}
LASTING = 180


@pytest.mark.parametrize("heading", [heading for heading, blocks in SECTIONS.items() if blocks])
async def test_every_command_does_what_it_says(
    programs: Programs, binaries: Binaries, tmp_path: Path, heading: str
) -> None:
    for program in (programs.helm, programs.kubectl):
        (tmp_path / program.name).symlink_to(program)
    script = "\n".join((*BEFORE.get(heading, ()), *SECTIONS[heading]))
    async with api_server(binaries=binaries) as server:
        environment = {
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "KUBECONFIG": str(server.kubeconfig),
        }
        command = bound_to_us(["bash", "-euxo", "pipefail", "-c", script])
        with anyio.fail_after(LASTING):
            done = await anyio.run_process(command, cwd=ROOT, env=environment, check=False)
        assert done.returncode == 0, done.stderr.decode()


async def test_the_overlay_of_the_example_renders_as_its_comments_say(programs: Programs, tmp_path: Path) -> None:
    [example] = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    overlay = write_overlay(tmp_path, example.replace("  - deploy/", "  - ROOT/deploy/"))
    objects = await render_kustomization(programs, overlay)
    assert {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]} == {"databases"}
    assert not [one for one in objects if one["metadata"]["name"] == "pgrole-controller-connection-secrets"]
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.internal/pgrole-controller:")


def table(heading: str) -> list[list[str]]:
    """The cells of each row of the section's table, but for its head."""
    section = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_value_named_is_there_with_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for names, default, _ in table("Helm"):
        for name, shown in zip(re.findall(r"`([^`]+)`", names), [*re.findall(r"`([^`]+)`", default), ""], strict=False):
            found = values
            for part in name.split("."):
                found = found[part]
            if shown:
                assert (yaml.safe_load(shown) if ":" in shown else shown) == (
                    found if isinstance(found, dict) else str(found).lower() if isinstance(found, bool) else found
                ), name


def test_every_option_is_documented_for_helm_and_kustomize() -> None:
    rows = table("Options")
    assert {shlex.split(row[1].replace("`", "'"))[0] for row in rows} == {
        folder.name for folder in COMPONENTS.iterdir() if folder.is_dir()
    }
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert {row[0].strip("`") for row in rows} == {
        name for name, value in values.items() if isinstance(value, dict) and "enabled" in value
    }


async def test_every_role_is_documented(programs: Programs) -> None:
    documented = {row[0].strip("`") for row in table("What each role is for")}
    made: set[str] = set()
    for overlay in ("cluster", "namespace"):
        objects = await render_kustomization(programs, ROOT / "deploy/kustomize/overlays" / overlay)
        made |= {one["metadata"]["name"] for one in of_kind(objects, "Role", "ClusterRole")}
    assert documented == {name for name in made if name.startswith("pgrole-controller")}
