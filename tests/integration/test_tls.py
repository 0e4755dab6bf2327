"""Which servers a connection trusts, by sslmode: with a real TLS server, compared with libpq's verdict."""

import contextlib
import os
import secrets
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Refused, Transient
from pgrole_controller.core.findings.server_findings import judge_encryption
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer, postgres
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import tls
from pgrole_controller.postgres.connection import CONNECT_SECONDS, Endpoint, connect
from pgrole_controller.postgres.database_connection import connect_read_only
from pgrole_controller.postgres.diagnosis import read_server_facts
from pgrole_controller.postgres.tls import SslMode
from tests.certificates import Certificate, Certificates
from tests.libpq import ask_libpq
from tests.servers import Servers

#: The version whose portable programs have TLS and include libpq.
VERSION = 17
MODES: tuple[SslMode, ...] = ("disable", "require", "verify-ca", "verify-full")
_DAY = timedelta(days=1)


@dataclass(slots=True)
class TlsTrial:
    """A TLS server that presents the certificate that a test chooses, and both clients."""

    server: PostgresServer
    certificates: Certificates
    ours: Certificate
    theirs: Certificate
    shown: Path
    named: int = field(default=0)

    def sign(self, names: str = "DNS:localhost", issuer: Certificate | None = None, **other: object) -> Certificate:
        self.named += 1
        return self.certificates.server(f"server{self.named}", issuer or self.ours, names, **other)  # type: ignore[arg-type]

    async def show(self, certificate: Certificate) -> None:
        """Makes the server present this certificate to every client from now on."""
        shutil.copyfile(certificate.key, self.shown.with_suffix(".key"))
        shutil.copyfile(certificate.chain, self.shown)
        own, _, _ = certificate.pem.partition(ssl.PEM_FOOTER)
        desired = ssl.PEM_cert_to_DER_cert(f"{own}{ssl.PEM_FOOTER}")
        connection = await asyncpg.connect(self.server.dsn(), ssl="disable")
        try:
            await connection.execute("SELECT pg_reload_conf()")
        finally:
            await connection.close()

        async def is_shown() -> bool:
            with contextlib.suppress(ssl.SSLError):  # the key was read before the certificate
                return await _certificate_of(self.server) == desired
            return False

        assert await reached(is_shown, 20, every=0.02)

    def endpoint(self, mode: SslMode, host: str = "localhost", ca: str | None = None) -> Endpoint:
        return Endpoint.of([host], self.server.port, "postgres", SUPERUSER, self.server.password, mode, ca)

    async def verdict(self, mode: SslMode, host: str, ca: str | None) -> str | None:
        """Returns why a connection is refused; None if it succeeds, encrypted unless `mode` is disable."""
        try:
            async with connect(self.endpoint(mode, host, ca), "test") as connection:
                encrypted = await connection.fetchval("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
        except PgRoleError as error:
            return error.message
        assert encrypted is (mode != "disable")
        return None

    async def verdicts(self, host: str, ca: Certificate | None, *, always: bool = False) -> dict[SslMode, str | None]:
        """Returns the verdicts by mode; libpq must agree. `always`: the CA is given in mode require, too."""
        pem = None if ca is None else ca.pem
        given = {mode: pem if always or mode.startswith("verify") else None for mode in MODES}
        ours = {mode: await self.verdict(mode, host, given[mode]) for mode in MODES}
        theirs = await self.ask_libpq(host, {mode: ca if given[mode] else None for mode in MODES})
        assert _yes_or_no(ours) == _yes_or_no(theirs), (ours, theirs)
        return ours

    async def ask_libpq(self, host: str, given: dict[SslMode, Certificate | None]) -> dict[SslMode, str | None]:
        def options(mode: SslMode, ca: Certificate | None) -> dict[str, str]:
            made = {"host": host, "port": str(self.server.port), "dbname": "postgres", "connect_timeout": "10"}
            made |= {"user": SUPERUSER, "password": self.server.password, "sslmode": mode, "gssencmode": "disable"}
            if ca is not None or mode.startswith("verify"):
                made["sslrootcert"] = "system" if ca is None else str(ca.chain)
            return made

        system = {name: value for name, value in os.environ.items() if name.startswith("SSL_CERT")}
        environment = {"HOME": str(self.certificates.folder), "PATH": os.defpath, **system}
        asked = [options(mode, ca) for mode, ca in given.items()]
        answers = await ask_libpq(self.server.programs, asked, environment)
        return dict(zip(given, answers, strict=True))


def _yes_or_no(verdicts: dict[SslMode, str | None]) -> dict[SslMode, bool]:
    return {mode: words is None for mode, words in verdicts.items()}


async def _certificate_of(server: PostgresServer) -> bytes | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = await asyncpg.connect(server.dsn(), ssl=context)
    try:
        transport = connection._transport  # type: ignore[attr-defined]
        found: bytes | None = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def trial(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[TlsTrial]:
    if servers.docker:
        pytest.skip("this test gives PostgreSQL its certificates as files on this machine")
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    ours, theirs = certificates.authority("ours"), certificates.authority("theirs")
    shown = certificates.folder / "shown.crt"
    first = certificates.server("first", ours, "DNS:localhost")
    shutil.copyfile(first.key, shown.with_suffix(".key"))
    shutil.copyfile(first.chain, shown)
    shown.with_suffix(".key").chmod(0o600)
    settings = {"ssl": "on", "ssl_cert_file": str(shown), "ssl_key_file": str(shown.with_suffix(".key"))}
    async with postgres(version=VERSION, settings=settings) as server:
        yield TlsTrial(server, certificates, ours, theirs, shown)


NO_NAME = "certificate is not valid for"


async def test_a_valid_certificate_is_accepted_in_every_mode(trial: TlsTrial) -> None:
    await trial.show(trial.sign("DNS:localhost"))
    assert await trial.verdicts("localhost", trial.ours) == dict.fromkeys(MODES)


async def test_doctor_reads_the_expiry_of_a_verified_certificate(trial: TlsTrial) -> None:
    await trial.show(trial.sign(ends=timedelta(days=9)))
    ends = datetime.now(UTC) + timedelta(days=9)
    async with connect_read_only(trial.endpoint("verify-full", ca=trial.ours.pem)) as connection:
        verified = await read_server_facts(connection)
    assert verified.encrypted
    assert verified.verified
    assert verified.expires is not None
    assert abs(verified.expires - ends) < timedelta(hours=1)
    assert "certificate expires at" in judge_encryption("s", verified, "verify-full", datetime.now(UTC)).text
    async with connect_read_only(trial.endpoint("require")) as connection:
        unverified = await read_server_facts(connection)
    assert (unverified.encrypted, unverified.verified, unverified.expires) == (True, False, None)


async def test_a_certificate_for_an_address_is_accepted_at_that_address(trial: TlsTrial) -> None:
    await trial.show(trial.sign("IP:127.0.0.1"))
    assert await trial.verdicts("127.0.0.1", trial.ours) == dict.fromkeys(MODES)


async def test_only_verify_full_verifies_the_host_name(trial: TlsTrial) -> None:
    for names, host in (
        ("DNS:localhost", "127.0.0.1"),
        ("DNS:db.example.internal", "localhost"),
        ("IP:127.0.0.1", "localhost"),
        ("DNS:*", "localhost"),
        ("DNS:local*", "localhost"),
    ):
        await trial.show(trial.sign(names))
        found = await trial.verdicts(host, trial.ours)
        assert {mode for mode, words in found.items() if words} == {"verify-full"}, (names, host)
        assert NO_NAME in (found["verify-full"] or "")
        assert f"{host}:{trial.server.port}: " in (found["verify-full"] or "")


async def test_a_common_name_counts_only_if_the_certificate_has_no_other_name(trial: TlsTrial) -> None:
    await trial.show(trial.sign("", subject="localhost"))
    assert await trial.verdicts("localhost", trial.ours) == dict.fromkeys(MODES)
    await trial.show(trial.sign("DNS:db.example.internal", subject="localhost"))
    assert NO_NAME in ((await trial.verdicts("localhost", trial.ours))["verify-full"] or "")


async def test_an_address_matches_only_addresses_which_is_stricter_than_libpq(trial: TlsTrial) -> None:
    for certificate in (trial.sign("", subject="127.0.0.1"), trial.sign("DNS:127.0.0.1")):
        await trial.show(certificate)
        assert NO_NAME in (await trial.verdict("verify-full", "127.0.0.1", trial.ours.pem) or "")
        assert await trial.ask_libpq("127.0.0.1", {"verify-full": trial.ours}) == {"verify-full": None}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("another authority", "unable to get local issuer certificate"),
        ("expired", "certificate has expired"),
        ("not yet valid", "certificate is not yet valid"),
        ("self-signed", "self-signed certificate"),
    ],
)
async def test_an_untrusted_certificate_is_refused_in_every_mode_that_verifies(
    trial: TlsTrial, case: str, words: str
) -> None:
    match case:
        case "another authority":
            certificate = trial.sign(issuer=trial.theirs)
        case "expired":
            certificate = trial.sign(begins=-2 * _DAY, ends=-_DAY)
        case "not yet valid":
            certificate = trial.sign(begins=_DAY, ends=2 * _DAY)
        case _:
            certificate = trial.certificates.self_signed("alone", "DNS:localhost")
    await trial.show(certificate)
    found = await trial.verdicts("localhost", trial.ours)
    assert {mode for mode, said in found.items() if said} == {"verify-ca", "verify-full"}
    for mode in ("verify-ca", "verify-full"):
        said = (found[mode] or "").replace("self signed", "self-signed")  # as OpenSSL 1.1 spells it
        assert f"the server's certificate is not trusted: {words}" in said


