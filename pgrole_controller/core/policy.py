"""What objects may declare on a server. Checked before any statement, alike for creation, change, adoption and
deletion.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.names import NAMESPACE, matches, name_most, names_itself, quote_some
from pgrole_controller.core.parameters import IDENTITY_PARAMETERS, MODULES, Parameters
from pgrole_controller.core.privileges.acl import FIRST_NORMAL_OID
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.role import FIELD_NAMES, POWERS, RESERVED_NAMES, Membership, ObservedRole, Role
from pgrole_controller.core.server_options import TEMPLATES

#: A role that PostgreSQL lets no other role join.
_DATABASE_OWNER = "pg_database_owner"

#: pg_settings.context of parameters that only a superuser may set.
_OF_SUPERUSERS = ("superuser", "superuser-backend")


@dataclass(frozen=True, slots=True)
class Reached:
    """A role that a membership leads to. `powers` are the POWERS that SET ROLE to it would give."""

    name: str
    powers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class References:
    """What exists of the things a role refers to. Anything not listed does not exist.

    - `groups`: roles it declares or holds memberships in, each with the privileged roles that this membership would
      reach.
    - `reached`: for each of them, every role it leads to, itself included.
    - `contexts`: pg_settings.context of parameters, by lower-case name.
    - `templates`: those of the databases that are templates (datistemplate).
    - `modules`: parameter prefixes that belong to the server's extensions.
    - `options`: memberships have INHERIT and SET (PostgreSQL 16 and later).
    """

    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    reached: Mapping[str, tuple[Reached, ...]] = field(default_factory=dict)
    contexts: Mapping[str, str] = field(default_factory=dict)
    databases: frozenset[str] = frozenset()
    templates: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    options: bool = True


@dataclass(frozen=True, slots=True)
class Policy:
    """What the server's owner allows the objects of one namespace.

    - `admitted`: they may have roles at all.
    - `role_names`: patterns of names their roles may have.
    - `protected`: patterns of names that no object may touch.
    - `member_of`: patterns of roles they may join. To reach a privileged role, a membership needs its exact name here,
      not a pattern, nor what `{namespace}` made.
    - `parameters`: lower-case names that may be set although only a superuser could.
    - `reassign_to`: patterns of roles that may receive what a dropped role owned.
    - `forbidden_metadata`: prefixes of labels and annotations that must not be set on Secrets.
    - `privileges`: what their roles may be granted, and in which databases.
    - `template`: the policy before `{namespace}` was replaced; None if that changed none of these lists of roles.
    """

    admitted: bool = True
    role_names: tuple[str, ...] = ("*",)
    attributes: frozenset[str] = frozenset({"createdb"})
    member_of: tuple[str, ...] = ("*",)
    parameters: frozenset[str] = frozenset()
    protected: tuple[str, ...] = ()
    reassign_to: tuple[str, ...] = ()
    forbidden_metadata: tuple[str, ...] = ()
    adopt: bool = True
    drop: bool = True
    privileges: PrivilegePolicy = field(default_factory=PrivilegePolicy)
    template: "Policy | None" = None

    @property
    def as_written(self) -> "Policy":
        """The policy whose entries can be exact names of roles, as in `PrivilegeRule.as_written`."""
        return self.template or self


#: What a server allows unless its owner declares otherwise: namespaces may drop their own roles, and nothing more.
NOTHING_ALLOWED = Policy(admitted=False, role_names=(), attributes=frozenset(), member_of=(), adopt=False)


def check_admitted(policy: Policy, name: str) -> None:
    """Raises Refused for a role that the policy does not allow the namespace to have."""
    if not policy.admitted:
        raise Refused(
            Reason.NOT_ALLOWED,
            "the server's policy does not admit PgRoles of this namespace: ask the server's administrator for "
            "allow.namespaces",
        )
    if not matches(name, policy.role_names):
        raise Refused(
            Reason.NOT_ALLOWED,
            f'spec.name: the server\'s policy does not allow the role name "{name}" in this namespace; '
            f"allowed: {name_most(policy.role_names)}. Choose another spec.name, in a new object, or ask "
            "the server's administrator for allow.roleNames",
        )


def check_desired(policy: Policy, desired: Role) -> None:
    """Raises Refused for a name or an attribute that the policy does not allow."""
    check_admitted(policy, desired.name)
    refused = _beyond(policy, desired)
    if refused:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the server's policy does not allow {_spell(refused)}; "
            f"allowed: {_spell(sorted(policy.attributes)) or 'none'}. "
            f"Remove {'it' if len(refused) == 1 else 'them'} from spec, or ask the server's administrator for "
            "allow.attributes",
        )


def check_protected(policy: Policy, name: str, found: Iterable[ObservedRole], own_roles: frozenset[str]) -> None:
    """Raises Refused for a role that no object may touch, by its desired name or by the role found."""
    for role_name, oid in ((name, None), *((one.role.name, one.oid) for one in found)):
        why = protection(policy, role_name, oid, own_roles)
        if why:
            raise Refused(Reason.PROTECTED, f'role "{role_name}" is {why}: PgRoles cannot change, adopt or drop it')


def check_within_policy(
    policy: Policy, found: ObservedRole, *, action: str, references: References | None = None
) -> None:
    """Raises Refused if the role holds something that no object of this namespace may declare. `action`: the message's
    first words.

    `references` is given where each membership is checked itself: memberships that the controller would revoke at once
    do not count.
    """
    if references is not None:
        found = without_allowed(policy, found, references)
    held = [FIELD_NAMES[name] for name in _beyond(policy, found.role)]
    held += [f'membership that reaches "{name}"' for name in found.reaches]
    if references is not None and not found.reaches:
        within = {one.role: one for one in limit_to_policy(policy, found.role, references).member_of}
        for one in found.role.member_of:
            if one.role not in within:
                held.append(f'membership in "{one.role}"')
            elif one.admin and not within[one.role].admin:
                held.append(f'admin of "{one.role}"')
    if held:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'{action} is denied: role "{found.role.name}" has attributes or memberships that the server\'s policy '
            f"does not allow in this namespace ({name_most(held)}): ask an administrator to revoke "
            "them first, or to allow them in PgServer.spec.allow",
        )


def without_allowed(policy: Policy, found: ObservedRole, references: References) -> ObservedRole:
    """Ignores what the role reaches if the policy admits each of its memberships."""
    held = [one.role for one in found.role.member_of]
    if not held or found.cut:
        return found
    allowed = all(name in references.groups and why_not_joined(policy, name, references) is None for name in held)
    return replace(found, reaches=()) if allowed else found


def check_memberships(policy: Policy, desired: Role, references: References) -> None:
    """Raises Refused for a membership that the policy does not allow, by its name or by what it reaches."""
    for membership in desired.member_of:
        group = membership.role
        if group == desired.name:
            raise Refused(Reason.INVALID_SPEC, f'spec.memberOf: role "{group}" cannot be a member of itself: remove it')
        if group in RESERVED_NAMES:
            raise Refused(Reason.INVALID_SPEC, f'spec.memberOf: no role can be named "{group}": remove it')
        if group == _DATABASE_OWNER:
            raise Refused(
                Reason.INVALID_SPEC,
                f'spec.memberOf: the only member of "{group}" is the owner of the current database: remove it',
            )
        why = why_not_joined(policy, group, references)
        if why:
            raise Refused(Reason.NOT_ALLOWED, f"spec.memberOf: {why}")
        if membership.admin and not may_pass_on(policy, group):
            raise Refused(
                Reason.NOT_ALLOWED,
                f'spec.memberOf: admin of "{group}" would let the role grant the membership to anyone, which is '
                f"allowed only for the names in allow.roleNames ({name_most(policy.role_names)}): set admin "
                "to false",
            )
        if not references.options and (membership.inherit, membership.set) != (True, True):
            raise Refused(
                Reason.INVALID_SPEC,
                f'spec.memberOf: role "{group}": inherit: false and set: false require PostgreSQL 16 or later: remove '
                "them; before 16, spec.inherit decides",
            )


def why_not_joined(policy: Policy, group: str, references: References) -> str | None:
    """Returns why no object may join a role, by its name or by what it reaches; None if objects may."""
    if not matches(group, policy.member_of):
        return (
            f'the server\'s policy does not allow membership in "{group}"; allowed: '
            f"{name_most(policy.member_of)}. Remove it, or ask the server's administrator for allow.memberOf"
        )
    reached = reaches_beyond(policy, group, references, policy.as_written.member_of)
    if reached:
        return (
            f'membership in "{group}" would reach {name_most(reached)}: remove it, or ask the '
            "server's administrator to list these roles by exact name in allow.memberOf"
        )
    return None


def reaches_beyond(policy: Policy, role: str, references: References, named: Iterable[str]) -> list[str]:
    """Returns the privileged or disallowed roles that a role reaches, except exact names in `named`, as written."""
    patterns = tuple(named)
    found = [name for name in references.groups.get(role, ()) if not names_itself(name, patterns)]
    for one in references.reached.get(role, ()):
        if one.name in references.groups.get(role, ()) or names_itself(one.name, patterns):
            continue
        powers = [power for power in one.powers if power not in policy.attributes]
        if powers:
            found.append(f"{one.name} ({_spell(powers)})")
        elif matches(one.name, policy.protected):
            found.append(f"{one.name} (protected)")
    return found


def limit_to_policy(policy: Policy, role: Role, references: References) -> Role:
    """Returns the role without attributes, memberships and parameters that no object could declare."""
    beyond = {one.role for one in _memberships_beyond(policy, role, references)}
    left = tuple(
        one if one.by_creation or may_pass_on(policy, one.role) else replace(one, admin=False)
        for one in role.member_of
        if one.role not in beyond
    )
    values: dict[str, Any] = {**dict.fromkeys(_beyond(policy, role), False), "member_of": left}
    if any(is_only_for_superusers(policy, name, references) for name in role.parameter_names):
        within = ((database, _within_policy(policy, held, references)) for database, held in role.database_parameters)
        values["parameters"] = _within_policy(policy, role.parameters, references)
        values["database_parameters"] = tuple((database, held) for database, held in within if held)
    return replace(role, **values)


def _within_policy(policy: Policy, held: Parameters, references: References) -> Parameters:
    return tuple(one for one in held if not is_only_for_superusers(policy, one[0], references))


def is_only_for_superusers(policy: Policy, parameter: str, references: References) -> bool:
    """Tells whether only a superuser can have set a parameter, which the policy does not list."""
    return references.contexts.get(parameter) in _OF_SUPERUSERS and parameter not in policy.parameters


def may_pass_on(policy: Policy, group: str) -> bool:
    """Tells whether members of a role may have ADMIN. Outside the namespace's own roles, anyone could then receive the
    membership.
    """
    return matches(group, policy.role_names)


def _memberships_beyond(policy: Policy, role: Role, references: References) -> list[Membership]:
    return [one for one in role.member_of if not one.by_creation and why_not_joined(policy, one.role, references)]


def check_parameters(policy: Policy, desired: Role, references: References) -> None:
    """Raises Refused for a parameter that is unknown, or that only a superuser may set."""
    everywhere, refused = dict(desired.parameters), dict[str, str]()
    for name in sorted(desired.parameter_names):
        field = "spec.parameters" if name in everywhere else "spec.databaseParameters"
        context = references.contexts.get(name)
        # pg_settings does not list the parameters that change the current user.
        if context is None and "." not in name and name not in IDENTITY_PARAMETERS:
            raise Refused(Reason.INVALID_SPEC, f'{field}: the server has no parameter "{name}": remove it')
        # Until a module is loaded, no one can tell which of its parameters need a superuser.
        of_module = context is None and name.partition(".")[0] in {*MODULES, *references.modules}
        if (name in IDENTITY_PARAMETERS or context in _OF_SUPERUSERS or of_module) and name not in policy.parameters:
            refused[name] = field
    if refused:
        be, it = ("is", "it") if len(refused) == 1 else ("are", "them")
        raise Refused(
            Reason.NOT_ALLOWED,
            f"{' and '.join(sorted({*refused.values()}))}: {quote_some(refused)} {be} for superusers, unless the "
            f"server's policy lists {it}: remove {it}, or ask the server's administrator for allow.parameters",
        )


def _beyond(policy: Policy, role: Role) -> list[str]:
    return [name for name in POWERS if getattr(role, name) and name not in policy.attributes]


def protection(policy: Policy, name: str, oid: int | None, own_roles: frozenset[str]) -> str | None:
    """Returns why no object may touch a role; None if objects may. `oid` None: only its name is known."""
    if name in own_roles:
        return "the controller's own role"
    if name.startswith("pg_"):
        return "a role of PostgreSQL itself"
    if oid is not None and oid < FIRST_NORMAL_OID:
        return "an initial role of PostgreSQL (the bootstrap superuser or a predefined role)"
    for pattern in policy.protected:
        if matches(name, [pattern]):
            return f'protected by the server\'s pattern "{pattern}"'
    return None


def _spell(names: Iterable[str]) -> str:
    return ", ".join(FIELD_NAMES.get(name, name) for name in names)


@dataclass(frozen=True, slots=True)
class Requirement:
    """A requirement of a label selector. `operator` is In, NotIn, Exists or DoesNotExist, as in Kubernetes."""

    label: str
    operator: str
    values: frozenset[str] = frozenset()

    def is_met(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.label) in self.values
            case "NotIn":
                return labels.get(self.label) not in self.values
            case "Exists":
                return self.label in labels
            case "DoesNotExist":
                return self.label not in labels
        raise ValueError(f"not an operator of a label selector: {self.operator}")


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """The policy of a PgServer. `template`: that of every namespace, except for `admitted`, and with `{namespace}` in
    patterns. `namespaces` are patterns of names; label requirements, if any, decide instead.
    """

    template: Policy = NOTHING_ALLOWED
    namespaces: tuple[str, ...] = ()
    labels: tuple[Requirement, ...] = ()

    def policy(self, namespace: str, labels: Mapping[str, str]) -> Policy:
        """Returns the policy for objects of this namespace, which has these labels."""
        base = self.template
        rules = base.privileges.rules
        member_of, reassign_to = _within(base.member_of, namespace), _within(base.reassign_to, namespace)
        is_expanded = (member_of, reassign_to) != (base.member_of, base.reassign_to)
        return replace(
            base,
            admitted=self._admits(namespace, labels),
            role_names=_within(base.role_names, namespace),
            member_of=member_of,
            reassign_to=reassign_to,
            template=base if is_expanded else None,
            privileges=replace(
                base.privileges,
                rules=None if rules is None else tuple(_rule_within(rule, namespace) for rule in rules),
                protected=base.protected,
            ),
        )

    def _admits(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.labels:
            return all(requirement.is_met(labels) for requirement in self.labels)
        return matches(namespace, self.namespaces)


def allow_ordinary_roles(
    allow: frozenset[str], protected: tuple[str, ...], forbidden_metadata: tuple[str, ...]
) -> ServerPolicy:
    """The policy for the server of PGROLE_DSN: all namespaces, names, memberships and databases except templates, and
    privileges except those that need exact names; adoption and dropping allowed. `allow`: attributes besides createdb.
    """
    template = replace(
        NOTHING_ALLOWED,
        role_names=("*",),
        attributes=frozenset({"createdb"}) | allow,
        member_of=("*",),
        protected=protected,
        forbidden_metadata=forbidden_metadata,
        adopt=True,
        privileges=PrivilegePolicy((PrivilegeRule(),), databases=("*",), but=TEMPLATES),
    )
    return ServerPolicy(template, namespaces=("*",))


def _rule_within(rule: PrivilegeRule, namespace: str) -> PrivilegeRule:
    made = replace(
        rule,
        databases=_within(rule.databases, namespace),
        schemas=_within(rule.schemas, namespace),
        owned_by=None if rule.owned_by is None else _within(rule.owned_by, namespace),
    )
    return rule if made == rule else replace(made, template=rule)


def _within(patterns: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    # A namespace's name contains no wildcard.
    return tuple(pattern.replace(NAMESPACE, namespace) for pattern in patterns)
