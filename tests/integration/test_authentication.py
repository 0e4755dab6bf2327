"""How a server may authenticate the controller: it receives something derived from the password only through an
allowed method.
"""

import base64
import time
from typing import get_args

import pytest

from pgrole_controller.api.pgserver import Method
from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.dsn import METHODS, split_methods
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer
from pgrole_controller.postgres.connection import Endpoint, connect
from tests.hostile import GREETING, authentication, message, serving
from tests.servers import Servers

PASSWORD = "s3cr3t-word"
SASL = authentication(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0")

#: The first bytes of a server that requests this method.
ASKING = {
    "password": authentication(3),
    "md5": authentication(5, b"salt"),
    "scram-sha-256": SASL,
    "none": GREETING,
}


def test_the_api_permits_the_same_methods() -> None:
    assert get_args(Method) == METHODS


def endpoint_of(port: int, *methods: str, password: str = PASSWORD) -> Endpoint:
    return Endpoint.of(
        ["127.0.0.1"], port, "postgres", "user", password, "disable", methods=frozenset(methods) if methods else None
    )


async def refusal(endpoint: Endpoint) -> PgRoleError:
    with pytest.raises(PgRoleError) as caught:
        async with connect(endpoint, "test"):
            pass
    return caught.value


@pytest.mark.parametrize("allowed", [(), *((one,) for one in METHODS), ("md5", "none")], ids=str)
@pytest.mark.parametrize("asked", METHODS)
async def test_a_method_that_is_not_allowed_is_named_and_nothing_is_sent(asked: str, allowed: tuple[str, ...]) -> None:
    with serving(ASKING[asked], ends=True) as server:  # an allowed method fails too, but later
        error = await refusal(endpoint_of(server.port, *allowed))
    assert isinstance(error, Transient)
    if asked in (allowed or ("scram-sha-256", "none")):
        assert "requireAuth" not in error.message
        return
    assert (
        f"({asked}), but requireAuth allows only: {', '.join(allowed or ('scram-sha-256', 'none'))}." in error.message
    )
    assert "pg_hba.conf" in error.message
    assert PASSWORD not in error.message
    assert len(server.heard) == 1, "more than the startup packet was sent"


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("password", b"p\0\0\0\x10s3cr3t-word\0"),
        ("md5", b"p\0\0\0(md5"),
        ("scram-sha-256", b"p\0\0\0"),
    ],
)
async def test_a_method_that_is_allowed_is_answered(asked: str, sent: bytes) -> None:
    with serving(ASKING[asked], message(b"E", b"SFATAL\0C28P01\0Mno\0\0")) as server:
        error = await refusal(endpoint_of(server.port, asked))
    assert "rejects the credentials" in error.message
    assert server.heard[1].startswith(sent)


@pytest.mark.parametrize(
    ("code", "words"), [(2, "Kerberos"), (6, "SCM"), (7, "GSSAPI (gss)"), (9, "SSPI (sspi)")], ids=str
)
async def test_the_error_names_an_unsupported_method(code: int, words: str) -> None:
    with serving(authentication(code)) as server:
        assert words in (await refusal(endpoint_of(server.port, *METHODS))).message
    with serving(authentication(10, b"OAUTHBEARER\0\0")) as server:
        assert "other than SCRAM-SHA-256" in (await refusal(endpoint_of(server.port))).message


async def test_a_server_that_ends_scram_early_is_rejected() -> None:
    with serving(SASL, GREETING) as server:
        error = await refusal(endpoint_of(server.port))
    assert "did not prove that it knows the password's verifier" in error.message


ODD = {
    "a second request": authentication(5, b"salt") * 2,
    "a salt that is too long": authentication(5, b"salt" * 9),
    "a challenge out of turn": authentication(11, b"r=a,s=b,i=1"),
    "the end out of turn": authentication(12, b"v=x"),
    "being let in twice": authentication(0) * 2,
    "an unknown method": authentication(99),
    "mechanisms without an end": authentication(10, b"SCRAM-SHA-256\0"),
    "no code": message(b"R", b"\0"),
    "a very long request": authentication(10, b"SCRAM-SHA-256\0" * 9000),
}


@pytest.mark.parametrize("first", ODD.values(), ids=ODD)
async def test_an_out_of_order_login_is_reported_as_not_postgresql(first: bytes) -> None:
    with serving(first) as server:
        error = await refusal(endpoint_of(server.port, *METHODS))
    assert "does not speak the PostgreSQL protocol" in error.message


