"""Whose claims a server has: which cluster's, and which of its objects and namespaces have some.

Without a cluster, `plan` knows objects by namespace and name only: their uids are in their claims.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgrole_controller.commands.plan_conclusion import Subject
from pgrole_controller.core.claim import Owner
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.plan_reading import PlanSession, read_claiming_namespaces, read_owners


@dataclass(frozen=True, slots=True)
class ClaimOwners:
    """`cluster`: whose claims these are; empty if there are none. `objects`: those with claims. `namespaces`: uids of
    those that claim roles, by name. `note`: why the cluster is only assumed; else empty.
    """

    cluster: str
    objects: Mapping[Key, Owner]
    namespaces: Mapping[str, str]
    note: str

    def owner_of(self, subject: Subject) -> Owner:
        """Returns the object as claims name it. One that is new gets a uid that no claim has."""
        key, known = subject.key, self.objects.get(subject.key)
        if subject.uid:
            beside = self.namespaces.get(key.namespace, "")
            namespace_uid = subject.namespace_uid or (known.namespace_uid if known else beside)
            return Owner(self.cluster, key.namespace, namespace_uid, key.name, subject.uid)
        if known is not None and subject.namespace_uid in ("", known.namespace_uid):
            return known
        namespace_uid = subject.namespace_uid or self.namespaces.get(key.namespace, "")
        return Owner(self.cluster, key.namespace, namespace_uid, key.name, f"new/{key}")


async def find_claim_owners(view: PlanSession, subjects: Sequence[Subject]) -> ClaimOwners:
    """Finds out which cluster's claims these are, and whose. New objects have none: then the claims of the others in
    their namespaces tell. Raises PgRoleError.
    """
    owners = await read_owners(view, {one.key for one in subjects})
    uids = {one.uid for one in subjects} - {""}
    counts = Counter(owner.cluster for owner in owners if not uids or owner.object_uid in uids)
    known = {(one.key.namespace, one.namespace_uid) for one in subjects}
    claiming = [
        one
        for one in await read_claiming_namespaces(view, {name for name, _ in known})
        if (one.name, one.uid) in known or (one.name, "") in known
    ]
    if not counts:
        for one in claiming:
            counts[one.cluster] += one.claims
    cluster = max(sorted(counts), key=lambda name: counts[name], default="")
    note = ""
    if len(counts) > 1:
        others = ", ".join(sorted(set(counts) - {cluster}))
        note = f"several clusters have claims with these names: cluster {cluster} is assumed, not {others}"
    objects = {Key(owner.namespace, owner.object): owner for owner in owners if owner.cluster == cluster}
    namespaces: dict[str, str] = {}
    for one in claiming:  # those with most claims first
        if one.cluster == cluster:
            namespaces.setdefault(one.name, one.uid)
    for owner in objects.values():  # with released claims, too
        namespaces.setdefault(owner.namespace, owner.namespace_uid)
    return ClaimOwners(cluster, objects, namespaces, note)
