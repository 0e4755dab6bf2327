"""Renders deploy/ with helm and kustomize, as objects."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.manifests import CHART, ROOT, render_overlay
from tests.deploy.programs import Answer, Programs, run
from tests.documents import read_documents, write_documents

Json = dict[str, Any]

RELEASE = "pgrole-controller"
NAMESPACE = "pgrole-system"
#: Cached output for the repository's own files, which no test changes; as JSON, which is read sooner.
_rendered: dict[tuple[str, ...], str] = {}
_OF_HELM = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/resource-policy")


async def template(
    programs: Programs, *arguments: str | Path, chart: Path = CHART, values: Json | None = None
) -> Answer:
    """Runs `helm template` with the release name and namespace of the kustomize overlays."""
    given = ["--values", "-"] if values is not None else []
    text = yaml.safe_dump(values) if values is not None else ""
    return await run(programs.helm, "template", RELEASE, chart, "-n", NAMESPACE, *given, *arguments, stdin=text)


async def render_chart(programs: Programs, *arguments: str | Path, values: Json | None = None) -> list[Json]:
    key = ("helm", *map(str, arguments), json.dumps(values, sort_keys=True))
    if key not in _rendered:
        answer = await template(programs, *arguments, values=values)
        assert answer.code == 0, answer.err
        _rendered[key] = json.dumps(read_objects(answer.out))
    return _load(key)


async def render_kustomization(programs: Programs, folder: Path) -> list[Json]:
    if ROOT not in folder.parents:
        return read_objects(await render_overlay(programs.kubectl, folder))
    key = ("kustomize", str(folder))
    if key not in _rendered:
        _rendered[key] = json.dumps(read_objects(await render_overlay(programs.kubectl, folder)))
    return _load(key)


def _load(key: tuple[str, ...]) -> list[Json]:
    found: list[Json] = json.loads(_rendered[key])
    return found


def write_overlay(folder: Path, text: str) -> Path:
    """Writes a user's kustomization; returns its folder. ROOT in it becomes the repository's path."""
    up = "/".join(".." for _ in folder.resolve().parts[1:])
    (folder / "kustomization.yaml").write_text(text.replace("ROOT", f"{up}{ROOT.resolve()}"), encoding="utf-8")
    return folder


def read_objects(text: str) -> list[Json]:
    return read_documents(text)


def dump(objects: Iterable[Json]) -> str:
    return write_documents(objects)


def of_kind(objects: Iterable[Json], *kinds: str) -> list[Json]:
    return [one for one in objects if one["kind"] in kinds]


def the(objects: Iterable[Json], kind: str, name: str = RELEASE) -> Json:
    [found] = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


def environment_of(deployment: Json) -> dict[str, Any]:
    """Returns each variable with its value, or the source of its value."""
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def without_helm(objects: Iterable[Json]) -> dict[tuple[str, str, str], Json]:
    """Returns objects by (kind, namespace, name), without helm's additions to their metadata."""
    found = {}
    for one in objects:
        metadata = dict(one["metadata"])
        for kind in ("labels", "annotations"):
            kept = {name: text for name, text in (metadata.pop(kind, None) or {}).items() if name not in _OF_HELM}
            if kept:
                metadata[kind] = kept
        key = (one["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found, key
        found[key] = {**one, "metadata": metadata}
    return found
