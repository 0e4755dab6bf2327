"""What `access` prints for people."""

from collections.abc import Iterable, Sequence
from datetime import UTC

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgrole_controller.commands.access_reading import DatabaseAccess, ObjectReport, RoleReport
from pgrole_controller.commands.output import NARROWEST
from pgrole_controller.core.access.access_origin import LastChange
from pgrole_controller.core.access.access_report import AccessLine
from pgrole_controller.core.access.effective_access import EffectivePrivilege, Route, Source
from pgrole_controller.core.access.role_graph import AccessRole, RoleGraph
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.ending import make_printable

#: Maximum number of names in one line, and of roles in one sentence.
_MOST_NAMES = 3
_MOST_ROLES = 20


def print_users(console: Console, report: ObjectReport) -> None:
    """Prints who may use an object, one line per role and route."""
    obj, users = report.found.acl.object, report.users
    label = f"{obj.label} in database {report.database}, owner {obj.owner_name}"
    _print(console, label, style="bold")
    change = report.acl_change()
    if change is not None:
        _print(console, f"its own grants unchanged since {describe_change(change)}")
    console.print()
    table = _table("ROLE", "LOGIN", "PRIVILEGES", "THROUGH", "DECLARED BY", "SINCE", "LACKS")
    for lacks, privileges in _by_way(users.public, [users.public_obstacles] * len(users.public), report):
        _add_row(table, report, ("PUBLIC", "", "every role"), privileges, lacks)
    for user in users.users:
        role = report.graph.roles[user.role]
        for lacks, privileges in _by_way(user.privileges, user.lacks, report):
            subject = (make_printable(role.name), "yes" if role.login else "", _way(report.graph, privileges[0]))
            _add_row(table, report, subject, privileges, lacks)
    if table.row_count:
        _print_table(console, table)
    else:
        _print(console, "No role has a privilege on it, except superusers.")
    if users.total > len(users.users):
        more = users.total - len(users.users)
        _print(console, f"… and up to {more:,} more roles")
    names = [report.graph.name(oid) for oid in users.superusers]
    console.print()
    _print(console, f"Superusers, who may do everything: {_enumerate(names) or 'none'}")
    bypassing = [report.graph.name(user.role) for user in users.users if report.graph.roles[user.role].bypass_rls]
    if bypassing and obj.id.catalog == "pg_class":
        _print(console, f"Row-level security does not apply to superusers and BYPASSRLS: {_enumerate(bypassing)}")
    for number, note in enumerate(report.notes):
        if not number:
            console.print()
        _print(console, note, style="yellow")


def _add_row(
    table: Table,
    report: ObjectReport,
    subject: tuple[str, str, str],
    privileges: Sequence[EffectivePrivilege],
    obstacles: Sequence[str],
) -> None:
    """`subject`: the role's name, whether it can log in, and its way to the privileges."""
    name, login, way = subject
    first = privileges[0]
    change = report.changes.since(first.routes[0], first.column)
    table.add_row(
        name,
        login,
        _privileges(privileges),
        way,
        "" if report.declarations.problem else describe_declarer(report.declarer(first, first.routes[0])),
        "unknown" if change is None else make_printable(describe_change(change)),
        _lacks(obstacles),
    )


def describe_change(change: LastChange) -> str:
    """Returns text such as `2026-11-22T09:15Z by alice`."""
    login = f" by {change.login}" if change.login else ""
    return change.time.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ") + login


def describe_declarer(declarer: str | None) -> str:
    """The PgRole; `-`: none declares it; `unknown`: its declaration cannot be read."""
    return "unknown" if declarer is None else make_printable(declarer) or "-"


def print_role(console: Console, report: RoleReport) -> None:
    """Prints what a role may do, one table per database."""
    role = report.graph.roles[report.role]
    _print(console, f"{role.name}: {', '.join(_attributes(role))}", style="bold")
    if role.superuser:
        _print(console, "Superuser: ACLs and row-level security do not apply.")
        _print(console, "Use -o json to list what it was granted nevertheless.")
        return
    _print_memberships(console, report)
    manager = report.declarations.owner_of(report.role)
    if manager:
        _print(console, f"managed by PgRole {manager}")
    for database in report.databases:
        console.print()
        _print_database(console, report, database)
    if report.declarations.problem:
        console.print()
        _print(console, report.declarations.problem, style="yellow")


def _print_memberships(console: Console, report: RoleReport) -> None:
    graph = report.graph
    inherited = graph.inherited((report.role,)) - {report.role}
    settable = graph.settable(report.role) - {report.role}
    only_set = graph.inherited(settable) - inherited - {report.role}
    barren = [graph.name(edge.group) for edge in graph.groups(report.role) if not edge.inherit and not edge.set_role]
    granting = [graph.name(edge.group) for edge in graph.groups(report.role) if edge.admin]
    for words, roles in (
        ("inherits from", [graph.name(one) for one in inherited]),
        ("after SET ROLE, also has the privileges of", [graph.name(one) for one in only_set]),
        ("member, without INHERIT or SET, of", barren),
        ("may grant membership (ADMIN), to itself as well, in", granting),
    ):
        if roles:
            _print(console, f"{words} {_enumerate(sorted(roles))}")


