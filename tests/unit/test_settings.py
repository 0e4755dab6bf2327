"""settings: a wrong value is refused with the name of the setting, and never shown when it is secret."""

import json
import re

import pytest

from pgrole_controller.cli import config_of
from pgrole_controller.core.connection_secret import DesiredSecret, check_connection
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.server_options import TEMPLATES, DatabaseMode, DatabasesConfig
from pgrole_controller.core.template import vary
from pgrole_controller.dsn import address_of, split_methods, verifies_by_default
from pgrole_controller.settings import SETTINGS, Settings, WrongSetting, read_settings
from tests.docs.page import ROOT


def read(environment: dict[str, str] | None = None, **flags: str) -> Settings:
    return read_settings(flags, environment or {})


def policy_of(environment: dict[str, str] | None = None) -> ServerPolicy:
    """The policy of the server of PGROLE_DSN."""
    server = config_of(read({"PGROLE_DSN": "postgresql://admin:x@127.0.0.1/postgres"} | (environment or {}))).server
    assert server is not None
    return server.server_policy


#: The settings that every release since the first has accepted.
CONTRACT: dict[str, tuple[str | None, object]] = {
    "PGROLE_DSN": (None, None),
    "PGROLE_KUBECONFIG": ("--kubeconfig", None),
    "PGROLE_CONTEXT": ("--context", None),
    "PGROLE_STRICT_TLS": ("--strict-tls", True),
    "PGROLE_NAMESPACE": ("--namespace", None),
    "PGROLE_OWN_NAMESPACE": ("--own-namespace", None),
    "PGROLE_TOKEN_COMMAND": ("--token-command", ()),
    "PGROLE_LEADER_ELECTION": ("--leader-election", None),
    "PGROLE_LEASE": ("--lease", "pgrole-controller"),
    "PGROLE_IDENTITY": ("--identity", None),
    "PGROLE_CLUSTER_ID": ("--cluster-id", None),
    "PGROLE_ALLOW": ("--allow", frozenset()),
    "PGROLE_PROTECTED": ("--protected", ()),
    "PGROLE_FORBIDDEN_METADATA": ("--forbidden-metadata", ()),
    "PGROLE_INSTALL": ("--install", True),
    "PGROLE_DETECTION": ("--detection", "Auto"),
    "PGROLE_DATABASES_DETECTION": ("--databases-detection", "Poll"),
    "PGROLE_POLL_INTERVAL": ("--poll-interval", 1.0),
    "PGROLE_RESYNC_INTERVAL": ("--resync-interval", 3600.0),
    "PGROLE_HEALTH_HOST": ("--health-host", "::"),
    "PGROLE_HEALTH_PORT": ("--health-port", 8080),
    "PGROLE_LOG_LEVEL": ("--log-level", "info"),
    "PGROLE_LOG_FORMAT": ("--log-format", "auto"),
}


def test_flags_variables_and_defaults_stay_as_installations_use_them() -> None:
    assert {one.variable: (one.flag, getattr(read(), one.name)) for one in SETTINGS} == CONTRACT


def test_a_duration_has_a_unit_and_a_secret_has_no_flag_and_is_not_in_the_representation() -> None:
    values = read({"PGROLE_DSN": "postgresql://admin:hunter2@host/db"})
    assert "hunter2" not in repr(values)
    assert [one.name for one in SETTINGS if one.flag is None] == ["dsn"]
    for setting in SETTINGS:
        assert (setting.unit == "seconds") == isinstance(getattr(values, setting.name), float), setting.name


def test_only_requested_settings_are_read() -> None:
    values = read_settings({}, {"PGROLE_LEASE": "Leader!", "PGROLE_CONTEXT": "here"}, only=("context",))
    assert (values.context, values.lease) == ("here", "pgrole-controller")


