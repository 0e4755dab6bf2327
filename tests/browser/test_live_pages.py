"""Pages that change while they are open, ten thousand roles, and use by keyboard alone."""

from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.core.request import Key
from tests.browser import snapshots
from tests.browser.conftest import Tab
from tests.browser.snapshots import ago, drift, make_role, store_roles

pytestmark = pytest.mark.slow

_APP = Key("shop", "orders-app")


def change_role(snapshot: Snapshot) -> Snapshot:
    """Returns the snapshot after mallory changed orders-app."""
    entry = drift(ago(seconds=1), "bypassrls", by="mallory", proof="Log")
    _, changed = make_role(*_APP, status={"driftCount": 15, "driftHistory": [entry]})
    return replace(snapshot, roles=store_roles({**snapshot.roles, _APP: changed}.items()))


async def open_live(tab: Tab, path: str) -> None:
    await tab.open(path)
    await expect(tab.page.locator("#live-words")).to_have_text("Live")


async def test_a_drift_appears_without_reloading_the_page(tab: Tab) -> None:
    await open_live(tab, "/roles/shop/orders-app")
    await tab.page.evaluate("globalThis.sameDocument = true")
    await tab.stand.publish(change_role(tab.stand.snapshot), f"role/{_APP}")
    await expect(tab.page.get_by_role("main")).to_contain_text("mallory")
    assert await tab.page.evaluate("globalThis.sameDocument")


@pytest.mark.parametrize("path", [f"/roles/{_APP}", "/"])
async def test_drifts_in_the_same_second_all_remain_on_the_page(tab: Tab, path: str) -> None:
    entries = [drift(ago(minutes=5), field, by="mallory", proof="Log") for field in ("login", "createdb", "inherit")]
    _, changed = make_role(*_APP, status={"driftHistory": entries})
    tab.stand.snapshot = snapshots.make_snapshot([(_APP, changed)])
    await open_live(tab, path)
    rows = tab.page.locator('tr[data-key^="drift-"]')
    await expect(rows).to_have_count(3)
    newest = drift(ago(minutes=1), "replication", by="alice", proof="Log")
    _, changed = make_role(*_APP, status={"driftHistory": [newest, *entries]})
    await tab.stand.publish(snapshots.make_snapshot([(_APP, changed)]), f"role/{_APP}")
    await expect(rows.first).to_contain_text("replication")
    await expect(rows).to_contain_text(["replication", "login", "createdb", "inherit"])
    assert await tab.page.locator("tr[data-fresh]").count() == 1


async def test_an_update_keeps_focus_scroll_position_selection_and_open_details(tab: Tab) -> None:
    await open_live(tab, "/")
    await tab.page.get_by_text("Numbers as a table").click()
    await tab.page.evaluate("""() => {
        const heading = document.getElementById('latest');
        getSelection().selectAllChildren(heading);
        document.querySelector('#chart-table summary').focus({preventScroll: true});
        scrollTo(0, 700);
    }""")
    await tab.stand.publish(change_role(tab.stand.snapshot), f"role/{_APP}")
    await expect(tab.page.get_by_role("main")).to_contain_text("mallory")
    assert await tab.page.evaluate("document.activeElement.textContent") == "Numbers as a table"
    assert await tab.page.evaluate("getSelection().toString()") == "Latest drifts"
    assert await tab.page.evaluate("scrollY") > 0
    assert await tab.page.evaluate("document.getElementById('chart-table').open")


async def test_an_update_is_announced_once(tab: Tab) -> None:
    await open_live(tab, "/")
    await tab.stand.publish(snapshots.calm(), "role/shop/orders-app")
    await expect(tab.page.get_by_role("status")).to_have_text("Nothing needs attention")


async def test_the_page_reports_when_the_api_server_does_not_answer_and_when_it_does_again(tab: Tab) -> None:
    await open_live(tab, "/roles")
    await tab.stand.publish(snapshots.disconnected(), "connection")
    await expect(tab.page.get_by_role("alert")).to_contain_text("The API server does not answer.")
    await tab.stand.publish(snapshots.typical(), "connection")
    await expect(tab.page.get_by_role("alert")).to_have_count(0)


