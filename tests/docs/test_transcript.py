"""The picture in the README: its content, and that a stale one is detected."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.docs import transcript
from tests.docs.page import ROOT
from tests.docs.transcript import (
    COMMANDS,
    PICTURE,
    NotRecorded,
    Printed,
    Typed,
    draw,
    find_problem,
    read_session,
    running,
    type_command,
)

SESSION = [
    Printed(Typed("first --option"), "plain \x1b[31mred\x1b[0m <b>&amp;</b>\nsecond line\n", 0.25),
    Printed(Typed("silent"), "", 0.1),
    Printed(Typed("last"), "end\n", 2.0),
]


def delays(picture: str) -> dict[str, float]:
    """Returns the time at which each text appears, in seconds."""
    found = re.findall(r'animation-delay: ([\d.]+)s"[^>]*>([^<]+)<', picture)
    return {text.replace("&#160;", " "): float(delay) for delay, text in found if text.strip()}


def test_each_line_appears_at_the_time_it_was_printed() -> None:
    shown = delays(draw(SESSION))
    assert shown["$ first --option"] == 0.0
    assert shown["second line"] == 0.25
    assert shown["$ silent"] == 1.75
    assert shown["$ last"] == 3.35
    assert shown["end"] == 5.35


def test_output_is_escaped_and_keeps_its_colours() -> None:
    picture = draw(SESSION)
    texts = ["".join(element.itertext()) for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    said = "".join(texts).replace("\xa0", " ")
    assert "<b>&amp;</b>" in said
    assert "\x1b" not in picture
    [of_red] = re.findall(r'class="shown (transcript-r\d+)"[^>]*>red<', picture)
    assert re.search(rf"\.{of_red} {{ fill: #cc555a }}", picture)
    assert [one["command"] for one in read_session(picture)] == ["first --option", "silent", "last"]
    assert "https://" not in re.sub(r"<!--.*?-->", "", picture), "it loads an external font"


def test_a_picture_that_shows_other_commands_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_problem() is None
    other = ROOT / "docs" / "images" / "no-such-picture.svg"
    monkeypatch.setattr(transcript, "PICTURE", other)
    assert find_problem() == "missing"
    monkeypatch.setattr(transcript, "PICTURE", tmp_path / "other.svg")
    (tmp_path / "other.svg").write_text(draw(SESSION), encoding="utf-8")
    assert "first --option" in (find_problem() or "")


def lines_of(picture: str) -> list[str]:
    """Returns the text of a picture, without the table of the history, which may name the author or not, and
    without numbers and widths of columns.
    """
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text [^>]*y="([\d.]+)"[^>]*clip-path[^>]*>([^<]*)<', picture):
        lines[float(y)] = lines.get(float(y), "") + text.replace("&#160;", " ")
    shown = (" ".join(re.sub(r"\d+", "0", lines[y]).split()) for y in sorted(lines))
    text = re.sub(r"^TIME [^$]*", "", "".join(f"{line}\n" for line in shown), flags=re.MULTILINE)
    return [line for line in text.splitlines() if line]


def test_the_picture_shows_what_the_commands_print_now(tmp_path: Path) -> None:
    with running(tmp_path) as environment:
        printed = [type_command(command, environment) for command in COMMANDS]
    assert lines_of(draw(printed)) == lines_of(PICTURE.read_text(encoding="utf-8")), "run `make transcript`"


def test_a_command_that_fails_or_never_prints_its_text_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TERM": "xterm-256color"}
    assert type_command(Typed("stty size; test -t 1"), environment).text == "50 110\n"
    assert type_command(Typed("exit 3", codes=(0, 3)), environment).text == ""
    with pytest.raises(NotRecorded, match=r"ended with 4:\nsaid"):
        type_command(Typed("echo said; exit 4"), environment)
    monkeypatch.setattr(transcript, "_COMMAND_SECONDS", 0.3)
    with pytest.raises(NotRecorded, match="never"):
        type_command(Typed("echo never", until="always"), environment)
