"""Which names Kubernetes accepts."""

import pytest

from pgrole_controller.api.validation import is_key, is_label_key, is_label_value, is_namespace_name, is_object_name


@pytest.mark.parametrize(
    ("text", "obj", "namespace"),
    [
        ("team-a", True, True),
        ("7", True, True),
        ("a" * 63, True, True),
        ("a" * 64, True, False),
        ("a.b-c.d", True, False),
        ("a" * 253, True, False),
        ("a" * 254, False, False),
        *((wrong, False, False) for wrong in ("", "-a", "a-", "A", "a_b", "a..b", ".a", "a.", "a/b", "a\n", "\u212a")),
    ],
)
def test_names_of_objects_and_namespaces_are_validated(text: str, obj: bool, namespace: bool) -> None:
    assert (is_object_name(text), is_namespace_name(text)) == (obj, namespace)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        *((right, True) for right in ("a", "tls.crt", ".a", "A_b-9", "a" * 253)),
        *((wrong, False) for wrong in ("", ".", "..", "..a", "a b", "a/b", "a\n", "a" * 254)),
    ],
)
def test_keys_of_secrets_are_validated(text: str, fits: bool) -> None:
    assert is_key(text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        *((right, True) for right in ("team", "example.com/team", "a" * 253 + "/" + "b" * 63, "A.b_c-9")),
        *((wrong, False) for wrong in ("", "/team", "example.com/", "a/b/c", "Example.com/a", "-a", "a-", "a" * 64)),
        ("a" * 254 + "/b", False),
        ("example.com/" + "b" * 64, False),
        ("team\n", False),
    ],
)
def test_keys_of_labels_are_validated(text: str, fits: bool) -> None:
    assert is_label_key(text) is fits


def test_values_of_labels_are_validated() -> None:
    assert all(is_label_value(right) for right in ("", "a", "A.b_c-9", "a" * 63))
    assert not any(is_label_value(wrong) for wrong in ("-a", "a.", "a b", "a/b", "a" * 64, "a\n"))
