"""A table of every field of PgRoleSpec: how to declare it, observe it from outside, and make it drift.

In specs, SQL and expected values `$` stands for the name of the role and its object. Before each test, the roles `$_a`
and `$_b`, the role `$_c` of another object, and the Secrets `$-one` and `$-two`, each with the keys `password` and
`other`, exist.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgrole_controller.core.connection_secret import ROTATED_AT
from pgrole_controller.core.desired import ROTATE
from pgrole_controller.core.scram import verifies
from tests.acceptance.world import Database, Json, Kube


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """The object and the role of one test, both named `name`."""

    kube: Kube
    database: Database
    name: str

    def fill(self, value: Any) -> Any:
        """Replaces each `$` in the value by the role's name."""
        match value:
            case str():
                return value.replace("$", self.name)
            case dict():
                return {key: self.fill(item) for key, item in value.items()}
            case list():
                return [self.fill(item) for item in value]
            case _:
                return value

    async def secret(self, name: str) -> Json | None:
        return await self.kube.secret(self.fill(name))


See = Callable[[FieldPlace], Awaitable[Any]]
FieldStep = Callable[[FieldPlace], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class StateField:
    """A field that the controller maintains.

    - `specs`: two that differ only in this field (one if it is immutable); `seen`: what is observed for each.
    - `without`: the first one without the field (None if immutable); `default`: what is observed then.
    - `see`, `drift`: SQL or functions. `drifted`: what is observed after the first one drifts.
    - `drift_name`: the field's name in lastDrift.
    - `ignorable`: drift.ignore may name it.
    - `before`: SQL that runs before the object exists.
    """

    specs: tuple[Json, ...]
    seen: tuple[Any, ...]
    without: Json | None
    default: Any
    see: str | See
    drift: str | FieldStep
    drifted: Any
    drift_name: str
    since: int = 0
    ignorable: bool = True
    before: str = ""
    annotations: dict[str, str] = field(default_factory=dict)  # set with a change that takes effect only through them

    async def look(self, place: FieldPlace) -> Any:
        if isinstance(self.see, str):
            return await place.database.fetchval(place.fill(self.see))
        return await self.see(place)

    async def break_in(self, place: FieldPlace) -> None:
        if isinstance(self.drift, str):
            await place.database.execute(place.fill(self.drift))
        else:
            await self.drift(place)


@dataclass(frozen=True, slots=True)
class EffectField:
    """A field that is not part of the role's state: `test` is the pytest id of the test of its effect, relative to
    tests/acceptance.
    """

    test: str


#: Every privilege of the role on the database, and on the objects that `prepare` created in schema `$_s`.
_HELD = """
SELECT array_agg(DISTINCT held ORDER BY held) FROM (
    SELECT 'database ' || a.privilege_type AS held, a.grantee
    FROM pg_database AS d, aclexplode(d.datacl) AS a WHERE d.datname = current_database()
    UNION ALL SELECT 'schema ' || a.privilege_type, a.grantee
    FROM pg_namespace AS n, aclexplode(n.nspacl) AS a WHERE n.nspname = '$_s'
    UNION ALL SELECT c.relname || ' ' || a.privilege_type, a.grantee
    FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.relnamespace = to_regnamespace('$_s')
    UNION ALL SELECT t.attname || ' ' || a.privilege_type, a.grantee
    FROM pg_class AS c JOIN pg_attribute AS t ON t.attrelid = c.oid, aclexplode(t.attacl) AS a
    WHERE c.relnamespace = to_regnamespace('$_s')
    UNION ALL SELECT p.proname || ' ' || a.privilege_type, a.grantee
    FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE p.pronamespace = to_regnamespace('$_s')
    UNION ALL SELECT 'future ' || a.privilege_type, a.grantee
    FROM pg_default_acl AS f, aclexplode(f.defaclacl) AS a WHERE f.defaclnamespace = to_regnamespace('$_s')
) AS privileges WHERE grantee = to_regrole('$')
"""


#: Takes away whatever a field can grant in the schema, and grants what none does.
_TAMPERED = """
REVOKE ALL ON SCHEMA $_s FROM $;
REVOKE ALL ON ALL TABLES IN SCHEMA $_s FROM $;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA $_s FROM $;
ALTER DEFAULT PRIVILEGES FOR ROLE $_c IN SCHEMA $_s REVOKE ALL ON TABLES FROM $;
GRANT TRUNCATE ON $_s.t TO $
"""


#: The same for the database itself. A drift of both would count twice, since they are noticed in different ways.
_TAMPERED_DATABASE = "REVOKE ALL ON DATABASE postgres FROM $; GRANT CREATE ON DATABASE postgres TO $"


def _granted(
    first: Json, second: Json, seen: tuple[Any, Any], drift: str = _TAMPERED, drifted: str = "t TRUNCATE"
) -> StateField:
    """Privileges in the database `postgres`; `seen` has those of each spec in order."""
    return StateField(
        specs=tuple({"privileges": [{"database": "postgres", **one}]} for one in (first, second)),
        seen=seen,
        without={},
        default=None,
        see=_HELD,
        drift=drift,
        drifted=[drifted],
        drift_name="privileges",
    )


def _on_objects(first: Json, second: Json, seen: tuple[Any, Any]) -> StateField:
    of = {"kind": "Table", "schema": "$_s", "names": ["t"], "privileges": ["SELECT"]}
    return _granted({"objects": [{**of, **first}]}, {"objects": [{**of, **second}]}, seen)


def _on_schemas(first: Json, second: Json, seen: tuple[Any, Any]) -> StateField:
    of = {"name": "$_s", "access": ["Read"]}
    return _granted({"schemas": [{**of, **first}]}, {"schemas": [{**of, **second}]}, seen)


def _unmanaged(**field: list[str]) -> Json:
    return {"adopt": True, "privileges": [{"database": "postgres", "onDatabase": ["CONNECT"], **field}]}


_READ = ["schema USAGE", "t SELECT", "u SELECT"]


def _flag(name: str, column: str, option: str, *, default: bool = False) -> StateField:
    """A boolean attribute of CREATE ROLE."""
    return StateField(
        specs=({name: not default}, {name: default}),
        seen=(not default, default),
        without={},
        default=default,
        see=f"SELECT {column} FROM pg_roles WHERE rolname = '$'",
        drift=f"ALTER ROLE $ {option if default else 'NO' + option}",
        drifted=default,
        drift_name=name,
    )


_CLEAR = {"$-one": ("pass-one", "other-one"), "$-two": ("pass-two", "other-two")}
THEIRS = "theirs"


async def prepare(place: FieldPlace) -> None:
    """Creates what the entries of the table refer to."""
    await place.database.execute(place.fill("CREATE ROLE $_a; CREATE ROLE $_b"))
    await place.database.execute(
        place.fill(
            "CREATE SCHEMA $_s CREATE TABLE t (id integer, name text) CREATE VIEW u AS SELECT 1 AS one;"
            "CREATE FUNCTION $_s.f() RETURNS integer LANGUAGE sql RETURN 1"
        )
    )
    await place.kube.apply(place.fill("$-c"), name=place.fill("$_c"))
    for name, (password, other) in _CLEAR.items():
        await place.kube.apply_secret(place.fill(name), password=password, other=other)


async def _password(place: FieldPlace) -> str | None:
    """Returns which of the known passwords the role has; None for no password."""
    verifier = await place.database.verifier(place.name)
    if verifier is None:
        return None
    known = (THEIRS, *(password for pair in _CLEAR.values() for password in pair))
    return next((password for password in known if verifies(password, verifier)), "unknown")


def _password_kept(specs: tuple[Json, Json], seen: tuple[str | None, str | None]) -> StateField:
    return StateField(
        specs=tuple({"password": spec} for spec in specs),
        seen=seen,
        without={},
        default=seen[0],  # no longer managed: it stays
        see=_password,
        drift=f"ALTER ROLE $ PASSWORD '{THEIRS}'",
        drifted=THEIRS,
        drift_name="password",
    )


async def _delivered(place: FieldPlace) -> tuple[Json | None, bool]:
    """Returns the connection Secret, and whether the role logs in with its content."""
    secret = await place.secret("$-connection")
    if secret is None:
        return None, False
    verifier = await place.database.verifier(place.name)
    return secret, verifier is not None and verifies(secret["text"]["password"], verifier)


async def _length(place: FieldPlace) -> tuple[int, bool]:
    secret, works = await _delivered(place)
    return len(secret["text"]["password"]) if secret else 0, works


async def _rotation(place: FieldPlace) -> tuple[float | None, bool]:
    """Returns the seconds between the last rotation of the password and the next."""
    secret, works = await _delivered(place)
    obj = await place.kube.get(place.name)
    following = obj and obj["status"].get("nextRotation")
    if secret is None or not following:
        return None, works
    made = datetime.fromisoformat(secret["metadata"]["annotations"][ROTATED_AT])
    return (datetime.fromisoformat(following) - made.replace(microsecond=0)).total_seconds(), works


def _generated(
    name: str, values: tuple[Any, Any], see: See, seen: tuple[Any, Any], default: Any, **other: Any
) -> StateField:
    """A field of `generate`. `other` is another one, because server-side apply replaces an emptied map by null."""

    def spec(**generate: Any) -> Json:
        return {"password": {"generate": generate}, "connectionSecret": {"name": "$-connection"}}

    return StateField(
        specs=tuple(spec(**{name: value}) for value in values),
        seen=tuple((value, True) for value in seen),
        without=spec(**other),
        default=(default, True),
        see=see,
        drift=f"ALTER ROLE $ PASSWORD '{THEIRS}'",
        drifted=(seen[0], False),
        drift_name="password",
        ignorable=False,
        annotations={ROTATE: "now"},
    )


async def _connection_names(place: FieldPlace) -> list[str]:
    names = ("$-first", "$-second")
    return [name for name in names if await place.secret(name) is not None]


async def _delete_connection(place: FieldPlace) -> None:
    await place.kube.delete_secret(place.fill("$-first"))


def _templated(template: Callable[[str], Json], see: Callable[[Json], Any], default: Any) -> StateField:
    """A part of a connection Secret's template, with a string as its value."""

    def spec(text: str) -> Json:
        return {"connectionSecret": {"name": "$-connection", "template": template(text)}}

    async def look(place: FieldPlace) -> Any:
        secret = await place.secret("$-connection")
        return None if secret is None else see(secret)

    async def tamper(place: FieldPlace) -> None:
        change = template(THEIRS)
        change["stringData"] = change.pop("data", {})
        await place.kube.patch_secret(place.fill("$-connection"), change)

    return StateField(
        specs=(spec("first"), spec("second")),
        seen=("first", "second"),
        without={"connectionSecret": {"name": "$-connection"}},
        default=default,
        see=look,
        drift=tamper,
        drifted=THEIRS,
        drift_name="connectionSecret",
        ignorable=False,
    )


def _membership_option(name: str, *, default: bool) -> StateField:
    word = name.upper()
    # before PostgreSQL 16 INHERIT and SET have no columns
    see = f"SELECT bool_or((to_jsonb(m) ->> '{name}_option')::boolean) FROM pg_auth_members AS m WHERE member = "
    drift = f"GRANT $_a TO $ WITH {word} TRUE" if default else f"REVOKE {word} OPTION FOR $_a FROM $"
    return StateField(
        specs=tuple({"memberOf": [{"role": "$_a", name: value}]} for value in (not default, default)),
        seen=(not default, default),
        without={"memberOf": [{"role": "$_a"}]},
        default=default,
        see=f"{see} to_regrole('$')",
        drift=drift,
        drifted=default,
        drift_name="memberOf",
        since=0 if name == "admin" else 16,
    )


_IN_DATABASES = (
    "SELECT string_agg(format('%s %s', d.datname, array_to_string(s.setconfig, ',')), ';' ORDER BY 1)"
    " FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase WHERE s.setrole = to_regrole('$')"
)


def _in_database(database: str, memory: str) -> Json:
    return {"databaseParameters": [{"database": database, "parameters": {"work_mem": memory}}]}


TABLE: dict[str, StateField | EffectField] = {
    "serverRef.name": EffectField("test_roles.py::test_an_object_for_an_undeclared_server_reports_it"),
    "name": StateField(
        specs=({"name": "$"},),
        seen=(["$"],),
        without=None,
        default=None,
        see="SELECT array_agg(rolname::text) FROM pg_roles WHERE rolname IN ('$', '$_stolen')",
        drift="ALTER ROLE $ RENAME TO $_stolen",
        drifted=["$_stolen"],
        drift_name="name",
        ignorable=False,
    ),
    "login": _flag("login", "rolcanlogin", "LOGIN"),
    "superuser": _flag("superuser", "rolsuper", "SUPERUSER"),
    "createdb": _flag("createdb", "rolcreatedb", "CREATEDB"),
    "createrole": _flag("createrole", "rolcreaterole", "CREATEROLE"),
    "inherit": _flag("inherit", "rolinherit", "INHERIT", default=True),
    "replication": _flag("replication", "rolreplication", "REPLICATION"),
    "bypassrls": _flag("bypassrls", "rolbypassrls", "BYPASSRLS"),
    "connectionLimit": StateField(
        specs=({"connectionLimit": 7}, {"connectionLimit": 0}),
        seen=(7, 0),
        without={},
        default=-1,
        see="SELECT rolconnlimit FROM pg_roles WHERE rolname = '$'",
        drift="ALTER ROLE $ CONNECTION LIMIT 99",
        drifted=99,
        drift_name="connectionLimit",
    ),
    "validUntil": StateField(
        specs=({"validUntil": "2031-01-01T00:00:00Z"}, {"validUntil": "2032-06-01T12:30:00+02:00"}),
        seen=("2031-01-01 00:00:00", "2032-06-01 10:30:00"),
        without={},
        default=None,
        see="SELECT (nullif(rolvaliduntil, 'infinity') AT TIME ZONE 'UTC')::text FROM pg_roles WHERE rolname = '$'",
        drift="ALTER ROLE $ VALID UNTIL '2040-01-01 00:00:00+00'",
        drifted="2040-01-01 00:00:00",
        drift_name="validUntil",
    ),
    "comment": StateField(
        specs=({"comment": "first"}, {"comment": "second"}),
        seen=("first", "second"),
        without={},
        default=None,
        see="SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = '$'",
        drift=f"COMMENT ON ROLE $ IS '{THEIRS}'",
        drifted=THEIRS,
        drift_name="comment",
    ),
    "password.secretRef.name": _password_kept(
        ({"secretRef": {"name": "$-one"}}, {"secretRef": {"name": "$-two"}}), ("pass-one", "pass-two")
    ),
    "password.secretRef.key": _password_kept(
        ({"secretRef": {"name": "$-one", "key": "other"}}, {"secretRef": {"name": "$-one", "key": "password"}}),
        ("other-one", "pass-one"),
    ),
    "password.generate.length": _generated("length", (20, 40), _length, (20, 40), 32, rotateEvery="24h"),
    "password.generate.rotateEvery": _generated(
        "rotateEvery", ("1h", "1h30m"), _rotation, (3600.0, 5400.0), None, length=20
    ),
    "password.disabled": _password_kept(({"disabled": True}, {"secretRef": {"name": "$-one"}}), (None, "pass-one")),
    "memberOf.role": StateField(
        specs=({"memberOf": [{"role": "$_a"}]}, {"memberOf": [{"role": "$_b"}]}),
        seen=(["$_a"], ["$_b"]),
        without={},
        default=None,
        see="SELECT array_agg(DISTINCT roleid::regrole::text) FROM pg_auth_members WHERE member = to_regrole('$')",
        drift="REVOKE $_a FROM $; GRANT $_b TO $",
        drifted=["$_b"],
        drift_name="memberOf",
    ),
    "memberOf.admin": _membership_option("admin", default=False),
    "memberOf.inherit": _membership_option("inherit", default=True),
    "memberOf.set": _membership_option("set", default=True),
    "parameters": StateField(
        specs=({"parameters": {"work_mem": "64MB"}}, {"parameters": {"work_mem": "32MB", "app.tenant": "a"}}),
        seen=(["work_mem=64MB"], ["app.tenant=a", "work_mem=32MB"]),
        without={},
        default=None,
        see="SELECT array_agg(item ORDER BY item) FROM pg_roles, unnest(rolconfig) AS item WHERE rolname = '$'",
        drift="ALTER ROLE $ SET work_mem = '1MB'",
        drifted=["work_mem=1MB"],
        drift_name="parameters",
    ),
    "databaseParameters.database": StateField(
        specs=(_in_database("postgres", "64MB"), _in_database("template1", "64MB")),
        seen=("postgres work_mem=64MB", "template1 work_mem=64MB"),
        without={},
        default=None,
        see=_IN_DATABASES,
        drift="ALTER ROLE $ IN DATABASE postgres RESET ALL; ALTER ROLE $ IN DATABASE template1 SET work_mem = '1MB'",
        drifted="template1 work_mem=1MB",
        drift_name="databaseParameters",
    ),
    "databaseParameters.parameters": StateField(
        specs=(_in_database("postgres", "64MB"), _in_database("postgres", "32MB")),
        seen=("postgres work_mem=64MB", "postgres work_mem=32MB"),
        without={},
        default=None,
        see=_IN_DATABASES,
        drift="ALTER ROLE $ IN DATABASE postgres SET work_mem = '1MB'",
        drifted="postgres work_mem=1MB",
        drift_name="databaseParameters",
    ),
    "connectionSecret.name": StateField(
        specs=({"connectionSecret": {"name": "$-first"}}, {"connectionSecret": {"name": "$-second"}}),
        seen=(["$-first"], ["$-second"]),
        without={},
        default=[],
        see=_connection_names,
        drift=_delete_connection,
        drifted=[],
        drift_name="connectionSecret",
        ignorable=False,
    ),
    "connectionSecret.template.metadata.labels": _templated(
        lambda text: {"metadata": {"labels": {"team": text}}},
        lambda secret: secret["metadata"].get("labels", {}).get("team"),
        None,
    ),
    "connectionSecret.template.metadata.annotations": _templated(
        lambda text: {"metadata": {"annotations": {"example.com/team": text}}},
        lambda secret: secret["metadata"].get("annotations", {}).get("example.com/team"),
        None,
    ),
    "connectionSecret.template.data": _templated(
        lambda text: {"data": {"uri": text}},
        lambda secret: secret["text"].get("uri", "").partition(":")[0],
        "postgresql",
    ),
    "privileges.database": StateField(
        specs=(
            {"login": False, "privileges": [{"database": "postgres", "onDatabase": ["CONNECT"]}]},
            {"login": False, "privileges": []},
        ),
        seen=(["database CONNECT"], None),
        without={},
        default=None,
        see=_HELD,
        drift=_TAMPERED_DATABASE,
        drifted=["database CREATE"],
        drift_name="privileges",
    ),
    "privileges.onDatabase": _granted(
        {"onDatabase": ["CONNECT"]},
        {"onDatabase": ["TEMPORARY", "CONNECT"]},
        (["database CONNECT"], ["database CONNECT", "database TEMPORARY"]),
        _TAMPERED_DATABASE,
        "database CREATE",
    ),
    "privileges.schemas.name": _on_schemas({}, {"name": "$_none*"}, (_READ, None)),
    "privileges.schemas.access": _on_schemas({}, {"access": ["Execute"]}, (_READ, ["f EXECUTE", "schema USAGE"])),
    "privileges.schemas.except": _on_schemas({"except": ["u"]}, {}, (["schema USAGE", "t SELECT"], _READ)),
    "privileges.objects.kind": _on_objects(
        {"names": ["*"]}, {"names": ["*"], "kind": "View"}, (["t SELECT", "u SELECT"], ["u SELECT"])
    ),
    "privileges.objects.schema": _on_objects({}, {"schema": "$_none*"}, (["t SELECT"], None)),
    "privileges.objects.names": _on_objects({}, {"names": ["?"]}, (["t SELECT"], ["t SELECT", "u SELECT"])),
    "privileges.objects.columns": _on_objects(
        {"columns": ["id"]}, {"columns": ["id", "name"]}, (["id SELECT"], ["id SELECT", "name SELECT"])
    ),
    "privileges.objects.privileges": _on_objects(
        {}, {"privileges": ["INSERT", "DELETE"]}, (["t SELECT"], ["t DELETE", "t INSERT"])
    ),
    "privileges.createdBy": _granted(
        {"schemas": [{"name": "$_s", "access": ["Read"]}], "createdBy": ["$_c"]},
        {"schemas": [{"name": "$_s", "access": ["Read"]}]},
        (["future SELECT", *_READ], _READ),
    ),
    # Others granted a privilege in schema $_s, which is revoked unless the field matches the schema.
    "privileges.unmanaged": StateField(
        specs=(_unmanaged(unmanaged=["$_s"]), _unmanaged(unmanaged=["$_other"])),
        seen=(["database CONNECT", "t TRUNCATE"], ["database CONNECT"]),
        without=_unmanaged(),
        default=["database CONNECT"],
        see=_HELD,
        drift="REVOKE CONNECT ON DATABASE postgres FROM $",
        drifted=["t TRUNCATE"],
        drift_name="privileges",
        before="CREATE ROLE $; GRANT TRUNCATE ON $_s.t TO $",
    ),
    "drift.policy": EffectField(
        "test_every_field.py::test_drift_of_a_field_is_only_reported_under_report_and_stays_if_ignored"
    ),
    "drift.ignore": EffectField(
        "test_every_field.py::test_drift_of_a_field_is_only_reported_under_report_and_stays_if_ignored"
    ),
    "adopt": EffectField("test_roles.py::test_an_existing_role_is_refused_without_adopt_and_taken_over_with_it"),
    "deletionPolicy": EffectField("test_roles.py::test_drop_drops_the_role_with_its_claim"),
    "reassignOwnedTo": EffectField(
        "test_deletion.py::TestTheNewOwner::test_the_new_owner_gets_everything_and_nothing_else_is_dropped"
    ),
    "terminateSessions": EffectField(
        "test_deletion.py::TestOpenSessions::test_a_drop_waits_for_open_sessions_and_prevents_new_logins"
    ),
    "suspend": EffectField("test_roles.py::test_suspend_stops_all_changes_until_it_ends"),
}

STATE_FIELDS = {path: entry for path, entry in TABLE.items() if isinstance(entry, StateField)}
EFFECT_FIELDS = {path: entry for path, entry in TABLE.items() if isinstance(entry, EffectField)}
