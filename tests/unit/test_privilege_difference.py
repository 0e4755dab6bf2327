"""core/privileges/privilege_difference: the texts about privilege drift that people read."""

from datetime import UTC, datetime

from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.default_acl_decision import label_place
from pgrole_controller.core.privileges.privilege_difference import (
    DifferenceClassifier,
    PrivilegeDifference,
    announce_drift,
    announce_extension,
    describe_drift,
)
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, News

NOW = datetime(2027, 1, 2, 16, 4, 9, 113000, tzinfo=UTC)
ALICE = DriftAuthor(Evidence.TRANSACTION, "alice", "alice", "psql", "10.2.3.4", NOW, "GRANT DELETE ON app.orders TO x")


def difference(name: str = "orders", *, held: bool = True) -> PrivilegeDifference:
    table = DatabaseObject(ObjectId("pg_class", 20000), ObjectKind.TABLE, "app", name, 10, "owner")
    return PrivilegeDifference("DELETE", table, held=held)


def note(
    *differences: PrivilegeDifference, by: DriftAuthor = ALICE, corrected: bool = True, exposed: bool = False
) -> str:
    drift = describe_drift(differences, by, NOW, corrected=corrected, exposed=exposed)
    news = announce_drift("orders", drift, differences)
    assert news.reason is (News.DRIFT_CORRECTED if corrected else News.DRIFT_REPORTED)
    return news.note


def test_a_note_about_one_privilege_says_who_changed_it_and_how_it_was_corrected() -> None:
    words = "DELETE on table app.orders (database orders) was granted by alice at 16:04:09.113 and revoked"
    assert note(difference()) == words
    assert note(difference(held=False), by=DriftAuthor()) == (
        "DELETE on table app.orders (database orders) was revoked and granted again"
    )


def test_address_and_application_are_shown_only_where_they_are_exposed() -> None:
    assert "alice (psql, 10.2.3.4) at" in note(difference(), exposed=True)
    drift = describe_drift([difference()], ALICE, NOW, corrected=True, exposed=False)
    assert (drift.by.login, drift.by.address, drift.by.statement) == ("alice", "", "")


def test_a_note_counts_several_privileges_and_says_why_drift_is_only_reported() -> None:
    text = note(*[difference(f"t{number}") for number in range(9)])
    assert text.startswith("9 privileges (database orders) were changed by alice at 16:04:09.113 and corrected: ")
    assert text.endswith("and 4 more")
    assert note(difference(), corrected=False).endswith("not corrected, since spec.drift.policy is Report")


def test_a_note_distinguishes_undeclarable_privileges_from_drift_that_the_policy_leaves() -> None:
    one = PrivilegeDifference("USAGE", DatabaseObject(ObjectId("pg_type", 20001), ObjectKind.TYPE, "app", "t", 10, "x"))
    two = PrivilegeDifference("USAGE", default_label="future types created by alice")
    classifier = DifferenceClassifier(current=True, report_only=False, new_objects=None)
    classifier.note_left(one)
    classifier.note_left(two)
    assert note(classifier.reported[0], by=DriftAuthor(), corrected=False) == (
        "USAGE on type app.t (database orders) was granted; "
        "not corrected, since no PgRole can declare it: revoke it if it is not wanted"
    )
    assert "not corrected, since no PgRole can declare them: USAGE" in note(*classifier.reported, corrected=False)
    both = note(difference(), *classifier.reported, corrected=False)
    assert "not corrected, since spec.drift.policy is Report, and no PgRole can declare some of them: DELETE" in both


def test_names_that_are_not_utf8_are_legible() -> None:
    odd = difference("caf\udce9")
    assert r'app."caf\xe9"' in note(odd)
    assert describe_drift([odd], ALICE, NOW, corrected=True, exposed=False).words == (
        r'DELETE on table app."caf\xe9" was granted',
    )


#: Anyone can choose the name of an own table, schema or database, and of an application.
FORGED = 'orders was granted by "bob" at 09:00:00.000 and revoked'


def test_a_name_cannot_pass_for_the_rest_of_the_sentence() -> None:
    quoted = '"orders was granted by ""bob"" at 09:00:00.000 and revoked"'
    table = DatabaseObject(ObjectId("pg_class", 20000), ObjectKind.TABLE, FORGED, FORGED, 10, "owner")
    by = DriftAuthor(Evidence.TRANSACTION, FORGED, "x y", FORGED, "10.2.3.4", NOW)
    for column, what in (("", f"table {quoted}.{quoted}"), (FORGED, f"column {quoted}.{quoted}.{quoted}")):
        one = PrivilegeDifference("DELETE", table, column)
        assert announce_drift(FORGED, describe_drift([one], by, NOW, corrected=True, exposed=True), [one]).note == (
            f"DELETE on {what} (database {quoted}) was granted by {quoted} as "
            f'"x y" ({quoted}, 10.2.3.4) at 16:04:09.113 and revoked'
        )
        assert announce_extension(FORGED, [one]).note.endswith(f"(database {quoted}): DELETE on {what}")
    assert label_place(("a b", FORGED, "r")) == f'future tables in schema {quoted} created by "a b"'
    assert by.describe() == f'{quoted} as "x y" ({quoted}, 10.2.3.4)'


def test_a_note_is_never_too_long() -> None:
    assert len(note(*[difference("x" * 63 + str(number)) for number in range(1000)])) <= 1024
    assert len(announce_extension("orders", [difference("x" * 3000)]).note) <= 1024
