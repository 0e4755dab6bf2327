"""Generates the files of deploy/ that are derived from others: `make manifests`.

- the chart's CRDs, from the models, like crds/;
- the chart's alerts and the PrometheusRule, from deploy/alerts/rules.yaml;
- install.yaml, from the overlay for a whole cluster. This one needs kubectl (tests/deploy/programs.py).

`--check` writes nothing, and fails if one of the first two is out of date; a test checks install.yaml.
"""

import sys
from pathlib import Path

import anyio

from pgrole_controller.api import crd
from pgrole_controller.local.display import Display
from tests.deploy.programs import find, run

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "pgrole-controller"
OVERLAYS = DEPLOY / "kustomize" / "overlays"
COMPONENTS = DEPLOY / "kustomize" / "components"
RULES = DEPLOY / "alerts" / "rules.yaml"
INSTALL = DEPLOY / "install.yaml"

_MADE = "# made by `make manifests`\n"
_PROMETHEUS_RULE = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: pgrole-controller
  namespace: pgrole-system
  labels:
    app.kubernetes.io/name: pgrole-controller
    app.kubernetes.io/instance: pgrole-controller
    app.kubernetes.io/part-of: pgrole
spec:
"""


def copies() -> dict[Path, str]:
    """Returns the text of each file that can be generated without a program."""
    rules = RULES.read_text(encoding="utf-8")
    indented = "".join(f"  {line}" if line.strip() else line for line in rules.splitlines(keepends=True))
    return {
        **{CHART / "files" / "crds" / name: text for name, text in crd.files().items()},
        CHART / "files" / "rules.yaml": rules,
        COMPONENTS / "prometheus-rule" / "prometheus_rule.yaml": _MADE + _PROMETHEUS_RULE + indented,
    }


async def render_overlay(kubectl: Path, folder: Path) -> str:
    """Renders a kustomization as YAML. Raises ValueError with kubectl's message."""
    answer = await run(kubectl, "kustomize", folder)
    if answer.code != 0:
        raise ValueError(f"{folder}: {answer.err}")
    return answer.out


async def _render_install() -> str:
    programs = await find(Display(sys.stderr))
    return _MADE + await render_overlay(programs.kubectl, OVERLAYS / "cluster")


def main() -> int:
    made = copies()
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in made.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
        surplus = set((CHART / "files" / "crds").iterdir()) - set(made)
        if stale or surplus:
            names = ", ".join(str(path.relative_to(ROOT)) for path in sorted({*stale, *surplus}))
            print(f"stale: {names}; run `make manifests`", file=sys.stderr)  # noqa: T201
            return 1
        return 0
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    INSTALL.write_text(anyio.run(_render_install), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
