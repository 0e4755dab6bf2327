"""API resources, the paths to reach them, and the formats of what is sent there."""

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    group: str  # "" is the core group
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Returns the path, with names quoted. None or an empty namespace means a cluster-scoped object."""
        path = f"/apis/{self.group}/{self.version}/" if self.group else f"/api/{self.version}/"
        if namespace:
            path += f"namespaces/{quote(namespace, safe='')}/"
        path += self.plural
        if name is not None:
            path += f"/{quote(name, safe='')}"
            if subresource is not None:
                path += f"/{subresource}"
        return path


PGROLES = Resource("pgrole.dev", "v1alpha1", "pgroles")
EVENTS = Resource("events.k8s.io", "v1", "events")
NAMESPACES = Resource("", "v1", "namespaces")
SECRETS = Resource("", "v1", "secrets")
CONFIGMAPS = Resource("", "v1", "configmaps")
PGSERVERS = Resource("pgrole.dev", "v1alpha1", "pgservers")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
SELF_REVIEWS = Resource("authentication.k8s.io", "v1", "selfsubjectreviews")
SELF_ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews")

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
