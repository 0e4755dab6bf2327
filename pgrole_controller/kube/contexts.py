"""The namespace that a kubeconfig's context names, for commands that people run.

Read without the client's library, so that a command without a cluster needs neither.
"""

import os
from pathlib import Path
from typing import Any

import yaml

from pgrole_controller.kube.errors import NotConfigured

#: A kubeconfig with certificates of a hundred clusters is smaller.
_LARGEST = 8 * 2**20


def read_namespace(kubeconfig: str | None, context: str | None) -> str | None:
    """The namespace of the context (None: the current one) in `kubeconfig`, KUBECONFIG or ~/.kube/config; None if it
    names none. Raises NotConfigured for a file that cannot be read.
    """
    named = kubeconfig or os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    current, contexts = context, dict[str, Any]()
    for text in named.split(os.pathsep):
        found = _read(Path(text).expanduser()) if text else {}
        current = current or _text(found.get("current-context"))
        listed = found.get("contexts")
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and isinstance(one.get("context"), dict):
                contexts.setdefault(str(one.get("name")), one["context"])
    chosen = contexts.get(current or "", {})
    return _text(chosen.get("namespace"))


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            content = yaml.safe_load(file.read(_LARGEST))
    except (OSError, ValueError, yaml.YAMLError) as error:
        message = f"kubeconfig {path} is not usable: {type(error).__name__}"
        raise NotConfigured(message) from error
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
