"""The lint of names finds what a reader would confuse."""

from pathlib import Path

from tests.class_names import find_duplicates


def place(folder: Path, *modules: str) -> Path:
    folder.mkdir()
    for number, text in enumerate(modules):
        (folder / f"m{number}.py").write_text(text)
    return folder


def test_an_alias_with_the_name_of_a_class_is_found(tmp_path: Path) -> None:
    package = place(tmp_path / "pgrole_controller", "class Change:\n    pass\n", "\nChange = int | str\n")
    assert find_duplicates(package) == {"Change": ["pgrole_controller/m0.py:1", "pgrole_controller/m1.py:2"]}


def test_an_alias_that_the_package_defines_twice_is_found(tmp_path: Path) -> None:
    package = place(tmp_path / "pgrole_controller", "Json = dict\n", "Json: TypeAlias = dict\n")
    assert list(find_duplicates(package)) == ["Json"]


def test_tests_may_repeat_an_alias_but_not_give_it_another_meaning(tmp_path: Path) -> None:
    package = place(tmp_path / "pgrole_controller", "Json = dict\nRow = dict\n")
    tests = place(tmp_path / "tests", "Json = dict\nRow = list\n")
    assert list(find_duplicates(package, tests)) == ["Row"]


def test_type_variables_constants_and_private_names_are_exempt(tmp_path: Path) -> None:
    text = 'Name = TypeVar("Name")\nCLAIMS = 1\n_Text = str\n'
    other = 'Name = TypeVar("Name", bound=str)\nCLAIMS = 2\n\n\nclass _Text:\n    pass\n'
    assert find_duplicates(place(tmp_path / "pgrole_controller", text, other)) == {}
