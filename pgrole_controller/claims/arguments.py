"""What `claims` is asked to list, release or transfer."""

from dataclasses import dataclass

from pgrole_controller.settings import WrongSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class ListArguments:
    """None matches any value. `released`: only claims that no object holds any more."""

    cluster: str | None
    namespace: str | None
    role: str | None
    released: bool
    output: str  # text or json


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseArguments:
    """Selects the claim of one role, all claims of a cluster, or all released ones. `yes`: do not ask.

    Raises WrongSetting for arguments that contradict each other.
    """

    role: str | None
    cluster: str | None
    all_released: bool
    namespace: str | None
    forget: bool
    yes: bool

    def __post_init__(self) -> None:
        if self.namespace and not self.cluster:
            raise WrongSetting("--namespace requires --cluster")
        if self.all_released and not self.forget:
            raise WrongSetting("--all-released requires --forget: released claims cannot be released again")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferArguments:
    """Moves claims from cluster `source` to cluster `target`. `yes`: do not ask."""

    source: str
    target: str
    namespace: str | None
    with_released: bool
    yes: bool


Arguments = ListArguments | ReleaseArguments | TransferArguments
