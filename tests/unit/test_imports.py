"""What a start imports, each test in a new process, since imported modules stay loaded."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import Certificates

SERVER = """
import asyncio, ssl, sys
async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain({chain!r}, {key!r})
    async def answer(reader, writer):
        await reader.readuntil(b"\\r\\n\\r\\n")
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok")
        await writer.drain()
        writer.close()
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{{server.sockets[0].getsockname()[1]}}/"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        print(await response.text())
"""


def run(code: str, **environment: str) -> str:
    """Returns what a new Python process that runs this code prints; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_run_imports_nothing_that_it_does_not_need() -> None:
    unneeded = (
        "aiohttp",
        "argcomplete",
        "dateutil",
        "email",
        "http.client",
        "http.server",
        "jinja2",
        "kubernetes_asyncio.client.api",
        "kubernetes_asyncio.client.api_client",
        "kubernetes_asyncio.client.models",
        "kubernetes_asyncio.config.kube_config",
        "kubernetes_asyncio.dynamic",
        "multidict",
        "multiprocessing",
        "pgrole_controller.api.meta",
        "pgrole_controller.api.pgrole",
        "pgrole_controller.api.pgserver",
        "pgrole_controller.claims",
        "pgrole_controller.commands",
        "pgrole_controller.console",
        "pgrole_controller.local",
        "prometheus_client.exposition",
        "pydantic",
        "pydantic_core",
        "rich",
        "urllib3.connection",
        "yaml",
        "yarl",
    )
    code = f"""
import sys
import pgrole_controller.cli, pgrole_controller.controller.app
pgrole_controller.cli.make_parser(only_run=True).parse_args(["run"])
print(*(name for name in {unneeded} if name in sys.modules))
"""
    assert run(code) == ""


