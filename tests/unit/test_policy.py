"""core/policy and core/decision: which requests are refused, and what a refused object loses. No I/O."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from pgrole_controller.api.server_policy import Attribute
from pgrole_controller.core.claim import Claim, Owner, Proof
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.decision import decide
from pgrole_controller.core.diff import RevokeMembership, RevokeOption, SetAttribute, SetParameter
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.names import matches, names_itself
from pgrole_controller.core.outcome import LONGEST_MESSAGE, of_read_back
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy, Reached, References
from pgrole_controller.core.role import POWERS, Grant, Membership, ObservedRole, Role, digest, membership_of
from pgrole_controller.core.state import Claims, Desired, Observed, Rival, Server
from tests.docs.page import ROOT

ME = Owner("cluster", "team-a", "ns-uid", "app", "uid-1")
SERVER = Server(7, frozenset({"keeper"}), Address("db", 5432, "app", "require"))
DESIRED = Role("team-a_app", login=True)
OID = 20_000
POLICY = Policy(
    role_names=("team-a_*",),
    attributes=frozenset(),
    member_of=("readers", "team-a_*"),
    protected=("rds*",),
    reassign_to=("team-a_*",),
    adopt=True,
)
REFERENCES = References(groups={"readers": (), "team-a_group": (), "team-b_app": ()})


def desired(**values: object) -> Desired:
    return replace(Desired(owner=ME, role=DESIRED), **values)  # type: ignore[arg-type]


def claimed(desired_role: Role = DESIRED) -> Claim:
    return Claim(desired_role.name, OID, SERVER.system_identifier, ME, applied=digest(desired_role))


def proof_of(applied: Role) -> Proof:
    return Proof(applied.name, OID, SERVER.system_identifier, digest(applied))


def joins(*groups: str, admin: bool = False) -> Role:
    return replace(DESIRED, member_of=tuple(Membership(group, admin=admin) for group in groups))


def refusal(asked: Desired, observed: Observed | None = None, policy: Policy = POLICY) -> PgRoleError:
    with pytest.raises(PgRoleError) as caught:
        decide(asked, observed or Observed(references=REFERENCES), SERVER, policy)
    return caught.value


def leading(group: str, *hard: str, **powers: tuple[str, ...]) -> References:
    reached = tuple(Reached(name, held) for name, held in powers.items())
    return References(groups={group: hard}, reached={group: (Reached(group), *reached)})


NAMES = [
    "team-b_app",
    "team-a",
    "TEAM-A_app",
    "Team-a_app",
    "te\u0430m-a_app",  # Cyrillic
    "team\u2010a_app",  # another hyphen
    "team-a\uff3fapp",  # a full-width low line
    "\u200bteam-a_app",
    "team\u200b-a_app",
    " team-a_app",
    "team-a _app",
    "*",
    "?eam-a_app",
    "[t]eam-a_app",
    "team-[a]_app",
    "{namespace}_app",
    "\nteam-a_app",
    "readers",
    "postgres",
]


class TestNames:
    @pytest.mark.parametrize("name", NAMES)
    def test_only_names_of_the_namespace_are_allowed(self, name: str) -> None:
        error = refusal(desired(role=replace(DESIRED, name=name)))
        assert error.reason is Reason.NOT_ALLOWED
        assert "spec.name" in error.message
        assert "team-a_*" in error.message

    @pytest.mark.parametrize("name", ["team-a_", "team-a_*", "team-a_[x]", "team-a_\u0430", "team-a_a ", "team-a_\n"])
    def test_any_name_with_the_namespaces_prefix_is_allowed(self, name: str) -> None:
        assert decide(desired(role=Role(name)), Observed(), SERVER, POLICY).action is Action.CREATED

    @pytest.mark.parametrize("name", ["readers ", "Readers", "re\u0430ders", "read\u200bers", "readers\n", "reader"])
    def test_a_look_alike_of_an_allowed_group_is_refused(self, name: str) -> None:
        error = refusal(desired(role=joins(name)))
        assert (error.reason, "membership" in error.message) == (Reason.NOT_ALLOWED, True)

    def test_a_bracket_in_a_pattern_is_literal(self) -> None:
        assert matches("team[1]_a", ["team[1]_*"])
        assert not matches("team1_a", ["team[1]_*"])

    def test_a_pattern_with_wildcards_does_not_name_a_role_itself(self) -> None:
        assert names_itself("readers", ["readers"])
        assert not names_itself("readers*", ["readers*"])
        assert not names_itself("reader?", ["reader?"])
        assert not names_itself("{namespace}_readers", ["{namespace}_readers"])

    @pytest.mark.parametrize("power", POWERS)
    def test_an_attribute_that_the_policy_does_not_list_is_refused(self, power: str) -> None:
        values: dict[str, Any] = {power: True}
        error = refusal(desired(role=replace(DESIRED, **values)))
        assert error.reason is Reason.NOT_ALLOWED
        assert power in error.message

    @pytest.mark.parametrize(
        ("role", "policy", "field"),
        [
            (DESIRED, replace(POLICY, admitted=False), "namespaces"),
            (replace(DESIRED, name="team-b_app"), POLICY, "roleNames"),
            (replace(DESIRED, createrole=True), POLICY, "attributes"),
            (joins("strangers"), POLICY, "memberOf"),
            (
                joins("strangers"),
                replace(POLICY, member_of=tuple(f"team-{n}_" + "x" * 50 for n in range(256))),
                "memberOf",
            ),
        ],
    )
    def test_a_denial_ends_with_the_field_of_the_policy_to_ask_for(
        self, role: Role, policy: Policy, field: str
    ) -> None:
        error = refusal(desired(role=role), policy=policy)
        assert error.message.endswith(f"ask the server's administrator for allow.{field}")
        assert len(error.message) <= LONGEST_MESSAGE

    def test_the_policy_of_a_pgserver_and_the_chart_can_list_the_same_attributes(self) -> None:
        chart = json.loads((ROOT / "deploy/helm/pgrole-controller/values.schema.json").read_text(encoding="utf-8"))
        assert get_args(Attribute) == POWERS
        assert tuple(chart["properties"]["settings"]["properties"]["allow"]["items"]["enum"]) == POWERS


class TestReach:
    @pytest.mark.parametrize("group", ["readers", "team-a_group"])
    def test_an_allowed_group_that_reaches_a_privileged_role_is_refused(self, group: str) -> None:
        references = leading(group, "pg_execute_server_program")
        error = refusal(desired(role=joins(group)), Observed(references=references))
        assert error.reason is Reason.NOT_ALLOWED
        assert "pg_execute_server_program" in error.message

    def test_a_privileged_role_may_be_reached_only_if_the_policy_names_it_exactly(self) -> None:
        references = leading("readers", "pg_read_server_files")
        policy = replace(POLICY, member_of=("readers", "pg_read_server_files"))
        assert decide(desired(role=joins("readers")), Observed(references=references), SERVER, policy).writes
        for near in ("*", "pg_read_server_*", "pg_read_server_file?"):
            refusal(
                desired(role=joins("readers")),
                Observed(references=references),
                replace(POLICY, member_of=("readers", near)),
            )

    @pytest.mark.parametrize("power", ["createrole", "createdb", "replication", "bypassrls"])
    def test_an_attribute_reached_by_a_membership_counts_like_the_roles_own(self, power: str) -> None:
        references = leading("readers", made=(power,))
        error = refusal(desired(role=joins("readers")), Observed(references=references))
        assert error.reason is Reason.NOT_ALLOWED
        assert f"made ({power})" in error.message
        allowing = replace(POLICY, attributes=frozenset({power}))
        assert decide(desired(role=joins("readers")), Observed(references=references), SERVER, allowing).writes

    def test_a_protected_role_may_be_joined_only_if_the_policy_names_it_exactly(self) -> None:
        references = leading("rds_superuser")
        anything = replace(POLICY, member_of=("*",))
        assert (
            "protected"
            in refusal(desired(role=joins("rds_superuser")), Observed(references=references), anything).message
        )
        named = replace(POLICY, member_of=("rds_superuser",))
        assert decide(desired(role=joins("rds_superuser")), Observed(references=references), SERVER, named).writes

    def test_the_role_of_database_owners_cannot_be_joined_even_if_the_policy_names_it(self) -> None:
        naming = replace(POLICY, member_of=("pg_database_owner",))
        error = refusal(
            desired(role=joins("pg_database_owner")), Observed(references=leading("pg_database_owner")), naming
        )
        assert error.reason is Reason.INVALID_SPEC
        assert '"pg_database_owner"' in error.message

    @pytest.mark.parametrize("name", ["public", "none"])
    def test_names_that_no_role_can_have_are_not_waited_for(self, name: str) -> None:
        anything = replace(POLICY, member_of=("*",))
        error = refusal(desired(role=joins(name)), Observed(references=leading("readers")), anything)
        assert error.reason is Reason.INVALID_SPEC
        assert f'"{name}"' in error.message

    def test_admin_is_allowed_only_on_roles_of_the_namespace(self) -> None:
        error = refusal(desired(role=joins("readers", admin=True)))
        assert error.reason is Reason.NOT_ALLOWED
        assert 'admin of "readers"' in error.message
        assert decide(
            desired(role=joins("team-a_group", admin=True)), Observed(references=REFERENCES), SERVER, POLICY
        ).writes


class TestParameters:
    @pytest.mark.parametrize(
        "name",
        [
            *("role", "session_authorization", "log_statement", "plperl.on_init", "cron.host"),
            *("auto_explain.log_min_duration", "plpgsql.variable_conflict"),
        ],
    )
    @pytest.mark.parametrize("scoped", [False, True])
    def test_a_parameter_that_only_superusers_set_must_be_named_in_the_policy(self, name: str, scoped: bool) -> None:
        references = References(
            contexts={"log_statement": "superuser"}, modules=frozenset({"cron"}), databases=frozenset({"db"})
        )
        held = ((name, "x"),)
        desired_role = (
            replace(DESIRED, database_parameters=(("db", held),)) if scoped else replace(DESIRED, parameters=held)
        )
        error = refusal(desired(role=desired_role), Observed(references=references))
        assert error.reason is Reason.NOT_ALLOWED
        field = "spec.databaseParameters" if scoped else "spec.parameters"
        assert error.message.startswith(f'{field}: "{name}"')
        assert error.message.endswith("remove it, or ask the server's administrator for allow.parameters")
        allowing = replace(POLICY, parameters=frozenset({name}))
        assert decide(desired(role=desired_role), Observed(references=references), SERVER, allowing).writes

    def test_every_parameter_that_the_policy_does_not_list_is_named(self) -> None:
        names = ("auto_explain.log_analyze", "auto_explain.log_nested_statements", "log_statement", "role")
        held, scoped = tuple((name, "x") for name in names), (("db", (("plperl.on_init", "x"), ("cron.host", "x"))),)
        role = replace(DESIRED, parameters=held, database_parameters=scoped)
        references = References(
            contexts={"log_statement": "superuser"}, modules=frozenset({"cron"}), databases=frozenset({"db"})
        )
        error = refusal(desired(role=role), Observed(references=references))
        assert error.message == (
            'spec.databaseParameters and spec.parameters: "auto_explain.log_analyze", '
            '"auto_explain.log_nested_statements", "cron.host", "log_statement", "plperl.on_init" and 1 more are for '
            "superusers, unless the server's policy lists them: remove them, or ask the server's administrator for "
            "allow.parameters"
        )


class TestAdoptionPolicy:
    def test_a_role_with_memberships_beyond_the_policy_is_not_adopted(self) -> None:
        found = ObservedRole(OID, joins("team-b_app"))
        for ignore in (frozenset[str](), frozenset({"member_of"})):
            error = refusal(desired(adopt=True, ignore=ignore), Observed(named=found, references=REFERENCES))
            assert error.reason is Reason.NOT_ALLOWED
            assert 'membership in "team-b_app"' in error.message

    def test_a_role_with_memberships_within_the_policy_is_adopted(self) -> None:
        found = ObservedRole(OID, joins("readers"))
        assert (
            decide(desired(adopt=True), Observed(named=found, references=REFERENCES), SERVER, POLICY).action
            is Action.ADOPTED
        )

    def test_a_role_that_reaches_what_the_policy_names_exactly_is_adopted(self) -> None:
        found = ObservedRole(OID, joins("readers"), reaches=("pg_read_server_files",))
        observed = Observed(named=found, references=leading("readers", "pg_read_server_files"))
        asked = desired(role=joins("readers"), adopt=True)
        naming = replace(POLICY, member_of=("readers", "pg_read_server_files"))
        assert decide(asked, observed, SERVER, naming).action is Action.ADOPTED
        rival = Rival("team-a/older", asked.role, naming, adopt=True)
        assert refusal(replace(asked, older_rivals=(rival,)), observed, naming).reason is Reason.CONFLICT
        for other in (replace(found, cut=True), replace(found, role=joins("readers", "unread"))):
            error = refusal(asked, replace(observed, named=other), naming)
            assert error.message.startswith("adoption is denied")
        assert "reaches" in refusal(desired(adopt=True), observed, replace(POLICY, member_of=("readers", "*"))).message

    def test_a_role_with_admin_that_the_object_could_not_declare_is_not_adopted(self) -> None:
        found = ObservedRole(OID, joins("readers", admin=True))
        error = refusal(desired(adopt=True), Observed(named=found, references=REFERENCES))
        assert error.reason is Reason.NOT_ALLOWED
        assert 'admin of "readers"' in error.message
        found = ObservedRole(OID, joins("team-a_group", admin=True))
        plan = decide(desired(adopt=True), Observed(named=found, references=REFERENCES), SERVER, POLICY)
        assert plan.action is Action.ADOPTED

    def test_what_an_ignored_field_holds_beyond_the_policy_is_removed_by_the_adoption(self) -> None:
        held = replace(DESIRED, parameters=(("log_statement", "all"), ("work_mem", "1MB")))
        references = replace(REFERENCES, contexts={"log_statement": "superuser", "work_mem": "user"})
        observed = Observed(named=ObservedRole(OID, held), references=references)
        ignored = frozenset({"parameters"})
        plan = decide(desired(adopt=True, ignore=ignored), observed, SERVER, POLICY)
        assert plan.changes == (SetParameter("team-a_app", None, "log_statement", None),)
        assert "would change parameters" in refusal(desired(ignore=ignored), observed).message

    def test_the_message_says_what_adoption_would_revoke_from_others(self) -> None:
        passed_on = replace(joins("team-a_group", admin=True).member_of[0], passed_on=tuple("abcdef"))
        found = ObservedRole(OID, replace(DESIRED, member_of=(passed_on,)))
        error = refusal(desired(), Observed(named=found, references=REFERENCES))
        assert error.reason is Reason.ROLE_EXISTS
        others = 'membership in "team-a_group" from "a", "b", "c", "d", "e" and others'
        assert f"would change memberOf, and would revoke {others}" in error.message


class TestRivals:
    @pytest.mark.parametrize(
        "rival",
        [
            Rival("team-b/other", DESIRED, replace(POLICY, role_names=("team-b_*",))),
            Rival("team-b/other", DESIRED, replace(POLICY, admitted=False)),
            Rival("team-a/other", replace(DESIRED, superuser=True), POLICY),
            Rival("team-a/other", joins("team-b_app"), POLICY),
            Rival("team-a/other", joins("readers", admin=True), POLICY),
            Rival("team-a/other", replace(DESIRED, parameters=(("role", "postgres"),)), POLICY),
        ],
    )
    def test_a_refused_older_rival_does_not_block_a_younger_object(self, rival: Rival) -> None:
        assert (
            decide(desired(older_rivals=(rival,)), Observed(references=REFERENCES), SERVER, POLICY).action
            is Action.CREATED
        )

    def test_an_older_rival_that_does_not_adopt_does_not_block_an_adoption(self) -> None:
        observed = Observed(named=ObservedRole(OID, DESIRED), references=REFERENCES)
        rival = Rival("team-a/other", DESIRED, POLICY)
        assert decide(desired(adopt=True, older_rivals=(rival,)), observed, SERVER, POLICY).action is Action.ADOPTED
        other = replace(rival, adopt=True)
        assert refusal(desired(adopt=True, older_rivals=(rival, other)), observed).reason is Reason.CONFLICT

    def test_the_first_rival_that_may_have_the_role_is_named(self) -> None:
        rivals = (
            Rival("team-a/first", replace(DESIRED, superuser=True), POLICY),
            Rival("team-a/second", DESIRED, POLICY),
        )
        assert "team-a/second" in refusal(desired(older_rivals=rivals)).message


POWERFUL = replace(
    joins("readers", "team-b_app"), superuser=True, parameters=(("work_mem", "1GB"),), connection_limit=3
)


class TestIgnoredFields:
    def test_an_ignored_field_is_left_alone_only_within_the_policy(self) -> None:
        every = frozenset({"superuser", "member_of", "parameters", "connection_limit"})
        desired_role = digest(Role(DESIRED.name, login=True))
        claim = replace(claimed(), applied=desired_role)
        plan = decide(
            desired(ignore=every),
            Observed(ObservedRole(OID, POWERFUL), claim=claim, references=REFERENCES),
            SERVER,
            POLICY,
        )
        assert plan.changes == (
            SetAttribute("team-a_app", "superuser", False),
            RevokeMembership("team-a_app", "team-b_app", ()),
        )
        assert plan.drift == ("superuser", "memberOf")

    def test_under_policy_report_all_drift_is_reported_and_left_alone(self) -> None:
        observed = Observed(ObservedRole(OID, POWERFUL), claim=claimed(), references=REFERENCES)
        plan = decide(desired(report_only=True), observed, SERVER, POLICY)
        assert not plan.writes
        assert plan.reported == ("superuser", "connectionLimit", "memberOf", "parameters")
        assert of_read_back(plan).reason is Reason.DRIFT_REPORTED

    def test_an_ignored_admin_option_on_a_role_outside_the_namespace_is_revoked(self) -> None:
        held = membership_of("readers", [Grant("postgres", admin=True, inherit=True, set=True)])
        observed = Observed(
            ObservedRole(OID, replace(DESIRED, member_of=(held,))), claim=claimed(), references=REFERENCES
        )
        plan = decide(desired(ignore=frozenset({"member_of"})), observed, SERVER, POLICY)
        assert plan.changes == (RevokeOption("team-a_app", "readers", "admin", ("postgres",)),)

    def test_memberships_that_come_from_creating_roles_are_left_alone(self) -> None:
        made = membership_of("made", [Grant("postgres", admin=True, inherit=False, set=False, by_creation=True)])
        there = replace(DESIRED, createrole=True, member_of=(made,))
        policy = replace(POLICY, attributes=frozenset({"createrole"}))
        observed = Observed(ObservedRole(OID, there), claim=claimed(), references=REFERENCES)
        assert not decide(desired(ignore=frozenset({"createrole", "member_of"})), observed, SERVER, policy).changes


def limited(asked: Desired, there: Role, claim: Claim | None = None, policy: Policy = POLICY) -> Plan:
    observed = Observed(named=ObservedRole(OID, there), claim=claim or claimed(asked.role), references=REFERENCES)
    return decide(asked, observed, SERVER, policy)


class TestRefusedObjects:
    """The policy was tightened, or the spec changed to something that is refused."""

    role = replace(joins("team-b_app"), createdb=True, parameters=(("log_statement", "all"),))

    def test_state_that_was_allowed_before_stays_but_the_object_is_refused(self) -> None:
        plan = limited(desired(role=self.role), self.role)
        assert not plan.writes
        outcome = of_read_back(plan)
        assert (outcome.reason, outcome.ready) == (Reason.NOT_ALLOWED, False)
        assert "createdb" in outcome.message

    def test_undeclared_grants_are_revoked_and_nothing_is_granted(self) -> None:
        there = replace(
            self.role,
            superuser=True,
            createdb=False,
            connection_limit=9,
            member_of=joins("readers").member_of,
            parameters=(("log_statement", "none"), ("work_mem", "1GB")),
        )
        plan = limited(desired(role=self.role), there)
        assert plan.changes == (
            SetAttribute("team-a_app", "superuser", False),
            RevokeMembership("team-a_app", "readers", ()),
            SetParameter("team-a_app", None, "work_mem", None),
        )
        assert (plan.action, plan.applied) == (Action.CORRECTED, digest(self.role))
        assert plan.drift == ("superuser", "memberOf", "parameters")
        assert plan.pending[0].reason is Reason.NOT_ALLOWED

    def test_after_a_changed_spec_only_state_beyond_the_policy_is_revoked(self) -> None:
        there = replace(joins("readers", "team-b_app"), superuser=True, login=True, parameters=(("work_mem", "1GB"),))
        plan = limited(desired(role=replace(DESIRED, login=False, bypassrls=True)), there, claimed())
        assert plan.changes == (
            SetAttribute("team-a_app", "superuser", False),
            RevokeMembership("team-a_app", "team-b_app", ()),
        )
        assert plan.applied == digest(DESIRED)

    @pytest.mark.parametrize("refused", [False, True], ids=["ignored", "refused"])
    @pytest.mark.parametrize("scoped", [False, True])
    def test_a_parameter_that_only_a_superuser_sets_is_reset_unless_the_policy_lists_it(
        self, refused: bool, scoped: bool
    ) -> None:
        held = (("log_statement", "none"), ("work_mem", "1GB"))
        there = replace(DESIRED, database_parameters=(("db", held),)) if scoped else replace(DESIRED, parameters=held)
        contexts = {"log_statement": "superuser", "work_mem": "user"}
        references = References(contexts=contexts, databases=frozenset({"db"}))
        observed = Observed(ObservedRole(OID, there), claim=claimed(joins("readers")), references=references)
        ignored = frozenset({"parameters", "database_parameters"})
        asked = desired(role=replace(DESIRED, bypassrls=True)) if refused else desired(ignore=ignored)
        plan = decide(asked, observed, SERVER, POLICY)
        assert plan.changes == (SetParameter("team-a_app", "db" if scoped else None, "log_statement", None),)
        listing = replace(POLICY, parameters=frozenset({"log_statement"}))
        assert decide(asked, observed, SERVER, listing).changes == ()

    @pytest.mark.parametrize("unreadable", [False, True], ids=["rejected by PostgreSQL", "unreadable"])
    def test_undeclared_grants_are_revoked_whatever_the_spec_is_refused_for(self, unreadable: bool) -> None:
        invalid = Refused(Reason.INVALID_SPEC, "not a value")
        asked = desired(refusal=invalid if unreadable else None)
        there = ObservedRole(OID, replace(DESIRED, superuser=True))
        observed = Observed(there, claim=claimed(joins("readers")), references=REFERENCES)
        plan = decide(asked, observed, SERVER, POLICY, None if unreadable else invalid)
        assert plan.changes == (SetAttribute("team-a_app", "superuser", False),)
        assert plan.pending == (invalid,)

    def test_under_policy_report_nothing_is_revoked_and_the_refusal_names_what_would_be(self) -> None:
        there = replace(self.role, superuser=True, parameters=(("log_statement", "all"), ("work_mem", "1GB")))
        observed = Observed(ObservedRole(OID, there), claim=claimed(self.role), references=REFERENCES)
        error = refusal(desired(role=self.role, report_only=True), observed)
        assert error.reason is Reason.NOT_ALLOWED
        assert "createdb" in error.message
        assert error.message.endswith("not corrected, since spec.drift.policy is Report: superuser, parameters")
        as_applied = replace(observed, named=ObservedRole(OID, self.role))
        assert "Report" not in refusal(desired(role=self.role, report_only=True), as_applied).message

    def test_a_renamed_role_is_restrained_under_its_current_name(self) -> None:
        there = ObservedRole(OID, replace(self.role, name="away", superuser=True))
        observed = Observed(claimed=there, claim=claimed(self.role), references=REFERENCES)
        plan = decide(desired(role=self.role), observed, SERVER, POLICY)
        assert plan.changes == (SetAttribute("away", "superuser", False),)
        assert plan.owner is None

    @pytest.mark.parametrize(
        "claim",
        [
            None,
            replace(claimed(), owner=replace(ME, object="other", object_uid="uid-9")),
            replace(claimed(), released=True),
            replace(claimed(), role_oid=OID + 1),
            replace(claimed(), system_identifier=8),
        ],
    )
    def test_a_role_that_is_not_certainly_the_objects_is_not_changed(self, claim: Claim | None) -> None:
        observed = Observed(
            named=ObservedRole(OID, replace(DESIRED, superuser=True)), claim=claim, references=REFERENCES
        )
        error = refusal(desired(role=replace(DESIRED, bypassrls=True)), observed)
        assert error.reason is Reason.NOT_ALLOWED

    def test_a_suspended_object_is_left_alone(self) -> None:
        observed = Observed(
            named=ObservedRole(OID, replace(DESIRED, superuser=True)), claim=claimed(), references=REFERENCES
        )
        assert refusal(desired(suspended=True), observed).reason is Reason.SUSPENDED

    @pytest.mark.parametrize("claims", ["Database", "Status"])
    @pytest.mark.parametrize("changed", [False, True], ids=["as applied", "changed since"])
    def test_where_only_status_proves_its_role_what_others_granted_is_revoked_as_well(
        self, claims: Claims, changed: bool
    ) -> None:
        asked = desired(role=joins("team-b_app"), proof=proof_of(DESIRED if changed else joins("team-b_app")))
        groups = {**REFERENCES.groups, "team-c_app": ()}
        held = ObservedRole(OID, joins("team-b_app", "team-c_app", "readers"))
        observed = Observed(held, references=References(groups=groups))
        server, policy = replace(SERVER, claims=claims), replace(POLICY, adopt=False)
        plan = decide(asked, observed, server, policy)
        revoked = [change.group for change in plan.changes if isinstance(change, RevokeMembership)]
        assert revoked == (["team-c_app"] if changed else ["team-c_app", "readers"])
        assert (plan.owner, plan.applied, plan.drift) == (ME, asked.proof and asked.proof.applied, ("memberOf",))
        assert plan.pending[0].reason is Reason.NOT_ALLOWED
        assert (plan.claim is None) == (claims == "Database")

    def test_status_proves_no_role_that_the_object_could_not_take_back(self) -> None:
        there = replace(joins("team-b_app"), createrole=True)
        observed = Observed(ObservedRole(OID, there), references=REFERENCES)
        error = refusal(desired(role=replace(DESIRED, bypassrls=True), proof=proof_of(DESIRED)), observed)
        assert "bypassrls" in error.message
        assert error.message.endswith(
            "(createrole): ask an administrator to revoke them first, or to allow them in PgServer.spec.allow"
        )
        other = replace(DESIRED, name="team-b_app")
        observed = Observed(ObservedRole(OID, replace(other, member_of=there.member_of)), references=REFERENCES)
        error = refusal(desired(role=other, proof=proof_of(other)), observed)
        assert error.message.startswith("spec.name:")
        assert "In addition" not in error.message

    def test_a_role_that_reaches_many_others_is_refused_with_what_to_do(self) -> None:
        reaches = tuple(f"group{number}_" + "x" * 50 for number in range(200))
        error = refusal(desired(adopt=True), Observed(ObservedRole(OID, DESIRED, reaches=reaches)))
        assert "and 188 more" in error.message
        assert error.message.endswith("allow them in PgServer.spec.allow")
        assert len(error.message) <= LONGEST_MESSAGE
