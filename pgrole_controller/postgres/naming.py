"""Statements name roles, plans mean oids: whoever may rename roles does not take our turn.

PostgreSQL looks a name up when it executes a statement, after whatever the transaction had made sure of before. A
superuser locks the rows of the roles first: until the transaction ends, no one renames or drops them, and everything
else may still be changed. Where pg_authid may not be locked, the names are looked up again at the end. A role that was
altered keeps its name until then, since its row is ours; one that was renamed there and back in between is only
found where it was altered. Whoever can do that to a role can grant whatever the role has as well.

Only the role that a plan is about is held. Roles to be a member of and databases are declared by name, and whichever
has that name is meant.
"""

from collections.abc import Sequence

from pgrole_controller.core.ddl import literal, seen_name
from pgrole_controller.core.diff import Drop, Rename
from pgrole_controller.core.plan import Plan
from pgrole_controller.postgres import queries


def lock_names(plans: Sequence[Plan]) -> list[str]:
    """Locks the names of these roles until the end of the transaction; for superusers. Before what expects an oid."""
    names = sorted({plan.seen_as for plan in plans if plan.changes and plan.oid is not None})
    if not names:
        return []
    some = ", ".join(seen_name(name) for name in names)
    return [f"SELECT FROM pg_catalog.pg_authid AS a WHERE a.rolname IN ({some}) ORDER BY a.rolname FOR KEY SHARE"]


def verify_names(plans: Sequence[Plan], *, held: bool) -> list[str]:
    """Fails with PGR01 when anything but the roles of these plans was altered or dropped. After their statements.

    `held`: the names were locked; then only what was dropped for good is verified again.
    """
    oids: dict[str, int] = {}
    dropped: list[str] = []
    for plan in plans:
        if not plan.changes or plan.oid is None:
            continue
        oids.pop(plan.seen_as, None)
        if any(isinstance(change, Drop) for change in plan.changes):
            dropped.append(str(plan.oid))
        else:
            oids[_name_after(plan)] = plan.oid
    names = {} if held else oids
    if not (names or dropped):
        return []
    settings = {
        "names": f"ARRAY[{', '.join(seen_name(name) for name in names)}]::text[]",
        "oids": literal([str(oid) for oid in names.values()]),
        "dropped": literal(dropped),
    }
    given = [
        f"SELECT pg_catalog.set_config('pgrole.{name}', ({value})::text, true)" for name, value in settings.items()
    ]
    return [*given, queries.inspect("named").strip()]


def _name_after(plan: Plan) -> str:
    return next((change.new for change in plan.changes if isinstance(change, Rename)), plan.seen_as)