def test_connecting_by_a_kubeconfig_imports_no_other_http_client(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    code = f"""
import asyncio, sys
from pgrole_controller.kube.client import Client, Unreachable
async def main():
    async with Client.connect({str(tmp_path / "config")!r}) as client:
        try:
            await client.request("GET", "/version")
        except Unreachable:
            print(sorted(sys.modules.keys() & {{"aiohttp", "yarl", "multidict", "urllib.request"}}))
asyncio.run(main())
import kubernetes_asyncio.config.openid, aiohttp
assert kubernetes_asyncio.config.openid.aiohttp is aiohttp
"""
    assert run(code) == "[]"


def test_a_command_with_a_dsn_imports_no_http_client() -> None:
    commands = ("plan_command", "export", "access", "history", "doctor")
    imports = "; ".join(f"import pgrole_controller.commands.{one}" for one in commands)
    found = run(f"import sys; {imports}; print(sorted(sys.modules.keys() & {{'aiohttp', 'kubernetes_asyncio'}}))")
    assert found == "[]"


def test_a_kubeconfig_is_read_without_any_model() -> None:
    code = """
import sys
import pgrole_controller.kube.client
from kubernetes_asyncio.config.kube_config import load_kube_config
print(len([name for name in sys.modules if name.startswith("kubernetes_asyncio")]) < 20)
"""
    assert run(code) == "True"


@pytest.mark.parametrize("before", ["import kubernetes_asyncio", "pass"], ids=["imported before", "imported after"])
def test_other_importers_of_the_kubernetes_library_find_all_its_names(before: str) -> None:
    code = f"""
{before}
from pgrole_controller.kube import credentials
import kubernetes_asyncio
made = kubernetes_asyncio.client.V1Pod(api_version="v1")
from kubernetes_asyncio import client, config, watch
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.models import V1Pod
assert isinstance(made, V1Pod)
assert client.Configuration is credentials.Configuration
assert client.ApiClient is ApiClient
assert config.ConfigException is credentials.ConfigException
assert callable(watch.Watch) and callable(config.load_kube_config)
import http.client, six
assert six.moves.http_client is http.client
for on in (True, False):
    client.Configuration().debug = on
    assert http.client.HTTPConnection.debuglevel == int(on)
import urllib3
assert urllib3.PoolManager and urllib3.util.make_headers(basic_auth="a:b")
assert not hasattr(client, "NoSuchName")
async def use():
    document = {{
        "current-context": "c",
        "contexts": [{{"name": "c", "context": {{"cluster": "c", "user": "u"}}}}],
        "clusters": [{{"name": "c", "cluster": {{"server": "http://127.0.0.1:9"}}}}],
        "users": [{{"name": "u", "user": {{"token": "t"}}}}],
    }}
    async with await config.new_client_from_config_dict(document) as api:
        assert isinstance(api, ApiClient)
        assert api.configuration.api_key == {{"BearerToken": "Bearer t"}}
import asyncio
asyncio.run(use())
"""
    assert run(code) == ""


def test_a_kubernetes_library_with_another_layout_is_imported_normally(tmp_path: Path) -> None:
    package = tmp_path / "kubernetes_asyncio"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text("from kubernetes_asyncio import client, config\n")
    (package / "client.py").write_text("class Configuration: ...\nclass ApiClient: ...\n")
    (package / "config" / "__init__.py").write_text("from kubernetes_asyncio.client import ApiClient, Configuration\n")
    code = """
from pgrole_controller import imports
imports.register_kubernetes()
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio import client, config
assert client.Configuration is config.Configuration is Configuration
assert client.ApiClient is config.ApiClient is ApiClient
print(Configuration.__module__, ApiClient.__module__, client.__file__)
"""
    expected = f"kubernetes_asyncio.client kubernetes_asyncio.client {package / 'client.py'}"
    assert run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{Path.cwd()}") == expected


def test_metrics_are_rendered_without_the_librarys_http_server_which_other_importers_still_get() -> None:
    code = """
import sys
from pgrole_controller import metrics
assert b"pgrole_build_info" in metrics.render(None, 0.0)
assert "prometheus_client.exposition" not in sys.modules
import prometheus_client
assert prometheus_client.Counter is metrics.Counter
assert prometheus_client.REGISTRY is not metrics.REGISTRY
assert prometheus_client.generate_latest(metrics.REGISTRY)
assert prometheus_client.metrics.Counter is metrics.Counter
assert prometheus_client.start_http_server and prometheus_client.__all__
assert not hasattr(prometheus_client, "NoSuchName")
"""
    assert run(code) == ""


def test_a_registered_package_runs_its_init_only_for_names_not_found_elsewhere(tmp_path: Path) -> None:
    package = tmp_path / "laid_out_anew"
    package.mkdir()
    (package / "__init__.py").write_text("print('runs')\nfrom laid_out_anew.inner import Thing\nOther = 2\n")
    (package / "home.py").write_text("from . import inner\nThird = inner.Thing + 2\n")
    (package / "inner.py").write_text("Thing = 1\n")
    code = """
from pgrole_controller.imports import register
register("laid_out_anew", ("gone", "home"))
register("not_installed_at_all")
from laid_out_anew import Third, inner
print(Third, inner.Thing)
from laid_out_anew import Other, Thing
print(Other, Thing)
"""
    assert run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{Path.cwd()}").split() == ["3", "1", "runs", "2", "1"]


def test_models_can_be_loaded_by_several_threads_and_reject_invalid_objects() -> None:
    code = """
import gc, sys
from threading import Thread
from pgrole_controller.api import reading
assert "pydantic" not in sys.modules
loads = [Thread(target=reading.load) for _ in range(4)]
for load in loads:
    load.start()
obj = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": {"name": "a", "namespace": "b"}, "spec": {}}
assert reading.read_pgrole(obj).role_name == "a"
for load in loads:
    load.join()
from pgrole_controller.api.pgrole import PgRole
assert type(reading.read_pgrole(obj)) is PgRole
for read, kind in ((reading.read_pgrole, "PgRole"), (reading.read_pgserver, "PgServer")):
    try:
        read({**obj, "kind": kind, "spec": {"name": 3, "connection": 3}})
    except reading.Invalid as error:
        print(str(error).split(":")[0])
assert gc.isenabled()
"""
    assert run(code).split() == ["spec.name", "spec.connection"]


def test_the_models_are_loaded_without_a_search_for_plugins_of_pydantic() -> None:
    code = """
import os, sys
from pgrole_controller.api import reading
reading.load()
obj = {"kind": "PgServer", "apiVersion": "pgrole.dev/v1alpha1", "metadata": {"name": "a", "namespace": "b"}}
try:
    reading.read_pgserver(obj)
except reading.Invalid:
    print(sorted(sys.modules.keys() & {"importlib.metadata", "zipfile"}), "PYDANTIC_DISABLE_PLUGINS" in os.environ)
"""
    assert run(code) == "[] False"


def test_certificate_authorities_are_loaded_with_the_first_connection_that_needs_them(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    authority = certificates.authority("authority")
    server = certificates.server("server", authority, "IP:127.0.0.1")
    code = f"""
from pgrole_controller.imports import startup_imports
with startup_imports():
    import aiohttp, aiohttp.connector
assert aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"] == 0
{SERVER.format(chain=str(server.chain), key=str(server.key))}
asyncio.run(main())
assert aiohttp.connector._SSL_CONTEXT_VERIFIED.cert_store_stats()["x509"] == 1
assert ssl.create_default_context().cert_store_stats()["x509"] == 1
import gc
assert gc.isenabled()
"""
    assert run(code, SSL_CERT_FILE=str(authority.chain), SSL_CERT_DIR="/nowhere") == "ok"


def test_a_server_certificate_that_no_known_authority_signed_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    other = certificates.authority("other")
    server = certificates.self_signed("server", "IP:127.0.0.1")
    code = f"""
from pgrole_controller.imports import startup_imports
with startup_imports():
    import aiohttp
{SERVER.format(chain=str(server.chain), key=str(server.key))}
try:
    asyncio.run(main())
except aiohttp.ClientConnectorCertificateError:
    print("refused")
"""
    assert run(code, SSL_CERT_FILE=str(other.chain), SSL_CERT_DIR="/nowhere") == "refused"


@pytest.mark.parametrize("name", ["main", "complete_for_kubectl"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_imports_ends_a_command_silently(name: str, number: signal.Signals, code: int) -> None:
    """With a handler, which the first process of a container needs."""
    script = f"""
import os, signal, sys
from pgrole_controller import __main__
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "pgrole_controller.cli":
            os.kill(os.getpid(), {number.value})
sys.meta_path.insert(0, Interrupting())
signal.signal(signal.SIGINT, signal.default_int_handler)
__main__.{name}()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
