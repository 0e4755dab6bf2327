"""The namespace that commands look at by default, as a pod or the context of a kubeconfig has it, and which contexts
exist.

Read without the client's library, so that a command without a cluster needs neither.
"""

import os
from pathlib import Path
from typing import Any

from pgrole_controller.ending import describe_os_error
from pgrole_controller.kube.errors import WrongKubeconfig

#: A kubeconfig with certificates of a hundred clusters is smaller.
_LARGEST = 8 * 2**20


#: Where kubectl looks, too.
HOME_CONFIG = "~/.kube/config"

#: Variable and file that each pod with a service account has.
SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
SERVICE_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105 - a path


def is_file(path: str) -> bool:
    """Whether it is a file, for whatever text: a user may have no home, and a path may be too long for one."""
    return os.path.isfile(os.path.expanduser(path))  # noqa: PTH111, PTH113 -- unlike Path's, they raise nothing


def uses_pod(kubeconfig: str | None, context: str | None) -> bool:
    """Whether the API server is that of this process's pod: nothing names a kubeconfig or a context."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or context is not None
    return not named and bool(os.environ.get(SERVICE_HOST)) and is_file(SERVICE_TOKEN)


def in_cluster_namespace() -> str | None:
    """Returns the namespace of this process's pod; None outside a cluster."""
    file = Path(SERVICE_TOKEN).with_name("namespace")
    return file.read_text(encoding="utf-8").strip() or None if file.is_file() else None


def read_namespace(kubeconfig: str | None, context: str | None) -> str | None:
    """The namespace of this process's pod if its API server is used, else that of the context (None: the current one)
    in `kubeconfig`, KUBECONFIG or ~/.kube/config; None if it names none. Raises WrongKubeconfig for a file that cannot
    be read.
    """
    if uses_pod(kubeconfig, context):
        return in_cluster_namespace()
    current, contexts = _read_contexts(kubeconfig or os.environ.get("KUBECONFIG") or HOME_CONFIG)
    chosen = contexts.get(context or current or "", {})
    return _text(chosen.get("namespace"))


def check_context(files: str, context: str | None) -> None:
    """Raises WrongKubeconfig if a file is not YAML, or if no file has the context that was asked for, or without one
    the current context.
    """
    current, contexts = _read_contexts(files)
    if (context or current) in contexts:
        return
    known = ", ".join(sorted(contexts)) or "none"
    if context is not None:
        message = f'--context: kubeconfig {files} has no context "{context}"; it has: {known}'
    else:
        message = f'kubeconfig {files} is not usable: its current context is "{current or ""}"; it has: {known}'
    raise WrongKubeconfig(message)


def _read_contexts(files: str) -> tuple[str | None, dict[str, Any]]:
    """Returns the current context's name and the contexts by name. Raises WrongKubeconfig."""
    current, contexts = None, dict[str, Any]()
    for text in files.split(os.pathsep):
        found = _read(text) if text else {}
        current = current or _text(found.get("current-context"))
        listed = found.get("contexts")
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, dict) and isinstance(one.get("context"), dict):
                contexts.setdefault(str(one.get("name")), one["context"])
    return current, contexts


def _read(path: str) -> dict[str, Any]:
    if not is_file(path):
        return {}
    import yaml

    try:
        with Path(path).expanduser().open("rb") as file:
            content = yaml.safe_load(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else "it is not YAML"
        message = f"kubeconfig {path} is not usable: {why}"
        raise WrongKubeconfig(message) from error
    return content if isinstance(content, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
