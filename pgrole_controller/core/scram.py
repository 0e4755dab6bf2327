"""Passwords as SCRAM-SHA-256 verifiers: makes, parses and verifies them.

Verifiers are made here so that no clear text appears in SQL. The result equals PostgreSQL's own for the same salt and
iterations (src/common/saslprep.c and scram-common.c, src/backend/libpq/auth-scram.c).
"""

import base64
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

from pgrole_controller.core.errors import Reason, Refused, Waiting

#: Bounds of the iterations in a ready verifier: fewer do not protect, and the server itself computes as many as the
#: verifier demands, which no statement_timeout stops.
LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 100_000

#: SCRAM_DEFAULT_SALT_LEN: size of PostgreSQL's own salts, in bytes.
SALT_BYTES = 16

#: Maximum content of a Secret's key, in bytes.
PASSWORD_BYTES = 1024

#: MAX_ENCRYPTED_PASSWORD_LEN: PostgreSQL 18 rejects longer verifiers.
VERIFIER_BYTES = 512

_INT_MAX = 2**31 - 1  # PostgreSQL truncates to an int
_PREFIX = "SCRAM-SHA-256$"
_SCRAM = re.compile(
    r"SCRAM-SHA-256\$([1-9][0-9]{0,9}):([A-Za-z0-9+/]+={0,2})\$([A-Za-z0-9+/]{43}=):([A-Za-z0-9+/]{43}=)"
)
_MD5 = re.compile(r"md5[0-9a-f]{32}")

#: Prohibited in a prepared string: RFC 4013, section 2.3, and code points that Unicode 3.2 does not assign.
_PROHIBITED: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_a1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