async def test_a_self_signed_certificate_that_is_given_as_the_ca_is_accepted(trial: TlsTrial) -> None:
    certificate = trial.certificates.self_signed("itself", "DNS:localhost")
    await trial.show(certificate)
    assert await trial.verdicts("localhost", certificate) == dict.fromkeys(MODES)


async def test_an_intermediate_is_accepted_from_the_server_but_not_as_the_ca(trial: TlsTrial) -> None:
    between = trial.certificates.intermediate("between", trial.ours)
    await trial.show(trial.sign(issuer=between, through=between))
    assert await trial.verdicts("localhost", trial.ours) == dict.fromkeys(MODES)
    found = await trial.verdicts("localhost", between)
    assert {mode for mode, said in found.items() if said} == {"verify-ca", "verify-full"}


async def test_require_with_a_ca_verifies_like_verify_ca(trial: TlsTrial) -> None:
    await trial.show(trial.sign("DNS:db.example.internal"))
    assert (await trial.verdicts("localhost", trial.ours, always=True))["require"] is None
    assert "not trusted" in ((await trial.verdicts("localhost", trial.theirs, always=True))["require"] or "")


async def test_without_a_ca_only_verify_full_trusts_the_authorities_of_the_system(
    trial: TlsTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trial.show(trial.sign())
    found = await trial.verdicts("localhost", None)
    assert "not trusted" in (found["verify-full"] or "")
    assert "verify-ca requires a private CA" in (found["verify-ca"] or "")
    monkeypatch.setenv("SSL_CERT_FILE", str(trial.ours.chain))
    found = await trial.verdicts("localhost", None)
    assert {mode for mode, said in found.items() if said} == {"verify-ca"}


async def test_several_authorities_with_comments_in_any_language_are_read(trial: TlsTrial) -> None:
    await trial.show(trial.sign())
    bundle = f"# Főtanúsítvány\r\n{trial.theirs.pem}\n\n# 認証局\n{trial.ours.pem}".replace("\n", "\r\n")
    assert await trial.verdict("verify-full", "localhost", bundle) is None


async def test_a_ca_without_key_usage_is_accepted_by_every_python(
    trial: TlsTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = trial.certificates.authority("bare", bare=True)
    await trial.show(trial.sign(issuer=bare))
    create = ssl.create_default_context

    def as_of_313(**given: str) -> ssl.SSLContext:
        context = create(**given)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    strict = as_of_313(cadata=bare.pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncpg.connect(trial.server.dsn().replace("127.0.0.1", "localhost"), ssl=strict)
    monkeypatch.setattr(ssl, "create_default_context", as_of_313)
    assert await trial.verdict("verify-full", "localhost", bare.pem) is None


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "no certificate",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n",
        "\x00\udc80",
    ],
)
@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_an_unreadable_ca_is_reported_before_anything_is_sent(nonsense: str, mode: SslMode) -> None:
    endpoint = Endpoint.of(["host.invalid"], 1, "postgres", "user", "password", mode, nonsense)
    with pytest.raises(Refused, match="the CA is not readable"):
        async with connect(endpoint, "test"):
            pass


async def test_a_key_is_not_accepted_as_a_ca(trial: TlsTrial) -> None:
    with pytest.raises(Refused, match="the CA is not readable"):
        tls.make_context("verify-full", trial.ours.key.read_text(encoding="ascii"))


async def test_a_server_without_tls_is_refused_where_tls_is_required(
    trial: TlsTrial, postgres_server: PostgresServer
) -> None:
    for mode in MODES:
        given = trial.ours.pem if mode.startswith("verify") else None
        endpoint = Endpoint.of(
            ["127.0.0.1"], postgres_server.port, "postgres", SUPERUSER, postgres_server.password, mode, given
        )
        if mode == "disable":
            async with connect(endpoint, "test") as connection:
                assert await connection.fetchval("SELECT 1") == 1
            continue
        with pytest.raises(Transient, match="does not offer TLS, which sslMode requires"):
            async with connect(endpoint, "test"):
                pass


async def test_a_wrong_password_is_reported_with_tls_too(trial: TlsTrial) -> None:
    await trial.show(trial.sign())
    secret = f"wr0ng-{secrets.token_hex(4)}"
    endpoint = Endpoint.of(
        ["localhost"], trial.server.port, "postgres", SUPERUSER, secret, "verify-full", trial.ours.pem
    )
    with pytest.raises(Transient, match="credentials") as caught:
        async with connect(endpoint, "test"):
            pass
    assert secret not in str(caught.value)


async def test_a_server_that_hangs_after_the_tls_handshake_is_given_up_and_its_socket_is_closed(
    tmp_path: Path,
) -> None:
    shown = Certificates(tmp_path).self_signed("mute", "DNS:localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.chain, shown.key)

    def shake_hands_and_wait(listener: socket.socket) -> None:
        raw, _ = listener.accept()
        raw.recv(8)
        raw.sendall(b"S")
        with raw.dup() as wire, context.wrap_socket(raw, server_side=True):
            wire.settimeout(2 * CONNECT_SECONDS)
            while wire.recv(1 << 16):  # raises TimeoutError unless the client closes it
                pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, shake_hands_and_wait, listener)
            port = listener.getsockname()[1]
            endpoint = Endpoint.of(["localhost"], port, "postgres", "user", "password", "verify-full", shown.pem)
            with pytest.raises(Transient, match="no answer in time"):
                async with connect(endpoint, "test"):
                    pass
