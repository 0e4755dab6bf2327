"""The command `export`: prints existing roles of a server as PgRoles, or writes one file for each."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from pgrole_controller.commands.export_objects import (
    ExportedObject,
    add_privileges,
    make_object,
    name_objects,
    sort_groups_first,
)
from pgrole_controller.commands.export_policy import find_refusal, find_reset
from pgrole_controller.commands.export_yaml import to_comments, to_yaml
from pgrole_controller.commands.output import finish, make_console, write_document
from pgrole_controller.commands.server_reading import ServerChoice, find_server, reading, server_choice
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import NOT_UTF8, PgRoleError, Reason, Refused
from pgrole_controller.core.folding.privilege_folding import FoldedDatabase, PrivilegeFolder
from pgrole_controller.core.folding.public_privileges import describe_public
from pgrole_controller.core.names import matches
from pgrole_controller.core.policy import Policy, References, protection
from pgrole_controller.core.privileges.acl import PUBLIC, DatabaseObject, ObjectKind
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.ending import DONE, FAILED, print_error
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.catalog import ReferencedNames, read_references
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.privileges.acl_catalog import read_database
from pgrole_controller.postgres.server_catalog import (
    ListedDatabase,
    NamedRole,
    read_databases,
    read_role_names,
    read_roles,
)

#: First line of every file, by which a later export recognizes files that it would no longer write.
MARK = "Exported by pgrole-controller."

#: Maximum size of one answer about a whole database, in bytes.
_VOLUME = 1 << 30

_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What to export. `databases` None: all that can be read. `roles`: patterns; empty: all."""

    choice: ServerChoice
    roles: tuple[str, ...] = ()
    databases: tuple[str, ...] | None = None
    output_dir: Path | None = None
    exact: bool = False


@dataclass(slots=True)
class Export:
    """What was exported. `remarks`: about the server as a whole. `errors`: what should have been read but was not."""

    objects: list[ExportedObject] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _JudgedObject:
    """An object without privileges. `refusal`: why the server's policy would refuse it even if it allowed adoption."""

    made: ExportedObject
    refusal: str


def run(options: argparse.Namespace) -> int:
    wanted = ExportOptions(
        choice=server_choice(options),
        roles=tuple(options.roles or ()),
        databases=None if options.database is None else tuple(dict.fromkeys(options.database)),
        output_dir=options.output_dir,
        exact=options.exact,
    )
    return finish(partial(anyio.run, _run, wanted))


async def _run(options: ExportOptions) -> int:
    server = await find_server(options.choice)
    with _progress() as progress:
        exported = await export_roles(server, options, progress)
    remarks = () if options.output_dir is None else exported.remarks
    for text in dict.fromkeys((*exported.warnings, *exported.errors, *remarks)):
        print_error(text)
    if options.output_dir is None:
        write_document("".join(render(exported)))
    else:
        write_files(exported.objects, options.output_dir, every_role=not options.roles)
    return FAILED if exported.errors else DONE


@contextmanager
def _progress() -> Iterator[Progress]:
    """Shows a bar on a terminal, and nothing elsewhere."""
    console = make_console(sys.stderr)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress


async def export_roles(server: ServerConfig, options: ExportOptions, progress: Progress) -> Export:
    """Reads the server and makes the objects. Raises PgRoleError if nothing can be read."""
    if server.endpoint is None:
        raise server.problem or Refused(Reason.SERVER_NOT_READY, "the server's endpoint is unknown")
    policy = server.server_policy.policy(options.choice.cluster.namespace or _NAMESPACE, {})
    return await _Exporter(server.endpoint, policy, options, progress).run()


