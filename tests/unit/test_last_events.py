"""core/privileges/attribution: the choice among the last commands, for thousands of rows."""

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.core.privileges.attribution import (
    STATEMENT_LENGTH,
    ChangedRow,
    DdlEvent,
    EventsByName,
    is_possible,
    keep_distinct,
)
from pgrole_controller.core.privileges.recorded_statement import ChangedPrivilege

NAMES = ("orders", "Orders", 'a "b"', "a b", "straße", "\x07bell", "reader", "writer")
QUOTED = tuple('"' + name.replace('"', '""') + '"' for name in NAMES)
FORMS = (
    "",
    "GRANT SELECT ON {0} TO {1}",
    "GRANT SELECT ON app.{0} TO {1}",
    "REVOKE SELECT ON {0} FROM {1}",
    "GRANT SELECT ON {0} TO current_user",
    "GRANT SELECT ON ALL TABLES IN SCHEMA {0} TO {1}",
    "GRANT SELECT ON {0} /* {1} */ TO writer",
    "GRANT SELECT ON {0} TO {1} -- a line ended here",
    'GRANT SELECT ON U&"ord\\0065rs" TO {1}',
    "ALTER DEFAULT PRIVILEGES FOR ROLE {0} GRANT SELECT ON TABLES TO {1}",
    "GRANT SELECT ON " + "x" * STATEMENT_LENGTH + ", {0} TO {1}",
    "GRANT",
)
a_name = st.sampled_from(NAMES)
statements = st.builds(
    str.format, st.sampled_from(FORMS), st.sampled_from(NAMES + QUOTED), st.sampled_from(NAMES + QUOTED)
)
rows = st.builds(
    ChangedRow,
    xmin=st.just(0),
    tags=st.sampled_from([(), ("GRANT",)]),
    names=st.one_of(st.just(()), st.tuples(a_name), st.tuples(a_name, a_name)),
    oid=st.just(1),
    schema=st.sampled_from(["", "app", "orders"]),
    change=st.sampled_from([None, ChangedPrivilege("SELECT", True), ChangedPrivilege("SELECT", False)]),
)


def event(number: int, statement: str) -> DdlEvent:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return DdlEvent(number, number, "bob", "bob", "psql", "", now, "GRANT", statement=statement[:STATEMENT_LENGTH])


@given(st.lists(statements, max_size=30), rows)
def test_only_events_that_do_not_fit_a_row_are_left_out(statements: list[str], changed: ChangedRow) -> None:
    events = [event(number, statement) for number, statement in enumerate(statements)]
    selected = EventsByName(events).select(changed)
    assert [one for one in selected if is_possible(changed, one)] == [
        one for one in events if is_possible(changed, one)
    ]


def test_statements_about_other_objects_are_not_compared() -> None:
    events = [event(number, f"GRANT SELECT ON app.t{number} TO reader") for number in range(100)]
    changed = ChangedRow(0, ("GRANT",), ("t7", "reader"), 1, "app", ChangedPrivilege("SELECT", True))
    assert EventsByName(events).select(changed) == [events[7]]


def test_events_of_one_command_are_compared_once() -> None:
    events = [event(number, "GRANT ALL ON ALL TABLES IN SCHEMA app TO reader") for number in range(20)]
    same = [replace(one, xid=7) for one in events]
    assert keep_distinct(events) == events
    assert keep_distinct(same) == [same[-1]]
