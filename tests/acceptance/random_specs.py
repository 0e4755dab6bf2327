"""Random specs of PgRoles, and random policies for them."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.acceptance.world import Json

OWNERS: Final = ("o0", "o1")
GROUPS: Final = ("g0", "g1")
ROLES: Final = ("r0", "r1", "r2", "r3")
#: Another PgRole, for the first of ROLES.
TWIN: Final = "twin"
DATABASES: Final = ("d0", "d1", "d2")
SCHEMAS: Final = ("app", "app_old", "hr")
TABLES: Final = ("orders", "order_items", "people", "tmp_a")
#: Secrets with a password, which may be missing.
SECRETS: Final = ("s0", "s1")

TABLE_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
COLUMN_PRIVILEGES: Final = ("SELECT", "INSERT", "UPDATE", "REFERENCES")

#: What a PgServer declares besides its connection, with the policy of the server of PGROLE_DSN.
OPEN_POLICY: Final[Json] = {
    "allow": {
        "namespaces": {"matchNames": ["*"]},
        "roleNames": ["*"],
        "attributes": ["createdb"],
        "memberOf": ["*"],
        "privileges": [{"databases": ["*"]}],
        "adopt": True,
        "drop": True,
    },
    "protectedRoles": [],
    "databases": {"matchNames": ["*"], "except": ["template?"]},
    "drift": {"interval": "200ms"},
    "install": True,
}

_RULES: Final[tuple[list[Json] | None, ...]] = (
    None,
    [],
    [{"ownedBy": ["o0"]}],
    [{"schemas": ["app*"]}, {"kinds": ["Database"], "privileges": ["CONNECT"]}],
    [{"kinds": ["Schema", "Table"], "privileges": ["USAGE", "SELECT", "INSERT"]}],
    [{"databases": ["d0"]}, {"ownedBy": ["o?"], "privileges": ["SELECT", "USAGE", "EXECUTE"]}],
)
_LENIENT: Final[tuple[Json, ...]] = (
    {"drift": {"policy": "Report"}},
    {"drift": {"ignore": ["privileges"]}},
    {"drift": {"ignore": ["connectionLimit", "parameters"]}},
    {"drift": {"ignore": ["memberOf"], "policy": "Report"}},
    {"suspend": True},
)


@dataclass(frozen=True, slots=True)
class RandomSpecs:
    """`has_secrets`: the SECRETS exist, and passwords can be compared."""

    dice: random.Random
    has_secrets: bool = True

    def make(self, role: str) -> Json:
        dice = self.dice
        databases = dice.sample(DATABASES, dice.randint(0, 3))
        spec: Json = {
            "name": role,
            "deletionPolicy": dice.choice(["Drop", "Drop", "Drop", "Retain"]),
            "adopt": True,
            "login": dice.random() < 0.5,
            "connectionLimit": dice.choice([-1, 3, 7]),
            "createdb": dice.random() < 0.3,
            "memberOf": [{"role": name} for name in dice.sample(GROUPS, dice.randint(0, 2))],
            "privileges": [self._privileges(name) for name in databases],
        }
        if spec["deletionPolicy"] == "Drop":
            spec["reassignOwnedTo"] = OWNERS[0]
        if dice.random() < 0.3:
            spec["parameters"] = {"work_mem": dice.choice(["4MB", "8MB"])}
        if databases and dice.random() < 0.3:
            spec["databaseParameters"] = [{"database": databases[0], "parameters": {"temp_buffers": "1MB"}}]
        if self.has_secrets and dice.random() < 0.5:
            spec |= self._password(role)
        return spec | dice.choice(_LENIENT) if dice.random() < 0.25 else spec

    def make_policy(self) -> Json:
        """Returns everything that a PgServer declares besides its connection."""
        dice = self.dice
        allow: Json = {
            **OPEN_POLICY["allow"],
            "attributes": dice.choice([[], ["createdb"]]),
            "memberOf": dice.choice([["*"], ["g0"]]),
            "drop": dice.random() < 0.8,
        }
        rules = dice.choice([OPEN_POLICY["allow"]["privileges"], *_RULES])
        allow |= {"privileges": rules}
        if rules is None:
            del allow["privileges"]
        databases: Json = {
            "matchNames": dice.choice([["*"], ["d0", "d1"]]),
            "max": dice.choice([1, 50]),
            "detection": dice.choice(["Auto", "Auto", "Poll"]),
            "except": ["template?"],
        }
        return {
            **OPEN_POLICY,
            "allow": allow,
            "protectedRoles": dice.choice([[], [], ["r3"]]),
            "databases": databases,
            "drift": {"interval": "200ms", "mode": dice.choice(["Auto", "Auto", "Poll"])},
            "install": dice.random() < 0.8,
        }

    def _password(self, role: str) -> Json:
        """A password, with or without the connection Secret."""
        dice = self.dice
        connection: Json = {"connectionSecret": {"name": f"{role}-connection"}}
        chosen: Json = dice.choice(
            [
                {"password": {"disabled": True}},
                {"password": {"secretRef": {"name": dice.choice(SECRETS)}}},
                {"password": {"generate": {"length": dice.choice([20, 24])}}},
            ]
        )
        return chosen | connection if "generate" in chosen["password"] or dice.random() < 0.5 else chosen

    def _privileges(self, database: str) -> Json:
        dice = self.dice
        item: Json = {"database": database}
        if dice.random() < 0.5:
            item["onDatabase"] = dice.sample(["CONNECT", "TEMPORARY", "CREATE"], dice.randint(1, 2))
        if dice.random() < 0.2:
            item["unmanaged"] = [dice.choice([*SCHEMAS, "app*"])]
        if dice.random() < 0.3:
            item["createdBy"] = dice.sample([*OWNERS, *OWNERS, *ROLES[:1]], dice.randint(1, 2))
            item["createdBy"] = sorted(set(item["createdBy"]))
        item["schemas"] = [
            {"name": name, "access": dice.choice([["Read"], ["Write"], ["Read", "Execute"], ["Write", "Execute"]])}
            | ({"except": dice.sample(["tmp_*", "people", "order_items"], 1)} if dice.random() < 0.4 else {})
            for name in dice.sample([*SCHEMAS, "app*", "*"], dice.randint(0, 2))
        ]
        item["objects"] = [self._objects() for _ in range(dice.randint(0, 2))]
        return item

    def _objects(self) -> Json:
        dice = self.dice
        schema = dice.choice([*SCHEMAS, "app*"])
        if dice.random() < 0.3:
            return {
                "kind": "Table",
                "schema": dice.choice(SCHEMAS),
                "names": ["people"],
                "columns": dice.sample(["id", "name"], dice.randint(1, 2)),
                "privileges": dice.sample(COLUMN_PRIVILEGES, dice.randint(1, 2)),
            }
        if dice.random() < 0.3:
            names = dice.choice([["f_*"], ["f_one"], ["f_one(integer)"]])
            return {"kind": "Routine", "schema": schema, "names": names, "privileges": ["EXECUTE"]}
        if dice.random() < 0.2:
            names, privileges = dice.choice([["ids"], ["*"]]), dice.sample(["USAGE", "SELECT", "UPDATE"], 2)
            return {"kind": "Sequence", "schema": schema, "names": names, "privileges": privileges}
        kind = dice.choice(["Table", "Table", "Table", "View", "MaterializedView"])
        names = dice.choice([["order*"], ["*"], ["tmp_?"], ["people"]])
        privileges = dice.sample(TABLE_PRIVILEGES[:5], dice.randint(1, 3))
        return {"kind": kind, "schema": schema, "names": names, "privileges": privileges}


def role_of(name: str) -> str:
    """Returns the role of a PgRole."""
    return ROLES[0] if name == TWIN else name


def declares(specs: Mapping[str, Json], role: str) -> bool:
    return any(spec["name"] == role for spec in specs.values())


def is_suspended(spec: Json) -> bool:
    return bool(spec.get("suspend"))


def only_reports(spec: Json) -> bool:
    return bool(spec.get("drift", {}).get("policy") == "Report")


def ignores(spec: Json, field: str) -> bool:
    return field in spec.get("drift", {}).get("ignore", ())
