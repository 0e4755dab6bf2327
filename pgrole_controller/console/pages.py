"""From a path to a page. Nothing here does I/O: a page shows one snapshot of what its viewer may see."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from pgrole_controller.console.object_fields import read_flag, read_text, write_yaml
from pgrole_controller.console.object_state import ObjectState
from pgrole_controller.console.overview import view_overview
from pgrole_controller.console.role_summary import SummaryCache
from pgrole_controller.console.role_view import view_role
from pgrole_controller.console.roles_view import read_query, view_roles
from pgrole_controller.console.server_view import list_servers, view_server
from pgrole_controller.console.snapshot import FetchedObject, Page, PageQuestion, Snapshot
from pgrole_controller.console.template_files import environment, quote_segment, static_files
from pgrole_controller.core.names import count_things
from pgrole_controller.core.request import Key
from pgrole_controller.kube.resource import PGROLES, PGSERVERS
from pgrole_controller.kube.unvalidated import mapping, read_json

#: Names of objects and namespaces: what cannot be one is never part of a request's path.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?\Z")
_KINDS = {"roles": ("Roles", "PgRole"), "servers": ("Servers", "PgServer")}
_UNNAMED = (
    "If you may list PgRoles there, sign in again and name the namespace, or start the console with --namespace. "
    "Otherwise ask its administrators for permission to get, list and watch pgroles."
)
_SOON = "This page shows it as soon as it is read."


@dataclass(frozen=True, slots=True)
class _View:
    """A template and what it shows. `section`: of the navigation. `watch`: what changes it ("*": anything)."""

    template: str
    title: str
    section: str
    announcement: str
    watch: str = "*"
    status: int = 200
    values: Mapping[str, Any] = field(default_factory=dict)


class ConsolePages:
    """The pages as the server asks for them. Any thread may call it."""

    def __init__(self) -> None:
        self._summaries = SummaryCache()

    @property
    def static(self) -> Mapping[str, tuple[str, bytes]]:
        """Content type and content of each file below /static/, by name."""
        return static_files()

    def find_object(self, path: str) -> str | None:
        """Returns the API's path of the object that a page shows as YAML; None if it shows none."""
        match _split(path):
            case ["roles", namespace, name, "yaml"] if _NAME.match(namespace) and _NAME.match(name):
                return f"{PGROLES.path(namespace)}/{name}"
            case ["servers", name, "yaml"] if _NAME.match(name):
                return f"{PGSERVERS.path()}/{name}"
            case _:
                return None

    def render(self, question: PageQuestion, snapshot: Snapshot) -> Page:
        """Returns the whole document, or only its <main>."""
        view = self._find_view(question, snapshot)
        main = _render_main(view, question, snapshot)
        if question.fragment:
            return Page(view.status, str(main))
        template = environment().get_template("page.html")
        return Page(
            view.status,
            template.render(
                main=main, title=view.title, section=view.section, csrf=question.csrf, viewer=snapshot.viewer, live=True
            ),
        )

    def render_login(self, csrf: str, problem: str, page: str) -> str:
        """Returns the form that asks for a token. `problem`: why the last one was not accepted, or empty. `page`: path
        and query of the page to show afterwards.
        """
        main = _trust(environment().get_template("login.html").render(csrf=csrf, problem=problem, page=page))
        return (
            environment()
            .get_template("page.html")
            .render(main=main, title="Sign in", section="", csrf="", viewer="", live=False)
        )

    def _find_view(self, question: PageQuestion, snapshot: Snapshot) -> _View:
        match _split(question.path):
            case []:
                return self._overview(question, snapshot)
            case ["roles"]:
                return self._roles(question, snapshot)
            case ["roles", namespace, name]:
                return self._role(Key(namespace, name), snapshot)
            case ["roles", namespace, name, "yaml"]:
                return _yaml(
                    f"{namespace}/{name}",
                    f"/roles/{quote_segment(namespace)}/{quote_segment(name)}",
                    name,
                    question.fetched,
                )
            case ["servers"]:
                return self._servers(snapshot)
            case ["servers", name]:
                return self._server(name, question, snapshot)
            case ["servers", name, "yaml"]:
                return _yaml(name, f"/servers/{quote_segment(name)}", name, question.fetched)
            case _:
                return _missing("Page not found", "The console has no page at this address.", "Check the address.")

    def _overview(self, question: PageQuestion, snapshot: Snapshot) -> _View:
        summaries = self._summaries.list(snapshot.roles)
        overview = view_overview(snapshot, summaries, question.now)
        trouble = overview.trouble_count
        said = f"{trouble} need{'s' * (trouble == 1)} attention" if trouble else "Nothing needs attention"
        return _View("overview.html", "Overview", "overview", said, values={"overview": overview})

    def _roles(self, question: PageQuestion, snapshot: Snapshot) -> _View:
        page = view_roles(read_query(question.query), self._summaries.list(snapshot.roles))
        every = f"{page.total:,} role{'s' * (page.total != 1)}"
        said = f"{page.matching:,} of {every}" if page.query.is_filtered else every
        return _View("roles.html", "Roles", "roles", said, values={"page": page})

    def _role(self, key: Key, snapshot: Snapshot) -> _View:
        found = snapshot.roles.get(key)
        if found is None:
            if snapshot.namespaces is not None and key.namespace not in snapshot.namespaces:
                why = f"The console does not show you namespace {key.namespace}."
                return _missing("Role not visible to you", why, _UNNAMED, "roles")
            if snapshot.reading:
                return _missing(
                    "Reading", f"PgRole {key} is not among the roles that were read so far.", _SOON, "roles"
                )
            why = f"Namespace {key.namespace} has no PgRole {key.name}."
            missing = _missing("Role not found", why, "It may have been deleted.", "roles")
            return replace(missing, watch=f"role/{key}")
        server = snapshot.servers.get(read_text(found, "spec", "serverRef", "name", most=256) or "default")
        passwords = read_flag(server, "status", "detection", "passwords")
        role = view_role(key, found, self._summaries.list(snapshot.roles), passwords)
        said = f"{key.name}: {role.summary.state.words}. {count_things(len(role.summary.drifts), 'drift')}"
        return _View("role.html", key.name, "roles", said, values={"role": role})

    def _servers(self, snapshot: Snapshot) -> _View:
        servers = list_servers(snapshot, self._summaries.list(snapshot.roles))
        ready = sum(each.state is ObjectState.READY for each in servers)
        said = f"{ready} of {len(servers)} servers are ready"
        return _View("servers.html", "Servers", "servers", said, values={"servers": servers})

    def _server(self, name: str, question: PageQuestion, snapshot: Snapshot) -> _View:
        found = snapshot.servers.get(name)
        if found is None:
            if snapshot.servers_hidden:
                why = "You may not list PgServers, so this page cannot show the server."
                return _missing("Server hidden", why, "Ask for permission to get, list and watch pgservers.", "servers")
            if snapshot.reading:
                return _missing("Reading", f"PgServer {name} has not been read yet.", _SOON, "servers")
            remedy = "It may have been deleted."
            if name == "default":
                remedy = "The controller then uses PGROLE_DSN, if it is set. This page shows PgServers only."
            return _missing("Server not found", f"There is no PgServer {name}.", remedy, "servers")
        server = view_server(name, found, self._summaries.list(snapshot.roles), question.now)
        said = f"{name}: {server.summary.state.words}"
        return _View("server.html", name, "servers", said, values={"server": server})


