"""YAML in the tests: by libyaml if it is available, six times as fast as PyYAML's own parser and writer."""

from collections.abc import Iterable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def read_document(text: str) -> Any:
    return yaml.load(text, Loader=_LOADER)


def read_documents(text: str) -> list[Any]:
    """Returns the documents that are not empty."""
    return [one for one in yaml.load_all(text, Loader=_LOADER) if one]


def write_documents(objects: Iterable[Any]) -> str:
    return str(yaml.dump_all(objects, Dumper=_DUMPER))
