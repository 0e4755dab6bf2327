"""What objects declare that their roles may do, by database, and the roles that the databases' workers keep so."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

from pgrole_controller.core.approval import Approval
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.request import Key


class Access(StrEnum):
    """A bundle of privileges on everything in a schema; core/privileges/object_patterns.py says which."""

    READ = "Read"
    WRITE = "Write"
    EXECUTE = "Execute"


@dataclass(frozen=True, slots=True)
class SchemaAccess:
    """`schema` is a name or a pattern with * and ?. `exceptions`: patterns of names of tables, sequences, routines."""

    schema: str
    access: frozenset[Access]
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ObjectPrivileges:
    """Privileges on objects of one kind, by name or pattern. `kind` TABLE includes views and foreign tables.

    Names of routines may have argument types: `close_order(bigint)`; without, every overload matches.
    """

    kind: ObjectKind
    schema: str
    names: tuple[str, ...]
    privileges: frozenset[str]
    columns: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[object, ...]:
        """Its place among others in a declaration."""
        return self.schema, self.kind, self.names, self.columns, sorted(self.privileges)


@dataclass(frozen=True, slots=True)
class DatabasePrivileges:
    """Everything that one object declares in one database. It is exact: what is not declared is revoked."""

    database: str
    on_database: frozenset[str] = frozenset()
    schemas: tuple[SchemaAccess, ...] = ()
    objects: tuple[ObjectPrivileges, ...] = ()
    created_by: tuple[str, ...] = ()
    unmanaged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PrivilegeRule:
    """Privileges that objects may declare. Patterns have * and ?; `{namespace}` is already replaced.

    `kinds`, `privileges` None: all. `owned_by` None: whoever owns the object; else patterns of the owner's name.
    `template`: the rule before `{namespace}` was replaced; None if that changed nothing.
    """

    databases: tuple[str, ...] = ("*",)
    schemas: tuple[str, ...] = ("*",)
    kinds: frozenset[ObjectKind] | None = None
    privileges: frozenset[str] | None = None
    owned_by: tuple[str, ...] | None = None
    template: "PrivilegeRule | None" = None

    @property
    def as_written(self) -> "PrivilegeRule":
        """The rule whose entries can be exact names: its author wrote them, and no namespace's name is part of them."""
        return self.template or self


@dataclass(frozen=True, slots=True)
class PrivilegePolicy:
    """What the server's owner allows the objects of one namespace. `rules` None: privileges on objects whose owner is
    a role that the namespace itself claims, whatever its name.

    `databases`: patterns of databases that the controller connects to; `but`: exceptions from them. None: to no
    database, since PgServer.spec.databases is absent. `templates`: databases that CREATE DATABASE may copy, which fails
    while the controller is connected to them; they need their exact names in `databases`. `protected`: as in Policy.
    """

    rules: tuple[PrivilegeRule, ...] | None = None
    databases: tuple[str, ...] | None = None
    but: tuple[str, ...] = ()
    templates: frozenset[str] = frozenset()
    protected: tuple[str, ...] = ()


class Takeover(StrEnum):
    """How an object may take over a role that it does not own."""

    NEW = "New"  # others made it
    RETAINED = "Retained"  # the object's own claim on it was released


class Refusal(StrEnum):
    """What is known of the declaration that is published for a refused object: the one before."""

    KNOWN = "Known"  # it was accepted
    UNKNOWN = "Unknown"  # it may have been: only a database knows whether it was ever applied


