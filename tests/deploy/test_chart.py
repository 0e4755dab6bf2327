"""The Helm chart: what its values do, which it refuses, and that it renders the same as kustomize."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from pgrole_controller import __version__
from pgrole_controller.settings import SETTINGS
from tests.deploy.manifests import CHART, OVERLAYS, ROOT, RULES
from tests.deploy.programs import Programs, run
from tests.deploy.rendering import (
    NAMESPACE,
    RELEASE,
    Json,
    environment_of,
    of_kind,
    read_objects,
    render_chart,
    render_kustomization,
    template,
    the,
    without_helm,
)
from tests.documents import read_document, read_documents

WATCHED: Json = {"watch": {"namespace": "team-a", "clusterId": "eu-1"}}
SERVER: Json = {
    "connection": {"hosts": ["pg.example.internal"], "credentialsSecretRef": {"name": "pg-admin"}},
    "allow": {"namespaces": {"matchNames": ["shop"]}, "roleNames": ["{namespace}_*"]},
}
EVERYTHING: Json = {
    "replicas": 3,
    "image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always", "pullSecrets": ["registry"]},
    "settings": {
        "logFormat": "json",
        "logLevel": "debug",
        "strictTls": False,
        "tokenCommand": "aws rds generate-db-auth-token --hostname {host}",
        "allow": ["createrole", "replication"],
        "protected": ["rds_*", "cloudsql*"],
        "forbiddenMetadata": ["argoproj.io"],
        "install": False,
        "detection": "poll",
        "pollInterval": "500ms",
        "resyncInterval": "1h30m",
    },
    "labels": {"team": "databases"},
    "podLabels": {"tier": "platform"},
    "podAnnotations": {"example.com/scrape": "yes"},
    "serviceAccount": {"name": "pg", "annotations": {"example.com/role": "arn"}},
    "service": {"annotations": {"example.com/a": "b"}},
    "priorityClassName": "system-cluster-critical",
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
    ],
    "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/ca/ca.crt"}],
    "extraVolumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "extraVolumeMounts": [{"name": "ca", "mountPath": "/ca"}],
    "networkPolicy": {
        "enabled": True,
        "ingressFrom": [{"namespaceSelector": {"matchLabels": {"monitoring": "true"}}}],
        "postgresqlPorts": [5432, 6432],
    },
    "console": {"enabled": True, "hostnames": ["pgrole.example.com"], "trustedProxies": ["10.1.0.0/16"]},
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"},
    "serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "servers": {"default": SERVER, "reports": SERVER},
}
#: Condition of the policy for Secrets in the chart, and in an overlay, whose namespace users may change.
BY_CHART = f" == 'system:serviceaccount:{NAMESPACE}:{RELEASE}'"
BY_OVERLAY = f".matches('^system:serviceaccount:[^:]+:{RELEASE}$')"
#: Settings of `run` that the chart sets through other values than `settings`, or not at all in a pod.
ELSEWHERE = {
    "dsn",  # dsn
    "namespace",  # watch
    "cluster_id",
    "leader_election",  # leaderElection
    "lease",  # named like everything else
    "identity",  # the pod's
    "own_namespace",  # the pod's
    "kubeconfig",  # the pod's ServiceAccount
    "context",
    "health_host",  # the ports are those of the probes
    "health_port",
}


def schema() -> Json:
    found: Json = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return found


def defaults() -> Json:
    found: Json = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def parts(of: Json, path: str = "") -> Iterator[tuple[str, Json]]:
    for name, part in of.get("properties", {}).items():
        yield f"{path}{name}", part
        yield from parts(part, f"{path}{name}.")


@pytest.mark.parametrize(
    "values", [{}, WATCHED, EVERYTHING | {"servers": {}}], ids=["none", "one namespace", "everything"]
)
async def test_helm_lint_finds_nothing_in_the_chart(programs: Programs, values: Json) -> None:
    answer = await run(programs.helm, "lint", "--strict", CHART, "--values", "-", stdin=yaml.safe_dump(values))
    assert answer.code == 0, answer.out + answer.err
    assert "[WARNING]" not in answer.out


def test_chart_image_and_program_have_the_same_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert str(chart["version"]) == str(chart["appVersion"]) == __version__


@pytest.mark.parametrize(("path", "part"), [*parts(schema())])
def test_every_value_is_described_and_unknown_ones_are_refused(path: str, part: Json) -> None:
    assert part.get("description")
    if "properties" in part and path != "servers":
        assert part["additionalProperties"] is False


def test_values_and_their_schema_have_the_same_names() -> None:
    described = {path for path, _ in parts(schema())} - {"global", "enabled"}

    def names(values: Json, path: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield f"{path}{name}"
            if f"{path}{name}" in branches and isinstance(value, dict):
                yield from names(value, f"{path}{name}.")

    branches = {path.rpartition(".")[0] for path in described}
    written = set(names(defaults()))
    assert written <= described
    assert {path for path in described - written if not path.startswith("settings.")} == set()


def test_every_setting_of_the_program_is_a_value_of_the_chart() -> None:
    names = {one.name for one in SETTINGS} - ELSEWHERE
    camel = {first + "".join(word.title() for word in rest) for first, *rest in (name.split("_") for name in names)}
    assert set(schema()["properties"]["settings"]["properties"]) == camel


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"digest": "sha256:1234"}}, "digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"fullnameOverride": "Not A Name"}, "fullnameOverride"),
        ({"fullnameOverride": "1st"}, "fullnameOverride"),
        ({"watch": {"namespaces": ["a"]}}, "namespaces"),
        ({"watch": {"namespace": "team-a"}}, "watch.clusterId"),
        ({"settings": {"logLevel": "loud"}}, "logLevel"),
        ({"settings": {"pollInterval": 5}}, "pollInterval"),
        ({"settings": {"pollInterval": "0s"}}, "pollInterval"),
        ({"settings": {"pollInterval": "99ms"}}, "pollInterval must be a duration from 100ms to 1h"),
        ({"settings": {"pollInterval": "1h0.5s"}}, "pollInterval must be a duration from 100ms to 1h"),
        ({"settings": {"resyncInterval": "0h0.0m"}}, "resyncInterval must be a duration of at least 1s"),
        ({"settings": {"resyncInterval": "0.5s499ms"}}, "resyncInterval must be a duration of at least 1s"),
        ({"settings": {"healthPort": 80}}, "healthPort"),
        ({"settings": {"allow": ["login"]}}, "allow"),
        ({"settings": {"forbiddenMetadata": ["argoproj.io", "argoproj.io/*"]}}, "forbiddenMetadata/1"),
        ({"leaderElection": False}, "leaderElection"),
        ({"rbac": {"connectionSecrets": "no"}}, "connectionSecrets"),
        ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
        ({"networkPolicy": {"postgresqlPorts": []}}, "postgresqlPorts"),
        ({"console": {"trustedProxies": ["10"]}}, "trustedProxies"),
        ({"console": {"trustedProxies": ["10.0.0.0/129"]}}, "trustedProxies"),
        ({"console": {"trustedProxies": ["fd00::/"]}}, "trustedProxies"),
        ({"podDisruptionBudget": {"maxUnavailable": "half"}}, "maxUnavailable"),
        ({"servers": {"default": {"allow": {}}}}, "connection"),
        ({"servers": {"Default": SERVER}}, "servers"),
        ({"dsn": {"secretName": ""}}, "secretName"),
        ({"enabled": False}, "enabled"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
async def test_an_invalid_value_is_refused_by_name(programs: Programs, values: Json, named: str) -> None:
    answer = await template(programs, values=values)
    assert answer.code != 0
    assert named in answer.err


#: Values that must not be left empty: without them, other things would be installed than by default.
NECESSARY = [
    *("replicas", "image", "crds", "watch", "leaderElection", "settings", "dsn", "rbac", "secretsPolicy"),
    *("serviceAccount", "terminationGracePeriodSeconds", "service", "networkPolicy", "podDisruptionBudget"),
    *("serviceMonitor", "prometheusRule", "image.repository", "crds.install", "watch.namespace", "dsn.secretName"),
    *("dsn.key", "rbac.create", "rbac.connectionSecrets", "rbac.users", "secretsPolicy.enabled"),
    *("serviceAccount.create", "networkPolicy.apiServerPorts", "networkPolicy.postgresqlPorts"),
    "podDisruptionBudget.maxUnavailable",
]


@pytest.mark.parametrize("path", NECESSARY)
async def test_a_necessary_value_that_is_left_empty_is_refused_by_name(programs: Programs, path: str) -> None:
    parent, _, name = path.rpartition(".")
    answer = await template(programs, values={parent: {name: None}} if parent else {name: None})
    assert answer.code != 0
    assert "values don't meet the specifications of the schema" in answer.err
    assert name in answer.err


@pytest.mark.parametrize(("poll", "resync"), [("100ms", "1s"), ("59m60s", "1.5m"), ("0.1s", "9000h")])
async def test_an_interval_may_have_any_value_that_the_program_accepts(
    programs: Programs, poll: str, resync: str
) -> None:
    answer = await template(programs, values={"settings": {"pollInterval": poll, "resyncInterval": resync}})
    assert answer.code == 0, answer.err


def take_account(objects: dict[tuple[str, str, str], Json], expression: str) -> None:
    """Removes the user's condition, which must be this one, from the policy for Secrets."""
    policy = objects["ValidatingAdmissionPolicy", "", f"{RELEASE}-secrets"]
    [condition] = policy["spec"]["matchConditions"]
    assert condition.pop("expression") == f"request.userInfo.username{expression}"


