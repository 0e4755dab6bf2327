"""core/password_rules: whether the password is as declared, and what must be fetched to decide that. No I/O."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address, DesiredSecret, inputs_digest
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
    PasswordTask,
    SecretVersion,
    next_rotation,
    request_of,
)
from pgrole_controller.core.password_rules import (
    LEFT,
    NO_PASSWORD,
    PasswordDecision,
    decide_password,
    name_copied,
    name_delivery,
)
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.role import UNSEEN, ObservedRole, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Desired, Observed, Server

ME = Owner("cluster-a", "shop", "ns-uid", "app", "uid-1")
ROLE = Role("app", login=True)
ADDRESS = Address("db", 5432, "app", "require")
SERVER = Server(system_identifier=7, own_roles=frozenset({"keeper"}), address=ADDRESS)
POLICY = Policy()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
OBSERVED = Observed(at=NOW)
VERIFIER = make_verifier("ours", b"0123456789abcdef", 4096)
OTHER = make_verifier("theirs", b"0123456789abcdef", 4096)

FROM_SECRET = DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password")
GENERATED = DesiredPassword(PasswordOrigin.GENERATED)
DISABLED = DesiredPassword(PasswordOrigin.NOWHERE)
ONE, TWO, THREE = (SecretVersion("s-uid", version) for version in ("1", "12", "123"))
CONNECTION = DesiredSecret("delivered")
INPUTS = inputs_digest(CONNECTION, "app", ADDRESS)
DECIDED = PasswordRecord(source="s-uid/1/password", digest=VERIFIER.digest)
DELIVERED = PasswordRecord(source="s-uid/1", digest=VERIFIER.digest, rotated_at=NOW, connection=f"s-uid/1 {INPUTS} ")


def desired(password: DesiredPassword = FROM_SECRET, **values: Any) -> Desired:
    plain = Desired(ME, ROLE, password=password, secrets=ObservedSecrets(password=ONE))
    return replace(plain, **values)


def ask_generated(password: DesiredPassword = GENERATED, **values: Any) -> Desired:
    return desired(password, **({"connection": CONNECTION, "secrets": ObservedSecrets(connection=ONE)} | values))


def there(password: Password | None = None) -> ObservedRole:
    return ObservedRole(20_000, replace(ROLE, password=password))


OURS = there(Password(VERIFIER.digest))
THEIRS = there(Password(OTHER.digest))


def run(
    asked: Desired, record: PasswordRecord | None, found: ObservedRole | None, observed: Observed = OBSERVED
) -> PasswordDecision:
    """`record` is None if no claim exists."""
    claim = None if record is None else Claim("app", 20_000, 7, ME, digest(ROLE), record=record)
    return decide_password(asked, claim, found, replace(observed, claim=claim), SERVER, POLICY)


def password_task_of(asked: Desired, record: PasswordRecord, found: ObservedRole | None) -> PasswordTask:
    password_task = run(asked, record, found).password_task
    assert password_task is not None
    return password_task


def bring(asked: Desired, record: PasswordRecord, found: ObservedRole | None, **values: Any) -> PasswordResult:
    return PasswordResult(password_task=password_task_of(asked, record, found), **values)


class TestKnownPasswords:
    @pytest.mark.parametrize(
        ("asked", "record"), [(desired(), DECIDED), (ask_generated(), DELIVERED)], ids=["secret", "generated"]
    )
    def test_a_role_that_someone_created_again_gets_its_password_though_it_cannot_be_read(
        self, asked: Desired, record: PasswordRecord
    ) -> None:
        again = replace(there(UNSEEN), oid=30_001)
        assert run(asked, record, again).password_task is not None
        disabled = run(desired(DISABLED), PasswordRecord(source=NO_PASSWORD), again)
        assert (disabled.left, disabled.password) == (False, None)
        assert run(desired(ignore=frozenset({"password"})), DECIDED, again).password_task is None

    def test_the_same_secret_and_the_same_verifier_need_nothing(self) -> None:
        assert run(desired(), DECIDED, OURS) == PasswordDecision(DECIDED)

    def test_a_password_whose_verifier_cannot_be_read_counts_as_unchanged(self) -> None:
        assert run(desired(), DECIDED, there(UNSEEN)).password_task is None

    def test_a_delivered_secret_is_not_read_again(self) -> None:
        assert run(ask_generated(), DELIVERED, OURS).password_task is None

    def test_an_unmanaged_password_is_left_alone(self) -> None:
        assert run(desired(DesiredPassword()), DECIDED, THEIRS) == PasswordDecision(PasswordRecord())

    @pytest.mark.parametrize(
        ("asked", "record", "found"),
        [
            (desired(), PasswordRecord(), there()),
            (desired(secrets=ObservedSecrets(password=TWO)), DECIDED, OURS),
            (desired(replace(FROM_SECRET, key="other")), DECIDED, OURS),
            (desired(), DECIDED, THEIRS),
            (desired(), DECIDED, there()),
            (ask_generated(secrets=ObservedSecrets()), DELIVERED, OURS),
            (ask_generated(secrets=ObservedSecrets(connection=TWO)), DELIVERED, OURS),
            (ask_generated(connection=replace(CONNECTION, labels=(("team", "shop"),))), DELIVERED, OURS),
            (ask_generated(secrets=ObservedSecrets(connection=ONE, stale=("old",))), DELIVERED, OURS),
            (desired(DesiredPassword(), connection=CONNECTION, secrets=ObservedSecrets()), PasswordRecord(), OURS),
        ],
        ids=[
            "never set",
            "another version",
            "another key",
            "another verifier",
            "no verifier",
            "connection Secret gone",
            "connection Secret changed",
            "another template",
            "a stale Secret",
            "only a connection Secret",
        ],
    )
    def test_any_difference_requires_a_password_task(
        self, asked: Desired, record: PasswordRecord, found: ObservedRole
    ) -> None:
        decided = run(asked, record, found)
        assert decided.password_task is not None
        assert decided.left or decided.password is None

    def test_nothing_is_fetched_or_generated_for_a_role_that_does_not_exist(self) -> None:
        assert run(ask_generated(secrets=ObservedSecrets()), None, None).password_task is None

    def test_the_recorded_password_is_forgotten_when_the_role_is_dropped(self) -> None:
        decided = run(ask_generated(), DELIVERED, None)
        assert decided.record == replace(DELIVERED, source="", digest="")
        assert decided.password_task is None


class TestThePasswordTask:
    def test_a_secret_that_was_never_written_is_neither_rendered_nor_delivered(self) -> None:
        password_task = password_task_of(ask_generated(secrets=ObservedSecrets()), PasswordRecord(), there())
        assert (password_task.rendered, password_task.delivered, password_task.restore) == (False, False, True)

    def test_a_changed_copied_password_leaves_the_secret_rendered_but_not_delivered(self) -> None:
        asked = desired(connection=CONNECTION, secrets=ObservedSecrets(password=TWO, connection=ONE))
        record = replace(DECIDED, connection=f"s-uid/1 {INPUTS} s-uid/1/password")
        password_task = password_task_of(asked, record, OURS)
        assert (password_task.rendered, password_task.delivered) == (True, False)

    @pytest.mark.parametrize("password", [DISABLED, DesiredPassword()])
    def test_a_generated_password_that_is_no_longer_declared_is_removed_from_the_secret(
        self, password: DesiredPassword
    ) -> None:
        asked = ask_generated(password)
        password_task = password_task_of(asked, DELIVERED, OURS)
        assert (password_task.rendered, password_task.delivered) == (True, False)
        written = replace(PasswordRecord(), connection=name_delivery(ONE, INPUTS, name_copied(password.origin, "")))
        assert run(asked, written, OURS).password_task is None

    @pytest.mark.parametrize(
        ("connection", "restored"), [(CONNECTION, False), (replace(CONNECTION, data=(("a", "{password}"),)), True)]
    )
    def test_under_policy_report_a_changed_secret_is_restored_only_if_the_object_changed(
        self, connection: DesiredSecret, restored: bool
    ) -> None:
        asked = ask_generated(connection=connection, report_only=True, secrets=ObservedSecrets(connection=TWO))
        assert password_task_of(asked, DELIVERED, OURS).restore is restored

    @pytest.mark.parametrize(("said", "taken"), [(1, 4096), (7000, 7000), (10_000_000, 100_000)])
    def test_iterations_follow_the_server_within_bounds(self, said: int, taken: int) -> None:
        password_task = run(desired(), PasswordRecord(), there(), Observed(at=NOW, iterations=said)).password_task
        assert password_task is not None
        assert password_task.iterations == taken


class TestPasswordResults:
    def test_a_new_password_is_set_and_recorded_and_is_not_drift(self) -> None:
        brought = bring(desired(), PasswordRecord(), there(), source="s-uid/1/password", verifier=VERIFIER)
        decided = run(desired(password_result=brought), PasswordRecord(), there())
        assert decided.password == Password(VERIFIER.digest)
        assert decided.record == DECIDED
        assert (decided.left, decided.known, decided.rotated, decided.password_task) == (False, False, False, None)

    def test_another_verifier_is_drift_when_the_source_is_the_same(self) -> None:
        brought = bring(desired(), DECIDED, THEIRS, source="s-uid/1/password", verifier=VERIFIER)
        decided = run(desired(password_result=brought), DECIDED, THEIRS)
        assert decided.known
        assert decided.password == Password(VERIFIER.digest)

    def test_the_same_password_with_another_salt_is_only_recorded(self) -> None:
        brought = bring(desired(), DECIDED, THEIRS, source="s-uid/1/password", fits=OTHER.digest)
        decided = run(desired(password_result=brought), DECIDED, THEIRS)
        assert decided.left
        assert decided.record == replace(DECIDED, digest=OTHER.digest)

    def test_a_verifier_that_changed_meanwhile_is_read_again(self) -> None:
        brought = bring(desired(), DECIDED, THEIRS, source="s-uid/1/password", fits=OTHER.digest)
        decided = run(desired(password_result=brought), DECIDED, there())
        assert isinstance(decided.pending, Transient)
        assert decided.left
        assert decided.record == DECIDED

    def test_a_result_that_the_object_no_longer_needs_is_not_used(self) -> None:
        brought = bring(desired(), PasswordRecord(), there(), source="s-uid/1/password", verifier=VERIFIER)
        asked = desired(DISABLED, password_result=brought)
        assert run(asked, PasswordRecord(), OURS) == PasswordDecision(PasswordRecord(source=NO_PASSWORD), left=False)

    @pytest.mark.parametrize(
        ("before", "found", "now", "again"),
        [
            (ONE, ONE, ONE, False),
            (ONE, TWO, TWO, False),
            (ONE, TWO, ONE, False),
            (ONE, ONE, TWO, True),
            (ONE, THREE, TWO, True),
            (ONE, ONE, None, True),
        ],
        ids=["at rest", "read ahead", "the watch is behind", "changed since", "a version in between", "gone"],
    )
    def test_a_secret_that_changed_meanwhile_is_fetched_again(
        self, before: SecretVersion, found: SecretVersion, now: SecretVersion | None, again: bool
    ) -> None:
        sent = bring(desired(secrets=ObservedSecrets(password=before)), PasswordRecord(), there())
        brought = replace(sent, source=f"{found}/password", verifier=VERIFIER)
        decided = run(
            desired(password_result=brought, secrets=ObservedSecrets(password=now)), PasswordRecord(), there()
        )
        assert decided.password == Password(VERIFIER.digest), "the fetched password is set meanwhile"
        assert (decided.password_task is not None) is again

    def test_a_problem_is_reported_and_no_password_is_set(self) -> None:
        problem = Refused(Reason.INVALID_SPEC, "wrong")
        decided = run(desired(password_result=bring(desired(), DECIDED, THEIRS, problem=problem)), DECIDED, THEIRS)
        assert decided.pending is problem
        assert decided.left
        assert decided.record == DECIDED

    def test_a_password_is_set_although_its_secret_could_not_be_written(self) -> None:
        problem = Refused(Reason.CONFLICT, "theirs")
        asked = desired(connection=CONNECTION)
        brought = bring(asked, PasswordRecord(), there(), source="s-uid/1/password", verifier=VERIFIER, problem=problem)
        decided = run(replace(asked, password_result=brought), PasswordRecord(), there())
        assert decided.pending is problem
        assert decided.password == Password(VERIFIER.digest)


class TestRewrittenSecrets:
    """The Secret has another version. With the password that was set last, another one in the role is drift."""

    AGAIN = replace(PasswordResult(verifier=OTHER), source="s-uid/12/password", same=True)

    @pytest.mark.parametrize(
        ("found", "values", "known"),
        [
            (THEIRS, {}, True),
            (there(), {}, True),
            (there(UNSEEN), {}, False),
            (OURS, {}, False),
            (THEIRS, {"same": False}, False),
            (THEIRS, {"source": "s-uid/12/another"}, False),
            (THEIRS, {"source": "another/12/password"}, False),
        ],
        ids=["another", "none", "unseen", "ours", "a new password", "another key", "another Secret"],
    )
    def test_of_a_named_secret(self, found: ObservedRole, values: dict[str, Any], known: bool) -> None:
        brought = replace(self.AGAIN, password_task=password_task_of(desired(), DECIDED, THEIRS), **values)
        decided = run(desired(password_result=brought), DECIDED, found)
        assert decided.password == Password(OTHER.digest)
        assert decided.known is known

    @pytest.mark.parametrize(
        ("found", "rotated_at", "known"),
        [(THEIRS, NOW, True), (there(UNSEEN), NOW, False), (THEIRS, NOW + timedelta(seconds=1), False)],
        ids=["another", "unseen", "generated again"],
    )
    def test_of_a_generated_password(self, found: ObservedRole, rotated_at: datetime, known: bool) -> None:
        brought = bring(ask_generated(), DELIVERED, THEIRS, source="s-uid/12", verifier=OTHER, rotated_at=rotated_at)
        decided = run(ask_generated(password_result=brought), DELIVERED, found)
        assert decided.password == Password(OTHER.digest)
        assert decided.known is known

    @pytest.mark.parametrize("found", [there(), there(UNSEEN)])
    def test_a_new_role_has_no_drift(self, found: ObservedRole) -> None:
        """It gets its password even if that is the former one's."""
        for asked, record in ((desired(), DECIDED), (ask_generated(), DELIVERED)):
            cleared = run(asked, record, None).record
            brought = bring(asked, cleared, found, source=record.source, verifier=OTHER, rotated_at=record.rotated_at)
            decided = run(replace(asked, password_result=replace(brought, same=True)), cleared, found)
            assert (decided.password, decided.known) == (Password(OTHER.digest), False)

    def test_only_the_verifier_that_was_set_last_is_compared_with(self) -> None:
        for remembered, last in ((VERIFIER, VERIFIER), (OTHER, None), (None, None)):
            assert password_task_of(desired(remembered=remembered), DECIDED, THEIRS).last == last

    def test_also_if_the_secret_is_written_again_while_it_is_read(self) -> None:
        asked = desired(remembered=VERIFIER)
        brought = bring(asked, DECIDED, THEIRS, source="s-uid/1/password", verifier=make_verifier("ours", bytes(16), 1))
        again = replace(asked, password_result=brought, secrets=ObservedSecrets(password=TWO))
        assert password_task_of(again, DECIDED, THEIRS).last == VERIFIER


