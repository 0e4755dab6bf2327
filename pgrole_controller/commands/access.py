"""The command `access`: what a role may do and through what, or who may use an object.

Each form of output is imported only when it is asked for: the command is meant to answer within a second.
"""

import argparse
from functools import partial
from typing import TYPE_CHECKING

import anyio

from pgrole_controller.commands.access_reading import ObjectReport, RoleReport, look_at_object, look_at_role
from pgrole_controller.commands.output import finish, make_console, write_document
from pgrole_controller.commands.server_reading import server_choice
from pgrole_controller.ending import DONE

if TYPE_CHECKING:
    from pgrole_controller.core.access.membership_graph import MembershipGraph


def run(options: argparse.Namespace) -> int:
    """Returns the exit code. Raises WrongSetting if no server is named, or for text that cannot name an object."""
    return finish(partial(anyio.run, _run, options))


async def _run(options: argparse.Namespace) -> int:
    choice = server_choice(options)
    if options.on is None:
        _show_role(await look_at_role(choice, options.role, options.database), options.output)
    else:
        _show_users(await look_at_object(choice, options.on, options.database), options.output)
    return DONE


def _show_role(report: RoleReport, form: str) -> None:
    if form == "text":
        from pgrole_controller.commands.access_text import print_role

        print_role(make_console(), report)
    elif form == "json":
        from pgrole_controller.commands.access_json import describe_role

        write_document(describe_role(report))
    else:
        from pgrole_controller.core.access.membership_graph import around_role

        _draw(around_role(report.graph, report.role), form)


def _show_users(report: ObjectReport, form: str) -> None:
    if form == "text":
        from pgrole_controller.commands.access_text import print_users

        print_users(make_console(), report)
    elif form == "json":
        from pgrole_controller.commands.access_json import describe_users

        write_document(describe_users(report))
    else:
        _draw(_picture(report), form)


def _draw(graph: "MembershipGraph", form: str) -> None:
    from pgrole_controller.core.access.graph_svg import render_svg
    from pgrole_controller.core.access.membership_graph import render_dot

    write_document(render_dot(graph) if form == "dot" else render_svg(graph))


def _picture(report: ObjectReport) -> "MembershipGraph":
    """The roles that the object's ACL names; predefined roles and superusers only if a user's shortest route needs
    them.
    """
    from pgrole_controller.core.access.membership_graph import towards_object

    holders: dict[int, list[str]] = {}
    for entry in report.found.acl.entries:
        shown = f"{entry.privilege} ({entry.column})" if entry.column else entry.privilege
        names = holders.setdefault(entry.grantee, [])
        if shown not in names:
            names.append(shown)
    for user in report.users.users:
        for privilege in user.privileges:
            end = privilege.routes[0].chain.roles[-1]
            if end not in report.graph.roles or privilege.privilege in holders.setdefault(end, []):
                continue
            if not privilege.column:
                holders[end].append(privilege.privilege)
    obj = report.found.acl.object
    label = obj.label.removeprefix(f"{obj.kind.words} ")
    note = f"{obj.kind.words} in {report.database}, owner {obj.owner_name}"
    return towards_object(report.graph, label, {role: names for role, names in holders.items() if names}, note)
