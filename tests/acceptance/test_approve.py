"""A person approves reported drift: the controller corrects exactly that drift, once."""

import re
import secrets
from typing import Any

import pytest

from pgrole_controller.commands.approve import drift_of, set_approval
from pgrole_controller.core.approval import APPROVE
from pgrole_controller.core.errors import Refused
from pgrole_controller.kube.client import Client
from tests.acceptance.replicas import replicas
from tests.acceptance.world import Database, Json, Kube, Stage, condition, is_ready, running, says
from tests.commands import run_command


@pytest.fixture
def role_name() -> str:
    return f"approve_{secrets.token_hex(4)}"


REPORT = {"drift": {"policy": "Report"}}


async def report(kube: Kube, database: Database, role: str, drift: str = "CREATEDB", **more: Any) -> Json:
    """Returns the object once the drift is reported and can be approved."""
    await kube.apply("app", name=role, **REPORT, **more)
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} {drift}")
    return await wait_offer(kube)


async def wait_offer(kube: Kube, other_than: str = "") -> Json:
    return await kube.wait_for("app", lambda obj: digest_of(obj) not in ("", other_than), "an offer")


async def look_again(kube: Kube, database: Database, role: str, digest: str) -> None:
    """Waits until a further drift is offered, so whatever came before it was decided on, and takes that drift back."""
    await database.execute(f"ALTER ROLE {role} CREATEROLE")
    await wait_offer(kube, digest)
    await database.execute(f"ALTER ROLE {role} NOCREATEROLE")
    await kube.wait_for("app", lambda obj: digest_of(obj) == digest, "the former offer")


def digest_of(obj: Json) -> str:
    return str(obj.get("status", {}).get("approval", {}).get("digest", ""))


async def annotate(kube: Kube, value: str | None) -> None:
    await kube.patch("app", {"metadata": {"annotations": {APPROVE: value}}})


def is_handled(obj: Json, value: str) -> bool:
    return bool(obj["status"].get("approval", {}).get("handled") == value)


async def test_an_approval_corrects_a_drift_once_and_the_same_drift_is_reported_again(
    kube: Kube, database: Database, role_name: str
) -> None:
    obj = await report(kube, database, role_name, "CREATEDB CONNECTION LIMIT 99")
    offer = obj["status"]["approval"]
    assert re.fullmatch("[0-9a-f]{32}", offer["digest"])
    assert {"name": "connectionLimit", "declared": "-1", "observed": "99"} in offer["fields"]
    value = f"{offer['digest']}/ticket-7"
    await annotate(kube, value)
    obj = await kube.wait_ready("app")
    role = await database.role(role_name)
    assert role is not None
    assert (role["rolcreatedb"], role["rolconnlimit"]) == (False, -1)
    assert obj["status"]["driftCount"] == 1
    assert obj["status"]["lastDrift"]["corrected"] is True
    assert obj["status"]["approval"] == {"handled": value}
    assert (await database.claim(role_name) or {})["approve_handled"] == value
    event = await kube.wait_event("DriftCorrected", about="app")
    assert 'the approver\'s text "ticket-7" is unverified' in event["note"]

    # The annotation still exists, and the same drift has the digest that it names.
    await database.execute(f"ALTER ROLE {role_name} CREATEDB CONNECTION LIMIT 99")
    obj = await wait_offer(kube)
    assert obj["status"]["approval"] == {**offer, "handled": value}
    await kube.patch("app", {"metadata": {"annotations": {"example.com/poke": "1"}}})
    await look_again(kube, database, role_name, offer["digest"])
    assert (await database.role(role_name) or {})["rolcreatedb"]
    # A different text makes it another approval.
    await annotate(kube, f"{offer['digest']}/ticket-8")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 2


async def test_a_further_drift_invalidates_the_approval_and_the_object_asks_for_another(
    kube: Kube, database: Database, role_name: str
) -> None:
    before = digest_of(await report(kube, database, role_name))
    await database.execute(f"ALTER ROLE {role_name} CREATEROLE")
    obj = await wait_offer(kube, before)
    await annotate(kube, f"{before}/late")
    obj = await kube.wait_for("app", lambda obj: says(obj, "DriftReported", APPROVE, "approve again"), "no match")
    role = await database.role(role_name)
    assert role is not None
    assert (role["rolcreatedb"], role["rolcreaterole"]) == (True, True)
    assert "handled" not in obj["status"]["approval"]
    await annotate(kube, f"{digest_of(obj)}/now")
    await kube.wait_ready("app")


async def test_another_value_of_the_same_field_has_another_digest(
    kube: Kube, database: Database, role_name: str
) -> None:
    before = digest_of(await report(kube, database, role_name, "CONNECTION LIMIT 5"))
    await database.execute(f"ALTER ROLE {role_name} CONNECTION LIMIT 6")
    await wait_offer(kube, before)
    await annotate(kube, f"{before}/late")
    await kube.wait_for("app", lambda obj: says(obj, "DriftReported", APPROVE), "a mismatch")
    assert (await database.role(role_name) or {})["rolconnlimit"] == 6


