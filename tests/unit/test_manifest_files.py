"""commands/manifest_files: reads files; an error concerns its own document only."""

import json
import os
from pathlib import Path

import pytest

from pgrole_controller.commands import manifest_files
from pgrole_controller.commands.manifest_documents import MOST_VALUES
from pgrole_controller.commands.manifest_files import parse_manifests, read_manifests
from pgrole_controller.core.request import Key
from pgrole_controller.settings import WrongSetting

ROLE = "apiVersion: pgrole.dev/v1alpha1\nkind: PgRole\nmetadata: {name: %s}\nspec: {}\n"


def test_documents_of_any_form_are_read_and_other_kinds_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{ROLE % 'a'}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\n")
    (tmp_path / "b.json").write_text(
        '{"kind": "List", "apiVersion": "v1", "items": [{"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole",'
        '"metadata": {"name": "b", "namespace": "bank"}, "spec": {"login": true}}]}'
    )
    (tmp_path / "notes.txt").write_text("not: [yaml")
    (tmp_path / ".hidden.yaml").write_text("not: [yaml")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.yml").write_text(ROLE % "c")
    found = read_manifests([str(tmp_path)], "shop")
    assert [one.key for one in found.roles] == [Key("shop", "a"), Key("bank", "b"), Key("shop", "c")]
    assert found.roles[1].pgrole.spec.login
    assert found.wrong == ()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("kind: PgRole\nmetadata: {name: a}\n", "write apiVersion: pgrole.dev/v1alpha1"),
        ("apiVersion:\nkind: PgServer\n", "write apiVersion: pgrole.dev/v1alpha1"),
        ("apiVersion: pgrole.dev/v1alpha1\nkind: Pgrole\n", "not Pgrole"),
        ("apiVersion: pgrole.dev/v1alpha1\nmetadata: {name: a}\n", "not None"),
        ("apiVersion: pgrole.dev/v1alpha1\nkind: [PgRole]\n", "kind must be PgRole or PgServer"),
        ("apiVersion: example.com/v1\nkind: PgRole\nmetadata: {name: a}\n", ""),
        ("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n", ""),
    ],
)
def test_a_misspelled_kind_and_a_missing_version_are_no_other_kind(text: str, wrong: str) -> None:
    """A plan of nothing succeeds."""
    found = parse_manifests([("f", text)], "shop")
    assert found.roles == ()
    assert [wrong in one.error.message for one in found.wrong] == ([True] if wrong else [])


def test_each_error_has_its_line_and_hides_no_other() -> None:
    text = (
        ROLE % "a"
        + "---\n"
        + ROLE % "Wrong_Name"
        + "---\nnot: [yaml\n---\n"
        + (ROLE % "bad").replace("spec: {}", "spec: {connectionLimit: many}")
        + "---\njust text\n---\n"
        + ROLE % "a"
        + "---\n"
        + ROLE % "b"
    )
    found = parse_manifests([("f.yaml", text)], "shop")
    assert [one.key.name for one in found.roles] == ["a", "b"]
    assert [one.place for one in found.wrong] == ["f.yaml:6", "f.yaml:12", "f.yaml:13", "f.yaml:18", "f.yaml:20"]
    messages = [one.error.message for one in found.wrong]
    assert "metadata.name" in messages[0]
    assert "not YAML" in messages[1]
    assert "connectionLimit" in messages[2]
    assert found.wrong[2].key == Key("shop", "bad")
    assert "twice, first in f.yaml:1" in messages[4]


def test_times_stay_text_as_in_kubernetes() -> None:
    text = (ROLE % "a").replace("spec: {}", "spec: {comment: 2027-01-01, validUntil: 2027-01-01T00:00:00Z}")
    (one,) = parse_manifests([("f.yaml", text)], "shop").roles
    assert one.pgrole.spec.comment == "2027-01-01"
    assert one.pgrole.spec.valid_until is not None


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (
            "a: &a [1,1,1,1,1,1,1,1]\n"
            + "".join(f"b{n}: &b{n} [{'*a,' * 9 if not n else f'*b{n - 1},' * 9}]\n" for n in range(9)),
            "values",
        ),
        ("&a [*a]", "contains it"),
        ("[" * 5000, "not YAML"),
        ("a: !!python/object/apply:os.system [echo]", "not YAML"),
        ("? [a]\n: b", "not YAML"),
    ],
    ids=["laughs", "cycle", "deep", "python", "list as key"],
)
def test_hostile_documents_are_refused_at_once(document: str, why: str) -> None:
    found = parse_manifests([("f.yaml", f"{document}\n---\n{ROLE % 'fine'}")], "shop")
    assert [one.key.name for one in found.roles] == ["fine"]
    assert why in found.wrong[0].error.message or "nested" in found.wrong[0].error.message


