"""docs/uninstall.md: following it leaves what Retain promises and nothing else; and mistakes in the order."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller import resources
from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.manifests import apply, apply_crds, path_of, read_folder
from pgrole_controller.local.process import reached
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, role_sql
from tests.acceptance.service_account import OWN_NAMESPACE, check_none_refused
from tests.acceptance.shell import CommandShell, blocks, make_shell
from tests.acceptance.team_objects import ROLES, SERVER, TeamObjects, open_team_objects
from tests.acceptance.world import GROUP, PATIENCE, Database, running
from tests.api_server_pool import ApiServerPool, list_metadata
from tests.conftest import lent
from tests.servers import Servers

pytestmark = pytest.mark.slow

PAGE = "uninstall.md"
RETAINED = set(ROLES) - {"passing"}
CRDS = ("pgroles.pgrole.dev", "pgservers.pgrole.dev")
#: Number of equal lists in a row, half a second apart, after which the API server is at rest.
AT_REST = 5

#: Kind, owner and content of everything an installation could leave in a server, as seen from the home database.
CATALOGS = """
SELECT 'role', a.rolname::text, (to_jsonb(a) - 'oid')::text FROM pg_authid AS a
UNION ALL
SELECT 'member', m.member::regrole::text,
       format('%s %s', m.roleid::regrole, to_jsonb(m) - '{oid,roleid,member,grantor}'::text[])
FROM pg_auth_members AS m
UNION ALL
SELECT 'setting', coalesce(r.rolname, ''), format('%s %s', d.datname, s.setconfig)
FROM pg_db_role_setting AS s
LEFT JOIN pg_roles AS r ON r.oid = s.setrole LEFT JOIN pg_database AS d ON d.oid = s.setdatabase
UNION ALL
SELECT 'comment', coalesce(r.rolname, ''), format('%s %s', d.objoid, d.description)
FROM pg_shdescription AS d LEFT JOIN pg_roles AS r ON (r.oid, d.classoid) = (d.objoid, 'pg_authid'::regclass)
UNION ALL
SELECT 'needs', s.refobjid::regrole::text,
       format('%s %s', s.deptype, pg_describe_object(s.classid, s.objid, s.objsubid))
FROM pg_shdepend AS s
WHERE s.refclassid = 'pg_authid'::regclass
  AND s.dbid IN (0, (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()))
  -- who granted a membership is told by that
  AND s.classid <> 'pg_auth_members'::regclass
UNION ALL
SELECT 'database', d.datname,
       ARRAY(SELECT a::text FROM unnest(coalesce(d.datacl, acldefault('d', d.datdba))) AS a ORDER BY 1)::text
