"""Everything that docs/install.md names exists. tests/docs/ runs its commands."""

import re
import shlex
from pathlib import Path

import yaml

from tests.deploy.manifests import CHART, COMPONENTS, ROOT
from tests.deploy.programs import Programs
from tests.deploy.rendering import of_kind, render_kustomization, write_overlay

TEXT = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")


async def test_the_example_overlay_renders_as_its_comments_say(programs: Programs, tmp_path: Path) -> None:
    [example] = re.findall(r"^```yaml\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
    overlay = write_overlay(tmp_path, example.replace("  - deploy/", "  - ROOT/deploy/"))
    objects = await render_kustomization(programs, overlay)
    assert {one["metadata"]["namespace"] for one in objects if "namespace" in one["metadata"]} == {"databases"}
    assert not [one for one in objects if one["metadata"]["name"] == "pgrole-controller-connection-secrets"]
    [deployment] = of_kind(objects, "Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("registry.example.internal/pgrole-controller:")


def table(heading: str) -> list[list[str]]:
    """Returns the cells of each row of the section's table, without its head."""
    section = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_every_documented_value_exists_with_its_default() -> None:
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
