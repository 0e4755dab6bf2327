"""What `access` prints for people."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgrole_controller.commands.access_reading import DatabaseAccess, ObjectReport, RoleReport
from pgrole_controller.commands.output import make_printable
from pgrole_controller.core.access_report import AccessLine, RoleAccess
from pgrole_controller.core.acl import ObjectKind
from pgrole_controller.core.effective_access import EffectivePrivilege, Route, Source
from pgrole_controller.core.role_graph import AccessRole, RoleGraph

#: Names in one line, and roles in one sentence.
_MOST_NAMES = 3
_MOST_ROLES = 20

_PLURALS = {
    ObjectKind.MATERIALIZED_VIEW: "materialized views",
    ObjectKind.FOREIGN_TABLE: "foreign tables",
    ObjectKind.FOREIGN_DATA_WRAPPER: "foreign data wrappers",
    ObjectKind.FOREIGN_SERVER: "foreign servers",
    ObjectKind.LARGE_OBJECT: "large objects",
}


def print_users(console: Console, report: ObjectReport) -> None:
    """Who may use an object, a line for each role and way."""
    obj, users = report.found.acl.object, report.users
    label = f"{obj.label} in database {report.database}, owner {obj.owner_name}"
    _print(console, label, style="bold")
    if report.found.unchanged_since is not None:
        at = report.found.unchanged_since.strftime("%Y-%m-%dT%H:%MZ")
        _print(console, f"its own grants unchanged since {at}")
    console.print()
    table = _table("ROLE", "LOGIN", "PRIVILEGES", "THROUGH", "LACKS")
    if users.public:
        table.add_row("PUBLIC", "", _privileges(users.public), "every role", _lacks(users.public_obstacles))
    for user in users.users:
        _add_user(table, report.graph, user)
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


def _add_user(table: Table, graph: RoleGraph, user: RoleAccess) -> None:
    role = graph.roles[user.role]
    name = role.name
    for privileges in _by_way(user.privileges):
        best = privileges[0]
        table.add_row(
            make_printable(name),
            "yes" if role.login else "",
            _privileges(privileges),
            _way(graph, best),
            _lacks(user.obstacles),
        )


def print_role(console: Console, report: RoleReport) -> None:
    """What a role may do, a table for each database."""
    role = report.graph.roles[report.role]
    _print(console, f"{role.name}: {', '.join(_attributes(role))}", style="bold")
    if role.superuser:
        _print(console, "It may do everything in every database. No ACL and no row-level security applies to it.")
        return
    _print_memberships(console, report)
    for database in report.databases:
        console.print()
        _print_database(console, report, database)


def _print_memberships(console: Console, report: RoleReport) -> None:
    graph = report.graph
    inherited = graph.inherited((report.role,)) - {report.role}
    settable = graph.settable(report.role) - {report.role}
    only_set = graph.inherited(settable) - inherited - {report.role}
    barren = [graph.name(edge.group) for edge in graph.groups(report.role) if not edge.inherit and not edge.set_role]
    for words, roles in (
        ("inherits from", [graph.name(one) for one in inherited]),
        ("after SET ROLE also has what these have:", [graph.name(one) for one in only_set]),
        ("member without INHERIT and SET of", barren),
    ):
        if roles:
            _print(console, f"{words} {_enumerate(sorted(roles))}")


def _print_database(console: Console, report: RoleReport, database: DatabaseAccess) -> None:
    _print(console, f"database {database.name}", style="bold")
    table = _table("OBJECTS", "PRIVILEGES", "THROUGH", "LACKS")
    for line in database.lines:
        table.add_row(
            make_printable(describe_objects(line)),
            _privileges(line.privileges),
            _way(report.graph, line.privileges[0]),
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


def describe_objects(line: AccessLine) -> str:
    """Such as `table app.orders`, `all 240 tables in app` or `2 of 240 tables in app: orders, items`."""
    kind = line.kind
    word = _word(kind)
    if kind is ObjectKind.DATABASE:
        return f"database {line.names[0]}"
    place = f"{line.schema}." if line.schema else ""
    within = f" in {line.schema}" if line.schema else ""
    if line.count == 1:
        return f"{word} {place}{line.names[0]}"
    plural = _PLURALS.get(kind, f"{word}s")
    if line.count == line.total:
        return f"all {line.count:,} {plural}{within}"
    more = f", +{line.count - _MOST_NAMES:,}" if line.count > _MOST_NAMES else ""
    shown = ", ".join(line.names[:_MOST_NAMES]) + more
    number = f"{line.count:,} of {line.total:,}" if line.total > line.count else f"{line.count:,}"
    return f"{number} {plural}{within}: {shown}"


def _word(kind: ObjectKind) -> str:
    return _PLURALS[kind].removesuffix("s") if kind in _PLURALS else kind.value.lower()


def _lacks(obstacles: Sequence[str]) -> Text:
    return Text(make_printable(", ".join(obstacles)), style="yellow" if obstacles else "")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print_table(console: Console, table: Table) -> None:
    """The last column only where something is in it; no spaces at the ends of lines in a pipe."""
    if not any(str(cell) for cell in table.columns[-1].cells):
        table.columns.pop()
    if console.is_terminal:
        console.print(table)
        return
    # rich takes half a second for 1,000 rows
    columns = [[str(column.header), *map(str, column.cells)] for column in table.columns]
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


def _by_way(privileges: Iterable[EffectivePrivilege]) -> Iterable[list[EffectivePrivilege]]:
    found: dict[tuple[object, ...], list[EffectivePrivilege]] = {}
    for one in privileges:
        found.setdefault((one.routes[0].chain, one.routes[0].source, one.total > 1), []).append(one)
    return found.values()


def _privileges(privileges: Sequence[EffectivePrivilege]) -> str:
    """`SELECT, UPDATE (id, name)`; an asterisk marks those that it may grant to others, as in psql."""
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
    """Such as `direct`, `owner`, `PUBLIC`, `team → readers`, or `SET ROLE admin → owners (owner)`."""
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