def test_the_size_of_a_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_files, "LARGEST_FILE", 2**20)
    (tmp_path / "a.yaml").write_text("#" * (2**20 + 1))
    with pytest.raises(WrongSetting, match="larger than 1 MiB"):
        read_manifests([str(tmp_path / "a.yaml")], "shop")


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["not UTF-8", "missing"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(WrongSetting, match=r"a\.yaml"):
        read_manifests([str(file)], "shop")


def test_a_server_is_read_and_an_invalid_one_is_an_error() -> None:
    text = "apiVersion: pgrole.dev/v1alpha1\nkind: PgServer\nmetadata: {name: main}\nspec: {}\n"
    found = parse_manifests([("f.yaml", text)], "shop")
    assert (found.servers, len(found.wrong)) == ((), 1)
    assert 'PgServer "main"' in found.wrong[0].error.message


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ("{conectionLimit: 5}", "spec.conectionLimit"),
        ("{connection_limit: 5}", "spec.connection_limit"),
        ("{memberOf: [{role: a}, {role: b, amdin: true}]}", "spec.memberOf[1].amdin"),
        ("{privileges: [{database: d, schemas: [{name: s, access: [Read], excpet: [t]}]}]}", "schemas[0].excpet"),
    ],
)
def test_a_misspelled_field_is_an_error_as_for_kubectl(spec: str, field: str) -> None:
    found = parse_manifests([("f.yaml", (ROLE % "a").replace("{}", spec))], "shop")
    assert found.roles == ()
    assert field in found.wrong[0].error.message


def test_maps_with_free_keys_have_no_unknown_fields() -> None:
    spec = "{parameters: {app.tenant: x, work_mem: 8MB}, databaseParameters: [{database: d, parameters: {a.b: c}}]}"
    found = parse_manifests([("f.yaml", (ROLE % "a").replace("{}", spec))], "shop")
    assert found.wrong == ()


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 100_000, "a:\n" + " [" * 300 + "]" * 300])
def test_deeply_nested_documents_are_refused_before_libyaml_exhausts_the_stack(text: str) -> None:
    found = parse_manifests([("f.yaml", f"{text}\n---\n{ROLE % 'a'}")], "shop")
    assert [one.error.message for one in found.wrong] == ["the document is nested too deeply"]
    assert len(found.roles) == 1


def test_many_brackets_in_a_long_line_do_not_count_as_nesting() -> None:
    comment = "[" * 500 + "x" * 500
    text = (ROLE % "a").replace("spec: {}", f'spec: {{comment: "{comment}"}}')
    assert parse_manifests([("f.yaml", text)], "shop").roles[0].pgrole.spec.comment == comment


def test_a_duplicate_key_is_an_error_with_its_line() -> None:
    text = (ROLE % "a").replace("spec: {}", "spec:\n  login: false\n  login: true")
    found = parse_manifests([("f.yaml", text)], "shop")
    assert found.roles == ()
    assert [(one.place, one.error.message) for one in found.wrong] == [
        ("f.yaml:6", 'key "login" is given twice: remove one')
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("", "takes a file"), ("a" * 5000, "File name too long"), ("no/such", "No such file")]
)
def test_a_path_that_is_not_a_file_is_misuse(name: str, text: str) -> None:
    with pytest.raises(WrongSetting, match=text):
        read_manifests([name], "shop")


def test_a_directory_without_manifests_is_misuse(tmp_path: Path) -> None:
    (tmp_path / "roles.txt").write_text(ROLE % "a")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.yaml").write_text(ROLE % "a")
    with pytest.raises(WrongSetting, match=r"the directory has no \.yaml, \.yml, \.json file"):
        read_manifests([str(tmp_path)], "shop")


def test_a_pipe_in_a_directory_is_rejected_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    with pytest.raises(WrongSetting, match=r"a\.yaml: not a regular file"):
        read_manifests([str(tmp_path)], "shop")


def test_broken_links_are_named_and_links_to_directories_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(ROLE % "a")
    (tmp_path / "again").symlink_to(tmp_path)
    assert len(read_manifests([str(tmp_path)], "shop").roles) == 1
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(WrongSetting, match=r"loop\.yaml"):
        read_manifests([str(tmp_path)], "shop")


def test_json_that_yaml_does_not_accept_is_read_as_by_kubectl() -> None:
    kind = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole"}
    roles: list[dict[str, object]] = [
        {**kind, "metadata": {"name": name}, "spec": {"comment": comment}}
        for name, comment in (("smiling", "hi \U0001f600"), ("second", "="))
    ]
    text = "\n".join(json.dumps(role) for role in roles)
    found = parse_manifests([("f.json", text)], "shop")
    assert not found.wrong
    assert [(one.key.name, one.place, one.pgrole.spec.comment) for one in found.roles] == [
        ("smiling", "f.json:1", "hi \U0001f600"),
        ("second", "f.json:2", "="),
    ]
    long_key = json.dumps({**roles[0], "spec": {"x" * 1100: 1}})
    assert "has no such field" in parse_manifests([("f.json", long_key)], "shop").wrong[0].error.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"a": "\\ud83d\\ude00", "a": 1}', "not YAML"),
        ('{"a": "\\ud83d"}', "not YAML"),
        ('{"a": 1} x', "not YAML"),
        ("a: \x01", "characters are not allowed"),
        ('{"a": "\\ud83d\\ude00"}' + "[" * 201 + "]" * 201, "nested too deeply"),
        ("{}" + "[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a": "\\ud83d\\ude00"} [' + "1," * MOST_VALUES + "1]", "values"),
    ],
)
def test_json_that_kubectl_refuses_is_an_error(text: str, why: str) -> None:
    (wrong,) = parse_manifests([("f.json", text)], "shop").wrong
    assert why in wrong.error.message


def test_an_equals_sign_is_text_as_in_kubernetes() -> None:
    text = "apiVersion: pgrole.dev/v1alpha1\nkind: PgRole\nmetadata: {name: app}\nspec:\n  comment: =\n"
    (role,) = parse_manifests([("f.yaml", text)], "shop").roles
    assert role.pgrole.spec.comment == "="
