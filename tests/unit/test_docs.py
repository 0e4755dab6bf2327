"""Everything that the documentation names exists, and everything that exists is documented."""

import ast
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgrole_controller.api import crd
from pgrole_controller.api.meta import Model
from pgrole_controller.api.pgrole import PgRole, PgRoleSpec
from pgrole_controller.api.pgserver import PgServer, PgServerSpec
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.outcome import of_error, of_read_back
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.status import build_conditions
from pgrole_controller.postgres.watch import TICK
from pgrole_controller.settings import SETTINGS
from tests.docs import settings_table
from tests.docs.page import ROOT, read_page
from tests.docs.page import pages as documentation

#: Messages of PostgreSQL and asyncpg, and those assembled from parts.
OF_OTHERS = (
    "lacks a privilege: permission denied",
    "Connect call failed",
    "root certificate file",
    "not currently accepting connections",
    "Too many open files",
    "connection was closed in the middle",
)
PUT_TOGETHER = {
    "did not end within 10 s",
    "does not allow createdb",
    "adoption is denied",
    "no PgRole in namespace",
    "removes finalizer pgrole.dev/drop",
    "schema pgrole: permission denied",
}

PAGES = [*documentation(), ROOT / "CHANGELOG.md"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Returns the anchors of a page's headings, as GitHub generates them."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def examples() -> list[Any]:
    found = []
    for page in documentation():
        for block in read_page(page):
            if block.language == "yaml":
                found += [pytest.param(obj, id=block.place) for obj in yaml.safe_load_all(block.text)]
    return found


def section(text: str, heading: str) -> str:
    """Returns the text below a heading, up to the next heading that is not below it."""
    level = heading.split(" ")[0]
    return re.split(rf"^#{{1,{len(level)}}} ", text.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def table_row(text: str, cell: str) -> str:
    """Returns the table row whose first cell, or second if the first is empty, names `cell`."""
    rows = re.findall(rf"^\|[^|]*`{re.escape(cell)}[` ][^|]*\|.*$", text, flags=re.MULTILINE)
    assert rows, f"no row for {cell}"
    return str(rows[0])


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yields the fields of a schema as dotted paths: a list of objects, and also each field of its items."""
    for name, field in schema.get("properties", {}).items():
        if "properties" in field:
            yield from leaves(field, f"{path}{name}.")
        else:
            yield f"{path}{name}"
            yield from leaves(field.get("items", {}), f"{path}{name}[].")


def schema(part: str, of: crd.Definition = crd.PGROLE) -> dict[str, Any]:
    definition = crd.crd(of)
    properties: dict[str, Any] = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    found: dict[str, Any] = properties[part]
    return found


def test_the_table_of_settings_matches_the_code() -> None:
    text = read("docs/running.md")
    assert settings_table.made(text) == text
    for setting in SETTINGS:
        row = table_row(text.replace("| | `", "| `"), setting.flag or setting.variable)
        assert f"`{setting.variable}`" in row
        assert setting.help in row
        assert f"`{setting.default}`" in row or not setting.default


@pytest.mark.parametrize(("what", "instead"), [("`info`", "`loud`"), ("`PGROLE_LEASE`", ""), ("| `--context", "\n")])
def test_a_table_of_settings_edited_by_hand_is_detected_as_stale(what: str, instead: str) -> None:
    text = read("docs/running.md")
    assert settings_table.made(text.replace(what, instead, 1)) == text


def test_no_setting_is_documented_that_does_not_exist() -> None:
    known = {setting.variable for setting in SETTINGS} | {"PGROLE_CACHE_DIR"}
    for page, text in pages():
        assert set(re.findall(r"PGROLE_[A-Z_]+[A-Z]", text)) <= known, page


@pytest.mark.parametrize("field", [*leaves(schema("spec"))])
def test_every_field_of_spec_is_documented(field: str) -> None:
    table_row(read("docs/pgrole.md").split("## status")[0], field)


@pytest.mark.parametrize("field", [name for name in leaves(schema("status")) if "[]" not in name])
def test_every_field_of_status_is_documented(field: str) -> None:
    assert f"`{field}`" in read("docs/pgrole.md").split("## status")[1]


def test_documented_defaults_of_spec_are_those_of_the_crd() -> None:
    text = read("docs/pgrole.md")
    for name, field in schema("spec")["properties"].items():
        if isinstance(field.get("default"), bool | int | str):
            cells = table_row(text, name).split("|")
            assert str(field["default"]).lower() in cells[2].lower(), name


@pytest.mark.parametrize("field", [name for name in leaves(schema("spec", crd.PGSERVER)) if "[]" not in name])
def test_every_field_of_a_server_is_documented_with_its_default(field: str) -> None:
    row = table_row(read("docs/servers.md").split("## status")[0], field)
    described = schema("spec", crd.PGSERVER)
    for part in field.split("."):
        described = described["properties"][part]
    default = described.get("default")
    if isinstance(default, bool | int | str):
        assert f"`{str(default).lower()}`" in row.split("|")[2].lower()


def test_the_sample_of_a_server_names_every_field() -> None:
    words = set(re.findall(r"\w+", read("deploy/samples/servers/default.yaml")))
    fields = [name for name in leaves(schema("spec", crd.PGSERVER)) if "[]" not in name]
    assert [field for field in fields if field.rpartition(".")[2] not in words] == []


@pytest.mark.parametrize("field", [name for name in leaves(schema("status", crd.PGSERVER)) if "[]" not in name])
def test_every_field_of_a_servers_status_is_documented(field: str) -> None:
    assert f"`{field}`" in read("docs/servers.md").split("## status")[1]


@pytest.mark.parametrize("page", ["README.md", "docs/drift.md"])
def test_the_documented_tick_is_the_one_in_use(page: str) -> None:
    assert re.findall(r"[Ee]very (\d+ ms)", read(page)) == [TICK]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_documented(reason: Reason) -> None:
    table_row(read("docs/pgrole.md"), reason.value)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_documented_cause_and_remedy(reason: Reason) -> None:
    row = table_row(section(read("docs/troubleshooting.md"), "## By reason"), reason.value)
    assert all(cell.strip() for cell in row.strip("|").split("|"))


@cache
def literals() -> str:
    """Returns every text in the code, one per line, without inserted values, docstrings and comments."""
    found = []
    for file in sorted((ROOT / "pgrole_controller").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "\0" for part in parts]
            if all(isinstance(text, str) for text in texts) and id(node) not in docstrings:
                found.append("".join(map(str, texts)))
    for file in sorted((ROOT / "sql").rglob("*.sql")):
        code = re.sub(r"--.*", "", file.read_text(encoding="utf-8"))
        found += [text.replace("''", "'") for text in re.findall(r"'((?:[^']|'')+)'", code)]
    return "\n".join(found)


@pytest.mark.parametrize("page", ["docs/pgrole.md", "docs/troubleshooting.md"])
def test_every_message_with_a_documented_remedy_exists_in_the_code(page: str) -> None:
    said = literals()
    headings = r"^\| (?:reason|[^|\n]*message)[^|\n]*\|.*\n\|.*\n"
    tables = re.findall(rf"{headings}((?:\|.*\n)+)", read(page), flags=re.MULTILINE)
    messages = [
        text for table in tables for row in table.splitlines() for text in re.findall("`(.+?)`", row.split("|")[1])
    ]
    assert messages
    unknown = [text for text in messages if not all(part.strip() in said for part in text.split("…"))]
    assert [text for text in unknown if not text.startswith(OF_OTHERS) and text not in PUT_TOGETHER] == []


def test_every_line_of_the_log_that_the_runbook_names_exists_in_the_code() -> None:
    text = re.sub(r"```.*?```", "", read("docs/runbook.md"), flags=re.DOTALL)
    named = {one for one in re.findall("`([^`]+)`", text) if re.fullmatch(r"(PgServer|[a-z]+)( [A-Za-z,]+)+", one)}
    named = {one for one in named if not one.startswith("kubectl ")}
    assert "watch failed, trying again" in named
    assert named - {*literals().splitlines()} == set()


def test_every_event_is_documented_and_has_a_troubleshooting_entry() -> None:
    events = {"SecretRestored"}
    events |= {*re.findall(r'Action\.[A-Z]+: \("([A-Za-z]+)"', read("pgrole_controller/controller/reporter.py"))}
    assert len(events) > 1
    for event in events:
        assert f"`{event}`" in section(read("docs/pgrole.md"), "### Events"), event
        table_row(section(read("docs/troubleshooting.md"), "## By Event"), event)


def test_every_bound_cluster_role_is_covered_on_the_security_page() -> None:
    objects = [
        one
        for file in (ROOT / "deploy/kustomize").rglob("*.yaml")
        for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))
    ]
    bound = {one["roleRef"]["name"] for one in objects if "roleRef" in one}
    assert "pgrole-controller" in bound
    assert len(bound) > 1
    for name in bound:
        table_row(section(read("docs/security.md"), "## What the controller can do in a cluster"), name)


def test_every_page_is_listed_in_the_readme_and_every_decision_in_their_index() -> None:
    listed = section(read("README.md"), "## More")
    index = read("docs/decisions/README.md")
    for page in documentation():
        name = str(page.relative_to(ROOT))
        if page.parent.name == "decisions" and page.name != "README.md":
            assert f"]({page.name})" in index, name
        else:
            assert name == "README.md" or f"]({name})" in listed, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_line_is_longer_than_120_columns(page: Path) -> None:
    """Table rows cannot be wrapped: they may have 180 columns. The output of `python -m bench` is exempt."""
    text = re.sub(
        r"<!-- bench -->.*?<!-- /bench -->",
        lambda found: "\n" * found[0].count("\n"),
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    long = [
        number for number, line in enumerate(text.splitlines(), 1) if len(line) > (180 if line.startswith("|") else 120)
    ]
    assert long == []


def test_the_architecture_has_a_glossary_of_at_most_20_words_and_takes_ten_minutes() -> None:
    text = read("docs/architecture.md")
    entries = re.findall(r"^- (\*\*.*?): ", section(text, "## Glossary"), flags=re.MULTILINE)
    words = [word for entry in entries for word in re.findall(r"\*\*(.+?)\*\*", entry)]
    assert 0 < len(words) <= 20
    assert len(without_code(text).split()) <= 2200  # at 220 words a minute


@pytest.mark.parametrize("record", sorted((ROOT / "docs/decisions").glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_has_its_context_and_its_consequence(record: Path) -> None:
    headings = re.findall(r"^## (.+)$", record.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequence"]


@pytest.mark.parametrize("obj", examples())
def test_every_example_is_valid_and_has_no_unknown_field(obj: Any) -> None:
    models: dict[str, tuple[type[Model], type[Model]]] = {
        "PgRole": (PgRole, PgRoleSpec),
        "PgServer": (PgServer, PgServerSpec),
    }
    if obj.get("kind") not in models:
        return
    whole, spec = models[obj["kind"]]
    whole.model_validate(obj)
    assert set(obj["spec"]) <= {field.alias or name for name, field in spec.model_fields.items()}


def test_the_health_check_for_argo_cd_names_our_kinds_and_conditions() -> None:
    (found,) = [one.values[0] for one in examples() if one.values[0].get("metadata", {}).get("name") == "argocd-cm"]
    assert set(found["data"]) == {
        f"resource.customizations.health.pgrole.dev_{kind}" for kind in ("PgRole", "PgServer")
    }
    for outcome in (of_error(Refused(Reason.CONFLICT, "")), of_read_back(Plan("app", reported=("login",)))):
        types = {one["type"] for one in build_conditions((), outcome, 1, datetime(2026, 5, 6, tzinfo=UTC))}
        assert all(one in text for one in types for text in found["data"].values())
    assert all(f'"{Reason.SUSPENDED.value}"' in text for text in found["data"].values())


def test_every_relative_link_leads_somewhere() -> None:
    for page, text in pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
            if "://" in target:
                continue
            name, _, anchor = target.partition("#")
            linked = (ROOT / page).parent / name if name else ROOT / page
            assert linked.exists(), f"{page}: {target}"
            if anchor:
                assert anchor in anchors(linked.read_text(encoding="utf-8")), f"{page}: {target}"


def test_every_named_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), flags=re.MULTILINE))
    for page, text in pages():
        for names in re.findall(r"(?:`|^)make ((?:[a-z-]+ ?)+)", text, flags=re.MULTILINE):
            assert set(names.split()) <= targets, f"{page}: make {names}"


def test_every_named_test_exists() -> None:
    tests = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    for page, text in pages():
        for name in re.findall(r"`(test_[a-z0-9_]+)`", text):
            assert f"def {name}(" in tests, f"{page}: {name}"
        for name in re.findall(r"`(Test[A-Za-z]+)`", text):
            assert f"class {name}" in tests, f"{page}: {name}"


def test_every_named_file_exists() -> None:
    for page, text in pages():
        for name in re.findall(r"`((?:pgrole_controller|sql|tests|crds|deploy|bench|docs)/[\w./]*)`", text):
            assert (ROOT / name).exists(), f"{page}: {name}"
        for room, name in re.findall(r"`(api|core|kube|postgres|controller|local)/(\w+\.py)`", text):
            assert (ROOT / "pgrole_controller" / room / name).exists(), f"{page}: {room}/{name}"


def test_every_name_that_contributing_places_in_a_module_is_there() -> None:
    named = re.findall(r"`(\w+)`\s+(?:in|of)\s+`((?:\w+/)+\w+\.py)`", read("CONTRIBUTING.md"))
    assert ("References", "core/policy.py") in named
    for name, path in named:
        file = next(one for one in (ROOT / path, ROOT / "pgrole_controller" / path) if one.exists())
        assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), f"{name} in {path}"


def test_every_installed_table_view_and_function_is_documented() -> None:
    script = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "sql/install").glob("*.sql")))
    parts = re.findall(
        r"CREATE (?:OR REPLACE )?(?:TABLE|VIEW|FUNCTION|PROCEDURE)(?: IF NOT EXISTS)? pgrole\.(\w+)", script
    )
    assert parts
    for part in parts:
        assert f"`{part}`" in read("docs/running.md"), part


def test_the_readme_keeps_a_place_for_the_measured_figures() -> None:
    text = read("README.md")
    assert text.index("<!-- bench -->") < text.index("<!-- /bench -->")
