"""Content of a connection Secret: renders what an object asks for, and recognises it again.

A rendered Secret carries a hash in its annotations, which detects changed content. The hash is not a signature: anyone
who may write the Secret can compute one that matches.
"""

import hashlib
import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pgrole_controller.api.validation import is_key, is_label_key, is_label_value
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.role import to_microseconds, to_moment
from pgrole_controller.core.scram import PASSWORD_BYTES
from pgrole_controller.core.template import (
    PASSWORD,
    PASSWORD_FIELDS,
    PGPASS_FIELDS,
    Template,
    fill,
    find,
    measure,
    parse,
    vary,
)

HASH = "pgrole.dev/hash"
PASSWORD_IN = "pgrole.dev/password-in"  # noqa: S105 -- says where, not what
ROTATED_AT = "pgrole.dev/rotated-at"
ROTATE_HANDLED = "pgrole.dev/rotate-handled"

#: Annotations that the hash covers besides the data.
_HASHED = (PASSWORD_IN, ROTATED_AT, ROTATE_HANDLED)
_HASH_VERSION = "v1"
#: Annotations end up in metrics and logs, so guessing weak passwords from the hash must be costly.
_ITERATIONS = 4_096
SALT_BYTES = 16
_LONGEST_SALT = 64

#: The API server's limit, https://kubernetes.io/docs/concepts/configuration/secret/#restriction-data-size
MAX_BYTES = 1 << 20
#: Maximum size of a password and its variants, in bytes: percent-encoding turns one byte into three, an escape into
#: two.
_LONGEST_PASSWORD = {
    PASSWORD: PASSWORD_BYTES,
    f"{PASSWORD}_url": 3 * PASSWORD_BYTES,
    f"{PASSWORD}_pgpass": 2 * PASSWORD_BYTES,
}

_SERVER = "{host_url}:{port}/{database_url}"
_PLAIN = (
    ("username", "{username}"),
    ("host", "{host}"),
    ("port", "{port}"),
    ("database", "{database}"),
    ("sslmode", "{sslmode}"),
)
_WITHOUT_PASSWORD = (
    *_PLAIN,
    ("uri", f"postgresql://{{username_url}}@{_SERVER}?sslmode={{sslmode}}"),
    ("jdbc-uri", f"jdbc:postgresql://{_SERVER}?user={{username_url}}&sslmode={{sslmode}}"),
)
#: Default templates by key. A pgpass entry is added only if all its values fit on one line.
_WITH_PASSWORD = (
    *_PLAIN,
    ("password", "{password}"),
    ("uri", f"postgresql://{{username_url}}:{{password_url}}@{_SERVER}?sslmode={{sslmode}}"),
    # As in CloudNativePG, https://github.com/cloudnative-pg/cloudnative-pg/blob/main/pkg/specs/secrets.go
    (
        "jdbc-uri",
        f"jdbc:postgresql://{_SERVER}?password={{password_url}}&user={{username_url}}&sslmode={{sslmode}}",
    ),
    ("pgpass", "{host_pgpass}:{port}:{database_pgpass}:{username_pgpass}:{password_pgpass}\n"),
)

#: Prefixes by which other controllers recognise their own metadata.
_RESERVED_PREFIXES = ("kubernetes.io", "k8s.io", "pgrole.dev")

#: The limit in api.pgrole.
_LONGEST_GENERATED = 256
_GENERATED = re.compile(rf"[A-Za-z0-9]{{1,{_LONGEST_GENERATED}}}")
_PLACE = re.compile(r"(?P<key>[-._a-zA-Z0-9]{1,253})/(?P<offset>[0-9]{1,7})\+(?P<length>[0-9]{1,7})")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{6})?Z")


@dataclass(frozen=True, slots=True)
class Address:
    """Address under which applications reach the server."""

    host: str
    port: int
    database: str
    sslmode: str


