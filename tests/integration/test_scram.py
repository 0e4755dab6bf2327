"""core/scram with a real server: the verifiers it makes and accepts, and who may log in."""

import base64
import hashlib
import hmac
import os
import stringprep
from collections.abc import AsyncIterator, Callable, Iterator

import anyio
import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgrole_controller.core.ddl import quote_literal
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.scram import (
    LEAST_ITERATIONS,
    SALT_BYTES,
    VERIFIER_BYTES,
    Verifier,
    make_verifier,
    parse_verifier,
    read_password,
    saslprep,
    verifies,
)
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection

ROLE = "scram_tested"
SALT = bytes(range(SALT_BYTES))

# One connection serves all examples: each sets the password again.
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

#: The server hashes each of the passwords $1 and returns what it stores, in their order.
HASH_EACH = f"""
CREATE FUNCTION pg_temp.hash_each(passwords text[]) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
    password text;
BEGIN
    FOREACH password IN ARRAY passwords LOOP
        EXECUTE format('ALTER ROLE {ROLE} PASSWORD %L', password);
        RETURN QUERY SELECT rolpassword FROM pg_catalog.pg_authid WHERE rolname = '{ROLE}';
    END LOOP;
END
$$
"""

#: Each table of RFC 3454 that SASLprep uses.
TABLES: tuple[Callable[[str], bool], ...] = (
    stringprep.in_table_a1,
    stringprep.in_table_b1,
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
    stringprep.in_table_d1,
    stringprep.in_table_d2,
)

LOGINS = (
    "secret",
    "it's \\ \" $1 %s",
    " spaces around ",
    "tab\tand\x01control\x7f",
    "pässwörd",
    "e\u0301 and \u2168",
    "\u00a0\u2003\u3000",
    "\u00ad",
    "\u05d0\u00b2\u05d0",
    "\u05d0\u00aa\u05d0",
    "\u00aa\u0221",
    "密码 \U0001f600",
    "x" * 1024,
    "ü" * 512,
)

#: asyncpg prepares these differently from PostgreSQL: it drops a space of no width, and it looks for prohibited
#: characters after the normalization.
LOGINS_BY_LIBPQ = ("a\u200bª", "\u05d0\u2100\u05d0")


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    """A superuser's session, a role that can log in, and the fewest iterations that the server's version accepts."""
    made = await asyncpg.connect(database)
    try:
        await made.execute(f"CREATE ROLE {ROLE} LOGIN")
        await made.execute(HASH_EACH)
        if made.get_server_version() >= (16,):
            await made.execute("SET scram_iterations = 1")
        yield made
        await made.execute(f"DROP ROLE {ROLE}")
    finally:
        await made.close()


async def set_password(connection: Connection, text: str) -> str | None:
    """Returns what the server stores when it is given this text as the password."""
    await connection.execute(f"ALTER ROLE {ROLE} PASSWORD {quote_literal(text)}")
    stored: str | None = await connection.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", ROLE)
    return stored


async def hash_each(connection: Connection, passwords: list[str]) -> list[Verifier]:
    rows = await connection.fetch("SELECT * FROM pg_temp.hash_each($1)", passwords)
    return [Verifier(row[0]) for row in rows]


