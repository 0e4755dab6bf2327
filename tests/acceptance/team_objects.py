"""A team's objects on one server, for tests of other releases, restores and removals.

They cover everything that a release could lose or repeat: a membership, parameters, a password from a Secret, a
generated one, a role to be dropped with its object, a retained one, and a canary whose repaired drift shows that a
controller has reconciled everything.
"""

import atexit
import compileall
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pgrole_controller.core.desired import ROTATE
from pgrole_controller.core.scram import verifies
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.world import Controller, Database, Json, Kube, make_kube, open_database, remove
from tests.releases import ReleasedVersion
from tests.servers import Servers

SERVER = "team"
CHOSEN = "of their own choice"

ROLES: dict[str, Json] = {
    "readers": {"comment": "may read, cannot log in"},
    "app": {
        "login": True,
        "connectionLimit": 20,
        "comment": "a service",
        "memberOf": [{"role": "readers"}],
        "parameters": {"work_mem": "8MB", "search_path": "app, public"},
        "databaseParameters": [{"database": "template1", "parameters": {"work_mem": "4MB"}}],
        "password": {"generate": {"length": 40}},
        "connectionSecret": {"name": "app-connection"},
    },
    "chosen": {
        "login": True,
        "password": {"secretRef": {"name": "chosen"}},
        "connectionSecret": {"name": "chosen-connection"},
    },
    "passing": {"login": True, "deletionPolicy": "Drop", "drift": {"ignore": ["connectionLimit"]}},
    "watchful": {"drift": {"policy": "Report"}},
    "retained": {"comment": "of an object that goes"},
    "canary": {},
}

#: A change in any of these shows that someone has written. The canary is excluded.
_SNAPSHOT = {
    "roles": "SELECT a.rolname, to_jsonb(a)::text, a.xmin::text FROM pg_authid AS a"
    " WHERE a.oid >= 16384 AND a.rolname <> 'canary'",
    "members": "SELECT m.roleid::regrole::text || m.member::regrole, to_jsonb(m)::text, m.xmin::text"
    " FROM pg_auth_members AS m",
    "settings": "SELECT s.setrole::text || s.setdatabase, s.setconfig::text, s.xmin::text FROM pg_db_role_setting AS s"
    " WHERE s.setrole <> 0",
    "comments": "SELECT d.objoid::text, d.description, d.xmin::text FROM pg_shdescription AS d",
    # the generations last acted on are recorded by any release that knows them
    "claims": "SELECT c.role_name,"
    " (to_jsonb(c) - ARRAY['object_generation', 'server_uid', 'server_generation', 'privileges',"
    " 'approve_handled']"
    ")::text FROM pgrole.claim AS c"
    " WHERE c.role_name <> 'canary'",
}

#: A drift for each role.
DRIFTS = {
    "readers": "ALTER ROLE readers LOGIN",
    "app": "ALTER ROLE app CREATEDB; REVOKE readers FROM app; ALTER ROLE app PASSWORD 'guessed'",
    "chosen": "ALTER ROLE chosen RESET ALL; ALTER ROLE chosen PASSWORD NULL",
    "passing": "ALTER ROLE passing CREATEROLE",
}


