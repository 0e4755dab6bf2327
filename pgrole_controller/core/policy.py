"""What may be asked for on a server, checked before any statement: for creation, change, adoption, deletion alike."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.role import FIELD_NAMES, POWERS, Found, Role

#: The first oid that initdb does not hand out: below it stand PostgreSQL's own roles and the bootstrap superuser.
FIRST_NORMAL_OID = 16384


@dataclass(frozen=True, slots=True)
class Policy:
    """What the server's owner allows. `protected` are patterns of role names that no object may touch."""

    attributes: frozenset[str] = frozenset({"createdb"})
    protected: tuple[str, ...] = ()
    adopt: bool = True
    drop: bool = True


def check_wanted(policy: Policy, wanted: Role) -> None:
    """Raises Refused for an attribute that the server's policy does not allow."""
    refused = _beyond(policy, wanted)
    if refused:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"the policy of the server does not allow {_spell(refused)}; "
            f"allowed: {_spell(sorted(policy.attributes)) or 'none'}. "
            f"Remove it from spec, or ask the server's administrator",
        )


def check_protected(policy: Policy, name: str, found: Iterable[Found], own_roles: frozenset[str]) -> None:
    """Raises Refused for a role that no object may touch, by its wanted name or by what was found for it."""
    for role_name, oid in ((name, None), *((one.role.name, one.oid) for one in found)):
        why = _protection(policy, role_name, oid, own_roles)
        if why:
            raise Refused(Reason.PROTECTED, f'role "{role_name}" is {why}: no PgRole may change, adopt or drop it')


def check_holds(policy: Policy, found: Found, *, deed: str) -> None:
    """Raises Refused when the role holds what no object could have asked for here. `deed` begins the message."""
    held = [FIELD_NAMES[name] for name in _beyond(policy, found.role)]
    held += [f'membership that reaches "{name}"' for name in found.reaches]
    if held:
        raise Refused(
            Reason.NOT_ALLOWED,
            f'{deed} is refused: role "{found.role.name}" holds what no PgRole may ask for on this server '
            f"({', '.join(held)}). An administrator can take it away first",
        )


def _beyond(policy: Policy, role: Role) -> list[str]:
    return [name for name in POWERS if getattr(role, name) and name not in policy.attributes]


def _protection(policy: Policy, name: str, oid: int | None, own_roles: frozenset[str]) -> str | None:
    if name in own_roles:
        return "the controller's own role"
    if name.startswith("pg_"):
        return "one of PostgreSQL's own roles"
    if oid is not None and oid < FIRST_NORMAL_OID:
        return "a role that PostgreSQL was set up with (its bootstrap superuser or one of its own)"
    for pattern in policy.protected:
        if fnmatchcase(name, pattern):
            return f'protected by the pattern "{pattern}" of the server'
    return None


def _spell(names: Iterable[str]) -> str:
    return ", ".join(FIELD_NAMES.get(name, name) for name in names)
