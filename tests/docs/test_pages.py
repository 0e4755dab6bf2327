"""Every command of the documentation is run as its reader would run it, in the order of the page."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import anyio
import pytest

from pgrole_controller.local.postgres import DEFAULT_VERSION
from tests.api_server_pool import ApiServerPool
from tests.deploy.programs import Programs
from tests.docs.cluster import DocumentedCluster
from tests.docs.page import COMMANDS, ROOT, Block, pages, read_page
from tests.docs.preconditions import BEFORE, IN_USE
from tests.docs.reader import PageReader, reader
from tests.servers import Servers

BLOCKS = {str(path.relative_to(ROOT)): read_page(path) for path in pages()}
NEEDS_CLUSTER = re.compile(r"\b(?:kubectl|helm|pgrole-controller (?:approve|console|diff|doctor|run))\b")
RUN = [name for name, blocks in BLOCKS.items() if any(block.is_run for block in blocks)]


def parts(blocks: list[Block]) -> Iterator[list[Block]]:
    """Yields the blocks to follow in one cluster, in the order of the page."""
    begins = [0, *(at for at, block in enumerate(blocks) if block.anew and at), len(blocks)]
    for begin, end in pairwise(begins):
        if any(block.is_run for block in blocks[begin:end]):
            yield blocks[begin:end]


def needs_cluster(blocks: list[Block]) -> bool:
    """Tells whether the blocks need a cluster: not if they use PostgreSQL only, or start their own."""
    texts = [block.text for block in blocks if block.is_run]
    brings = any("make dev" in text for text in texts)
    return not brings and any(NEEDS_CLUSTER.search(text) for text in texts)


@pytest.mark.since(DEFAULT_VERSION, "the pages show output of the newest version")
@pytest.mark.parametrize("page", RUN)
async def test_every_command_on_the_page_does_what_the_page_says(
    page: str, api_servers: ApiServerPool, servers: Servers, programs: Programs, tmp_path: Path
) -> None:
    files = [block for block in BLOCKS[page] if block.file is not None]
    for number, blocks in enumerate(parts(BLOCKS[page])):
        folder = tmp_path / str(number)
        needed = api_servers if needs_cluster(blocks) else None
        async with reader(needed, servers, programs, folder, files) as person:
            if person.server is None:
                await person.prepare(BEFORE.get(page, ""))
                await person.follow(blocks)
            else:
                await follow_in_cluster(page, blocks, person, DocumentedCluster(person.server, folder))


async def follow_in_cluster(page: str, blocks: list[Block], person: PageReader, cluster: DocumentedCluster) -> None:
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cluster.run)
            await person.prepare(("" if blocks[0].anew else IN_USE) + BEFORE.get(page, ""))
            await person.follow(blocks)
            tasks.cancel_scope.cancel()
    except* AssertionError as failures:
        raise AssertionError(f"{failures.exceptions[0]}\n\n{cluster.logs()}") from failures


@pytest.mark.parametrize("page", BLOCKS)
def test_every_block_on_the_page_is_run_or_has_a_reason(page: str) -> None:
    excused = [block for block in BLOCKS[page] if block.excuse is not None]
    assert [block.place for block in excused if block.language not in COMMANDS] == [], "never run in any case"
    assert [block.place for block in excused if len((block.excuse or "").split()) < 2] == [], "no reason"
