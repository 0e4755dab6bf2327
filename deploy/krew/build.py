"""Builds archives of the kubectl plugin: build.py --uv UV [--into DIR] [PLATFORM …], as `make plugin` does.

An archive holds LICENSE and the zipapp `kubectl-pgrole`: the product and its locked dependencies for each Python that
archive/__main__.py names. Files that are the same for all of them are packed once. Beside each archive is its SHA-256,
and one manifest for krew. The same sources give the same bytes.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).with_name("archive")
MANIFEST = Path(__file__).with_name("pgrole.yaml")
PROGRAM = "kubectl-pgrole"
#: Names of platforms: krew's, and uv's for the wheels. Linux: glibc 2.28 or later.
PLATFORMS = {
    "linux/amd64": "x86_64-manylinux_2_28",
    "linux/arm64": "aarch64-manylinux_2_28",
    "darwin/amd64": "x86_64-apple-darwin",
    "darwin/arm64": "aarch64-apple-darwin",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_MOMENT = (1980, 1, 1, 0, 0, 0)
# What compilers read, and what an installer noted.
_SOURCES = (".c", ".h", ".pxd", ".pyi", ".pyx")
_LEFT_OUT = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", ".lock", "uv_cache.json")


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds archives of the kubectl plugin, and a manifest for krew.")
    parser.add_argument("platforms", nargs="*", metavar="PLATFORM", help=f"{', '.join(PLATFORMS)}; default: this one")
    parser.add_argument("--uv", default="uv", metavar="FILE", help="uv")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR", help="default: dist")
    parser.add_argument("--level", type=int, default=6, metavar="N", help="compression, 1 (fastest) to 9; default: 6")
    options = parser.parse_args()
    if unknown := set(options.platforms) - PLATFORMS.keys():
        parser.error(f"unknown platform {', '.join(sorted(unknown))}: it is one of {', '.join(PLATFORMS)}")
    options.into.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    sums = {}
    with tempfile.TemporaryDirectory(prefix="kubectl-pgrole-") as scratch:
        wheel, locked = _prepare(options.uv, Path(scratch))
        for name in options.platforms or [_this_platform()]:
            trees = _install(options.uv, PLATFORMS[name], wheel, locked, Path(scratch) / name.replace("/", "-"))
            archive = options.into / f"{PROGRAM}-{version}-{name.replace('/', '-')}.tar.gz"
            archive.write_bytes(_pack_archive(_pack_program(trees, version, name, options.level)))
            sums[name] = hashlib.sha256(archive.read_bytes()).hexdigest()
            archive.with_name(f"{archive.name}.sha256").write_text(f"{sums[name]}  {archive.name}\n", encoding="utf-8")
            sys.stdout.write(f"{archive} ({archive.stat().st_size / 1e6:.1f} MB)\n")
    manifest = options.into / "pgrole.yaml"
    manifest.write_text(make_manifest(MANIFEST.read_text(encoding="utf-8"), version, sums), encoding="utf-8")
    sys.stdout.write(f"{manifest}\n")


def make_manifest(template: str, version: str, sums: Mapping[str, str]) -> str:
    """Fills in the version, and the SHA-256 of each platform's archive; leaves out the other platforms."""
    manifest = yaml.safe_load(template.replace("VERSION", version))
    kept = []
    for one in manifest["spec"]["platforms"]:
        labels = one["selector"]["matchLabels"]
        digest = sums.get(f"{labels['os']}/{labels['arch']}")
        if digest is not None:
            kept.append({**one, "sha256": digest})
    manifest["spec"]["platforms"] = kept
    return str(yaml.dump(manifest, Dumper=_Readable, sort_keys=False, width=120))


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _represent_text)


def _this_platform() -> str:
    machine = platform.machine().lower()
    return f"{sys.platform}/{_ARCHITECTURES.get(machine, machine)}"


def _prepare(uv: str, scratch: Path) -> tuple[Path, Path]:
    """Returns the product's wheel and the locked requirements with their hashes."""
    locked = scratch / "requirements.txt"
    _run(uv, "export", "--locked", "--no-dev", "--no-emit-project", "--output-file", locked)
    _run(uv, "build", "--wheel", "--out-dir", scratch)
    [wheel] = scratch.glob("*.whl")
    return wheel, locked


def _install(uv: str, wheels: str, wheel: Path, locked: Path, folder: Path) -> dict[str, dict[str, bytes]]:
    """Returns the installed files by Python, like cp313, and path."""
    found = {}
    for minor in _pythons():
        place = folder / f"cp3{minor}"
        target = ("--target", place, "--python-version", f"3.{minor}", "--python-platform", wheels, "--no-deps")
        _run(uv, "pip", "install", *target, "--only-binary", ":all:", "--require-hashes", "-r", locked)
        _run(uv, "pip", "install", *target, wheel)
        found[f"cp3{minor}"] = {
            path.relative_to(place).as_posix(): path.read_bytes()
            for path in sorted(place.rglob("*"))
            if _is_kept(path, place)
        }
    return found


def _pythons() -> range:
    """Returns the minor versions of Python 3 that the archive's start accepts."""
    text = (SOURCES / "__main__.py").read_text(encoding="utf-8")
    found = re.search(r"^OLDEST, NEWEST = \(3, (\d+)\), \(3, (\d+)\)$", text, flags=re.MULTILINE)
    if found is None:
        raise ValueError("archive/__main__.py names no versions")
    return range(int(found[1]), int(found[2]) + 1)


def _is_kept(path: Path, place: Path) -> bool:
    parts = path.relative_to(place).parts
    is_read = path.suffix not in _SOURCES and path.name not in _LEFT_OUT
    return path.is_file() and is_read and parts[0] != "bin" and "__pycache__" not in parts


def _pack_program(trees: Mapping[str, Mapping[str, bytes]], version: str, name: str, level: int) -> bytes:
    """Returns the zipapp. Its own directory is short, so that a start finds what it needs at once."""
    first, *others = trees.values()
    common = {path: text for path, text in first.items() if all(other.get(path) == text for other in others)}
    parts = {"common.zip": _zip(common, level)}
    for tag, files in trees.items():
        parts[f"{tag}.zip"] = _zip({path: text for path, text in files.items() if path not in common}, level)
    build = hashlib.sha256(b"".join(parts.values())).hexdigest()[:12]
    system, _, architecture = name.partition("/")
    about = {"version": version, "build": build, "os": system, "arch": architecture}
    sources = {path.name: path.read_bytes() for path in sorted(SOURCES.glob("*.py"))}
    parts["build.json"] = json.dumps(about).encode()
    return _zip({**sources, **parts}, level, b"#!/usr/bin/env python3\n")


def _zip(files: Mapping[str, bytes], level: int, start: bytes = b"") -> bytes:
    packed = io.BytesIO()
    packed.write(start)
    with zipfile.ZipFile(packed, "w") as archive:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, _MOMENT)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_STORED if path.endswith(".zip") else zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=level)
    return packed.getvalue()


def _pack_archive(program: bytes) -> bytes:
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for name, content, mode in (
            ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
            (PROGRAM, program, 0o755),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _run(*command: str | Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"`{' '.join(map(str, command))}` failed:\n{done.stderr}")


if __name__ == "__main__":
    main()
