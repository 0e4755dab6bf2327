"""Whether everything is as declared in a random history: roles, privileges, and the conditions of their objects."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.acceptance.expected import PrivilegeRules, compare_privileges
from tests.acceptance.expected_roles import (
    Secrets,
    find_condition_problem,
    find_finalizer_problems,
    find_powers,
    find_role_differences,
    find_terminating,
    why_refused,
)
from tests.acceptance.random_faults import FaultyPostgres
from tests.acceptance.random_specs import GROUPS, OWNERS, ROLES, SECRETS, ignores, is_suspended, only_reports
from tests.acceptance.world import Json, Kube, condition

_LOST = ("Conflict", "RoleExists")
_NAME_TAKEN = ("rename or drop one of them", "waits until that role is renamed back")


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """`specs`: by object. `policy`: of the server. `dropped`: roles that must not exist, with their oids."""

    kube: Kube
    postgres: FaultyPostgres
    specs: Mapping[str, Json]
    policy: Json
    dropped: Mapping[str, int]

    async def find_kept_back(self) -> list[str]:
        """Returns the roles that hold more than their objects may take over, until an administrator revokes it."""
        refused = [obj for obj in await self.kube.objects() if "ask an administrator to revoke" in _message(obj)]
        return [obj["spec"]["name"] for obj in refused]

    async def find_taken(self) -> set[str]:
        """Returns the names of roles that block another role with this name, until an administrator renames them."""
        objects = await self.kube.objects()
        return {obj["spec"]["name"] for obj in objects if any(text in _message(obj) for text in _NAME_TAKEN)}

    async def find_problems(self) -> list[str]:
        """Returns the differences between what is declared and what is there."""
        objects = {obj["metadata"]["name"]: obj for obj in await self.kube.objects()}
        found = find_terminating(objects.values())
        secrets = await self._read_secrets()
        for name, spec in self.specs.items():
            rivals = [one for one in self.specs if self.specs[one]["name"] == spec["name"]]
            lost = [one for one in rivals if condition(objects[one], "Ready").get("reason") in _LOST]
            if name not in lost or len(lost) == len(rivals):
                found += find_finalizer_problems(objects[name], spec)
                found += await self._find_problems(spec["name"], spec, objects[name], secrets)
        async with self.postgres.session("postgres") as home:
            for role, oid in self.dropped.items():
                # Where claims are in status, a role is unknown under another name.
                if await home.fetchval(
                    "SELECT EXISTS (SELECT FROM pg_roles WHERE (rolname, oid) = ($1, $2))", role, oid
                ):
                    found.append(f"{role} was not dropped")
        return found

    async def _find_problems(self, role: str, spec: Json, obj: Json, secrets: Secrets) -> list[str]:
        differences, denied = list[str](), False
        if not (is_suspended(spec) or why_refused(spec, self.policy)):
            async with self.postgres.session("postgres") as home:
                differences = await find_role_differences(home, role, spec, secrets)
            rules = PrivilegeRules(
                self.policy, frozenset((*OWNERS, *GROUPS, *(one["name"] for one in self.specs.values())))
            )
            for item in () if ignores(spec, "privileges") else spec["privileges"]:
                database = item["database"]
                async with self.postgres.session(database) as there:
                    compared = await compare_privileges(there, database, role, item, rules)
                denied = denied or compared.denied
                if compared:
                    differences.append(f"{role} in {database}: {compared}")
            denied = denied or ignores(spec, "privileges")
        if "role" in obj.get("status", {}):  # else it does not own the role
            async with self.postgres.session("postgres") as home:
                differences += await find_powers(home, role, spec, self.policy)
        problem = find_condition_problem(obj, spec, self.policy, secrets, differs=bool(differences), denied=denied)
        if problem is None:
            return [] if is_suspended(spec) or only_reports(spec) else differences
        return [problem, *differences]

    async def _read_secrets(self) -> dict[str, dict[str, str]]:
        names = (*SECRETS, *(f"{role}-connection" for role in ROLES))
        found = {name: await self.kube.secret(name) for name in names}
        return {name: secret["text"] for name, secret in found.items() if secret is not None}


def _message(obj: Json) -> str:
    return str(condition(obj, "Ready").get("message", ""))
