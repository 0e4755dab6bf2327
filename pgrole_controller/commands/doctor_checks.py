"""Runs the checks of `doctor` one by one: a check that fails is a finding of its own, and hides no other."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.findings.finding import Finding, FindingState
from pgrole_controller.kube.errors import KubeError, explain_error

#: The findings of one question.
DoctorCheck = Callable[[], Awaitable[list[Finding]]]


@dataclass(slots=True)
class CheckList:
    """What was found in one area so far."""

    area: str
    findings: list[Finding] = field(default_factory=list)

    async def run(self, name: str, check: DoctorCheck, *, failed: FindingState = FindingState.UNKNOWN) -> bool:
        """Adds what the check finds, or, in state `failed`, why it failed. Returns whether it could be run."""
        try:
            found = await check()
        except PgRoleError as error:
            text = error.message
        except KubeError as error:
            text = explain_error(error)
        except Exception as error:  # noqa: BLE001 -- a finding of its own
            text = make_unexpected(error).message
        else:
            self.findings += found
            return True
        self.findings.append(Finding(self.area, name, failed, text))
        return False