async def test_a_change_that_could_not_be_fetched_is_fetched_again_and_the_page_is_live_again(tab: Tab) -> None:
    await open_live(tab, "/roles/shop/orders-app")
    tab.refusals.add(503)
    await tab.page.evaluate("""() => {
        globalThis.said = [];
        const words = document.getElementById("live-words");
        const note = () => globalThis.said.push(words.textContent);
        new MutationObserver(note).observe(words, {childList: true, characterData: true, subtree: true});
    }""")
    tab.stand.failing = 1
    await tab.stand.publish(change_role(tab.stand.snapshot), f"role/{_APP}")
    await expect(tab.page.get_by_role("main")).to_contain_text("mallory")
    await expect(tab.page.locator("#live-words")).to_have_text("Live")
    assert "Reconnecting" in await tab.page.evaluate("said")


async def set_hidden(page: Page, hidden: bool) -> None:
    """As if another tab were shown, which a browser without windows does not know."""
    await page.evaluate(
        """hidden => {
            Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
            document.dispatchEvent(new Event('visibilitychange'));
        }""",
        hidden,
    )


async def test_many_tabs_take_no_connections_from_the_one_that_is_shown(tab: Tab) -> None:
    await open_live(tab, "/roles/shop/orders-app")
    await set_hidden(tab.page, True)
    for _ in range(7):  # browsers open six connections to a server
        page = await tab.page.context.new_page()
        await page.goto(f"{tab.url}/roles")
        await expect(page.locator("#live-words")).to_have_text("Live")
        await set_hidden(page, True)
    await tab.stand.publish(change_role(tab.stand.snapshot), f"role/{_APP}")
    await set_hidden(tab.page, False)
    await expect(tab.page.get_by_role("main")).to_contain_text("mallory")
    await expect(tab.page.locator("#live-words")).to_have_text("Live")


async def test_a_tab_that_is_shown_again_names_the_user_who_signed_in_meanwhile_and_signs_them_out(tab: Tab) -> None:
    tab.stand.snapshot = replace(tab.stand.snapshot, viewer="alice")
    await open_live(tab, f"/roles/{_APP}")
    await set_hidden(tab.page, True)
    tab.stand.csrf = "of-another-session"
    await tab.stand.publish(replace(change_role(tab.stand.snapshot), viewer="bob"))
    await set_hidden(tab.page, False)
    await expect(tab.page.get_by_role("main")).to_contain_text("mallory")
    await expect(tab.page.locator(".viewer")).to_have_text("Signed in as bob")
    await expect(tab.page.locator('form[action="/logout"] input')).to_have_value("of-another-session")


async def test_an_ended_session_leads_to_the_login_page(tab: Tab) -> None:
    await open_live(tab, "/")
    tab.refusals.add(401)
    tab.stand.logged_in = False
    await tab.stand.publish(tab.stand.snapshot, "connection")
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_a_session_that_ended_at_a_proxy_leads_to_the_proxys_login(tab: Tab) -> None:
    await open_live(tab, "/")
    tab.stand.logged_in, tab.stand.login = False, "http://localhost:9/login"
    await tab.stand.publish(tab.stand.snapshot, "connection")
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert set(tab.strange) == {tab.stand.login}  # Chromium reports the redirect, which it does not follow
    tab.strange.clear()


@pytest.mark.parametrize("login", ["", "http://localhost:9/login"])
async def test_signing_out_leads_to_the_login_page_if_a_proxy_answers_with_its_own_too(tab: Tab, login: str) -> None:
    """The Content-Security-Policy lets no form lead to another site."""
    await open_live(tab, "/")
    tab.stand.login = login
    await tab.page.get_by_role("button", name="Sign out").click()
    await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    assert set(tab.strange) <= {login}  # Chromium reports the redirect, which it does not follow
    tab.strange.clear()


async def test_a_page_appears_before_every_role_is_read_and_fills_up(tab: Tab) -> None:
    some = replace(snapshots.calm(), reading=True)
    tab.stand.snapshot = replace(some, roles=store_roles(list(some.roles.items())[:2]))
    await open_live(tab, "/")
    main = tab.page.get_by_role("main")
    await expect(main).to_contain_text("Reading roles: 2 so far.")
    await expect(main).to_contain_text("Nothing so far.")
    await expect(main).not_to_contain_text("Nothing needs attention")
    await tab.stand.publish(snapshots.calm(), "progress")
    await expect(main).to_contain_text("Nothing needs attention")
    await expect(main).not_to_contain_text("Reading roles")


