"""cli: the exit code and the message of each command."""

import argparse
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgrole_controller.api import crd
from pgrole_controller.cli import main, make_parser
from pgrole_controller.controller.containment import CannotStart
from pgrole_controller.ending import FAILED, MISUSED
from pgrole_controller.local import table
from pgrole_controller.program import CONTROLLER, PLUGIN, SHARED_COMMANDS, spell_commands
from pgrole_controller.settings import DSN, SETTINGS
from tests.certificates import Certificates


def end(*arguments: str) -> object:
    """Returns the exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "COMMAND"),
        (("walk",), "walk"),
        (("run", "--leader", "true"), "--leader true"),
        (("claims", "release", "--all", "--forget"), "--all"),
        (("sql", "--rem"), "--rem"),
        (("completion", "tcsh"), "SHELL"),
        (("run", "--leader-election", "maybe"), "--leader-election"),
        (("run", "--lease", "Leader!"), "--lease"),
        (("run", "--kubeconfig", "/nowhere/at/all"), "--kubeconfig"),
        (("claims", "release", "--all-released"), "--forget"),
        (("claims", "release", "--role", "app", "--namespace", "shop"), "--cluster"),
        (("claims", "list"), "PGROLE_DSN"),
    ],
)
def test_misuse_is_an_error_that_names_the_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], named: str
) -> None:
    monkeypatch.delenv("PGROLE_DSN", raising=False)
    assert end(*arguments) == MISUSED
    assert named in capsys.readouterr().err.splitlines()[-1]


def test_an_invalid_variable_is_named_without_its_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGROLE_DSN", "postgresql://admin:hunter2/3@host/db")
    assert end("run") == MISUSED
    said = capsys.readouterr()
    assert "PGROLE_DSN" in said.err
    assert "hunter2" not in said.out + said.err


def test_help_names_each_flag_with_its_variable_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("run", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    for setting in SETTINGS:
        described = f"({setting.variable}; default: {setting.default})" if setting.default else f"({setting.variable}"
        assert f"{setting.flag} {setting.metavar} " in said or setting.secret
        assert described in said.replace("- ", "-") or setting.secret
    assert f"{DSN.variable} (environment only)" in said


def test_crds_are_written_to_a_folder_that_need_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "crds"
    assert end("crds", "--check", str(folder)) == FAILED
    assert f"run `pgrole-controller crds --write {folder}`" in capsys.readouterr().err
    assert end("crds", "--write", str(folder)) == 0
    assert {path.name for path in folder.iterdir()} == set(crd.files())
    assert end("crds", "--check", str(folder)) == 0
    (folder / next(iter(crd.files()))).write_bytes(b"\xff")
    assert end("crds", "--check", str(folder)) == FAILED
    assert "not of this version" in capsys.readouterr().err


def test_a_crd_that_was_edited_is_stale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end("crds", "--write", str(tmp_path))
    edited = tmp_path / min(crd.files())
    edited.write_text(edited.read_text(encoding="utf-8").replace("description: ", "description: Not ", 1), "utf-8")
    assert end("crds", "--check", str(tmp_path)) == FAILED
    assert f"not of this version: {edited.name}: run" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "utf-16"])
@pytest.mark.parametrize(
    ("command", "end_of_output"), [("crds", [*crd.files().values()][-1]), ("sql", "COMMIT;\n")], ids=["crds", "sql"]
)
def test_a_printed_document_is_utf_8_whatever_the_encoding_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, command: str, end_of_output: str, encoding: str
) -> None:
    printed = io.BytesIO()
    terminal = io.TextIOWrapper(printed, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", terminal)
    assert end(command) == 0
    terminal.flush()
    assert printed.getvalue().decode("utf-8").endswith(end_of_output)


def commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands and their subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield command
                yield from commands_of(command)


def examples_of(parser: argparse.ArgumentParser, program: str) -> list[list[str]]:
    """The words after the program's name in each example of the help."""
    indented = [line.strip() for line in (parser.epilog or "").splitlines() if line.startswith("  ")]
    calls = [re.search(rf"(?<![\w/-]){program} ([^|>)]*)", line) for line in indented]
    assert all(calls), f"an example of another program: {indented}"
    return [shlex.split(call[1]) for call in calls if call]


