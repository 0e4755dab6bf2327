"""This release and the previous one follow each other, in both directions and at once, and nothing is lost."""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller import resources
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply_crds, apply_folder
from pgrole_controller.postgres.schema import VERSION
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, documented_sql, follow, role_sql
from tests.acceptance.shell import blocks, make_shell
from tests.acceptance.team_objects import DRIFTS, SERVER, TeamObjects, drifts, open_team_objects
from tests.acceptance.world import GROUP, Json, Kube, running, says
from tests.documents import read_document, write_documents
from tests.releases import BEFORE, ReleasedVersion
from tests.servers import Servers

pytestmark = pytest.mark.slow

PRESENT = None
#: A field that neither release knows.
LATER = "ofALaterRelease"
#: Two spellings of one parameter, of which one was never applied, names that are too long for a database or have NUL,
#: keys that are too long for a label, a time with more than 43 decimals, and hosts with a port, to which no one can
#: connect. Other fields of such objects can still be changed.
REFUSED_SINCE = {
    ".spec.databaseParameters.items.database: x-kubernetes-validations",
    ".spec.connection.database: x-kubernetes-validations",
    ".spec.connection.hosts.items: x-kubernetes-validations",
    ".spec.parameters: x-kubernetes-validations",
    ".spec.databaseParameters.items.parameters: x-kubernetes-validations",
    ".spec.connectionSecret.template.metadata.labels: x-kubernetes-validations",
    ".spec.connectionSecret.template.metadata.annotations: x-kubernetes-validations",
    ".spec.allow.namespaces.matchLabels: x-kubernetes-validations",
    ".spec.validUntil: maxLength",
}
#: Patterns that match whatever they did before, and more.
WIDENED_SINCE = {".spec.connection.hosts.items: pattern"}
SCHEMA = "SELECT version FROM pgrole.installation"


@pytest_asyncio.fixture(loop_scope="session")
async def team_objects(own_api_server: ApiServer, servers: Servers, tmp_path: Path) -> AsyncIterator[TeamObjects]:
    """With the CRDs of the previous release."""
    await apply_crds(own_api_server, BEFORE.crds)
    async with open_team_objects(own_api_server, servers, tmp_path) as opened:
        yield opened


async def succeed(team_objects: TeamObjects, release: ReleasedVersion | None, token: str) -> None:
    """Verifies that the next controller finds everything as the last one left it, writes nothing, and works."""
    async with succeeding(team_objects, release, token):
        pass


@asynccontextmanager
async def succeeding(
    team_objects: TeamObjects, release: ReleasedVersion | None, token: str, gone: str = ""
) -> AsyncIterator[None]:
    """As `succeed`; then the controller runs for the duration of the context. It may drop the role `gone`."""
    left = {what: seen for what, seen in (await team_objects.snapshot()).items() if what.partition(" ")[2] != gone}
    canary = await team_objects.drift_canary()
    async with running(team_objects.controller(release)):
        await team_objects.wait_canary(canary)
        assert await team_objects.snapshot() == left
        await team_objects.prove(token)
        yield


async def test_an_upgrade_alters_nothing_and_after_a_rollback_the_previous_release_works_with_the_new_schema(
    team_objects: TeamObjects,
) -> None:
    """The new release also completes a deletion that was blocked before."""
    kube, database = team_objects.kube, team_objects.database
    async with running(team_objects.controller(BEFORE)):
        await team_objects.make()
        await kube.apply("leaving", login=True, deletionPolicy="Drop", serverRef={"name": SERVER})
        await team_objects.prove("first")
        await database.execute("GRANT CREATE ON SCHEMA public TO leaving; SET ROLE leaving")
        await database.execute("CREATE TABLE left_behind (); RESET ROLE")
        await kube.delete("leaving")
        await kube.wait_reason("leaving", "DropBlocked")
    assert await database.fetchval(SCHEMA) == BEFORE.schema
    await apply_crds(kube.server)
    await database.execute("DROP OWNED BY leaving")
    async with succeeding(team_objects, PRESENT, "second", gone="leaving"):
        assert await kube.get("leaving") is None
        assert await database.role("leaving") is None
        await team_objects.take_back()
    assert await database.fetchval(SCHEMA) == VERSION
    await succeed(team_objects, BEFORE, "third")
    assert await database.fetchval(SCHEMA) == VERSION
    await succeed(team_objects, PRESENT, "fourth")


