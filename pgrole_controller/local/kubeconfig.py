"""Credentials of the local API server: tokens, kubeconfigs, and the key for ServiceAccount tokens.

The files are in the API server's folder, readable only by their owner: `tokens.csv` (`token,user,uid,"group,group"`,
for --token-auth-file), `service-account.key`, and `<user>.kubeconfig`.
"""

import base64
import csv
import io
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from pgrole_controller.local.workspace import write_private

ADMIN = "admin"
CONTROLLER = "pgrole-controller"
_USERS: Mapping[str, Sequence[str]] = {ADMIN: ["system:masters"], CONTROLLER: []}
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def write_tokens(path: Path, users: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Writes a token for every user (name: groups), for admin and for the controller. Existing tokens are kept."""
    tokens: dict[str, str] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            tokens = {row[1]: row[0] for row in csv.reader(file)}
    everyone = {**_USERS, **users}
    tokens = {user: tokens.get(user) or secrets.token_hex(16) for user in everyone}
    rows = io.StringIO(newline="")
    csv.writer(rows).writerows([tokens[user], user, user, ",".join(groups)] for user, groups in everyone.items())
    write_private(path, rows.getvalue())
    return tokens


def write_kubeconfig(path: Path, *, url: str, ca: Path, user: str, token: str) -> Path:
    """Writes a kubeconfig with one cluster, user and context, all named `pgrole-local`."""
    name = "pgrole-local"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": url, "certificate-authority": str(ca)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user, "namespace": "default"}}],
    }
    write_private(path, yaml.safe_dump(config, sort_keys=False))
    return path


def write_service_account_key(path: Path) -> None:
    """Creates a P-256 key (RFC 5915, without its public half, which the reader computes), unless one exists."""
    if path.exists():
        return
    scalar = (secrets.randbelow(_P256_ORDER - 1) + 1).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + scalar + bytes.fromhex("a00a06082a8648ce3d030107")
    lines = base64.encodebytes(der).decode()
    write_private(path, f"-----BEGIN EC PRIVATE KEY-----\n{lines}-----END EC PRIVATE KEY-----\n")
