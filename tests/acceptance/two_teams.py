"""Two teams on one server with a policy, for tests of what the policy refuses.

Team a can create roles and Secrets, and log in as its roles; team b is its neighbour. Both can use role names that
begin with shared_.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.service_account import OWN_NAMESPACE
from tests.acceptance.world import Controller, Database, Json, Kube, open_database, remove, running, says
from tests.servers import Servers

CONTROLLER_ROLE, CONTROLLER_PASSWORD = "steward", "steward's own"
SERVER = "two-teams"
#: Objects that exist from the first to the last test.
FIRST = ("app", "shared", "mate")

#: Roles with everything about them, and claims without the generations, which change with every object and policy.
ROLES = """
SELECT jsonb_build_object(
    'roles', (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.oid) FROM pg_authid AS a),
    'members', (SELECT jsonb_agg(to_jsonb(m) ORDER BY m::text) FROM pg_auth_members AS m),
    'settings', (SELECT jsonb_agg(to_jsonb(s) ORDER BY s::text) FROM pg_db_role_setting AS s),
    'comments', (SELECT jsonb_agg(to_jsonb(d) ORDER BY d::text) FROM pg_shdescription AS d),
    'claims', (
        SELECT jsonb_agg(
            to_jsonb(c) - ARRAY['object_generation', 'server_uid', 'server_generation', 'privileges']
            ORDER BY c.role_name
        )
        FROM pgrole.claim AS c
    )
)::text
"""


@dataclass(frozen=True, slots=True)
class TwoTeams:
    """Two teams on one server with a policy; `a` and `b` are the prefixes of their roles' names."""

    postgres: PostgresServer
    database: Database
    servers: PgServers
    teams: tuple[Kube, Kube]
    own: Kube
    controller: Controller

    @property
    def a(self) -> str:
        return self.teams[0].namespace

    @property
    def b(self) -> str:
        return self.teams[1].namespace

    def fill(self, value: Any) -> Any:
        """Replaces @a and @b in strings by the names of the teams."""
        if isinstance(value, str):
            return value.replace("@a", self.a).replace("@b", self.b)
        if isinstance(value, dict):
            return {self.fill(key): self.fill(one) for key, one in value.items()}
        return [self.fill(one) for one in value] if isinstance(value, list) else value

    async def allow(self, **changed: Any) -> None:
        """Applies the usual policy with these fields of `allow` changed; in effect on return."""
        asked = await self.servers.patch(SERVER, {"spec": {"allow": self.policy() | changed}})
        generation = asked["metadata"]["generation"]
        await self.servers.wait_for(
            SERVER, lambda server: bool(server["status"]["observedGeneration"] == generation), "the policy"
        )

    def policy(self) -> Json:
        return {
            "namespaces": {"matchNames": [self.a, self.b, OWN_NAMESPACE]},
            "roleNames": ["{namespace}_*", "shared_*"],
            "attributes": [],
            "memberOf": ["readers", "{namespace}_*"],
            "parameters": [],
            "reassignTo": [],
            "adopt": True,
            "drop": True,
        }

    async def snapshot(self) -> tuple[Any, ...]:
        """Returns everything that an attack might change: roles, claims, and the Secrets of all three namespaces."""
        found = [await self.database.fetchval(ROLES)]
        for kube in (*self.teams, self.own):
            items = (await kube.server.request("GET", kube.secret_path()))["items"]
            found += [(kube.namespace, one["metadata"]["name"], one.get("data")) for one in items]
        return tuple(found)

    async def refused(self, kube: Kube, name: str, reason: str, *words: str) -> Json:
        """Returns the object once it is refused with this reason, in a condition and an Event."""
        obj = await kube.wait_for(name, lambda obj: says(obj, reason, *map(self.fill, words)), f"{reason} {words}")
        await kube.wait_event(reason, about=name)
        return obj

    async def tidy(self) -> None:
        """Restores the usual policy, and deletes all objects except the first ones."""
        await self.allow()
        for kube in (*self.teams, self.own):
            for obj in await kube.objects():
                name = obj["metadata"]["name"]
                if name not in FIRST:
                    await kube.patch(name, {"spec": {"deletionPolicy": "Retain"}})
                    await kube.delete(name)
                    await kube.wait_gone(name)
        # Wait until their roles are claimed by no object, so that the next snapshot is stable.
        names = ", ".join(f"'{name}'" for name in FIRST)
        held = f"SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL AND object NOT IN ({names})"
        await self.database.wait_value(held, 0)

    async def declare(self, name: str, role_name: str, **spec: Any) -> Json:
        """Applies an object of team a, and waits until it is Ready."""
        team = self.teams[0]
        await team.apply(name, name=self.fill(role_name), serverRef={"name": SERVER}, **self.fill(spec))
        return await team.wait_ready(name)


