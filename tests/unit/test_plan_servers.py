"""commands/plan_command: which server an object belongs to."""

import json
from base64 import b64encode
from typing import Any, cast

import anyio
import pytest
import yaml

from pgrole_controller.commands.manifest_files import parse_manifests
from pgrole_controller.commands.plan_command import plan_files, plan_servers
from pgrole_controller.commands.plan_conclusion import Subject
from pgrole_controller.commands.plan_model import PlanReport
from pgrole_controller.commands.server_reading import read_server
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.kube.errors import ApiError, NotConfigured
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.settings import WrongSetting
from tests.commands import choose

#: Nothing answers there.
DSN = "postgresql://nobody@127.0.0.1:1/nowhere"
ROLES = {"a": "main", "b": "other", "c": ""}


def write(roles: dict[str, str], *servers: str) -> str:
    documents: list[dict[str, Any]] = [
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name},
            "spec": {"serverRef": {"name": server}} if server else {},
        }
        for name, server in roles.items()
    ]
    for server in servers:
        connection = {"hosts": ["pg.example"], "credentialsSecretRef": {"name": "pg"}}
        spec = {"connection": connection, "allow": {"namespaces": {"matchNames": ["shop"]}, "roleNames": ["*"]}}
        documents.append(
            {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "metadata": {"name": server}, "spec": spec}
        )
    return yaml.safe_dump_all(documents)


async def test_a_dsn_is_rejected_for_objects_of_several_servers() -> None:
    manifests = parse_manifests([("f", write(ROLES))], "shop")
    with pytest.raises(WrongSetting, match="default, main, other"):
        await plan_files(manifests, choose(dsn=DSN))


async def test_a_named_server_selects_its_objects_and_those_without_a_server() -> None:
    manifests = parse_manifests([("f", write(ROLES, "main"))], "shop")
    report = await plan_files(manifests, choose(dsn=DSN, server="main"))
    assert [(one.name, one.server) for one in report.objects] == [("shop/a", "main"), ("shop/c", "main")]
    assert any(note.startswith("1 object left out") for note in report.notes)
    assert any("PgServer default" in note for note in report.notes)


async def test_a_server_without_objects_must_be_in_the_files_or_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelled name leaves out everything."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere/at/all")
    manifests = parse_manifests([("f", write({"b": "other"}, "main"))], "shop")
    assert not (await plan_files(manifests, choose(dsn=DSN, server="main"))).objects
    with pytest.raises(NotConfigured, match="/nowhere/at/all"):
        await plan_files(manifests, choose(dsn=DSN, server="mian"))


async def test_without_a_dsn_a_cluster_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/at/all")
    manifests = parse_manifests([("f", write({"a": "main"}, "main"))], "shop")
    with pytest.raises(NotConfigured, match=r"^no server: set PGROLE_DSN, or .* /nowhere/at/all"):
        await plan_files(manifests, choose())


async def test_files_without_objects_need_neither_a_dsn_nor_a_cluster() -> None:
    report = await plan_files(parse_manifests([("f", "kind: Secret")], "shop"), choose())
    assert (report.objects, report.differs) == ((), False)


async def test_servers_are_read_at_the_same_time_and_reported_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    all_begun = anyio.Event()

    async def wait_for_all(config: ServerConfig, _subjects: object, _asked: object) -> PlanReport:
        begun.append(config.name)
        if len(begun) == 3:
            all_begun.set()
        await all_begun.wait()
        await anyio.sleep(0.01 if config.name == "a" else 0)
        return PlanReport((), (config.name,))

    monkeypatch.setattr("pgrole_controller.commands.plan_command.plan_server", wait_for_all)
    servers = [(ServerConfig(name, None, ServerPolicy(), Address("", 5432, "", "")), ()) for name in "abc"]
    with anyio.fail_after(30):
        reports = await plan_servers(servers)
    assert [one.notes for one in reports] == [("a",), ("b",), ("c",)]


