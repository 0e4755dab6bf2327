"""Decides whether something else keeps reverting repairs of a role, and when the role is repaired again.

A field that was repaired `LIMIT` times within `WINDOW` and drifts once more is contested. Its next repair is held back,
at first for `FIRST_DELAY`, then twice as long each time that it drifts again. The contest ends when the field stays as
declared for `WINDOW`. Other fields of the same role are still repaired at once.

Guarantees: only repairs of drift are held back, never a changed spec or a deletion; a changed spec ends the contest;
only recently repaired or held-back fields use memory. After a restart, a contest costs `LIMIT` more repairs.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.diff import Change, Rename, field_names
from pgrole_controller.core.drift_record import rfc3339
from pgrole_controller.core.names import cut_end
from pgrole_controller.core.password import PasswordRecord, PasswordTask, is_due
from pgrole_controller.core.plan import Action, Plan

#: After this many repairs of one field within this many seconds, the next one is held back.
LIMIT = 5
WINDOW = 60.0

#: How long a repair is held back, in seconds: doubled from the first to the longest.
FIRST_DELAY = 2.0
LONGEST_DELAY = 300.0
_BACKOFF = Backoff(FIRST_DELAY, LONGEST_DELAY)

#: Objects that were not reconciled for this many seconds are forgotten; a contest causes a reconcile sooner.
KEPT = LONGEST_DELAY + 2 * WINDOW

#: Maximum number of suspects that a message names.
MOST_SUSPECTS = 3

_SEARCH_AGAIN = 1.0
_SHOWN = 48
_ANY_TIME = datetime.min.replace(tzinfo=UTC)


class Moment(NamedTuple):
    """One moment on two clocks: a monotonic one in seconds, and the one that people read."""

    seconds: float
    at: datetime

    def after(self, seconds: float) -> "Moment":
        return Moment(self.seconds + seconds, self.at + timedelta(seconds=seconds))


@dataclass(frozen=True, slots=True)
class Suspect:
    """A session whose last statement seems to concern the role. Clients choose these texts freely."""

    user: str
    application: str = ""
    address: str = ""  # empty: over a local socket

    def describe(self, *, exposes_all: bool) -> str:
        user = f"user {_quote(self.user)}"
        if not exposes_all:
            return user
        place = f"from {_quote(self.address)}" if self.address else "over a local socket"
        return f"{user}, application {_quote(self.application)}, {place}"


def _quote(text: str) -> str:
    plain = "".join(letter if letter.isprintable() and letter not in '"\\' else "?" for letter in text)
    return f'"{cut_end(plain, _SHOWN)}"'


@dataclass(frozen=True, slots=True)
class FieldContest:
    """What is known of one field.

    `repairs`: times of the last ones, at most `LIMIT`, oldest first. `count`: number of repairs since `began`. `seen`:
    when it last drifted. `delay`: how long a repair is held back, 0.0 while the field is not contested. `until`: when
    the next repair may happen, None once it has.
    """

    repairs: tuple[Moment, ...]
    count: int
    began: Moment
    seen: Moment
    drifts: bool = False
    delay: float = 0.0
    until: Moment | None = None

    @property
    def contested(self) -> bool:
        return self.delay > 0.0

    def holds(self, now: Moment) -> bool:
        """Whether a repair is held back."""
        return self.until is not None and now.seconds < self.until.seconds

    @property
    def next_check(self) -> Moment:
        """When something is due: the next repair, or the end of the contest."""
        return self.until if self.drifts and self.until else self.seen.after(WINDOW)


def repair(field_contest: FieldContest | None, now: Moment) -> FieldContest:
    """Returns the state after a repair."""
    repairs = (*(field_contest.repairs if field_contest else ()), now)[-LIMIT:]
    if field_contest and field_contest.contested:
        return replace(
            field_contest, repairs=repairs, count=field_contest.count + 1, seen=now, drifts=False, until=None
        )
    recent = tuple(moment for moment in repairs if now.seconds - moment.seconds < WINDOW)
    return FieldContest(recent, len(recent), recent[0], now)


def notice(field_contest: FieldContest, now: Moment, *, drifts: bool) -> FieldContest | None:
    """Returns the state after a read, before any repair; None when the contest is over."""
    if not field_contest.contested:
        recent = sum(now.seconds - moment.seconds < WINDOW for moment in field_contest.repairs)
        if drifts and recent >= LIMIT:
            return replace(field_contest, seen=now, drifts=True, delay=FIRST_DELAY, until=now.after(FIRST_DELAY))
        return field_contest if recent else None
    if not drifts:
        return replace(field_contest, drifts=False) if now.seconds - field_contest.seen.seconds < WINDOW else None
    if field_contest.until is not None:
        return replace(field_contest, seen=now, drifts=True)
    delay = _BACKOFF.longer(field_contest.delay)
    return replace(field_contest, seen=now, drifts=True, delay=delay, until=now.after(delay))


def postpone(field_contest: FieldContest, now: Moment) -> FieldContest:
    """Returns the state after an attempt: if a repair was due and is still due, it is held back again, for longer."""
    if field_contest.until is None or field_contest.holds(now):
        return field_contest
    delay = _BACKOFF.longer(field_contest.delay)
    return replace(field_contest, delay=delay, until=now.after(delay))


@dataclass(frozen=True, slots=True)
class Contest:
    """What is known of one object, by field.

    `generation`: of the spec. `password_task`: the task whose password was held back; running it again unchanged would
    have the same result, until a rotation is due.
    """

    generation: int
    touched: float
    field_contests: Mapping[str, FieldContest] = field(default_factory=dict)
    suspects: tuple[Suspect, ...] = ()
    searched_at: float | None = None  # when suspects were last read
    password_task: PasswordTask | None = None

    @property
    def contested(self) -> dict[str, FieldContest]:
        return {name: field_contest for name, field_contest in self.field_contests.items() if field_contest.contested}

    def next_check(self, now: float) -> float | None:
        """Seconds until a repair is due or the contest ends; None if no field is contested."""
        due = [field_contest.next_check.seconds for field_contest in self.contested.values()]
        return max(min(due) - now, 0.0) + 0.01 if due else None


class Contests:
    """Recent repairs, by uid of the object."""

    def __init__(self) -> None:
        self._contests: OrderedDict[str, Contest] = OrderedDict()  # least recently changed first

    def __len__(self) -> int:
        return len(self._contests)

    def knows(self, uid: str) -> bool:
        return uid in self._contests

    def get(self, uid: str) -> Contest | None:
        return self._contests.get(uid)

    def repaired(self, uid: str, generation: int, fields: Iterable[str], now: Moment) -> None:
        """Notes that drift of these fields was corrected."""
        self._forget_old(now)
        contest = self._find(uid, generation, now)
        field_contests = {
            **contest.field_contests,
            **{name: repair(contest.field_contests.get(name), now) for name in fields},
        }
        self._put(uid, replace(contest, field_contests=field_contests))

    def hold(
        self, uid: str, generation: int, plan: Plan, sent: PasswordTask | None, system_identifier: int, now: Moment
    ) -> Plan:
        """Returns the plan without the repairs that are held back. `sent`: the password task that was run for this
        plan.
        """
        if uid not in self._contests:
            return plan
        contest = self._find(uid, generation, now)
        password = contest.field_contests.get("password")
        if (
            plan.password_task
            and password
            and password.holds(now)
            and _without_time(plan.password_task) == contest.password_task
            and not _rotates(plan.password_task)
        ):
            plan = replace(plan, password_task=None)
            drift = {*plan.drift, "password"}
        else:
            drift = {*plan.drift}
        # While a password task is due it is not known whether the password is drift.
        unknown = {"password"} if plan.password_task else set()
        seen = {
            name: field_contest if name in unknown else notice(field_contest, now, drifts=name in drift)
            for name, field_contest in contest.field_contests.items()
        }
        field_contests = {name: field_contest for name, field_contest in seen.items() if field_contest}
        held = frozenset(
            name for name, field_contest in field_contests.items() if name in drift and field_contest.holds(now)
        )
        password_task = _without_time(sent) if sent and "password" in held else contest.password_task if held else None
        contest = replace(contest, field_contests=field_contests, password_task=password_task)
        if contest.contested:
            self._put(uid, contest)
        else:
            self._put(uid, replace(contest, suspects=(), searched_at=None))
        return without_held(plan, held, system_identifier) if held else plan

    def needs_suspects(self, uid: str, now: Moment) -> bool:
        """Whether to read who changes the role; the answer goes to `name_suspects`."""
        contest = self._contests.get(uid)
        if contest is None or len(contest.suspects) >= MOST_SUSPECTS:
            return False
        if not any(
            field_contest.holds(now) and field_contest.drifts for field_contest in contest.field_contests.values()
        ):
            return False
        return contest.searched_at is None or now.seconds - contest.searched_at >= _SEARCH_AGAIN

    def name_suspects(self, uid: str, suspects: Iterable[Suspect], now: Moment) -> None:
        """Adds suspects. Earlier ones stay, so that the message does not change with every reconcile."""
        contest = self._contests.get(uid)
        if contest is not None:
            named = tuple(dict.fromkeys((*contest.suspects, *suspects)))[:MOST_SUSPECTS]
            self._put(uid, replace(contest, suspects=named, searched_at=now.seconds))

    def describe(self, uid: str, *, exposes_all: bool) -> str | None:
        """The message for the object; None when no field is contested. It changes only when something happens.

        `exposes_all`: include the suspects' application and address.
        """
        contest = self._contests.get(uid)
        if contest is None or not contest.contested:
            return None
        told = "; ".join(describe_field(name, field_contest) for name, field_contest in contest.contested.items())
        if not contest.suspects:
            return told
        who = " and ".join(dict.fromkeys(one.describe(exposes_all=exposes_all) for one in contest.suspects))
        return f"{told}. Last seen running a statement about this role: {who}"

    def _find(self, uid: str, generation: int, now: Moment) -> Contest:
        contest = self._contests.get(uid)
        if contest is None or contest.generation != generation:
            return Contest(generation, now.seconds)
        return replace(contest, touched=now.seconds)

    def _put(self, uid: str, contest: Contest) -> None:
        if contest.field_contests:
            self._contests[uid] = contest
            self._contests.move_to_end(uid)
        else:
            self._contests.pop(uid, None)

    def _forget_old(self, now: Moment) -> None:
        while self._contests:
            uid, contest = next(iter(self._contests.items()))
            if now.seconds - contest.touched <= KEPT:
                return
            del self._contests[uid]


def without_held(plan: Plan, held: frozenset[str], system_identifier: int) -> Plan:
    """Returns the plan of a drift without the changes of these fields.

    Until a missing or renamed role is repaired, nothing else about it can be changed. So a held-back creation holds
    back everything, and a held-back rename is made together with any repair that is not held back.
    """
    changes = tuple(change for change in plan.changes if change.field not in held or isinstance(change, Rename))
    if ("role" in held and plan.oid is None) or all(isinstance(change, Rename) for change in changes):
        changes = () if {"role", "name"} & held else changes
    along = {"role", "name"} if changes else set()
    drift = tuple(name for name in plan.drift if name not in held or name in along) if changes else ()
    claim = plan.claim
    ours = claim is not None and claim.owner == plan.owner and claim.system_identifier == system_identifier
    record: PasswordRecord | None = plan.record
    if record and "password" in held:
        # The password record is true only once the password is set; the connection Secret, however, was written.
        kept = replace(claim.record, connection=record.connection) if claim else None
        record = None if claim is None or kept == claim.record else kept
    return replace(
        plan,
        changes=changes,
        drift=drift,
        owner=plan.owner if changes or not ours else None,
        record=record,
        action=_action(plan, changes, claimless=claim is None, drift=bool(drift)),
    )


def _action(plan: Plan, changes: tuple[Change, ...], *, claimless: bool, drift: bool) -> Action:
    if claimless or drift:
        return plan.action
    if plan.rotated and field_names(changes) == ("password",):
        return Action.ROTATED
    return Action.CHANGED if changes else Action.NOTHING


def _rotates(password_task: PasswordTask) -> bool:
    record = password_task.record
    return is_due(password_task.password, record.rotated_at, {record.rotate}, password_task.at)


def _without_time(password_task: PasswordTask) -> PasswordTask:
    return replace(password_task, at=_ANY_TIME, stored=None, last=None)


def describe_field(name: str, field_contest: FieldContest) -> str:
    """Describes for people how often a field was corrected, and when the next repair is due. While a repair is held
    back, the text stays the same, or whoever toggles the field would cause an Event each time.
    """
    within = max(round(field_contest.repairs[-1].seconds - field_contest.began.seconds), 1)
    told = f"{name}: corrected {field_contest.count} times within {within} s, but something else keeps changing it"
    if field_contest.until:
        due = rfc3339(field_contest.until.at)
        return f"{told}; from {due} on, the controller corrects it again if it differs"
    ends = rfc3339(field_contest.seen.after(WINDOW).at)
    return f"{told}; it now matches the spec, and the contest ends if it still does at {ends}"
