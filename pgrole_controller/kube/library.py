"""kubernetes_asyncio, of which only configuration and authentication are used, without its 840 model modules.

Importing any part of it runs `kubernetes_asyncio/__init__` and `client/__init__`, which import every API and model:
33 MiB and 0.3 s of CPU. Here its packages are registered without running them, and so is urllib3, which
`client.configuration` imports for a header that what reads kubeconfigs makes by itself.

Guarantee: they behave as ever for anyone else in the process. The first name asked of one that it does not have runs
its `__init__`, in place; so does a version of kubernetes_asyncio that is laid out in another way.
"""

import sys
from importlib import import_module
from typing import Any

from pgrole_controller import imports

ROOT = "kubernetes_asyncio"
CLIENT = f"{ROOT}.client"
PACKAGES = ("urllib3", ROOT, CLIENT, f"{ROOT}.config")


def register() -> None:
    """Harmless where they were imported before."""
    for name in PACKAGES:
        imports.register(name)
    try:
        configuration = import_module(f"{CLIENT}.configuration").Configuration
        vars(sys.modules[CLIENT]).setdefault("Configuration", configuration)
        vars(sys.modules[CLIENT]).setdefault("ApiClient", _make_api_client)
    except (ImportError, AttributeError, KeyError):
        return  # laid out in another way: whoever wants these names gets them by the packages' `__init__`


def _make_api_client(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Stands for the class ApiClient where `config` imports it, for functions that we do not call."""
    return import_module(f"{CLIENT}.api_client").ApiClient(*arguments, **named)
