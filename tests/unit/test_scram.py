"""core/scram: passwords as PostgreSQL stores them, and never shown."""

import base64
import hashlib
import hmac
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core import scram
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.scram import (
    LEAST_ITERATIONS,
    MOST_ITERATIONS,
    PASSWORD_BYTES,
    SALT_BYTES,
    VERIFIER_BYTES,
    Scram,
    Verifier,
    make_verifier,
    parse_verifier,
    read_password,
    saslprep,
    verifies,
)

SALT = bytes(range(SALT_BYTES))
KEY = base64.b64encode(bytes(range(32))).decode()
GOOD = f"SCRAM-SHA-256$4096:{base64.b64encode(SALT).decode()}${KEY}:{KEY}"
MD5 = "md5" + hashlib.md5(b"secretapp", usedforsecurity=False).hexdigest()


def clear_texts() -> st.SearchStrategy[str]:
    """Any password that PostgreSQL can hold."""
    return st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=30)


def mutations(text: str) -> st.SearchStrategy[str]:
    """The text with one or a few insertions, deletions or replacements."""
    characters = st.one_of(st.sampled_from("$:=+/ 0aA\n\t-"), st.characters())
    edits = st.lists(
        st.tuples(st.integers(0, len(text)), st.integers(0, 3), st.text(characters, max_size=3)), min_size=1, max_size=3
    )

    def apply(some: list[tuple[int, int, str]]) -> str:
        changed = text
        for place, length, new in some:
            changed = changed[:place] + new + changed[place + length :]
        return changed

    return edits.map(apply)


