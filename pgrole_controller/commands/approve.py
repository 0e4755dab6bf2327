"""The command `approve`: shows the reported drift of one PgRole, asks, and has the controller correct it once.

The command only sets an annotation. It approves what it has shown: if the object reports something else by then, the
command sets nothing, and if the database changes later, the controller corrects nothing.
"""

import argparse
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

import anyio
from rich.console import Console

from pgrole_controller.commands.output import finish, make_console, spell_error
from pgrole_controller.commands.plan_cluster import current_namespace
from pgrole_controller.commands.server_reading import ClusterChoice, cluster_choice, open_cluster
from pgrole_controller.core.approval import APPROVE
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.password import request_of
from pgrole_controller.ending import DONE, FAILED, make_printable
from pgrole_controller.kube.errors import ApiError, KubeError, is_absent, is_away
from pgrole_controller.kube.resource import MERGE_PATCH, PGROLES
from pgrole_controller.kube.unvalidated import mapping, parse, sequence, whole
from pgrole_controller.program import spell_commands
from pgrole_controller.settings import WrongSetting

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

#: In seconds: the command reads status again after the first; if a drift disappeared without an answer, it counts as
#: gone after the second.
_PAUSE = 0.25
_SETTLED = 3.0

#: Number of attempts: the object changes whenever its status is written, which does not matter while it reports the
#: same drift.
_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ReportedDrift:
    """What one PgRole reports and can be approved. `changes`: by database, in words. The texts are the controller's,
    for people; the command does not rely on their form.
    """

    namespace: str
    name: str
    uid: str
    version: str
    generation: int
    digest: str
    fields: tuple[Mapping[str, Any], ...]
    changes: Mapping[str, tuple[str, ...]]

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for objects that report the same drift."""
        return self.uid, self.generation, self.digest


@dataclass(frozen=True, slots=True)
class Progress:
    """What the controller has reported about an approval. `left`: subjects not yet corrected, in words; `offered`:
    some of the approved drift is still reported.
    """

    left: tuple[str, ...]
    offered: bool
    message: str


def run(options: argparse.Namespace) -> int:
    """Raises WrongSetting."""
    choice = cluster_choice(options)
    if not options.yes and not sys.stdin.isatty():
        raise WrongSetting("approve asks for confirmation on a terminal: use --yes without one")
    return finish(lambda: _run(options, choice))


def _run(options: argparse.Namespace, choice: ClusterChoice) -> int:
    namespace = current_namespace(choice)
    console = make_console()
    drift = anyio.run(read_drift, choice, namespace, options.name)
    for line in describe_drift(drift):
        console.print(make_printable(line))
    if not options.yes and not _confirms():
        console.print("nothing was approved")
        return FAILED
    return anyio.run(approve, choice, drift, options.wait, console)


def _confirms() -> bool:
    try:
        return input("Correct exactly this, once? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()  # noqa: T201
        return False


async def read_drift(choice: ClusterChoice, namespace: str, name: str) -> ReportedDrift:
    """Raises Refused if there is nothing to approve; ApiError, Unreachable, NotConfigured."""
    async with open_cluster(choice) as client:
        try:
            return drift_of(await _read(client, namespace, name))
        except ApiError as error:
            if not is_absent(error):
                raise
            text = f"PgRole {namespace}/{name} does not exist: check its name and namespace (-n)"
            raise Refused(Reason.INVALID_SPEC, text) from error


async def approve(choice: ClusterChoice, drift: ReportedDrift, wait: float, console: Console) -> int:
    """Sets the annotation and waits up to `wait` seconds for the controller. Returns the exit code.

    Raises Refused if the object reports another drift by now; ApiError, Unreachable, NotConfigured.
    """
    async with open_cluster(choice) as client:
        value = f"{drift.digest}/{secrets.token_hex(8)}"
        is_set = False
        try:
            await set_approval(client, drift, value)
            is_set = True
            progress = await _await_answer(client, drift, value, wait)
        except anyio.get_cancelled_exc_class():
            console.print(f"interrupted: {_doubt(is_set=is_set)}")
            console.print(make_printable(_withdrawal(drift)))
            raise
        except KubeError as error:
            if not is_set and not is_away(error):  # the API server refused it
                raise
            console.print(make_printable(f"{_doubt(is_set=is_set)}: {spell_error(error)}"))
            console.print(make_printable(_withdrawal(drift)))
            return FAILED
    if not progress.left:
        console.print("corrected")
        return DONE
    why = spell_commands(progress.message) or "the object no longer exists"
    if progress.offered:
        console.print(make_printable(f"not corrected within {wait:g} s: {', '.join(progress.left)}. {why}"))
        console.print(make_printable(_withdrawal(drift)))
    else:
        console.print(make_printable(f"not corrected: {', '.join(progress.left)}: the drift has changed. {why}"))
    return FAILED


def _doubt(*, is_set: bool) -> str:
    if is_set:
        return "approved, but whether the controller corrected it is unknown"
    return "whether the approval was set is unknown"


def _withdrawal(drift: ReportedDrift) -> str:
    withdraw = f"kubectl annotate pgrole -n {quote(drift.namespace)} {quote(drift.name)} {APPROVE}-"
    return f"The approval remains valid while exactly this drift is reported. To withdraw it: {withdraw}"


async def set_approval(client: "Client", drift: ReportedDrift, value: str) -> None:
    """Sets the annotation on the object as it was shown. Raises Refused, ApiError, Unreachable."""
    shown = drift
    for _ in range(_ATTEMPTS):
        body = {"metadata": {"resourceVersion": shown.version, "uid": shown.uid, "annotations": {APPROVE: value}}}
        path = PGROLES.path(drift.namespace, drift.name)
        try:
            await client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != 409:
                raise
        else:
            return
        shown = drift_of(await _read(client, drift.namespace, drift.name))
        if shown.identity != drift.identity:
            break
    raise Refused(
        Reason.DRIFT_REPORTED,
        f"PgRole {drift.namespace}/{drift.name} changed after its drift was shown, so nothing was approved: "
        "run `pgrole-controller approve` again",
    )


async def _read(client: "Client", namespace: str, name: str) -> dict[str, Any]:
    return parse(await client.request("GET", PGROLES.path(namespace, name)))


async def _await_answer(client: "Client", drift: ReportedDrift, value: str, wait: float) -> Progress:
    """Raises KubeError if the API server does not answer until the end, or refuses."""
    began = anyio.current_time()
    offered_at = began
    while True:
        try:
            progress = progress_of(drift, value, await _read(client, drift.namespace, drift.name))
        except KubeError as error:
            if isinstance(error, ApiError) and error.status == 404:
                return Progress(tuple(_subjects(drift)), offered=False, message="")
            if not is_away(error) or anyio.current_time() - began >= wait:
                raise
            await anyio.sleep(_PAUSE)
            continue
        now = anyio.current_time()
        if progress.offered:
            offered_at = now
        if not progress.left or now - began >= wait or now - offered_at >= _SETTLED:
            return progress
        await anyio.sleep(_PAUSE)


def drift_of(obj: dict[str, Any]) -> ReportedDrift:
    """Returns the drift that can be approved. Raises Refused, with the remedy, if there is none."""
    metadata, spec, status = (mapping(obj.get(name)) for name in ("metadata", "spec", "status"))
    namespace, name = str(metadata.get("namespace")), str(metadata.get("name"))
    where = f"PgRole {namespace}/{name}"
    policy = mapping(spec.get("drift")).get("policy", "Correct")
    if policy != "Report":
        raise _refuse(
            f"{where}: spec.drift.policy is {policy}, so the controller corrects drift without approval; "
            "approve is for policy Report"
        )
    if status.get("observedGeneration") != metadata.get("generation"):
        raise _refuse(f"{where}: the controller has not reconciled the present spec yet: try again in a moment")
    approval = mapping(status.get("approval"))
    digest = approval.get("digest")
    if not isinstance(digest, str) or not digest:
        raise _refuse(f"{where}: {_why_nothing(status)}")
    databases = [mapping(one) for one in sequence(approval.get("databases"))]
    return ReportedDrift(
        namespace,
        name,
        str(metadata.get("uid")),
        str(metadata.get("resourceVersion")),
        whole(metadata.get("generation")),
        digest,
        tuple(mapping(one) for one in sequence(approval.get("fields"))),
        {str(one.get("name")): tuple(map(str, sequence(one["changes"]))) for one in databases if one.get("changes")},
    )


def _refuse(message: str) -> Refused:
    return Refused(Reason.DRIFT_REPORTED, message)


def _why_nothing(status: Mapping[str, Any]) -> str:
    if not any(mapping(one).get("type") == "DriftDetected" for one in sequence(status.get("conditions"))):
        return "no drift is reported, so there is nothing to approve"
    return (
        f"the drift that is reported cannot be approved: {spell_commands(_message_of(status))}. Approval covers the "
        "role, and privileges in databases with schema pgrole; it needs the CRDs and the schema of this release, and "
        "does not cover a changed connection Secret"
    )


def _message_of(status: Mapping[str, Any]) -> str:
    conditions = [mapping(one) for one in sequence(status.get("conditions"))]
    return next((str(one.get("message")) for one in conditions if one.get("type") == "Ready"), "")


def describe_drift(drift: ReportedDrift) -> Iterator[str]:
    """Lines for people: what differs, and what correcting it does."""
    yield f"PgRole {drift.namespace}/{drift.name} reports this drift:"
    for one in drift.fields:
        name = str(one.get("name"))
        if "observed" in one or "declared" in one:
            observed, declared = (str(one.get(kind, "")) or "(nothing)" for kind in ("observed", "declared"))
            yield f"  {name}: {observed} -> {declared}"
        else:
            yield f"  {name}: back to what is declared"
    for database, changes in drift.changes.items():
        yield f"  privileges in database {database}:"
        yield from (f"    {words}" for words in changes)


def progress_of(drift: ReportedDrift, value: str, obj: dict[str, Any]) -> Progress:
    """Returns what the object reports about the approval `value` of this drift."""
    status, handled = mapping(obj.get("status")), request_of(value)
    approval = mapping(status.get("approval"))
    databases = [mapping(one) for one in sequence(approval.get("databases"))]
    done = {str(one.get("name")) for one in databases if one.get("handled") == handled}
    subjects = _subjects(drift)
    if approval.get("handled") == handled:
        subjects.pop("the role", None)
    left = tuple(words for words, database in subjects.items() if database not in done)
    parts = set(str(approval.get("digest") or "").split("+"))
    return Progress(left, bool(parts & set(drift.digest.split("+"))), _message_of(status))


def _subjects(drift: ReportedDrift) -> dict[str, str | None]:
    """Returns what is corrected separately: words for people, and the database."""
    role: dict[str, str | None] = {"the role": None} if drift.fields else {}
    return role | {f"privileges in database {database}": database for database in drift.changes}