def passwords() -> st.SearchStrategy[str]:
    """Mixes characters that SASLprep treats differently: not empty, no NUL, no lone surrogates."""
    any_character = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
    ascii_ = st.characters(min_codepoint=1, max_codepoint=127)
    spaces = st.sampled_from(
        "\u00a0\u1680\u180e\u2000\u2003\u200b\u2028\u202f\u205f\u3000\ufeff\u00ad\u200d\u2060\ufe0f"
    )
    controls = st.characters(whitelist_categories=["Cc", "Cf", "Co"], blacklist_characters="\0")
    combining = st.characters(whitelist_categories=["Mn", "Mc"], max_codepoint=0xFFFF)
    hebrew_and_arabic = st.characters(min_codepoint=0x590, max_codepoint=0x6FF)
    compatible = st.sampled_from("\u00aa\u00b2\u2168\ufb01\u1e9b\u0344\u212b\uac00\u1100\u1161\u11a8\u0958\u2adc\ufdfa")
    unassigned = st.sampled_from("\u0221\u0378\u11a7\u1e9e\U0001f600\U0001f468\U00030000\U000e0100")
    kinds = [any_character, ascii_, spaces, controls, combining, hebrew_and_arabic, compatible, unassigned]
    mixed = st.lists(st.one_of(kinds), min_size=1, max_size=12).map("".join)
    one_kind = st.one_of(
        [st.text(kind, min_size=1, max_size=8) for kind in (ascii_, spaces, combining, hebrew_and_arabic, compatible)]
    )
    long = st.tuples(mixed, st.integers(100, 1000)).map(lambda pair: pair[0] * pair[1])
    return st.one_of(mixed, mixed, one_kind, one_kind, long)


def mutations(text: str) -> st.SearchStrategy[str]:
    """The text with delimiters, padding or digits inserted, removed or replaced."""
    new = st.text(st.sampled_from("$:=+-/ 09aA\t\n.,é"), max_size=2)
    edits = st.lists(st.tuples(st.integers(0, len(text)), st.integers(0, 2), new), min_size=1, max_size=2)
    doubled = st.sampled_from(
        [text.replace(mark, mark * 2, 1) for mark in "$:="] + ["$" + text, text + "$", text + "="]
    )

    def apply(some: list[tuple[int, int, str]]) -> str:
        changed = text
        for place, length, inserted in some:
            changed = changed[:place] + inserted + changed[place + length :]
        return changed

    return edits.map(apply) | doubled


def at_borders() -> Iterator[str]:
    """The characters on both sides of each border of each table, outside ASCII and the surrogates."""
    before: tuple[bool, ...] = ()
    for code in (*range(0x80, 0xD800), *range(0xE000, 0x30000), *range(0xDFFF0, 0xE1000), *range(0xEFFF0, 0xF0010)):
        here = tuple(holds(chr(code)) for holds in TABLES)
        if here != before:
            yield from (chr(max(code - 1, 0x80)), chr(code)) if code != 0xE000 else chr(code)
        before = here


@EXAMPLES
@given(passwords())
async def test_the_servers_verifier_of_a_clear_password_is_verified(connection: Connection, password: str) -> None:
    stored = await set_password(connection, password)
    assert stored is not None
    assert verifies(password, Verifier(stored))
    assert not verifies(password + "x", Verifier(stored))


@EXAMPLES
@given(passwords())
async def test_our_verifier_and_the_servers_are_identical(connection: Connection, password: str) -> None:
    theirs = Verifier(await set_password(connection, password) or "")
    assert theirs.scram is not None
    assert len(theirs.scram.salt) == SALT_BYTES
    assert make_verifier(password, theirs.scram.salt, theirs.scram.iterations) == theirs


@pytest.mark.slow
async def test_every_border_of_the_saslprep_tables_is_where_the_server_has_it(connection: Connection) -> None:
    # ª is left-to-right and becomes a, ² has no direction and becomes 2: that shows the class of the other.
    characters = sorted(set(at_borders()))
    if connection.get_server_version() < (16,):
        characters = characters[::20]  # each is hashed with 4,096 iterations there
    texts = [text for one in characters for text in (f"{one}ª", f"{one}²{one}", f"א²{one}א")]
    assert len(texts) > 200
    for start in range(0, len(texts), 500):
        some = texts[start : start + 500]
        for text, stored in zip(some, await hash_each(connection, some), strict=True):
            assert verifies(text, stored), f"{text!a} is not prepared as by the server"


@EXAMPLES
@given(passwords(), st.sampled_from([1, 4096]))
async def test_our_verifier_is_stored_unchanged(connection: Connection, password: str, iterations: int) -> None:
    made = make_verifier(password, SALT, iterations)
    assert await set_password(connection, made.text) == made.text


