"""core/connection_secret: the content of a connection Secret, and how it is recognised."""

import json
import string
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgrole_controller.core.connection_secret import (
    HASH,
    PASSWORD_IN,
    ROTATE_HANDLED,
    ROTATED_AT,
    Address,
    DesiredSecret,
    RotationStamp,
    SecretContent,
    check_connection,
    inputs_digest,
    is_current,
    is_ours,
    read_stamp,
    recover_password,
    render,
)
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.template import FIELDS
from tests.roles import names, texts

SALT = bytes(range(16))
ADDRESS = Address("pg.example.internal", 5432, "orders", "verify-full")
STAMP = RotationStamp(datetime(2027, 1, 1, 12, 30, 0, 5, tzinfo=UTC), "now please")
DESIRED = DesiredSecret(
    "orders-app-connection", labels=(("team", "shop"),), annotations=(("example.com/for", "orders"),)
)
GENERATED = "hQ7fK2nX9sLw"
# Each example computes a hash of 4,096 rounds.
few = settings(max_examples=40, deadline=None)


def rendered(desired: DesiredSecret = DESIRED, **values: object) -> SecretContent:
    plain: dict[str, object] = {
        "username": "app",
        "password": GENERATED,
        "address": ADDRESS,
        "stamp": STAMP,
        "salt": SALT,
    }
    return render(desired, **(plain | values))  # type: ignore[arg-type]


def current(content: SecretContent, desired: DesiredSecret = DESIRED, **values: object) -> bool:
    plain: dict[str, object] = {"username": "app", "password": GENERATED, "address": ADDRESS, "stamp": STAMP}
    return is_current(desired, content.labels, content.annotations, content.data, **(plain | values))  # type: ignore[arg-type]


def check(desired: DesiredSecret, *, password_known: bool = True, generated: bool = False, forbidden: str = "") -> None:
    check_connection(
        desired, password_known=password_known, generated=generated, forbidden=forbidden.split(",") if forbidden else ()
    )


def refusal(action: Callable[[], object]) -> Refused:
    with pytest.raises(Refused) as caught:
        action()
    return caught.value


def templates() -> st.SearchStrategy[str]:
    """Valid templates of any fields and any text."""
    literal = texts().map(lambda text: text.replace("{", "{{").replace("}", "}}"))
    field = st.sampled_from(sorted(FIELDS)).map("{{{}}}".format)
    return st.lists(literal | field, max_size=6).map("".join)


def connections() -> st.SearchStrategy[DesiredSecret]:
    keys = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=12)
    plain = keys.filter(lambda key: not key.startswith("..") and key != ".")
    some = st.dictionaries(plain, templates(), max_size=4).map(lambda data: tuple(data.items()))
    return st.builds(DesiredSecret, name=st.just("c"), data=some)


def generated_passwords() -> st.SearchStrategy[str]:
    return st.text(string.ascii_letters + string.digits, min_size=1, max_size=64)