async def test_an_unexpected_error_with_one_server_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(endpoint: Endpoint) -> None:
        raise ZeroDivisionError(str(endpoint))

    monkeypatch.setattr("pgrole_controller.commands.planning.reading", fail)
    broken = ServerConfig("a", Endpoint(DSN), ServerPolicy(), Address("", 5432, "", ""))
    fine = ServerConfig("b", None, ServerPolicy(), Address("", 5432, "", ""))
    pgrole = parse_manifests([("roles.yaml", write({"app": ""}))], "shop").roles[0].pgrole
    subject = Subject(Key("shop", "app"), pgrole)
    reports = await plan_servers([(broken, [subject]), (fine, [subject])])
    assert [one.objects[0].errors[0].reason for one in reports] == [Reason.INTERNAL_ERROR, Reason.SERVER_NOT_READY]


class EmptyCluster:
    """Has one PgServer, main, and nothing that it names."""

    async def request(self, method: str, path: str, **_: object) -> bytes:
        if not path.endswith("/pgservers/main"):
            raise ApiError(404, "NotFound", f"{method} {path}")
        (server,) = yaml.safe_load_all(write({}, "main"))
        server["metadata"] |= {"uid": "u", "resourceVersion": "1", "generation": 1}
        return json.dumps(server).encode()


@pytest.mark.parametrize(("server", "stands"), [("default", True), ("other", False)])
async def test_where_no_pgserver_is_named_default_the_dsn_stands_for_it(
    monkeypatch: pytest.MonkeyPatch, server: str, stands: bool
) -> None:
    async def open_client(*_: object) -> EmptyCluster:
        return EmptyCluster()

    monkeypatch.setattr("pgrole_controller.commands.plan_command.open_client", open_client)
    manifests = parse_manifests([("f", write({"b": "other", "c": ""}))], "shop")
    report = await plan_files(manifests, choose(dsn=DSN, server=server))
    assert {one.server for one in report.objects} == {server}
    refused = "the connection to PostgreSQL failed: " if stands else f'PgServer "{server}" does not exist'
    assert all(one.errors[0].message.startswith(refused) for one in report.objects)
    note = "no PgServer is named default: the policy is that of a controller with PGROLE_DSN"
    assert (note in report.notes) is stands


@pytest.mark.parametrize("named", [{"context": "prod"}, {"kubeconfig": "config"}, {"server": "main"}], ids="".join)
async def test_a_named_cluster_gives_the_policy_of_its_pgserver_and_the_dsn_the_connection(
    monkeypatch: pytest.MonkeyPatch, named: dict[str, str]
) -> None:
    servers: list[ServerConfig] = []

    async def open_client(*_: object) -> EmptyCluster:
        return EmptyCluster()

    async def plan_server(config: ServerConfig, *_: object) -> PlanReport:
        servers.append(config)
        return PlanReport(())

    monkeypatch.setattr("pgrole_controller.commands.plan_command.open_client", open_client)
    monkeypatch.setattr("pgrole_controller.commands.plan_command.plan_server", plan_server)
    report = await plan_files(parse_manifests([("f", write({"a": "main"}))], "shop"), choose(dsn=DSN, **named))
    (server,) = servers
    assert (server.name, server.uid, server.problem) == ("main", "u", None)
    assert server.endpoint == Endpoint.of_dsn(DSN)
    assert server.server_policy.policy("shop", {}).admitted
    assert not server.server_policy.policy("elsewhere", {}).admitted
    assert not any("policy" in note for note in report.notes)


async def test_credentials_that_do_not_exist_may_be_in_another_namespace() -> None:
    server = await read_server(cast("Any", EmptyCluster()), "main", "pgrole-system")
    assert server.problem is not None
    assert server.problem.message.endswith(
        'Secret "pg" in namespace pgrole-system does not exist: create it, with username, and password unless a token '
        "command is set. If the controller is in another namespace, name that with --own-namespace"
    )


