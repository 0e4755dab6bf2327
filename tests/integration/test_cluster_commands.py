"""What commands that ask the cluster say if it has no CRDs, or does not accept the caller."""

import re
from pathlib import Path

import pytest

from pgrole_controller.local.apiserver import ApiServer
from tests.api_server_pool import ApiServerPool
from tests.commands import run_command

_COMMANDS = ("diff", "history", "approve --yes orders-app")


async def test_a_cluster_without_the_crds_is_named_with_the_remedy(api_servers: ApiServerPool) -> None:
    async with api_servers.lend() as server:
        for words in _COMMANDS:
            answer = await run_command(*words.split(), "--kubeconfig", str(server.kubeconfig), PGROLE_DSN=None)
            assert (answer.code, answer.out) == (1, "")
            assert "this API server has no PgRoles" in answer.err
            assert "pgrole-controller crds | kubectl apply" in answer.err


@pytest.mark.parametrize("words", [*_COMMANDS, "doctor -o json", "export --server default"])
async def test_refused_credentials_are_named_with_the_remedy(words: str, api_server: ApiServer, tmp_path: Path) -> None:
    config = tmp_path / "kubeconfig"
    content = api_server.kubeconfig.read_text(encoding="utf-8")
    config.write_text(re.sub(r"token: .*", "token: expired", content), encoding="utf-8")
    answer = await run_command(*words.split(), "--kubeconfig", str(config), PGROLE_DSN=None)
    assert answer.code == 1
    assert "does not accept your credentials: log in again" in answer.out + answer.err