class TestIgnored:
    IGNORED = frozenset({"password"})

    def test_an_ignored_password_is_set_at_creation(self) -> None:
        assert run(desired(ignore=self.IGNORED), PasswordRecord(), there()).password_task is not None

    def test_an_ignored_password_is_left_alone_if_others_set_it_first(self) -> None:
        for password in (FROM_SECRET, DISABLED):
            decided = run(desired(password, ignore=self.IGNORED), PasswordRecord(), THEIRS)
            assert decided == PasswordDecision(PasswordRecord(source=LEFT))

    def test_an_ignored_password_that_cannot_be_read_is_set_at_creation_only(self) -> None:
        asked = desired(ignore=self.IGNORED)
        created = run(asked, None, None).record
        assert run(asked, created, there(UNSEEN)).password_task is not None
        assert run(asked, created, THEIRS) == PasswordDecision(PasswordRecord(source=LEFT))
        for password in (FROM_SECRET, DISABLED):
            later = run(desired(password, ignore=self.IGNORED), PasswordRecord(), there(UNSEEN))
            assert later == PasswordDecision(PasswordRecord(source=LEFT))

    def test_a_password_that_is_no_longer_ignored_is_set(self) -> None:
        created = run(desired(ignore=self.IGNORED), None, None).record
        assert run(desired(), created, there(UNSEEN)).password_task is not None
        assert run(desired(DesiredPassword()), created, there(UNSEEN)) == PasswordDecision(PasswordRecord())

    def test_an_ignored_password_is_left_alone_once_it_was_set(self) -> None:
        assert run(desired(ignore=self.IGNORED), DECIDED, THEIRS) == PasswordDecision(DECIDED)

    def test_an_ignored_password_is_left_alone_on_adoption(self) -> None:
        assert run(desired(ignore=self.IGNORED), None, THEIRS) == PasswordDecision(PasswordRecord(source=LEFT))

    def test_an_ignored_password_is_left_alone_when_another_object_takes_the_role_over(self) -> None:
        former = Claim("app", 20_000, 7, replace(ME, object_uid="former"), digest(ROLE), released=True, record=DECIDED)
        observed = replace(OBSERVED, claim=former)
        decided = decide_password(desired(ignore=self.IGNORED), former, THEIRS, observed, SERVER, POLICY)
        assert decided == PasswordDecision(PasswordRecord(source=LEFT))
        dropped = decide_password(desired(ignore=self.IGNORED), former, None, observed, SERVER, POLICY)
        assert run(desired(ignore=self.IGNORED), dropped.record, there()).password_task is not None

    def test_an_ignored_password_is_left_alone_where_only_status_proves_the_claim(self) -> None:
        proven = Claim("app", 20_000, 7, ME, digest(ROLE))
        decided = decide_password(desired(ignore=self.IGNORED), proven, THEIRS, OBSERVED, SERVER, POLICY)
        assert decided == PasswordDecision(PasswordRecord(source=LEFT))

    def test_the_secret_of_an_ignored_password_may_be_missing(self) -> None:
        decided = run(desired(ignore=self.IGNORED, secrets=ObservedSecrets()), DECIDED, THEIRS)
        assert decided.pending is None

    def test_an_ignored_password_is_set_again_when_the_controller_recreates_the_role(self) -> None:
        gone = run(desired(ignore=self.IGNORED), DECIDED, None)
        assert run(desired(ignore=self.IGNORED), gone.record, there()).password_task is not None


