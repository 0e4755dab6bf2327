"""Address and credentials of the API server, as kubernetes_asyncio finds them. No other module imports that library."""

import logging
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from pgrole_controller import imports
from pgrole_controller.kube import contexts, credential_plugins
from pgrole_controller.kube.contexts import HOME_CONFIG, SERVICE_HOST, check_context, is_file
from pgrole_controller.kube.errors import NotConfigured, WrongKubeconfig
from pgrole_controller.kube.route import HttpAddress, read_trust

imports.register_kubernetes()

# Modules that read kubeconfigs are imported only for a kubeconfig: a controller in a cluster needs neither them nor
# yaml.
from kubernetes_asyncio.client import Configuration  # noqa: E402 - light only once it is registered
from kubernetes_asyncio.config.config_exception import ConfigException as ConfigException  # noqa: E402
from kubernetes_asyncio.config.incluster_config import SERVICE_CERT_FILENAME, InClusterConfigLoader  # noqa: E402

log = logging.getLogger(__name__)

RENEW_EVERY = 60.0  # seconds; like kubernetes_asyncio's own refresh
RENEW_PAUSE = 10.0  # seconds after an exec plugin or a provider was asked in vain; it may open a browser each time
RENEW_TIMEOUT = 30.0  # an exec plugin may prompt a person

CHOICES = "set --kubeconfig FILE or KUBECONFIG=FILE, run in a cluster with a service account, or create ~/.kube/config"

#: How kubernetes_asyncio's message about a missing file of a certificate or key begins.
_MISSING_FILE = "File does not exist"

_UNUSABLE = (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, AssertionError)


class Credentials(ABC):
    """`configuration` is kubernetes_asyncio's. `source`, for the log: the file, or "in-cluster"."""

    def __init__(self, configuration: Any, source: str) -> None:  # noqa: ANN401
        self.configuration = configuration
        self.source = source

    @abstractmethod
    async def token(self) -> str | None:
        """Returns the value of the header Authorization; None: certificates alone."""

    @abstractmethod
    async def renew(self) -> bool:
        """Reads kubeconfig, token file, exec plugin, … again at once. Returns whether it did. Raises OSError,
        ConfigException.
        """


async def load(kubeconfig: str | None, *, context: str | None, strict_tls: bool) -> Credentials:
    """Uses the given file, else KUBECONFIG, else in-cluster unless a context is given, else ~/.kube/config.

    Raises NotConfigured; WrongKubeconfig for what only a change of the kubeconfig, or another one, can mend.
    """
    files = _find(kubeconfig, context)
    credentials = _load_in_cluster() if files is None else await _load_files(files, context)
    credentials.configuration.disable_strict_ssl_verification = not strict_tls
    return credentials


