"""core/settlement: is the password what was asked for, and what has to be fetched first. No I/O."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.connection_secret import Address, Connection, inputs_digest
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.password import (
    Credential,
    Errand,
    Origin,
    PasswordAsk,
    Record,
    SecretsSeen,
    SecretVersion,
    next_rotation,
    request_of,
)
from pgrole_controller.core.password_rules import LEFT, NO_PASSWORD, Settlement, settle
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.role import UNSEEN, Found, Password, Role, digest
from pgrole_controller.core.scram import make_verifier
from pgrole_controller.core.state import Ask, Server, Sight

ME = Owner("cluster-a", "shop", "ns-uid", "app", "uid-1")
ROLE = Role("app", login=True)
ADDRESS = Address("db", 5432, "app", "require")
SERVER = Server(system_identifier=7, own_roles=frozenset({"keeper"}), cluster="cluster-a", address=ADDRESS)
POLICY = Policy()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIGHT = Sight(at=NOW)
VERIFIER = make_verifier("ours", b"0123456789abcdef", 4096)
OTHER = make_verifier("theirs", b"0123456789abcdef", 4096)

FROM_SECRET = PasswordAsk(Origin.SECRET, secret="source", key="password")
GENERATED = PasswordAsk(Origin.GENERATED)
DISABLED = PasswordAsk(Origin.NOWHERE)
ONE, TWO, THREE = (SecretVersion("s-uid", version) for version in ("1", "12", "123"))
CONNECTION = Connection("delivered")
INPUTS = inputs_digest(CONNECTION, "app", ADDRESS)
SETTLED = Record(source="s-uid/1/password", digest=VERIFIER.digest)
DELIVERED = Record(source="s-uid/1", digest=VERIFIER.digest, rotated_at=NOW, connection=f"s-uid/1 {INPUTS} ")


def ask(password: PasswordAsk = FROM_SECRET, **values: Any) -> Ask:
    plain = Ask(ME, ROLE, password=password, secrets=SecretsSeen(password=ONE))
    return replace(plain, **values)


def ask_generated(password: PasswordAsk = GENERATED, **values: Any) -> Ask:
    return ask(password, **({"connection": CONNECTION, "secrets": SecretsSeen(connection=ONE)} | values))


def there(password: Password | None = None) -> Found:
    return Found(20_000, replace(ROLE, password=password))


OURS = there(Password(VERIFIER.digest))
THEIRS = there(Password(OTHER.digest))


def run(asked: Ask, record: Record | None, found: Found | None, sight: Sight = SIGHT) -> Settlement:
    """`record` None: there is no claim."""
    claim = None if record is None else Claim("app", 20_000, 7, ME, digest(ROLE), record=record)
    return settle(asked, claim, found, sight, SERVER, POLICY)


def errand_of(asked: Ask, record: Record, found: Found | None) -> Errand:
    errand = run(asked, record, found).errand
    assert errand is not None
    return errand


def bring(asked: Ask, record: Record, found: Found | None, **values: Any) -> Credential:
    return Credential(errand=errand_of(asked, record, found), **values)


class TestWhatIsKnownIsNotFetched:
    def test_the_same_secret_and_the_same_verifier_need_nothing(self) -> None:
        assert run(ask(), SETTLED, OURS) == Settlement(SETTLED)

    def test_a_password_that_may_not_be_read_is_as_it_was_set(self) -> None:
        assert run(ask(), SETTLED, there(UNSEEN)).errand is None

    def test_a_delivered_secret_is_not_read_again(self) -> None:
        assert run(ask_generated(), DELIVERED, OURS).errand is None

    def test_what_is_not_managed_is_left(self) -> None:
        assert run(ask(PasswordAsk()), SETTLED, THEIRS) == Settlement(Record())

    @pytest.mark.parametrize(
        ("asked", "record", "found"),
        [
            (ask(), Record(), there()),
            (ask(secrets=SecretsSeen(password=TWO)), SETTLED, OURS),
            (ask(replace(FROM_SECRET, key="other")), SETTLED, OURS),
            (ask(), SETTLED, THEIRS),
            (ask(), SETTLED, there()),
            (ask_generated(secrets=SecretsSeen()), DELIVERED, OURS),
            (ask_generated(secrets=SecretsSeen(connection=TWO)), DELIVERED, OURS),
            (ask_generated(connection=replace(CONNECTION, labels=(("team", "shop"),))), DELIVERED, OURS),
            (ask_generated(secrets=SecretsSeen(connection=ONE, stale=("old",))), DELIVERED, OURS),
            (ask(PasswordAsk(), connection=CONNECTION, secrets=SecretsSeen()), Record(), OURS),
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
    def test_what_differs_is_fetched(self, asked: Ask, record: Record, found: Found) -> None:
        settled = run(asked, record, found)
        assert settled.errand is not None
        assert settled.left or settled.password is None

    def test_nothing_is_fetched_or_generated_for_a_role_that_is_not_there(self) -> None:
        assert run(ask_generated(secrets=SecretsSeen()), None, None).errand is None

    def test_what_was_set_went_with_the_role(self) -> None:
        settled = run(ask_generated(), DELIVERED, None)
        assert settled.record == replace(DELIVERED, source="", digest="")
        assert settled.errand is None


class TestTheErrand:
    def test_a_secret_that_was_not_written_before_is_not_restored(self) -> None:
        errand = errand_of(ask_generated(secrets=SecretsSeen()), Record(), there())
        assert (errand.rendered, errand.delivered, errand.restore) == (False, False, True)

    def test_a_copied_password_that_changed_makes_no_other_text(self) -> None:
        asked = ask(connection=CONNECTION, secrets=SecretsSeen(password=TWO, connection=ONE))
        record = replace(SETTLED, connection=f"s-uid/1 {INPUTS} s-uid/1/password")
        errand = errand_of(asked, record, OURS)
        assert (errand.rendered, errand.delivered) == (True, False)

    @pytest.mark.parametrize(
        ("connection", "restored"), [(CONNECTION, False), (replace(CONNECTION, data=(("a", "{password}"),)), True)]
    )
    def test_under_report_only_what_the_object_changed_is_written(self, connection: Connection, restored: bool) -> None:
        asked = ask_generated(connection=connection, report_only=True, secrets=SecretsSeen(connection=TWO))
        assert errand_of(asked, DELIVERED, OURS).restore is restored

    @pytest.mark.parametrize(("said", "taken"), [(1, 4096), (7000, 7000), (10_000_000, 100_000)])
    def test_iterations_are_the_servers_within_bounds(self, said: int, taken: int) -> None:
        errand = run(ask(), Record(), there(), Sight(at=NOW, iterations=said)).errand
        assert errand is not None
        assert errand.iterations == taken


class TestWhatWasBrought:
    def test_a_new_password_is_set_and_remembered_and_is_no_drift(self) -> None:
        brought = bring(ask(), Record(), there(), source="s-uid/1/password", verifier=VERIFIER)
        settled = run(ask(credential=brought), Record(), there())
        assert settled.password == Password(VERIFIER.digest)
        assert settled.record == SETTLED
        assert (settled.left, settled.known, settled.rotated, settled.errand) == (False, False, False, None)

    def test_another_verifier_is_drift_when_the_source_is_the_same(self) -> None:
        brought = bring(ask(), SETTLED, THEIRS, source="s-uid/1/password", verifier=VERIFIER)
        settled = run(ask(credential=brought), SETTLED, THEIRS)
        assert settled.known
        assert settled.password == Password(VERIFIER.digest)

    def test_the_same_password_under_another_salt_is_only_remembered(self) -> None:
        brought = bring(ask(), SETTLED, THEIRS, source="s-uid/1/password", fits=OTHER.digest)
        settled = run(ask(credential=brought), SETTLED, THEIRS)
        assert settled.left
        assert settled.record == replace(SETTLED, digest=OTHER.digest)

    def test_a_verifier_that_changed_meanwhile_is_looked_at_again(self) -> None:
        brought = bring(ask(), SETTLED, THEIRS, source="s-uid/1/password", fits=OTHER.digest)
        settled = run(ask(credential=brought), SETTLED, there())
        assert isinstance(settled.pending, Transient)
        assert settled.left
        assert settled.record == SETTLED

    def test_what_an_object_does_not_ask_for_any_more_is_not_used(self) -> None:
        brought = bring(ask(), Record(), there(), source="s-uid/1/password", verifier=VERIFIER)
        asked = ask(DISABLED, credential=brought)
        assert run(asked, Record(), OURS) == Settlement(Record(source=NO_PASSWORD), left=False)

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
        sent = bring(ask(secrets=SecretsSeen(password=before)), Record(), there())
        brought = replace(sent, source=f"{found}/password", verifier=VERIFIER)
        settled = run(ask(credential=brought, secrets=SecretsSeen(password=now)), Record(), there())
        assert settled.password == Password(VERIFIER.digest), "what was found is set meanwhile"
        assert (settled.errand is not None) is again

    def test_a_problem_is_said_and_nothing_set(self) -> None:
        problem = Refused(Reason.INVALID_SPEC, "wrong")
        settled = run(ask(credential=bring(ask(), SETTLED, THEIRS, problem=problem)), SETTLED, THEIRS)
        assert settled.pending is problem
        assert settled.left
        assert settled.record == SETTLED

    def test_a_password_is_set_although_its_secret_could_not_be_written(self) -> None:
        problem = Refused(Reason.CONFLICT, "theirs")
        asked = ask(connection=CONNECTION)
        brought = bring(asked, Record(), there(), source="s-uid/1/password", verifier=VERIFIER, problem=problem)
        settled = run(replace(asked, credential=brought), Record(), there())
        assert settled.pending is problem
        assert settled.password == Password(VERIFIER.digest)


class TestIgnored:
    IGNORED = frozenset({"password"})

    def test_it_is_set_at_creation(self) -> None:
        assert run(ask(ignore=self.IGNORED), Record(), there()).errand is not None

    def test_it_is_left_once_it_was_set(self) -> None:
        assert run(ask(ignore=self.IGNORED), SETTLED, THEIRS) == Settlement(SETTLED)

    def test_it_is_left_on_adoption(self) -> None:
        assert run(ask(ignore=self.IGNORED), None, THEIRS) == Settlement(Record(source=LEFT))

    def test_its_secret_may_go(self) -> None:
        settled = run(ask(ignore=self.IGNORED, secrets=SecretsSeen()), SETTLED, THEIRS)
        assert settled.pending is None

    def test_it_is_set_again_when_the_role_was_made_again_here(self) -> None:
        gone = run(ask(ignore=self.IGNORED), SETTLED, None)
        assert run(ask(ignore=self.IGNORED), gone.record, there()).errand is not None


class TestDisabled:
    def test_a_password_is_removed_and_is_drift_only_when_there_was_none(self) -> None:
        first = run(ask(DISABLED), Record(), THEIRS)
        assert (first.left, first.password, first.known) == (False, None, False)
        assert run(ask(DISABLED), first.record, THEIRS).known

    def test_what_may_not_be_read_is_removed_once(self) -> None:
        assert not run(ask(DISABLED), Record(), there(UNSEEN)).left
        assert run(ask(DISABLED), Record(source=NO_PASSWORD), there(UNSEEN)).left


class TestWhatStandsInTheWay:
    @pytest.mark.parametrize(
        ("asked", "reason", "words"),
        [
            (ask(secrets=SecretsSeen()), Reason.SECRET_MISSING, 'Secret "source" does not exist'),
            (ask(secrets=SecretsSeen(unknown="403 Forbidden")), Reason.SECRET_MISSING, "403 Forbidden"),
            (ask_generated(secrets=SecretsSeen(unknown="403")), Reason.SECRET_MISSING, "does not know the Secrets"),
            (ask(connection=Connection("source")), Reason.INVALID_SPEC, "both name"),
        ],
        ids=["no Secret", "not allowed", "connection not allowed", "one Secret for both"],
    )
    def test_it_is_said_and_the_password_left(self, asked: Ask, reason: Reason, words: str) -> None:
        settled = run(asked, SETTLED, OURS)
        assert isinstance(settled.pending, PgRoleError)
        assert settled.pending.reason is reason
        assert words in settled.pending.message
        assert settled.left
        assert settled.errand is None

    @pytest.mark.parametrize("password", [DISABLED, PasswordAsk()])
    def test_secrets_that_may_not_be_seen_do_not_concern_who_names_none(self, password: PasswordAsk) -> None:
        assert run(ask(password, secrets=SecretsSeen(unknown="403")), Record(), OURS).pending is None

    def test_a_missing_secret_is_waited_for(self) -> None:
        assert isinstance(run(ask(secrets=SecretsSeen()), SETTLED, OURS).pending, Waiting)


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
            (HOURLY, replace(DELIVERED, rotated_at=datetime.max.replace(tzinfo=UTC)), False),
        ],
        ids=["not yet", "in time", "on demand", "handled", "taken back", "a time that cannot be"],
    )
    def test_it_is_due_in_time_and_on_demand(self, password: PasswordAsk, record: Record, due: bool) -> None:
        assert (run(ask_generated(password), record, OURS).errand is not None) is due

    def test_another_time_says_that_it_was_rotated(self) -> None:
        asked, later = ask_generated(replace(GENERATED, rotate="1")), NOW + timedelta(hours=1)
        brought = bring(
            asked, DELIVERED, OURS, source="s-uid/12", verifier=OTHER, rotated_at=later, rotate="1", connection="c"
        )
        settled = run(replace(asked, credential=brought), DELIVERED, OURS)
        assert settled.rotated
        assert not settled.known
        assert settled.record == Record("s-uid/12", OTHER.digest, later, "1", "c")

    def test_a_time_from_which_none_can_be_counted_is_never_followed_by_another(self) -> None:
        assert next_rotation(self.HOURLY, datetime.max.replace(tzinfo=UTC)) is None

    @pytest.mark.parametrize("hostile", ["x" * 129, "a\nb", "ä", "\ud800"])
    def test_a_request_of_any_text_is_remembered_in_so_many_characters(self, hostile: str) -> None:
        assert len(request_of(hostile)) == 71
        assert request_of(hostile) == request_of(hostile)
        assert request_of(hostile) != request_of(hostile + "1")