@dataclass(frozen=True, slots=True)
class Scram:
    """A parsed SCRAM verifier. The keys have 32 bytes, the salt at least one; iterations are 1 to 2³¹ - 1."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Verifier:
    """The content of pg_authid.rolpassword: a SCRAM verifier, or anything else (an MD5 hash)."""

    text: str = field(repr=False)

    @property
    def digest(self) -> str:
        """What a claim records of it: `sha256:` and 64 hexadecimal digits."""
        return "sha256:" + hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def scram(self) -> Scram | None:
        """None if it is not a SCRAM verifier."""
        return parse_verifier(self.text)


def parse_verifier(text: str) -> Scram | None:
    """Parses a SCRAM verifier. None for a text that PostgreSQL might take for a clear password, hash and log.

    Stricter than PostgreSQL's parse_scram_secret, which skips doubled delimiters, accepts signs and spaces before the
    iterations and truncates them to 32 bits, and accepts base64 in several spellings.
    """
    found = _SCRAM.fullmatch(text)
    if found is None or len(text) > VERIFIER_BYTES:
        return None
    iterations = int(found[1])
    salt, stored_key, server_key = (_decode(part) for part in found.groups()[1:])
    if salt is None or stored_key is None or server_key is None or iterations > _INT_MAX:
        return None
    return Scram(iterations, salt, stored_key, server_key)


def make_verifier(password: str, salt: bytes, iterations: int) -> Verifier:
    """Makes the verifier of a clear password. Takes about 1.5 ms at 4,096 iterations, without holding the GIL.

    `salt` is SALT_BYTES random bytes. Raises ValueError for a password that PostgreSQL cannot hold (empty, NUL, lone
    surrogates), for an empty salt, and for iterations outside 1 to 2³¹ - 1.
    """
    if not password or not salt:
        raise ValueError("the password and the salt must not be empty")
    if not 1 <= iterations <= _INT_MAX:
        raise ValueError(f"iterations must be from 1 to {_INT_MAX}, not {iterations}")
    stored_key, server_key = _keys(password, salt, iterations)
    encoded = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    return Verifier("{}{}:{}${}:{}".format(_PREFIX, iterations, *encoded))


def verifies(password: str, verifier: Verifier) -> bool:
    """Tells whether the verifier fits the password. Takes as long as `make_verifier`, whatever the answer.

    Returns False without hashing if it is not a SCRAM verifier or has more than MOST_ITERATIONS: a role can set its
    own, and one that takes minutes. Raises ValueError for NUL and lone surrogates.
    """
    scram = verifier.scram
    if scram is None or scram.iterations > MOST_ITERATIONS:
        return False
    stored_key, server_key = _keys(password, scram.salt, scram.iterations)
    return hmac.compare_digest(stored_key + server_key, scram.stored_key + scram.server_key)


def read_password(content: bytes) -> Verifier | str:
    """Reads a Secret's content: a ready verifier, or else the clear password.

    Hashes once with a verifier's own iterations, which takes up to 25 times as long as `make_verifier` at 4,096. Raises
    Waiting for empty content and Refused for unusable content. The message continues the Secret's name ("… is empty")
    and shows none of the content.
    """
    if not content:
        raise Waiting(Reason.SECRET_MISSING, "is empty")
    if len(content) > PASSWORD_BYTES:
        raise _refused(f"has {len(content)} bytes; the limit for a password is {PASSWORD_BYTES}")
    text = _decode_utf8(content)
    if text is None:
        raise _refused("is not UTF-8 text")
    if "\x00" in text:
        raise _refused("contains a NUL byte, which PostgreSQL cannot store")
    if _MD5.fullmatch(text):
        raise _refused(
            "is an MD5 hash, which PostgreSQL would store as the hash of another password:"
            " provide the clear password or a SCRAM-SHA-256 verifier"
        )
    return _read_verifier(text) if text.startswith(_PREFIX) else text


def saslprep(text: str) -> str:
    """Prepares a password as PostgreSQL does before hashing. Text that cannot be prepared is returned unchanged.

    As in pg_saslprep, plain ASCII is never changed. Prohibited, unassigned and mixed-direction characters are detected
    before normalisation, not after it as RFC 3454 requires.
    """
    if text.isascii():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if stringprep.in_table_c12(character) or not stringprep.in_table_b1(character)
    )
    if not mapped or any(prohibits(character) for character in mapped for prohibits in _PROHIBITED):
        return text
    return unicodedata.normalize("NFKC", mapped) if _has_one_direction(mapped) else text


def _has_one_direction(text: str) -> bool:
    """RFC 3454, section 6: right-to-left text must begin and end as such and contain nothing left-to-right."""
    if not any(stringprep.in_table_d1(character) for character in text):
        return True
    if any(stringprep.in_table_d2(character) for character in text):
        return False
    return stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])


def _keys(password: str, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    """StoredKey and ServerKey of RFC 5802. Raises ValueError that does not show the password."""
    if any(character == "\x00" or stringprep.in_table_c5(character) for character in password):
        raise ValueError("a password must not contain NUL or lone surrogates")
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client_key).digest(), hmac.digest(salted, b"Server Key", "sha256")


def _read_verifier(text: str) -> Verifier:
    verifier = Verifier(text)
    scram = verifier.scram
    if scram is None:
        raise _refused(
            f"begins like a SCRAM-SHA-256 verifier but is not one. The format is {_PREFIX}<iterations>:<salt>$"
            f"<stored key>:<server key> in base64, at most {VERIFIER_BYTES} bytes, without a trailing line break"
        )
    if not LEAST_ITERATIONS <= scram.iterations <= MOST_ITERATIONS:
        raise _refused(
            f"is a SCRAM-SHA-256 verifier with {scram.iterations} iterations;"
            f" the controller accepts {LEAST_ITERATIONS} to {MOST_ITERATIONS}"
        )
    if verifies("", verifier):
        raise _refused("is the verifier of an empty password, with which PostgreSQL would remove the role's password")
    return verifier


def _refused(message: str) -> Refused:
    return Refused(Reason.INVALID_SPEC, message)


def _decode(text: str) -> bytes | None:
    """Decodes base64 in its one canonical spelling, else None."""
    if len(text) % 4:
        return None
    decoded = base64.b64decode(text)
    return decoded if base64.b64encode(decoded).decode() == text else None


def _decode_utf8(content: bytes) -> str | None:
    """Returns None instead of raising an error that carries the content."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None