async def test_the_title_of_a_page_follows_what_is_read(tab: Tab) -> None:
    tab.stand.snapshot = replace(snapshots.empty(), reading=True)
    await open_live(tab, f"/roles/{_APP}")
    await expect(tab.page).to_have_title("Reading · pgrole")
    await tab.stand.publish(snapshots.typical(), f"role/{_APP}")
    await expect(tab.page).to_have_title("orders-app · pgrole")


async def test_typing_searches_ten_thousand_roles(tab: Tab) -> None:
    tab.stand.snapshot = snapshots.many()
    await open_live(tab, "/roles")
    await expect(tab.page.get_by_text("10,000 roles", exact=True)).to_be_visible()
    field = tab.page.get_by_label("Search")
    await field.press_sequentially("service-0042", delay=20)
    await expect(tab.page.locator("#matching")).to_have_text("10 of 10,000 roles")
    await expect(field).to_be_focused()
    await expect(field).to_have_value("service-0042")
    await expect(tab.page.locator("tbody tr")).to_have_count(10)
    assert tab.page.url.endswith("q=service-0042&sort=state")
    await expect(tab.page.get_by_role("status")).to_have_text("10 of 10,000 roles")
    asked = len(tab.stand.asked)
    await field.evaluate("""field => {
        for (const text of ["service-004", "service-00", "service-0", "service-"]) {
            field.value = text;
            field.dispatchEvent(new Event("input", {bubbles: true}));
        }
    }""")
    await expect(tab.page.locator("#matching")).not_to_have_text("10 of 10,000 roles")
    assert len(tab.stand.asked) == asked + 1


async def test_the_list_can_be_paged_filtered_and_sorted(tab: Tab) -> None:
    tab.stand.snapshot = snapshots.many(1000)
    await open_live(tab, "/roles?sort=name")
    await tab.page.get_by_role("link", name="Next").click()
    await expect(tab.page.get_by_text("Page 2 of 10")).to_be_visible()
    await expect(tab.page.locator("tbody th a").first).to_have_text("service-00100")
    await tab.page.get_by_label("Namespace").select_option("team-07")
    await expect(tab.page.locator("#matching")).to_have_text("25 of 1,000 roles")
    await tab.page.get_by_label("Sort by").select_option("drift")
    await expect(tab.page).to_have_url(tab.stand.url + "/roles?namespace=team-07&sort=drift")
    await tab.page.get_by_role("navigation", name="States").get_by_role("link", name="Ready").click()
    await expect(tab.page.locator("#namespace")).to_have_value("team-07")


async def test_a_keyboard_reaches_everything_in_order(tab: Tab) -> None:
    await open_live(tab, "/roles")
    reached = []
    for _ in range(24):
        await tab.page.keyboard.press("Tab")
        reached.append(
            await tab.page.evaluate("""() => {
                const at = document.activeElement, style = getComputedStyle(at);
                const shown = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
                return [(at.textContent.trim() || at.id).split(/\\s+/).slice(0, 3).join(' '), shown];
            }""")
        )
    names = [name for name, _ in reached]
    assert names[:7] == ["Skip to content", "pgrole", "Overview", "Roles", "Servers", "Dark theme", "Sign out"]
    assert names[7] == "search"
    assert "billing-app" in names
    assert all(shown for _, shown in reached)


async def test_the_skip_link_skips_the_header(tab: Tab) -> None:
    await tab.open("/roles")
    await tab.page.keyboard.press("Tab")
    await tab.page.keyboard.press("Enter")
    await tab.page.keyboard.press("Tab")
    await expect(tab.page.get_by_label("Search")).to_be_focused()


async def test_the_slash_key_focuses_the_search(tab: Tab) -> None:
    await tab.open("/roles")
    await tab.page.keyboard.press("/")
    await tab.page.keyboard.type("legacy")
    await expect(tab.page.locator("tbody tr")).to_have_count(1)
