"""Each view in a real browser: its content, no violation of WCAG 2.2 AA, and no horizontal scrolling."""

from collections.abc import Callable

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import ViewportSize, expect

from pgrole_controller.console.snapshot import Snapshot
from tests.browser import snapshots
from tests.browser.conftest import WIDE, Tab
from tests.browser.snapshots import ago, drift, make_role

pytestmark = pytest.mark.slow

#: A phone.
NARROW: ViewportSize = {"width": 360, "height": 740}
_RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}
_VIEWS: list[tuple[str, Callable[[], Snapshot]]] = [
    ("/", snapshots.typical),
    ("/roles", snapshots.typical),
    ("/roles/shop/orders-app", snapshots.typical),
    ("/roles/billing/billing-app", snapshots.typical),
    ("/roles/billing/legacy-batch", snapshots.typical),
    ("/servers", snapshots.typical),
    ("/servers/orders", snapshots.typical),
    ("/servers/warehouse", snapshots.typical),
    ("/roles/shop/gone", snapshots.typical),
    ("/login", snapshots.typical),
    ("/login?problem=the+token+has+expired", snapshots.typical),
    ("/", snapshots.calm),
    ("/", snapshots.empty),
    ("/roles", snapshots.without_rights),
    ("/", snapshots.restricted),
    ("/servers", snapshots.disconnected),
    ("/", snapshots.hostile),
    ("/roles", snapshots.hostile),
    ("/roles/hostile/role-0", snapshots.hostile),
    ("/roles/hostile/role-6", snapshots.hostile),
]
_NAMES = [f"{make.__name__}{path}" for path, make in _VIEWS]


