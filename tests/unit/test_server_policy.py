"""core/policy: what a server's owner allows, and what of that holds for one namespace."""

import pytest

from pgrole_controller.core.policy import Requirement, ServerPolicy, matches

PROD = {"env": "prod", "team": "a"}


class TestNamespaces:
    def test_nobody_is_admitted_where_nothing_is_said(self) -> None:
        assert not ServerPolicy().policy("team-a", {}).admitted

    @pytest.mark.parametrize(
        ("patterns", "admitted"),
        [(("*",), True), (("team-*",), True), (("team-?",), True), (("team",), False), (("TEAM-A",), False)],
    )
    def test_by_patterns_of_names(self, patterns: tuple[str, ...], admitted: bool) -> None:
        assert ServerPolicy(namespaces=patterns).policy("team-a", {}).admitted is admitted

    @pytest.mark.parametrize(
        ("requirement", "met"),
        [
            (Requirement("env", "In", frozenset({"prod", "stage"})), True),
            (Requirement("env", "In", frozenset({"stage"})), False),
            (Requirement("other", "In", frozenset({""})), False),
            (Requirement("env", "NotIn", frozenset({"prod"})), False),
            (Requirement("other", "NotIn", frozenset({"prod"})), True),
            (Requirement("env", "Exists"), True),
            (Requirement("other", "Exists"), False),
            (Requirement("env", "DoesNotExist"), False),
            (Requirement("other", "DoesNotExist"), True),
        ],
    )
    def test_by_requirements_of_labels_as_in_kubernetes(self, requirement: Requirement, met: bool) -> None:
        assert ServerPolicy(labels=(requirement,)).policy("team-a", PROD).admitted is met

    def test_all_requirements_have_to_be_met(self) -> None:
        both = (Requirement("env", "Exists"), Requirement("team", "In", frozenset({"b"})))
        assert not ServerPolicy(labels=both).policy("team-a", PROD).admitted

    def test_where_labels_are_required_names_do_not_help(self) -> None:
        server_policy = ServerPolicy(namespaces=("*",), labels=(Requirement("env", "In", frozenset({"stage"})),))
        assert not server_policy.policy("team-a", PROD).admitted

    def test_an_unknown_operator_is_an_error_and_no_admission(self) -> None:
        with pytest.raises(ValueError, match="operator"):
            Requirement("env", "Like").is_met(PROD)


class TestPatterns:
    @pytest.mark.parametrize("namespace", ["team-a", "a", "team-a-b"])
    def test_the_namespace_stands_in_names_memberships_and_heirs_and_nowhere_else(self, namespace: str) -> None:
        own = ("{namespace}_*",)
        server_policy = ServerPolicy(role_names=own, member_of=own, reassign_to=own, protected=own)
        policy = server_policy.policy(namespace, {})
        assert policy.role_names == policy.member_of == policy.reassign_to == (f"{namespace}_*",)
        assert policy.protected == own

    @pytest.mark.parametrize("other", ["team", "team-b", "team-a-b", "a", "eam-a"])
    def test_no_namespace_has_names_that_are_anothers(self, other: str) -> None:
        server_policy = ServerPolicy(role_names=("{namespace}_*",))
        ours, theirs = (server_policy.policy(namespace, {}).role_names for namespace in ("team-a", other))
        assert matches("team-a_app", ours)
        assert not matches("team-a_app", theirs)
        assert not matches(f"{other}_app", ours)

    def test_everything_else_is_the_same_for_all(self) -> None:
        server_policy = ServerPolicy(
            attributes=frozenset({"createdb"}),
            parameters=frozenset({"log_statement"}),
            forbidden_metadata=("argoproj.io",),
            adopt=True,
            drop=False,
        )
        policy = server_policy.policy("team-a", {})
        assert (policy.attributes, policy.parameters) == (server_policy.attributes, server_policy.parameters)
        assert (policy.adopt, policy.drop, policy.forbidden_metadata) == (True, False, ("argoproj.io",))
