"""commands/approve: which drift of an object can be approved, and how the controller answered. No I/O."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller.commands.approve import describe_drift, drift_of, progress_of
from pgrole_controller.core.errors import Refused

ROLE, ORDERS = "a" * 32, "b" * 32
VALUE = f"{ROLE}+{ORDERS}/nonce"


def make(approval: Any = None, **status: Any) -> dict[str, Any]:
    shown = {
        "digest": f"{ROLE}+{ORDERS}",
        "fields": [{"name": "comment", "declared": "", "observed": "theirs"}, {"name": "password"}],
        "databases": [
            {"name": "lake", "handled": "earlier"},
            {"name": "orders", "changes": ["DELETE on table app.orders was granted"]},
        ],
    }
    return {
        "metadata": {"namespace": "shop", "name": "app", "uid": "u", "resourceVersion": "5", "generation": 2},
        "spec": {"drift": {"policy": "Report"}},
        "status": {"observedGeneration": 2, "approval": shown if approval is None else approval, **status},
    }


def test_the_drift_of_fields_and_privileges_is_described_in_words() -> None:
    assert list(describe_drift(drift_of(make()))) == [
        "PgRole shop/app reports this drift:",
        "  comment: theirs -> (nothing)",
        "  password: back to what is declared",
        "  privileges in database orders:",
        "    DELETE on table app.orders was granted",
    ]


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        ({**make(), "spec": {}}, "policy is Correct"),
        (make(observedGeneration=1), "has not reconciled the present spec"),
        (make({}), "no drift is reported"),
        (
            make({}, conditions=[{"type": "DriftDetected"}, {"type": "Ready", "message": "said"}]),
            "cannot be approved: said",
        ),
    ],
)
def test_a_refusal_explains_why_nothing_can_be_approved(obj: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        drift_of(obj)


def test_the_command_waits_for_each_part() -> None:
    drift = drift_of(make())
    assert progress_of(drift, VALUE, make()).left == ("the role", "privileges in database orders")
    done = {"handled": VALUE, "databases": [{"name": "orders", "changes": ["x"]}], "digest": ORDERS}
    progress = progress_of(drift, VALUE, make(done))
    assert (progress.left, progress.offered) == (("privileges in database orders",), True)
    done["databases"] = [{"name": "orders", "handled": VALUE}]
    assert progress_of(drift, VALUE, make(done)).left == ()


def test_changed_drift_is_distinguished_from_drift_still_offered() -> None:
    drift = drift_of(make())
    progress = progress_of(drift, VALUE, make({"digest": "c" * 32}, conditions=[{"type": "Ready", "message": "said"}]))
    assert (len(progress.left), progress.offered, progress.message) == (2, False, "said")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(["name", "changes", "digest"]), some),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("digest", "fields", "databases", "handled"), JSON)))
def test_any_status_is_described_or_refused(approval: dict[str, Any]) -> None:
    try:
        drift = drift_of(make(approval))
    except Refused:
        return
    assert all(isinstance(line, str) for line in describe_drift(drift))
    assert progress_of(drift, VALUE, make(approval)).message == ""
