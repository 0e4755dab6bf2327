"""What the image has of Python, with licences: sbom.py FOLDER, run by the environment that was made for the image.

Reads what `uv export --format cyclonedx1.5` says of uv.lock, keeps of it what is installed here, and adds the licences
that the packages themselves name. Writes FOLDER/sbom.cdx.json (CycloneDX 1.5) and FOLDER/licences.txt. The same lock
gives the same bytes: without serial number and time. The packages of Debian in the base are not in it; they are listed
in the image, in /var/lib/dpkg/status.d, where scanners read them.
"""

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

_CLASSIFIER = "License :: OSI Approved :: "


def main(folder: Path) -> None:
    """Raises SystemExit when a package names no licence, or is not in the lock."""
    bom = json.load(sys.stdin)
    installed = {_normal(one.metadata["Name"]): one for one in distributions()}
    bom.pop("serialNumber", None)
    bom["metadata"].pop("timestamp", None)
    bom["components"] = [one for one in bom["components"] if one["name"] in installed]
    kept = {bom["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bom["components"])}
    bom["dependencies"] = [_restrict(one, kept) for one in bom["dependencies"] if one["ref"] in kept]
    described = [bom["metadata"]["component"], *bom["components"]]
    if unknown := sorted(installed.keys() - {one["name"] for one in described}):
        sys.exit(f"not in the lock: {', '.join(unknown)}")
    lines = []
    for component in described:
        licence = _licence(installed[component["name"]])
        component["licenses"] = [licence]
        spelled = next(iter(licence.values()))
        spelled = spelled if isinstance(spelled, str) else next(iter(spelled.values()))
        lines.append(f"{component['name']:<28}{component['version']:<12}{spelled}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sbom.cdx.json").write_text(json.dumps(bom, indent=2) + "\n", encoding="utf-8")
    (folder / "licences.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _licence(distribution: Distribution) -> dict[str, Any]:
    """As CycloneDX has it: an SPDX expression, else a name, of the first of the three fields that says one."""
    metadata = distribution.metadata
    for expression in metadata.get_all("License-Expression") or []:
        return {"expression": expression}
    for text in metadata.get_all("License") or []:
        if text and "\n" not in text:
            return {"license": {"name": text}}
    classifiers = metadata.get_all("Classifier") or []
    names = [one.removeprefix(_CLASSIFIER) for one in classifiers if one.startswith(_CLASSIFIER)]
    if not names:
        sys.exit(f"{metadata['Name']} names no licence")
    return {"license": {"name": " AND ".join(names)}}


def _restrict(dependency: dict[str, Any], kept: set[str]) -> dict[str, Any]:
    return {**dependency, "dependsOn": [one for one in dependency.get("dependsOn", []) if one in kept]}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
