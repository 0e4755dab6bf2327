"""Admission policies of the API server that hold in one namespace, for the lifetime of a context."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pgrole_controller.local.process import reached
from tests.acceptance.world import PATIENCE, Json, Kube

_GROUP = "admissionregistration.k8s.io/v1"


@asynccontextmanager
async def admission_policy(
    kube: Kube, kind: str, name: str, spec: Json, binding: Json, is_effective: Callable[[], Awaitable[bool]]
) -> AsyncIterator[None]:
    """Begins and ends once the policy takes effect and has none any more. `kind`: Mutating or Validating. `spec`: of
    the policy. `binding`: of its binding's spec, besides the policy and the namespace.
    """

    async def is_over() -> bool:
        return not await is_effective()

    policies, bindings = (f"/apis/{_GROUP}/{kind.lower()}admission{what}" for what in ("policies", "policybindings"))
    policy = {"kind": f"{kind}AdmissionPolicy", "spec": spec}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}
    bound = {
        "kind": f"{kind}AdmissionPolicyBinding",
        "spec": {"policyName": name, **binding, "matchResources": {"namespaceSelector": selector}},
    }
    for path, body in ((policies, policy), (bindings, bound)):
        await kube.server.request("POST", path, {"apiVersion": _GROUP, "metadata": {"name": name}, **body})
    try:
        assert await reached(is_effective, PATIENCE)
        yield
    finally:
        await kube.server.request("DELETE", f"{bindings}/{name}")
        await kube.server.request("DELETE", f"{policies}/{name}")
        assert await reached(is_over, PATIENCE)
