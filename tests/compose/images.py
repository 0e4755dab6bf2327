"""Builds stand-ins for the images that Dockerfile and compose.yaml name, from what this machine has.

For machines without a registry. Debian 13 comes from debootstrap and, as in the original images, is the base of
PostgreSQL and of the build. The runtime image is unpacked from the same packages as the distroless one. kube-apiserver
and etcd are those of the tests, and PostgreSQL that of `pgrole-controller dev`.
"""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pgrole_controller.local.binaries import Binaries
from tests.compose.engine import run, say

ROOT = Path(__file__).parents[2]
_FILES = Path(__file__).with_name("standins")
_DEBIAN = "stand-in/debian:trixie"
_MIRROR = "http://deb.debian.org/debian"
#: For the build's Debian; they include the packages of the runtime image.
_BUILD_PACKAGES = ("ca-certificates", "python3.13", "tzdata", "netbase")
#: Packages in gcr.io/distroless/python3-debian13, as far as the build's system has them.
_RUNTIME_PACKAGES = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libcom-err2",
    "libcrypt1",
    "libdb5.3t64",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libncursesw6",
    "libpython3.13-minimal",
    "libpython3.13-stdlib",
    "libreadline8t64",
    "libsqlite3-0",
    "libssl3t64",
    "libstdc++6",
    "libtinfo6",
    "libuuid1",
    "libzstd1",
    "media-types",
    "netbase",
    "python3.13-minimal",
    "tzdata",
    "zlib1g",
)


def names() -> dict[str, str]:
    """Returns the names of the images, read from Dockerfile and compose.yaml."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    bases = dict(re.findall(r"^ARG (\w+)_IMAGE=(\S+)$", dockerfile, re.MULTILINE))
    services = re.findall(r"^    image: (\S+)$", compose, re.MULTILINE)
    found = {"build": bases["BUILD"], "runtime": bases["RUNTIME"]}
    for part in ("postgres", "etcd", "kube-apiserver"):
        found[part] = next(image for image in services if re.search(rf"(^|/){part}:", image))
    return found


def make_postgres(environment: Mapping[str, str], cache: Path, version: int, programs: Path, tag: str) -> None:
    """Builds `tag` like PostgreSQL's official image, as far as its entrypoint is used. `programs`: folder of initdb."""
    _make_debian(environment, cache)
    with _context() as folder:
        for part in (programs.parent, programs.parents[1].with_name(f"{programs.parents[1].name}.libs")):
            if part.is_dir():  # side by side, as their rpath expects
                into = folder / "programs" / part.relative_to(programs.parents[2])
                shutil.copytree(part, into, symlinks=True)
        shutil.copy(_FILES / "postgres-entrypoint.sh", folder / "docker-entrypoint.sh")
        inside = f"/usr/lib/postgresql/{programs.relative_to(programs.parents[2])}"
        data = f"/var/lib/postgresql/{version}/docker" if version >= 18 else "/var/lib/postgresql/data"
        _write(
            folder,
            f"""
            FROM {_DEBIAN}
            RUN groupadd -r -g 999 postgres && useradd -r -u 999 -g postgres -d /var/lib/postgresql postgres \\
                && install -d -o postgres -g postgres /var/lib/postgresql /docker-entrypoint-initdb.d
            COPY programs /usr/lib/postgresql
            COPY docker-entrypoint.sh /usr/local/bin/
            ENV PATH={inside}:$PATH PGDATA={data} LANG=C.UTF-8
            VOLUME {"/var/lib/postgresql" if version >= 18 else data}
            STOPSIGNAL SIGINT
            EXPOSE 5432
            ENTRYPOINT ["docker-entrypoint.sh"]
            CMD ["postgres"]
            """,
        )
        _build(environment, folder, tag)