class TestRfc:
    def test_a_verifier_answers_the_exchange_of_rfc_7677(self) -> None:
        nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
        first = f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        exchange = f"n=user,r=rOprNGfwEbeRWgbNEkqO,{first},c=biws,r={nonce}".encode()
        scram = make_verifier("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096).scram
        assert scram is not None
        signature = hmac.digest(scram.server_key, exchange, "sha256")
        assert base64.b64encode(signature) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
        proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
        client_key = bytes(a ^ b for a, b in zip(proof, hmac.digest(scram.stored_key, exchange, "sha256"), strict=True))
        assert hashlib.sha256(client_key).digest() == scram.stored_key

    @pytest.mark.parametrize(
        ("given_text", "prepared"),
        [
            ("I\u00adX", "IX"),
            ("user", "user"),
            ("USER", "USER"),
            ("\u00aa", "a"),
            ("\u2168", "IX"),
            ("\u0007", "\u0007"),  # prohibited by the RFC, but PostgreSQL leaves plain ASCII alone
            ("\u0627\u0031", "\u0627\u0031"),  # ends in a digit: not prepared
        ],
    )
    def test_the_examples_of_rfc_4013_are_prepared_as_postgresql_does(self, given_text: str, prepared: str) -> None:
        assert saslprep(given_text) == prepared


class TestSaslprep:
    @pytest.mark.parametrize(
        ("given_text", "prepared"),
        [
            ("a\u00a0b\u3000c", "a b c"),
            ("a\u200bb", "a b"),  # in both tables: a space before it is nothing
            ("e\u0301", "\u00e9"),
            ("\ufb01x", "fix"),
            ("\u05d0\u00b2\u05d0", "\u05d02\u05d0"),
        ],
    )
    def test_text_that_can_be_prepared_is_prepared(self, given_text: str, prepared: str) -> None:
        assert saslprep(given_text) == prepared

    @pytest.mark.parametrize(
        "text",
        [
            "\u00ad\u200d",  # nothing is left of it
            "\u00aa\u0007",  # a control character
            "\u00aa\ue000",  # private use
            "\u00aa\u0221",  # unassigned in Unicode 3.2
            "\u00aa\U0001f600",  # likewise
            "\u00aa\u2028",  # a line separator
            "\u05d0\u00aa\u05d0",  # left-to-right inside right-to-left
            "\u05d0\u00b2",  # does not end as it begins
            "\u00b2\u05d0",
        ],
    )
    def test_text_that_cannot_be_prepared_is_used_unchanged(self, text: str) -> None:
        assert saslprep(text) == text

    @given(st.text(st.characters(max_codepoint=127)))
    def test_plain_ascii_is_never_changed(self, text: str) -> None:
        assert saslprep(text) == text

    @given(st.text())
    def test_no_text_raises_an_error(self, text: str) -> None:
        saslprep(text)


class TestVerifiers:
    @given(clear_texts(), clear_texts())
    def test_a_verifier_matches_its_password_and_no_other(self, password: str, other: str) -> None:
        made = make_verifier(password, SALT, 1)
        assert verifies(password, made)
        assert verifies(other, made) == (saslprep(other) == saslprep(password))

    def test_the_parts_of_a_verifier_are_read_as_they_were_made(self) -> None:
        made = make_verifier("secret", SALT, 4096)
        assert made.scram is not None
        assert (made.scram.iterations, made.scram.salt) == (4096, SALT)
        assert made.text.startswith("SCRAM-SHA-256$4096:AAECAwQFBgcICQoLDA0ODw==$")

    def test_the_digest_is_computed_from_the_text(self) -> None:
        assert Verifier("abc").digest == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    @pytest.mark.parametrize("key", [2, 3])
    def test_a_verifier_with_one_replaced_key_does_not_match_the_password(self, key: int) -> None:
        made = make_verifier("secret", SALT, 1)
        parts = made.text.replace("$", ":").split(":")
        changed = Verifier(made.text.replace(parts[key + 1], KEY))
        assert changed.scram is not None
        assert not verifies("secret", changed)

    @pytest.mark.parametrize("text", [MD5, "", "secret", GOOD + "\n"])
    def test_a_text_that_is_not_a_scram_verifier_matches_no_password(self, text: str) -> None:
        assert Verifier(text).scram is None
        assert not verifies("secret", Verifier(text))

    def test_a_verifier_with_too_many_iterations_is_not_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not verifies("secret", Verifier(GOOD.replace("4096", "2000000000")))
        made = make_verifier("secret", SALT, 11)
        monkeypatch.setattr(scram, "MOST_ITERATIONS", 11)
        assert verifies("secret", made)
        monkeypatch.setattr(scram, "MOST_ITERATIONS", 10)
        assert not verifies("secret", made)

    @pytest.mark.parametrize("password", ["", "a\0b", "a\ud800b"])
    def test_a_password_that_postgresql_cannot_hold_raises_an_error_that_does_not_show_it(self, password: str) -> None:
        with pytest.raises(ValueError, match="password") as caught:
            make_verifier(password, SALT, 1)
        assert repr(password) not in repr(caught.value)

    @pytest.mark.parametrize(("salt", "iterations"), [(b"", 1), (SALT, 0), (SALT, -1), (SALT, 2**31)])
    def test_an_empty_salt_and_impossible_iterations_raise_errors(self, salt: bytes, iterations: int) -> None:
        with pytest.raises(ValueError, match=r"salt|iterations"):
            make_verifier("secret", salt, iterations)


class TestParsing:
    def test_a_valid_verifier_is_parsed(self) -> None:
        assert parse_verifier(GOOD) == Scram(4096, SALT, bytes(range(32)), bytes(range(32)))

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "SCRAM-SHA-256",
            "SCRAM-SHA-256$",
            GOOD.lower(),
            " " + GOOD,
            "$" + GOOD,
            GOOD + " ",
            GOOD + "\n",
            GOOD + ":x",
            GOOD + "\0",
            GOOD.replace("$4096", "$$4096"),
            GOOD.replace("4096:", "4096::"),
            GOOD.replace("4096", ""),
            GOOD.replace("4096", "0"),
            GOOD.replace("4096", "04096"),
            GOOD.replace("4096", "+4096"),
            GOOD.replace("4096", "-4096"),
            GOOD.replace("4096", " 4096"),
            GOOD.replace("4096", "4096.0"),
            GOOD.replace("4096", "4_096"),
            GOOD.replace("4096", "٤٠٩٦"),
            GOOD.replace("4096", str(2**31)),
            GOOD.replace("4096", str(2**32 + 4096)),
            GOOD.replace("4096", "9" * 400),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", ""),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "===="),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "AAECAwQFBgcICQoLDA0ODw="),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "AAECAwQFBgcICQoLDA0ODw"),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "AAECAwQFBgcICQoLDA0ODx=="),  # bits that belong to no byte
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "AAECAwQF BgcICQoLDA0ODw=="),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", "AAECAwQFBgcICQoLDA0-_w=="),
            GOOD.removesuffix(KEY) + base64.b64encode(bytes(31)).decode(),
            GOOD.removesuffix(KEY) + base64.b64encode(bytes(33)).decode(),
            GOOD.removesuffix(":" + KEY),
            GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", base64.b64encode(bytes(310)).decode()),
            MD5,
        ],
    )
    def test_a_malformed_verifier_is_not_parsed(self, text: str) -> None:
        assert parse_verifier(text) is None

    def test_the_longest_verifier_is_the_longest_that_postgresql_18_accepts(self) -> None:
        empty = len(GOOD) - len("AAECAwQFBgcICQoLDA0ODw==")
        salt = bytes((VERIFIER_BYTES - empty) // 4 * 3)
        longest = GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", base64.b64encode(salt).decode())
        assert VERIFIER_BYTES - 4 < len(longest) <= VERIFIER_BYTES
        assert parse_verifier(longest) is not None
        too_long = GOOD.replace("AAECAwQFBgcICQoLDA0ODw==", base64.b64encode(salt + b"abc").decode())
        assert parse_verifier(too_long) is None

    @given(mutations(GOOD))
    def test_a_mutated_verifier_is_valid_or_not_parsed(self, text: str) -> None:
        scram = parse_verifier(text)
        if scram is not None:
            salt, stored, server = (
                base64.b64encode(part).decode() for part in (scram.salt, scram.stored_key, scram.server_key)
            )
            assert text == f"SCRAM-SHA-256${scram.iterations}:{salt}${stored}:{server}"
            assert len(scram.stored_key) == len(scram.server_key) == 32

    @given(st.text())
    def test_no_text_raises_an_error(self, text: str) -> None:
        parse_verifier(text)
        parse_verifier("SCRAM-SHA-256$" + text)


class TestScramSecrets:
    @given(clear_texts().filter(lambda text: not text.startswith("SCRAM-SHA-256$")))
    def test_a_clear_text_password_is_used_unchanged(self, password: str) -> None:
        assert read_password(password.encode()) == password

    @pytest.mark.parametrize(
        "password", ["x" * PASSWORD_BYTES, "ü" * (PASSWORD_BYTES // 2), " ", "secret\n", MD5.upper()]
    )
    def test_unusual_clear_text_passwords_are_used_unchanged(self, password: str) -> None:
        assert read_password(password.encode()) == password

    @pytest.mark.parametrize("iterations", [LEAST_ITERATIONS, MOST_ITERATIONS])
    def test_a_verifier_is_accepted_within_the_bounds_of_iterations(self, iterations: int) -> None:
        made = make_verifier("secret", SALT, iterations)
        assert read_password(made.text.encode()) == made

    def test_an_empty_password_is_waited_for(self) -> None:
        with pytest.raises(Waiting, match="is empty") as caught:
            read_password(b"")
        assert caught.value.reason is Reason.SECRET_MISSING

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (b"hunter2\xff", "UTF-8"),
            ("hunter2".encode("utf-16"), "UTF-8"),
            (b"hunter2\xed\xa0\x80", "UTF-8"),  # a surrogate
            (b"hunter2\0", "NUL"),
            (b"hunter2" * 147, "1029 bytes"),
            (MD5.encode(), "MD5"),
            (GOOD.encode() + b"\n", "without a trailing line break"),
            (b"SCRAM-SHA-256$hunter2", "but is not one"),
            (GOOD[:-10].encode(), "begins like a SCRAM-SHA-256 verifier but is not one"),
            (GOOD.replace("4096", "1").encode(), "with 1 iterations"),
            (GOOD.replace("4096", "4095").encode(), "4095 iterations"),
            (GOOD.replace("4096", "100001").encode(), "100001 iterations"),
            (GOOD.replace("4096", "2000000000").encode(), "2000000000 iterations"),
        ],
    )
    def test_an_unusable_password_is_refused_by_a_message_that_does_not_show_it(
        self, content: bytes, said: str
    ) -> None:
        with pytest.raises(Refused, match=said) as caught:
            read_password(content)
        assert caught.value.reason is Reason.INVALID_SPEC
        assert not any(part in repr(caught.value) for part in ("hunter2", "xff", MD5[3:], KEY))
        assert caught.value.__context__ is None

    def test_the_verifier_of_an_empty_password_is_refused(self) -> None:
        salted = hashlib.pbkdf2_hmac("sha256", b"", SALT, LEAST_ITERATIONS)
        stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
        server = hmac.digest(salted, b"Server Key", "sha256")
        salt_, stored_, server_ = (base64.b64encode(part).decode() for part in (SALT, stored, server))
        with pytest.raises(Refused, match="empty password"):
            read_password(f"SCRAM-SHA-256${LEAST_ITERATIONS}:{salt_}${stored_}:{server_}".encode())

    @given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda some: b"SCRAM-SHA-256$" + some))
    def test_no_content_raises_an_unexpected_error(self, content: bytes) -> None:
        with suppress(PgRoleError):
            assert read_password(content) == content.decode()


def test_secrets_are_in_no_representation() -> None:
    made = make_verifier("secret", SALT, 4096)
    assert repr(made) == str(made) == f"{made}" == "Verifier()"
    assert repr(made.scram) == "Scram(iterations=4096)"
