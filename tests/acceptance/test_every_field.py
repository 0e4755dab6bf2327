"""Each field of spec: applied, drifted and repaired, changed, omitted again, only reported, ignored.

The table is tests/acceptance/fields.py; a field without an entry there fails here.
"""

import ast
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
import pytest_asyncio
from pydantic import BaseModel

from pgrole_controller.api.pgrole import IgnoredField, PgRoleSpec
from pgrole_controller.core.role import POWERS
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.fields import EFFECT_FIELDS, STATE_FIELDS, TABLE, FieldPlace, StateField, prepare
from tests.acceptance.world import PATIENCE, Controller, Database, Json, Kube, make_kube, open_database, remove, running
from tests.servers import Servers

SECRET = "connectionSecret"


#: Fields of privileges whose tests `make test` runs. The others take a second each.
QUICK = {"privileges.schemas.access", "privileges.objects.columns"}

#: Fields whose drift is noticed or restored in another way than that of the first field with their name in lastDrift.
APART = ("password.generate.length", "password.disabled", "memberOf.admin", "privileges.schemas.access")


def entries() -> list[Any]:
    """Returns the fields that the controller keeps as declared, as parameters of a test."""
    return [pytest.param(entry, id=path, marks=marks_of(path, entry)) for path, entry in STATE_FIELDS.items()]


def entries_by_drift_name() -> list[Any]:
    """Returns one field for each name that drift.ignore and lastDrift know, since policies are decided by that name,
    and those in `APART`.
    """
    chosen: dict[str, Any] = {}
    for (path, entry), parameter in zip(STATE_FIELDS.items(), entries(), strict=True):
        chosen.setdefault(path if path in APART else entry.drift_name, parameter)
    return list(chosen.values())


