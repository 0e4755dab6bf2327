"""Random changes of PgRoles, of policies, of roles, of objects in databases and of whole databases, with faults."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import anyio

from pgrole_controller.local.apiserver import LocalApiError
from tests.acceptance.history_verdict import HistoryVerdict
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, role_sql
from tests.acceptance.random_changes import DELEGATE, RandomChanges
from tests.acceptance.random_controllers import Circumstances, RandomControllers, faulty_relay
from tests.acceptance.random_faults import FaultyPostgres
from tests.acceptance.random_specs import (
    DATABASES,
    GROUPS,
    OPEN_POLICY,
    OWNERS,
    ROLES,
    SECRETS,
    TWIN,
    RandomSpecs,
    declares,
    is_suspended,
    role_of,
)
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.waiting import Attempts
from tests.acceptance.world import Json, Stage

#: Steps are chosen in these proportions; the rest are changes by others.
_CHANCES: Final = {
    "declare": 12,
    "delete": 4,
    "replace": 2,
    "annotate": 2,
    "fault": 5,
    "kill": 2,
    "freeze": 2,
    "secret": 3,
    "tamper": 3,
    "server": 4,
    "cut": 2,
}


@dataclass(slots=True)
class RandomHistory:
    """`specs`: those of the PgRoles of ROLES and of TWIN, by object. `dropped`: the oids of roles whose deletion must
    drop them, by name. `policy`: in effect.
    """

    stage: Stage
    dice: random.Random
    circumstances: Circumstances
    postgres: FaultyPostgres
    controllers: RandomControllers
    servers: PgServers | None = None
    policy: Json = field(default_factory=lambda: OPEN_POLICY)
    specs: dict[str, Json] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    @property
    def log(self) -> list[str]:
        return self.postgres.log

    def tell(self, problems: Sequence[str]) -> str:
        """Returns the message of a failure."""
        logs = [str(one.process.log) for one in self.controllers.running]
        return "\n".join([*problems, *logs, "history:", *self.log])

    async def begin(self, version: int) -> None:
        start = [f"CREATE ROLE {name}" for name in (DELEGATE, *OWNERS)]
        if self.circumstances.restricted:
            await self._create_controller_role(version)
            start.insert(0, f"SET ROLE {CONTROLLER_ROLE}")
            granted = f"GRANT {', '.join((DELEGATE, *OWNERS))} TO {CONTROLLER_ROLE} WITH INHERIT TRUE, SET TRUE"
            start += ["RESET ROLE", granted]
        if self.dice.random() < 0.2:
            await self.postgres.run("postgres", "ALTER SYSTEM SET max_prepared_transactions = 5")
            await self.stage.postgres.restart()
        await self.postgres.run("postgres", *start)
        for database in DATABASES:
            await self.postgres.create_database(database)
        for name in SECRETS:
            await self.stage.kube.apply_secret(name, password=f"first of {name}")
        await self._declare_server()
        for name in (*OWNERS, *GROUPS):
            await self._apply_object(name, {"name": name, "adopt": True})
        for role in ROLES:
            await self.declare(role)
        await self.controllers.start()

    async def _create_controller_role(self, version: int) -> None:
        some = [one for one in role_sql(version).split(";") if one.strip()]
        if not self.circumstances.installs:
            some = [one for one in some if "ON DATABASE" not in one]
        some.append(f"ALTER ROLE {CONTROLLER_ROLE} SET createrole_self_grant = 'set, inherit'")
        await self.postgres.run("postgres", *some)

    async def step(self) -> None:
        """One change or fault."""
        steps: dict[str, Callable[[], Awaitable[None]]] = {
            "declare": lambda: self.declare(self.dice.choice([*ROLES, TWIN])),
            "delete": lambda: self.delete(self.dice.choice([*ROLES, TWIN])),
            "replace": lambda: self._replace(self.dice.choice([*ROLES, TWIN])),
            "annotate": lambda: self._annotate(self.dice.choice([*ROLES, TWIN])),
            "fault": self.postgres.fail,
            "kill": self._kill,
            "freeze": self._freeze,
            "secret": self._change_secret,
            "tamper": lambda: self._tamper(self.dice.choice([*ROLES, TWIN])),
            "server": self._change_server,
            "cut": self._cut,
        }
        chances = [*_CHANCES.values(), 100 - sum(_CHANCES.values())]
        (chosen,) = self.dice.choices([*_CHANCES, ""], chances)
        await steps.get(chosen, self.change)()
        await anyio.sleep(self.dice.choice([0.0, 0.0, 0.01, 0.05]))

    async def change(self) -> None:
        database, statements = RandomChanges(self.dice, self._administrator).choose()
        chance = self.dice.random()
        if chance < 0.1 and len(self.postgres.transactions) < 2:
            await self.postgres.leave_open(database, *statements)
        else:
            await self.postgres.run(database, *statements)
        if chance > 0.8:
            await self.postgres.end_open()

    @property
    def _administrator(self) -> str:
        return CONTROLLER_ROLE if self.circumstances.restricted else "postgres"

    async def settle(self) -> None:
        """Ends faults, and lets deletions go on. Has drift of most roles corrected again. Tampers with some objects."""
        self.controllers.resume()
        self.controllers.fail_api_server(fails=False)
        await self.postgres.heal()
        self.policy = OPEN_POLICY
        if self.servers is not None and self.dice.random() < 0.5:
            self.policy = RandomSpecs(self.dice).make_policy()
            self.policy |= {"allow": self.policy["allow"] | {"drop": True}, "protectedRoles": [], "install": True}
            self.policy["databases"]["matchNames"] = ["*"]
        await self._declare_server()
        for role, spec in list(self.specs.items()):
            lenient = is_suspended(spec) or "drift" in spec
            if lenient and self.dice.random() < 0.5:
                await self._apply(role, {key: value for key, value in spec.items() if key not in ("drift", "suspend")})
        for name in self.dice.sample([*ROLES, TWIN], 2):
            await self._tamper(name)

    # -- PgRoles, Secrets and the PgServer

    async def declare(self, name: str) -> None:
        obj = await self.stage.kube.get(name)
        if obj is not None and "deletionTimestamp" in obj["metadata"]:
            if self.dice.random() < 0.3:
                await self._retain(name)
            return
        if obj is None:  # nothing here collects garbage
            await self._delete_secret(f"{name}-connection")
        secrets = name != TWIN and self.circumstances.installs and not self.circumstances.restricted
        await self._apply(name, RandomSpecs(self.dice, has_secrets=secrets).make(role_of(name)))

    async def delete(self, name: str) -> None:
        spec = self.specs.pop(name, None)
        if spec is None:
            return
        if is_suspended(spec):  # the role would not be dropped
            await self.stage.kube.patch(name, {"spec": {"suspend": False}})
        obj = await self.stage.kube.get(name) or {}
        await self.stage.kube.delete(name)
        # The controller has seen an object with a finalizer, and one with a role has a claim.
        is_held = "finalizers" in obj.get("metadata", {}) and "role" in obj.get("status", {})
        if is_held and spec["deletionPolicy"] == "Drop" and not declares(self.specs, spec["name"]):
            self.dropped[spec["name"]] = obj["status"]["role"]["oid"]
        self.log.append(f"delete {name}")

    async def _replace(self, name: str) -> None:
        """Deletes an object, and creates it again as soon as it is gone, or at once without its finalizer."""
        await self.delete(name)
        if self.dice.random() < 0.3:
            with suppress(LocalApiError):  # it is gone
                await self.stage.kube.patch(name, {"metadata": {"finalizers": None}})
                self.dropped.pop(role_of(name), None)
                self.log.append(f"the finalizer of {name} is removed")
        with anyio.move_on_after(1):
            async for _ in Attempts():
                if await self.stage.kube.get(name) is None:
                    break
        await self.declare(name)

    async def _annotate(self, name: str) -> None:
        """Requests another password, or approves the drift that is reported."""
        obj = await self.stage.kube.get(name) or {}
        digest, text = obj.get("status", {}).get("approval", {}).get("digest", ""), str(self.dice.random())
        key, value = self.dice.choice([("rotate", text), ("approve", f"{digest}/{text}")])
        with suppress(LocalApiError):  # it does not exist
            await self.stage.kube.patch(name, {"metadata": {"annotations": {f"pgrole.dev/{key}": value}}})
            self.log.append(f"annotate {name}: {key}={value}")

    async def _tamper(self, name: str) -> None:
        """Removes an object's finalizer or status, or reports that it is ready."""
        kube, merge = self.stage.kube, "application/merge-patch+json"
        ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": ""}
        status: Json | None = {"conditions": [ready | {"lastTransitionTime": "2026-11-22T12:00:00Z"}]}
        with suppress(LocalApiError):  # it does not exist
            if self.dice.random() < 0.5:
                await kube.patch(name, {"metadata": {"finalizers": None}})
                self.dropped.pop(role_of(name), None)
                self.log.append(f"the finalizer of {name} is removed")
            else:
                body = {"status": self.dice.choice([None, status])}
                await kube.server.request("PATCH", f"{kube.path(name)}/status", body, content_type=merge)
                self.log.append(f"the status of {name} becomes {body['status']}")

    async def _retain(self, name: str) -> None:
        """The way out for an object that is being deleted. It may be gone by now."""
        try:
            await self.stage.kube.patch(name, {"spec": {"deletionPolicy": "Retain"}})
        except LocalApiError as error:
            if error.status != 404:
                raise
            return
        self.dropped.pop(role_of(name), None)
        self.log.append(f"retain {name}")

    async def _apply(self, name: str, spec: Json) -> None:
        await self._apply_object(name, spec)
        self.dropped.pop(spec["name"], None)
        self.specs[name] = spec
        self.log.append(f"apply {name}: {spec}")

    async def _apply_object(self, name: str, spec: Json) -> None:
        server: Json = {} if self.servers is None else {"serverRef": {"name": self.stage.kube.namespace}}
        await self.stage.kube.apply(name, **spec, **server)

    async def _change_secret(self) -> None:
        dice, kube = self.dice, self.stage.kube
        name = dice.choice([*SECRETS, *(f"{role}-connection" for role in ROLES)])
        self.log.append(f"Secret {name} is changed")
        if await kube.secret(name) is not None and dice.random() < 0.4:
            await kube.delete_secret(name)
        elif name in SECRETS:
            await kube.apply_secret(name, password=f"{dice.random()}")
        elif await kube.secret(name) is not None:
            await kube.patch_secret(name, {"data": {"password": "Z3Vlc3NlZA=="}})

    async def _delete_secret(self, name: str) -> None:
        if await self.stage.kube.secret(name) is not None:
            await self.stage.kube.delete_secret(name)

    async def _declare_server(self) -> None:
        if self.servers is None:
            return
        password = PASSWORD if self.circumstances.restricted else self.stage.postgres.password
        name, connection = self.stage.kube.namespace, {"hosts": ["127.0.0.1"], "port": self.stage.postgres.port}
        await self.servers.apply_credentials(name, self._administrator, password)
        connection |= {"sslMode": "disable", "credentialsSecretRef": {"name": name}}
        self.log.append(f"policy {self.policy}")
        await self.servers.apply_spec(name, {"connection": connection, **self.policy})

    async def _change_server(self) -> None:
        """Changes the policy, or what the controller needs for its connection."""
        dice, name = self.dice, self.stage.kube.namespace
        if self.servers is None:
            return
        chance = dice.random()
        if chance < 0.2:
            self.log.append("credentials are wrong")
            await self.servers.apply_credentials(name, self._administrator, "wrong")
            await anyio.sleep(dice.random())
        elif chance < 0.4:
            self.log.append("the PgServer is deleted")
            await self.servers.delete(name)
            with suppress(LocalApiError):  # without a finalizer it is gone
                await self.servers.patch(name, {"metadata": {"finalizers": None}})
            await self.servers.wait_gone(name)
            await anyio.sleep(dice.random())
        else:
            self.policy = RandomSpecs(dice).make_policy()
        await self._declare_server()

    # -- faults of the controller and of its API server

    async def _kill(self) -> None:
        await self.controllers.kill()
        for _ in range(self.dice.randint(0, 3)):
            await self.change()
        await self.controllers.start()

    async def _freeze(self) -> None:
        if self.controllers.frozen is not None:
            self.controllers.resume()
            return
        await self.controllers.freeze()
        for _ in range(self.dice.randint(0, 3)):
            await self.change()
        if self.dice.random() < 0.5:  # else it goes on later
            await anyio.sleep(self.dice.random())
            self.controllers.resume()

    async def _cut(self) -> None:
        self.controllers.fail_api_server(fails=self.dice.random() < 0.7)
        if self.controllers.relay is not None:
            self.log.append("watches are cut")
            self.controllers.relay.cut_watches()

    # -- what must be true

    async def find_problems(self) -> list[str]:
        """Returns the differences between what is declared and what is there."""
        verdict = HistoryVerdict(self.stage.kube, self.postgres, self.specs, self.policy, self.dropped)
        for role in await verdict.find_kept_back():
            await self._revoke(role)
        for role in await verdict.find_taken():
            await self.postgres.run("postgres", f"ALTER ROLE {role} RENAME TO {role}_{len(self.log)}")
        return await verdict.find_problems()

    async def _revoke(self, role: str) -> None:
        """Revokes what keeps an object from taking its role over."""
        groups = [
            f"REVOKE {one} FROM {who} CASCADE" for one in (*GROUPS, *ROLES) for who in (DELEGATE, role) if one != who
        ]
        attributes = f"ALTER ROLE {role} NOCREATEROLE NOCREATEDB"
        await self.postgres.run("postgres", f"SET ROLE {self._administrator}", attributes, *groups)
        for database in DATABASES:
            await self.postgres.run(database, f"REASSIGN OWNED BY {role} TO {OWNERS[0]}", f"DROP OWNED BY {role}")

    async def restart(self) -> list[str]:
        """Restarts the controllers while nothing is left to do; returns the drifts that they counted meanwhile.

        The verdict does not wait until privileges of a refused object's role are repaired.
        """
        for one in self.controllers.running:
            await one.rest()
        before = await self._count_drifts()
        await self.controllers.stop()
        self.controllers.ended += self.controllers.running
        self.controllers.running.clear()
        await self.controllers.start()
        leader = await self.controllers.find_leader()
        await leader.rest()
        after = await self._count_drifts()
        return [f"{name}: {before[name]} and now {after[name]}" for name in before if before[name] != after[name]]

    async def _count_drifts(self) -> dict[str, int]:
        return {obj["metadata"]["name"]: obj["status"].get("driftCount", 0) for obj in await self.stage.kube.objects()}


@asynccontextmanager
async def random_history(stage: Stage, seed: int, version: int) -> AsyncIterator[RandomHistory]:
    """Begins a history, and stops its controllers at the end."""
    dice = random.Random(seed)
    circumstances = Circumstances.choose(dice, version)
    restricted = circumstances.restricted
    postgres = FaultyPostgres(stage.postgres, dice, CONTROLLER_ROLE if restricted else None)
    postgres.log.append(f"seed {seed}: {circumstances}")
    dsn = stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD) if restricted else stage.postgres.dsn()
    async with (
        faulty_relay(stage.kube.server, used=circumstances.relayed) as relay,
        pgservers(stage.kube.server) as servers,
    ):
        controllers = RandomControllers(stage, dice, circumstances, dsn, relay, postgres.log)
        history = RandomHistory(
            stage, dice, circumstances, postgres, controllers, servers if circumstances.declared else None
        )
        try:
            await history.begin(version)
            yield history
        finally:
            await controllers.stop()
