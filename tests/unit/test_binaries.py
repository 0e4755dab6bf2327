"""Where kube-apiserver and etcd come from: the order, and what is refused."""

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
# As `go list` and `go build -o FOLDER/ tool` do, as far as it is looked at.
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
    """Adds a Go to the machine. A function that tells its runs: `GOTOOLCHAIN arguments`."""
    program = tmp_path / "bin" / "go"
    program.write_text(GO)
    program.chmod(0o755)
    environment["PATH"] += ":/usr/bin:/bin"
    log = tmp_path / "go.log"
    environment["GO_LOG"] = str(log)
    return lambda: log.read_text().splitlines() if log.exists() else []


@asynccontextmanager
async def releases(archive: bytes, published: str) -> AsyncIterator[str]:
    """A site with an index that publishes `published` as the hash of 1.36.7's archive. The URL of the index."""
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


def test_kubebuilder_assets_without_the_programs_are_an_error_and_not_passed_over(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    programs(cached(cache_directory(environment)))
    environment["KUBEBUILDER_ASSETS"] = str(tmp_path)
    with pytest.raises(BinariesError, match=f"KUBEBUILDER_ASSETS is {tmp_path}"):
        find_present(environment)


async def test_the_cache_comes_before_archive_and_go(environment: dict[str, str], go: Runs) -> None:
    folder = programs(cached(cache_directory(environment)))
    found = await find(Display(io.StringIO()), environment, NOWHERE)
    assert (found.origin, found.kube_apiserver) == ("cache", folder / "kube-apiserver")
    assert go() == []


def test_a_cache_that_lacks_one_program_does_not_count(environment: dict[str, str]) -> None:
    (programs(cached(cache_directory(environment))) / "etcd").unlink()
    assert find_present(environment) is None


def test_a_file_that_cannot_be_executed_does_not_count(environment: dict[str, str]) -> None:
    (programs(cached(cache_directory(environment))) / "etcd").chmod(0o644)
    assert find_present(environment) is None


async def test_the_newest_archive_of_the_minor_version_is_taken_before_go(
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


async def test_an_archive_with_another_sha512_than_published_is_refused(environment: dict[str, str]) -> None:
    async with releases(envtest_archive(), "ab" * 64) as index:
        with pytest.raises(BinariesError, match=r"published one is abab.*not used"):
            await find(Display(io.StringIO()), environment, index)
    left = {path.name for path in cache_directory(environment).iterdir()}
    assert left == {"lock"}


async def test_go_builds_what_no_archive_gave_and_etcd_gets_its_name(environment: dict[str, str], go: Runs) -> None:
    environment["GOTOOLCHAIN"] = "local"
    told = io.StringIO()
    found = await find(Display(told), environment, NOWHERE)
    assert found.origin == "Go"
    assert found.etcd.read_text() == "built\n"
    assert "gitVersion=v1.36.3" in go()[-1]
    assert all(line.startswith("auto ") for line in go())
    assert "4 minutes" in told.getvalue()
    assert {path.name for path in cache_directory(environment).iterdir()} == {"lock", found.etcd.parent.name}


async def test_two_that_look_at_once_build_once(environment: dict[str, str], go: Runs) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(find, Display(io.StringIO()), environment, NOWHERE)
    assert sum(" build " in line for line in go()) == 1


async def test_a_failing_build_is_told_with_its_last_lines(
    tmp_path: Path, environment: dict[str, str], go: Runs
) -> None:
    (tmp_path / "bin" / "go").write_text("#!/bin/sh\necho 'no space left' >&2; exit 1\n")
    with pytest.raises(BinariesError, match="no space left"):
        await find(Display(io.StringIO()), environment, NOWHERE)


async def test_where_no_way_works_the_error_lists_the_choices(environment: dict[str, str]) -> None:
    with pytest.raises(BinariesError) as raised:
        await find(Display(io.StringIO()), environment, NOWHERE)
    folder = cached(cache_directory(environment))
    for choice in ("install Go 1.24", "set KUBEBUILDER_ASSETS", f"copy both into {folder}"):
        assert choice in str(raised.value)


def test_the_version_asked_for_is_the_one_that_go_builds() -> None:
    module = (Path(binaries.__file__).parent / "controlplane" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES} " in module


def test_progress_off_a_terminal_is_a_line_every_15_s_at_most() -> None:
    stream = io.StringIO()
    display = Display(stream)
    for count in range(100):
        display.advance(f"compiled {count}")
    assert stream.getvalue() == "  compiled 0\n"


def test_a_stream_that_cannot_say_a_sign_gets_a_plain_one() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Display(stream).done("ready …")
    assert raw.getvalue() == b"* ready ...\n"
    stream.close()


def test_the_cache_is_the_users_unless_pgrole_cache_dir_names_one(tmp_path: Path) -> None:
    assert cache_directory({"PGROLE_CACHE_DIR": str(tmp_path)}) == tmp_path
    assert cache_directory({}).name == "pgrole-controller"
    assert sys.platform in cached(tmp_path).name
