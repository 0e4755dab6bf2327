"""One-off steps of compose.yaml: `python -m pgrole_controller.local.compose keys | cluster | guide`.

`keys` makes tokens, the key for ServiceAccount tokens, and PostgreSQL's password, and keeps existing ones. `cluster`
waits for the API server, applies CRDs, RBAC, the PgServer and the samples, and writes two kubeconfigs: one for the
controller's ServiceAccount, one for people on the host. `guide` waits until the samples are Ready and prints what to do
next. compose.yaml mounts the folders and passes its DEMO_… settings on.
"""

import argparse
import csv
import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from urllib.parse import quote

import anyio

from pgrole_controller import resources
from pgrole_controller.local import kubeconfig
from pgrole_controller.local.apiserver import Json, RemoteApiServer
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply, apply_crds, apply_folder, are_ready, path_of, read_folder
from pgrole_controller.local.process import LocalError, reached
from pgrole_controller.local.rights import RightsScope, install
from pgrole_controller.local.workspace import write_private

_KEYS = Path("/keys")
_PASSWORD = Path("/password/postgres")
_CONTROLLER = Path("/controller")
_HOST = Path("/host")
_CA = "ca.crt"
_URL = "https://kubernetes:6443"  # in the certificate that kube-apiserver makes for itself, like localhost
_USER = 65532
_READY_SECONDS = 60.0
_RULE = "─" * 78


@dataclass(frozen=True, slots=True)
class Demo:
    """Settings of compose.yaml: ports of this machine, and the kubeconfig's folder. Each is DEMO_…."""

    api_port: str
    postgres_port: str
    http_port: str
    console_port: str
    folder: str


def read_demo(environment: Mapping[str, str]) -> Demo:
    """Reads the settings. Raises LocalError if one is missing."""
    try:
        return Demo(**{one.name: environment[f"DEMO_{one.name.upper()}"] for one in fields(Demo)})
    except KeyError as error:
        raise LocalError(f"{error.args[0]} is not set: compose.yaml passes it on") from error


def make_keys() -> None:
    kubeconfig.write_tokens(_KEYS / "tokens.csv", {})
    kubeconfig.write_service_account_key(_KEYS / "service-account.key")
    if not _PASSWORD.exists():
        write_private(_PASSWORD, secrets.token_urlsafe(18))


async def prepare_cluster(display: Display) -> None:
    """Prepares the cluster. Raises LocalError if the API server is not ready in time, or denies something."""
    demo, installation = read_demo(os.environ), RightsScope()
    async with _api_server() as server:
        display.say(f"API server {server.version} ready")
        await apply_crds(server)
        user = await install(server, installation)
        await apply(server, _credentials_of_server(installation))
        await apply_folder(server, resources.path("deploy", "compose"))
        await apply_folder(server, resources.path("deploy", "samples"))
        display.say("CRDs, permissions, PgServer and samples applied")
        _write_kubeconfig(_CONTROLLER, _URL, user, server.token_of(user), (_USER, _USER))
        url = f"https://localhost:{demo.api_port}"
        _write_kubeconfig(_HOST, url, kubeconfig.ADMIN, server.token, _owner(_HOST))


async def tell(display: Display) -> None:
    """Waits for the samples and prints the guide. Raises LocalError if they are not Ready in time."""
    demo = read_demo(os.environ)
    async with _api_server() as server:
        roles = [one for one in read_folder(resources.path("deploy", "samples")) if one["kind"] == "PgRole"]
        paths = [await path_of(server, role) for role in roles]

        if not await reached(partial(are_ready, server, paths), _READY_SECONDS, every=0.2):
            raise LocalError(f"The samples are not Ready after {_READY_SECONDS:.0f} s; see the controller's log")
        names = ", ".join(role["metadata"]["name"] for role in roles)
        display.say(f"PgRoles {names} are Ready: the controller is running")
        display.say(_guide(demo))


@asynccontextmanager
async def _api_server() -> AsyncIterator[RemoteApiServer]:
    """Yields the API server, ready, with admin's credentials."""
    with (_KEYS / "tokens.csv").open(newline="", encoding="utf-8") as file:
        tokens = {user: token for token, user, *_ in csv.reader(file)}
    server = RemoteApiServer(_KEYS, url=_URL, ca=_KEYS / "certificates" / "apiserver.crt", tokens=tokens)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def _credentials_of_server(installation: RightsScope) -> Json:
    """The Secret that deploy/compose/server.yaml names."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "pg-admin", "namespace": installation.namespace},
        "stringData": {"username": "postgres", "password": _PASSWORD.read_text(encoding="utf-8")},
    }


def _write_kubeconfig(folder: Path, url: str, user: str, token: str, owner: tuple[int, int]) -> None:
    """Writes `kubeconfig` and its CA certificate into `folder`, readable only by `owner` (user and group)."""
    ca = folder / _CA
    write_private(ca, (_KEYS / "certificates" / "apiserver.crt").read_text(encoding="utf-8"))
    path = kubeconfig.write_kubeconfig(folder / "kubeconfig", url=url, ca=Path(_CA), user=user, token=token)
    for file in (ca, path):
        os.chown(file, *owner)


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid


def _guide(demo: Demo) -> str:
    password = quote(_PASSWORD.read_text(encoding="utf-8"), safe="")
    dsn = f"postgresql://postgres:{password}@localhost:{demo.postgres_port}/postgres"
    return f"""{_RULE}
Everything is running. In another terminal, in the folder of compose.yaml:

  export KUBECONFIG={demo.folder}/kubeconfig
  export PGROLE_DSN={dsn}

1. List the declared roles and their state:
  kubectl get pgr -A

2. Watch them in a third terminal:
  kubectl get pgr -A -w

3. Cause drift; it is repaired within milliseconds, and counted under DRIFTS:
  psql "$PGROLE_DSN" -c 'ALTER ROLE orders_app CREATEDB'
  psql "$PGROLE_DSN" -c 'GRANT CREATE ON SCHEMA public TO readers'

4. Show the metrics of the controller:
  curl -s http://localhost:{demo.http_port}/metrics

5. Open the console, and log in with the token in {demo.folder}/kubeconfig:
  http://localhost:{demo.console_port}/

Without psql: docker compose exec postgres psql -U postgres -c …

docker compose down stops everything and keeps the data; docker compose down -v also removes the data.
{_RULE}"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m pgrole_controller.local.compose", description=__doc__)
    parser.add_argument("step", choices=("keys", "cluster", "guide"))
    step = parser.parse_args(arguments).step
    display = Display(sys.stdout)
    try:
        if step == "keys":
            make_keys()
        else:
            anyio.run(prepare_cluster if step == "cluster" else tell, display)
    except LocalError as error:
        display.say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
