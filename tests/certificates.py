"""Makes test certificates with the program openssl: authorities, and certificates that they sign."""

import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_CONFIG = """
[ca]
default_ca = one
[one]
database = {folder}/index.txt
rand_serial = yes
new_certs_dir = {folder}
unique_subject = no
default_md = sha256
policy = any
[any]
commonName = optional
[req]
distinguished_name = name
[name]
[bare]
basicConstraints = critical, CA:TRUE
subjectKeyIdentifier = none
authorityKeyIdentifier = none
[whole]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[signed]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid, issuer
[named]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid, issuer
subjectAltName = {names}
[alone]
basicConstraints = critical, CA:TRUE
subjectAltName = {names}
[unnamed]
basicConstraints = critical, CA:FALSE
"""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate's two files. `chain` is what a server presents: its certificate and any intermediates."""

    chain: Path
    key: Path

    @property
    def pem(self) -> str:
        return self.chain.read_text(encoding="ascii")


class Certificates:
    """Makes certificates in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "index.txt").touch()

    def authority(self, name: str, *, bare: bool = False) -> Certificate:
        """Makes a self-signed authority. `bare`: without key usage and key identifiers, as scripts and operators make
        them.
        """
        return self._sign_itself(name, f"/CN={name}", "bare" if bare else "whole")

    def self_signed(self, name: str, names: str) -> Certificate:
        """Makes a server's self-signed certificate; `names` as in subjectAltName: ``DNS:localhost``."""
        return self._sign_itself(name, f"/CN={name}", "alone", names)

    def intermediate(self, name: str, issuer: Certificate) -> Certificate:
        return self._sign(name, f"/CN={name}", "signed", "", issuer, -_DAY, _DAY)

    def server(
        self,
        name: str,
        issuer: Certificate,
        names: str = "",
        *,
        subject: str = "server",
        begins: timedelta = -_DAY,
        ends: timedelta = _DAY,
        through: Certificate | None = None,
    ) -> Certificate:
        """Makes a server's certificate signed by `issuer`. `names` as in subjectAltName; without them, only the common
        name `subject`. Times are relative to now.

        `through`: the intermediate presented with it.
        """
        made = self._sign(name, f"/CN={subject}", "named" if names else "unnamed", names, issuer, begins, ends)
        if through is not None:
            with made.chain.open("a", encoding="ascii") as chain:
                chain.write(through.pem)
        return made

    def _sign_itself(self, name: str, subject: str, extensions: str, names: str = "DNS:none") -> Certificate:
        made = self._place(name)
        self._openssl(
            *("req", "-x509", "-new", "-config", self._config(name, names), "-extensions", extensions),
            *("-key", made.key, "-subj", subject, "-days", "1", "-out", made.chain),
        )
        return made

    def _sign(
        self,
        name: str,
        subject: str,
        extensions: str,
        names: str,
        issuer: Certificate,
        begins: timedelta,
        ends: timedelta,
    ) -> Certificate:
        made, request = self._place(name), self.folder / f"{name}.csr"
        config = self._config(name, names or "DNS:none")
        self._openssl("req", "-new", "-config", config, "-key", made.key, "-subj", subject, "-out", request)
        self._openssl(
            *("ca", "-batch", "-notext", "-config", config, "-extensions", extensions, "-in", request),
            *("-cert", issuer.chain, "-keyfile", issuer.key, "-out", made.chain),
            *("-startdate", _moment(begins), "-enddate", _moment(ends)),
        )
        return made

    def _place(self, name: str) -> Certificate:
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        self._openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", made.key)
        return made

    def _config(self, name: str, names: str) -> Path:
        path = self.folder / f"{name}.cnf"
        path.write_text(_CONFIG.format(folder=self.folder, names=names), encoding="ascii")
        return path

    def _openssl(self, *arguments: str | Path) -> None:
        done = subprocess.run(
            ["openssl", *map(str, arguments)], capture_output=True, text=True, check=False, timeout=30
        )
        assert done.returncode == 0, done.stderr


def _moment(since_now: timedelta) -> str:
    return (datetime.now(UTC) + since_now).strftime("%Y%m%d%H%M%SZ")
