"""What a start leaves out of its imports, without anything being missed later.

Of kubernetes_asyncio only configuration and authentication are used: importing any part of it runs
`kubernetes_asyncio/__init__` and `client/__init__`, which import 840 model modules, 33 MiB in 0.3 s of CPU. Here its
packages are registered without running them, and so is urllib3, which `client.configuration` imports for a header.

Guarantee: they behave as ever for anyone else in the process. The first name asked of one that it does not have
runs its `__init__`, in place; so does a version of kubernetes_asyncio that is laid out in another way.
"""

import gc
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def register(package: str, homes: Sequence[str] = ()) -> None:
    """Has a package be there without its `__init__` having run: what imports a module of it runs that module alone.

    A name that it is asked for is, with `homes`, a module of it or a name in one of these modules. Else the `__init__`
    runs, in place. Harmless for a package that is imported already, or missing.
    """
    spec = find_spec(package) if package not in sys.modules else None
    if spec is not None:
        _register(package, spec, homes)


def _register(package: str, spec: ModuleSpec, homes: Sequence[str]) -> None:
    module = module_from_spec(spec)

    def find(name: str) -> Any:  # noqa: ANN401 - a name of a module can be anything
        if homes and not name.startswith("__"):
            if find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            for home in homes:
                try:
                    return getattr(import_module(f"{package}.{home}"), name)
                except (ImportError, AttributeError):
                    continue
        return _complete(module, name)

    vars(module)["__getattr__"] = find
    sys.modules[package] = module
    parent, _, child = package.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


def _complete(module: ModuleType, name: str) -> Any:  # noqa: ANN401 - a name of a module can be anything
    if vars(module).pop("__getattr__", None) is not None and module.__spec__ is not None and module.__spec__.loader:
        module.__spec__.loader.exec_module(module)
    return getattr(module, name)


def import_plain(package: str, extension: str) -> None:
    """Imports a package in pure Python, without an extension that it can do without; as ever where it cannot."""
    if package in sys.modules:
        return
    sys.modules[extension] = None  # type: ignore[assignment] # ImportError for whoever imports it
    try:
        import_module(package)
    except ImportError:
        return  # whoever needs it imports it with its extension, or is told why not
    finally:
        del sys.modules[extension]


@contextmanager
def gc_paused() -> Iterator[None]:
    """Around imports. No collection looks for garbage among modules, then or later: they live as long as it."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()


@contextmanager
def startup_imports() -> Iterator[None]:
    """`gc_paused`, for the imports of a start.

    Contexts for TLS that are made meanwhile, as aiohttp makes two, read this machine's CAs with their first connection.
    """
    ssl.SSLContext.set_default_verify_paths = _read_later  # type: ignore[assignment,method-assign]
    try:
        with gc_paused():
            yield
    finally:
        del ssl.SSLContext.set_default_verify_paths  # that of its base is seen again


class _UnreadContext(ssl.SSLContext):
    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401 - whatever SSLContext takes
        return _read(self).wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:  # noqa: ANN401
        return _read(self).wrap_socket(*arguments, **named)


def _read_later(context: ssl.SSLContext) -> None:
    context.__class__ = _UnreadContext


def _read(context: ssl.SSLContext) -> ssl.SSLContext:
    context.__class__ = ssl.SSLContext
    context.set_default_verify_paths()
    return context


KUBERNETES_ROOT = "kubernetes_asyncio"
KUBERNETES_CLIENT = f"{KUBERNETES_ROOT}.client"
KUBERNETES_PACKAGES = ("urllib3", KUBERNETES_ROOT, KUBERNETES_CLIENT, f"{KUBERNETES_ROOT}.config")


def register_kubernetes() -> None:
    """Harmless where they were imported before."""
    for name in KUBERNETES_PACKAGES:
        register(name)
    try:
        configuration = import_module(f"{KUBERNETES_CLIENT}.configuration").Configuration
        vars(sys.modules[KUBERNETES_CLIENT]).setdefault("Configuration", configuration)
        vars(sys.modules[KUBERNETES_CLIENT]).setdefault("ApiClient", _make_api_client)
    except (ImportError, AttributeError, KeyError):
        return  # laid out in another way: whoever wants these names gets them by the packages' `__init__`


def _make_api_client(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Stands for the class ApiClient where `config` imports it, for functions that we do not call."""
    return import_module(f"{KUBERNETES_CLIENT}.api_client").ApiClient(*arguments, **named)