def test_a_flag_wins_over_the_environment_and_both_over_the_default() -> None:
    assert read().log_level == "info"
    assert read({"PGROLE_LOG_LEVEL": "error"}).log_level == "error"
    assert read({"PGROLE_LOG_LEVEL": "error"}, log_level="debug").log_level == "debug"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PGROLE_DSN", "host=somewhere"),
        ("PGROLE_DSN", "postgresql://u:p@host:no/db"),
        ("PGROLE_DSN", "postgresql://u:p@host:70000/db"),
        ("PGROLE_DSN", "postgresql://u:p@host/db?port=no"),
        ("PGROLE_DSN", "postgresql://u:p@host/db?port=70000"),
        ("PGROLE_DSN", "postgresql://u:p@[::1/db"),
        ("PGROLE_DSN", "postgresql://u:p@host/db?sslmode=yes"),
        ("PGROLE_ALLOW", "createrole,flying"),
        ("PGROLE_INSTALL", "perhaps"),
        ("PGROLE_RESYNC_INTERVAL", "often"),
        ("PGROLE_RESYNC_INTERVAL", "10"),
        ("PGROLE_RESYNC_INTERVAL", "5ms"),
        ("PGROLE_HEALTH_PORT", "70000"),
        ("PGROLE_HEALTH_PORT", "http"),
        ("PGROLE_LOG_LEVEL", "loud"),
        ("PGROLE_LOG_FORMAT", "xml"),
        ("PGROLE_KUBECONFIG", "/nowhere/at/all"),
        ("PGROLE_CLUSTER_ID", ""),
        ("PGROLE_CLUSTER_ID", "one\ntwo"),
        ("PGROLE_IDENTITY", "a\udcff"),  # the API server stored another holder, so the process never led
        ("PGROLE_NAMESPACE", "Team_A"),
        ("PGROLE_NAMESPACE", "team.a"),
        ("PGROLE_NAMESPACE", "a" * 64),
        ("PGROLE_OWN_NAMESPACE", "../kube-system"),
        ("PGROLE_LEASE", ""),
        ("PGROLE_LEASE", "Leader!"),
        ("PGROLE_LEASE", "a" * 254),
    ],
)
def test_a_wrong_value_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(WrongSetting, match=variable):
        read({variable: value})


#: Entries of --forbidden-metadata, each with a key that it covers.
COVERED = {
    "argoproj.io": "argoproj.io/x",
    "ArgoProj.io": "sub.argoproj.io/x",
    "argoproj.io/": "argoproj.io/x",
    "a-1.b.example.com": "a-1.b.example.com/x",
    "example.com/private-": "example.com/private-x",
    "example.com/0.a_": "example.com/0.a_x",
    "corp/": "team.corp/x",
    "corp/Tier": "corp/tier",
}


@pytest.mark.parametrize(("entry", "key"), COVERED.items())
def test_a_prefix_of_labels_covers_keys(entry: str, key: str) -> None:
    forbidden = read(forbidden_metadata=f" {entry} , ").forbidden_metadata
    assert forbidden == (entry,)
    labelled = DesiredSecret("c", annotations=((key, "x"),))
    with pytest.raises(Refused, match=re.escape(f'"{entry}"')):
        check_connection(labelled, password_known=True, generated=True, forbidden=forbidden)


#: Entries that match no key: the keys that their author means would be admitted.
COVERING_NOTHING = [
    "argoproj.io/*",
    "*.argoproj.io",
    ".argoproj.io",
    "argoproj.io.",
    "argoproj..io",
    "-argoproj.io",
    "https://argoproj.io",
    "argoproj.io argo.io",
    "argoproj.io;x.io",
    "example.com/a/b",
    "example.com/-a",
    "example.com/" + "a" * 64,
    "/",
    "/a",
    "app",
    "*",
    "é.example",
]