async def load_address(
    kubeconfig: str | None, *, context: str | None, address: str | None, ca_file: str | None, strict_tls: bool
) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Returns a configuration with the API server's address and CA only: neither token nor client certificate.

    Uses `address` with the CAs in `ca_file` (None: the system's), else the address that a pod has in its environment
    unless a kubeconfig or a context is given, else the kubeconfig without its user. Raises NotConfigured.
    """
    host = os.environ.get(SERVICE_HOST)
    if host and address is None and kubeconfig is None and context is None:
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    if address is not None:
        configuration = Configuration()
        configuration.host = address.rstrip("/")
        configuration.ssl_ca_cert = ca_file
        configuration.disable_strict_ssl_verification = not strict_tls
    else:
        configuration = (await load(kubeconfig, context=context, strict_tls=strict_tls)).configuration
        configuration.ssl_ca_cert = ca_file or configuration.ssl_ca_cert
    configuration.cert_file = configuration.key_file = None
    configuration.api_key = {}
    return configuration


class BearerToken(Credentials):
    """This token and nothing else, in memory only. `refused` is called at each 401."""

    def __init__(self, configuration: Any, token: str, refused: Callable[[], None]) -> None:  # noqa: ANN401
        super().__init__(configuration, "bearer token")
        self._token = token
        self._refused = refused

    async def token(self) -> str | None:
        return f"Bearer {self._token}"

    async def renew(self) -> bool:
        self._refused()
        return False


def forget_files() -> None:
    """Removes the temporary files with certificates and keys, which TLS no longer needs once a client exists."""
    loader = sys.modules.get("kubernetes_asyncio.config.kube_config")
    if loader is not None:
        loader._cleanup_temp_files()  # noqa: SLF001


def _find(kubeconfig: str | None, context: str | None) -> str | None:
    """Returns the kubeconfig files, as listed in KUBECONFIG; None means in-cluster, which has no context."""
    files = kubeconfig or os.environ.get("KUBECONFIG")
    if files:
        if not any(map(is_file, files.split(os.pathsep))):
            message = f"kubeconfig {files} does not exist: {CHOICES}"
            raise (WrongKubeconfig if kubeconfig else NotConfigured)(message)
        return files
    if contexts.uses_pod(kubeconfig, context):
        return None
    if is_file(HOME_CONFIG):
        return str(Path(HOME_CONFIG).expanduser())
    if context is not None:
        message = f'--context: no kubeconfig has context "{context}": set --kubeconfig FILE or KUBECONFIG=FILE'
        raise WrongKubeconfig(message)
    message = f"no API server is configured: {CHOICES}"
    raise NotConfigured(message)


async def _load_files(files: str, context: str | None) -> Credentials:
    """Raises WrongKubeconfig for what the text of the files decides, NotConfigured for what may pass: a plugin or a
    provider that fails, another file that is missing.
    """
    import yaml

    configuration, asking = Configuration(), False
    try:
        with _loading():
            loader = _read_loader(files, context)
            asking = _asks(loader)
            await loader._load_authentication()  # noqa: SLF001
            asking = False
            loader._load_cluster_info()  # noqa: SLF001
            loader._set_config(configuration)  # noqa: SLF001
            _check_text(configuration, loader)
    except (*_UNUSABLE, NotConfigured, yaml.YAMLError, RecursionError) as error:
        check_context(files, context)
        message = f"kubeconfig {files} is not usable: {error or type(error).__name__}"
        may_pass = asking or isinstance(error, OSError) or str(error).startswith(_MISSING_FILE)
        raise (NotConfigured if may_pass else WrongKubeconfig)(message) from error
    return _KubeconfigCredentials(configuration, files, context, loader)


def _read_loader(files: str, context: str | None) -> Any:  # noqa: ANN401 - kubernetes_asyncio's
    """Reads these files and none that they name. Nothing will be written back."""
    module = imports.read_kubeconfig_module()
    credential_plugins.register()
    return module._get_kube_config_loader_for_yaml_file(files, active_context=context)  # noqa: SLF001


def _asks(loader: Any) -> bool:  # noqa: ANN401 - kubernetes_asyncio's
    """Whether a credential plugin or a provider has the token."""
    user = loader._user or ()  # noqa: SLF001
    return "exec" in user or "auth-provider" in user


def _check_text(configuration: Any, loader: Any) -> None:  # noqa: ANN401 - kubernetes_asyncio's
    """Raises NotConfigured for unusable addresses in a kubeconfig, ConfigException for unusable certificates in it.

    Certificates in other files are left to the client, and so is a proxy from the environment.
    """
    HttpAddress.parse(configuration.host, "the address of the API server")
    if configuration.proxy:
        HttpAddress.parse(str(configuration.proxy), "the address of the proxy")
    cluster, user = loader._cluster, loader._user or ()  # noqa: SLF001
    sources = [
        (configuration.ssl_ca_cert, "certificate-authority-data" in cluster),
        (configuration.cert_file, "client-certificate-data" in user),
        (configuration.key_file, "client-key-data" in user),
    ]
    if any(path for path, _ in sources) and all(within for path, within in sources if path):
        try:
            read_trust(configuration)
        except OSError as error:  # includes ssl.SSLError
            message = f"its certificates are not usable: {error}"
            raise ConfigException(message) from error


@contextmanager
def _loading() -> Iterator[None]:
    """Converts what loading credentials raises into ConfigException, except OSError: malformed files, tokens and
    answers, and errors of aiohttp, with which kubernetes_asyncio asks an OIDC provider.
    """
    try:
        with credential_plugins.ended():
            yield
    except (ConfigException, OSError):
        raise
    except Exception as error:
        if isinstance(error, _UNUSABLE) or type(error).__module__.partition(".")[0] in ("aiohttp", "yaml"):
            message = f"the credentials are not usable: {type(error).__name__}: {error}"
            raise ConfigException(message) from error
        raise


def _load_in_cluster() -> Credentials:
    configuration = Configuration()
    loader = InClusterConfigLoader(
        token_filename=contexts.SERVICE_TOKEN, cert_filename=SERVICE_CERT_FILENAME, try_refresh_token=False
    )
    try:
        loader.load_and_set(configuration)
    except _UNUSABLE as error:
        message = f"the service account of this pod is not usable: {error or type(error).__name__}"
        raise NotConfigured(message) from error
    return _InClusterCredentials(configuration, loader)


class _ReadCredentials(Credentials):
    """Reads the source again at most once in RENEW_EVERY, when a request needs it, and whenever `renew` is called, but
    not for `pause` seconds after that failed or led to the same token and certificate.
    """

    def __init__(self, configuration: Any, source: str, pause: float) -> None:  # noqa: ANN401
        super().__init__(configuration, source)
        self._pause = pause
        self._due = time.monotonic() + RENEW_EVERY
        self._resume = 0.0
        self._failure: str | None = None
        _trim(configuration)
        self._current = _read_identity(configuration)

    @abstractmethod
    async def _read_token(self) -> None:
        """Reads the token again, and a client certificate of an exec plugin."""

    async def _read_all(self) -> None:
        """Reads everything again."""
        await self._read_token()

    async def token(self) -> str | None:
        if "BearerToken" in self.configuration.api_key and time.monotonic() >= self._due:
            try:
                await self._read(self._read_token)
            except (OSError, ConfigException) as error:
                extra = {"source": self.source, "error": str(error) or type(error).__name__}
                log.warning("credentials not reloaded, using the previous ones", extra=extra)
        return self.configuration.api_key.get("BearerToken") or None

    async def renew(self) -> bool:
        if time.monotonic() < self._resume:
            if self._failure is not None:
                raise ConfigException(self._failure)
            return False
        before, self._failure = self._current, None
        try:
            await self._read(self._read_all)
            self._current = _read_identity(self.configuration)
        except (OSError, ConfigException) as error:
            self._failure = str(error) or type(error).__name__
            raise
        finally:
            if self._failure is not None or self._current == before:
                self._resume = time.monotonic() + self._pause
        return True

    async def _read(self, read: Callable[[], Awaitable[None]]) -> None:
        self._due = time.monotonic() + RENEW_EVERY
        with anyio.fail_after(RENEW_TIMEOUT):
            await read()
        _trim(self.configuration)


class _InClusterCredentials(_ReadCredentials):
    def __init__(self, configuration: Any, loader: InClusterConfigLoader) -> None:  # noqa: ANN401
        super().__init__(configuration, "in-cluster", pause=0.0)
        self._loader = loader

    async def _read_token(self) -> None:
        self._loader.load_and_set(self.configuration)


class _KubeconfigCredentials(_ReadCredentials):
    def __init__(self, configuration: Any, files: str, context: str | None, loader: Any) -> None:  # noqa: ANN401
        """`loader` is kubernetes_asyncio's."""
        super().__init__(configuration, files, pause=RENEW_PAUSE if _asks(loader) else 0.0)
        self._context = context
        self._loader = loader

    async def _read_token(self) -> None:
        # `load_and_set` would write the certificates to files again.
        with _loading():
            await self._loader._load_authentication()  # noqa: SLF001
        if hasattr(self._loader, "token"):
            self.configuration.api_key["BearerToken"] = self._loader.token

    async def _read_all(self) -> None:
        if self._loader.provider is None:  # a provider's tokens may have been renewed since, which is in no file
            with _loading():
                self._loader = _read_loader(self.source, self._context)
        await self._read_token()
        with _loading():
            self._loader._load_cluster_info()  # noqa: SLF001
        for name in ("ssl_ca_cert", "cert_file", "key_file"):
            setattr(self.configuration, name, getattr(self._loader, name, None))


def _read_identity(configuration: Any) -> tuple[str | None, bytes]:  # noqa: ANN401 - kubernetes_asyncio's
    """Returns the token and the client certificate, whose file may be temporary."""
    certificate = Path(configuration.cert_file).read_bytes() if configuration.cert_file else b""
    return configuration.api_key.get("BearerToken"), certificate


def _trim(configuration: Any) -> None:  # noqa: ANN401 - kubernetes_asyncio's
    """Strips the newline at the end of a token file, which a header must not contain."""
    token = configuration.api_key.get("BearerToken")
    if token is not None:
        configuration.api_key["BearerToken"] = token.strip()
