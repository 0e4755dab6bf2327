"""postgres.capabilities: how a server introduces itself, whoever packaged it."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from pgrole_controller.core.errors import Transient
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection


class IntroducedServer:
    """A connection to a server with this server_version."""

    def __init__(self, version: str, number: int) -> None:
        self._row = {
            "version": version,
            "version_number": number,
            "encoding": "UTF8",
            "in_recovery": False,
            "system_identifier": 1,
            "started_at": datetime.now(UTC),
            "acting_role": b"admin",
            "session_role": b"admin",
            "superuser": True,
            "sees_passwords": True,
        }

    async def fetch(self, _query: str, timeout: float | None = None) -> list[dict[str, Any]]:  # noqa: ARG002, ASYNC109
        return [self._row]

    @property
    def connection(self) -> Connection:
        return cast("Connection", self)


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("18.4 (Debian 18.4-1.pgdg13+1)", "18.4"),
        ("14.19 (Ubuntu 14.19-0ubuntu0.22.04.1)", "14.19"),
        ("18beta1 (Debian 18~beta1-1.pgdg120+1)", "18beta1"),
        ("18beta1", "18beta1"),
        ("19devel", "19devel"),
        ("18.4", "18.4"),
        ("1" * 100, "1" * 40),
    ],
)
async def test_the_version_is_shown_without_what_a_packager_adds(version: str, shown: str) -> None:
    assert (await identify(IntroducedServer(version, 180004).connection)).version == shown


async def test_a_beta_of_the_oldest_version_is_accepted_and_an_older_version_is_named() -> None:
    assert (await identify(IntroducedServer("14beta1", 140000).connection)).version_number == 140000
    with pytest.raises(Transient, match=r"^PostgreSQL 13\.22 is too old: the controller requires 14 or later$"):
        await identify(IntroducedServer("13.22 (Debian 13.22-1.pgdg13+1)", 130022).connection)
