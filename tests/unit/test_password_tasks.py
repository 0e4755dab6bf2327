"""controller/passwords: whether a Secret still has the password that was set last. No I/O."""

from datetime import UTC, datetime

import pytest

from pgrole_controller.controller.passwords import _hash
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
    PasswordTask,
)
from pgrole_controller.core.scram import Verifier, make_verifier

OURS = make_verifier("ours", b"0123456789abcdef", 5000)
THEIRS = make_verifier("theirs", b"0123456789abcdef", 4096)
TASK = PasswordTask(
    "shop",
    "app",
    DesiredPassword(PasswordOrigin.SECRET, secret="source", key="password"),
    None,
    ObservedSecrets(),
    PasswordRecord(),
    Address("db", 5432, "app", "require"),
    datetime(2026, 1, 1, tzinfo=UTC),
    4096,
    stored=THEIRS,
    last=OURS,
)


@pytest.mark.parametrize(
    ("password", "same"), [("ours", True), ("another", False), (OURS, True), (THEIRS, False)], ids=str
)
def test_a_password_is_compared_with_the_one_that_was_set_last(password: str | Verifier, same: bool) -> None:
    assert _hash(PasswordResult(), TASK, password).same is same
