"""Compares a command's output with the page, except for what differs between readers."""

import re

_UID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?"
_VARYING = (
    (re.compile(_UID), "<uid>"),
    (re.compile(_TIME), "<time>"),
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b"), "<time>"),
    (re.compile(r"(?<![\w.])v?\d+\.\d+(?:\.\d+)*(?![\w.])"), "<version>"),
    (re.compile(r"(?<![\w.])(?:\d+(?:\.\d+)?(?:ms|[smhd]))+(?![\w])"), "<age>"),
    (re.compile(r"-{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)
_ORDERLESS = re.compile(r"\bget events\b")
_LOOKS = re.compile(
    r"kubectl (?:-n \S+ )?(?:get|describe|wait|rollout status|auth can-i|logs|top)\b"
    r"|psql [^;]*-\w*c ['\"]SELECT\b|(?:pgrole-controller|kubectl pgrole) "
    r"(?:claims list|plan|diff|access|history|doctor)\b|curl -|helm (?:list|status|history)\b"
)
_CHANGES = re.compile(r"[;&\n]\s*\S|\$\((?!date)|^\w+=|(?<![0-9])>(?!&)")


def fits(command: str, shown: str, said: str) -> bool:
    """`…` on its own line matches any lines, and inside a line any text.

    Output after a question (`[y/N]` at the end) is ignored.
    """
    wanted, found = _lines(shown), _lines(said)
    if _ORDERLESS.search(command):
        wanted, found = sorted(wanted), sorted(found)
    pattern = "".join(_pattern(line) for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in found)) is not None


def only_looks(command: str) -> bool:
    """Tells whether the command may be repeated until its condition is true."""
    command = re.sub(r"\s+#.*", "", command.strip())
    return (_LOOKS.match(command) is not None or "--dry-run=server" in command) and _CHANGES.search(command) is None


def _lines(text: str) -> list[str]:
    for varying, name in _VARYING[:-1]:
        text = varying.sub(name, text)
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _pattern(line: str) -> str:
    if line == "…":
        return r"(?:.*\n)*"
    text = re.escape(line).replace("…", ".*")
    return rf"{text}.*\n(?:.*\n)*" if line.endswith("[y/N]") else rf"{text}\n"