@pytest.mark.parametrize("entry", COVERING_NOTHING)
def test_a_prefix_of_labels_that_could_cover_nothing_is_refused_with_the_form(entry: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        read({"PGROLE_FORBIDDEN_METADATA": f"example.com,{entry}"})
    assert str(caught.value).startswith("PGROLE_FORBIDDEN_METADATA 'example.com,")
    assert f"such as example.com/private-, without wildcards, not {entry} (" in str(caught.value)


def test_the_chart_accepts_the_same_prefixes_of_labels() -> None:
    chart = json.loads((ROOT / "deploy/helm/pgrole-controller/values.schema.json").read_text(encoding="utf-8"))
    item = chart["properties"]["settings"]["properties"]["forbiddenMetadata"]["items"]
    accepted = re.compile(item["pattern"])
    assert [entry for entry in COVERED if not accepted.search(entry)] == []
    assert [entry for entry in COVERING_NOTHING if accepted.search(entry)] == []


def test_a_wrong_flag_is_refused_by_the_name_of_the_flag() -> None:
    with pytest.raises(WrongSetting, match="--health-port"):
        read(health_port="none")


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ({"resync_interval": "soon"}, {}, ["--resync-interval", "soon", "30s"]),
        ({"health_port": "99999"}, {}, ["--health-port", "99999"]),
        ({}, {"PGROLE_ALLOW": "flying"}, ["PGROLE_ALLOW", "flying", "createrole"]),
        ({}, {"PGROLE_INSTALL": "perhaps"}, ["PGROLE_INSTALL", "true or false"]),
        ({}, {"PGROLE_DSN": "mysql://root@db"}, ["PGROLE_DSN", "postgresql://"]),
        ({"kubeconfig": "/nowhere/config"}, {}, ["--kubeconfig", "/nowhere/config"]),
    ],
)
def test_the_message_names_the_value_or_what_is_valid(
    flags: dict[str, str], environment: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(WrongSetting) as caught:
        read(environment, **flags)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://admin:hunter2@host/db",
        "postgresql://admin:hunter2/3@host/db",  # the password is where a port would be
        "postgresql://admin:hunter2℀@host/db",
    ],
)
def test_a_secret_is_not_in_the_message(dsn: str) -> None:
    with pytest.raises(WrongSetting) as caught:
        read({"PGROLE_DSN": dsn})
    assert "hunter2" not in str(caught.value)


def test_names_that_kubernetes_accepts_are_accepted() -> None:
    values = read({"PGROLE_LEASE": "pgrole-controller.shop", "PGROLE_NAMESPACE": "team-a"})
    assert (values.lease, values.namespace) == ("pgrole-controller.shop", "team-a")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("1500ms", 1.5)]
)
def test_durations_are_written_as_in_go(text: str, seconds: float) -> None:
    assert read(resync_interval=text).resync_interval == seconds


def test_allowed_attributes_are_added_to_createdb() -> None:
    policy = policy_of({"PGROLE_ALLOW": "createrole, bypassrls", "PGROLE_PROTECTED": "rds_*,cloudsql*"}).template
    assert policy.attributes == {"createdb", "createrole", "bypassrls"}
    assert policy.protected == ("rds_*", "cloudsql*")


def test_the_server_of_the_dsn_polls_all_databases_and_has_one_rule_that_allows_everything() -> None:
    privileges = policy_of().policy("shop", {}).privileges
    assert privileges == PrivilegePolicy((PrivilegeRule(),), ("*",), TEMPLATES)
    dsn = {"PGROLE_DSN": "postgresql://admin:x@127.0.0.1/postgres"}
    for given, mode in ({}, DatabaseMode.POLL), ({"PGROLE_DATABASES_DETECTION": "auto"}, DatabaseMode.AUTO):
        server = config_of(read({**dsn, **given})).server
        assert server is not None
        assert server.databases == DatabasesConfig(("*",), TEMPLATES, detection=mode)


@pytest.mark.parametrize("database", ["template0", "template1"])
def test_the_server_of_the_dsn_excludes_the_template_databases(database: str) -> None:
    refused = check_database(policy_of().policy("shop", {}).privileges, database)
    assert refused is not None
    assert refused.reason is Reason.NOT_ALLOWED
    server = config_of(read({"PGROLE_DSN": "postgresql://admin:x@127.0.0.1/postgres"})).server
    assert server is not None
    assert server.databases is not None
    assert not server.databases.admits(database)


