"""Templates of connection Secrets: `{field}` inserts a value, and `{{` and `}}` are literal braces.

Attributes, indexes, conversions and formats are not supported, so a template reaches nothing but its fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from string import Formatter
from urllib.parse import quote

PASSWORD = "password"  # noqa: S105 -- the name of a field
#: Fields that also exist as `…_url`, percent-encoded, and `…_pgpass`, escaped for a password file.
VARIED = ("username", PASSWORD, "host", "database")
FIELDS = frozenset({"username", PASSWORD, "host", "port", "database", "sslmode"}) | {
    f"{name}_{variant}" for name in VARIED for variant in ("url", "pgpass")
}
PASSWORD_FIELDS = frozenset({PASSWORD, f"{PASSWORD}_url", f"{PASSWORD}_pgpass"})
PGPASS_FIELDS = frozenset(f"{name}_pgpass" for name in VARIED)


@dataclass(frozen=True, slots=True)
class Template:
    """Pairs of a literal text and the name of the field that follows it, or None."""

    parts: tuple[tuple[str, str | None], ...]

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(field for _, field in self.parts if field is not None)


def parse(text: str) -> Template:
    """Parses a template. Raises ValueError that says what is wrong and how to fix it, without quoting a value."""
    try:
        text.encode()
        parsed = list(Formatter().parse(text))
    except UnicodeEncodeError:
        raise ValueError("it contains half of a surrogate pair, which UTF-8 cannot encode: remove it") from None
    except ValueError:
        raise ValueError(
            "it contains a single brace: write {field} for a value, {{ or }} for a literal brace"
        ) from None
    parts = tuple((literal, field) for literal, field, _, _ in parsed)
    for _, field, spec, conversion in parsed:
        if field is not None and (field not in FIELDS or spec or conversion):
            shown = field[:40] + (f"!{conversion}" if conversion else "") + (":…" if spec else "")
            raise ValueError(f"{{{shown}}} is not a field: write one of {', '.join(sorted(FIELDS))}, without additions")
    # The parser does not distinguish {port} from {port:}.
    if "".join(map(_write, parts)) != text:
        raise ValueError("a field has something after its name inside the braces: write only the name, e.g. {port}")
    return Template(parts)


def vary(values: Mapping[str, str]) -> dict[str, str]:
    """Adds the variants of the `VARIED` values that are given."""
    varied = dict(values)
    for name in VARIED:
        if name in values:
            value = values[name]
            varied[f"{name}_url"] = _quote_host(value) if name == "host" else quote(value, safe="")
            varied[f"{name}_pgpass"] = _escape_pgpass(value)
    return varied


def fill(template: Template, values: Mapping[str, str]) -> str:
    """Renders the text. Raises KeyError for a field without a value."""
    return "".join(literal + _value(field, values) for literal, field in template.parts)


def measure(template: Template, sizes: Mapping[str, int]) -> int:
    """Returns the size of the text in UTF-8 bytes, given the sizes of the values."""
    return sum(len(literal.encode()) + (0 if field is None else sizes[field]) for literal, field in template.parts)


def find(template: Template, values: Mapping[str, str], fields: frozenset[str]) -> tuple[int, int] | None:
    """Returns offset and length, in rendered characters, of the first of these fields; None if absent."""
    offset = 0
    for literal, field in template.parts:
        offset += len(literal)
        length = len(_value(field, values))
        if field in fields:
            return offset, length
        offset += length
    return None


def _value(field: str | None, values: Mapping[str, str]) -> str:
    return "" if field is None else values[field]


def _write(part: tuple[str, str | None]) -> str:
    literal, field = part
    return literal.replace("{", "{{").replace("}", "}}") + ("" if field is None else f"{{{field}}}")


def _quote_host(host: str) -> str:
    """RFC 3986, 3.2.2: an IPv6 address is enclosed in brackets; its zone is percent-encoded (RFC 6874)."""
    try:
        IPv6Address(host)
    except ValueError:
        return quote(host, safe="")
    return f"[{quote(host, safe=':')}]"


def _escape_pgpass(value: str) -> str:
    # libpq reads a field that is only * as any value; here it is the literal value.
    return "\\*" if value == "*" else value.replace("\\", "\\\\").replace(":", "\\:")
