"""controller/watchdog: a call that blocks the event loop is logged while it does. Each test runs its own process."""

import json
import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest

PROGRAM = """
import time
import anyio
from pgrole_controller import logs, metrics
from pgrole_controller.controller import watchdog

logs.set_up("info", "json")
watchdog.LINE_SECONDS = 0.0
watchdog.START_SECONDS = 0.0

def compute(seconds):
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass

async def parse(text, seconds):
    compute(seconds)

async def main():
    {body}
    print(int(metrics.LOOP_BLOCKS._value.get()))

anyio.run(main, backend_options={{"loop_factory": watchdog.watched_loop}})
"""


def run(body: str) -> tuple[list[dict[str, Any]], int]:
    """Returns the logged lines, and how often the loop was blocked."""
    text = dedent(PROGRAM).format(body=body.replace("\n", "\n    "))
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    return [line for line in lines if line["message"] == "event loop blocked"], int(ended.stdout)


@pytest.mark.parametrize("before", ["await anyio.sleep(0.3)", "for _ in range(500): await anyio.sleep(0)"])
def test_a_call_that_blocks_the_loop_is_logged_with_its_stack_and_without_values(before: str) -> None:
    """After rest, and in the middle of work."""
    lines, blocks = run(f"{before}\nawait parse('hunter2', 1.5)\nawait anyio.sleep(0)")
    stacks = [line["stack"] for line in lines if "parse" in line["stack"]]
    assert stacks
    assert stacks[0].endswith(" compute")
    assert "hunter2" not in json.dumps(lines)
    assert blocks >= 1


def test_a_loop_that_waits_is_not_blocked() -> None:
    lines, _ = run("await anyio.sleep(1.0)\nawait anyio.sleep(1.0)")
    assert [line for line in lines if " main" in line["stack"]] == []


def test_a_call_that_lets_no_other_thread_run_is_logged_as_well() -> None:
    lines, blocks = run("await anyio.sleep(0.2)\nsum(range(30_000_000))\nawait anyio.sleep(0)")
    assert blocks >= 1
    assert lines


def test_the_log_is_not_flooded() -> None:
    body = "for _ in range(5):\n    await anyio.sleep(0)\n    compute(0.15)"
    text = dedent(PROGRAM).replace("watchdog.LINE_SECONDS = 0.0", "").format(body=body.replace("\n", "\n    "))
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stderr.count("event loop blocked") == 1
    assert int(ended.stdout) >= 4  # the last block may still last


#: The thread starts before the watchdog, so SIGALRM is not blocked in it. `Late` keeps Python after it has given up its
#: handlers.
ENDING = """
import threading, time
import anyio
from pgrole_controller.controller import watchdog

watchdog.START_SECONDS = 0.0
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
        print("late", flush=True)

late = Late()

async def main():
    for _ in range(500):
        await anyio.sleep(0)

anyio.run(main, backend_options={"loop_factory": watchdog.watched_loop})
"""


def test_the_timer_ends_with_the_loop() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "late\n", "")