@asynccontextmanager
async def open_two_teams(api_server: ApiServer, servers: Servers, folder: Path) -> AsyncIterator[TwoTeams]:
    """Creates both teams and their server, and runs a controller for them."""
    token = secrets.token_hex(3)
    teams = Kube(api_server, f"a{token}"), Kube(api_server, f"b{token}")
    for team in teams:
        await create_namespace(api_server, team.namespace)
    controller = Controller(api_server, "", folder)
    async with servers.run() as server, pgservers(api_server) as declared, open_database(server.dsn()) as database:
        made = TwoTeams(server, database, declared, teams, Kube(api_server, OWN_NAMESPACE), controller)
        await _furnish(made)
        async with running(controller, connected=False):
            await made.servers.wait_ready(SERVER)
            await teams[1].apply("app", name=f"{made.b}_app", login=True, serverRef={"name": SERVER})
            await teams[1].apply("shared", name="shared_theirs", login=True, serverRef={"name": SERVER})
            await teams[0].apply("mate", name=f"{made.a}_mate", serverRef={"name": SERVER})
            for kube, name in ((teams[1], "app"), (teams[1], "shared"), (teams[0], "mate")):
                await kube.wait_ready(name)
            yield made
        for kube in (*teams, made.own):
            await remove(kube)


async def _furnish(two_teams: TwoTeams) -> None:
    a = two_teams.a
    await two_teams.database.execute(
        f"CREATE ROLE {CONTROLLER_ROLE} SUPERUSER LOGIN PASSWORD '{CONTROLLER_PASSWORD.replace(chr(39), chr(39) * 2)}';"
        "CREATE ROLE readers; CREATE ROLE finance; CREATE ROLE rds_superuser;"
        f"CREATE ROLE {a}_way; GRANT postgres TO {a}_way; CREATE ROLE {a}_far; GRANT {a}_way TO {a}_far;"
        f"CREATE ROLE {a}_near; GRANT {CONTROLLER_ROLE} TO {a}_near;"
        f"CREATE ROLE {a}_program; GRANT pg_execute_server_program TO {a}_program;"
        f"CREATE ROLE {a}_maker CREATEROLE; CREATE ROLE {a}_clone REPLICATION; CREATE ROLE {a}_seer BYPASSRLS;"
        f"CREATE ROLE {a}_guard; GRANT rds_superuser TO {a}_guard;"
        f"CREATE ROLE {a}_legacy; GRANT finance TO {a}_legacy"
    )
    await two_teams.servers.apply_credentials(SERVER, CONTROLLER_ROLE, CONTROLLER_PASSWORD)
    connection = {
        "hosts": [two_teams.postgres.host],
        "port": two_teams.postgres.port,
        "sslMode": "disable",
        "credentialsSecretRef": {"name": SERVER},
    }
    spec = {"connection": connection, "allow": two_teams.policy(), "protectedRoles": ["rds*", "@a_holy*"]}
    await two_teams.servers.apply_spec(SERVER, two_teams.fill(spec))


def joining(*groups: str, **options: bool) -> Json:
    return {"memberOf": [{"role": group, **options} for group in groups]}


def setting(name: str, value: str = "x") -> Json:
    return {"parameters": {name: value}}


def role() -> str:
    """Returns a new role name of team a."""
    return f"@a_{secrets.token_hex(4)}"
