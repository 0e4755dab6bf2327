"""What `access -o json` prints. Names that are not UTF-8 have their bytes escaped, as in the text."""

from pgrole_controller.commands.access_reading import ObjectReport, RoleReport
from pgrole_controller.commands.output import render_document
from pgrole_controller.core.access_report import AccessLine
from pgrole_controller.core.acl import DatabaseObject, ObjectKind
from pgrole_controller.core.effective_access import EffectivePrivilege, Route
from pgrole_controller.core.role_graph import RoleGraph

#: Names of the objects of one entry.
_MOST_NAMES = 10_000


def describe_users(report: ObjectReport) -> str:
    """Who may use an object, as JSON."""
    users, graph = report.users, report.graph
    since = report.found.unchanged_since
    return render_document(
        {
            "object": {"database": report.database, **_object(users.object)},
            **({"unchangedSince": since.isoformat()} if since is not None else {}),
            "public": [_privilege(graph, one) for one in users.public],
            "publicLacks": list(users.public_obstacles),
            "superusers": [graph.name(oid) for oid in users.superusers],
            "roles": [
                {
                    "role": graph.name(user.role),
                    "login": graph.roles[user.role].login,
                    "bypassRowSecurity": graph.roles[user.role].bypass_rls,
                    "lacks": list(user.obstacles),
                    "privileges": [_privilege(graph, one) for one in user.privileges],
                }
                for user in users.users
            ],
            "truncated": users.total > len(users.users),
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
                    "objects": [
                        {
                            "kind": line.kind.value,
                            **({"schema": line.schema} if line.schema else {}),
                            "names": list(line.names[:_MOST_NAMES]),
                            "count": line.count,
                            "all": line.count == line.total,
                            "lacks": list(line.obstacles),
                            "privileges": [_privilege(graph, one) for one in line.privileges],
                        }
                        for line in database.lines
                    ],
                    "truncated": database.cut or any(_is_cut(line) for line in database.lines),
                }
                for database in report.databases
            ],
        }
    )


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