async def find_violations(tab: Tab) -> list[str]:
    """Returns violations that axe finds. Its script is evaluated, not loaded, so the CSP remains unchanged, and only
    once in a document, since the browser needs longer to compile it than to check a page.
    """
    if not await tab.page.evaluate("'axe' in globalThis"):
        await tab.page.evaluate(AXE_SCRIPT)
    results = await tab.page.evaluate("rules => axe.run(rules)", _RULES)
    return [
        f"{found['id']}: {node['target']} {node['failureSummary']}"
        for found in results["violations"]
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(("path", "make"), _VIEWS, ids=_NAMES)
async def test_no_view_violates_axe_in_either_theme_or_scrolls_sideways_on_a_narrow_screen(
    tab: Tab, path: str, make: Callable[[], Snapshot]
) -> None:
    tab.stand.snapshot = make()
    await tab.page.set_viewport_size(NARROW)
    await tab.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    await tab.open(path)
    assert await tab.page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    assert await find_violations(tab) == []
    await tab.page.set_viewport_size(WIDE)
    for summary in await tab.page.locator("main summary").all():
        await summary.click()
    assert await find_violations(tab) == []
    await tab.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
    assert await find_violations(tab) == []


async def test_axe_detects_violations(tab: Tab) -> None:
    await tab.open("/")
    await tab.page.evaluate("""() => {
        document.querySelector('h1').style.color = '#ccc';
        document.querySelector('.brand img').removeAttribute('alt');
    }""")
    assert {found.split(":")[0] for found in await find_violations(tab)} == {"color-contrast", "image-alt"}


async def test_the_overview_shows_what_needs_attention_first(tab: Tab) -> None:
    await tab.open("/")
    attention = tab.page.locator("section", has=tab.page.get_by_role("heading", name="Needs attention"))
    await expect(attention.get_by_role("listitem").first).to_contain_text("warehouse")
    await expect(attention.get_by_role("listitem").nth(1)).to_contain_text("billing-app")
    await expect(tab.page.get_by_role("img", name="25 corrected and 4 only reported")).to_be_visible()
    await expect(tab.page.get_by_role("row", name="orders-app").first).to_contain_text("alice as dba")


async def test_a_role_page_shows_the_remedy_the_author_and_its_yaml(tab: Tab) -> None:
    await tab.open("/roles/billing/billing-app")
    main = tab.page.get_by_role("main")
    await expect(main).to_contain_text("Something else reverts every repair")
    await expect(main).to_contain_text("Stop the other writer, or list the field in spec.drift.ignore.")
    await expect(main).to_contain_text("terraform")
    await tab.page.get_by_role("link", name="View as YAML").click()
    await expect(tab.page.get_by_role("region", name="YAML")).to_contain_text("kind: PgRole")


async def test_the_membership_graph_can_be_navigated(tab: Tab) -> None:
    await tab.open("/roles/shop/orders-app")
    graph = tab.page.get_by_role("region", name="Graph of memberships")
    await graph.get_by_role("link", name="readers").click()
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("readers")
    await graph.get_by_role("link", name="orders_app").focus()
    await tab.page.keyboard.press("Enter")
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("orders-app")


@pytest.mark.parametrize("sign", ["w", "m", "W", "N", "i", "@", "\u05d0"])
async def test_the_name_of_a_role_stays_within_its_node_in_the_graph(tab: Tab, sign: str) -> None:
    spec = {"memberOf": [{"role": sign * 63}, {"role": sign * 7}]}
    tab.stand.snapshot = snapshots.make_snapshot([make_role("shop", "app", spec=spec)])
    await tab.open("/roles/shop/app")
    room = await tab.page.locator("g.node").evaluate_all(
        "nodes => nodes.map(node => node.querySelector('rect').getBBox().width"
        " - node.querySelector('.label').getBBox().width)"
    )
    assert len(room) == 3
    assert min(room) > 0


async def test_hostile_names_are_shown_as_text(tab: Tab) -> None:
    tab.stand.snapshot = snapshots.hostile()
    for number in range(len(snapshots.HOSTILE)):
        await tab.open(f"/roles/hostile/role-{number}")
        await expect(tab.page.get_by_role("main")).to_be_visible()
    for path in ("/", "/roles", "/servers"):
        await tab.open(path)
        await expect(tab.page.get_by_role("main")).to_contain_text("<script>globalThis.pwned=1</script>")
        assert await tab.page.evaluate("globalThis.pwned") is None


async def test_an_application_written_from_right_to_left_leaves_the_address_whole(tab: Tab) -> None:
    author = {"login": "bob", "role": "dba", "application": "\u05d0\u05d1", "address": "2001:db8::7", "proof": "Log"}
    role = make_role("shop", "app", status={"lastDrift": {**drift(ago(minutes=1), "login"), "by": author}})
    tab.stand.snapshot = snapshots.make_snapshot([role])
    await tab.open("/roles/shop/app")
    author_and_place = tab.page.locator("td", has_text="2001:db8::7").last
    left, right = await author_and_place.evaluate("""cell => {
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) {
            const text = walker.currentNode, start = text.data.indexOf("2001:");
            if (start < 0) continue;
            return [start + 3, start + 4].map((place) => {
                const range = document.createRange();
                range.setStart(text, place);
                range.setEnd(text, place + 1);
                return range.getBoundingClientRect().left;
            });
        }
    }""")
    assert 0 < right - left < 12  # the colon stands beside 2001


async def test_a_chosen_theme_is_remembered(tab: Tab) -> None:
    await tab.open("/")
    toggle = tab.page.get_by_role("button", name="Dark theme")
    await expect(toggle).to_have_attribute("aria-pressed", "false")
    light = await tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    await toggle.click()
    await expect(toggle).to_have_attribute("aria-pressed", "true")
    await tab.open("/roles")
    assert await tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != light


async def test_every_view_and_the_search_work_without_scripts(tab: Tab) -> None:
    browser = tab.page.context.browser
    assert browser is not None
    context = await browser.new_context(java_script_enabled=False)
    try:
        page = await context.new_page()
        await page.goto(f"{tab.stand.url}/roles")
        await page.get_by_label("Search").fill("legacy")
        await page.get_by_role("button", name="Apply").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("link", name="legacy-batch").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("legacy-batch")
        await expect(page.get_by_role("button", name="Dark theme")).to_be_hidden()
    finally:
        await context.close()