@pytest.mark.parametrize(
    ("called", "program"),
    [
        ("/usr/bin/pgrole-controller", CONTROLLER),
        ("/app/pgrole_controller/__main__.py", CONTROLLER),
        ("/root/.krew/bin/kubectl-pgrole", PLUGIN),
        ("kubectl_complete-pgrole", PLUGIN),
    ],
)
def test_examples_in_the_help_of_each_command_parse_and_name_the_called_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], called: str, program: str
) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    commands = list(commands_of(make_parser()))
    assert len(commands) > 12
    for command in commands:
        assert command.prog.startswith(f"{program} ")
        examples = examples_of(command, program)
        assert examples, f"{command.prog}: no example"
        for words in examples:
            assert command.prog.startswith(f"{program} {words[0]}")
            make_parser().parse_args(words)
        help_text = command.format_help()
        assert f"  {(command.epilog or '').splitlines()[-1].strip()}\n" in help_text, "the help wraps an example"
        assert program == CONTROLLER or not re.search(r"pgrole-controller [a-z]", help_text)


def test_all_commands_spell_output_and_namespace_alike() -> None:
    options = [action for command in commands_of(make_parser()) for action in command._actions]
    outputs = [one for one in options if "--output" in one.option_strings]
    assert len(outputs) > 5
    for one in outputs:
        assert (one.option_strings, one.default) == (["-o", "--output"], "text")
        assert list(one.choices or ())[:2] == ["text", "json"]
    namespaces = [one for one in options if "--namespace" in one.option_strings and "PGROLE_" not in (one.help or "")]
    assert len(namespaces) > 8
    assert {(*one.option_strings, one.metavar) for one in namespaces} == {("-n", "--namespace", "NAME")}


def test_the_former_name_of_the_text_of_claims_is_accepted() -> None:
    assert make_parser().parse_args(["claims", "list", "-o", "table"]).output == "text"


def test_access_offers_no_namespace_since_roles_have_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert end("access", "app", "-n", "shop") == MISUSED
    assert "-n" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--dsn", "--server", "--own-namespace"])