class TestDisabled:
    def test_a_password_is_removed_and_is_drift_only_if_it_was_removed_before(self) -> None:
        first = run(desired(DISABLED), PasswordRecord(), THEIRS)
        assert (first.left, first.password, first.known) == (False, None, False)
        assert run(desired(DISABLED), first.record, THEIRS).known

    def test_a_password_that_cannot_be_read_is_removed_once(self) -> None:
        assert not run(desired(DISABLED), PasswordRecord(), there(UNSEEN)).left
        assert run(desired(DISABLED), PasswordRecord(source=NO_PASSWORD), there(UNSEEN)).left


class TestPasswordErrors:
    @pytest.mark.parametrize(
        ("asked", "reason", "words"),
        [
            (desired(secrets=ObservedSecrets()), Reason.SECRET_MISSING, 'Secret "source" does not exist'),
            (desired(secrets=ObservedSecrets(unknown="403 Forbidden")), Reason.SECRET_MISSING, "403 Forbidden"),
            (ask_generated(secrets=ObservedSecrets(unknown="403")), Reason.SECRET_MISSING, "cannot list Secrets"),
            (desired(connection=DesiredSecret("source")), Reason.INVALID_SPEC, "both name"),
        ],
        ids=["no Secret", "not allowed", "connection not allowed", "one Secret for both"],
    )
    def test_a_problem_with_a_secret_is_reported_and_the_password_left_alone(
        self, asked: Desired, reason: Reason, words: str
    ) -> None:
        decided = run(asked, DECIDED, OURS)
        assert isinstance(decided.pending, PgRoleError)
        assert decided.pending.reason is reason
        assert words in decided.pending.message
        assert decided.left
        assert decided.password_task is None

    @pytest.mark.parametrize("password", [DISABLED, DesiredPassword()])
    def test_unreadable_secrets_do_not_affect_an_object_that_names_none(self, password: DesiredPassword) -> None:
        assert run(desired(password, secrets=ObservedSecrets(unknown="403")), PasswordRecord(), OURS).pending is None

    def test_a_missing_secret_is_waited_for(self) -> None:
        assert isinstance(run(desired(secrets=ObservedSecrets()), DECIDED, OURS).pending, Waiting)