async def test_by_default_the_chart_renders_the_same_as_the_cluster_overlay(programs: Programs) -> None:
    chart = without_helm(await render_chart(programs))
    overlay = without_helm(await render_kustomization(programs, OVERLAYS / "cluster"))
    namespace = overlay.pop(("Namespace", "", NAMESPACE))  # of `helm install --create-namespace`
    assert namespace
    take_account(chart, BY_CHART)
    take_account(overlay, BY_OVERLAY)
    assert chart.keys() == overlay.keys()
    for key, found in overlay.items():
        assert chart[key] == found, key


async def test_for_one_namespace_the_chart_renders_the_same_as_that_overlay(programs: Programs) -> None:
    chart = without_helm(await render_chart(programs, values=WATCHED | {"crds": {"install": False}}))
    overlay = without_helm(await render_kustomization(programs, OVERLAYS / "namespace"))
    del overlay["Namespace", "", NAMESPACE]
    [settings] = [key for key in overlay if key[0] == "ConfigMap"]
    del overlay[settings]
    key = ("Deployment", NAMESPACE, RELEASE)
    [container] = overlay[key]["spec"]["template"]["spec"]["containers"]
    assert container.pop("envFrom") == [{"configMapRef": {"name": settings[2]}}]
    variables = environment_of(chart[key])
    assert (variables["PGROLE_NAMESPACE"], variables["PGROLE_CLUSTER_ID"]) == ("team-a", "eu-1")
    [mine] = chart[key]["spec"]["template"]["spec"]["containers"]
    mine["env"] = [one for one in mine["env"] if one["name"] not in ("PGROLE_NAMESPACE", "PGROLE_CLUSTER_ID")]
    take_account(chart, BY_CHART)
    take_account(overlay, BY_OVERLAY)
    assert chart == overlay