def one_line(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return strategy.filter(lambda text: not set(text) & set("\r\n"))


def lookup_pgpass(file: bytes, host: str, port: str, database: str, username: str) -> str | None:
    """Imitates passwordFromFile and pwdfMatchesString of libpq 18's fe-connect.c."""
    for line in file.decode().split("\n"):
        rest: str | None = line.rstrip("\r\n")
        if not rest or rest.startswith("#"):
            continue
        for token in (host, port, database, username):
            rest = None if rest is None else match_pgpass(rest, token)
        if rest is not None:
            return unescape_pgpass(rest)
    return None


def match_pgpass(rest: str, token: str) -> str | None:
    if rest.startswith("*:"):
        return rest[2:]
    place = 0
    for letter in token:
        place += rest[place : place + 1] == "\\"
        if rest[place : place + 1] != letter:
            return None
        place += 1
    return rest[place + 1 :] if rest[place : place + 1] == ":" else None


def unescape_pgpass(text: str) -> str:
    place, password = 0, ""
    while place < len(text) and text[place] != ":":
        place += text[place] == "\\" and place + 1 < len(text)
        password += text[place]
        place += 1
    return password


class TestConventionalKeys:
    def test_the_default_keys_hold_every_part_of_the_connection(self) -> None:
        content = rendered()
        server = "pg.example.internal:5432/orders"
        assert content.data == {
            "username": b"app",
            "password": GENERATED.encode(),
            "host": b"pg.example.internal",
            "port": b"5432",
            "database": b"orders",
            "sslmode": b"verify-full",
            "uri": f"postgresql://app:{GENERATED}@{server}?sslmode=verify-full".encode(),
            "jdbc-uri": f"jdbc:postgresql://{server}?password={GENERATED}&user=app&sslmode=verify-full".encode(),
            "pgpass": f"pg.example.internal:5432:orders:app:{GENERATED}\n".encode(),
        }

    def test_keys_that_need_a_clear_text_password_are_omitted_without_one(self) -> None:
        content = rendered(password=None, stamp=RotationStamp())
        server = "pg.example.internal:5432/orders"
        assert set(content.data) == {"username", "host", "port", "database", "sslmode", "uri", "jdbc-uri"}
        assert content.data["uri"] == f"postgresql://app@{server}?sslmode=verify-full".encode()
        assert content.data["jdbc-uri"] == f"jdbc:postgresql://{server}?user=app&sslmode=verify-full".encode()

    @few
    @given(names(), texts(), names(), st.sampled_from(["pg.example", "::1", "fe80::1%eth0", "10.0.0.1"]))
    def test_any_name_and_password_can_be_read_back_from_the_uris(
        self, username: str, password: str, database: str, host: str
    ) -> None:
        address = Address(host, 6432, database, "require")
        data = rendered(username=username, password=password, address=address, stamp=RotationStamp()).data
        uri = urlsplit(data["uri"].decode())
        assert (unquote(uri.username or ""), unquote(uri.password or "")) == (username, password)
        assert (unquote(uri.hostname or ""), uri.port, unquote(uri.path)) == (host, 6432, f"/{database}")
        assert parse_qs(uri.query) == {"sslmode": ["require"]}
        jdbc = urlsplit(data["jdbc-uri"].decode().removeprefix("jdbc:"))
        assert (unquote(jdbc.hostname or ""), jdbc.port, unquote(jdbc.path)) == (host, 6432, f"/{database}")
        assert parse_qs(jdbc.query, keep_blank_values=True) == {
            "user": [username],
            "password": [password],
            "sslmode": ["require"],
        }

    @few
    @given(one_line(names()), one_line(texts()), one_line(names()), st.sampled_from(["pg.example", "::1"]))
    def test_libpq_finds_the_password_of_any_name_in_pgpass(
        self, username: str, password: str, database: str, host: str
    ) -> None:
        address = Address(host, 5432, database, "require")
        file = rendered(username=username, password=password, address=address, stamp=RotationStamp()).data["pgpass"]
        assert lookup_pgpass(file, host, "5432", database, username) == password
        assert lookup_pgpass(file, host, "5432", database, username + "x") is None

    def test_a_role_named_like_the_pgpass_wildcard_does_not_match_other_roles(self) -> None:
        file = rendered(username="*").data["pgpass"]
        assert lookup_pgpass(file, "pg.example.internal", "5432", "orders", "*") == GENERATED
        assert lookup_pgpass(file, "pg.example.internal", "5432", "orders", "other") is None

    @pytest.mark.parametrize("password", ["two\nlines", "secret\n", "secret\r", "x\n*:*:*:*:y"])
    def test_pgpass_is_omitted_for_a_password_with_a_line_break(self, password: str) -> None:
        data = rendered(password=password, stamp=RotationStamp()).data
        assert "pgpass" not in data
        assert data["password"] == password.encode()
        check(DesiredSecret("c", data=(("PGPASS", "{password_pgpass}"),)))
        asked = DesiredSecret("c", data=(("PGPASS", "{password_pgpass}"),))
        told = refusal(lambda: rendered(asked, password=password, stamp=RotationStamp()))
        assert "PGPASS" in told.message
        assert "line break" in told.message
        assert password not in told.message


class TestRefusedTemplates:
    @pytest.mark.parametrize("template", ["{password", "{dbname}", "{username.__class__}", "{username!r}", "{port:d}"])
    def test_an_invalid_template_is_rejected_by_its_key(self, template: str) -> None:
        desired = DesiredSecret("c", data=(("GOOD", "{host}"), ("BAD_URL", template)))
        for told in (refusal(lambda: check(desired)), refusal(lambda: rendered(desired))):
            assert told.reason is Reason.INVALID_SPEC
            assert 'data["BAD_URL"]' in told.message

    @pytest.mark.parametrize(
        ("template", "words"),
        [
            ("{nonsense} {password}", "{nonsense} is not a field"),
            ("{0} {password}", "{0} is not a field"),
            ("{} {password}", "{} is not a field"),
            ("{password.__class__}", "is not a field"),
            ("{password[0]}", "is not a field"),
            ("{password!r}", "{password!r} is not a field"),
            ("{password:>99999}", "is not a field"),
            ("{password:}", "inside the braces"),
            ("{password", "contains a single brace"),
            ("password}", "contains a single brace"),
            ("{{password}}", "no key contains the generated password"),
        ],
    )
    def test_the_message_names_what_is_wrong_with_a_template(self, template: str, words: str) -> None:
        told = refusal(lambda: check(DesiredSecret("c", data=(("url", template),)), generated=True))
        assert told.reason is Reason.INVALID_SPEC
        assert words in told.message
        assert "template.data" in told.message

    @pytest.mark.parametrize("key", ["", "a b", "a/b", "..", ".", "..a", "x" * 254, "é", "a\n"])
    def test_an_invalid_key_is_rejected(self, key: str) -> None:
        assert refusal(lambda: check(DesiredSecret("c", data=((key, ""),)))).reason is Reason.INVALID_SPEC

    @pytest.mark.parametrize("field", ["password", "password_url", "password_pgpass"])
    def test_a_template_that_needs_a_password_is_refused_where_none_is_known(self, field: str) -> None:
        desired = DesiredSecret("c", data=(("URL", f"x{{{field}}}"),))
        told = refusal(lambda: check(desired, password_known=False))
        assert told.reason is Reason.INVALID_SPEC
        assert f"{{{field}}}" in told.message
        assert "URL" in told.message
        assert refusal(lambda: rendered(desired, password=None, stamp=RotationStamp())).message == told.message
        check(desired)
        check(desired, password_known=False, generated=True)

    def test_a_generated_password_must_appear_in_some_key(self) -> None:
        desired = DesiredSecret("c", data=(("USER", "{username} {{password}}"),))
        assert "{password}" in refusal(lambda: check(desired, generated=True)).message
        check(desired)
        check(replace(desired, data=(*desired.data, ("URL", "{password_url}"))), generated=True)
        check(DesiredSecret("c"), generated=True)

    @pytest.mark.parametrize("kind", ["labels", "annotations"])
    @pytest.mark.parametrize(
        "key",
        [
            "kubernetes.io/name",
            "app.kubernetes.io/name",
            "sub.kubernetes.io/x",
            "k8s.io/x",
            "a.b.k8s.io/x",
            "pgrole.dev/hash",
            "pgrole.dev/anything",
            "argocd.argoproj.io/instance",
            "tools.example/x",
            "deep.tools.example/x",
            "example.com/owned-by",
        ],
    )
    def test_labels_and_annotations_of_other_controllers_are_refused(self, kind: str, key: str) -> None:
        desired = DesiredSecret("c", **{kind: ((key, "x"),)})
        told = refusal(lambda: check(desired, forbidden="argoproj.io,tools.example/,example.com/owned"))
        assert told.reason is Reason.NOT_ALLOWED
        assert key in told.message

    def test_letter_case_does_not_bypass_reserved_prefixes(self) -> None:
        desired = DesiredSecret("c", annotations=(("App.Kubernetes.IO/name", "x"),))
        assert refusal(lambda: check(desired)).reason is Reason.NOT_ALLOWED
        # U+212A (KELVIN SIGN) is k in lower case, also to the API server.
        kelvin = DesiredSecret("c", annotations=(("\u212aubernetes.io/name", "x"),))
        assert refusal(lambda: check(kelvin)).reason is Reason.INVALID_SPEC

    @pytest.mark.parametrize(
        "key", ["team", "kubernetes.io", "mykubernetes.io/x", "nottools.example/x", "example.com/x"]
    )
    def test_keys_that_only_resemble_a_reserved_prefix_are_accepted(self, key: str) -> None:
        pairs = ((key, "x"),)
        check(DesiredSecret("c", labels=pairs, annotations=pairs), forbidden="tools.example,,/,example.com/owned")

    @pytest.mark.parametrize(
        ("key", "value"), [("", "x"), ("-a", "x"), ("a/b/c", "x"), ("A.b/c", "x"), ("a", "no spaces"), ("a", "x" * 64)]
    )
    def test_a_label_that_is_invalid_in_kubernetes_is_rejected(self, key: str, value: str) -> None:
        assert refusal(lambda: check(DesiredSecret("c", labels=((key, value),)))).reason is Reason.INVALID_SPEC

    def test_content_too_large_for_a_secret_is_rejected_before_it_is_rendered(self) -> None:
        desired = DesiredSecret("c", data=(("MANY", "{password}" * 5_000),))
        told = refusal(lambda: rendered(desired, password="x" * 1_000_000, stamp=RotationStamp()))
        assert told.reason is Reason.INVALID_SPEC
        assert "1 MiB" in told.message

    @pytest.mark.parametrize("field", ["password", "password_url", "password_pgpass"])
    def test_the_rejection_of_large_content_does_not_reveal_the_password_length(self, field: str) -> None:
        desired = DesiredSecret("c", data=tuple((f"KEY{number}", f"{{{field}}}" * 200) for number in range(32)))
        short = refusal(lambda: rendered(desired, password="x", stamp=RotationStamp()))
        long = refusal(lambda: rendered(desired, password="%" * 1024, stamp=RotationStamp()))
        assert short.message == long.message


class TestRecognition:
    def test_a_password_longer_than_256_characters_is_not_a_generated_one(self) -> None:
        content = rendered(DESIRED, password="x" * 256)
        assert recover_password(content.data, content.annotations) == "x" * 256
        with pytest.raises(ValueError, match="generated password"):
            rendered(DESIRED, password="x" * 257)

    @few
    @given(connections(), generated_passwords(), one_line(names()), st.booleans())
    def test_a_generated_password_is_recovered_from_any_accepted_template(
        self, desired: DesiredSecret, password: str, username: str, ours: bool
    ) -> None:
        try:
            check(desired, generated=True)
        except Refused:
            return
        stamp = STAMP if ours else RotationStamp(None, "x")
        content = rendered(desired, password=password, username=username, stamp=stamp)
        assert recover_password(content.data, content.annotations) == password
        assert read_stamp(content.annotations) == stamp

    def test_a_password_that_was_not_generated_leaves_no_trace_in_the_annotations(self) -> None:
        content = rendered(stamp=RotationStamp())
        assert set(content.annotations) == {HASH, "example.com/for"}
        assert is_ours(content.data, content.annotations)
        assert recover_password(content.data, content.annotations) is None

    def test_annotations_record_where_the_password_is_and_when_it_was_generated(self) -> None:
        desired = DesiredSecret("c", data=(("B", "é:{password_url}"), ("a", "{host}")))
        assert rendered(desired).annotations == {
            PASSWORD_IN: f"B/2+{len(GENERATED)}",
            ROTATED_AT: "2027-01-01T12:30:00.000005Z",
            ROTATE_HANDLED: "now please",
            HASH: rendered(desired).annotations[HASH],
        }

    @few
    @given(st.data())
    def test_any_change_to_the_content_is_noticed(self, draw: st.DataObject) -> None:
        content = rendered()
        data, annotations = dict(content.data), dict(content.annotations)
        key = draw.draw(st.sampled_from([*data, PASSWORD_IN, ROTATED_AT, ROTATE_HANDLED, HASH, "new", "gone"]))
        if key in data:
            data[key] = draw.draw(st.binary(max_size=9) | st.just(data[key] + b"\n"))
        elif key == "new":
            data[draw.draw(st.text(max_size=3).map("new{}".format))] = draw.draw(st.binary(max_size=2))
        elif key == "gone":
            del data[draw.draw(st.sampled_from(sorted(data)))]
        elif draw.draw(st.booleans()):
            del annotations[key]
        else:
            annotations[key] = draw.draw(st.text(max_size=9) | st.just(annotations[key] + " "))
        unchanged = data == content.data and annotations == content.annotations
        assert is_ours(data, annotations) == unchanged
        assert (recover_password(data, annotations) == GENERATED) == unchanged
        assert current(SecretContent(content.labels, annotations, data)) == unchanged

    def test_content_that_only_moves_between_keys_is_noticed(self) -> None:
        one = rendered(DesiredSecret("c", data=(("a", "bc"), ("d", ""))))
        assert not is_ours({"a": b"b", "d": b"c"}, one.annotations)
        assert not is_ours({"abc": b"", "d": b""}, one.annotations)
        swapped = dict(one.annotations) | {ROTATED_AT: STAMP.rotate, ROTATE_HANDLED: one.annotations[ROTATED_AT]}
        assert not is_ours(one.data, swapped)

    def test_a_hash_in_another_spelling_does_not_match(self) -> None:
        content = rendered()
        version, salt, digest = content.annotations[HASH].split(":")
        # Base64 of sixteen bytes leaves four bits of the last letter unused.
        assert salt.endswith("w==")
        for other in (f"{version}:{salt[:-3]}x==:{digest}", f"{version}:{salt}:{digest}:", f"v2:{salt}:{digest}"):
            assert not is_ours(content.data, {**content.annotations, HASH: other})

    @few
    @given(
        st.dictionaries(
            st.sampled_from([HASH, PASSWORD_IN, ROTATED_AT, ROTATE_HANDLED, "x"]),
            st.text(st.characters())
            | st.builds("v1:{}:{}".format, st.binary(max_size=70).map(lambda salt: b64encode(salt).decode()), st.text())
            | st.builds("{}/{}+{}".format, st.sampled_from(["password", ".."]), st.integers(), st.integers())
            | st.datetimes().map(lambda moment: moment.isoformat() + "Z"),
        ),
        st.dictionaries(st.text(), st.binary(), max_size=3) | st.just(rendered().data),
    )
    def test_annotations_of_any_content_raise_no_error(
        self, annotations: dict[str, str], data: dict[str, bytes]
    ) -> None:
        assert not is_ours(data, annotations)
        assert recover_password(data, annotations) is None
        assert isinstance(read_stamp(annotations), RotationStamp)
        assert not current(SecretContent({}, annotations, data))

    @few
    @given(
        st.sampled_from(["password", "uri", "binary", "none", ".."]),
        st.integers(0, 10**8),
        st.integers(0, 10**8) | st.integers(0, 12),
    )
    def test_a_forged_password_position_yields_only_text_that_can_be_a_password(
        self, key: str, offset: int, length: int
    ) -> None:
        data = {"password": b"abc-def", "uri": "é日x".encode(), "binary": b"\xff\xfe"}
        annotations = sealed(data, {PASSWORD_IN: f"{key}/{offset}+{length}"})
        assert is_ours(data, annotations)
        found = recover_password(data, annotations)
        assert found is None or (found.isascii() and found.isalnum() and found in "abc-def é日x")

    @pytest.mark.parametrize("place", ["password/0+99999999999999", "password/" + "9" * 5000 + "+1", "password/٣+١"])
    def test_invalid_numbers_in_a_password_position_yield_no_password(self, place: str) -> None:
        data = {"password": b"abc"}
        assert recover_password(data, sealed(data, {PASSWORD_IN: place})) is None

    @pytest.mark.parametrize(
        "moment", ["", "yesterday", "2027-13-01T00:00:00Z", "2027-01-01T00:00:00", "0000-01-01T00:00:00Z", "2027-01-01"]
    )
    def test_an_invalid_rotation_time_gives_an_empty_stamp(self, moment: str) -> None:
        assert read_stamp({ROTATED_AT: moment, ROTATE_HANDLED: "x"}) == RotationStamp()


def sealed(data: Mapping[str, bytes], annotations: Mapping[str, str]) -> dict[str, str]:
    """Returns annotations with a matching hash, as anyone who may write the Secret can make them."""
    from hashlib import pbkdf2_hmac

    covered = {"data": {key: b64encode(value).decode() for key, value in data.items()}, "annotations": annotations}
    digest = pbkdf2_hmac("sha256", json.dumps(covered, sort_keys=True).encode(), SALT, 4_096)
    return {**annotations, HASH: f"v1:{b64encode(SALT).decode()}:{b64encode(digest).decode()}"}


class TestUnchangedSecrets:
    def test_rendered_content_is_current_with_any_salt_and_with_additions_by_others(self) -> None:
        content = rendered(salt=b"another salt of 24 bytes")
        assert current(content)
        assert current(
            SecretContent({**content.labels, "x": "y"}, {**content.annotations, "example.com/x": "y"}, content.data)
        )

    @pytest.mark.parametrize(
        "values",
        [
            {"username": "other"},
            {"password": "other"},
            {"password": None, "stamp": RotationStamp()},
            {"address": replace(ADDRESS, host="other")},
            {"address": replace(ADDRESS, port=1)},
            {"address": replace(ADDRESS, sslmode="require")},
            {"stamp": RotationStamp()},
            {"stamp": replace(STAMP, rotate="again")},
            {"desired": replace(DESIRED, data=(("URL", "{password}"),))},
            {"desired": replace(DESIRED, labels=(("team", "other"),))},
            {"desired": replace(DESIRED, annotations=(("example.com/more", ""),))},
        ],
    )
    def test_content_is_not_current_after_any_input_changed(self, values: dict[str, object]) -> None:
        assert not current(rendered(), **values)  # type: ignore[arg-type]

    def test_content_without_our_labels_or_annotations_is_not_current(self) -> None:
        content = rendered()
        assert not current(SecretContent(content.labels, {}, content.data))
        assert not current(SecretContent({}, content.annotations, content.data))

    @few
    @given(connections(), one_line(names()), st.none() | generated_passwords())
    def test_rendered_content_is_current_for_the_same_inputs(
        self, desired: DesiredSecret, username: str, password: str | None
    ) -> None:
        stamp = STAMP if password else RotationStamp()
        try:
            check(desired, password_known=password is not None)
        except Refused:
            return
        content = rendered(desired, username=username, password=password, stamp=stamp)
        assert current(content, desired, username=username, password=password, stamp=stamp)

    @pytest.mark.parametrize(
        "other",
        [
            replace(DESIRED, name="other"),
            replace(DESIRED, labels=()),
            replace(DESIRED, annotations=()),
            replace(DESIRED, data=(("URL", "{host}"),)),
        ],
    )
    def test_the_digest_of_the_inputs_changes_with_the_template(self, other: DesiredSecret) -> None:
        assert inputs_digest(other, "app", ADDRESS) != inputs_digest(DESIRED, "app", ADDRESS)

    def test_the_digest_of_the_inputs_changes_with_name_and_address_but_not_with_key_order(self) -> None:
        desired = DesiredSecret("c", labels=(("a", "1"), ("b", "2")), data=(("a", "1"), ("b", "2")))
        turned = DesiredSecret("c", labels=(("b", "2"), ("a", "1")), data=(("b", "2"), ("a", "1")))
        digests = {
            inputs_digest(desired, *where)
            for where in (
                ("app", ADDRESS),
                ("other", ADDRESS),
                ("app", replace(ADDRESS, host="x")),
                ("app", replace(ADDRESS, port=1)),
                ("app", replace(ADDRESS, database="x")),
                ("app", replace(ADDRESS, sslmode="x")),
            )
        }
        assert len(digests) == 6
        assert inputs_digest(turned, "app", ADDRESS) == inputs_digest(desired, "app", ADDRESS)
        assert all(digest.startswith("sha256:") for digest in digests)


class TestSecrecy:
    def test_the_password_is_in_no_representation_and_in_no_annotation(self) -> None:
        content = rendered()
        assert GENERATED not in repr(content)
        assert GENERATED not in str(content)
        assert not any(GENERATED in text for text in (*content.annotations.values(), *content.labels.values()))

    def test_another_salt_gives_another_hash_for_the_same_password(self) -> None:
        assert rendered().annotations[HASH] != rendered(salt=SALT[::-1]).annotations[HASH]

    @pytest.mark.parametrize("salt", [b"", b"short", b"x" * 65])
    def test_a_salt_of_the_wrong_length_raises_an_error(self, salt: bytes) -> None:
        with pytest.raises(ValueError, match="salt"):
            rendered(salt=salt)

    def test_an_invalid_generated_password_raises_an_error_that_does_not_show_it(self) -> None:
        with pytest.raises(ValueError, match="generated password") as caught:
            rendered(password="p:w")
        assert "p:w" not in str(caught.value)