def make_control_plane(environment: Mapping[str, str], binaries: Binaries, etcdctl: Path) -> None:
    """Builds the images of etcd and kube-apiserver, which contain only their programs."""
    asked = names()
    for part, programs in (
        ("etcd", {"etcd": binaries.etcd, "etcdctl": etcdctl}),
        ("kube-apiserver", {"kube-apiserver": binaries.kube_apiserver}),
    ):
        with _context() as folder:
            bin_folder = folder / "usr" / "local" / "bin"
            bin_folder.mkdir(parents=True)
            for name, program in programs.items():
                shutil.copy(program, bin_folder / name)
            if part == "kube-apiserver":  # as in the original image: not every container may execute it
                run(["setcap", "cap_net_bind_service=+ep", str(bin_folder / part)])
            _import(environment, folder, asked[part])


def make_bases(environment: Mapping[str, str], cache: Path) -> None:
    """Builds the two base images of the Dockerfile."""
    asked = names()
    _make_debian(environment, cache)
    with _context() as folder:
        uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
        shutil.copy(uv, folder / "uv")
        # If this machine uses a proxy with its own CA, so must a build.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", folder / "ca-certificates.crt")
        _write(
            folder,
            f"""
            FROM {_DEBIAN}
            COPY uv /usr/local/bin/
            COPY ca-certificates.crt /etc/ssl/certs/
            ENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt
            """,
        )
        _build(environment, folder, asked["build"])
    with _context() as folder:
        _unpack(cache, folder / "root")
        _write(
            folder,
            """
            FROM scratch
            COPY root /
            ENV LANG=C.UTF-8 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PATH=/usr/bin:/bin
            USER 65532
            WORKDIR /home/nonroot
            ENTRYPOINT ["/usr/bin/python3.13"]
            """,
        )
        _build(environment, folder, asked["runtime"])


def _make_debian(environment: Mapping[str, str], cache: Path) -> None:
    """Builds the base of PostgreSQL and of the build, and caches the packages it was made from."""
    system = cache / "debian"
    if not (system / "done").exists():
        shutil.rmtree(system, ignore_errors=True)
        include = f"--include={','.join(_BUILD_PACKAGES)}"
        run(["debootstrap", "--variant=minbase", include, "trixie", str(system), _MIRROR])
        (system / "done").touch()
    if subprocess.run(
        ["docker", "image", "inspect", _DEBIAN], env=environment, capture_output=True, check=False
    ).returncode:
        _import(environment, system, _DEBIAN)


def _unpack(cache: Path, root: Path) -> None:
    """Unpacks the packages of the runtime image without running their scripts."""
    archives = cache / "debian" / "var" / "cache" / "apt" / "archives"
    for package in _RUNTIME_PACKAGES:
        for archive in archives.glob(f"{package}_*.deb"):
            run(["dpkg-deb", "--extract", str(archive), str(root)])
    for unwanted in ("usr/share/doc", "usr/share/man", "usr/share/lintian"):
        shutil.rmtree(root / unwanted, ignore_errors=True)
    for name in ("python", "python3"):
        link = root / "usr" / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to("python3.13")
    system = cache / "debian"
    (root / "etc" / "ssl" / "certs").mkdir(parents=True, exist_ok=True)
    shutil.copy(system / "etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
    for name, text in (
        ("passwd", "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"),
        ("group", "root:x:0:\nnonroot:x:65532:\n"),
        ("nsswitch.conf", "hosts: files dns\n"),
    ):
        (root / "etc" / name).write_text(text, encoding="utf-8")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)


def _import(environment: Mapping[str, str], root: Path, tag: str) -> None:
    """Imports a file system as an image, with its files' capabilities, which a build context would lose."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "root.tar"
        leave_out = "--exclude=./var/cache/apt/archives/*.deb"
        run(["tar", "--xattrs", "--xattrs-include=*", leave_out, "-C", str(root), "-cf", str(archive), "."])
        path = "--change=ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        run(["docker", "import", path, str(archive), tag], environment=environment)


@contextmanager
def _context() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgrole-image-") as folder:
        yield Path(folder)


def _write(folder: Path, dockerfile: str) -> None:
    text = "\n".join(line.strip() for line in dockerfile.strip().splitlines())
    (folder / "Dockerfile").write_text(text + "\n", encoding="utf-8")


def _build(environment: Mapping[str, str], folder: Path, tag: str) -> None:
    say(f"making {tag}")
    run(["docker", "build", "--quiet", "--tag", tag, str(folder)], environment=environment)