@pytest.mark.parametrize(
    ("crds", "release"),
    [("before", PRESENT), ("later", PRESENT), ("later", BEFORE)],
    ids=["before-this-release", "later-this-release", "later-the-one-before"],
)
async def test_a_controller_works_with_the_crds_of_another_release(
    team_objects: TeamObjects, tmp_path: Path, crds: str, release: ReleasedVersion | None
) -> None:
    folder = BEFORE.crds if crds == "before" else write_later_crds(tmp_path / "later")
    await apply_crds(team_objects.kube.server, folder)
    async with running(team_objects.controller(release)):
        await team_objects.make()
        await team_objects.prove("first")
        if crds == "later":
            await write_later_fields(team_objects.kube, "app")
            await team_objects.prove("second")
            assert ((await team_objects.kube.get("app")) or {})["spec"][LATER] == "there"
        await team_objects.kube.delete_all()
        await team_objects.kube.wait_number(0)


async def test_both_releases_running_at_once_do_no_harm(team_objects: TeamObjects) -> None:
    """The new release upgrades the schema while the previous one, which has no leader election, still runs."""
    async with running(team_objects.controller(BEFORE)) as before:
        await team_objects.make()
        await apply_crds(team_objects.kube.server)
        left = await team_objects.snapshot()
        async with running(team_objects.controller(PRESENT, "--leader-election", "true")):
            await team_objects.database.wait_value(SCHEMA, VERSION)
            assert await team_objects.snapshot() == left
            await team_objects.prove("first", alone=False)
            await team_objects.prove("second", alone=False)
            assert await team_objects.database.fetchval("SELECT count(*) FROM pgrole.leader WHERE number > 0") == 1
            counted = {obj["metadata"]["name"]: drifts(obj) for obj in await team_objects.kube.objects()}
            # each drift is counted twice at most: both may read it before either repairs it
            assert {name for name in DRIFTS if not 2 <= counted[name] <= 8} == set()
            assert await before.stop() == 0
            await team_objects.prove("third")
            await team_objects.take_back()
    async with succeeding(team_objects, BEFORE, "fourth"):
        await team_objects.kube.delete_all()
        await team_objects.kube.wait_number(0)


async def test_a_schema_that_the_controller_may_not_upgrade_works_until_an_administrator_does(
    own_api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    async with open_team_objects(own_api_server, servers, tmp_path, install=False) as team_objects:
        database = team_objects.database
        await install_by_hand(team_objects, servers.version)
        shell = await make_shell(own_api_server, team_objects.postgres, tmp_path / "shell")
        async with running(team_objects.controller(BEFORE)):
            await team_objects.make()
        left, canary = await team_objects.snapshot(), await team_objects.drift_canary()
        async with running(team_objects.controller(PRESENT, "--leader-election", "true")) as controller:
            await team_objects.wait_canary(canary)
            assert await team_objects.snapshot() == left
            assert "schema pgrole has the previous version" in controller.log
            await team_objects.prove("first")
            await shell.run('pgrole-controller sql | psql -v ON_ERROR_STOP=1 "$ADMIN_DSN"')
            await team_objects.prove("second")
            await database.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{CONTROLLER_ROLE}'"
            )
            asked = await follow(
                database,
                await team_objects.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", "GRANT"), "grants"),
            )
            documented = documented_sql("Where a superuser installed schema pgrole")
            assert [f"{one};" for one in asked] == documented.replace(
                CONTROLLER_ROLE, f'"{CONTROLLER_ROLE}"'
            ).splitlines()
            await database.wait_value("SELECT count(*) FROM pgrole.leader WHERE number > 0", 1)
            await team_objects.kube.wait_all_ready()
            await team_objects.prove("third")
        await succeed(team_objects, BEFORE, "fourth")