async def test_watching_its_own_namespace_grants_no_right_twice(programs: Programs) -> None:
    objects = await render_chart(programs, values={"watch": {"namespace": NAMESPACE, "clusterId": "eu-1"}})
    assert [one["metadata"]["name"] for one in of_kind(objects, "Role")] == [
        RELEASE,
        f"{RELEASE}-roles",
        f"{RELEASE}-connection-secrets",
    ]


async def test_optional_objects_equal_those_of_kustomize(programs: Programs) -> None:
    on = {"enabled": True}
    objects = await render_chart(
        programs,
        values={
            "networkPolicy": on,
            "podDisruptionBudget": on,
            "serviceMonitor": on,
            "prometheusRule": on,
        },
    )
    for name in ("network-policy", "pod-disruption-budget", "service-monitor", "prometheus-rule"):
        folder = OVERLAYS.parent / "components" / name
        file = folder / f"{name.replace('-', '_')}.yaml"
        component = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert the(objects, component["kind"])["spec"] == component["spec"]


async def test_the_console_equals_that_of_kustomize(programs: Programs) -> None:
    objects = await render_chart(programs, values={"console": {"enabled": True}})
    folder, name = OVERLAYS.parent / "components" / "console", f"{RELEASE}-console"
    for kind in ("Deployment", "NetworkPolicy", "Service"):
        file = folder / f"{'network_policy' if kind == 'NetworkPolicy' else kind.lower()}.yaml"
        assert the(objects, kind, name)["spec"] == yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]
    assert the(objects, "ServiceAccount", name)["automountServiceAccountToken"] is False
    bound = [
        subject["name"] for one in objects if one["kind"].endswith("Binding") for subject in one.get("subjects", ())
    ]
    assert name not in bound