@dataclass(frozen=True, slots=True)
class Grantee:
    """A role that one object owns, as the home database's worker found it, for the workers of the databases.

    - `declared`: by database. A listed database is exact.
    - `former`: by database, earlier declarations that the claim still holds: what only they grant is revoked.
    - `oid`: of the role.
    - `owned`: oids of the roles that this object's namespace, with `namespace_uid`, claims on this server.
    - `report_only`, `ignored`, `suspended`: from the object's spec (`ignored`: drift.ignore lists privileges).
    - `refused`: the object is refused, so the role is granted nothing.
    - `approval`: of reported drift, by annotation.
    - `adoptee`: the object does not own the role. The workers only compare it, and write nothing about it anywhere.
    """

    key: Key
    uid: str
    generation: int
    role_name: str
    oid: int
    declared: Mapping[str, DatabasePrivileges] = field(default_factory=dict)
    former: Mapping[str, tuple[DatabasePrivileges, ...]] = field(default_factory=dict)
    policy: PrivilegePolicy = field(default_factory=PrivilegePolicy)
    owned: frozenset[int] = frozenset()
    report_only: bool = False
    ignored: bool = False
    suspended: bool = False
    refused: Refusal | None = None
    approval: Approval = field(default_factory=Approval)
    adoptee: Takeover | None = None
    namespace_uid: str = ""
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def rests(self) -> bool:
        """Suspended, ignored or refused: the role is granted nothing on new objects."""
        return self.suspended or self.ignored or self.refused is not None

    def with_owned(self, owned: frozenset[int]) -> "Grantee":
        """The same role while its namespace owns others: with a thousand of them, digests would take 0.3 s again."""
        made = replace(self, owned=owned)
        if self.adoptee is None:
            object.__setattr__(made, "_digests", self._digests)
        return made

    def equals_but_for_owned(self, other: "Grantee") -> bool:
        """Whether at most `owned` differs."""
        made_by_with_owned = self._digests is other._digests  # noqa: SLF001 -- its own kind
        return made_by_with_owned or replace(self, owned=other.owned) == other

    @property
    def drift_options(self) -> tuple[bool, bool, bool, Refusal | None]:
        """What decides, besides the digest, whether a result is an answer to the spec."""
        return self.report_only, self.ignored, self.suspended, self.refused

    @property
    def databases(self) -> frozenset[str]:
        return frozenset(self.declared) | frozenset(self.former)

    def holder_in(self, database: str) -> str:
        """Returns what a database stores as the holder of what it knows about the role: with its own name, so that a
        copy of it takes over nothing. In ASCII, which every encoding has.
        """
        return f"{self.uid}/{database.encode('unicode_escape').decode()}"

    def names_creators(self, database: str) -> bool:
        """Whether a declaration there names roles whose default privileges it is about."""
        declared = self.declared.get(database)
        return any(one.created_by for one in (*self.former.get(database, ()), *((declared,) if declared else ())))

    def digest_of(self, database: str) -> str:
        """Returns a digest of everything that decides what the role may do there, except policy and drift options; for
        an adoptee, the policy counts.
        """
        known = self._digests.get(database)
        if known is None:
            known = self._digests[database] = self._digest_of(database)
        return known

    def spec_of(self, database: str) -> tuple[int, DatabasePrivileges | None]:
        """Returns what that digest stands for, except former declarations."""
        return self.oid, self.declared.get(database)

    def _digest_of(self, database: str) -> str:
        declared, former = self.declared.get(database), self.former.get(database, ())
        held: list[object] = [self.oid, None if declared is None else to_json(declared)]
        held.append([to_json(one) for one in former])
        if self.adoptee is not None:
            held += [self.adoptee, _without_empty(asdict(self.policy)), sorted(self.owned)]
        return "sha256:" + hashlib.sha256(json.dumps(held, sort_keys=True).encode(errors="surrogatepass")).hexdigest()


def find_outdated(some: Iterable[Grantee], published: Mapping[Key, Grantee]) -> list[Grantee]:
    """Returns those of which something else is published by now. That a namespace owns more roles only allows more."""

    @cache  # a namespace's roles share the set
    def only_allows_more(before: frozenset[int], now: frozenset[int]) -> bool:
        return before <= now

    def is_outdated(one: Grantee) -> bool:
        now = published.get(one.key)
        return now is None or not (one.equals_but_for_owned(now) and only_allows_more(one.owned, now.owned))

    return [one for one in some if is_outdated(one)]


def to_json(declared: DatabasePrivileges) -> dict[str, Any]:
    """The declaration in its canonical form: sorted where order has no meaning, without empty parts."""
    return _without_empty(asdict(declared))


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    canonical = {name: _canonical(value) for name, value in values.items()}
    return {name: value for name, value in canonical.items() if value not in ([], "")}


def _canonical(value: object) -> object:
    if isinstance(value, dict):
        return _without_empty(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, (list, tuple)):
        return [_canonical(one) for one in value]
    return value


def from_json(stored: Mapping[str, Any]) -> DatabasePrivileges:
    """The inverse of `to_json`. Raises LookupError, TypeError or ValueError for anything else."""
    return DatabasePrivileges(
        database=str(stored["database"]),
        on_database=frozenset(map(str, stored.get("on_database", ()))),
        schemas=tuple(
            SchemaAccess(str(one["schema"]), frozenset(map(Access, one.get("access", ()))), _texts(one, "exceptions"))
            for one in stored.get("schemas", ())
        ),
        objects=tuple(
            ObjectPrivileges(
                ObjectKind(one["kind"]),
                str(one["schema"]),
                _texts(one, "names"),
                frozenset(_texts(one, "privileges")),
                _texts(one, "columns"),
            )
            for one in stored.get("objects", ())
        ),
        created_by=_texts(stored, "created_by"),
        unmanaged=_texts(stored, "unmanaged"),
    )


def _texts(stored: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(map(str, stored.get(name, ())))
