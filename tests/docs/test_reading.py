"""How a page is parsed, and how output is compared with it."""

import os
from pathlib import Path

import pytest

from tests.docs.output import fits, only_looks
from tests.docs.page import ROOT, BadPage, Block, Command, read_page
from tests.docs.reader import expecting
from tests.docs.shell import Failed, shell

TABLE = "NAME      READY   AGE\ndefault   True    3s\n"


def write_page(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> list[Block]:
    monkeypatch.setattr("tests.docs.page.ROOT", folder)
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return read_page(path)


def test_instructions_apply_only_to_the_fence_directly_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<!-- in a new cluster -->\n<!-- stays: ready -->\n```sh\nmake dev\n```\n\n   <!-- not run: no Docker -->\n"
    first, second, third = write_page(monkeypatch, tmp_path, f"{text}   ```sh\n   docker\n   ```\n\n```sh\nls\n```\n")
    assert (first.anew, first.stays, first.excuse) == (True, "ready", None)
    assert first.commands() == [Command(4, "make dev\n", stays="ready")]
    assert (second.excuse, second.text, second.is_run) == ("no Docker", "docker\n", False)
    assert (third.anew, third.stays, third.excuse, third.is_run) == (False, None, None, True)


def test_a_block_below_the_name_of_a_file_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "`some/drift.sql`:\n\n```sql\nSELECT 1;\n```\n\nIn `drift.sql`: no\n\n```sql\nSELECT 2;\n```\n"
    first, second = write_page(monkeypatch, tmp_path, text)
    assert (first.file, first.is_run) == ("some/drift.sql", False)
    assert (second.file, second.is_run) == (None, True)


def test_a_prompt_begins_a_command_and_a_here_document_ends_at_its_delimiter() -> None:
    text = "$ cat <<END\n$ no prompt\nEND\n$ echo a \\\n  b\na b\n\n$ true\n"
    assert Block("page.md", 7, "console", text).commands() == [
        Command(7, "cat <<END\n$ no prompt\nEND\n"),
        Command(10, "echo a \\\n  b\n", "a b"),
        Command(14, "true\n"),
    ]


@pytest.mark.parametrize("fence", ["bash\nls", "shell\nls", "\n$ ls"])
def test_a_fence_with_another_shell_language_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fence: str
) -> None:
    with pytest.raises(BadPage, match=r"page\.md:2"):
        write_page(monkeypatch, tmp_path, f"```{fence}\n```\n")


def test_ages_times_versions_and_column_widths_are_ignored() -> None:
    assert fits("kubectl get", TABLE, "NAME  READY  AGE\ndefault  True  2m17s\n")
    assert fits("date", "at 2026-11-20T16:04:09Z with 18.4", "at 2027-01-01T00:00:00Z with 17.10\n")


@pytest.mark.parametrize(
    "said",
    [
        TABLE.replace("True", "False"),
        f"{TABLE}other   True   3s\n",
        "NAME   READY   AGE\n",
        "",
        f"Warning: old\n{TABLE}",
    ],
)
def test_any_other_difference_counts(said: str) -> None:
    assert not fits("kubectl get", TABLE, said)


def test_an_ellipsis_matches_any_text_and_on_its_own_line_any_lines() -> None:
    assert fits("run", "a …\n…\nz", "a b c\n1\n2\nz\n")
    assert fits("run", "a\n…\nz", "a\nz\n")
    assert not fits("run", "a …\nz", "b\nz\n")
    assert fits("claims transfer", "continue? [y/N]", "continue? [y/N] done: 3 claims\n")


def test_events_match_in_any_order_and_other_lines_do_not() -> None:
    assert fits("kubectl get events", "a\nb", "b\na\n")
    assert not fits("kubectl get pgr", "a\nb", "b\na\n")


@pytest.mark.parametrize(
    ("command", "looks"),
    [
        ("kubectl get pgr -A   # all; of them", True),
        ("kubectl -n pgrole-system get lease", True),
        ("""psql "$uri" -Atc 'SELECT current_user'""", True),
        ("kubectl create secret generic one --dry-run=server", True),
        ("kubectl delete pgr one", False),
        ("kubectl get pgr -o name; kubectl delete pgr one", False),
        ('psql -c "DROP ROLE readers"', False),
        ("psql -f drift.sql", False),
        ("kubectl get pgr > file", False),
    ],
)
def test_only_read_only_commands_are_repeated(command: str, looks: bool) -> None:
    assert only_looks(command) is looks


async def test_the_shell_keeps_variables_and_ends_at_the_first_failure(tmp_path: Path) -> None:
    (tmp_path / "said").mkdir()
    async with shell(tmp_path / "said", tmp_path, os.environ) as bash:
        await bash.run("name=readers\n", seconds=30)
        assert await bash.run('echo "$name"\n', seconds=30) == "readers\n"
        assert await bash.run("read -r typed\necho got $typed\n", seconds=30, answer="y") == "got y\n"
        with pytest.raises(Failed, match="before"):
            await bash.run("echo before\nfalse | true\necho after\n", seconds=30)
        with pytest.raises(Failed):
            await bash.run("true\n", seconds=30)


async def test_a_command_that_keeps_running_ends_with_the_page(tmp_path: Path) -> None:
    (tmp_path / "said").mkdir()
    ended = tmp_path / "ended"
    program = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: exit(open('{ended}', 'w').write('') or 0))\n"
    (tmp_path / "program.py").write_text(f"{program}print('ready', flush=True)\nsignal.pause()\n", encoding="utf-8")
    async with shell(tmp_path / "said", tmp_path, os.environ) as bash:
        assert await bash.begin("python3 program.py   # goes on\n", "ready", seconds=30) == "ready\n"
        assert await bash.run("echo beside\n", seconds=30) == "beside\n"
    assert ended.exists()


def test_the_replacement_for_make_dev_is_that_of_the_makefile() -> None:
    assert "\n\t@$(RUN) pgrole-controller dev $(ARGS)\n" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_the_exit_code_applies_to_the_last_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "<!-- exits with: 3 -->\n```console\n$ true\n$ exit 3\n```\n"
    [block] = write_page(monkeypatch, tmp_path, text)
    assert [command.code for command in block.commands()] == [0, 3]
    with pytest.raises(BadPage, match="names an exit code"):
        write_page(monkeypatch, tmp_path, text.replace("3 -->", "three -->"))


@pytest.mark.parametrize(("text", "passes"), [("(exit 3)", True), ("false", False), ("true", False)])
async def test_a_command_fails_unless_it_ends_with_the_exit_code_on_the_page(
    tmp_path: Path, text: str, passes: bool
) -> None:
    async with shell(tmp_path, tmp_path, os.environ) as bash:
        if passes:
            assert await bash.run(expecting(3, f"kept=1\n{text}\n"), seconds=30.0) == ""
            assert (await bash.run("echo $kept", seconds=30.0)).strip() == "1"
        else:
            with pytest.raises(Failed, match="ended with exit code"):
                await bash.run(expecting(3, text), seconds=30.0)


@pytest.mark.parametrize("program", ["pgrole-controller", "kubectl pgrole"])
def test_read_only_subcommands_are_repeated_and_others_are_not(program: str) -> None:
    assert only_looks(f"{program} history orders_app")
    assert only_looks(f"{program} diff -n shop")
    assert not only_looks(f"{program} approve -n shop orders-app")
    assert not only_looks(f"{program} export --output-dir roles/")
