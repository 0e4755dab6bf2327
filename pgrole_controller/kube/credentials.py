"""Address and credentials of the API server, as kubernetes_asyncio finds them. No other module imports that library."""

import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from pgrole_controller import imports
from pgrole_controller.kube.contexts import HOME_CONFIG, check_context, is_file
from pgrole_controller.kube.errors import NotConfigured

imports.register_kubernetes()

# Modules that read kubeconfigs are imported only for a kubeconfig: a controller in a cluster needs neither them nor
# yaml.
from kubernetes_asyncio.client import Configuration  # noqa: E402 - light only once it is registered
from kubernetes_asyncio.config.config_exception import ConfigException as ConfigException  # noqa: E402
from kubernetes_asyncio.config.incluster_config import (  # noqa: E402
    SERVICE_CERT_FILENAME,
    SERVICE_HOST_ENV_NAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)

log = logging.getLogger(__name__)

RENEW_EVERY = 60.0  # seconds; like kubernetes_asyncio's own refresh
RENEW_PAUSE = 10.0  # seconds after an exec plugin or a provider was asked in vain; it may open a browser each time
RENEW_TIMEOUT = 30.0  # an exec plugin may prompt a person

CHOICES = "set --kubeconfig FILE or KUBECONFIG=FILE, run in a cluster with a service account, or create ~/.kube/config"

_UNUSABLE = (ConfigException, OSError, ValueError, TypeError, KeyError, AssertionError)


@dataclass(frozen=True, slots=True)
class Credentials:
    configuration: Any  # from kubernetes_asyncio
    source: str  # for the log: the file, or "in-cluster"
    token: Callable[[], Awaitable[str | None]]  # the value of the header Authorization; None: certificates alone
    #: Reads kubeconfig, token file, exec plugin, … again at once. Returns whether it did.
    renew: Callable[[], Awaitable[bool]]


async def load(kubeconfig: str | None, *, context: str | None, strict_tls: bool) -> Credentials:
    """Uses the given file, else KUBECONFIG, else in-cluster, else ~/.kube/config. Raises NotConfigured."""
    files = _find(kubeconfig)
    credentials = _load_in_cluster() if files is None else await _load_files(files, context)
    credentials.configuration.disable_strict_ssl_verification = not strict_tls
    return credentials


