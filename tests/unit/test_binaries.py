"""Where kube-apiserver and etcd come from: the order of sources, and which files are rejected."""

import hashlib
import io
import sys
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from pgrole_controller.local import binaries
from pgrole_controller.local.binaries import BinariesError, cache_directory, find, find_present
from pgrole_controller.local.display import Display

Runs = Callable[[], list[str]]
NOWHERE = "http://127.0.0.1:9/envtest-releases.yaml"
GO = """#!/bin/sh
# Imitates `go list` and `go build -o FOLDER/ tool`.
echo "$GOTOOLCHAIN $*" >>"$GO_LOG"
[ "$1" = list ] && exit 0
while [ "$1" != -o ]; do shift; done
for name in kube-apiserver server; do echo built >"$2$name"; chmod +x "$2$name"; done
"""


def programs(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("kube-apiserver", "etcd"):
        (folder / name).write_text(folder.name)
        (folder / name).chmod(0o755)
    return folder


def cached(cache: Path) -> Path:
    return binaries._folder(cache)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A machine that has an empty cache and no Go."""
    (tmp_path / "bin").mkdir()
    return {"PGROLE_CACHE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}


@pytest.fixture
def go(tmp_path: Path, environment: dict[str, str]) -> Runs:
    """Adds Go to the machine. Returns a function that lists its runs as `GOTOOLCHAIN arguments`."""
    program = tmp_path / "bin" / "go"
    program.write_text(GO)
    program.chmod(0o755)
    environment["PATH"] += ":/usr/bin:/bin"
    log = tmp_path / "go.log"
    environment["GO_LOG"] = str(log)
    return lambda: log.read_text().splitlines() if log.exists() else []


@asynccontextmanager
async def releases(archive: bytes, published: str) -> AsyncIterator[str]:
    """Serves an index that lists `published` as the hash of 1.36.7's archive. Yields the URL of the index."""
    machine = binaries._platform()

    async def index(request: web.Request) -> web.Response:
        link = f"{request.url.origin()}/archive.tar.gz"
        older = f"{{envtest-v1.36.2-{machine}.tar.gz: {{hash: '00', selfLink: nowhere}}}}"
        newer = f"{{envtest-v1.36.7-{machine}.tar.gz: {{hash: '{published}', selfLink: '{link}'}}}}"
        return web.Response(text=f"releases: {{v1.36.2: {older}, v1.36.7: {newer}, v1.37.0: {{}}}}")

    async def content(request: web.Request) -> web.Response:
        return web.Response(body=archive)

    site = web.Application()
    site.add_routes([web.get("/index.yaml", index), web.get("/archive.tar.gz", content)])
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/index.yaml"
    finally:
        await runner.cleanup()


def envtest_archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in ("kube-apiserver", "etcd", "kubectl", "../../escaped"):
            member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_kubebuilder_assets_come_before_the_cache(tmp_path: Path, environment: dict[str, str]) -> None:
    programs(cached(cache_directory(environment)))
    environment["KUBEBUILDER_ASSETS"] = str(programs(tmp_path / "assets"))
    found = find_present(environment)
    assert found is not None
    assert (found.origin, found.etcd) == ("KUBEBUILDER_ASSETS", tmp_path / "assets" / "etcd")


def test_kubebuilder_assets_without_the_programs_are_an_error(tmp_path: Path, environment: dict[str, str]) -> None:
    programs(cached(cache_directory(environment)))
    environment["KUBEBUILDER_ASSETS"] = str(tmp_path)
    with pytest.raises(BinariesError, match=f"KUBEBUILDER_ASSETS is {tmp_path}"):
        find_present(environment)


async def test_the_cache_comes_before_archive_and_go(environment: dict[str, str], go: Runs) -> None:
    folder = programs(cached(cache_directory(environment)))
    found = await find(Display(io.StringIO()), environment, NOWHERE)
    assert (found.origin, found.kube_apiserver) == ("cache", folder / "kube-apiserver")
    assert go() == []


def test_an_incomplete_cache_is_ignored(environment: dict[str, str]) -> None:
    (programs(cached(cache_directory(environment))) / "etcd").unlink()
    assert find_present(environment) is None


def test_a_cache_with_a_program_that_is_not_executable_is_ignored(environment: dict[str, str]) -> None:
    (programs(cached(cache_directory(environment))) / "etcd").chmod(0o644)
    assert find_present(environment) is None


async def test_the_newest_archive_of_the_minor_version_is_preferred_to_go(
    environment: dict[str, str], go: Runs
) -> None:
    archive = envtest_archive()
    async with releases(archive, hashlib.sha512(archive).hexdigest()) as index:
        found = await find(Display(io.StringIO()), environment, index)
    assert found.origin == "archive"
    assert found.etcd.read_text() == "etcd"
    assert sorted(path.name for path in found.etcd.parent.iterdir()) == ["etcd", "kube-apiserver"]
    assert go() == []
    assert find_present(environment) is not None


async def test_an_archive_whose_sha512_differs_from_the_published_one_is_rejected(environment: dict[str, str]) -> None:
    async with releases(envtest_archive(), "ab" * 64) as index:
        with pytest.raises(BinariesError, match=r"published one is abab.*not used"):
            await find(Display(io.StringIO()), environment, index)
    left = {path.name for path in cache_directory(environment).iterdir()}
    assert left == {"lock"}


async def test_go_builds_both_programs_without_an_archive_and_the_server_is_renamed_to_etcd(
    environment: dict[str, str], go: Runs
) -> None:
    environment["GOTOOLCHAIN"] = "local"
    told = io.StringIO()
    found = await find(Display(told), environment, NOWHERE)
    assert found.origin == "Go"
    assert found.etcd.read_text() == "built\n"
    assert "gitVersion=v1.36.3" in go()[-1]
    assert all(line.startswith("auto ") for line in go())
    assert "4 minutes" in told.getvalue()
    assert {path.name for path in cache_directory(environment).iterdir()} == {"lock", found.etcd.parent.name}


async def test_what_a_killed_build_left_is_removed_by_the_next(environment: dict[str, str], go: Runs) -> None:
    folder = cached(cache_directory(environment))
    programs(folder.parent / f"making-{folder.name}-killed")
    others = programs(folder.parent / "making-others-running")
    found = await find(Display(io.StringIO()), environment, NOWHERE)
    left = {path.name for path in cache_directory(environment).iterdir()}
    assert left == {"lock", found.etcd.parent.name, others.name}


async def test_concurrent_searches_build_only_once(environment: dict[str, str], go: Runs) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(find, Display(io.StringIO()), environment, NOWHERE)
    assert sum(" build " in line for line in go()) == 1


async def test_the_error_of_a_failed_build_quotes_its_last_lines(
    tmp_path: Path, environment: dict[str, str], go: Runs
) -> None:
    (tmp_path / "bin" / "go").write_text("#!/bin/sh\necho 'no space left' >&2; exit 1\n")
    with pytest.raises(BinariesError, match="no space left"):
        await find(Display(io.StringIO()), environment, NOWHERE)


async def test_the_error_lists_the_choices_when_no_source_works(environment: dict[str, str]) -> None:
    with pytest.raises(BinariesError) as raised:
        await find(Display(io.StringIO()), environment, NOWHERE)
    folder = cached(cache_directory(environment))
    for choice in ("install Go 1.24", "set KUBEBUILDER_ASSETS", f"copy both into {folder}"):
        assert choice in str(raised.value)


def test_the_go_module_builds_the_requested_kubernetes_version() -> None:
    module = (Path(binaries.__file__).parent / "controlplane" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES} " in module


def test_progress_outside_a_terminal_is_at_most_one_line_every_15_s() -> None:
    stream = io.StringIO()
    display = Display(stream)
    for count in range(100):
        display.advance(f"compiled {count}")
    assert stream.getvalue() == "  compiled 0\n"


def test_signs_that_a_stream_cannot_encode_are_replaced_by_plain_ones() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Display(stream).done("ready …")
    assert raw.getvalue() == b"* ready ...\n"
    stream.close()


def test_pgrole_cache_dir_overrides_the_default_cache_directory(tmp_path: Path) -> None:
    assert cache_directory({"PGROLE_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cache_directory({}).name == "pgrole-controller"
    assert sys.platform in cached(tmp_path).name