def _print_database(console: Console, report: RoleReport, database: DatabaseAccess) -> None:
    _print(console, f"database {database.name}", style="bold")
    table = _table("OBJECTS", "PRIVILEGES", "THROUGH", "DECLARED BY", "LACKS")
    for line in database.lines:
        for privileges, declarer in _by_declarer(line):
            table.add_row(
                make_printable(describe_objects(line)),
                _privileges(privileges),
                _way(report.graph, privileges[0]),
                declarer,
                _lacks(line.obstacles),
            )
    if table.row_count:
        _print_table(console, table)
    else:
        _print(console, "nothing")
    if database.problem:
        _print(console, f"its objects were not read: {database.problem}", style="yellow")
    if database.cut:
        _print(console, "it has too many different ACLs: not all of its objects were read", style="yellow")


def _by_declarer(line: AccessLine) -> Iterable[tuple[list[EffectivePrivilege], str]]:
    if not line.declarers:
        return [(list(line.privileges), "")]
    found: dict[str, list[EffectivePrivilege]] = {}
    for one, declarer in zip(line.privileges, line.declarers, strict=True):
        found.setdefault(describe_declarer(declarer), []).append(one)
    return [(privileges, declarer) for declarer, privileges in found.items()]


def describe_objects(line: AccessLine) -> str:
    """Returns text such as `table app.orders`, `all 240 tables in app` or `2 of 240 tables in app: orders, items`."""
    words = line.kind.words
    if line.kind is ObjectKind.DATABASE:
        return f"database {line.names[0]}"
    place = f"{line.schema}." if line.schema else ""
    within = f" in {line.schema}" if line.schema else ""
    if line.count == 1:
        return f"{words} {place}{line.names[0]}"
    if line.count == line.total:
        return f"all {line.count:,} {words}s{within}"
    more = f", +{line.count - _MOST_NAMES:,}" if line.count > _MOST_NAMES else ""
    shown = ", ".join(line.names[:_MOST_NAMES]) + more
    number = f"{line.count:,} of {line.total:,}" if line.total > line.count else f"{line.count:,}"
    return f"{number} {words}s{within}: {shown}"


def _lacks(obstacles: Sequence[str]) -> Text:
    return Text(make_printable(", ".join(obstacles)), style="yellow" if obstacles else "")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_table(console: Console, table: Table) -> None:
    """Prints only columns that have content. In a pipe and on a narrow terminal, it folds none, and trailing spaces are
    left out.
    """
    kept = [column for column in table.columns if any(str(cell) for cell in column.cells)]
    if console.is_terminal and console.width >= NARROWEST:
        shown = _table(*(str(column.header) for column in kept))  # rich measures a column by its place
        for row in zip(*(column.cells for column in kept), strict=True):
            shown.add_row(*row)
        console.print(shown)
        return
    # rich takes half a second for 1,000 rows
    columns = [[str(column.header), *map(str, column.cells)] for column in kept]
    widths = [max(map(cell_len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = [cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        console.file.write("  ".join(cells).rstrip() + "\n")


def _attributes(role: AccessRole) -> Iterable[str]:
    yield "can log in" if role.login else "cannot log in"
    if role.superuser:
        yield "superuser"
    if role.bypass_rls:
        yield "BYPASSRLS: row-level security does not apply"


def _by_way(
    privileges: Iterable[EffectivePrivilege], lacks: Iterable[tuple[str, ...]], report: ObjectReport
) -> Iterable[tuple[tuple[str, ...], list[EffectivePrivilege]]]:
    """Groups privileges that share a row; with each group, what is lacking for it."""
    found: dict[tuple[object, ...], tuple[tuple[str, ...], list[EffectivePrivilege]]] = {}
    for one, lacking in zip(privileges, lacks, strict=True):
        route = one.routes[0]
        origin = report.declarer(one, route), report.changes.since(route, one.column)
        key = (route.chain, route.source, one.total > 1, lacking, *origin)
        found.setdefault(key, (lacking, []))[1].append(one)
    return found.values()


def _privileges(privileges: Sequence[EffectivePrivilege]) -> str:
    """Returns text such as `SELECT, UPDATE (id, name)`; an asterisk marks those with grant option, as in psql."""
    columns: dict[str, list[str]] = {}
    for one in privileges:
        name = f"{one.privilege}{'*' if one.grantable else ''}"
        columns.setdefault(name, [])
        if one.column:
            columns[name].append(make_printable(one.column))
    return ", ".join(f"{name} ({', '.join(names)})" if names else name for name, names in columns.items())


def _way(graph: RoleGraph, one: EffectivePrivilege) -> str:
    more = one.total - 1
    ending = f"; and {more:,}{'+' if more >= 999 else ''} more way{'s' if more > 1 else ''}" if more else ""
    return describe_route(graph, one.routes[0]) + ending


def describe_route(graph: RoleGraph, route: Route) -> str:
    """Returns text such as `direct`, `owner`, `PUBLIC`, `team → readers`, or `SET ROLE admin → owners (owner)`."""
    names = [make_printable(graph.name(oid)) for oid in route.chain.roles]
    if route.source is Source.PUBLIC:
        return "PUBLIC"
    if len(names) == 1:
        words = {Source.OWNER: "owner", Source.SUPERUSER: "superuser", Source.PREDEFINED: names[0]}
        return words.get(route.source, "direct")
    if route.chain.switch:
        names[route.chain.switch] = f"SET ROLE {names[route.chain.switch]}"
    endings = {Source.OWNER: " (owner)", Source.SUPERUSER: " (superuser)"}
    return " → ".join(names[max(1, route.chain.switch) :]) + endings.get(route.source, "")


def _enumerate(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_ROLES])
    return f"{shown} and {len(names) - _MOST_ROLES:,} more" if len(names) > _MOST_ROLES else shown


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(make_printable(text), style=style or None)
