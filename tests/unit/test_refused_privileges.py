"""What PostgreSQL refuses waits, and keeps nothing else from counting as drift: decisions, what is stored. No I/O."""

from dataclasses import replace

import pytest

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress, note_failures, select_done
from pgrole_controller.controller.privileges.privilege_records import RoundRecords, UnrecordedDrifts
from pgrole_controller.controller.privileges.role_memory import AppliedState, RoleMemory
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges.acl import AclEntry, DatabaseObject, DefaultAcl, ObservedAcl
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.awaited_privileges import MOST_AWAITED, AppliedDeclaration
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, Refusal
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import phrases
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.postgres.privileges import failed_changes
from pgrole_controller.postgres.privileges.acl_repair import AclPart, AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AppliedAcls
from pgrole_controller.postgres.privileges.failed_changes import FailedChanges
from tests.unit.test_acl_decision import (
    DELEGATE,
    ME,
    NOTHING,
    OWNER,
    READ,
    TABLE,
    entry,
    grantee,
    make,
    observe,
    of_objects,
    table,
    texts,
)
from tests.unit.test_privilege_approval import StillSession, as_session

LASTING = Transient(Reason.DATABASE_ERROR, "must be owner of table other")
PASSING = Transient(Reason.PROGRESSING, "another transaction has locked table other")
OTHER = make("other", oid=20001)
RECORDS = RoundRecords(as_session(StillSession()), UnrecordedDrifts(), "c1", HistoryConfig())
KINDS = ["correct", "report", "ignored"]


def of_kind(kind: str, declared: DatabasePrivileges = READ, *former: DatabasePrivileges) -> Grantee:
    return replace(grantee(declared, *former), report_only=kind == "report", ignored=kind == "ignored")


def decide(one: Grantee, observed: ObservedDatabase, applied: str) -> PrivilegeDecision:
    return decide_privileges(one, observed, applied, new_objects=frozenset())


def attempt(
    one: Grantee,
    observed: ObservedDatabase,
    before: str = "",
    error: PgRoleError | None = None,
    *,
    failed: AppliedAcls | None = None,
) -> PrivilegeProgress:
    """After changes that failed on OTHER with this error, or as in `failed`."""
    progress = PrivilegeProgress(one, RoleMemory(one.uid), AppliedState(before), decide(one, observed, before))
    progress.hold_back(frozenset())
    note_failures(progress, failed or AppliedAcls({OTHER.id: error} if error else {}))
    return progress


