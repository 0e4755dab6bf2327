"""What a server's owner allows, and what of that holds for the objects of one namespace."""

from collections.abc import Mapping
from dataclasses import dataclass

from pgrole_controller.core.policy import Policy, matches

_NAMESPACE = "{namespace}"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of a label selector. `operator` is In, NotIn, Exists or DoesNotExist, as in Kubernetes."""

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
class Allowance:
    """Patterns may hold `{namespace}`. `namespaces` are patterns of names; where labels are required these decide."""

    namespaces: tuple[str, ...] = ()
    labels: tuple[Requirement, ...] = ()
    role_names: tuple[str, ...] = ()
    attributes: frozenset[str] = frozenset()
    member_of: tuple[str, ...] = ()
    parameters: frozenset[str] = frozenset()
    reassign_to: tuple[str, ...] = ()
    adopt: bool = False
    drop: bool = True
    protected: tuple[str, ...] = ()
    forbidden_metadata: tuple[str, ...] = ()

    def policy(self, namespace: str, labels: Mapping[str, str]) -> Policy:
        """What objects of this namespace, with these labels, may ask for."""
        return Policy(
            admitted=self._admits(namespace, labels),
            role_names=_within(self.role_names, namespace),
            attributes=self.attributes,
            member_of=_within(self.member_of, namespace),
            parameters=self.parameters,
            protected=self.protected,
            reassign_to=_within(self.reassign_to, namespace),
            forbidden_metadata=self.forbidden_metadata,
            adopt=self.adopt,
            drop=self.drop,
        )

    def _admits(self, namespace: str, labels: Mapping[str, str]) -> bool:
        if self.labels:
            return all(requirement.is_met(labels) for requirement in self.labels)
        return matches(namespace, self.namespaces)


def _within(patterns: tuple[str, ...], namespace: str) -> tuple[str, ...]:
    # The name of a namespace holds nothing that a pattern would read as one.
    return tuple(pattern.replace(_NAMESPACE, namespace) for pattern in patterns)