def marks_of(path: str, entry: StateField) -> list[pytest.MarkDecorator]:
    since = [pytest.mark.since(entry.since, path)] if entry.since else []
    return [*since, pytest.mark.slow] if path.startswith("privileges.") and path not in QUICK else since


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def home(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def kube(
    api_server: ApiServer, home: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Kube]:
    """A namespace whose objects may ask for any attribute."""
    made = await make_kube(api_server)
    folder = tmp_path_factory.mktemp("every-field")
    allow = ("--namespace", made.namespace, "--allow", ",".join(POWERS))
    async with running(Controller(api_server, home.dsn(), folder, *allow)):
        yield made
    await remove(made)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def database(home: PostgresServer, kube: Kube) -> AsyncIterator[Database]:
    async with open_database(home.dsn()) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def place(kube: Kube, database: Database) -> FieldPlace:
    made = FieldPlace(kube, database, f"f{secrets.token_hex(4)}")
    await prepare(made)
    return made


async def declare(place: FieldPlace, spec: Json, **more: Any) -> Json:
    await place.kube.apply(place.name, **{**place.fill(spec), **more})
    return await place.kube.wait_ready(place.name)


async def wait_seen(place: FieldPlace, entry: StateField, expected: Any) -> None:
    wanted = place.fill(expected)
    seen: list[Any] = []

    async def is_so() -> bool:
        seen[:] = [await look(place, entry)]
        return bool(seen[0] == wanted)

    if not await reached(is_so, PATIENCE):
        raise AssertionError(f"{wanted!r} expected within {PATIENCE} s, but {seen[0]!r} is seen")


async def look(place: FieldPlace, entry: StateField) -> Any:
    """Returns what is observed; a function may use `$` for the role's name."""
    return place.fill(await entry.look(place))


def find_fields(model: type[BaseModel] = PgRoleSpec, prefix: str = "") -> Iterator[str]:
    """Yields the paths of all fields, including nested ones, by their names in YAML."""
    for name, info in model.model_fields.items():
        path = f"{prefix}{info.alias or name}"
        nested = _nested(info.annotation)
        if nested is None:
            yield path
        else:
            yield from find_fields(nested, f"{path}.")


def _nested(annotation: Any) -> type[BaseModel] | None:
    """Returns the model of a field that is a model or a list of models, optional or not; otherwise None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, list):
        return next((model for model in map(_nested, get_args(annotation)) if model is not None), None)
    return None


def drifts(obj: Json) -> int:
    return int(obj.get("status", {}).get("driftCount", 0))


def test_every_field_of_the_model_has_an_entry() -> None:
    assert sorted(TABLE) == sorted(find_fields())


def test_every_ignorable_field_has_an_entry_that_makes_it_drift() -> None:
    assert set(get_args(IgnoredField)) == {entry.drift_name for entry in STATE_FIELDS.values() if entry.ignorable}


@pytest.mark.parametrize("test", [pytest.param(entry.test, id=path) for path, entry in EFFECT_FIELDS.items()])
def test_every_effect_field_names_an_existing_test(test: str) -> None:
    file, *names = test.split("::")
    nodes: list[ast.stmt] = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8")).body
    for name in names:
        tests = {node.name: node.body for node in nodes if isinstance(node, ast.ClassDef | ast.AsyncFunctionDef)}
        assert name in tests
        nodes = tests[name]


@pytest.mark.parametrize("entry", entries())
async def test_a_field_is_applied_repaired_changed_and_reset_to_its_default(
    place: FieldPlace, entry: StateField
) -> None:
    """Follows one object: it is created, drifts, is changed, and finally omits the field."""
    if entry.before:
        await place.database.execute(place.fill(entry.before))
    obj = await declare(place, entry.specs[0])
    assert await look(place, entry) == place.fill(entry.seen[0]), "Ready too early"
    assert drifts(obj) == 0
    await entry.break_in(place)
    counted = await wait_told(place, entry)
    await wait_seen(place, entry, entry.seen[0])
    obj = await place.kube.wait_ready(place.name)
    assert drifts(obj) == counted
    if entry.without is None:
        return
    await declare(place, entry.specs[1])
    await annotate(place, entry)
    await wait_seen(place, entry, entry.seen[1])
    obj = await place.kube.wait_ready(place.name)
    assert drifts(obj) == counted, "a change of spec is no drift"
    await declare(place, entry.specs[0])
    await declare(place, entry.without)
    await annotate(place, entry)
    await wait_seen(place, entry, entry.default)
    obj = await place.kube.wait_ready(place.name)
    assert drifts(obj) == counted, "a change of spec is no drift"


async def wait_told(place: FieldPlace, entry: StateField) -> int:
    """Waits until the object reports its first drift; returns its driftCount, which does not include Secrets."""
    if entry.drift_name == SECRET:
        event = await place.kube.wait_event("SecretRestored", about=place.name)
        assert place.name in event["note"]
        return 0
    obj = await place.kube.wait_for(place.name, lambda obj: drifts(obj) >= 1, "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == [entry.drift_name]
    assert obj["status"]["lastDrift"]["corrected"] is True
    return 1


@pytest.mark.parametrize("entry", entries_by_drift_name())
@pytest.mark.slow
async def test_drift_of_a_field_is_only_reported_under_report_and_stays_if_ignored(
    place: FieldPlace, entry: StateField
) -> None:
    await declare(place, entry.specs[0], drift={"policy": "Report"})
    assert await look(place, entry) == place.fill(entry.seen[0])
    await entry.break_in(place)
    obj = await place.kube.wait_reason(place.name, "DriftReported")
    assert obj["status"]["lastDrift"]["fields"] == [entry.drift_name]
    assert obj["status"]["lastDrift"]["corrected"] is False
    assert drifts(obj) == 0
    assert await look(place, entry) == place.fill(entry.drifted)
    if not entry.ignorable:
        return
    await declare(place, entry.specs[0], drift={"policy": "Correct"})
    await wait_seen(place, entry, entry.seen[0])
    before = drifts(await declare(place, entry.specs[0], drift={"policy": "Correct", "ignore": [entry.drift_name]}))
    await entry.break_in(place)
    # Drift of another field shows that the controller read the role after that.
    probe, field = ("LOGIN", "login") if entry.drift_name != "login" else ("CREATEDB", "createdb")
    await place.database.execute(f"ALTER ROLE {place.name} {probe}")
    obj = await place.kube.wait_for(place.name, lambda obj: drifts(obj) > before, "another drift")
    assert obj["status"]["lastDrift"]["fields"] == [field]
    assert await look(place, entry) == place.fill(entry.drifted)


async def annotate(place: FieldPlace, entry: StateField) -> None:
    """Sets the entry's annotations, each time with new values."""
    if entry.annotations:
        annotations = {name: f"{value}-{secrets.token_hex(4)}" for name, value in entry.annotations.items()}
        await place.kube.patch(place.name, {"metadata": {"annotations": annotations}})
