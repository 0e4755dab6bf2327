"""Prints objects as YAML that every parser reads the same way, with comments in front."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from pgrole_controller.ending import make_printable

#: Texts that are the same text in every version of YAML. All others get quotes.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})

#: No line is folded.
_WIDE = 1 << 30


class _ExportDumper(yaml.SafeDumper):
    """Indents lists, and quotes what any YAML parser could take for something else than text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 -- PyYAML's
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 -- PyYAML's
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_ExportDumper.add_representer(str, _represent)


def to_yaml(document: dict[str, Any], comments: Iterable[str] = ()) -> str:
    """One document without separator. Comments are made printable; each is one line."""
    return to_comments(comments) + yaml.dump(
        document,
        Dumper=_ExportDumper,
        sort_keys=False,
        default_flow_style=False,
        # no character may act on a terminal or change the direction of writing
        allow_unicode=all(text.isprintable() for text in texts_of(document)),
        width=_WIDE,
    )


def to_comments(comments: Iterable[str]) -> str:
    return "".join(f"# {make_printable(comment)}\n" if comment else "#\n" for comment in comments)


def texts_of(value: object) -> Iterator[str]:
    """Yields every text of a document, names of fields included."""
    match value:
        case str():
            yield value
        case dict():
            for item in value.items():
                yield from texts_of(list(item))
        case list():
            for one in value:
                yield from texts_of(one)