class TestRotation:
    HOURLY = replace(GENERATED, rotate_every=timedelta(hours=1))

    @pytest.mark.parametrize(
        ("password", "record", "due"),
        [
            (HOURLY, DELIVERED, False),
            (HOURLY, replace(DELIVERED, rotated_at=NOW - timedelta(hours=1)), True),
            (replace(GENERATED, rotate="1"), DELIVERED, True),
            (replace(GENERATED, rotate="1"), replace(DELIVERED, rotate="1"), False),
            (GENERATED, replace(DELIVERED, rotate="1"), False),
            (HOURLY, replace(DELIVERED, rotated_at=NOW + timedelta(hours=1)), False),
            (HOURLY, replace(DELIVERED, rotated_at=NOW + timedelta(hours=1, seconds=1)), True),
            (HOURLY, replace(DELIVERED, rotated_at=datetime.max.replace(tzinfo=UTC)), True),
            (GENERATED, replace(DELIVERED, rotated_at=datetime.max.replace(tzinfo=UTC)), False),
        ],
        ids=[
            "not yet",
            "in time",
            "on demand",
            "handled",
            "taken back",
            "the clock was set back",
            "the clock was set back by more than a period",
            "a time that cannot be",
            "never",
        ],
    )
    def test_a_rotation_is_due_at_its_time_and_on_request(
        self, password: DesiredPassword, record: PasswordRecord, due: bool
    ) -> None:
        assert (run(ask_generated(password), record, OURS).password_task is not None) is due

    def test_a_new_rotation_time_marks_the_password_as_rotated(self) -> None:
        asked, later = ask_generated(replace(GENERATED, rotate="1")), NOW + timedelta(hours=1)
        brought = bring(
            asked, DELIVERED, OURS, source="s-uid/12", verifier=OTHER, rotated_at=later, rotate="1", connection="c"
        )
        decided = run(replace(asked, password_result=brought), DELIVERED, OURS)
        assert decided.rotated
        assert not decided.known
        assert decided.record == PasswordRecord("s-uid/12", OTHER.digest, later, "1", "c")

    @pytest.mark.parametrize(
        ("found", "digest", "altered"),
        [
            (THEIRS, VERIFIER.digest, True),
            (there(), VERIFIER.digest, True),
            (OURS, VERIFIER.digest, False),
            (there(UNSEEN), VERIFIER.digest, False),
            (THEIRS, "", False),
            (None, VERIFIER.digest, False),
        ],
        ids=["another", "none", "ours", "unseen", "never set", "no role"],
    )
    def test_beside_a_spoiled_secret_another_password_shows_by_the_recorded_digest(
        self, found: ObservedRole | None, digest: str, altered: bool
    ) -> None:
        asked = ask_generated(secrets=ObservedSecrets(connection=TWO), report_only=True)
        brought = bring(asked, DELIVERED, OURS, spoiled=True)
        decided = run(replace(asked, password_result=brought), replace(DELIVERED, digest=digest), found)
        assert (decided.left, decided.spoiled, decided.altered) == (True, True, altered)
        refused = replace(asked, password_result=replace(brought, spoiled=False))
        assert not run(refused, replace(DELIVERED, digest=digest), found).altered

    def test_a_password_from_a_secret_is_no_rotation_of_a_generated_one(self) -> None:
        asked = desired()
        brought = bring(asked, DELIVERED, OURS, source="s-uid/12/password", verifier=OTHER, connection="c")
        decided = run(replace(asked, password_result=brought), DELIVERED, OURS)
        assert decided.password == Password(OTHER.digest)
        assert decided.record.rotated_at is None
        assert not decided.rotated

    def test_a_rotation_at_the_end_of_time_has_no_next_rotation(self) -> None:
        assert next_rotation(self.HOURLY, datetime.max.replace(tzinfo=UTC)) is None

    @pytest.mark.parametrize("hostile", ["x" * 129, "a\nb", "ä", "\ud800"])
    def test_a_request_with_an_unusual_text_is_recorded_with_a_fixed_length(self, hostile: str) -> None:
        assert len(request_of(hostile)) == 71
        assert request_of(hostile) == request_of(hostile)
        assert request_of(hostile) != request_of(hostile + "1")