def test_approve_offers_no_option_that_it_would_ignore(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert end("approve", "orders-app", option, "postgresql://localhost/postgres") == MISUSED
    assert option in capsys.readouterr().err


def test_the_plugin_has_no_command_that_runs_the_controller(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    monkeypatch.delenv("PGROLE_DSN", raising=False)
    for command in ("run", "dev"):
        assert end(command) == MISUSED
    assert end("claims", "list") == MISUSED
    assert capsys.readouterr().err.splitlines()[-1].startswith("kubectl pgrole: PGROLE_DSN")
    assert end("--version") == 0
    assert capsys.readouterr().out.startswith("kubectl pgrole 0.")


def test_remedies_name_the_program_that_the_user_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    said = "run `pgrole-controller sql | psql` (Secret pgrole-controller-dsn, pgrole-controller --version)"
    assert spell_commands(said) == (
        "run `kubectl pgrole sql | psql` (Secret pgrole-controller-dsn, kubectl pgrole --version)"
    )


@pytest.mark.parametrize(
    "words",
    [
        "doctor --server=",
        "access app --database=",
        "doctor --login=",
        "history --database=",
        "history --namespace=",
        "doctor --own-namespace=",
        "approve --yes ..",
        "diff a/b",
        "diff -n ..",
        "diff -n Shop",
    ],
)
def test_a_name_that_nothing_can_have_is_misuse(words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == MISUSED


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--limit", "0", "must be a number from 1 to 5000"),
        ("--limit", "5001", "must be a number from 1 to 5000"),
        ("--limit", "9" * 5000, "must be a number from 1 to 5000"),
        ("--since", "10000d", "must be a period such as 30s, 12h or 7d, above 0 and at most 9999d"),
    ],
)
def test_a_number_or_period_out_of_range_is_answered_with_the_range(
    option: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end("history", option, value) == MISUSED
    assert capsys.readouterr().err.endswith(f"argument {option}: {expected}\n")


@pytest.mark.parametrize("command", ["access", "history"])
def test_an_empty_role_is_misuse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert end(command, "") == MISUSED
    assert "ROLE: must not be empty" in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_yaml_is_said_to_be_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kubeconfig"
    for content in (b"a: [", b"\xff\x00"):
        config.write_bytes(content)
        assert end("diff", "--kubeconfig", str(config)) == MISUSED
        assert capsys.readouterr().err == f"pgrole-controller: kubeconfig {config} is not usable: it is not YAML\n"


def test_a_kubeconfig_that_lacks_the_cluster_of_its_context_is_misuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kubeconfig"
    context = {"name": "a", "context": {"cluster": "c"}}
    config.write_text(json.dumps({"current-context": "a", "contexts": [context], "clusters": []}))
    for command in (("diff", "-A"), ("run", "--health-port", "0"), ("doctor",)):
        assert end(*command, "--kubeconfig", str(config)) == MISUSED, command
        assert f"kubeconfig {config} is not usable: " in capsys.readouterr().err


def test_why_the_controller_cannot_start_is_one_line_without_control_characters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ExceptionGroup("", [CannotStart("a proxy answered:\n\x1b[31mred")])

    monkeypatch.setattr("anyio.run", fail)
    monkeypatch.setattr("pgrole_controller.logs.set_up", lambda _level, _form: None)
    assert end("run") == FAILED
    assert capsys.readouterr().err == "pgrole-controller: a proxy answered:\\n\\x1b[31mred\n"


@pytest.mark.parametrize("command", ["run --health-port 0", "diff", "history", "console --port 0"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("a: [", "config is not usable: it is not YAML"),
        ("", 'config is not usable: its current context is ""; it has: none'),
        ("contexts: [{name: eu, context: {cluster: c}}]", "--context: kubeconfig"),
    ],
    ids=["no YAML", "empty", "without the context"],
)
def test_a_kubeconfig_that_cannot_be_meant_is_misuse(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    content: str,
    named: str,
) -> None:
    monkeypatch.delenv("PGROLE_DSN", raising=False)
    config = tmp_path / "config"
    config.write_text(content)
    context = ("--context", "nope") if named.startswith("--context") else ()
    assert end(*command.split(), "--kubeconfig", str(config), *context) == MISUSED
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("command", ["access app", "export"])
def test_a_cluster_that_is_not_read_since_a_dsn_names_the_server_is_misuse(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise they would show another server than the one that the user named."""
    monkeypatch.setenv("PGROLE_DSN", "postgresql://nobody@127.0.0.1:1/nowhere")
    for flags, named in (
        (("--context", "prod"), "--context"),
        (("--kubeconfig", "config"), "--kubeconfig"),
        (("--context", "prod", "--kubeconfig", "config"), "--kubeconfig and --context"),
    ):
        assert end(*command.split(), *flags) == MISUSED
        said = capsys.readouterr().err
        assert said.startswith(f"pgrole-controller: {named} without --server has no effect: ")
        assert "use --server NAME without a DSN" in said
    for variable in ("KUBECONFIG", "PGROLE_KUBECONFIG", "PGROLE_CONTEXT"):
        monkeypatch.setenv(variable, "prod")
    assert end(*command.split()) == FAILED
    assert "127.0.0.1" in capsys.readouterr().err


def test_the_name_of_no_pgrole_is_misuse(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("approve", "diff"):
        assert end(command, "") == MISUSED
        assert "NAME: must be the name of a PgRole" in capsys.readouterr().err


def test_text_that_only_resembles_a_call_of_the_program_is_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    for text in (
        "kubectl -n pgrole-controller logs",
        "no Deployment with label app.kubernetes.io/name=pgrole-controller in namespace shop",
        "kubectl logs -l app.kubernetes.io/name=pgrole-controller --tail=50",
        "pgrole-controller run --dsn-file dsn",
    ):
        assert spell_commands(text) == text


def test_shared_commands_are_exactly_those_of_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl-pgrole"])
    commands = {command.prog.split()[2] for command in commands_of(make_parser())}
    assert commands == set(SHARED_COMMANDS)


def test_the_table_for_a_machine_without_kubectl_prints_an_error_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "kubeconfig"
    cluster = {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(Certificates(tmp_path).authority("ca").chain),
    }
    dead = {"clusters": [{"cluster": cluster}], "users": [{"user": {"token": "x"}}]}
    for content, said in (
        (None, f"pgrole-controller: No such file or directory: '{config}'\n"),
        (json.dumps(dead), "the API server does not answer: [Errno 111] Connection refused\n"),
    ):
        if content:
            config.write_text(content, encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            table.main([str(config)])
        assert (ended.value.code, capsys.readouterr().err) == (FAILED, said)
