"""The controller's RBAC permissions, verb by verb."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass

from pgrole_controller.local.audit import AuditEntry
from pgrole_controller.local.rights import RightsScope, read_rights
from tests.acceptance.world import Json


@dataclass(frozen=True, slots=True, order=True)
class Permission:
    """One verb on one resource (including its subresource), in one namespace or ("") all, for one name or ("") any.

    `role` is its source, as kind and name.
    """

    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    role: tuple[str, str]

    def covers(self, entry: AuditEntry) -> bool:
        return (
            (self.verb, self.group, self.resource) == (entry.verb, entry.group, entry.resource)
            and self.namespace in ("", entry.namespace)
            and self.name in ("", entry.name)
        )

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} by {self.role[1]}"


def read_permissions(installation: RightsScope) -> list[Permission]:
    """Returns all permissions of an installation, in the order of the files."""
    return [one for document in read_rights(installation) for one in list_permissions(document)]


def list_permissions(document: Json) -> Iterator[Permission]:
    """Yields those of a role; none for other kinds."""
    role = document["kind"], document["metadata"]["name"]
    for rule in document.get("rules", ()):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        yield Permission(verb, group, resource, document["metadata"].get("namespace", ""), name, role)


def take_away(documents: Iterable[Json], taken: Permission) -> Json:
    """Returns the role without this one permission."""
    role = next(deepcopy(one) for one in documents if (one["kind"], one["metadata"]["name"]) == taken.role)
    role["rules"] = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
        | ({"resourceNames": [one.name]} if one.name else {})
        for one in list_permissions(role)
        if one != taken
    ]
    return role
