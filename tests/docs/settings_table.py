"""Generates the table of settings in docs/running.md from the fields of `Settings`: `make settings`.

`--check` writes nothing, and fails if the table is out of date.
"""

import re
import sys

from pgrole_controller.settings import SETTINGS, Group, Setting
from tests.docs.page import ROOT

PAGE = ROOT / "docs" / "running.md"
_PLACE = re.compile(r"(?<=<!-- settings -->\n).*?(?=<!-- /settings -->\n)", re.DOTALL)


def made(text: str) -> str:
    """Returns the page with a new table. Raises ValueError unless the page has exactly one place for it."""
    page, count = _PLACE.subn(lambda _: _table(), text)
    if count != 1:
        raise ValueError("a page has one place for the settings: <!-- settings -->, <!-- /settings -->")
    return page


def _table() -> str:
    return "\n".join(["| flag | variable | default | meaning |", "|---|---|---|---|", *map(_row, SETTINGS), ""])


def _row(setting: Setting) -> str:
    flag = "" if setting.flag is None else f"`{setting.flag} {setting.metavar}`"
    default = f"`{setting.default}`" if setting.default else setting.otherwise
    mark = "† " if setting.group is Group.DEFAULT_SERVER and setting.flag is not None else ""
    return f"| {flag} | `{setting.variable}` | {default} | {mark}{setting.help} |".replace("|  |", "| |")


def main() -> int:
    text = PAGE.read_text(encoding="utf-8")
    page = made(text)
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page, encoding="utf-8")
    elif page != text:
        sys.stderr.write(f"stale: {PAGE.relative_to(ROOT)}; run `make settings`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
