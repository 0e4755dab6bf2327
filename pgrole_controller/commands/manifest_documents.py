"""The documents of a text in YAML or JSON: split, bounded, and read as kubectl reads them."""

import json
import re
from collections.abc import Iterable, Iterator

import yaml

#: Values of one document after its aliases are expanded, and how deeply they are nested: libyaml's own composer calls
#: itself, and a C stack that overflows ends the process.
MOST_VALUES = 500_000
DEEPEST = 200

_MARKER = re.compile(r"^---(?=\s|$)", re.MULTILINE)
_TOO_DEEP = "the document is nested too deeply"
_NOT_SPACE = re.compile(r"\S")


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Leaves timestamps and = as text, as Kubernetes does."""


_TEXTS = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in some if tag not in _TEXTS]
    for first, some in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Unusable(Exception):
    """A document that is not YAML, or too large. `line`: of the file; None: unknown."""

    def __init__(self, why: str, line: int | None = None) -> None:
        super().__init__(why)
        self._line = line

    def place(self, name: str, otherwise: str) -> str:
        return otherwise if self._line is None else f"{name}:{self._line}"


def split_documents(text: str) -> Iterator[tuple[int, str]]:
    """Yields each document with the number of its first line: an error in one does not hide the others."""
    marks = [match.start() for match in _MARKER.finditer(text)]
    starts = [0, *(mark for mark in marks if mark > 0)]
    line, before = 1, 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line += text.count("\n", before, start)
        before = start
        document = text[start:end]
        yield line, "   " + document[3:] if _MARKER.match(document) else document


def read_values(name: str, line: int, document: str) -> Iterable[tuple[str, object]]:
    """Returns the values of one document, each with its place: JSON may have several. Raises Unusable."""
    loader = None
    try:
        _check_depth(document)
        loader = _Loader(document)
        node = loader.get_single_node()
        if node is None:
            return []
        _check_size(node, line)
        return [(f"{name}:{line + node.start_mark.line}", loader.construct_document(node))]
    except yaml.MarkedYAMLError as error:
        if values := _json_values(document):
            return [(f"{name}:{line + lines}", value) for lines, value in values]
        mark = error.problem_mark or error.context_mark
        where = line + mark.line if mark else None
        raise Unusable(f"not YAML: {error.problem or error.context}", where) from error
    except yaml.reader.ReaderError as error:
        raise Unusable(f"not YAML: {error.reason}") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise Unusable(f"not YAML: {type(error).__name__}") from error
    except RecursionError:
        raise Unusable(_TOO_DEEP) from None
    finally:
        if loader is not None:
            loader.dispose()


def _json_values(document: str) -> list[tuple[int, object]]:
    """Returns JSON values, one after the other, each with the number of lines before it; none if it is not JSON.

    YAML accepts neither several values, nor a character that is escaped as two surrogates, nor a long key. Raises
    Unusable for the same sizes as YAML.
    """
    found, at, left = list[tuple[int, object]](), _after_space(document, 0), MOST_VALUES
    try:
        while at < len(document):
            value, end = _JSON.raw_decode(document, at)
            json.dumps(value, ensure_ascii=False).encode()
            left -= _count(value, DEEPEST)
            if left < 0:
                raise Unusable(f"more than {MOST_VALUES} values: split it")
            found.append((document.count("\n", 0, at), value))
            at = _after_space(document, end)
    except ValueError:
        return []
    except RecursionError:
        raise Unusable(_TOO_DEEP) from None
    return found


def _count(value: object, depth: int) -> int:
    """Returns the number of values in this one, keys included. Raises Unusable if they are nested more deeply."""
    if not isinstance(value, (dict, list)):
        return 1
    if depth == 0:
        raise Unusable(_TOO_DEEP)
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    return 1 + sum(_count(one, depth - 1) for one in inner)


def _after_space(document: str, at: int) -> int:
    found = _NOT_SPACE.search(document, at)
    return found.start() if found else len(document)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError for a key that is given twice."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError
    return made


_JSON = json.JSONDecoder(object_pairs_hook=_unique)


def _check_depth(document: str) -> None:
    """Raises Unusable for values that are nested too deeply.

    A cheap look rules that out for most documents: each level needs a bracket, or at least half a column.
    """
    if document.count("[") + document.count("{") + 2 * max(map(len, document.splitlines()), default=0) < DEEPEST:
        return
    depth = 0
    for event in yaml.parse(document, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise Unusable(_TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_size(root: yaml.Node, line: int) -> None:
    """Raises Unusable for a document whose aliases make it contain itself, for more values than an object may have,
    and for a key that is given twice: only the last value would count, whatever a reader sees first.
    """
    sizes: dict[int, int | None] = {}

    def measure(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise Unusable("an alias refers to the value that contains it")
            return known
        sizes[id(node)] = None
        if isinstance(node, yaml.MappingNode):
            _check_keys(node, line)
            size = 1 + sum(measure(key) + measure(value) for key, value in node.value)
        else:
            size = 1 + sum(measure(item) for item in node.value)
        if size > MOST_VALUES:
            raise Unusable(f"more than {MOST_VALUES} values: split it")
        sizes[id(node)] = size
        return size

    measure(root)


def _check_keys(node: yaml.MappingNode, line: int) -> None:
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if (key.tag, key.value) in seen:
                raise Unusable(f'key "{key.value}" is given twice: remove one', line + key.start_mark.line)
            seen.add((key.tag, key.value))