@dataclass(frozen=True, slots=True)
class DesiredSecret:
    """A declared connection Secret. `data` maps keys to templates; empty means the conventional keys."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    data: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SecretContent:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    data: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class RotationStamp:
    """What the Secret itself records about a generated password; empty for any other password.

    `rotate` is the last handled value of the annotation pgrole.dev/rotate.
    """

    rotated_at: datetime | None = None
    rotate: str = ""


def check_connection(
    desired: DesiredSecret, *, password_known: bool, generated: bool, forbidden: Sequence[str]
) -> None:
    """Raises Refused for what cannot be rendered, or must not be set on a Secret.

    `password_known`: a password exists and its clear text is available, as always if `generated`. `forbidden` lists
    prefixes of labels and annotations, with or without a trailing slash; it covers their subdomains too.
    """
    _check_metadata("labels", desired.labels, forbidden)
    _check_metadata("annotations", desired.annotations, forbidden)
    for key, value in desired.labels:
        if not is_label_value(value):
            raise Refused(
                Reason.INVALID_SPEC,
                f'spec.connectionSecret.template.metadata.labels: the value of "{key}" is not a valid label value: '
                f"use at most 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
            )
    templates = _parse(desired.data)
    if not (password_known or generated):
        _check_no_password(templates)
    if generated and templates and not any(one.fields & PASSWORD_FIELDS for one in templates.values()):
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.connectionSecret.template.data: no key contains the generated password, which is stored only in this "
            "Secret: add {password} to a key",
        )


def render(
    desired: DesiredSecret, *, username: str, password: str | None, address: Address, stamp: RotationStamp, salt: bytes
) -> SecretContent:
    """Renders the content of the Secret. Equal arguments give equal content.

    `password` is None if its clear text is unknown. A password with a stamp is a generated one: only A–Z, a–z and 0–9.
    `salt` is 16 to 64 random bytes. Raises Refused for templates that `check_connection` refuses, for values that a
    template cannot hold, and for content above 1 MiB; ValueError for a malformed salt or generated password.
    """
    if not SALT_BYTES <= len(salt) <= _LONGEST_SALT:
        raise ValueError(f"a salt must have {SALT_BYTES} to {_LONGEST_SALT} bytes, not {len(salt)}")
    data, annotations = _compose(desired, username, password, address, stamp)
    annotations[HASH] = _seal(data, annotations, salt)
    return SecretContent(dict(desired.labels), annotations, data)


def is_ours(data: Mapping[str, bytes], annotations: Mapping[str, str]) -> bool:
    """Tells whether the hash in the annotations matches the content."""
    given = annotations.get(HASH, "")
    salt = salt_of(annotations)
    if salt is None:
        return False
    # Compare the whole text: one salt can be spelled in more than one way.
    return hmac.compare_digest(_seal(data, annotations, salt).encode(), given.encode())


def recover_password(data: Mapping[str, bytes], annotations: Mapping[str, str]) -> str | None:
    """Returns the generated password in the Secret, whatever its template was; None unless `is_ours`."""
    place = _PLACE.fullmatch(annotations.get(PASSWORD_IN, ""))
    if place is None or not is_ours(data, annotations):
        return None
    offset, length = int(place["offset"]), int(place["length"])
    try:
        found = data[place["key"]].decode()[offset : offset + length]
    except (KeyError, UnicodeDecodeError):
        return None
    return found if len(found) == length and _GENERATED.fullmatch(found) else None


def read_stamp(annotations: Mapping[str, str]) -> RotationStamp:
    """Reads back the stamp that `render` wrote. Malformed annotations give an empty stamp."""
    text, rotate = annotations.get(ROTATED_AT), annotations.get(ROTATE_HANDLED, "")
    if text is None:
        return RotationStamp(None, rotate)
    if not _MOMENT.fullmatch(text):
        return RotationStamp()
    try:
        return RotationStamp(datetime.fromisoformat(text), rotate)
    except ValueError:
        return RotationStamp()


def inputs_digest(desired: DesiredSecret, username: str, address: Address) -> str:
    """Digest of everything that determines the Secret except password, stamp and salt; safe to publish."""
    templates = sorted(desired.data or _WITH_PASSWORD)
    where = (address.host, address.port, address.database, address.sslmode)
    inputs = (desired.name, sorted(desired.labels), sorted(desired.annotations), templates, username, where)
    return "sha256:" + hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def is_current(
    desired: DesiredSecret,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    data: Mapping[str, bytes],
    *,
    username: str,
    password: str | None,
    address: Address,
    stamp: RotationStamp,
) -> bool:
    """Tells whether a Secret with these labels, annotations and data equals what `render` would produce.

    Labels and annotations added by others are ignored, and so are those of an older template; compare `inputs_digest`
    to detect the latter. Raises Refused as `render` does.
    """
    composed, ours = _compose(desired, username, password, address, stamp)
    if composed != data or any(labels.get(key) != value for key, value in desired.labels):
        return False
    if any(annotations.get(key) != ours.get(key) for key in (*ours, *_HASHED)):
        return False
    return is_ours(data, annotations)


def _compose(
    desired: DesiredSecret, username: str, password: str | None, address: Address, stamp: RotationStamp
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Returns the data, and the annotations without the hash."""
    values = {
        "username": username,
        "host": address.host,
        "port": str(address.port),
        "database": address.database,
        "sslmode": address.sslmode,
    }
    if password is not None:
        values[PASSWORD] = password
    templates = _templates(desired, values)
    values = vary(values)
    sizes = {name: len(value.encode()) for name, value in values.items()}
    if stamp == RotationStamp():
        # Someone who may not read Secrets must not measure the password by how much of it fits.
        sizes |= _LONGEST_PASSWORD
    if sum(measure(template, sizes) for template in templates.values()) > MAX_BYTES:
        raise Refused(
            Reason.INVALID_SPEC,
            "spec.connectionSecret: with the longest password, the Secret would exceed 1 MiB, the limit of Kubernetes: "
            "shorten its template",
        )
    data = {key: fill(template, values).encode() for key, template in templates.items()}
    annotations = dict(desired.annotations)
    if stamp != RotationStamp():
        annotations.update(_write_stamp(stamp))
        annotations.update(_write_place(templates, values))
    return data, annotations