async def test_console_values_become_arguments(programs: Programs) -> None:
    given = {
        "enabled": True,
        "hostnames": ["pgrole.example.com"],
        "trustedProxies": ["10.1.0.0/16"],
        "namespaces": ["shop"],
        "ingressFrom": [{"podSelector": {}}],
    }
    objects = await render_chart(programs, values={"console": given})
    [container] = the(objects, "Deployment", f"{RELEASE}-console")["spec"]["template"]["spec"]["containers"]
    expected = {"--host=::", "--hostname=pgrole.example.com", "--trusted-proxy=10.1.0.0/16", "--namespace=shop"}
    assert expected <= set(container["args"])
    [rule] = the(objects, "NetworkPolicy", f"{RELEASE}-console")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {}}]


async def test_an_address_that_ends_in_a_colon_remains_an_argument(programs: Programs) -> None:
    given = ["fd00::", "::1", "fd00::/8", "10.1.0.0/16"]
    objects = await render_chart(programs, values={"console": {"enabled": True, "trustedProxies": given}})
    [container] = the(objects, "Deployment", f"{RELEASE}-console")["spec"]["template"]["spec"]["containers"]
    found = [one for one in container["args"] if str(one).startswith("--trusted-proxy")]
    assert found == [f"--trusted-proxy={one}" for one in given]


async def test_the_console_reaches_the_api_server_on_its_ports_without_the_controllers_policy(
    programs: Programs,
) -> None:
    given = {"networkPolicy": {"apiServerPorts": [8443]}, "console": {"enabled": True}}
    [policy] = of_kind(await render_chart(programs, values=given), "NetworkPolicy")
    assert policy["metadata"]["name"] == f"{RELEASE}-console"
    [rule] = policy["spec"]["egress"]
    assert rule["ports"] == [{"port": 8443, "protocol": "TCP"}]


@pytest.mark.parametrize("value", [True, False])
async def test_the_console_has_the_controllers_strict_tls(programs: Programs, value: bool) -> None:
    given = {"settings": {"strictTls": value}, "console": {"enabled": True}}
    objects = await render_chart(programs, values=given)
    for name in (RELEASE, f"{RELEASE}-console"):
        assert environment_of(the(objects, "Deployment", name))["PGROLE_STRICT_TLS"] == str(value).lower()


async def test_the_console_tries_the_namespace_that_alone_is_served(programs: Programs) -> None:
    console = {"enabled": True, "namespaces": ["shop", "team-a"]}
    objects = await render_chart(programs, values=WATCHED | {"console": console})
    [container] = the(objects, "Deployment", f"{RELEASE}-console")["spec"]["template"]["spec"]["containers"]
    given = [one for one in container["args"] if one.startswith("--namespace")]
    assert given == ["--namespace=team-a", "--namespace=shop"]


