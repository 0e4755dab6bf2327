"""What `access -o json` prints. Names that are not UTF-8 have their bytes escaped, as in the text."""

from pgrole_controller.commands.access_reading import ObjectReport, RoleReport
from pgrole_controller.commands.output import render_document
from pgrole_controller.core.access.access_origin import Declarations, LastChange
from pgrole_controller.core.access.access_report import AccessLine
from pgrole_controller.core.access.effective_access import EffectivePrivilege, Route
from pgrole_controller.core.access.role_graph import RoleGraph
from pgrole_controller.core.drift_record import rfc3339
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectKind

#: Maximum number of objects that one entry names.
_MOST_NAMES = 10_000


def describe_users(report: ObjectReport) -> str:
    """Who may use an object, as JSON."""
    users, graph = report.users, report.graph
    return render_document(
        {
            "object": {"database": report.database, **_object(users.object)},
            "unchangedSince": _change(report.acl_change()),
            "public": [_dated(report, one) for one in users.public],
            "publicLacks": list(users.public_obstacles),
            "superusers": [graph.name(oid) for oid in users.superusers],
            "roles": [
                {
                    "role": graph.name(user.role),
                    "login": graph.roles[user.role].login,
                    "bypassRowSecurity": graph.roles[user.role].bypass_rls,
                    "lacks": list(user.obstacles),
                    **_manager(report.declarations, user.role),
                    "privileges": [
                        {**_dated(report, one), "lacks": list(lacking)}
                        for one, lacking in zip(user.privileges, user.lacks, strict=True)
                    ],
                }
                for user in users.users
            ],
            "truncated": users.total > len(users.users),
            "notes": list(report.notes),
        }
    )


def describe_role(report: RoleReport) -> str:
    """What a role may do, as JSON."""
    graph, role = report.graph, report.graph.roles[report.role]
    return render_document(
        {
            "role": role.name,
            "login": role.login,
            "superuser": role.superuser,
            "bypassRowSecurity": role.bypass_rls,
            **_manager(report.declarations, report.role),
            "memberOf": [
                {
                    "role": graph.name(edge.group),
                    "inherit": edge.inherit,
                    "set": edge.set_role,
                    "admin": edge.admin,
                }
                for edge in graph.groups(report.role)
            ],
            "databases": [
                {
                    "database": database.name,
                    **({"problem": database.problem} if database.problem else {}),
                    "objects": [_line(graph, line) for line in database.lines],
                    **({"directGrants": [_line(graph, line) for line in database.direct]} if role.superuser else {}),
                    "truncated": database.cut or any(_is_cut(line) for line in database.lines),
                }
                for database in report.databases
            ],
            "notes": [report.declarations.problem] if report.declarations.problem else [],
        }
    )


def _line(graph: RoleGraph, line: AccessLine) -> dict[str, object]:
    privileges = [_privilege(graph, one) for one in line.privileges]
    for privilege, declarer in zip(privileges, line.declarers, strict=False):
        privilege |= _declared_by(declarer)
    return {
        "kind": line.kind.value,
        **({"schema": line.schema} if line.schema else {}),
        "names": list(line.names[:_MOST_NAMES]),
        "count": line.count,
        "all": line.count == line.total,
        "lacks": list(line.obstacles),
        "privileges": privileges,
    }


def _manager(declarations: Declarations, role: int) -> dict[str, object]:
    owner = declarations.owner_of(role)
    return {} if owner is None else {"managedBy": owner or None}


def _declared_by(declarer: str | None) -> dict[str, object]:
    """Without the key if it is unknown."""
    return {} if declarer is None else {"declaredBy": declarer or None}


def _dated(report: ObjectReport, one: EffectivePrivilege) -> dict[str, object]:
    route = one.routes[0]
    return {
        **_privilege(report.graph, one),
        **_declared_by(report.declarer(one, route)),
        "since": _change(report.changes.since(route, one.column)),
    }


def _change(change: LastChange | None) -> dict[str, object] | None:
    if change is None:
        return None
    return {"time": rfc3339(change.time), "by": change.login or None, "source": change.source.value}


def _is_cut(line: AccessLine) -> bool:
    return line.count > min(len(line.names), _MOST_NAMES)


def _object(obj: DatabaseObject) -> dict[str, object]:
    found: dict[str, object] = {"kind": obj.kind.value, "schema": obj.schema, "name": obj.name, "owner": obj.owner_name}
    if obj.kind is ObjectKind.ROUTINE:
        found["arguments"] = obj.arguments
    return found


def _privilege(graph: RoleGraph, one: EffectivePrivilege) -> dict[str, object]:
    found: dict[str, object] = {"privilege": one.privilege}
    if one.column:
        found["column"] = one.column
    found |= {
        "grantable": one.grantable,
        "afterSetRole": one.after_set_role,
        "routes": [_route(graph, route) for route in one.routes],
        "moreRoutes": one.total - len(one.routes),
    }
    return found


def _route(graph: RoleGraph, route: Route) -> dict[str, object]:
    found: dict[str, object] = {
        "source": route.source.value,
        "through": [graph.name(oid) for oid in route.chain.roles[1:]],
    }
    if route.chain.switch:
        found["setRole"] = graph.name(route.chain.acting)
    if route.grantor:
        found["grantor"] = route.grantor
    return found