class _Exporter:
    """`policy`: of the namespace that the objects will be in."""

    def __init__(self, endpoint: Endpoint, policy: Policy, options: ExportOptions, progress: Progress) -> None:
        self._endpoint = endpoint
        self._policy = policy
        self._options = options
        self._progress = progress
        self._export = Export()
        self._roles = frozenset[int]()

    async def run(self) -> Export:
        async with reading(self._endpoint) as home:
            identity = await identify(home)
            every = await read_role_names(home)
            found = await self._read_roles(home, self._select(every, identity.own_roles))
            references = await read_references(home, self._referenced(found), identity.version_number)
            databases = self._choose_databases(await read_databases(home))
        names = name_objects(one.name for one in every)
        judged = {one.oid: self._judge(one, names[one.role.name], references) for one in found}
        accepted = (oid for oid, one in judged.items() if isinstance(one, _JudgedObject) and not one.refusal)
        self._roles = frozenset(accepted)
        folded: dict[int, list[FoldedDatabase]] = {one.oid: [] for one in found}
        bar = self._progress.add_task("databases", total=len(databases))
        for database in databases:
            await self._fold_database(database, found, folded)
            self._progress.advance(bar)
        for one in found:
            self._add_object(one, judged[one.oid], folded[one.oid], references)
        self._export.objects = sort_groups_first(self._export.objects)
        return self._export

    def _select(self, every: Sequence[NamedRole], own: frozenset[str]) -> list[NamedRole]:
        """Returns the roles that objects can declare, and remarks on the others, except PostgreSQL's own roles."""
        patterns = self._options.roles
        for pattern in patterns:
            if not any(matches(one.name, (pattern,)) for one in every):
                self._export.warnings.append(f"no role matches --roles {pattern}")
        kept: list[NamedRole] = []
        for one in every:
            if patterns and not matches(one.name, patterns):
                continue
            why = "the login of this export" if one.name in own else protection(self._policy, one.name, one.oid, own)
            if NOT_UTF8.search(one.name):
                self._leave_out(one.name, "its name is not UTF-8, and no PgRole can name it")
            elif why is None:
                kept.append(one)
            elif patterns or not one.name.startswith("pg_"):
                self._leave_out(one.name, f"it is {why}")
        return kept

    def _leave_out(self, role: str, why: str) -> str:
        """Returns the remark."""
        remark = f'role "{role}" is left out: {why}'
        self._export.remarks.append(remark)
        return remark

    async def _read_roles(self, home: Connection, selected: Sequence[NamedRole]) -> list[ObservedRole]:
        bar = self._progress.add_task("roles", total=len(selected))
        found: list[ObservedRole] = []
        async for name, answer in read_roles(home, [one.name for one in selected]):
            self._progress.advance(bar)
            if isinstance(answer, PgRoleError):
                self._export.errors.append(f'role "{name}" is left out: {answer.message}')
            else:
                found.append(answer)
        return found

    def _referenced(self, found: Sequence[ObservedRole]) -> ReferencedNames:
        groups = {held.role for one in found for held in one.role.member_of}
        parameters = {name for one in found for name in one.role.parameter_names}
        return ReferencedNames(
            groups=frozenset(name for name in groups if not NOT_UTF8.search(name)),
            parameters=frozenset(name for name in parameters if not NOT_UTF8.search(name)),
            protected=frozenset(self._policy.protected),
        )

    def _choose_databases(self, listed: Sequence[ListedDatabase]) -> list[str]:
        """Returns the databases to read. A named one that cannot be read is an error; any other causes a warning,
        except a template that admits no one, such as template0.
        """
        named = self._options.databases
        by_name = {one.name: one for one in listed}
        chosen: list[str] = []
        for name in sorted(by_name) if named is None else named:
            found = by_name.get(name)
            if found is not None and found.connectable and not NOT_UTF8.search(name):
                chosen.append(name)
            elif found is None:
                self._export.errors.append(f'database "{name}" does not exist')
            elif named is not None or found.allows_connections or not found.template:
                why = "no role may connect to it"
                if found.allows_connections:
                    why = "this login may not connect to it: GRANT CONNECT"
                if NOT_UTF8.search(name):
                    why = "its name is not UTF-8"
                self._miss(name, why)
        return chosen

    def _miss(self, database: str, why: str) -> None:
        text = f'privileges in database "{database}" are left out: {why}'
        self._export.remarks.append(text)
        (self._export.warnings if self._options.databases is None else self._export.errors).append(text)

    async def _fold_database(
        self, database: str, found: Sequence[ObservedRole], folded: Mapping[int, list[FoldedDatabase]]
    ) -> None:
        """Adds what each role holds in one database. An unreadable database is reported, and the others are read."""
        try:
            async with reading(replace(self._endpoint, volume=_VOLUME), database) as connection:
                grantees = [one.oid for one in found]
                observed = await read_database(connection, [PUBLIC, *grantees], (), _everywhere, _nowhere)
        except PgRoleError as error:
            self._miss(database, error.message)
            return
        policy = self._policy.privileges
        folder = PrivilegeFolder(observed, exact=self._options.exact, policy=policy, roles=self._roles)
        held = False
        for one in found:
            result = folder.fold(one.oid, one.role.name)
            if result.declared is not None or result.notes:
                folded[one.oid].append(replace(result, notes=tuple(f"{database}: {note}" for note in result.notes)))
                held = held or result.declared is not None
        refused = check_database(self._policy.privileges, database) if held else None
        if refused is not None:
            self._export.warnings.append(refused.message)
        self._export.remarks += [f"{database}: {line}" for line in describe_public(observed)]

    def _judge(self, found: ObservedRole, name: str, references: References) -> _JudgedObject | Refused:
        """Makes the role's object, and judges whether the namespace may own the role. If so, privileges on what it owns
        may be declared.
        """
        choice = self._options.choice
        try:
            made = make_object(found, name, namespace=choice.cluster.namespace, server=choice.server)
        except Refused as error:
            return error
        return _JudgedObject(made, find_refusal(found, made.document, replace(self._policy, adopt=True), references))

    def _add_object(
        self,
        found: ObservedRole,
        judged: _JudgedObject | Refused,
        folded: Sequence[FoldedDatabase],
        references: References,
    ) -> None:
        if isinstance(judged, Refused):
            self._export.warnings.append(self._leave_out(found.role.name, judged.message))
            return
        made, refusal = add_privileges(judged.made, folded), judged.refusal
        if not self._policy.adopt:
            refusal = find_refusal(found, judged.made.document, self._policy, references)
        notes = tuple(note for one in folded for note in one.notes)
        reset = find_reset(found, made.document, self._policy, references)
        if reset:
            notes = (f"The controller resets parameters although drift.ignore lists their field: {reset}", *notes)
        if refusal:
            notes = (f"The controller refuses this object as the server is: {refusal}", *notes)
        self._export.objects.append(replace(made, notes=(*notes, *made.notes)))


