"""What a start imports, seen in processes of their own: what one imported stays for all that follow."""

import os
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
    """What a Python that runs this prints; warnings are errors in it."""
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
        "aiohttp.web_urldispatcher",
        "dateutil",
        "kubernetes_asyncio.client.api",
        "kubernetes_asyncio.client.api_client",
        "kubernetes_asyncio.client.models",
        "kubernetes_asyncio.config.kube_config",
        "kubernetes_asyncio.dynamic",
        "multiprocessing",
        "pgrole_controller.claims.command",
        "pgrole_controller.local",
        "urllib3.connection",
        "yaml",
    )
    code = f"""
import sys
import pgrole_controller.cli, pgrole_controller.controller.app
print(*(name for name in {unneeded} if name in sys.modules))
"""
    assert run(code) == ""


def test_a_kubeconfig_is_read_without_any_model() -> None:
    code = """
import sys
import pgrole_controller.kube.client
from kubernetes_asyncio.config.kube_config import load_kube_config
print(len([name for name in sys.modules if name.startswith("kubernetes_asyncio")]) < 20)
"""
    assert run(code) == "True"


@pytest.mark.parametrize("before", ["import kubernetes_asyncio", "pass"], ids=["imported before", "imported after"])
def test_whoever_else_imports_the_library_finds_all_of_it(before: str) -> None:
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


def test_a_library_that_is_laid_out_in_another_way_is_imported_as_ever(tmp_path: Path) -> None:
    package = tmp_path / "kubernetes_asyncio"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").write_text("from kubernetes_asyncio import client, config\n")
    (package / "client.py").write_text("class Configuration: ...\nclass ApiClient: ...\n")
    (package / "config" / "__init__.py").write_text("from kubernetes_asyncio.client import ApiClient, Configuration\n")
    code = """
from pgrole_controller.kube import library
library.register()
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio import client, config
assert client.Configuration is config.Configuration is Configuration
assert client.ApiClient is config.ApiClient is ApiClient
print(Configuration.__module__, ApiClient.__module__, client.__file__)
"""
    expected = f"kubernetes_asyncio.client kubernetes_asyncio.client {package / 'client.py'}"
    assert run(code, PYTHONPATH=f"{tmp_path}{os.pathsep}{Path.cwd()}") == expected


def test_authorities_are_read_with_the_first_connection_that_needs_them(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    authority = certificates.authority("authority")
    server = certificates.server("server", authority, "IP:127.0.0.1")
    code = f"""
from pgrole_controller.imports import sparing
with sparing():
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


def test_a_server_that_no_authority_signed_is_refused(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    other = certificates.authority("other")
    server = certificates.self_signed("server", "IP:127.0.0.1")
    code = f"""
from pgrole_controller.imports import sparing
with sparing():
    import aiohttp
{SERVER.format(chain=str(server.chain), key=str(server.key))}
try:
    asyncio.run(main())
except aiohttp.ClientConnectorCertificateError:
    print("refused")
"""
    assert run(code, SSL_CERT_FILE=str(other.chain), SSL_CERT_DIR="/nowhere") == "refused"
