"""Unpacks the product and its dependencies once, into the user's cache folder, and runs it from there.

Compiled extensions cannot be imported from an archive. Each build and each Python has a folder of its own, which is
complete as soon as it has its name: starts at the same time do not meet. If the cache folder cannot be written, or
belongs to another user, the program is unpacked into a temporary folder for this one run. What only an unpacking needs
is imported there, since every start waits for the imports here.
"""

import json
import os
import sys
import time
from pathlib import Path

_UNUSED_SECONDS = 30 * 86400
_MAKING = ".making-"
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def main() -> None:
    """Runs the command line; ends the process."""
    archive = Path(sys.argv[0]).resolve()
    try:
        folder = _find(archive)
    except OSError as error:
        sys.exit(f"kubectl pgrole: cannot unpack {archive}: {error}")
    sys.path[0] = str(folder)  # in place of the archive, before all that is installed for this Python
    from pgrole_controller.__main__ import main as run

    run()


def _find(archive: Path) -> Path:
    about = json.loads(__loader__.get_data("build.json"))
    tag = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pgrole-controller" / "plugin"
    folder = cache / f"{about['version']}-{about['build']}-{tag}"
    if _is_ours(folder):
        _note_use(folder)
        return folder
    _check_machine(about)
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_ours(cache):
            return _unpack(archive, tag, cache, folder)
    except OSError:
        pass  # a home that is read-only, full or absent: unpack elsewhere
    return _unpack_for_one_run(archive, tag)


def _unpack(archive: Path, tag: str, cache: Path, folder: Path) -> Path:
    import shutil
    import tempfile

    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=cache))
    try:
        _extract(archive, tag, making)
        making.rename(folder)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not _is_ours(folder):  # otherwise another start was faster
            raise
    _remove_unused(cache, folder)
    return folder


def _unpack_for_one_run(archive: Path, tag: str) -> Path:
    import atexit
    import shutil
    import tempfile

    temporary = Path(tempfile.mkdtemp(prefix="kubectl-pgrole-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _extract(archive, tag, temporary)
    return temporary


def _extract(archive: Path, tag: str, folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(archive) as whole:
        for part in ("common.zip", f"{tag}.zip"):
            with whole.open(part) as packed, zipfile.ZipFile(packed) as files:
                files.extractall(folder)


def _is_ours(folder: Path) -> bool:
    """Tells whether it exists and only this user (or root) has made it: its code is run."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _note_use(folder: Path) -> None:
    try:
        if time.time() - folder.stat().st_mtime > 86400:
            os.utime(folder)
    except OSError:
        pass  # read-only: it is never removed then


def _remove_unused(cache: Path, kept: Path) -> None:
    """Removes builds that no start used for 30 days, and what interrupted starts left."""
    import shutil

    for other in cache.iterdir():
        try:
            unused = time.time() - other.stat().st_mtime > (3600 if other.name.startswith(_MAKING) else _UNUSED_SECONDS)
        except OSError:
            continue  # another start removed it
        if unused and other != kept:
            shutil.rmtree(other, ignore_errors=True)


def _check_machine(about: dict[str, str]) -> None:
    import platform

    system, machine = sys.platform, _MACHINES.get(platform.machine().lower(), platform.machine())
    if (system, machine) != (about["os"], about["arch"]):
        sys.exit(
            f"kubectl pgrole: this archive is for {about['os']}/{about['arch']}, but this Python is for "
            f"{system}/{machine}: install the other archive, or use `pip install pgrole-controller`"
        )
    if system == "linux" and platform.libc_ver()[0] != "glibc":
        sys.exit("kubectl pgrole: this archive needs glibc: use `pip install pgrole-controller` here")
