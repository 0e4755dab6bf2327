"""PgRole as a Python program builds and reads it."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pgrole_controller.api.meta import ObjectMeta
from pgrole_controller.api.pgrole import DriftSpec, PgRole, PgRoleSpec, ServerRef
from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.api.validation import read_duration
from tests.roles import names

_DEFAULTS = {
    "serverRef": {"name": "default"},
    "login": False,
    "superuser": False,
    "createdb": False,
    "createrole": False,
    "inherit": True,
    "replication": False,
    "bypassrls": False,
    "connectionLimit": -1,
    "memberOf": [],
    "parameters": {},
    "databaseParameters": [],
    "drift": {"policy": "Correct", "ignore": []},
    "adopt": False,
    "deletionPolicy": "Retain",
    "reassignOwnedTo": "",
    "terminateSessions": False,
    "suspend": False,
}

_STATUS = {
    "observedGeneration": 3,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Reconciled",
            "message": "the role matches the spec",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 3,
        }
    ],
    "role": {"name": "orders_app", "oid": 16412, "applied": "sha256:00"},
    "server": {"name": "default", "systemIdentifier": "7421"},
    "lastDrift": {"time": "2026-01-01T00:00:00Z", "fields": ["superuser"], "corrected": True},
    "driftCount": 4,
    "passwordSecretVersion": "816",
    "nextRotation": "2026-02-01T00:00:00Z",
}


def build(**spec: Any) -> PgRole:
    return PgRole(metadata=ObjectMeta(name="orders-app", namespace="shop"), spec=PgRoleSpec(**spec))


def dump(pgrole: PgRole) -> dict[str, Any]:
    return pgrole.model_dump(by_alias=True, exclude_none=True, mode="json")


def message_of(**spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        build(**spec)
    [error] = caught.value.errors()
    return str(error["msg"])


def test_an_empty_spec_has_the_defaults_of_create_role() -> None:
    assert dump(build()) == {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {"name": "orders-app", "namespace": "shop"},
        "spec": _DEFAULTS,
    }


def test_python_uses_snake_case_and_yaml_camel_case() -> None:
    pgrole = build(
        server_ref=ServerRef(name="main"),
        connection_limit=20,
        valid_until=datetime(2027, 1, 1, tzinfo=UTC),
        drift=DriftSpec(policy="Report"),
        deletion_policy="Drop",
    )
    spec = dump(pgrole)["spec"]
    assert (spec["serverRef"], spec["connectionLimit"], spec["validUntil"]) == (
        {"name": "main"},
        20,
        "2027-01-01T00:00:00Z",
    )
    assert (spec["drift"], spec["deletionPolicy"]) == ({"policy": "Report", "ignore": []}, "Drop")
    assert PgRole.model_validate(dump(pgrole)) == pgrole


def test_the_role_name_defaults_to_the_objects_name() -> None:
    assert build().role_name == "orders-app"
    assert build(name="orders_app").role_name == "orders_app"


def test_unknown_fields_are_ignored_when_an_object_is_read() -> None:
    body = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {"name": "a", "namespace": "b", "uid": "u", "managedFields": [{}], "generation": 2},
        "spec": {"login": True, "later": {"x": 1}},
        "status": {**_STATUS, "later": 1},
    }
    pgrole = PgRole.model_validate_json(json.dumps(body))
    assert pgrole.spec.login
    assert pgrole.metadata.uid == "u"
    assert pgrole.status is not None
    assert dump(pgrole)["status"] == _STATUS


@given(names())
def test_every_name_that_postgresql_can_hold_is_accepted_unchanged(name: str) -> None:
    assert PgRole.model_validate_json(build(name=name).model_dump_json(by_alias=True)).role_name == name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "1 to 63 bytes"),
        ("x" * 64, "1 to 63 bytes"),
        ("é" * 32, "1 to 63 bytes"),
        ("a\x00b", "must not contain NUL"),
        ("pg_monitor", 'must not begin with "pg_"'),
        ("public", '"public" or "none"'),
        ("none", '"public" or "none"'),
    ],
)
def test_an_invalid_role_name_is_rejected_with_the_rule_it_breaks(name: str, says: str) -> None:
    message = message_of(name=name)
    assert message.startswith("spec.name must")
    assert says in message


@pytest.mark.parametrize("name", ["é" * 31 + "x", "x" * 63, "Public", "pgx", 'a"b', "a\nb", " ", "日本"])
def test_a_name_at_the_limit_of_the_rules_is_accepted(name: str) -> None:
    assert build(name=name).role_name == name


@pytest.mark.parametrize("name", ["public", "none", "x" * 64])
def test_an_object_whose_own_name_cannot_be_a_role_needs_spec_name(name: str) -> None:
    metadata = ObjectMeta(name=name)
    with pytest.raises(ValidationError, match=r"metadata\.name cannot be .* set spec\.name"):
        PgRole(metadata=metadata, spec=PgRoleSpec())
    assert PgRole(metadata=metadata, spec=PgRoleSpec(name="fine")).role_name == "fine"


@pytest.mark.parametrize(("name", "says"), [("", "1 to 63 bytes"), ("é" * 32, "1 to 63 bytes"), ("a\x00", "NUL")])
def test_a_database_name_that_postgresql_cannot_hold_is_rejected(name: str, says: str) -> None:
    assert says in message_of(database_parameters=[{"database": name, "parameters": {}}])


@pytest.mark.parametrize("limit", [-2, 2**31])
def test_a_connection_limit_that_postgresql_cannot_hold_is_refused(limit: int) -> None:
    with pytest.raises(ValidationError, match="connection_limit"):
        build(connection_limit=limit)


@pytest.mark.parametrize(
    "moment",
    [
        "2027-01-01T00:00:00",
        "infinity",
        "0001-01-01T00:00:00+14:00",
        "0000-01-01T00:00:00Z",
        "2027-01-01T00:00Z",
        "2027-01-01 00:00:00Z",
        "2027-01-01t00:00:00z",
        "2027-01-01T00:00:00+0100",
        "1700000000",
    ],
)
def test_valid_until_that_the_api_server_rejects_is_rejected(moment: str) -> None:
    with pytest.raises(ValidationError, match=r"spec\.validUntil must be an RFC 3339 date-time with a time zone"):
        build(valid_until=moment)


def test_valid_until_of_more_than_64_characters_is_rejected() -> None:
    moment = f"2027-01-01T00:00:00.{'0' * 43}Z"
    assert build(valid_until=moment).spec.valid_until == datetime(2027, 1, 1, tzinfo=UTC)
    with pytest.raises(ValidationError, match=r"spec\.validUntil must have at most 64 characters"):
        build(valid_until=moment.replace("Z", "0Z"))


@pytest.mark.parametrize(
    ("offset", "utc"),
    [("+24:00", "00:00"), ("-24:60", "01:00"), ("+00:60", "23:00"), ("-23:59", "23:59"), ("Z", "00:00")],
)
def test_valid_until_is_read_with_every_offset_that_the_api_server_admits(offset: str, utc: str) -> None:
    moment = build(valid_until=f"2027-01-01T00:00:00{offset}").spec.valid_until
    assert moment is not None
    assert moment.astimezone(UTC).strftime("%H:%M") == utc


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+24:00", "9999-12-31T00:00:00-24:60", "2027-01-01T00:00:00+25:00"]
)
def test_an_offset_that_leads_out_of_range_is_rejected(moment: str) -> None:
    with pytest.raises(ValidationError, match=r"(?i)valid_?until"):
        build(valid_until=moment)


def test_valid_until_is_truncated_to_microseconds() -> None:
    moment = build(valid_until="2027-01-01T00:00:00.123456789+02:00").spec.valid_until
    assert moment is not None
    assert moment.microsecond == 123456


def test_a_comment_is_bounded_and_has_no_nul() -> None:
    assert build(comment="é" * 1024).spec.comment
    assert message_of(comment="x" * 1025) == "spec.comment must have at most 1024 characters: shorten it"
    assert "must not contain NUL" in message_of(comment="\x00")


@pytest.mark.parametrize(
    "flag", ["login", "superuser", "createdb", "createrole", "inherit", "replication", "bypassrls"]
)
@given(value=st.sampled_from(["yes", "true", 1, 0]))
def test_a_flag_must_be_a_boolean(flag: str, value: object) -> None:
    with pytest.raises(ValidationError, match=flag):
        build(**{flag: value})


@pytest.mark.parametrize("password", [{}, {"disabled": False}, {"disabled": True, "secretRef": {"name": "a"}}])
def test_a_password_has_exactly_one_source(password: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"exactly one of|disabled"):
        build(password=password)


def test_a_generated_password_requires_a_connection_secret() -> None:
    assert "requires spec.connectionSecret" in message_of(password={"generate": {}})
    assert build(password={"generate": {}}, connection_secret={"name": "app"}).spec.password


@pytest.mark.parametrize(("text", "seconds"), [("720h", 2_592_000), ("1h30m", 5400), ("1500ms", 1.5), ("1.5m", 90)])
def test_durations_are_read_in_go_notation(text: str, seconds: float) -> None:
    assert read_duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "1", "1d", "-1h", "0s", "999ms", "87601h", "1h ", "9" * 60 + "h"])
def test_an_invalid_rotation_interval_is_rejected(text: str) -> None:
    with pytest.raises(ValidationError, match="1s to 87600h"):
        build(password={"generate": {"rotateEvery": text}}, connection_secret={"name": "app"})


def test_an_object_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        build().spec.login = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"parameters": {"DateStyle": "ISO", "datestyle": "German"}}, "DateStyle and datestyle are the same parameter"),
        ({"parameters": {"app.x": "1", "app.X": "1"}}, "app.x and app.X are the same parameter"),
        (
            {"database_parameters": [{"database": "d", "parameters": {"Work_mem": "1MB", "work_mem": "2MB"}}]},
            "Work_mem and work_mem are the same parameter",
        ),
        ({"member_of": [{"role": "a"}, {"role": "a", "admin": True}]}, 'spec.memberOf names role "a" twice'),
        (
            {"database_parameters": [{"database": "d", "parameters": {}}, {"database": "d", "parameters": {}}]},
            'spec.databaseParameters names database "d" twice',
        ),
        ({"drift": {"ignore": ["login", "login"]}}, '"login" is listed twice'),
        ({"privileges": [{"database": "d", "created_by": ["a", "a"]}]}, '"a" is listed twice'),
    ],
)
def test_duplicate_declarations_are_rejected_by_name(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        build(**spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"member_of": [{"role": f"r{number}"} for number in range(65)]},
        {"parameters": {f"a.p{number}": "1" for number in range(65)}},
        {"database_parameters": [{"database": f"d{number}", "parameters": {}} for number in range(33)]},
        {"database_parameters": [{"database": "d", "parameters": {f"a.p{number}": "1" for number in range(65)}}]},
        {"connection_secret": {"name": "a", "template": {"data": {f"k{number}": "" for number in range(33)}}}},
        {"connection_secret": {"name": "a", "template": {"data": {"key": "x" * 4097}}}},
        {"connection_secret": {"name": "a", "template": {"data": {"a b": "x"}}}},
        {"connection_secret": {"name": "a", "template": {"metadata": {"labels": {"a": "x" * 64}}}}},
        {"connection_secret": {"name": "a", "template": {"metadata": {"annotations": {"a": "x" * 4097}}}}},
    ],
)
def test_bounds_are_those_of_the_crd(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        build(**spec)


@pytest.mark.parametrize(
    "status",
    [
        {"nextRotation": "2027-01-01T00:00:00+24:00"},
        {"lastDrift": {"time": "2027-01-01T00:00:00Z", "corrected": True, "by": {"proof": "OfANewerRelease"}}},
    ],
)
def test_an_object_is_read_whatever_its_status_holds(status: dict[str, Any]) -> None:
    obj = build(login=True).model_dump(by_alias=True, exclude_none=True, mode="json") | {"status": status}
    assert read_pgrole(obj) == build(login=True)
    with pytest.raises(Invalid, match=r"^spec\.login: "):
        read_pgrole(obj | {"spec": {"login": 1}})


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "spec: must be an object"),
        ({"connectionLimit": -2}, "spec.connectionLimit: must be greater than or equal to -1"),
        ({"password": {}}, "spec.password must set exactly one of secretRef, generate and disabled: true"),
        (
            {"privileges": [{"database": "a"}, {"database": ""}]},
            "spec.privileges.1.database: spec.privileges: a name must have 1 to 63 bytes",
        ),
    ],
)
def test_a_problem_names_its_field_once_and_no_class_of_python(spec: object, said: str) -> None:
    with pytest.raises(Invalid) as raised:
        read_pgrole({"metadata": {"name": "a", "namespace": "shop"}, "spec": spec})
    assert str(raised.value).startswith(said)