@dataclass(frozen=True, slots=True)
class TeamObjects:
    kube: Kube
    servers: PgServers
    postgres: PostgresServer
    database: Database
    folder: Path

    def controller(self, release: ReleasedVersion | None = None, *arguments: str) -> Controller:
        """Returns a release's controller (default: this one), not started, for all namespaces."""
        environment = {} if release is None else _unpack(release)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return Controller(self.kube.server, "", folder, *arguments, **environment)

    async def make_objects(self) -> None:
        await self.kube.apply_secret("chosen", password=CHOSEN)
        await self.kube.apply_all({name: self._spec(name) for name in ROLES})

    async def make(self) -> None:
        """Creates everything and waits until it is Ready and at rest; one object is deleted and its role retained."""
        await self.make_objects()
        await self.kube.wait_all_ready()
        await self.servers.wait_for(SERVER, lambda obj: "finalizers" in obj["metadata"], "a finalizer for its PgRoles")
        await self.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE password_digest <> ''", 2)
        await self.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE connection_secret <> ''", 2)
        await self.kube.delete("retained")
        await self.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NOT NULL", 1)

    async def snapshot(self) -> dict[str, Any]:
        """Returns by topic: roles with everything they have, claims, each with the transaction that wrote it;
        Secrets.
        """
        found: dict[str, Any] = {}
        for what, question in _SNAPSHOT.items():
            found |= {
                f"{what} {row[0]}": tuple(row[1:])
                for row in await self.database.connection.fetch(f"{question} ORDER BY 1, 2")
            }
        for secret in (await self.kube.server.request("GET", self.kube.secret_path()))["items"]:
            metadata = secret["metadata"]
            found[f"secret {metadata['name']}"] = (metadata["uid"], metadata["resourceVersion"], secret["data"])
        for obj in await self.kube.objects():
            metadata = obj["metadata"]
            found[f"object {metadata['name']}"] = (metadata["uid"], metadata["generation"])
        return found

    async def drift_canary(self) -> int:
        """Makes a drift while no controller runs: once it is repaired, everything has been reconciled. Returns the
        expected drift count.
        """
        count = drifts(await self._object("canary"))
        await self.database.execute("ALTER ROLE canary CONNECTION LIMIT 3")
        return count + 1

    async def wait_canary(self, count: int) -> None:
        """Waits until a controller has reconciled everything, and everything is Ready."""
        await self.kube.wait_for("canary", lambda obj: drifts(obj) >= count, f"{count} drifts")
        await self.kube.wait_all_ready()

    async def prove(self, token: str, *, alone: bool = True) -> None:
        """Exercises a controller: drift is repaired, a password rotated on demand, a role created and dropped.

        `token` must differ each time. Unless the controller is `alone`, another one may recreate the role before it
        learns that the object is deleted. Then no claim on the role may remain.
        """
        before = {name: drifts(await self._object(name)) for name in DRIFTS}
        for statements in DRIFTS.values():
            await self.database.execute(statements)
        for name, count in before.items():
            await self.kube.wait_for(name, lambda obj, count=count: drifts(obj) > count, "drift")  # type: ignore[misc]
        await self.kube.wait_all_ready()
        await self.check()
        await self.rotate(token)
        await self.kube.apply(f"new-{token}", **self._spec("passing") | {"name": f"new_{token}"})
        await self.kube.wait_ready(f"new-{token}")
        await self.kube.delete(f"new-{token}")
        await self.kube.wait_gone(f"new-{token}")
        if await self.database.role(f"new_{token}") is not None:
            assert not alone
            managed = f"SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL AND role_name = 'new_{token}'"
            await self.database.wait_value(managed, 0)

    async def rotate(self, token: str) -> None:
        held = await self.kube.wait_secret("app-connection")
        await self.kube.patch("app", {"metadata": {"annotations": {ROTATE: token}}})
        await self.kube.wait_secret(
            "app-connection", lambda now: bool(now["text"]["password"] != held["text"]["password"]), "a new password"
        )
        await self.database.wait_value("SELECT rotate_handled FROM pgrole.claim WHERE role_name = 'app'", token)
        await self.kube.wait_all_ready()
        await self.check()

    async def check(self) -> None:
        """Checks that roles are as declared, and log in with the content of the Secrets."""
        rows = {name: await self.database.role(name) or {} for name in ROLES}
        assert [name for name, row in rows.items() if row["rolcreaterole"] or row["rolcreatedb"]] == []
        assert [name for name, row in rows.items() if row["rolcanlogin"]] == ["app", "chosen", "passing"]
        assert rows["app"]["rolconfig"] == ["search_path=app, public", "work_mem=8MB"]
        member = "SELECT pg_has_role('app', 'readers', 'MEMBER')"
        assert await self.database.fetchval(member)
        for role in ("app", "chosen"):
            secret = await self.kube.wait_secret(f"{role}-connection")
            await self.database.wait_password(role, secret["text"]["password"])
        chosen = await self.database.verifier("chosen")
        assert chosen is not None
        assert verifies(CHOSEN, chosen)

    async def take_back(self) -> None:
        """Creates the retained role's object again."""
        oid = await self.database.fetchval("SELECT oid FROM pg_roles WHERE rolname = 'retained'")
        await self.kube.apply("retained", **self._spec("retained"))
        obj = await self.kube.wait_ready("retained")
        assert obj["status"]["role"]["oid"] == oid

    async def _object(self, name: str) -> Json:
        obj = await self.kube.get(name)
        assert obj is not None
        return obj

    def _spec(self, name: str) -> Json:
        return {"serverRef": {"name": SERVER}, **ROLES[name]}


@cache
def _unpack(release: ReleasedVersion) -> dict[str, str]:
    """Unpacks a release once for all tests, and compiles it, since otherwise every start compiles all its imports."""
    folder = Path(tempfile.mkdtemp(prefix="pgrole-release-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment = release.unpack(folder / release.version)
    compileall.compile_dir(folder, quiet=1)
    return environment


def drifts(obj: Json) -> int:
    """Returns the object's drift count."""
    return int(obj.get("status", {}).get("driftCount", 0))


@asynccontextmanager
async def open_team_objects(
    server: ApiServer, servers: Servers, folder: Path, **spec: Any
) -> AsyncIterator[TeamObjects]:
    """Yields a namespace, and a PgServer (with these fields) with its PostgreSQL, without PgRoles or a controller."""
    kube = await make_kube(server)
    async with servers.run() as postgres, pgservers(server) as declared, open_database(postgres.dsn()) as database:
        await declared.apply(SERVER, postgres, **spec)
        yield TeamObjects(kube, declared, postgres, database, folder)
        await remove(kube)
