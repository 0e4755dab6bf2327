"""Reads a controller's metrics like Prometheus."""

from collections.abc import Callable
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from pgrole_controller.local.process import reached
from tests.acceptance.world import PATIENCE, Controller

SampleKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class ScrapedMetrics:
    """`/metrics` at one moment."""

    text: str
    samples: dict[SampleKey, float]

    def get(self, name: str, **labels: str) -> float | None:
        """Returns the one sample with these labels; None if there is none."""
        return self.samples.get((name, frozenset(labels.items())))

    def sum(self, name: str, **labels: str) -> float:
        """Sums all samples that have at least these labels."""
        return sum(
            value for (of, held), value in self.samples.items() if of == name and labels.items() <= dict(held).items()
        )


async def scrape(controller: Controller) -> ScrapedMetrics:
    url = f"http://127.0.0.1:{controller.health_port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        text = await response.text()
    families = text_string_to_metric_families(text)
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }
    return ScrapedMetrics(text, samples)


async def wait_figures(controller: Controller, true: Callable[[ScrapedMetrics], bool], what: str) -> ScrapedMetrics:
    """Returns the metrics once `true` holds for them."""
    last: list[ScrapedMetrics] = []

    async def is_so() -> bool:
        last[:] = [await scrape(controller)]
        return true(last[0])

    if not await reached(is_so, PATIENCE):
        raise AssertionError(f"{what} did not come true within {PATIENCE} s:\n{last[0].text}")
    return last[0]