FROM pg_database AS d
UNION ALL
SELECT 'schema', n.nspname, coalesce(n.nspacl::text, '') FROM pg_namespace AS n WHERE n.nspname NOT LIKE 'pg_temp%'
UNION ALL
SELECT 'routine', p.oid::regprocedure::text, coalesce(p.proacl::text, '') FROM pg_proc AS p
UNION ALL
SELECT 'relation', c.oid::regclass::text, coalesce(c.relacl::text, '')
FROM pg_class AS c WHERE c.relnamespace <> 'pg_toast'::regnamespace
UNION ALL
SELECT 'column', format('%s.%s', a.attrelid::regclass, a.attname), a.attacl::text
FROM pg_attribute AS a WHERE a.attacl IS NOT NULL
UNION ALL
SELECT 'type', t.oid::regtype::text, coalesce(t.typacl::text, '')
FROM pg_type AS t WHERE t.typnamespace <> 'pg_toast'::regnamespace
UNION ALL
SELECT 'operator', o.oid::regoperator::text, '' FROM pg_operator AS o
UNION ALL
SELECT 'event trigger', e.evtname, '' FROM pg_event_trigger AS e
UNION ALL
SELECT 'default privileges', d.oid::text, d.defaclacl::text FROM pg_default_acl AS d
UNION ALL
SELECT 'extension', e.extname, e.extversion FROM pg_extension AS e
"""

Line = tuple[str, str, str]


async def catalogs(database: Database) -> set[Line]:
    return {(row[0], row[1], row[2]) for row in await database.connection.fetch(CATALOGS)}


def about(lines: set[Line], roles: set[str]) -> set[Line]:
    return {line for line in lines if line[0] in ("role", "member", "setting", "comment", "needs") and line[1] in roles}


async def listed(server: ApiServer) -> set[str]:
    """Returns the path of every object in the API server, once it no longer creates or deletes any by itself.

    It needs a while for objects of its own after the start, and to remove a group whose last CRD was deleted.
    """
    found: list[set[str]] = []

    async def is_at_rest() -> bool:
        try:
            found.append(set(await list_metadata(server)))
        except LocalApiError as error:
            if error.status not in (404, 429, 503):  # of a group being removed
                raise
            found.clear()
        return len(found) >= AT_REST and all(one == found[-1] for one in found[-AT_REST:])

    assert await reached(is_at_rest, PATIENCE, every=0.5)
    return found[-1]


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(request: pytest.FixtureRequest, api_servers: ApiServerPool) -> AsyncIterator[ApiServer]:
    """An API server for one test, without the CRDs."""
    async with lent(request, api_servers) as server:
        yield server
        check_none_refused(server)


@pytest_asyncio.fixture(loop_scope="session")
async def team_objects(cluster: ApiServer, servers: Servers, tmp_path: Path) -> AsyncIterator[TeamObjects]:
    """Has the CRDs, also at the end, since the cleanup uses them."""
    await apply_crds(cluster)
    async with open_team_objects(cluster, servers, tmp_path) as opened:
        yield opened
        await apply_crds(cluster)


@pytest_asyncio.fixture(loop_scope="session")
async def shell(team_objects: TeamObjects, tmp_path: Path) -> CommandShell:
    return await make_shell(team_objects.kube.server, team_objects.postgres, tmp_path / "shell")


async def follow(shell: CommandShell, heading: str) -> None:
    scripts = blocks(PAGE, heading)
    assert scripts, heading
    for script in scripts:
        await shell.run(script)


async def delete_manifests(server: ApiServer) -> None:
    """Does what `kubectl delete -f deploy/install.yaml` does, except for the namespace."""
    for document in read_folder(resources.path("deploy")):
        if document["kind"] not in ("Namespace", "CustomResourceDefinition"):
            await server.request("DELETE", await path_of(server, document))
    await delete_crds(server)


async def delete_crds(server: ApiServer) -> None:
    for name in CRDS:
        await server.request("DELETE", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")


async def crds_gone(server: ApiServer) -> bool:
    for name in CRDS:
        try:
            await server.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        except LocalApiError as error:
            if error.status != 404:
                raise
        else:
            return False
    return True


async def wait_crds_gone(server: ApiServer) -> None:
    assert await reached(lambda: crds_gone(server), PATIENCE)


async def test_following_the_page_leaves_only_what_retain_promises(
    cluster: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    objects = await listed(cluster)
    for document in read_folder(resources.path("deploy")):
        await apply(cluster, document)
    await apply_crds(cluster)
    async with open_team_objects(cluster, servers, tmp_path) as team_objects:
        shell = await make_shell(cluster, team_objects.postgres, tmp_path / "shell")
        database, team = team_objects.database, team_objects.kube.namespace
        before = await catalogs(database)
        await database.execute(role_sql(servers.version))
        await database.execute(f"GRANT CONNECT, CREATE ON DATABASE template1 TO {CONTROLLER_ROLE}")
        await team_objects.servers.apply_credentials(SERVER, CONTROLLER_ROLE, PASSWORD)
        async with running(team_objects.controller(None, "--leader-election", "true")):
            await team_objects.make()
            # the remedy that the controller logs, since only a superuser can record the home
            await database.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")
            promised = about(await catalogs(database), RETAINED)
            assert {line[1] for line in promised if line[0] == "role"} == RETAINED
            assert {line[0] for line in promised} >= {"role", "member", "setting", "comment"}
            await follow(shell, "1. PgRoles")
            await follow(shell, "2. PgServers")
        await delete_manifests(cluster)
        await wait_crds_gone(cluster)
        left = await listed(cluster) - objects
        delivered = {f"/api/v1/namespaces/{team}/secrets/{name}-connection" for name in ("app", "chosen")}
        own, theirs = (f"namespaces/{name}" for name in (OWN_NAMESPACE, team))
        goes = {f"/api/v1/{own}/secrets/{SERVER}", f"/apis/coordination.k8s.io/v1/{own}/leases/pgrole-controller"}
        stays = {f"/api/v1/{own}", f"/api/v1/{theirs}", f"/api/v1/{theirs}/secrets/chosen"}
        assert left == delivered | goes | stays
        await check_owned(cluster, delivered)
        await database.execute("CREATE DATABASE orders")  # the page's example of another database
        await follow(shell, "4. The database")
        await database.execute("DROP DATABASE orders")
        after = await catalogs(database)
        assert before - after == set()
        assert after - before == promised
        await apply_crds(cluster)


async def check_owned(server: ApiServer, paths: set[str]) -> None:
    """Verifies the owner references by which Kubernetes garbage-collects these objects."""
    for path in paths:
        (owner,) = (await server.request("GET", path))["metadata"]["ownerReferences"]
        assert (owner["apiVersion"], owner["kind"], owner["controller"]) == ("pgrole.dev/v1alpha1", "PgRole", True)


async def lose_controller(team_objects: TeamObjects) -> None:
    """Deletes the CRDs after the controller has stopped: objects with finalizers stay, and so do the CRDs."""
    async with running(team_objects.controller()):
        await team_objects.make()
    server = team_objects.kube.server
    await delete_crds(server)
    await team_objects.kube.wait_number(1)
    (left,) = await team_objects.kube.objects()
    assert (left["metadata"]["name"], "deletionTimestamp" in left["metadata"]) == ("passing", True)
    assert [one["metadata"]["name"] for one in (await server.request("GET", f"{GROUP}/pgservers"))["items"]] == [SERVER]
    assert not await crds_gone(server)


async def test_crds_deleted_without_a_controller_stay_until_finalizers_are_removed(
    team_objects: TeamObjects, shell: CommandShell
) -> None:
    await lose_controller(team_objects)
    await follow(shell, "In the wrong order")
    await wait_crds_gone(team_objects.kube.server)
    assert await team_objects.database.role("passing") is not None


async def test_crds_deleted_without_a_controller_are_removed_once_it_has_run_again(team_objects: TeamObjects) -> None:
    await lose_controller(team_objects)
    async with running(team_objects.controller()):
        await wait_crds_gone(team_objects.kube.server)
        await team_objects.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL", 0)
    assert await team_objects.database.role("passing") is None
    assert [name for name in RETAINED if await team_objects.database.role(name) is None] == []


async def test_crds_deleted_under_a_controller_take_every_object_with_them(team_objects: TeamObjects) -> None:
    async with running(team_objects.controller()):
        await team_objects.make()
        await delete_crds(team_objects.kube.server)
        await wait_crds_gone(team_objects.kube.server)
        await team_objects.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL", 0)
        assert await team_objects.database.role("passing") is None
        assert [name for name in RETAINED if await team_objects.database.role(name) is None] == []
        await apply_crds(team_objects.kube.server)


async def test_without_the_controllers_role_retain_lets_an_object_be_deleted(
    team_objects: TeamObjects, servers: Servers
) -> None:
    await team_objects.database.execute(role_sql(servers.version))
    await team_objects.servers.apply_credentials(SERVER, CONTROLLER_ROLE, PASSWORD)
    async with running(team_objects.controller()):
        await team_objects.make()
        await team_objects.database.execute(f"ALTER ROLE {CONTROLLER_ROLE} NOLOGIN")
        await team_objects.database.execute(
            f"SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity AS a WHERE a.usename = '{CONTROLLER_ROLE}'"
        )
        await team_objects.kube.delete("passing")
        await team_objects.kube.wait_reason("passing", "ServerNotReady")
        await team_objects.kube.patch("passing", {"spec": {"deletionPolicy": "Retain"}})
        await team_objects.kube.wait_gone("passing")
