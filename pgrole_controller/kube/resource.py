"""Names a resource of the API server and the paths under which it is reached."""

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
        """Every part is quoted. An empty namespace is that of a cluster-scoped object: none."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
            if subresource is not None:
                parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)


PGROLES = Resource("pgrole.dev", "v1alpha1", "pgroles")
EVENTS = Resource("events.k8s.io", "v1", "events")
NAMESPACES = Resource("", "v1", "namespaces")
SECRETS = Resource("", "v1", "secrets")
CONFIGMAPS = Resource("", "v1", "configmaps")
PGSERVERS = Resource("pgrole.dev", "v1alpha1", "pgservers")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