async def load_address(
    kubeconfig: str | None, *, context: str | None, address: str | None, ca_file: str | None, strict_tls: bool
) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Returns a configuration with the API server's address and CA only: neither token nor client certificate.

    Uses `address` with the CAs in `ca_file` (None: the system's), else the address that a pod has in its environment,
    else the kubeconfig without its user. Raises NotConfigured.
    """
    if address is None and kubeconfig is None and (host := os.environ.get(SERVICE_HOST_ENV_NAME)):
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    if address is not None:
        configuration = Configuration()
        configuration.host = address.rstrip("/")
        configuration.ssl_ca_cert = ca_file
    else:
        configuration = (await load(kubeconfig, context=context, strict_tls=strict_tls)).configuration
        configuration.ssl_ca_cert = ca_file or configuration.ssl_ca_cert
    configuration.cert_file = configuration.key_file = None
    configuration.api_key = {}
    configuration.disable_strict_ssl_verification = not strict_tls
    return configuration


def of_token(configuration: Any, token: str, refused: Callable[[], None]) -> Credentials:  # noqa: ANN401
    """Credentials that are this bearer token and nothing else, in memory only. `refused` is called at each 401."""

    async def authorization() -> str:
        return f"Bearer {token}"

    async def renew() -> bool:
        refused()
        return False

    return Credentials(configuration, "bearer token", authorization, renew)


def forget_files() -> None:
    """Removes the temporary files with certificates and keys, which TLS no longer needs once a client exists."""
    loader = sys.modules.get("kubernetes_asyncio.config.kube_config")
    if loader is not None:
        loader._cleanup_temp_files()  # noqa: SLF001


def _find(kubeconfig: str | None) -> str | None:
    """Returns the kubeconfig files, as listed in KUBECONFIG; None means in-cluster."""
    files = kubeconfig or os.environ.get("KUBECONFIG")
    if files:
        if not any(map(is_file, files.split(os.pathsep))):
            message = f"kubeconfig {files} does not exist: {CHOICES}"
            raise NotConfigured(message)
        return files
    if os.environ.get(SERVICE_HOST_ENV_NAME) and Path(SERVICE_TOKEN_FILENAME).is_file():
        return None
    if is_file(HOME_CONFIG):
        return str(Path(HOME_CONFIG).expanduser())
    message = f"no API server is configured: {CHOICES}"
    raise NotConfigured(message)


async def _load_files(files: str, context: str | None) -> Credentials:
    import yaml

    module = imports.read_kubeconfig_module()
    configuration = Configuration()
    try:
        # Nothing is written back: the loader calls its writer with an argument that the writer does not accept.
        with _loading():
            loader = await module.load_kube_config(
                config_file=files, context=context, client_configuration=configuration, persist_config=False
            )
    except (*_UNUSABLE, yaml.YAMLError, RecursionError) as error:
        check_context(files, context)
        message = f"kubeconfig {files} is not usable: {error or type(error).__name__}"
        raise NotConfigured(message) from error

    async def load_again() -> None:
        # `load_and_set` would write the certificates to files again.
        with _loading():
            await loader._load_authentication()  # noqa: SLF001
        if hasattr(loader, "token"):
            configuration.api_key["BearerToken"] = loader.token

    async def renew() -> None:
        nonlocal loader
        if loader.provider is None:  # a provider's tokens may have been renewed since, which is in no file
            with _loading():
                loader = module._get_kube_config_loader_for_yaml_file(files, active_context=context)  # noqa: SLF001
        await load_again()
        with _loading():
            loader._load_cluster_info()  # noqa: SLF001
        for name in ("ssl_ca_cert", "cert_file", "key_file"):
            setattr(configuration, name, getattr(loader, name, None))

    user = loader._user or ()  # noqa: SLF001
    asks = "exec" in user or "auth-provider" in user
    return _renewing(configuration, files, load_again, renew, pause=RENEW_PAUSE if asks else 0.0)


@contextmanager
def _loading() -> Iterator[None]:
    """Converts what loading credentials raises into ConfigException, except OSError: malformed files, tokens and
    answers, and errors of aiohttp, with which kubernetes_asyncio asks an OIDC provider.
    """
    try:
        yield
    except (ConfigException, OSError):
        raise
    except Exception as error:
        if isinstance(error, _UNUSABLE) or type(error).__module__.partition(".")[0] in ("aiohttp", "yaml"):
            message = f"the credentials are not usable: {type(error).__name__}: {error}"
            raise ConfigException(message) from error
        raise


def in_cluster_namespace() -> str | None:
    """Returns the namespace of this process's pod; None outside a cluster."""
    file = Path(SERVICE_TOKEN_FILENAME).with_name("namespace")
    return file.read_text(encoding="utf-8").strip() or None if file.is_file() else None


def _load_in_cluster() -> Credentials:
    configuration = Configuration()
    loader = InClusterConfigLoader(
        token_filename=SERVICE_TOKEN_FILENAME, cert_filename=SERVICE_CERT_FILENAME, try_refresh_token=False
    )

    async def load_again() -> None:
        loader.load_and_set(configuration)

    try:
        loader.load_and_set(configuration)
    except _UNUSABLE as error:
        message = f"the service account of this pod is not usable: {error or type(error).__name__}"
        raise NotConfigured(message) from error
    return _renewing(configuration, "in-cluster", load_again, load_again)


def _renewing(
    configuration: Any,  # noqa: ANN401 - kubernetes_asyncio's
    source: str,
    load_again: Callable[[], Awaitable[None]],
    renew: Callable[[], Awaitable[None]],
    *,
    pause: float = 0.0,
) -> Credentials:
    """Reads the source again at most once in RENEW_EVERY, when a request needs it, and whenever `renew` is called, but
    not for `pause` seconds after that failed or led to the same token and certificate.
    """
    due = time.monotonic() + RENEW_EVERY
    resume = 0.0
    failure: str | None = None
    current = _read_identity(configuration)

    async def limited(load: Callable[[], Awaitable[None]]) -> None:
        nonlocal due
        due = time.monotonic() + RENEW_EVERY
        with anyio.fail_after(RENEW_TIMEOUT):
            await load()
        _trim(configuration)

    async def token() -> str | None:
        if "BearerToken" in configuration.api_key and time.monotonic() >= due:
            try:
                await limited(load_again)
            except (OSError, ConfigException) as error:
                text = str(error) or type(error).__name__
                log.warning("credentials not read again, using the former", extra={"source": source, "error": text})
        return configuration.api_key.get("BearerToken") or None

    async def at_once() -> bool:
        nonlocal resume, failure, current
        if time.monotonic() < resume:
            if failure is not None:
                raise ConfigException(failure)
            return False
        before, failure = current, None
        try:
            await limited(renew)
            current = _read_identity(configuration)
        except (OSError, ConfigException) as error:
            failure = str(error) or type(error).__name__
            raise
        finally:
            if failure is not None or current == before:
                resume = time.monotonic() + pause
        return True

    _trim(configuration)
    return Credentials(configuration, source, token, at_once)


def _read_identity(configuration: Any) -> tuple[str | None, bytes]:  # noqa: ANN401 - kubernetes_asyncio's
    """Returns the token and the client certificate, whose file may be temporary."""
    certificate = Path(configuration.cert_file).read_bytes() if configuration.cert_file else b""
    return configuration.api_key.get("BearerToken"), certificate


def _trim(configuration: Any) -> None:  # noqa: ANN401 - kubernetes_asyncio's
    """Strips the newline at the end of a token file, which a header must not contain."""
    token = configuration.api_key.get("BearerToken")
    if token is not None:
        configuration.api_key["BearerToken"] = token.strip()
