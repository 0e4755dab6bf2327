"""PgRoles and PgServers in YAML and JSON files, directories and standard input, for commands without a cluster.

Guarantees: an invalid document is an error with its file and line, and hides no other; what is read is bounded,
aliases included. Other kinds are ignored; a List is unfolded.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgrole_controller.api.crd import find_unknown_fields, remove_nulls
from pgrole_controller.api.reading import Invalid, read_pgrole, read_pgserver
from pgrole_controller.api.validation import is_namespace_name, is_object_name
from pgrole_controller.commands.manifest_documents import Unusable, read_values, split_documents
from pgrole_controller.core.errors import Reason, Refused, make_legible
from pgrole_controller.core.request import Key
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.settings import WrongSetting

if TYPE_CHECKING:
    from pgrole_controller.api.pgrole import PgRole

STDIN = "-"

#: Bytes of one file and of all, and files of a directory.
LARGEST_FILE = 32 * 2**20
MOST_BYTES = 256 * 2**20
MOST_FILES = 10_000

_SUFFIXES = (".yaml", ".yml", ".json")
_GROUP = "pgrole.dev/"
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class DeclaredRole:
    """A PgRole as it is written. `place`: file and line. `obj`: as JSON, with its namespace, without nulls."""

    key: Key
    place: str
    obj: dict[str, Any]
    pgrole: "PgRole"

    @property
    def server(self) -> str | None:
        """The name of the PgServer that it names; None if it names none."""
        reference = (self.obj.get("spec") or {}).get("serverRef") or {}
        return reference.get("name") or None


@dataclass(frozen=True, slots=True)
class DeclaredServer:
    name: str
    place: str
    obj: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WrongDocument:
    """Why a document is left out. `key`: of the object, as far as it is known."""

    key: Key | None
    place: str
    error: Refused


@dataclass(frozen=True, slots=True)
class Manifests:
    """In the order of the files."""

    roles: tuple[DeclaredRole, ...] = ()
    servers: tuple[DeclaredServer, ...] = ()
    wrong: tuple[WrongDocument, ...] = ()


def read_manifests(names: Sequence[str], namespace: str) -> Manifests:
    """Reads files, directories with their subdirectories, and standard input (`-`). `namespace`: of objects that name
    none. Raises WrongSetting for a file that cannot be read.
    """
    return parse_manifests(_texts(names), namespace)


def parse_manifests(texts: Iterable[tuple[str, str]], namespace: str) -> Manifests:
    """As `read_manifests`, of these texts, each with the name of its place."""
    collected = _Collected(namespace)
    for place, text in texts:
        collected.add_text(place, text)
    return Manifests(tuple(collected.roles.values()), tuple(collected.servers.values()), tuple(collected.wrong))


class _Collected:
    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.roles: dict[Key, DeclaredRole] = {}
        self.servers: dict[str, DeclaredServer] = {}
        self.wrong: list[WrongDocument] = []

    def add_text(self, name: str, text: str) -> None:
        for line, document in split_documents(text):
            place = f"{name}:{line}"
            try:
                for place, value in read_values(name, line, document):
                    self._add(place, value)
            except Unusable as error:
                self._refuse(error.place(name, place), str(error))

    def _add(self, place: str, value: object) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            self._refuse(place, "the document is not an object: write apiVersion, kind, metadata and spec")
            return
        kind, items = value.get("kind"), value.get("items")
        if isinstance(kind, str) and kind.endswith("List") and isinstance(items, list):
            for item in items:
                self._add(place, item)
        elif str(value.get("apiVersion", "")).startswith(_GROUP):
            if kind == "PgRole":
                self._add_role(place, value)
            elif kind == "PgServer":
                self._add_server(place, value)
            else:
                self._refuse(place, f"kind must be PgRole or PgServer with this apiVersion, not {kind!s:.64}")
        elif kind in ("PgRole", "PgServer") and not value.get("apiVersion"):
            self._refuse(place, f"write apiVersion: {PGROLES.api_version}")

    def _add_role(self, place: str, obj: dict[str, Any]) -> None:
        metadata = obj.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        namespace, name = metadata.get("namespace") or self._namespace, metadata.get("name")
        if not isinstance(name, str) or not is_object_name(name):
            self._refuse(place, "metadata.name must be a DNS subdomain name: lower-case letters, digits, - and .")
            return
        if not isinstance(namespace, str) or not is_namespace_name(namespace):
            self._refuse(place, "metadata.namespace must be a DNS label: lower-case letters, digits and -")
            return
        key = Key(namespace, name)
        metadata["namespace"] = namespace
        obj = remove_nulls({**obj, "metadata": metadata}, "PgRole")
        try:
            pgrole = read_pgrole(obj)
        except (Invalid, RecursionError) as error:
            self._refuse(place, str(error) or "the object is nested too deeply", key)
            return
        if self._has_unknown_fields(place, obj, "PgRole", key):
            return
        if key in self.roles:
            self._refuse(place, f"PgRole {key} is declared twice, first in {self.roles[key].place}: remove one", key)
            return
        self.roles[key] = DeclaredRole(key, place, obj, pgrole)

    def _add_server(self, place: str, obj: dict[str, Any]) -> None:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not isinstance(name, str) or not is_object_name(name):
            self._refuse(place, "metadata.name must be a DNS subdomain name: lower-case letters, digits, - and .")
            return
        obj = remove_nulls(obj, "PgServer")
        try:
            read_pgserver(obj)
        except (Invalid, RecursionError) as error:
            self._refuse(place, f'PgServer "{name}": {error}')
            return
        if self._has_unknown_fields(place, obj, "PgServer"):
            return
        if name in self.servers:
            self._refuse(place, f'PgServer "{name}" is declared twice, first in {self.servers[name].place}: remove one')
            return
        self.servers[name] = DeclaredServer(name, place, obj)

    def _has_unknown_fields(self, place: str, obj: dict[str, Any], kind: str, key: Key | None = None) -> bool:
        """As with kubectl, an unknown field is an error: a misspelled field would have no effect."""
        unknown = find_unknown_fields(obj, kind)
        if unknown:
            self._refuse(place, f"{kind} has no such field: {', '.join(unknown)}: correct or remove it", key)
        return bool(unknown)

    def _refuse(self, place: str, why: str, key: Key | None = None) -> None:
        self.wrong.append(WrongDocument(key, place, Refused(Reason.INVALID_SPEC, make_legible(why, _LONGEST))))


def _texts(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    left = MOST_BYTES
    for place, content in _contents(names):
        left -= len(content)
        if left < 0:
            raise WrongSetting(f"-f: more than {MOST_BYTES // 2**20} MiB in all: plan them in parts")
        yield ("standard input" if place == STDIN else place), _decode(f"-f {place}", content)


def _contents(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    for name in dict.fromkeys(names):
        if not name:
            raise WrongSetting("-f takes a file, a directory or -")
        if name == STDIN:
            yield name, sys.stdin.buffer.read(LARGEST_FILE + 1)
            continue
        path = Path(name)
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                files = _files(path)
                if not files:
                    raise WrongSetting(f"-f {path}: the directory has no {', '.join(_SUFFIXES)} file")
                yield from ((str(file), _read(file, regular=True)) for file in files)
            else:
                yield name, _read(path)
        except OSError as error:
            raise _unreadable(path, error) from error


def _read(file: Path, *, regular: bool = False) -> bytes:
    """`regular`: accept only regular files, since reading a pipe or a device in a directory would block silently."""
    try:
        if regular and not stat.S_ISREG(file.stat().st_mode):
            raise WrongSetting(f"-f {file}: not a regular file: remove it from the directory")
        with file.open("rb") as opened:
            return opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> WrongSetting:
    return WrongSetting(f"-f {error.filename or file}: {error.strerror or type(error).__name__}")


def _complain(error: OSError) -> None:
    raise error


def _files(folder: Path) -> list[Path]:
    """Returns the manifests in a directory, without hidden files and directories."""
    found: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_complain):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [Path(place, name) for name in sorted(names) if name.endswith(_SUFFIXES) and not name.startswith(".")]
        if len(found) > MOST_FILES:
            raise WrongSetting(f"-f {folder}: more than {MOST_FILES} files: name a smaller directory")
    return found


def _decode(what: str, content: bytes) -> str:
    if len(content) > LARGEST_FILE:
        raise WrongSetting(f"{what}: larger than {LARGEST_FILE // 2**20} MiB: split it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise WrongSetting(f"{what}: not UTF-8 text") from None