# One iteration, since the server computes with whatever number a mutation makes.
@EXAMPLES
@given(mutations(make_verifier("secret", SALT, 1).text))
async def test_a_text_is_parsed_as_a_verifier_only_if_the_server_stores_it_unchanged(
    connection: Connection, text: str
) -> None:
    stored = await set_password(connection, text)
    if parse_verifier(text) is not None:
        assert stored == text
    elif stored != text:
        assert stored is not None
        assert verifies(text, Verifier(stored))


@pytest.mark.parametrize("size", [1, 2, 3, 64, 300])
async def test_a_verifier_with_a_salt_of_any_accepted_size_is_stored_unchanged(
    connection: Connection, size: int
) -> None:
    made = make_verifier("secret", b"\xfb" * size, 1)
    assert made.scram is not None
    assert len(made.text) <= VERIFIER_BYTES
    assert await set_password(connection, made.text) == made.text


async def test_the_verifier_of_an_empty_password_would_remove_the_password_and_is_refused(
    connection: Connection,
) -> None:
    salted = hashlib.pbkdf2_hmac("sha256", b"", SALT, LEAST_ITERATIONS)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server = hmac.digest(salted, b"Server Key", "sha256")
    salt_, stored_, server_ = (base64.b64encode(part).decode() for part in (SALT, stored, server))
    text = f"SCRAM-SHA-256${LEAST_ITERATIONS}:{salt_}${stored_}:{server_}"
    assert await set_password(connection, text) is None
    with pytest.raises(Refused, match="empty password"):
        read_password(text.encode())


async def test_only_a_text_that_the_server_takes_for_an_md5_hash_is_refused(connection: Connection) -> None:
    lower = "md5" + hashlib.md5(b"secret" + ROLE.encode(), usedforsecurity=False).hexdigest()
    assert await set_password(connection, lower) == lower
    with pytest.raises(Refused, match="MD5"):
        read_password(lower.encode())
    upper = lower.upper()
    assert read_password(upper.encode()) == upper
    assert verifies(upper, Verifier(await set_password(connection, upper) or ""))


@pytest.mark.parametrize("password", LOGINS)
async def test_a_login_with_the_password_of_our_verifier_works(
    connection: Connection, database: str, postgres_server: PostgresServer, password: str
) -> None:
    methods = await connection.fetch("SELECT DISTINCT auth_method FROM pg_hba_file_rules WHERE type LIKE 'host%'")
    assert [row[0] for row in methods] == ["scram-sha-256"]
    await set_password(connection, make_verifier(password, SALT, 4096).text)
    client = await asyncpg.connect(database, user=ROLE, password=password)
    await client.close()
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(database, user=ROLE, password=password + "x")
    assert await logs_in_by_libpq(postgres_server, password)
    assert not await logs_in_by_libpq(postgres_server, password + "x")


@pytest.mark.parametrize("password", LOGINS_BY_LIBPQ)
async def test_where_clients_differ_a_password_is_prepared_like_libpq_does(
    connection: Connection, postgres_server: PostgresServer, password: str
) -> None:
    assert saslprep(password) != password
    await set_password(connection, make_verifier(password, SALT, 4096).text)
    assert await logs_in_by_libpq(postgres_server, password)


async def logs_in_by_libpq(server: PostgresServer, password: str) -> bool:
    """Whether psql logs in; libpq prepares the password with the server's own code."""
    command = [str(server.psql), "-X", "-w", "-c", "SELECT 1", server.dsn(user=ROLE)]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False, env={**os.environ, "PGPASSWORD": password})
    return done.returncode == 0


async def test_a_password_can_be_entered_in_any_spelling_that_saslprep_makes_equal(
    connection: Connection, database: str
) -> None:
    assert saslprep("\u2168\u00a0e\u0301") == "IX \u00e9"
    await set_password(connection, make_verifier("\u2168\u00a0e\u0301", SALT, 4096).text)
    for spelling in ("\u2168\u00a0e\u0301", "IX \u00e9", "IX \u00ade\u0301"):
        client = await asyncpg.connect(database, user=ROLE, password=spelling)
        await client.close()
