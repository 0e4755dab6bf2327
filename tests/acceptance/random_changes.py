"""Random changes of roles, privileges and objects by others, in the forms in which events and catalogs show them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.acceptance.random_specs import (
    COLUMN_PRIVILEGES,
    DATABASES,
    GROUPS,
    OWNERS,
    ROLES,
    SCHEMAS,
    TABLE_PRIVILEGES,
    TABLES,
)

DELEGATE: Final = "delegate"
#: Catalogs whose rows are rewritten, without a change.
_CATALOGS: Final = ("pg_authid", "pg_auth_members", "pg_shdepend", "pg_class", "pg_attribute", "pg_namespace")


@dataclass(frozen=True, slots=True)
class RandomChanges:
    """`administrator`: the role in whose name roles are changed; since PostgreSQL 16 only it can undo its grants."""

    dice: random.Random
    administrator: str

    def choose(self) -> tuple[str, list[str]]:
        """Returns a database, and statements for one session there. Some may fail."""
        dice, database, role = self.dice, self.dice.choice(DATABASES), self.dice.choice(ROLES)
        forms: list[Callable[[], list[str]]] = [
            lambda: [self._grant()],
            lambda: [self._revoke()],
            lambda: [self._grant(), self._revoke()],
            self._ddl,
            self._delegated_grant,
            self._delegated_membership,
            lambda: [self._default_privilege()],
            lambda: [f"SET ROLE {self.administrator}", self._role_change(role)],
            self._rename_role,
            lambda: [f"ALTER DATABASE {database} OWNER TO {dice.choice([*OWNERS, role])}"],
            lambda: [f"VACUUM ({dice.choice(['FULL', 'FREEZE'])}) pg_catalog.{dice.choice(_CATALOGS)}"],
            lambda: [f"GRANT CREATE, CONNECT ON DATABASE {database} TO {role}"],
            lambda: [f"REVOKE ALL ON DATABASE {database} FROM {role}"],
            lambda: ["SET session_replication_role = replica", self._grant()],
            lambda: [f"DO $x$BEGIN {self._grant()}; {self._grant()}; EXCEPTION WHEN OTHERS THEN NULL; END$x$"],
            lambda: [f"DO $x$BEGIN EXECUTE $y${self._grant()}$y$; END$x$"],
            lambda: ["BEGIN", self._grant(), self._revoke(), self._grant(), dice.choice(["COMMIT", "ROLLBACK"])],
            lambda: ["BEGIN", "SAVEPOINT s", self._grant(), "ROLLBACK TO s", self._grant(), "COMMIT"],
        ]
        return database, dice.choice(forms)()

    def _grant(self) -> str:
        dice = self.dice
        role = dice.choice([*ROLES, *ROLES, DELEGATE, "PUBLIC"])
        option = " WITH GRANT OPTION" if role != "PUBLIC" and dice.random() < 0.2 else ""
        schema, chance = dice.choice(SCHEMAS), dice.random()
        if chance < 0.1:
            return f"GRANT {dice.choice(['USAGE', 'CREATE', 'ALL'])} ON SCHEMA {schema} TO {role}{option}"
        if chance < 0.2:
            return f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA {schema} TO {role}{option}"
        if chance < 0.3:
            column, privilege = dice.choice(["id", "name", "ctid"]), dice.choice(COLUMN_PRIVILEGES)
            return f"GRANT {privilege} ({column}) ON {schema}.people TO {role}{option}"
        kind, name, privileges = self._object(schema)
        return f"GRANT {dice.choice([*privileges, 'ALL'])} ON {kind} {name} TO {role}{option}"

    def _revoke(self) -> str:
        schema, role = self.dice.choice(SCHEMAS), self.dice.choice([*ROLES, "PUBLIC"])
        if self.dice.random() < 0.2:
            return f"REVOKE USAGE ON SCHEMA {schema} FROM {role} CASCADE"
        kind, name, _ = self._object(schema)
        return f"REVOKE ALL ON {kind} {name} FROM {role} CASCADE"

    def _object(self, schema: str) -> tuple[str, str, tuple[str, ...]]:
        """Returns an object's kind and name as GRANT spells them, and its privileges."""
        chance = self.dice.random()
        if chance < 0.15:
            return "SEQUENCE", f"{schema}.ids", ("USAGE",)
        if chance < 0.3:
            return "FUNCTION", f"{schema}.f_one(int)", ("EXECUTE",)
        return "TABLE", f"{schema}.{self.dice.choice([*TABLES, 'v_orders', 'order_sums'])}", TABLE_PRIVILEGES

    def _ddl(self) -> list[str]:
        dice = self.dice
        schema, table, owner = dice.choice(SCHEMAS), dice.choice(TABLES), dice.choice(OWNERS)
        role = dice.choice(ROLES)
        statements: list[list[str]] = [
            [f"DROP TABLE {schema}.{table} CASCADE"],
            [_create_table(schema, table, owner)],
            [f"SET ROLE {owner}", f"CREATE TABLE {schema}.{table} (id int, name text)"],
            [f"ALTER TABLE {schema}.{table} OWNER TO {dice.choice([owner, role])}"],
            [f"ALTER TABLE {schema}.{table} RENAME TO {dice.choice(TABLES)}"],
            [f"ALTER TABLE {schema}.{table} SET SCHEMA {dice.choice(SCHEMAS)}"],
            [f"ALTER TABLE {schema}.people RENAME name TO other", f"ALTER TABLE {schema}.people ADD name text"],
            [f"ALTER TABLE {schema}.people DROP COLUMN name", f"ALTER TABLE {schema}.people ADD name text"],
            [f"DROP SCHEMA {schema} CASCADE", *create_schema(schema, owner)],
            [f"ALTER SCHEMA {schema} RENAME TO moved", f"ALTER SCHEMA moved RENAME TO {schema}"],
            [f"ALTER SCHEMA {schema} OWNER TO {dice.choice([owner, role])}"],
            [f"ALTER SEQUENCE {schema}.ids OWNED BY {schema}.people.id"],
            _create_materialized_view(schema, owner),
            _create_partitions(schema, owner),
            [f"ALTER EXTENSION plpgsql {dice.choice(['ADD', 'DROP'])} TABLE {schema}.{table}"],
            [f"ALTER EXTENSION plpgsql {dice.choice(['ADD', 'DROP'])} FUNCTION {schema}.f_one(int)"],
            [f"ALTER FUNCTION {schema}.f_one(int) RENAME TO f_two"],
            [f"ALTER FUNCTION {schema}.f_one(int) OWNER TO {owner}"],
            [f"DROP FUNCTION {schema}.f_one(int)", _create_function(schema, owner)],
            [f"REASSIGN OWNED BY {role} TO {owner}"],
            [f"DROP OWNED BY {role}"],
        ]
        return dice.choice(statements)

    def _delegated_grant(self) -> list[str]:
        table = f"{self.dice.choice(SCHEMAS)}.{self.dice.choice(TABLES)}"
        return [
            f"GRANT USAGE ON SCHEMA {table.partition('.')[0]} TO {DELEGATE}",
            f"GRANT SELECT, UPDATE ON {table} TO {DELEGATE} WITH GRANT OPTION",
            f"SET ROLE {DELEGATE}",
            f"GRANT SELECT, UPDATE ON {table} TO {self.dice.choice(ROLES)}",
        ]

    def _delegated_membership(self) -> list[str]:
        dice, group = self.dice, self.dice.choice([*GROUPS, *ROLES])
        option = dice.choice(["", " WITH ADMIN OPTION"])
        return [
            *(f"SET ROLE {self.administrator}", f"GRANT {group} TO {DELEGATE} WITH ADMIN OPTION"),
            *(f"SET ROLE {DELEGATE}", f"GRANT {group} TO {dice.choice(ROLES)}{option}"),
        ]

    def _default_privilege(self) -> str:
        dice = self.dice
        schema = dice.choice(["", f"IN SCHEMA {dice.choice(SCHEMAS)} "])
        role, owner = dice.choice(ROLES), dice.choice(OWNERS)
        kind = dice.choice(["TABLES", "TABLES", "SEQUENCES", "FUNCTIONS"])
        what = dice.choice([f"GRANT ALL ON {kind} TO", "GRANT SELECT ON TABLES TO", f"REVOKE ALL ON {kind} FROM"])
        option = " WITH GRANT OPTION" if "GRANT" in what and dice.random() < 0.2 else ""
        return f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} {schema}{what} {role}{option}"

    def _role_change(self, role: str) -> str:
        dice = self.dice
        database = dice.choice(DATABASES)
        return dice.choice(
            [
                f"ALTER ROLE {role} CONNECTION LIMIT {dice.randint(0, 9)}",
                f"ALTER ROLE {role} {dice.choice(['CREATEDB', 'NOCREATEDB', 'CREATEROLE', 'LOGIN', 'NOLOGIN'])}",
                f"ALTER ROLE {role} PASSWORD {dice.choice(['NULL', chr(39) + 'guessed' + chr(39)])}",
                f"ALTER ROLE {role} {dice.choice(['SET work_mem = 99', 'RESET work_mem'])}",
                f"ALTER ROLE {role} IN DATABASE {database} {dice.choice(['SET work_mem = 99', 'RESET ALL'])}",
                f"GRANT {dice.choice([*GROUPS, *ROLES])} TO {role}{dice.choice(['', ' WITH ADMIN OPTION'])}",
                f"REVOKE {dice.choice([*GROUPS, *ROLES])} FROM {role} CASCADE",
                f"ALTER ROLE {role} RENAME TO elsewhere",
            ]
        )

    def _rename_role(self) -> list[str]:
        """Two swap their names, or one has another name for a moment."""
        one, other = self.dice.sample(ROLES, 2)
        name = self.dice.choice([*OWNERS, *GROUPS, DELEGATE])
        return self.dice.choice(
            [
                [f"ALTER ROLE {name} RENAME TO moved", f"ALTER ROLE moved RENAME TO {name}"],
                [
                    *("BEGIN", f"ALTER ROLE {one} RENAME TO swapped", f"ALTER ROLE {other} RENAME TO {one}"),
                    *(f"ALTER ROLE swapped RENAME TO {other}", "COMMIT"),
                ],
            ]
        )