def stored(progress: PrivilegeProgress) -> str:
    """The applied declaration, which RoundRecords stores if it differs."""
    assert (progress.declaration in RECORDS.build([progress])) is progress.needs_storing
    return progress.declaration if progress.needs_storing else progress.applied.declaration


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_grant_waits_and_other_differences_are_drift(kind: str) -> None:
    one = of_kind(kind)
    applied = stored(attempt(one, observe((TABLE, ()), (OTHER, ())), "", LASTING))
    assert AppliedDeclaration.parse(applied).digest == one.digest_of("orders")
    drifted = observe((TABLE, (entry("DELETE"),)), (OTHER, ()))
    then = decide(one, drifted, applied)
    corrected = [
        "REVOKE DELETE ON TABLE app.orders FROM reader",
        "GRANT SELECT ON TABLE app.orders, app.other TO reader",
    ]
    assert texts(then) == (corrected if kind == "correct" else ["GRANT SELECT ON TABLE app.other TO reader"])
    words = ("DELETE on table app.orders was granted", "SELECT on table app.orders was revoked")
    assert phrases(then.drift) == (() if kind == "ignored" else words)
    assert phrases(then.reported) == (words if kind == "report" else ())
    assert [difference.what for difference in then.extended] == ["SELECT on table app.other"]
    assert then.current
    assert then.awaited


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_refused_and_was_granted_since_is_drift_when_it_is_revoked(kind: str) -> None:
    one = of_kind(kind)
    applied = stored(attempt(one, observe((OTHER, ())), "", LASTING))
    applied = stored(attempt(one, observe((OTHER, (entry("SELECT"),))), applied))
    assert applied == one.digest_of("orders")
    assert len(decide(one, observe((OTHER, ())), applied).drift) == (kind != "ignored")


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_revoke_is_tried_again_and_is_no_drift_until_it_was_made(kind: str) -> None:
    """Of a privilege that the role had before its declaration, from someone other than the owner."""
    one, delegated = of_kind(kind), (entry("INSERT", grantor=DELEGATE), entry("INSERT", "id", grantor=DELEGATE))
    errors = AppliedAcls({OTHER.id: LASTING}, {OTHER.id: {AclPart(ME, True): LASTING}})
    applied = stored(attempt(one, observe((OTHER, delegated)), "", failed=errors))
    held = observe((OTHER, (entry("SELECT"), *delegated)))
    then = decide(one, held, applied)
    assert texts(then) == ["as x1: REVOKE INSERT ON TABLE app.other FROM reader"]
    assert (then.drift, then.reported, then.extended, then.awaited) == ((), (), (), True)
    owners = decide(one, observe((OTHER, (entry("SELECT"), *delegated, entry("INSERT")))), applied)
    assert phrases(owners.drift) == (() if kind == "ignored" else ("INSERT on table app.other was granted",))
    assert not attempt(one, held, applied, failed=errors).needs_storing
    applied = stored(attempt(one, observe((OTHER, (entry("SELECT"),))), applied))
    assert applied == one.digest_of("orders")
    assert len(decide(one, held, applied).drift) == (0 if kind == "ignored" else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_revoke_of_a_table_covers_the_grant_option_on_a_column_that_it_would_revoke(kind: str) -> None:
    one = of_kind(kind, of_objects(table("SELECT", "id", name="other")))
    entries = (entry("SELECT", grantor=DELEGATE), entry("SELECT", "id", grantor=DELEGATE, grantable=True))
    held = observe((OTHER, entries), columns=("id",))
    errors = AppliedAcls({OTHER.id: LASTING}, {OTHER.id: {AclPart(ME, True): LASTING}})
    first = attempt(one, held, "", failed=errors)
    then = decide(one, held, stored(first))
    assert texts(then) == texts(first.decision)
    assert (then.drift, then.reported) == ((), ())


@pytest.mark.parametrize("hindrance", ["a refused object", "a contest"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_of_what_is_as_declared_goes_whatever_keeps_other_changes_back(kind: str, hindrance: str) -> None:
    """What is granted again, or revoked, counted as what had waited: it was corrected under policy Report, too."""
    accepted, fresh = of_kind(kind), make("fresh", oid=20002)
    one = replace(accepted, refused=Refusal.KNOWN) if hindrance == "a refused object" else accepted
    foreign, held, drifting = entry("DELETE", grantor=DELEGATE), entry("SELECT"), (TABLE, (entry("INSERT"),))
    errors = AppliedAcls({OTHER.id: LASTING, fresh.id: LASTING}, {OTHER.id: {AclPart(ME, True): LASTING}})
    waiting = stored(attempt(accepted, observe((OTHER, (foreign,)), (fresh, ())), failed=errors))
    assert len(AppliedDeclaration.parse(waiting).awaited) == 2

    def store(before: str, *objects: tuple[DatabaseObject, tuple[AclEntry, ...]]) -> str:
        progress = PrivilegeProgress(one, RoleMemory(one.uid), AppliedState(before))
        progress.decision = decide(one, observe(*objects, drifting), before)
        progress.hold_back(frozenset() if one.refused else frozenset({drifting[0].owner_name}))
        return stored(progress)

    same = store(waiting, (OTHER, (foreign,)), (fresh, ()))
    assert AppliedDeclaration.parse(same).awaited >= AppliedDeclaration.parse(waiting).awaited
    after = store(same, (OTHER, (held,)), (fresh, ()))
    assert store(after, (OTHER, (held,)), (fresh, ())) == after
    then = decide(accepted, observe((OTHER, (held, foreign)), (fresh, ())), after)
    assert phrases(then.drift) == (() if kind == "ignored" else ("DELETE on table app.other was granted",))
    assert [difference.what for difference in then.extended] == ["SELECT on table app.fresh"]
    revoked = ["as x1: REVOKE DELETE ON TABLE app.other FROM reader"] if kind == "correct" else []
    assert texts(then) == [*revoked, "GRANT SELECT ON TABLE app.fresh TO reader"]


@pytest.mark.parametrize("kind", ["report", "ignored"])
def test_what_waits_for_something_else_while_the_object_is_refused_still_waits_afterwards(kind: str) -> None:
    accepted = of_kind(kind, of_objects(table("SELECT", name="orders")))
    applied = stored(attempt(accepted, replace(observe(), schemas=frozenset())))
    applied = stored(attempt(replace(accepted, refused=Refusal.KNOWN), observe(), applied))  # the schema exists
    then = decide(accepted, observe((TABLE, ())), applied)
    assert texts(then) == ["GRANT SELECT ON TABLE app.orders TO reader"]
    assert then.drift == ()


def test_of_many_refused_changes_those_that_were_not_tried_for_longest_come_first() -> None:
    failures = FailedChanges()
    refused = [AclRepair(ObservedAcl(make(f"t{number}", oid=20_000 + number), ()), ()) for number in range(6)]
    for one in refused:
        failures.note(one, LASTING)
    fresh = AclRepair(ObservedAcl(make("fresh", oid=20_009), ()), ())
    assert failures.separate([*refused, fresh], 2) == [[fresh], refused[:2], refused[2:4], refused[4:]]
    for one in refused[:3]:
        failures.note(one, LASTING)
    assert failures.separate([*refused, fresh], 2) == [[fresh], refused[3:5], [refused[0], refused[5]], refused[1:3]]


def test_many_failed_parts_of_one_object_leave_it_as_it_is_that_another_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(failed_changes, "_MOST_FAILED", 2)
    failures = FailedChanges()
    refused, divided = (AclRepair(ObservedAcl(make(f"t{at}", oid=20_000 + at), ()), ()) for at in range(2))
    failures.note(refused, LASTING)
    failures.note_parts(divided, dict.fromkeys([AclPart(at, False) for at in range(3)], PASSING), ())
    assert failures.postpone(refused).reason is Reason.DATABASE_ERROR
    assert failures.postpone_part(divided, AclPart(1, False)).reason is Reason.PROGRESSING


def test_a_former_privilege_whose_revoke_is_refused_is_still_revoked_under_report() -> None:
    one = of_kind("report", NOTHING, READ)
    held = observe((OTHER, (entry("SELECT"),)))
    then = decide(one, held, stored(attempt(one, held, "", LASTING)))
    assert texts(then) == ["REVOKE SELECT ON TABLE app.other FROM reader"]
    assert (then.reported, then.confirmed) == ((), False)


def test_refused_default_privileges_wait() -> None:
    one = of_kind("report", replace(READ, created_by=("own",)))
    acl = DefaultAcl(OWNER, "own", "app", "r", (replace(entry("INSERT"), grantor=OWNER),))
    first = attempt(one, observe(defaults=(acl,)))
    refused = AppliedAcls(default_errors=dict.fromkeys(first.default_changes, LASTING))
    then = decide(one, observe(defaults=(acl,)), stored(attempt(one, observe(defaults=(acl,)), failed=refused)))
    assert sorted(texts(then)) == sorted(texts(first.decision))
    assert (then.drift, then.reported, len(then.extended)) == ((), (), 2)


def test_default_privileges_that_fail_keep_no_others_of_their_creator_from_counting_as_corrected() -> None:
    one = replace(grantee(), declared={"orders": replace(READ, created_by=("own",))})
    tables, routines = (
        DefaultAcl(OWNER, "own", "app", kind, (replace(entry(privilege), grantor=OWNER),))
        for kind, privilege in (("r", "INSERT"), ("f", "EXECUTE"))
    )
    progress = attempt(one, observe(defaults=(tables, routines)), one.digest_of("orders"))
    revoked, missing = (
        next(each for each in progress.default_changes if each.object_type == "r" and each.revoke is revoke)
        for revoke in (True, False)
    )
    for failed, left in ((revoked, {"INSERT"}), (missing, {"SELECT"})):
        applied = AppliedAcls(default_errors={failed: LASTING})
        done = set(select_done(progress.decision.drift, ME, applied))
        undone = set(progress.decision.drift) - done
        assert {each.privilege for each in undone} == left
        assert {each.default_label for each in undone} == {"future tables in schema app created by own"}
        assert {each.privilege for each in done} >= {"EXECUTE"}


def test_after_a_failure_that_may_pass_by_itself_nothing_counts_as_applied() -> None:
    one, observed = grantee(), observe((TABLE, ()), (OTHER, ()))
    assert not attempt(one, observed, "", PASSING).needs_storing
    failed = AppliedAcls({TABLE.id: LASTING, OTHER.id: PASSING})
    assert not attempt(one, observed, failed=failed).needs_storing
    assert not attempt(one, replace(observed, complete=False), "", LASTING).needs_storing, "a partial read"


def test_drift_whose_correction_is_refused_stays_drift() -> None:
    one = grantee()
    applied = one.digest_of("orders")
    observed = observe((OTHER, (entry("DELETE"), entry("INSERT", grantor=DELEGATE))))
    progress = attempt(one, observed, applied, LASTING)
    assert progress.refused == frozenset()
    assert not progress.needs_storing
    assert len(decide(one, observed, stored(progress)).drift) == 3


def test_of_too_many_refused_differences_one_mark_stands_for_those_of_the_same_grantor() -> None:
    one = of_kind("report")
    many = [make(f"t{at}", oid=20001 + at) for at in range(MOST_AWAITED + 1)]
    observed = observe(*((each, ()) for each in many))
    applied = stored(attempt(one, observed, failed=AppliedAcls(dict.fromkeys([each.id for each in many], LASTING))))
    assert len(AppliedDeclaration.parse(applied).awaited) == 1
    then = decide(one, observed, applied)
    assert (len(then.extended), then.reported) == (len(many), ())