def challenge(heard: bytes, iterations: str, salt: bytes = b"salt") -> bytes:
    nonce = heard.partition(b",r=")[2]
    return authentication(11, b"r=" + nonce + b"x,s=" + base64.b64encode(salt) + b",i=" + iterations.encode())


@pytest.mark.parametrize("iterations", ["100001", "2147483647", "0", "99999999999999999999", "-1", "1e9", ""])
async def test_excessive_or_invalid_scram_iterations_are_not_hashed(iterations: str) -> None:
    with serving(SASL, lambda heard: challenge(heard, iterations)) as server:
        began = time.thread_time()
        error = await refusal(endpoint_of(server.port))
    assert time.thread_time() - began < 1.0
    assert "SCRAM iterations" in error.message or "does not speak the PostgreSQL protocol" in error.message
    assert len(server.heard) == 2, "an answer to the challenge was sent"


@pytest.mark.parametrize("salt", [b"", b"s" * 2000], ids=["none", "much"])
async def test_a_challenge_with_missing_or_excessive_salt_is_rejected(salt: bytes) -> None:
    with serving(SASL, lambda heard: challenge(heard, "4096", salt)) as server:
        assert "does not speak the PostgreSQL protocol" in (await refusal(endpoint_of(server.port))).message


@pytest.mark.since(16, "scram_iterations")
async def test_the_maximum_of_iterations_works_with_a_real_server_and_one_more_fails(
    postgres_server: PostgresServer,
) -> None:
    admin = Endpoint(postgres_server.dsn())
    async with connect(admin, "test") as connection:
        await connection.execute("SET scram_iterations = 100000")
        await connection.execute(f"DROP ROLE IF EXISTS hashed; CREATE ROLE hashed LOGIN PASSWORD '{PASSWORD}'")
        try:
            async with connect(Endpoint(postgres_server.dsn("hashed", password=PASSWORD)), "test") as own:
                assert await own.fetchval("SELECT current_user::text") == "hashed"
            await connection.execute("SET scram_iterations = 100001")
            await connection.execute(f"ALTER ROLE hashed PASSWORD '{PASSWORD}'")
            error = await refusal(Endpoint(postgres_server.dsn("hashed", password=PASSWORD)))
            assert "asks for 100001 SCRAM iterations; the limit is 100000" in error.message
        finally:
            await connection.execute("DROP ROLE hashed")


@pytest.mark.parametrize("method", ["password", "md5", "trust"])
async def test_a_real_server_may_use_only_the_methods_in_require_auth(
    servers: Servers, own_postgres: PostgresServer, method: str
) -> None:
    if servers.docker:
        pytest.skip("this test writes PostgreSQL's pg_hba.conf on this machine")
    async with connect(Endpoint(own_postgres.dsn()), "test") as connection:
        await connection.execute(f"SET password_encryption = 'md5'; ALTER ROLE {SUPERUSER} PASSWORD '{PASSWORD}'")
        (own_postgres.data / "pg_hba.conf").write_text(f"host all all 127.0.0.1/32 {method}\n", encoding="utf-8")
    await own_postgres.restart()

    def endpoint(*methods: str) -> Endpoint:
        return Endpoint.of(
            ["127.0.0.1"],
            own_postgres.port,
            "postgres",
            SUPERUSER,
            PASSWORD,
            "disable",
            methods=frozenset(methods) if methods else None,
        )

    name = "none" if method == "trust" else method
    if method != "trust":
        assert f"({name}), but requireAuth allows only: scram-sha-256, none." in (await refusal(endpoint())).message
    for methods in ((name,), ("scram-sha-256", name)):
        async with connect(endpoint(*methods), "test") as connection:
            assert await connection.fetchval("SELECT 1") == 1
    assert (
        f"({name}), but requireAuth allows only: scram-sha-256." in (await refusal(endpoint("scram-sha-256"))).message
    )


async def test_require_auth_in_a_dsn_limits_the_methods(postgres_server: PostgresServer) -> None:
    for text, refused in (("scram-sha-256", False), ("!password,!md5", False), ("md5,password", True)):
        dsn, methods = split_methods(f"{postgres_server.dsn()}?require_auth={text}&application_name=x")
        assert "require_auth" not in dsn
        if refused:
            assert "asks for SCRAM (scram-sha-256)" in (await refusal(Endpoint(dsn, methods=methods))).message
        else:
            async with connect(Endpoint(dsn, methods=methods), "test") as connection:
                assert await connection.fetchval("SELECT 1") == 1
