"""Measures incidents, each with a fresh setup: a thousand objects posted at once, and an outage of PostgreSQL."""

import anyio

from bench.applying import measure_anew
from bench.floors import measure_return
from bench.objects import load
from bench.outage import measure_outage
from bench.sheet import Sheet
from bench.stand import stand
from pgrole_controller.controller.session_keeper import HEALTHY_SECONDS
from pgrole_controller.local.display import Display

#: Objects posted at once, by this many clients, besides the existing ones.
OBJECTS = 1_000
CLIENTS = 8

#: Numbers of objects during an outage.
OUTAGES = (100, 1_000)

#: Seconds between two outages: a session that ends sooner counts as a failed connection.
_APART = HEALTHY_SECONDS + 2.0


async def measure_objects(display: Display, sheet: Sheet, repetitions: int) -> None:
    for _ in range(repetitions):
        floor, found = await measure_anew(display, OBJECTS, CLIENTS)
        sheet.note("floor.posting", floor.alone, OBJECTS)
        sheet.note("floor.writing", floor.written, OBJECTS)
        sheet.note("objects.posting", found.posting, OBJECTS)
        sheet.note("objects.ready.last", found.after_last, OBJECTS)
        sheet.note("objects.ready.first", found.after_first, OBJECTS)
        sheet.note("objects.cpu", found.controller, OBJECTS)
        sheet.note("objects.cpu.postgres", found.postgres, OBJECTS)
        sheet.note("objects.cpu.apiserver", found.api_server, OBJECTS)


async def measure_outages(display: Display, sheet: Sheet, repetitions: int) -> None:
    present = 0
    async with stand(display) as made:
        await made.start_controller()
        for size in OUTAGES:
            await load(made, present, size)
            present = size
            for _ in range(repetitions):
                sheet.note("floor.return", await measure_return(made), size)
                await anyio.sleep(_APART)
                found = await measure_outage(made, size)
                sheet.note("outage.drift", found.drifted, size)
                sheet.note("outage.spec", found.changed, size)
                sheet.note("outage.ready", found.ready, size)
