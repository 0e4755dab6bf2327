"""privilege_progress and core/names: how one error names everything that is pending in a database, and when a failure
or a contest is over. No I/O.
"""

from datetime import UTC, datetime

import pytest

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress, build_result
from pgrole_controller.controller.privileges.role_memory import RoleMemory
from pgrole_controller.core.contest import FieldContest, Moment
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, RefusedForNow, Transient, Waiting
from pgrole_controller.core.names import join_messages
from pgrole_controller.core.privileges.granted_privileges import LONGEST_OF_DATABASE
from tests.unit.test_acl_decision import grantee


def find(*pending: PgRoleError) -> PgRoleError | None:
    one = PrivilegeProgress(grantee(), RoleMemory("uid-1", pending=pending))
    return build_result(one, "orders", complete=False, last=0).error


def test_all_that_is_pending_is_one_error_and_a_refusal_gives_its_reason_and_kind() -> None:
    waiting = Waiting(Reason.PRIVILEGE_PENDING, "waiting for schema later")
    where = 'spec.privileges: database "orders": '
    denied = RefusedForNow(Reason.NOT_ALLOWED, f"{where}USAGE on schema bobs is not allowed")
    invalid = Refused(Reason.INVALID_SPEC, f"{where}table pg_catalog.x is not managed")
    error = find(waiting, denied, invalid, invalid)
    assert error is not None
    assert (type(error), error.reason) == (RefusedForNow, Reason.NOT_ALLOWED)
    assert error.message == f"{denied.message}; table pg_catalog.x is not managed; {waiting.message}"
    assert denied.message == f"{where}USAGE on schema bobs is not allowed", "the decision's own error stays as it is"
    assert find(waiting) is waiting
    assert find() is None


def test_what_is_pending_does_not_keep_former_declarations_but_a_failure_does() -> None:
    waiting = Waiting(Reason.PRIVILEGE_PENDING, "waiting for schema later")
    one = PrivilegeProgress(grantee(), RoleMemory("uid-1", pending=(waiting,), confirmed=True))
    result = build_result(one, "orders", complete=True, last=0)
    assert (result.error, result.confirmed) == (waiting, True)
    one.error = Transient(Reason.DATABASE_ERROR, "a lock")
    assert not build_result(one, "orders", complete=False, last=0).confirmed
    one.error = None
    assert not build_result(one, "orders", complete=False, last=0).confirmed, "no complete read has ended without it"
    assert build_result(one, "orders", complete=True, last=0).confirmed


@pytest.mark.parametrize("contested", [True, False])
def test_what_a_small_round_met_is_not_over_when_a_complete_read_that_began_before_ends(*, contested: bool) -> None:
    role, now = RoleMemory("uid-1", confirmed=True), Moment(1.0, datetime(2027, 1, 1, tzinfo=UTC))
    large, small, later = (PrivilegeProgress(grantee(), role, decided=number) for number in (1, 2, 3))
    if contested:
        role.contests["owner"] = FieldContest((now,), 5, now, now, drifts=True, delay=2.0, until=now.after(2.0))
        small.held = frozenset({"owner"})
    else:
        small.error = Transient(Reason.DATABASE_ERROR, "a lock")
    met = build_result(small, "orders", complete=False, last=0).error
    assert met is not None
    result = build_result(large, "orders", complete=True, last=0)
    assert (result.error, result.confirmed) == (met, False)
    result = build_result(later, "orders", complete=True, last=2)
    assert (result.error, result.confirmed) == (None, True)


@pytest.mark.parametrize("length", [80, 700, 5000])
def test_what_is_pending_is_bounded_and_what_does_not_fit_is_counted(length: int) -> None:
    refusals = [Refused(Reason.NOT_ALLOWED, f"{n} {'x' * length}: change it") for n in range(40)]
    error = find(*refusals)
    assert error is not None
    assert len(error.message) <= LONGEST_OF_DATABASE
    shown = error.message.split("; ")
    assert shown[-1] == f"and {40 - len(shown) + 1} more"
    assert len(shown) > 3, "one long message leaves room for others"
    assert all(one.startswith(f"{n} xxx") and one.endswith("xxx: change it") for n, one in enumerate(shown[:-1]))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("length", [10, 99, 100, 101, 1000])
def test_joined_messages_never_exceed_the_limit(count: int, length: int) -> None:
    messages = [f"{n}{'x' * (length - 1)}" for n in range(count)]
    joined = join_messages([*messages, messages[0]], 300)
    assert len(joined) <= 300
    assert joined.startswith("0xxx")
    if count * length + 2 * (count - 1) <= 300:
        assert joined == "; ".join(messages)