async def test_upgrading_the_schema_by_hand_first_interrupts_nothing(
    own_api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    """Follows docs/upgrade.md."""
    async with open_team_objects(own_api_server, servers, tmp_path, install=False) as team_objects:
        database = team_objects.database
        await install_by_hand(team_objects, servers.version)
        shell = await make_shell(own_api_server, team_objects.postgres, tmp_path / "shell")
        (script,) = blocks("upgrade.md", "2. Schema pgrole, where the controller may not install")
        async with running(team_objects.controller(BEFORE)) as before:
            await team_objects.make()
            left = await team_objects.snapshot()
            await shell.run(script)
            assert await database.fetchval(SCHEMA) == VERSION
            assert await team_objects.snapshot() == left
            await team_objects.prove("first")
            assert "session with PostgreSQL ended" not in before.log
        left, canary = await team_objects.snapshot(), await team_objects.drift_canary()
        async with running(team_objects.controller(PRESENT, "--leader-election", "true")) as controller:
            await team_objects.wait_canary(canary)
            assert await team_objects.snapshot() == left
            await team_objects.prove("second")
            assert await database.fetchval("SELECT count(*) FROM pgrole.leader WHERE number > 0") == 1
            assert "schema pgrole has the previous version" not in controller.log


async def test_upgrading_the_schema_by_hand_later_is_noticed_without_a_restart(
    own_api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    async with open_team_objects(
        own_api_server, servers, tmp_path, install=False, drift={"interval": "100ms"}
    ) as team_objects:
        await install_by_hand(team_objects, servers.version)
        shell = await make_shell(own_api_server, team_objects.postgres, tmp_path / "shell")
        (script,) = blocks("upgrade.md", "2. Schema pgrole, where the controller may not install")
        async with running(team_objects.controller(PRESENT, "--leader-election", "true")) as controller:
            await team_objects.make()
            assert "schema pgrole has the previous version" in controller.log
            await shell.run(script)
            await team_objects.database.wait_value("SELECT count(*) FROM pgrole.leader WHERE number > 0", 1)
            await team_objects.prove("first")
            assert "no session with PostgreSQL" not in controller.log


async def install_by_hand(team_objects: TeamObjects, version: int) -> None:
    """Installs the previous release's schema as a superuser; gives the controller the documented role and grants."""
    await team_objects.database.execute(role_sql(version))
    await team_objects.database.execute(f"BEGIN; {BEFORE.install_sql()}; COMMIT")
    await team_objects.database.execute(documented_sql("Where a superuser installed schema pgrole"))
    await team_objects.database.execute(f"GRANT SELECT ON pg_catalog.pg_authid TO {CONTROLLER_ROLE}")
    await team_objects.servers.apply_credentials(SERVER, CONTROLLER_ROLE, PASSWORD)


async def test_objects_and_samples_of_the_previous_release_are_still_valid_and_can_be_updated(
    team_objects: TeamObjects,
) -> None:
    """Updates stored objects, which the API server validates as a whole."""
    await team_objects.make_objects()
    server = team_objects.kube.server
    for folder in (BEFORE.samples, BEFORE.samples / "servers"):
        await apply_folder(server, folder)
    stored = await read_all(server)
    assert len(stored) > 10
    await apply_crds(server)
    for folder in (resources.path("deploy", "samples"), resources.path("deploy", "samples", "servers")):
        await apply_folder(server, folder)
    for path, obj in stored.items():
        metadata = (await server.request("GET", path))["metadata"] | {"labels": {"seen": "again"}}
        answer = await server.request("PUT", path, obj | {"metadata": metadata})
        assert answer["spec"] == obj["spec"], path


async def test_objects_that_no_longer_could_be_created_can_be_changed_and_their_status_written(
    team_objects: TeamObjects,
) -> None:
    kube = team_objects.kube
    odd = {"k" * 400: "x", "a b": "x"}
    metadata = {"labels": odd, "annotations": odd}
    long = f"2027-01-01T00:00:00.{'0' * 60}Z"
    await kube.apply("odd", connectionSecret={"name": "odd", "template": {"metadata": metadata}}, validUntil=long)
    connection = {"hosts": ["db.example:5432"], "credentialsSecretRef": {"name": "admin"}}
    server = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "metadata": {"name": "odd"}}
    spec = {"connection": connection, "allow": {"namespaces": {"matchLabels": odd}}}
    await kube.server.request("POST", "/apis/pgrole.dev/v1alpha1/pgservers", server | {"spec": spec})
    await apply_crds(kube.server)
    merge = "application/merge-patch+json"
    role = f"/apis/pgrole.dev/v1alpha1/namespaces/{kube.namespace}/pgroles/odd"
    for path, patch in (
        (role, {"spec": {"comment": "changed"}}),
        ("/apis/pgrole.dev/v1alpha1/pgservers/odd", {"spec": {"resyncInterval": "2h"}}),
    ):
        changed = await kube.server.request("PATCH", path, patch, content_type=merge)
        assert changed["metadata"]["generation"] == 2
        status = {"status": {"observedGeneration": 2}}
        written = await kube.server.request("PATCH", f"{path}/status", status, content_type=merge)
        assert written["status"]["observedGeneration"] == 2
        assert written["spec"] == changed["spec"]


@pytest.mark.parametrize("name", sorted(path.name for path in BEFORE.crds.glob("*.yaml")))
def test_no_field_of_the_previous_release_is_removed_or_narrowed(name: str) -> None:
    before, present = (
        read_document((folder / name).read_text(encoding="utf-8")) for folder in (BEFORE.crds, resources.path("crds"))
    )
    assert {key: before["spec"][key] for key in ("group", "names", "scope")} == {
        key: present["spec"][key] for key in ("group", "names", "scope")
    }
    for version in before["spec"]["versions"]:
        (same,) = (one for one in present["spec"]["versions"] if one["name"] == version["name"])
        paths = set(narrowed(version["schema"]["openAPIV3Schema"], same["schema"]["openAPIV3Schema"], ""))
        assert paths <= REFUSED_SINCE | WIDENED_SINCE


def narrowed(before: Json, present: Json, path: str) -> Iterator[str]:
    """Yields path and keyword wherever a value valid before may be invalid now, or has another meaning."""
    for word in ("type", "format", "pattern", "default", "nullable", "x-kubernetes-list-type"):
        if before.get(word) != present.get(word):
            yield f"{path}: {word}"
    for word, sign in (("minimum", 1), ("minLength", 1), ("minItems", 1), ("minProperties", 1)):
        if present.get(word, -math.inf) * sign > before.get(word, -math.inf) * sign:
            yield f"{path}: {word}"
    for word in ("maximum", "maxLength", "maxItems", "maxProperties"):
        if present.get(word, math.inf) < before.get(word, math.inf):
            yield f"{path}: {word}"
    if not set(present.get("required", [])) <= set(before.get("required", [])):
        yield f"{path}: required"
    if "enum" in present and not set(before.get("enum", [object()])) <= set(present["enum"]):
        yield f"{path}: enum"
    rules = {one["rule"] for one in before.get("x-kubernetes-validations", [])}
    if not {one["rule"] for one in present.get("x-kubernetes-validations", [])} <= rules:
        yield f"{path}: x-kubernetes-validations"
    for name, field in before.get("properties", {}).items():
        if name not in present.get("properties", {}):
            yield f"{path}.{name}: gone"
        else:
            yield from narrowed(field, present["properties"][name], f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if isinstance(before.get(word), dict):
            yield from narrowed(before[word], present.get(word) or {}, f"{path}.{word}")


def test_narrowed_schemas_are_detected() -> None:
    wide = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"enum": ["x", "y"]}}}
    tight = {"type": "object", "required": ["a"], "properties": {"a": {"type": "string", "maxLength": 4}}}
    assert list(narrowed(wide, tight, "")) == [": required", ".a: maxLength", ".b: gone"]
    assert list(narrowed({"enum": ["x", "y"]}, {"enum": ["x"]}, "")) == [": enum"]
    assert list(narrowed(tight, wide, "")) == []