@pytest.mark.parametrize(
    ("dsn", "verifies"),
    [
        ("postgresql://u:p@db.example.com/postgres", True),
        ("postgresql://u:p@db.example.com/postgres?sslmode=disable", False),
        ("postgresql://u:p@127.0.0.1:5432/postgres", False),
        ("postgresql://u:p@localhost/postgres", False),
        ("postgresql:///postgres?host=/run/postgresql", False),
        ("postgresql:///postgres?host=db.example.com", True),
        ("postgresql://u:p@/postgres?host=127.0.0.1,db.example.com", True),
        ("postgresql://u:p@%2Frun%2Fpostgresql/postgres", False),
        ("postgresql://u:p@%2Frun%2Fpostgresql,db.example.com/postgres", True),
        ("postgresql://u:p@[fe80::1%25eth0]/postgres", True),
        ("postgresql://u:p@db.example.com/postgres?host=localhost", True),  # asyncpg connects to the first
        ("postgresql://u:p@localhost/postgres?host=db.example.com", False),
    ],
)
def test_a_dsn_of_another_machine_without_an_sslmode_is_verified(dsn: str, verifies: bool) -> None:
    assert verifies_by_default(dsn) is verifies


@pytest.mark.parametrize("dsn", ["postgresql://u:p@one,two/db", "postgresql://u:p@/db?host=one,two"])
def test_applications_find_the_server_at_the_first_host(dsn: str) -> None:
    assert address_of(dsn).host == "one"


@pytest.mark.parametrize(
    ("host", "expected", "in_urls"),
    [
        ("%2Fvar%2Frun%2FPostgreSQL", "/var/run/PostgreSQL", "%2Fvar%2Frun%2FPostgreSQL"),
        ("%2frun%2C1,two", "/run,1", "%2Frun%2C1"),
        ("[fe80::1%25eth0]:6432", "fe80::1%eth0", "[fe80::1%25eth0]"),
    ],
)
def test_a_percent_encoded_host_is_decoded(host: str, expected: str, in_urls: str) -> None:
    found = address_of(f"postgresql://u:p@{host}/app").host
    assert found == expected
    assert vary({"host": found})["host_url"] == in_urls


@pytest.mark.parametrize(
    ("query", "methods"),
    [
        ("", None),
        ("?sslmode=require", None),
        ("?require_auth=", None),
        ("?require_auth=md5", {"md5"}),
        ("?require_auth=md5,%20scram-sha-256", {"md5", "scram-sha-256"}),
        ("?require_auth=!password,!md5", {"scram-sha-256", "none"}),
        ("?require_auth=!gss", {"password", "md5", "scram-sha-256", "none"}),
        ("?require%5Fauth=md5", {"md5"}),
        ("?require_auth=none&require_auth=md5", {"md5"}),
    ],
)
def test_require_auth_of_a_dsn_is_read_as_by_libpq(query: str, methods: set[str] | None) -> None:
    plain, found = split_methods(f"postgresql://u:p%2F%26@host/db{query}")
    assert plain.startswith("postgresql://u:p%2F%26@host/db")
    assert "auth" not in plain
    assert found == (methods if methods is None else frozenset(methods))


@pytest.mark.parametrize(
    "wrong",
    [
        "hunter2",
        "scram",
        "SCRAM-SHA-256",
        "gss",
        "md5,",
        ",",
        "!",
        "!hunter2",
        "!md5,password",
        "password,!md5",
        "!!md5",
        "!password,!md5,!scram-sha-256,!none",
        "md5;password",
    ],
)
def test_a_wrong_require_auth_is_refused_by_name_and_not_repeated(wrong: str) -> None:
    dsn = f"postgresql://u:hunter2@host/db?require_auth={wrong}"
    with pytest.raises(ValueError, match="its require_auth") as caught:
        split_methods(dsn)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(WrongSetting, match=r"PGROLE_DSN.*require_auth") as refused:
        read({"PGROLE_DSN": dsn})
    assert "hunter2" not in str(refused.value)
