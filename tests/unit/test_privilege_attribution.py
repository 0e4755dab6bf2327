"""controller/privileges/privilege_attribution: who is named for which drift of a round."""

from datetime import UTC, datetime, timedelta

from pgrole_controller.controller.privileges.privilege_attribution import group_by_author
from pgrole_controller.core.privileges.attribution import ChangedRow
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_no_author_is_named_for_the_drift_of_others_beyond_the_limit() -> None:
    drift = [PrivilegeDifference("SELECT", None, default_label=f"place {number}") for number in range(12)]
    rows = {one: ChangedRow(number) for number, one in enumerate(drift)}
    authors = {
        rows[one]: DriftAuthor(Evidence.TRANSACTION, f"login {number}", time=NOW + timedelta(seconds=number))
        for number, one in enumerate(drift)
    }
    unknown, *named = group_by_author(drift, rows, authors, {})
    assert unknown == (DriftAuthor(), tuple(drift[10:]))
    assert named == [(authors[rows[one]], (one,)) for one in drift[:10]]