def write_later_crds(folder: Path) -> Path:
    """Writes CRDs as a later release may have them: with one more field in spec, with a default, and one in status."""
    folder.mkdir()
    for path in resources.path("crds").glob("*.yaml"):
        crd = read_document(path.read_text(encoding="utf-8"))
        fields = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        fields["spec"]["properties"][LATER] = {"type": "string", "default": "there"}
        fields["status"]["properties"][LATER] = {"type": "string"}
        (folder / path.name).write_text(write_documents([crd]), encoding="utf-8")
    return folder


async def write_later_fields(kube: Kube, name: str) -> None:
    """Writes status as the controller of that release would."""
    obj = await kube.get(name)
    assert obj is not None
    written = await kube.server.request(
        "PATCH",
        f"{kube.path(name)}/status",
        {
            "apiVersion": obj["apiVersion"],
            "kind": obj["kind"],
            "metadata": {"name": name, "uid": obj["metadata"]["uid"]},
            "status": obj["status"] | {LATER: "written"},
        },
        content_type="application/apply-patch+yaml",
        query={"fieldManager": "pgrole-controller", "force": "true"},
    )
    assert written["status"][LATER] == "written"


async def read_all(server: ApiServer) -> dict[str, Json]:
    """Returns every PgRole and PgServer by its path."""
    found: dict[str, Json] = {}
    for obj in (await server.request("GET", f"{GROUP}/pgroles"))["items"]:
        found[f"{GROUP}/namespaces/{obj['metadata']['namespace']}/pgroles/{obj['metadata']['name']}"] = obj
    for obj in (await server.request("GET", f"{GROUP}/pgservers"))["items"]:
        found[f"{GROUP}/pgservers/{obj['metadata']['name']}"] = obj
    return found
