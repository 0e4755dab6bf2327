"""The pages as the server asks for them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pgrole_controller.console import pages
from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.console.template_files import static_files

if TYPE_CHECKING:
    from pgrole_controller.console.server import PageQuestion


class RenderedPages:
    """Pages from templates. Any thread may call it."""

    @property
    def static(self) -> Mapping[str, tuple[str, bytes]]:
        """Content type and content of each file, by name."""
        return static_files()

    def render(self, question: "PageQuestion", snapshot: Snapshot) -> tuple[int, str]:
        """Returns the HTTP status and the document, or only its <main>."""
        request = pages.PageRequest(question.path, question.query, question.csrf, question.now)
        make = pages.render_fragment if question.fragment else pages.render
        page = make(request, snapshot)
        return page.status, page.html

    def render_login(self, csrf: str, problem: str) -> str:
        return pages.render_login(csrf, problem)