def _render_main(view: _View, question: PageQuestion, snapshot: Snapshot) -> Markup:
    template = environment().get_template(view.template)
    return _trust(template.render(view=view, snapshot=snapshot, session=question.csrf, now=question.now, **view.values))


def _trust(html: str) -> Markup:
    """Marks what a template made, which escaped every value in it."""
    return Markup(html)  # noqa: S704


def _split(path: str) -> list[str]:
    return [each for each in path.split("/") if each]


def _yaml(identity: str, page: str, name: str, fetched: FetchedObject | None) -> _View:
    """`page`: of the object, below /roles or /servers."""
    fetched = fetched or FetchedObject(None, "No object can have this name.")
    section = page.split("/")[1]
    problem, text = fetched.problem, ""
    if fetched.answer is not None:
        try:
            found = mapping(read_json(fetched.answer))
            problem, text = ("", write_yaml(found)) if found else ("The API server's answer is not an object.", "")
        except ValueError:
            problem = "The API server's answer is not an object."
    return _View(
        "yaml.html",
        f"YAML of {name}",
        section,
        f"YAML of {name}. {problem}".strip(),
        watch=f"{section.removesuffix('s')}/{identity}",
        status=200 if text else 404,
        values={"name": name, "page": page, "problem": problem, "text": text, "kind": _KINDS[section]},
    )


def _missing(title: str, why: str, remedy: str, section: str = "") -> _View:
    return _View("missing.html", title, section, f"{title}. {why}", status=404, values={"why": why, "remedy": remedy})
