"""core/policy: what a server's owner allows, and how it applies to one namespace."""

import pytest

from pgrole_controller.core.names import matches
from pgrole_controller.core.policy import (
    Policy,
    Reached,
    References,
    Requirement,
    ServerPolicy,
    reaches_beyond,
    why_not_joined,
)
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule

PROD = {"env": "prod", "team": "a"}


class TestNamespaces:
    def test_no_namespace_is_admitted_by_default(self) -> None:
        assert not ServerPolicy().policy("team-a", {}).admitted

    def test_a_server_that_declares_nothing_allows_nothing(self) -> None:
        policy = ServerPolicy(namespaces=("*",)).policy("team-a", {})
        assert policy == Policy(role_names=(), attributes=frozenset(), member_of=(), adopt=False)

    @pytest.mark.parametrize(
        ("patterns", "admitted"),
        [(("*",), True), (("team-*",), True), (("team-?",), True), (("team",), False), (("TEAM-A",), False)],
    )
    def test_namespaces_are_admitted_by_patterns_of_names(self, patterns: tuple[str, ...], admitted: bool) -> None:
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
    def test_namespaces_are_admitted_by_label_requirements_as_in_kubernetes(
        self, requirement: Requirement, met: bool
    ) -> None:
        assert ServerPolicy(labels=(requirement,)).policy("team-a", PROD).admitted is met

    def test_all_requirements_have_to_be_met(self) -> None:
        both = (Requirement("env", "Exists"), Requirement("team", "In", frozenset({"b"})))
        assert not ServerPolicy(labels=both).policy("team-a", PROD).admitted

    def test_a_matching_name_does_not_replace_required_labels(self) -> None:
        server_policy = ServerPolicy(namespaces=("*",), labels=(Requirement("env", "In", frozenset({"stage"})),))
        assert not server_policy.policy("team-a", PROD).admitted

    def test_an_unknown_operator_raises_an_error(self) -> None:
        with pytest.raises(ValueError, match="operator"):
            Requirement("env", "Like").is_met(PROD)


class TestPatterns:
    @pytest.mark.parametrize("namespace", ["team-a", "a", "team-a-b"])
    def test_the_namespace_is_inserted_only_into_names_memberships_and_new_owners(self, namespace: str) -> None:
        own = ("{namespace}_*",)
        server_policy = ServerPolicy(Policy(role_names=own, member_of=own, reassign_to=own, protected=own))
        policy = server_policy.policy(namespace, {})
        assert policy.role_names == policy.member_of == policy.reassign_to == (f"{namespace}_*",)
        assert policy.protected == own

    def test_what_the_namespace_makes_is_no_exact_name_of_a_role(self) -> None:
        made, listed = ("{namespace}_owner", "readers"), ("team-a_owner", "{namespace}_owner")
        references = References(
            groups={"team-a_owner": ("team-a_owner",), "readers": ("readers",)},
            reached={"team-a_owner": (Reached("team-a_owner"),), "readers": (Reached("readers", ("createrole",)),)},
        )
        policy = ServerPolicy(Policy(member_of=made, reassign_to=listed)).policy("team-a", {})
        assert (policy.member_of, policy.reassign_to) == (("team-a_owner", "readers"), ("team-a_owner",) * 2)
        refused = why_not_joined(policy, "team-a_owner", references)
        assert refused is not None
        assert "would reach team-a_owner" in refused
        assert "by exact name in allow.memberOf" in refused
        assert why_not_joined(policy, "readers", references) is None
        assert reaches_beyond(policy, "team-a_owner", references, policy.as_written.reassign_to) == []
        policy = ServerPolicy(Policy(member_of=listed, reassign_to=made)).policy("team-a", {})
        assert why_not_joined(policy, "team-a_owner", references) is None
        assert reaches_beyond(policy, "team-a_owner", references, policy.as_written.reassign_to) == ["team-a_owner"]

    def test_a_policy_differs_if_a_role_is_listed_instead_of_made(self) -> None:
        made, listed = (
            ServerPolicy(Policy(member_of=(entry,), privileges=PrivilegePolicy((PrivilegeRule(schemas=(entry,)),))))
            for entry in ("{namespace}_owner", "team-a_owner")
        )
        assert made.policy("team-a", {}) != listed.policy("team-a", {})
        assert made.policy("team-a", {}).privileges != listed.policy("team-a", {}).privileges
        assert made.policy("team-a", {}).member_of == listed.policy("team-a", {}).member_of

    @pytest.mark.parametrize("other", ["team", "team-b", "team-a-b", "a", "eam-a"])
    def test_no_namespace_may_use_names_of_another(self, other: str) -> None:
        server_policy = ServerPolicy(Policy(role_names=("{namespace}_*",)))
        ours, theirs = (server_policy.policy(namespace, {}).role_names for namespace in ("team-a", other))
        assert matches("team-a_app", ours)
        assert not matches("team-a_app", theirs)
        assert not matches(f"{other}_app", ours)

    def test_everything_else_is_the_same_for_all_namespaces(self) -> None:
        template = Policy(
            attributes=frozenset({"createdb"}),
            parameters=frozenset({"log_statement"}),
            forbidden_metadata=("argoproj.io",),
            adopt=True,
            drop=False,
        )
        policy = ServerPolicy(template).policy("team-a", {})
        assert (policy.attributes, policy.parameters) == (template.attributes, template.parameters)
        assert (policy.adopt, policy.drop, policy.forbidden_metadata) == (True, False, ("argoproj.io",))