class ClusterWithCredentials(EmptyCluster):
    """A cluster that also has the Secret of the credentials. `asked`: what was read from it."""

    def __init__(self, *keys: str) -> None:
        self.asked: list[str] = []
        self._keys = keys or ("username", "password")

    async def request(self, method: str, path: str, **more: object) -> bytes:
        self.asked.append(path.rpartition("/")[2])
        if not path.endswith("/secrets/pg"):
            return await super().request(method, path, **more)
        data = {key: b64encode(b"admin").decode() for key in self._keys}
        metadata = {"name": "pg", "namespace": "pgrole-system", "uid": "s", "resourceVersion": "1"}
        return json.dumps({"metadata": metadata, "type": "Opaque", "data": data}).encode()


async def test_credentials_without_a_password_may_need_a_token_command() -> None:
    server = await read_server(cast("Any", ClusterWithCredentials("username")), "main", "pgrole-system")
    assert server.problem is not None
    assert server.problem.message.endswith(
        'Secret "pg" in namespace pgrole-system has no key "password", or it is empty: set it. If the controller has a '
        "token command, name the connection with --dsn or PGROLE_DSN"
    )


async def plan_with_server_in_file(
    monkeypatch: pytest.MonkeyPatch, name: str, **connection: Any
) -> tuple[ClusterWithCredentials, ServerConfig, str]:
    """Returns the cluster, the server of an object beside a PgServer with these values, and what is wrong with it."""
    cluster, servers = ClusterWithCredentials(), list[ServerConfig]()

    async def open_client(*_: object) -> ClusterWithCredentials:
        return cluster

    async def plan_server(config: ServerConfig, *_: object) -> PlanReport:
        servers.append(config)
        return PlanReport(())

    monkeypatch.setattr("pgrole_controller.commands.plan_command.open_client", open_client)
    monkeypatch.setattr("pgrole_controller.commands.plan_command.plan_server", plan_server)
    role, server = yaml.safe_load_all(write({"a": name}, name))
    server["spec"]["connection"] |= connection
    server["spec"]["allow"]["namespaces"]["matchNames"] = ["elsewhere"]
    manifests = parse_manifests([("f", yaml.safe_dump_all([role, server]))], "shop")
    await plan_files(manifests, choose(own_namespace="pgrole-system"))
    (config,) = servers
    return cluster, config, config.problem.message if config.problem else ""


async def test_a_server_in_a_file_with_the_connection_of_the_applied_one_has_the_policy_of_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, config, problem = await plan_with_server_in_file(monkeypatch, "main", port=5432)
    assert not problem
    assert config.endpoint is not None
    assert (config.address.host, config.address.port) == ("pg.example", 5432)
    assert config.server_policy.policy("elsewhere", {}).admitted


@pytest.mark.parametrize(
    ("connection", "field"),
    [
        ({"hosts": ["evil.example"]}, "hosts"),
        ({"hosts": ["pg.example", "evil.example"]}, "hosts"),
        ({"port": 5433}, "port"),
        ({"database": "other"}, "database"),
        ({"sslMode": "require"}, "sslMode"),
        ({"caRef": {"kind": "ConfigMap", "name": "ca"}}, "caRef"),
        ({"requireAuth": ["password"]}, "requireAuth"),
        ({"credentialsSecretRef": {"name": "other"}}, "credentialsSecretRef"),
    ],
    ids=str,
)
async def test_a_filed_connection_that_is_not_applied_gets_no_credentials_of_the_cluster(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], field: str
) -> None:
    cluster, config, problem = await plan_with_server_in_file(monkeypatch, "main", **connection)
    assert problem.startswith(f'spec.connection.{field} of PgServer "main" is not as in the cluster')
    assert problem.endswith("name the connection with --dsn or PGROLE_DSN")
    assert config.endpoint is None
    assert not {"pg", "other", "ca"}.intersection(cluster.asked)


async def test_a_server_that_is_only_in_a_file_gets_no_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, config, problem = await plan_with_server_in_file(monkeypatch, "new")
    assert problem.startswith('PgServer "new" is not in the cluster')
    assert problem.endswith("name the connection with --dsn or PGROLE_DSN")
    assert config.endpoint is None
    assert "pg" not in cluster.asked