def create_schema(schema: str, owner: str) -> list[str]:
    """The owners may create objects there, and may receive those of others."""
    view, sequence = f"{schema}.v_orders", f"{schema}.ids"
    return [
        f"CREATE SCHEMA {schema} AUTHORIZATION {owner}",
        f"GRANT ALL ON SCHEMA {schema} TO {', '.join(OWNERS)}",
        *(_create_table(schema, table, owner) for table in TABLES[:3]),
        f"CREATE VIEW {view} AS SELECT * FROM {schema}.orders; ALTER VIEW {view} OWNER TO {owner}",
        f"CREATE SEQUENCE {sequence}; ALTER SEQUENCE {sequence} OWNER TO {owner}",
        _create_function(schema, owner),
    ]


def _create_table(schema: str, table: str, owner: str) -> str:
    """In one transaction, so that it belongs to no one else."""
    return f"CREATE TABLE {schema}.{table} (id int, name text); ALTER TABLE {schema}.{table} OWNER TO {owner}"


def _create_function(schema: str, owner: str) -> str:
    name = f"{schema}.f_one(int)"
    return f"CREATE FUNCTION {name} RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION {name} OWNER TO {owner}"


def _create_materialized_view(schema: str, owner: str) -> list[str]:
    name = f"{schema}.order_sums"
    created = f"CREATE MATERIALIZED VIEW {name} AS SELECT 1 AS id; ALTER MATERIALIZED VIEW {name} OWNER TO {owner}"
    return [f"DROP MATERIALIZED VIEW IF EXISTS {name}", created]


def _create_partitions(schema: str, owner: str) -> list[str]:
    whole, part = f"{schema}.order_items", f"{schema}.tmp_a"
    return [
        f"DROP TABLE IF EXISTS {whole}, {part} CASCADE",
        f"CREATE TABLE {whole} (id int, name text) PARTITION BY LIST (id); ALTER TABLE {whole} OWNER TO {owner}",
        f"CREATE TABLE {part} PARTITION OF {whole} DEFAULT; ALTER TABLE {part} OWNER TO {owner}",
    ]
