"""The claims of a server without schema pgrole, in memory: a cache of what the status of the objects says.

Nothing in the database says whose a role is. After a start this is empty, and each object proves by its status that a
role is its own (`core.ownership`); what is then written goes in here, and from there into status. It outlasts sessions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.password import PasswordRecord
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key


class StatusClaims:
    """Claims by the name of their role, as table pgrole.claim holds them. One for each server, in every session."""

    def __init__(self) -> None:
        self._server: int | None = None
        self._claims: dict[str, Claim] = {}
        self._names: dict[Key, set[str]] = {}  # of the claims of one object
        self._holders: dict[int, str] = {}  # oid of a role: the name in the claim that holds it
        self._attempts: dict[str, tuple[Plan, int]] = {}  # roles of which it is not known whether they were created

    def open(self, system_identifier: int | None) -> "StatusClaims":
        """For a session with this server; None: one whose claims are in the database.

        What is remembered of another server says nothing of this one's roles, and what is in the database is newer.
        """
        if system_identifier is None or system_identifier != self._server:
            self._server = system_identifier
            for memory in (self._claims, self._names, self._holders, self._attempts):
                memory.clear()
        return self

    def get(self, role_name: str) -> Claim | None:
        return self._claims.get(role_name)

    def holder(self, oid: int) -> Claim | None:
        """The claim, not released, that holds this role under whatever name."""
        claim = self._claims.get(self._holders.get(oid, ""))
        return None if claim is None or claim.released else claim

    def former(self, key: Key, role_name: str) -> tuple[tuple[str, str], ...]:
        """The claims of this object for other names, as (role name, uid of the object)."""
        claims = [self._claims[name] for name in sorted(self._names.get(key, ())) if name != role_name]
        return tuple((claim.role_name, claim.owner.object_uid) for claim in claims if not claim.released)

    def held(self) -> list[tuple[Key, str, str]]:
        """The claims that are not released: key of the object, name of the role, uid of the object."""
        return [
            (_key(claim.owner), claim.role_name, claim.owner.object_uid)
            for claim in self._claims.values()
            if not claim.released
        ]

    def relevant(self, role_names: Iterable[str]) -> tuple[list[str], list[int], list[bool]]:
        """What a read of these roles depends on: names, oids, and whether released."""
        claims = [self._claims[name] for name in dict.fromkeys(role_names) if name in self._claims]
        return (
            [claim.role_name for claim in claims],
            [claim.role_oid for claim in claims],
            [claim.released for claim in claims],
        )

    def check(self, plan: Plan) -> PgRoleError | None:
        """Why a plan is out of date: another plan has changed the claim since it was made."""
        held = self._claims.get(plan.role_name)
        if not (plan.changes or plan.owner or plan.record or plan.forget) or held is None:
            return None
        if plan.claim is not None and held.owner.object_uid == plan.claim.owner.object_uid:
            return None
        return Transient(
            Reason.PROGRESSING, f'the claim on role "{plan.role_name}" changed since the controller read it'
        )

    def attempted(self, plans: Sequence[Plan], system_identifier: int) -> None:
        """The connection ended before it was known whether these were committed."""
        for plan in plans:
            if plan.owner is not None and plan.oid is None:
                self._attempts[plan.role_name] = (plan, system_identifier)

    def seen(self, role_name: str, oid: int | None) -> None:
        """What was read: a role that was not there before and that we may have created was created by us."""
        if role_name not in self._attempts:
            return
        plan, system_identifier = self._attempts.pop(role_name)
        if oid is not None and role_name not in self._claims:
            self._note_claim(plan, oid, system_identifier)

    def note(self, plans: Sequence[Plan], made: Mapping[str, int], system_identifier: int) -> None:
        """These were committed; `made` are the oids of those roles that had none."""
        for plan in plans:
            for role_name, uid in plan.releases:
                self._release(role_name, uid)
            if plan.owner is not None and (oid := plan.oid or made.get(plan.role_name)) is not None:
                self._note_claim(plan, oid, system_identifier)
            if plan.record is not None and (claim := self._claims.get(plan.role_name)) is not None:
                self._put(replace(claim, record=plan.record))
            if plan.forget:
                self._remove(plan.role_name)

    def _note_claim(self, plan: Plan, oid: int, system_identifier: int) -> None:
        if plan.owner is None:
            raise AssertionError("a claim is somebody's")
        before = plan.claim
        ours = before is not None and _identity(before.owner) == _identity(plan.owner)
        record = before.record if before else PasswordRecord()
        claim = Claim(
            role_name=plan.role_name,
            role_oid=oid,
            system_identifier=system_identifier,
            owner=plan.owner,
            applied=plan.applied,
            drift_count=(before.drift_count if before and ours else 0) + bool(plan.drift),
            last_drift_at=before.last_drift_at if before and ours else None,
            last_drift_fields=before.last_drift_fields if before and ours else (),
            # what another object's password and Secret were made from is not this one's
            record=record if ours else replace(record, source="", connection=""),
        )
        if plan.drift:
            claim = replace(claim, last_drift_at=datetime.now(UTC), last_drift_fields=plan.drift)
        holder = self._holders.get(oid)
        if holder is not None and holder != plan.role_name:  # oids come round again
            self._put(replace(self._claims[holder], role_oid=0))
        self._put(claim)

    def _release(self, role_name: str, uid: str) -> None:
        claim = self._claims.get(role_name)
        if claim is not None and claim.owner.object_uid == uid:
            self._put(replace(claim, released=True))

    def _put(self, claim: Claim) -> None:
        self._remove(claim.role_name)
        self._claims[claim.role_name] = claim
        self._names.setdefault(_key(claim.owner), set()).add(claim.role_name)
        if claim.role_oid:
            self._holders[claim.role_oid] = claim.role_name

    def _remove(self, role_name: str) -> None:
        claim = self._claims.pop(role_name, None)
        if claim is None:
            return
        key = _key(claim.owner)
        self._names[key].discard(role_name)
        if not self._names[key]:
            del self._names[key]
        if self._holders.get(claim.role_oid) == role_name:
            del self._holders[claim.role_oid]


def _key(owner: Owner) -> Key:
    return Key(owner.namespace, owner.object)


def _identity(owner: Owner) -> tuple[str, str]:
    return owner.cluster, owner.object_uid