def _everywhere(_schema: str, _kind: ObjectKind) -> bool:
    return True


def _nowhere(_table: DatabaseObject) -> bool:
    return False


def render(exported: Export) -> Iterator[str]:
    """Renders the objects as one stream of YAML documents, groups before members."""
    yield to_comments((MARK, *exported.remarks))
    for one in exported.objects:
        yield f"---\n{to_yaml(one.document, one.notes)}"


def write_files(objects: Sequence[ExportedObject], folder: Path, *, every_role: bool) -> None:
    """Writes one file per role, only if it changed. `every_role`: names files that it would no longer write.

    Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in objects:
        _write(folder / f"{one.name}.yaml", to_yaml(one.document, (MARK, *one.notes)))
    if every_role:
        for name in _find_stale(folder, {f"{one.name}.yaml" for one in objects}):
            print_error(f"{name} belongs to no exported role: delete it if it is obsolete")


def _write(file: Path, text: str) -> None:
    content = text.encode()
    if not file.is_file() or file.read_bytes() != content:
        file.write_bytes(content)


def _find_stale(folder: Path, written: set[str]) -> list[str]:
    first = f"# {MARK}\n".encode()
    found: list[str] = []
    for file in sorted(folder.glob("*.yaml")):
        if file.name in written or not file.is_file():
            continue
        with file.open("rb") as opened:
            if opened.read(len(first)) == first:
                found.append(str(file))
    return found
