"""The verifiers that were last set for one server's roles: they restore passwords while Kubernetes is unreachable.

A verifier is remembered only when its digest is the one in the role's claim, never the clear text. It is as secret as
what is in pg_authid, and stays in memory as long as the role's object exists.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.role import ObservedRole, Password
from pgrole_controller.core.scram import Verifier


class ReadObject(Protocol):
    """One object as it was read last."""

    @property
    def role_name(self) -> str: ...
    @property
    def claim(self) -> Claim | None: ...
    @property
    def named(self) -> ObservedRole | None: ...


class Verifiers:
    """The verifiers by role name."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def get(self, role_name: str) -> Verifier | None:
        text = self._known.get(role_name)
        return None if text is None else Verifier(text)

    def note(self, role_name: str, verifier: Verifier) -> None:
        """Notes a verifier that was set."""
        self._known[role_name] = verifier.text

    def forget(self, role_name: str) -> None:
        self._known.pop(role_name, None)

    def unknown(self, seen: Iterable[ReadObject]) -> dict[int, str]:
        """Returns the roles whose password is the claimed one but whose verifier is not known: oid to digest."""
        found: dict[int, str] = {}
        for one in seen:
            digest = one.claim.record.digest if one.claim else ""
            if not digest or one.named is None or one.named.role.password != Password(digest):
                continue
            known = self.get(one.role_name)
            if known is None or known.digest != digest:
                found[one.named.oid] = digest
        return found

    def learn(self, seen: Iterable[ReadObject], digests: Mapping[int, str], stored: Mapping[int, Verifier]) -> None:
        """Learns the verifiers read for `unknown`; ignores those that were replaced meanwhile."""
        for one in seen:
            verifier = stored.get(one.named.oid) if one.named else None
            if verifier is not None and one.named is not None and verifier.digest == digests.get(one.named.oid):
                self.note(one.role_name, verifier)
