"""What one database's worker remembers of one role between rounds."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

from pgrole_controller.core.approval import PrivilegeOffer
from pgrole_controller.core.contest import FieldContest, Moment, notice, repair
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId
from pgrole_controller.core.privileges.acl_comparison import DeniedPrivilege
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, PrivilegeDrift

#: Maximum number of denied privileges of a role that are remembered as held.
MOST_DENIED = 1000
#: Maximum number of differences of a role whose authors are noted.
MOST_NOTED_AUTHORS = 1000


@dataclass(frozen=True, slots=True)
class AppliedState:
    """What was last applied for one role. `declaration`: the text of an AppliedDeclaration, empty if nothing was.
    `stale`: the database stores other text for it: for the role's oid on another server, or with former declarations
    that the claim has forgotten since.
    """

    declaration: str = ""
    drift_count: int = 0
    approve_handled: str = ""
    stale: bool = False


class NewObjects:
    """Which objects are new to which role. `found`: objects, with the number of the read that found each as new to the
    database; None: not known. `read`: the number of the last read. `before`: those of them that had another name,
    schema or owner before, as they were; None: several.
    """

    def __init__(
        self,
        found: Mapping[ObjectId, int] | None,
        read: int,
        before: Mapping[ObjectId, DatabaseObject | None] | None = None,
    ) -> None:
        self.read = read
        self.is_known = found is not None
        self._found = dict(found or {})
        self._before = dict(before or {})
        self._later: dict[int, frozenset[ObjectId]] = {}

    def later_than(self, read: int) -> frozenset[ObjectId]:
        if read not in self._later:
            self._later[read] = frozenset(one for one, found in self._found.items() if found > read)
        return self._later[read]

    @property
    def renamed(self) -> Set[ObjectId]:
        """Those that had another name, schema or owner before."""
        return self._before.keys()

    def before(self, read: int, revoked: Mapping[ObjectId, int]) -> dict[ObjectId, DatabaseObject]:
        """Returns, as they were, those that were found later than this read. `revoked`: as in RoleMemory."""
        return {
            one: before
            for one, before in self._before.items()
            if before is not None and self._found[one] > max(read, revoked.get(one, 0))
        }


@dataclass(slots=True)
class RoleMemory:
    """What is known of one role. `generation`: of the spec. `contests`: by the role in whose name privileges are
    granted (`PrivilegeDifference.granted_by`), so that a role that keeps reverting repairs delays no other repair.
    `pending`, `reported`, `left_off` (objects on which a privilege was revoked, which is reported and left),
    `declarable` (some of `reported` is), `confirmed`: from the last complete read. `failure`: the last other error,
    until a complete read ends without one. `obstacle`: the last contest or failure, and the number of the read that met
    it. `announced`: drift that was, and is left as it is; None: not known, as before the first complete read.
    `last_drifts`: as in PrivilegeResult. `offer`: what can be approved.

    `missed`: objects that were new when the role was granted nothing on them: it rested (Grantee.rests), or the grant
    failed. None: not known, as before the role's first complete read. `granted_in_read`: number of the last complete
    read after which the role had what it needs. What this read found may be new to other roles, but not to this one.

    `left_over`: objects on which something that was granted before they were renamed is to be revoked, as they were.
    `revoked`: objects on which that was revoked, with the number of the read that found it, while new to any role.

    `denied`: as in RememberedObjects; None: not known, as before the first complete read, or too much.

    `applied_as`: the digest that is stored as applied in the database, and the Grantee.spec_of that it stands for.
    None: this process does not know what it stands for.

    `noted`: who caused drift that was held back, could not be corrected or is to be reported, and the number of the
    read that found it. A repair for another role overwrites the row that shows the author.
    """

    uid: str
    digest: str = ""
    generation: int = 0
    contests: dict[str, FieldContest] = field(default_factory=dict)
    pending: tuple[PgRoleError, ...] = ()
    reported: tuple[str, ...] = ()
    left_off: frozenset[ObjectId] = frozenset()
    declarable: bool = True
    confirmed: bool = False
    failure: PgRoleError | None = None
    obstacle: tuple[PgRoleError | None, int] = (None, 0)
    announced: frozenset[str] | None = None
    last_drifts: tuple[PrivilegeDrift, ...] = ()
    offer: PrivilegeOffer | None = None
    missed: frozenset[ObjectId] | None = None
    granted_in_read: int = 0
    left_over: Mapping[ObjectId, DatabaseObject] = field(default_factory=dict)
    revoked: Mapping[ObjectId, int] = field(default_factory=dict)
    denied: Set[DeniedPrivilege] | None = None
    applied_as: tuple[str, int, DatabasePrivileges | None] | None = None
    noted: Mapping[PrivilegeDifference, tuple[DriftAuthor, int]] = field(default_factory=dict)

    @property
    def authors(self) -> dict[PrivilegeDifference, DriftAuthor]:
        """Those that are noted."""
        return {one: by for one, (by, _) in self.noted.items()}

    def of_next_worker(self) -> "RoleMemory":
        """Returns what the database's next worker knows of the role: which objects are new to it."""
        return RoleMemory(self.uid, missed=self.missed, granted_in_read=self.granted_in_read, left_over=self.left_over)

    def note_authors(self, found: Mapping[PrivilegeDifference, DriftAuthor], read: int) -> None:
        """`read`: number of the read that found these differences."""
        noted = {**self.noted, **{one: (by, read) for one, by in found.items()}}
        self.noted = dict(islice(noted.items(), MOST_NOTED_AUTHORS))

    def keep_authors(self, drift: Iterable[PrivilegeDifference], last: int) -> None:
        """`drift`: all that the role had at a complete read. `last`: number of the last read before it; small rounds
        may have found more meanwhile.
        """
        if self.noted:
            left = set(drift)
            self.noted = {one: found for one, found in self.noted.items() if one in left or found[1] > last}

    def select_new(self, objects: NewObjects) -> frozenset[ObjectId] | None:
        """Returns those that are new to this role. None: not known. A reported revocation stays reported if its object
        is renamed, or gets another owner.
        """
        if self.missed is None or not objects.is_known:
            return None
        return (objects.later_than(self.granted_in_read) | self.missed) - self.left_off

    def select_before(self, objects: NewObjects) -> Mapping[ObjectId, DatabaseObject]:
        """Returns, as they were, objects with another name, schema or owner than when the role was last granted what it
        needs on them. While it may lack something there, it is not known what it held.
        """
        if self.missed is None or not objects.is_known:
            return {}
        if self.failure is not None or self.is_contested:
            return self.left_over
        found = objects.before(self.granted_in_read, self.revoked)
        self.revoked = {one: read for one, read in self.revoked.items() if one in objects.renamed}
        return {**{one: found[one] for one in found.keys() - self.missed - self.left_off}, **self.left_over}

    def select_changed(self, objects: NewObjects) -> Set[ObjectId]:
        """Returns those that may have been different when the role was last granted what it needs on them."""
        return objects.renamed | (self.missed or frozenset())

    def note_left_over(self, found: Mapping[ObjectId, DatabaseObject], read: Collection[ObjectId] | None) -> None:
        """`found`: all that is left over on the objects of a read; None: it was complete."""
        kept = {} if read is None else {one: obj for one, obj in self.left_over.items() if one not in read}
        self.left_over = {**kept, **found}

    def note_denied(self, found: Set[DeniedPrivilege], read: Collection[ObjectId] | None) -> None:
        """`found`: all that the role holds on the objects of a read although policy denies it. `read`: as above."""
        if read is None:
            self.denied = found if len(found) <= MOST_DENIED else None
        elif self.denied is not None and (found or self.denied):
            self.denied = {one for one in self.denied if one[0] not in read} | found

    def note_revoked(self, objects: Collection[ObjectId], read: int) -> None:
        """What was left over on these objects was revoked: whatever the role holds there from now on, others granted.
        `read`: the number of the read that found it.
        """
        self.left_over = {one: obj for one, obj in self.left_over.items() if one not in objects}
        self.revoked = {**self.revoked, **dict.fromkeys(objects, read)}

    def is_declared_by(self, grantee: Grantee, database: str) -> bool:
        """Whether it declares what is known already. The digest of an applied declaration also changes when the claim
        forgets former ones.
        """
        digest = grantee.digest_of(database)
        return self.digest == digest or self.applied_as == (self.digest, *grantee.spec_of(database))

    def note_spec(self, grantee: Grantee, database: str) -> None:
        """Any changed spec ends the role's contests, as it does for those of its fields."""
        same, digest = self.is_declared_by(grantee, database), grantee.digest_of(database)
        if self.generation != grantee.generation or not same:
            self.generation, self.contests = grantee.generation, {}
        if not same:
            self.pending, self.reported, self.offer, self.failure = (), (), None, None
            self.left_off, self.left_over, self.denied = frozenset(), {}, None
        if self.digest != digest:
            self.digest, self.confirmed = digest, False

    @property
    def is_contested(self) -> bool:
        return any(contest.contested for contest in self.contests.values())

    @property
    def next_checks(self) -> Iterator[float]:
        """When each contest is due, on the loop's clock."""
        return (contest.next_check.seconds for contest in self.contests.values() if contest.contested)

    def hold(self, now: Moment, drifting: Collection[str], *, complete: bool) -> frozenset[str]:
        """Returns the grantors whose changes are not repaired now, since they recur. `drifting`: the grantors with
        drift. `complete`: no other grantor has any. A thread may call it while others look at the contests.
        """
        contests = {
            name: notice(contest, now, drifts=name in drifting) if complete or name in drifting else contest
            for name, contest in self.contests.items()
        }
        self.contests = {name: contest for name, contest in contests.items() if contest is not None}
        return frozenset(name for name, contest in self.contests.items() if contest.holds(now))

    def note_repair(self, now: Moment, drifted: Iterable[str]) -> None:
        """`drifted`: the grantors whose drift was repaired."""
        for name in drifted:
            self.contests[name] = repair(self.contests.get(name), now)