async def test_a_large_number_is_rendered_as_an_integer(programs: Programs) -> None:
    objects = await render_chart(programs, values={"terminationGracePeriodSeconds": 1_000_000})
    assert the(objects, "Deployment", RELEASE)["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 1_000_000


async def test_a_release_whose_name_begins_with_a_digit_has_names_that_a_service_may_have(programs: Programs) -> None:
    answer = await run(programs.helm, "template", "2nd", CHART, "-n", NAMESPACE, "--set", "console.enabled=true")
    assert answer.code == 0, answer.err
    objects = read_objects(answer.out)
    names = {one["metadata"]["name"] for one in of_kind(objects, "Service")}
    assert names == {"pgrole-controller-2nd", "pgrole-controller-2nd-console"}


async def test_values_of_the_release_before_render_without_those_added_since(programs: Programs) -> None:
    """`helm upgrade --reuse-values` merges no defaults of the new chart; null removes one here."""
    answer = await template(programs, values={"console": None, "labels": None, "podLabels": None})
    assert answer.code == 0, answer.err
    assert len(of_kind(read_objects(answer.out), "Deployment")) == 1


async def test_the_console_can_be_enabled_with_the_values_of_the_release_before(programs: Programs) -> None:
    console = dict.fromkeys(defaults()["console"]) | {"enabled": True}
    answer = await template(programs, values={"console": console})
    assert answer.code == 0, answer.err
    assert the(read_objects(answer.out), "Deployment", f"{RELEASE}-console")


async def test_the_interval_of_scrapes_can_be_left_to_prometheus(programs: Programs) -> None:
    objects = await render_chart(programs, values={"serviceMonitor": {"enabled": True, "interval": None}})
    [endpoint] = the(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint == {"port": "http", "path": "/metrics"}


async def test_crds_can_be_left_out(programs: Programs) -> None:
    assert not of_kind(await render_chart(programs, values={"crds": {"install": False}}), "CustomResourceDefinition")


async def test_the_chart_has_the_crds_and_keeps_them_on_uninstall(programs: Programs) -> None:
    found = of_kind(await render_chart(programs), "CustomResourceDefinition")
    written = [read_document(path.read_text(encoding="utf-8")) for path in (ROOT / "crds").glob("*.yaml")]
    assert {one["metadata"]["name"]: one["spec"] for one in found} == {
        one["metadata"]["name"]: one["spec"] for one in written
    }
    assert all(one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for one in found)


async def test_alert_templates_are_not_rendered_by_helm(programs: Programs) -> None:
    """Prometheus' own templates, such as {{ $labels.server }}, are not helm's."""
    objects = await render_chart(programs, values={"prometheusRule": {"enabled": True}})
    assert the(objects, "PrometheusRule")["spec"] == yaml.safe_load(RULES.read_text(encoding="utf-8"))


async def test_without_connection_secrets_there_is_no_right_to_write_secrets(programs: Programs) -> None:
    objects = await render_chart(programs, values={"rbac": {"connectionSecrets": False}})
    rules = [rule for one in of_kind(objects, "Role", "ClusterRole") for rule in one["rules"]]
    secrets = {verb for rule in rules if "secrets" in rule["resources"] for verb in rule["verbs"]}
    assert secrets == {"get", "list", "watch"}


async def test_the_policy_for_secrets_matches_the_account_in_use_and_can_be_left_out(programs: Programs) -> None:
    given = {"serviceAccount": {"create": False, "name": "given"}}
    named = without_helm(await render_chart(programs, values=given))
    take_account(named, f" == 'system:serviceaccount:{NAMESPACE}:given'")
    objects = await render_chart(programs, values={"secretsPolicy": {"enabled": False}})
    assert not of_kind(objects, "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


async def test_without_rbac_no_roles_are_rendered_and_a_given_account_is_used(programs: Programs) -> None:
    values = {"rbac": {"create": False}, "serviceAccount": {"create": False, "name": "given"}}
    objects = await render_chart(programs, values=values)
    assert not of_kind(objects, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount")
    assert the(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "given"


async def test_settings_become_environment_variables(programs: Programs) -> None:
    objects = await render_chart(programs, "--api-versions", "pgrole.dev/v1alpha1", values=EVERYTHING)
    found = environment_of(the(objects, "Deployment"))
    assert found["PGROLE_STRICT_TLS"] == "false"
    assert found["PGROLE_TOKEN_COMMAND"] == EVERYTHING["settings"]["tokenCommand"]
    assert found["PGROLE_ALLOW"] == "createrole,replication"
    assert found["PGROLE_PROTECTED"] == "rds_*,cloudsql*"
    assert found["PGROLE_FORBIDDEN_METADATA"] == "argoproj.io"
    assert found["PGROLE_POLL_INTERVAL"] == "500ms"
    known = {one.variable: one for one in SETTINGS}
    for name, value in found.items():
        if name in known and isinstance(value, str) and "$(" not in value:
            known[name].read(value)


async def test_labels_replace_the_charts_own_but_not_those_that_are_selected(programs: Programs) -> None:
    given = {"app.kubernetes.io/name": "databases", "app.kubernetes.io/part-of": "databases", "team": "databases"}
    answer = await template(
        programs,
        values={
            "labels": given,
            "podLabels": {"app.kubernetes.io/name": "databases"},
            "console": {"enabled": True},
            "serviceMonitor": {"enabled": True, "labels": given | {"team": "monitoring"}},
        },
    )
    assert answer.code == 0, answer.err
    objects = read_objects(answer.out)
    for one in objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "databases"
        assert labels["team"] == ("monitoring" if one["kind"] == "ServiceMonitor" else "databases")
    assert answer.out.count("app.kubernetes.io/part-of") == len(objects)  # YAML has each key once
    for one in of_kind(objects, "Deployment"):
        pods = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= pods.items()
    monitor, service = the(objects, "ServiceMonitor"), the(objects, "Service")
    selector = monitor["spec"]["selector"]["matchLabels"]
    assert selector.items() <= service["metadata"]["labels"].items()
    assert not selector.items() <= the(objects, "Service", f"{RELEASE}-console")["metadata"]["labels"].items()


async def test_without_leader_election_the_strategy_is_recreate(programs: Programs) -> None:
    deployment = the(await render_chart(programs, values={"leaderElection": False, "replicas": 1}), "Deployment")
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert environment_of(deployment)["PGROLE_LEADER_ELECTION"] == "false"


async def test_two_releases_share_no_object_name(programs: Programs) -> None:
    async def names(release: str) -> set[tuple[str, str]]:
        values = {"watch": {"namespace": release, "clusterId": "eu-1"}, "crds": {"install": False}}
        arguments = ("template", release, CHART, "-n", NAMESPACE, "--values", "-")
        answer = await run(programs.helm, *arguments, stdin=yaml.safe_dump(values))
        return {(one["kind"], one["metadata"]["name"]) for one in read_documents(answer.out)}

    assert not await names("team-a") & await names("team-b")


async def test_servers_without_installed_crds_are_refused_with_the_remedy(programs: Programs) -> None:
    answer = await template(programs, values={"servers": {"default": SERVER}})
    assert answer.code != 0
    assert "install without servers first" in answer.err


async def test_servers_are_rendered_as_given_and_kept_on_uninstall(programs: Programs) -> None:
    objects = await render_chart(
        programs, "--api-versions", "pgrole.dev/v1alpha1", values={"servers": {"default": SERVER, "reports": SERVER}}
    )
    servers = of_kind(objects, "PgServer")
    assert [one["metadata"]["name"] for one in servers] == ["default", "reports"]
    for one in servers:
        assert one["spec"] == SERVER
        assert one["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_parent_chart_can_include_it_under_a_condition(
    programs: Programs, tmp_path: Path, enabled: bool
) -> None:
    name = CHART.name
    dependency = {"name": name, "version": __version__, "repository": "", "condition": f"{name}.enabled"}
    chart = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [dependency]}
    shutil.copytree(CHART, tmp_path / "charts" / name)
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart), encoding="utf-8")
    answer = await template(programs, chart=tmp_path, values={name: {"enabled": enabled}})
    assert answer.code == 0, answer.err
    assert bool(of_kind(read_objects(answer.out), "Deployment")) is enabled


def test_rendering_downloads_nothing() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert "dependencies" not in chart
    for file in OVERLAYS.parent.rglob("kustomization.yaml"):
        kustomization = yaml.safe_load(file.read_text(encoding="utf-8"))
        for resource in kustomization["resources"]:
            assert (file.parent / resource).exists(), f"{file}: {resource}"
