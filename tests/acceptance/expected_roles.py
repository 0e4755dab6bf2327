"""Whether roles and the conditions of their objects are as declared, by specs, Secrets and PostgreSQL's catalogs."""

from collections.abc import Iterable, Mapping

from pgrole_controller.core.scram import Verifier, verifies
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.random_specs import ignores, is_suspended, only_reports
from tests.acceptance.world import Json, condition

_ROLE = """
SELECT r.*,
    (SELECT a.rolpassword FROM pg_authid AS a WHERE a.oid = r.oid) AS verifier,
    ARRAY (
        SELECT DISTINCT g.rolname || CASE WHEN m.admin_option THEN '*' ELSE '' END
        FROM pg_auth_members AS m JOIN pg_roles AS g ON g.oid = m.roleid WHERE m.member = r.oid
    ) AS groups,
    ARRAY (
        SELECT coalesce(d.datname, '') || ':' || one
        FROM pg_db_role_setting AS s LEFT JOIN pg_database AS d ON d.oid = s.setdatabase, unnest(s.setconfig) AS one
        WHERE s.setrole = r.oid
    ) AS settings
FROM pg_roles AS r WHERE r.rolname = $1
"""
_DATABASES = "SELECT datname FROM pg_database"

#: Secrets of the namespace: their content in clear text.
Secrets = Mapping[str, Mapping[str, str]]


async def find_role_differences(home: Connection, role: str, spec: Json, secrets: Secrets) -> list[str]:
    """Returns what of the role is not as its spec says. Privileges are no part of it."""
    row = await home.fetchrow(_ROLE, role)
    if row is None:
        return [f"role {role} does not exist"]
    databases = {each["datname"] for each in await home.fetch(_DATABASES)}
    settings = {"": spec.get("parameters", {})}
    settings |= {one["database"]: one["parameters"] for one in spec.get("databaseParameters", ())}
    wanted = {
        "login": spec["login"],
        "connectionLimit": spec["connectionLimit"],
        "createdb": spec["createdb"],
        "createrole": False,
        "memberOf": sorted(each["role"] for each in spec["memberOf"]),
        "parameters": sorted(_spell("", settings.pop(""))),
        "databaseParameters": sorted(
            one for name, some in settings.items() if name in databases for one in _spell(name, some)
        ),
    }
    seen = {
        "login": row["rolcanlogin"],
        "connectionLimit": row["rolconnlimit"],
        "createdb": row["rolcreatedb"],
        "createrole": row["rolcreaterole"],
        "memberOf": sorted(row["groups"]),
        "parameters": sorted(one for one in row["settings"] if one.startswith(":")),
        "databaseParameters": sorted(one for one in row["settings"] if not one.startswith(":")),
    }
    found = [
        f"{role}: {field} is {seen[field]} instead of {wanted[field]}"
        for field in wanted
        if seen[field] != wanted[field] and not ignores(spec, field)
    ]
    return found + _find_password_problems(role, spec, row["verifier"], secrets)


def why_refused(spec: Json, policy: Json) -> str | None:
    """Returns the reason for which the policy refuses the whole spec."""
    if spec["name"] in policy["protectedRoles"]:
        return "Protected"
    groups = policy["allow"]["memberOf"]
    joined = {each["role"] for each in spec["memberOf"]}
    if (spec["createdb"] and not policy["allow"]["attributes"]) or ("*" not in groups and joined - set(groups)):
        return "NotAllowed"
    return None


async def find_powers(home: Connection, role: str, spec: Json, policy: Json) -> list[str]:
    """Returns what a role holds beyond both its spec and the policy, in fields that are ignored, too."""
    row = await home.fetchrow(_ROLE, role)
    if row is None:
        return []
    groups = policy["allow"]["memberOf"]
    joined = {name.rstrip("*") for name in row["groups"]} - {each["role"] for each in spec["memberOf"]}
    found = [f"membership in {name}" for name in joined if "*" not in groups and name not in groups]
    if row["rolcreaterole"]:
        found.append("createrole")
    if row["rolcreatedb"] and not spec["createdb"] and not policy["allow"]["attributes"]:
        found.append("createdb")
    return [f"{role}: has {one} beyond the policy" for one in found]


def find_condition_problem(
    obj: Json, spec: Json, policy: Json, secrets: Secrets, *, differs: bool, denied: bool
) -> str | None:
    """Returns what of Ready is not as it should be. `differs`: the role is not as declared. `denied`: the policy may
    deny privileges.
    """
    ready = condition(obj, "Ready")
    reason, expected = ready.get("reason"), set[str]()
    is_current = obj.get("status", {}).get("observedGeneration") == obj["metadata"]["generation"]
    if is_suspended(spec):
        expected = {"Suspended"}
    elif refused := why_refused(spec, policy):
        expected = {refused}
    elif differs and only_reports(spec):
        expected = {"DriftReported", "PrivilegePending", "NotAllowed", "SecretMissing", "DatabaseError"}
    else:
        expected = {"Reconciled", "PrivilegePending"}
        if denied:
            expected.add("NotAllowed")
        if spec.get("password", {}).get("secretRef", {"name": ""})["name"] not in {"", *secrets}:
            expected.add("SecretMissing")
        if "databaseParameters" in spec:
            expected.add("DatabaseError")
    if reason in expected and is_current:
        return None
    return f"{obj['metadata']['name']}: {ready}, but expected {sorted(expected)}"


def find_finalizer_problems(obj: Json, spec: Json) -> list[str]:
    name, expected = obj["metadata"]["name"], ["pgrole.dev/drop"] if spec["deletionPolicy"] == "Drop" else []
    found = obj["metadata"].get("finalizers", [])
    return [] if found == expected else [f"{name}: the finalizers are {found} instead of {expected}"]


def find_terminating(objects: Iterable[Json]) -> list[str]:
    return [
        f"{obj['metadata']['name']} is still being deleted: {condition(obj, 'Ready')}"
        for obj in objects
        if "deletionTimestamp" in obj["metadata"]
    ]


def _spell(database: str, parameters: Mapping[str, str]) -> list[str]:
    return [f"{database}:{name}={value}" for name, value in parameters.items()]


def _find_password_problems(role: str, spec: Json, verifier: str | None, secrets: Secrets) -> list[str]:
    found: list[str] = []
    password, connection = spec.get("password", {}), secrets.get(spec.get("connectionSecret", {}).get("name", ""))
    if "connectionSecret" in spec and (connection is None or connection.get("username") != role):
        if "secretRef" not in password or password["secretRef"]["name"] in secrets:
            found.append(f"{role}: the connection Secret is {connection and sorted(connection)}")
        return found
    if password.get("disabled") and verifier is not None:
        found.append(f"{role} has a password")
    source = secrets.get(password["secretRef"]["name"], {}) if "secretRef" in password else {}
    clear = source.get("password")
    if "generate" in password:
        clear = (connection or {}).get("password")
        if clear is None:
            found.append(f"{role}: the connection Secret has no password")
    if clear is not None and (verifier is None or not verifies(clear, Verifier(verifier))):
        found.append(f"{role} has another password than its Secret")
    if clear is not None and connection is not None and connection.get("password") != clear:
        found.append(f"{role}: the connection Secret has another password")
    return found
