"""What the API server validates at admission: name patterns, CEL rules, durations.

Separate from the models, because settings parse names and durations before pydantic is imported.
"""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

#: Names of Kubernetes objects: DNS subdomains.
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

#: Keys of Secrets and ConfigMaps.
OBJECT_KEY = r"^[-._a-zA-Z0-9]+$"

#: Limits in characters: of object names and keys, of labels, and of their keys.
LONGEST_NAME = 253
LONGEST_LABEL = 63
LONGEST_LABEL_KEY = LONGEST_NAME + len("/") + LONGEST_LABEL

#: The message for a longer one, after the name of the field.
LABEL_KEYS: Final = (
    f"a key has at most {LONGEST_LABEL_KEY} characters: a domain of at most {LONGEST_NAME}, a slash, and a name of at "
    f"most {LONGEST_LABEL}"
)

_WORD = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


def is_object_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and re.fullmatch(OBJECT_NAME, text) is not None


def is_namespace_name(text: str) -> bool:
    """Tells whether the text is a DNS label."""
    return len(text) <= LONGEST_LABEL and "." not in text and is_object_name(text)


def is_key(text: str) -> bool:
    """Tells whether the text is a key of a Secret or ConfigMap; IsConfigMapKey in
    k8s.io/apimachinery/pkg/util/validation.
    """
    fits = len(text) <= LONGEST_NAME and re.fullmatch(OBJECT_KEY, text) is not None
    return fits and text != "." and not text.startswith("..")


def is_label_key(text: str) -> bool:
    """Tells whether the text is a key of a label or annotation; IsQualifiedName there."""
    domain, slash, name = text.rpartition("/")
    return (not slash or is_object_name(domain)) and name != "" and is_label_value(name)


def is_label_key_prefix(text: str) -> bool:
    """Tells whether the text is a domain of keys of labels and annotations, in any case, or such a domain, a slash, and
    the beginning of a name. A domain without a dot needs the slash: otherwise it is a key that has no domain.
    """
    domain, slash, name = text.lower().partition("/")
    begins = len(name) <= LONGEST_LABEL and re.fullmatch(r"([a-z0-9][-a-z0-9_.]*)?", name) is not None
    return is_object_name(domain) and ("." in domain or slash != "") and begins


def is_label_value(text: str) -> bool:
    """Tells whether the text is a label's value; IsValidLabelValue there."""
    return text == "" or (len(text) <= LONGEST_LABEL and _WORD.fullmatch(text) is not None)


def rule(expression: str, message: str, *, field_path: str = "") -> dict[str, Any]:
    """Builds one CEL rule. `field_path` (as `.serverRef.name`) names the field at fault if the rule belongs to a
    parent.
    """
    made = {"rule": expression, "message": message, "reason": "FieldValueInvalid"}
    if field_path:
        made["fieldPath"] = field_path
    return made


def label_keys_rule(message: str) -> dict[str, Any]:
    """Builds the CEL rule that no key of a map is too long for a label or annotation."""
    return rule(f"self.all(key, size(key) <= {LONGEST_LABEL_KEY})", message)


def rules(*every: dict[str, Any]) -> dict[str, Any]:
    """Wraps rules as the extras of a schema."""
    return {"x-kubernetes-validations": list(every)}


def list_schema(most: int, kind: str = "set", *, least: int = 0) -> dict[str, Any]:
    """Returns the bounds of a list, and how server-side apply merges it."""
    smallest = {"minItems": least} if least else {}
    return {**smallest, "maxItems": most, "x-kubernetes-list-type": kind}


def map_schema(most: int, key: str) -> dict[str, Any]:
    """Returns the bounds of a list that server-side apply merges by a field of its items."""
    return {**list_schema(most, "map"), "x-kubernetes-list-map-keys": [key]}


def immutable_optional(name: str, message: str) -> dict[str, Any]:
    """Builds a rule for the object that contains an optional field: the field cannot be changed, added later, or
    removed.

    `self == oldSelf` on the field itself is not evaluated if either side is absent.
    """
    expression = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    return rule(expression, message, field_path=f".{name}")


_PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|h|m|s))+$"
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


def read_duration(text: str) -> timedelta:
    """Parses a duration. Raises ValueError for malformed text and for durations above Python's maximum."""
    if not re.fullmatch(_PATTERN, text):
        raise ValueError("not a duration")
    parts = re.findall(r"([0-9.]+)(ms|h|m|s)", text)
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError as error:
        raise ValueError("too long") from error


_RETENTION = r"^([0-9]{1,4}d|([0-9]+(\.[0-9]+)?(ms|h|m|s))+)$"


def read_retention(text: str) -> timedelta:
    """Parses a number of days, such as 90d, or a duration. Raises ValueError for any other text."""
    if re.fullmatch(r"[0-9]{1,4}d", text):
        return timedelta(days=int(text[:-1]))
    return read_duration(text)


def between(least: str, most: str, message: str, read: Callable[[str], timedelta] = read_duration) -> Any:  # noqa: ANN401 -- pydantic's marker
    """Returns the validator of a duration field; any other text is rejected with `message`."""
    from pydantic import AfterValidator
    from pydantic_core import PydanticCustomError

    lowest, highest = read(least), read(most)

    def check(text: str) -> str:
        try:
            fits = lowest <= read(text) <= highest
        except ValueError:
            fits = False
        if not fits:
            raise PydanticCustomError("duration", message)
        return text

    return AfterValidator(check)


def duration_schema(least: str, most: str, message: str) -> dict[str, Any]:
    """Returns the same check for the API server."""
    expression = f"duration(self) >= duration('{least}') && duration(self) <= duration('{most}')"
    return {"maxLength": 64, "pattern": _PATTERN, **rules(rule(expression, message))}


def retention_schema(least: int, most: int, message: str) -> dict[str, Any]:
    """Returns the check of `read_retention` for the API server, whose durations have no days. Limits in days."""
    days = f"duration(self.replace('d', 'h')) >= duration('{least}h') && "
    days += f"duration(self.replace('d', 'h')) <= duration('{most}h')"
    hours = f"duration(self) >= duration('{least * 24}h') && duration(self) <= duration('{most * 24}h')"
    expression = f"self.endsWith('d') ? {days} : {hours}"
    return {"maxLength": 64, "pattern": _RETENTION, **rules(rule(expression, message))}