@pytest.mark.parametrize(
    "made",
    [
        "{digest}",
        "{digest}/",
        "/{digest}/x",
        "sha256:{digest}/x",
        "x" * 60_000,
        "{digest}/" + "x" * 60_000,
        "\u202e\x07%s'; DROP ROLE postgres; --",
    ],
)
async def test_an_invalid_approval_is_reported_and_corrects_nothing(
    kube: Kube, database: Database, role_name: str, made: str
) -> None:
    digest = digest_of(await report(kube, database, role_name))
    await annotate(kube, made.replace("{digest}", digest))
    await kube.wait_for("app", lambda obj: says(obj, "DriftReported", APPROVE), "a mismatch")
    assert (await database.role(role_name) or {})["rolcreatedb"]
    await annotate(kube, f"{digest}/{'words ' * 20}")
    await kube.wait_ready("app")


async def test_an_approval_is_invalid_for_another_generation_of_the_spec(
    kube: Kube, database: Database, role_name: str
) -> None:
    before = digest_of(await report(kube, database, role_name))
    await kube.patch("app", {"spec": {"drift": {"ignore": ["comment"]}}})
    obj = await kube.wait_for("app", lambda obj: digest_of(obj) not in ("", before), "another digest")
    await annotate(kube, f"{before}/late")
    await kube.wait_for("app", lambda obj: says(obj, "DriftReported", APPROVE), "a mismatch")
    assert (await database.role(role_name) or {})["rolcreatedb"]
    assert digest_of(obj) != before


async def test_approval_recreates_a_dropped_role_and_accepts_one_with_another_oid(
    kube: Kube, database: Database, role_name: str
) -> None:
    await kube.apply("app", name=role_name, login=True, **REPORT)
    await kube.wait_ready("app")
    await database.execute(f"DROP ROLE {role_name}")
    before = digest_of(await wait_offer(kube))
    await annotate(kube, f"{before}/1")
    obj = await kube.wait_ready("app")
    assert (await database.role(role_name) or {})["rolcanlogin"]
    await database.execute(f"BEGIN; DROP ROLE {role_name}; CREATE ROLE {role_name} LOGIN; COMMIT")
    obj = await wait_offer(kube, before)
    assert obj["status"]["approval"]["fields"] == [{"name": "role"}]
    await annotate(kube, f"{digest_of(obj)}/2")
    obj = await kube.wait_ready("app")
    assert obj["status"]["role"]["oid"] == (await database.role(role_name) or {})["oid"]


async def test_approval_restores_a_password_and_its_digest_tests_no_guess(
    kube: Kube, database: Database, role_name: str
) -> None:
    """Another password set meanwhile is another drift; the digest depends on a value that only the claim holds."""
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role_name, password={"secretRef": {"name": "source"}}, **REPORT)
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role_name} PASSWORD 'theirs'")
    obj = await wait_offer(kube)
    assert obj["status"]["approval"]["fields"] == [{"name": "password"}]
    before = digest_of(obj)
    await database.execute(f"ALTER ROLE {role_name} PASSWORD 'another'")
    obj = await wait_offer(kube, before)
    await annotate(kube, f"{before}/late")
    await kube.wait_for("app", lambda obj: says(obj, "DriftReported", APPROVE), "a mismatch")
    await database.wait_password(role_name, "another")
    await annotate(kube, f"{digest_of(obj)}/now")
    await database.wait_password(role_name, "ours")
    await kube.wait_ready("app")


async def test_policy_correct_ignores_the_annotation(kube: Kube, database: Database, role_name: str) -> None:
    digest = digest_of(await report(kube, database, role_name))
    await kube.apply("app", name=role_name, drift={"policy": "Correct"})
    await kube.wait_ready("app")
    await annotate(kube, f"{digest}/x")
    await database.execute(f"ALTER ROLE {role_name} CREATEDB")
    await database.wait_role(role_name, lambda row: not row["rolcreatedb"], "repaired")
    obj = await kube.wait_ready("app")
    assert "approval" not in obj["status"]


