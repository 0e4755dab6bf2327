"""Skips imports that a start does not need, without breaking their later use.

The controller uses only configuration and authentication from kubernetes_asyncio, but importing any part of it runs
`kubernetes_asyncio/__init__` and `client/__init__`, which import 840 model modules: 33 MiB and 0.3 s of CPU. This
module registers its packages without running them, and urllib3 too, which `client.configuration` imports for a header.

Guarantee: the packages work as usual for any other code in the process. The first access to a name that is not there
runs the package's `__init__` in place. So does a version of kubernetes_asyncio with another layout.
"""

import gc
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType, SimpleNamespace
from typing import Any


def register(package: str, homes: Sequence[str] = ()) -> None:
    """Registers a package without running its `__init__`; importing one of its modules runs only that module.

    With `homes`, an attribute of the package is looked up among its modules and in these. If it is not found, the
    `__init__` runs in place. Harmless for a package that is already imported, or missing.
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


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pauses garbage collection during imports, and excludes the modules from later collections: they are never
    garbage.
    """
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
    """Wraps the imports of a start in `gc_paused`.

    Any TLS context made meanwhile loads this machine's CAs on its first connection.
    """
    ssl.SSLContext.set_default_verify_paths = _read_later  # type: ignore[assignment,method-assign]
    try:
        with gc_paused():
            yield
    finally:
        del ssl.SSLContext.set_default_verify_paths  # uncovers the base class's method


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
OPENID = f"{KUBERNETES_ROOT}.config.openid"
KUBERNETES_PACKAGES = ("urllib3", KUBERNETES_ROOT, KUBERNETES_CLIENT, f"{KUBERNETES_ROOT}.config")


def register_kubernetes() -> None:
    """Registers kubernetes_asyncio and urllib3. Harmless if they are already imported."""
    for name in KUBERNETES_PACKAGES:
        register(name)
    try:
        with _without_http_client():
            configuration = import_module(f"{KUBERNETES_CLIENT}.configuration").Configuration
        vars(sys.modules[KUBERNETES_CLIENT]).setdefault("Configuration", configuration)
        vars(sys.modules[KUBERNETES_CLIENT]).setdefault("ApiClient", _make_api_client)
    except (ImportError, AttributeError, KeyError):
        return  # another layout: the packages' `__init__` provides these names


@contextmanager
def _without_http_client() -> Iterator[None]:
    """`six.moves` without http.client, of which `client.configuration` sets one attribute for its option `debug`."""
    moves = import_module("six").moves if find_spec("six") else None
    if moves is None or "http_client" in vars(moves) or "http.client" in sys.modules:
        yield
        return
    stand_in = ModuleType("http.client")
    vars(stand_in)["HTTPConnection"] = _HttpConnections()
    moves.http_client = stand_in
    try:
        yield
    finally:
        del moves.http_client


class _HttpConnections:
    """Stands for the class HTTPConnection, which is imported once `debuglevel` is not 0."""

    def __setattr__(self, name: str, value: object) -> None:
        if value or "http.client" in sys.modules:
            setattr(import_module("http.client").HTTPConnection, name, value)


def read_kubeconfig_module() -> ModuleType:
    """Returns `kubernetes_asyncio.config.kube_config`, imported without aiohttp.

    Only its renewal of OIDC tokens needs aiohttp, which is imported then. Any other importer of
    `kubernetes_asyncio.config.openid` gets that module as usual.
    """
    name = f"{KUBERNETES_ROOT}.config.kube_config"
    if name in sys.modules or OPENID in sys.modules:
        return import_module(name)
    stand_in = ModuleType(OPENID)
    vars(stand_in)["OpenIDRequestor"] = _make_openid_requestor
    sys.modules[OPENID] = stand_in
    try:
        module = import_module(name)
        vars(module)["tempfile"] = SimpleNamespace(
            mkstemp=_make_temporary_file, NamedTemporaryFile=tempfile.NamedTemporaryFile
        )
        return module
    finally:
        del sys.modules[OPENID]
        vars(sys.modules[f"{KUBERNETES_ROOT}.config"]).pop("openid", None)


def _make_temporary_file(dir: str | None) -> tuple[int, str]:  # noqa: A002 - as in tempfile
    """Does what `tempfile.mkstemp` does, whose descriptor kubernetes_asyncio would leave open."""
    descriptor, name = tempfile.mkstemp(dir=dir)
    os.close(descriptor)
    return descriptor, name


def _make_openid_requestor(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    return import_module(OPENID).OpenIDRequestor(*arguments, **named)


def skip_pydantic_plugins() -> None:
    """Lets pydantic find no plugins: otherwise it reads the entry points of all installed distributions, for which it
    imports importlib.metadata, zipfile and email. Harmless if it is already imported, or has another layout.

    In place of PYDANTIC_DISABLE_PLUGINS, which programs that the controller starts would inherit.
    """
    name = "pydantic.plugin._loader"
    if "pydantic" not in sys.modules:
        no_plugins = ModuleType(name)
        vars(no_plugins)["get_plugins"] = tuple
        sys.modules[name] = no_plugins


def _make_api_client(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Replaces the class ApiClient where `config` imports it, for functions that we do not call."""
    return import_module(f"{KUBERNETES_CLIENT}.api_client").ApiClient(*arguments, **named)