def _templates(desired: DesiredSecret, values: Mapping[str, str]) -> dict[str, Template]:
    """Returns templates by key. Raises Refused for a template that cannot be filled with these values."""
    # libpq reads the password file line by line and has no escape for a line break.
    broken = {f"{name}_pgpass" for name, value in values.items() if "\n" in value or "\r" in value} & PGPASS_FIELDS
    if not desired.data:
        templates = _parse(_WITH_PASSWORD if PASSWORD in values else _WITHOUT_PASSWORD)
        return {key: template for key, template in templates.items() if not template.fields & broken}
    templates = _parse(desired.data)
    if PASSWORD not in values:
        _check_no_password(templates)
    for key, template in templates.items():
        for name in sorted(template.fields & broken):
            raise Refused(
                Reason.INVALID_SPEC,
                f"{_spell(key)} uses {{{name}}}, but this value contains a line break, which a password file cannot "
                f"contain: remove the line break from the value, or the field from the template",
            )
    return templates


def _parse(data: Sequence[tuple[str, str]]) -> dict[str, Template]:
    templates: dict[str, Template] = {}
    for key, text in data:
        if not is_key(key):
            raise Refused(
                Reason.INVALID_SPEC,
                f'spec.connectionSecret.template.data: "{key[:253]}" is not a valid key of a Secret: '
                f"use at most 253 letters, digits, -, _ and ., not beginning with two dots",
            )
        try:
            templates[key] = parse(text)
        except ValueError as error:
            raise Refused(Reason.INVALID_SPEC, f"{_spell(key)}: {error}") from error
    return templates


def _check_no_password(templates: Mapping[str, Template]) -> None:
    for key, template in templates.items():
        for name in sorted(template.fields & PASSWORD_FIELDS):
            raise Refused(
                Reason.INVALID_SPEC,
                f"{_spell(key)} uses {{{name}}}, but the controller has no clear-text password: remove the field, or "
                f"set spec.password.generate, or set spec.password.secretRef to a Secret with the clear text",
            )


def _check_metadata(kind: str, pairs: Sequence[tuple[str, str]], forbidden: Sequence[str]) -> None:
    for key, _ in pairs:
        place = f'spec.connectionSecret.template.metadata.{kind}: "{key[:317]}"'
        # The API server also accepts annotation keys in upper case.
        lowered = key.lower()
        if not is_label_key(lowered if kind == "annotations" else key) or not key.isascii():
            raise Refused(
                Reason.INVALID_SPEC,
                f"{place} is not a valid name: use at most 63 letters, digits, -, _ and ., "
                f"optionally after a domain and a slash, e.g. example.com/team",
            )
        for prefix in (*_RESERVED_PREFIXES, *forbidden):
            if _is_under(lowered, prefix.lower()):
                raise Refused(
                    Reason.NOT_ALLOWED,
                    f'{place} is under "{prefix}", which is reserved for other controllers: use another prefix',
                )


def _is_under(key: str, prefix: str) -> bool:
    domain, _, rest = prefix.partition("/")
    if rest:
        return key.startswith(prefix)
    own, slash, _ = key.partition("/")
    return bool(slash and domain) and (own == domain or own.endswith(f".{domain}"))


def _write_stamp(stamp: RotationStamp) -> Iterator[tuple[str, str]]:
    if stamp.rotated_at is not None:
        moment = to_moment(to_microseconds(stamp.rotated_at))
        yield ROTATED_AT, moment.isoformat().replace("+00:00", "Z")
    if stamp.rotate:
        yield ROTATE_HANDLED, stamp.rotate


def _write_place(templates: Mapping[str, Template], values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Locates the generated password: the first occurrence in the first key, in key order."""
    password = values.get(PASSWORD)
    if password is None:
        return
    if not _GENERATED.fullmatch(password):
        raise ValueError(
            "a generated password consists of A–Z, a–z and 0–9, so that all its variants are the same text"
        )
    for key in sorted(templates):
        place = find(templates[key], values, PASSWORD_FIELDS)
        if place is not None:
            offset, length = place
            yield PASSWORD_IN, f"{key}/{offset}+{length}"
            return


def _seal(data: Mapping[str, bytes], annotations: Mapping[str, str], salt: bytes) -> str:
    covered = {
        "data": {key: b64encode(value).decode() for key, value in data.items()},
        "annotations": {key: annotations[key] for key in _HASHED if key in annotations},
    }
    text = json.dumps(covered, sort_keys=True, ensure_ascii=True)
    digest = hashlib.pbkdf2_hmac("sha256", text.encode(), salt, _ITERATIONS)
    return f"{_HASH_VERSION}:{b64encode(salt).decode()}:{b64encode(digest).decode()}"


def salt_of(annotations: Mapping[str, str]) -> bytes | None:
    """Decodes the salt of the hash; None if malformed."""
    given = annotations.get(HASH, "")
    version, _, rest = given.partition(":")
    if version != _HASH_VERSION or not given.isascii():
        return None
    try:
        salt = b64decode(rest.partition(":")[0], validate=True)
    except ValueError:
        return None
    return salt if SALT_BYTES <= len(salt) <= _LONGEST_SALT else None


def _spell(key: str) -> str:
    return f'spec.connectionSecret.template.data["{key}"]'