@pytest.mark.slow
class TestOwnController:
    async def test_after_a_kill_following_the_commit_the_approval_is_not_used_again(
        self, stage: Stage, role_name: str
    ) -> None:
        """The claim records the approval, whatever status contains."""
        async with stage.database() as database:
            controller = stage.controller()
            await controller.start()
            digest = digest_of(await report(stage.kube, database, role_name))
            await annotate(stage.kube, f"{digest}/1")
            await database.wait_role(role_name, lambda row: not row["rolcreatedb"], "corrected")
            await controller.kill()
            assert (await database.claim(role_name) or {})["approve_handled"] == f"{digest}/1"
            await database.execute(f"ALTER ROLE {role_name} CREATEDB")
            async with running(stage.controller()):
                obj = await stage.kube.wait_for(
                    "app", lambda obj: is_handled(obj, f"{digest}/1") and digest_of(obj) == digest, "reported again"
                )
                assert condition(obj, "Ready")["reason"] == "DriftReported"
                await look_again(stage.kube, database, role_name, digest)
                assert (await database.role(role_name) or {})["rolcreatedb"]

    async def test_an_approval_during_failover_is_used_once(self, stage: Stage, role_name: str) -> None:
        """The first one stops before it sees the annotation, the second corrects, and the first one continues."""
        async with replicas(stage) as pair:
            await pair.first.start()
            await pair.first.leads()
            await pair.second.start()
            await pair.second.stands_by()
            kube, database = pair.stage.kube, pair.database
            digest = digest_of(await report(kube, database, role_name))
            pair.first.pause()
            await annotate(kube, f"{digest}/1")
            await pair.second.leads()
            await database.wait_role(role_name, lambda row: not row["rolcreatedb"], "corrected")
            await kube.wait_for("app", lambda obj: is_handled(obj, f"{digest}/1") and is_ready(obj), "handled")
            await database.execute(f"ALTER ROLE {role_name} CREATEDB")
            pair.first.resume()
            await pair.first.controller.wait_count("no longer leading", 1)
            await kube.wait_for(
                "app", lambda obj: is_handled(obj, f"{digest}/1") and digest_of(obj) == digest, "reported again"
            )
            await look_again(kube, database, role_name, digest)
            assert (await database.role(role_name) or {})["rolcreatedb"]
            claim = await database.claim(role_name) or {}
            assert (claim["approve_handled"], claim["drift_count"]) == (f"{digest}/1", 1)

    async def test_without_the_schema_the_used_approval_is_recorded_in_status(
        self, stage: Stage, role_name: str
    ) -> None:
        async with stage.database() as database:
            async with running(stage.controller(None, "--install", "false")):
                digest = digest_of(await report(stage.kube, database, role_name))
                await annotate(stage.kube, f"{digest}/1")
                await stage.kube.wait_for("app", lambda obj: is_handled(obj, f"{digest}/1"), "handled")
                await stage.kube.wait_ready("app")
            await database.execute(f"ALTER ROLE {role_name} CREATEDB")
            async with running(stage.controller(None, "--install", "false")):
                await stage.kube.wait_for("app", lambda obj: digest_of(obj) == digest, "reported again")
                await look_again(stage.kube, database, role_name, digest)
                assert (await database.role(role_name) or {})["rolcreatedb"]


async def run_approve(kube: Kube, *arguments: str) -> tuple[int, str]:
    """Returns the exit code and what was printed."""
    answer = await run_command(
        "approve", "app", "-n", kube.namespace, *arguments, KUBECONFIG=str(kube.server.kubeconfig)
    )
    return answer.code, answer.err + answer.out


class TestTheCommand:
    async def test_it_shows_the_drift_and_approves_its_correction(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        await report(kube, database, role_name, "CONNECTION LIMIT 99", comment="\x1b[31mred")
        await database.execute(f"COMMENT ON ROLE {role_name} IS E'\\x1b[2Jgone'")
        await kube.wait_for("app", lambda obj: len(obj["status"]["approval"].get("fields", ())) == 2, "both fields")
        code, printed = await run_approve(kube, "--yes")
        assert code == 0, printed
        assert "connectionLimit: 99 -> -1" in printed
        assert printed.rstrip().endswith("corrected")
        assert "\x1b" not in printed
        assert "gone" in printed
        await kube.wait_ready("app")
        assert (await database.role(role_name) or {})["rolconnlimit"] == -1

    @pytest.mark.usefixtures("controller")
    async def test_it_refuses_an_object_without_approvable_drift(self, kube: Kube, role_name: str) -> None:
        code, printed = await run_approve(kube, "--yes")
        assert (code, "does not exist: check its name and namespace (-n)" in printed) == (1, True)
        await kube.apply("app", name=role_name)
        await kube.wait_ready("app")
        code, printed = await run_approve(kube, "--yes")
        assert (code, "spec.drift.policy is Correct" in printed) == (1, True)
        await kube.apply("app", name=role_name, **REPORT)
        await kube.wait_for("app", is_ready, "reconciled")
        code, printed = await run_approve(kube, "--yes")
        assert (code, "no drift is reported" in printed) == (1, True)
        code, printed = await run_approve(kube)
        assert (code, "--yes" in printed) == (2, True)

    async def test_a_drift_that_changed_after_it_was_shown_is_not_approved(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        shown = drift_of(await report(kube, database, role_name))
        config = str(kube.server.kubeconfig)
        async with Client.connect(config) as client:
            await kube.patch("app", {"metadata": {"labels": {"any": "thing"}}})
            await database.execute(f"ALTER ROLE {role_name} CREATEROLE")
            await wait_offer(kube, shown.digest)
            with pytest.raises(Refused, match="changed after its drift was shown"):
                await set_approval(client, shown, f"{shown.digest}/x")
        assert APPROVE not in ((await kube.get("app") or {})["metadata"].get("annotations") or {})

    async def test_an_object_with_an_unrelated_change_is_approved(
        self, kube: Kube, database: Database, role_name: str
    ) -> None:
        shown = drift_of(await report(kube, database, role_name))
        async with Client.connect(str(kube.server.kubeconfig)) as client:
            await kube.patch("app", {"metadata": {"labels": {"any": "thing"}}})
            await set_approval(client, shown, f"{shown.digest}/x")
        await kube.wait_ready("app")
