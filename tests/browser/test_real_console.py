"""The console in a real browser, with a real API server and a real controller."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, expect

from pgrole_controller.local.binaries import Binaries
from tests.acceptance.world import open_database
from tests.browser.conftest import BrowserTab
from tests.browser.real_console import Product, console_program, open_tab, run_product, sign_in
from tests.servers import Servers

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(scope="module")
async def product(
    binaries: Binaries, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Product]:
    async with servers.run() as postgres, run_product(binaries, postgres, tmp_path_factory.mktemp("product")) as made:
        yield made


@pytest_asyncio.fixture
async def page_of_all(browser: Browser, product: Product) -> AsyncIterator[BrowserTab]:
    """The overview of a viewer who can see everything."""
    async with open_tab(browser, product.console.url) as tab:
        await sign_in(tab, await product.accounts.create("shop", everything=True))
        yield tab


async def test_each_view_shows_real_objects(page_of_all: BrowserTab, product: Product) -> None:
    page = page_of_all.page
    main = page.get_by_role("main")
    await expect(main).to_contain_text("3 of 3")
    await page.get_by_role("navigation", name="Views").get_by_role("link", name="Roles").click()
    await expect(page.locator("#matching")).to_have_text("3 roles")
    await page.get_by_role("link", name="orders", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    await expect(page.locator('[data-key="field-connectionLimit"]')).to_contain_text("7")
    obj = await product.shop.get("orders")
    assert obj is not None
    await expect(main).to_contain_text(str(obj["status"]["role"]["oid"]))
    await page.get_by_role("region", name="Graph of memberships").get_by_role("link", name="readers").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("readers")
    await expect(main).to_contain_text("orders_app")
    await page.get_by_role("link", name="main", exact=True).click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("main")
    server = await product.servers.wait_ready("main")
    await expect(main).to_contain_text(server["status"]["version"])


async def test_a_drift_made_with_psql_appears_on_the_open_page(page_of_all: BrowserTab, product: Product) -> None:
    page = page_of_all.page
    await page_of_all.open("/roles/shop/orders")
    await expect(page.locator("#live-words")).to_have_text("Live")
    await page.evaluate("globalThis.sameDocument = true")
    async with open_database(product.postgres.dsn()) as database:
        await database.execute("ALTER ROLE orders_app CREATEDB")
    history = page.get_by_role("region", name="Drift history")
    await expect(history).to_contain_text("createdb")
    await expect(history).to_contain_text("Corrected")
    assert await page.evaluate("globalThis.sameDocument")
    await page_of_all.open("/")
    await expect(page.get_by_role("main")).to_contain_text("1 corrected")


async def test_a_printed_address_opens_only_one_session(browser: Browser, product: Product) -> None:
    arguments = ("--auth=kubeconfig", f"--kubeconfig={product.api.kubeconfig}")
    async with console_program(product.folder, *arguments) as console:
        address = await console.wait_announced(1)
        async with open_tab(browser, console.url) as tab:
            await tab.page.goto(address)
            await expect(tab.page.get_by_role("main")).to_contain_text("3 of 3")
            assert tab.page.url == f"{console.url}/"
            async with open_tab(browser, console.url) as other:
                other.refusals.add(403)
                await other.page.goto(address)
                await expect(other.page.get_by_role("main")).to_contain_text("this address was used before")
            tab.refusals.add(401)
            await tab.page.get_by_role("button", name="Sign out").click()
            await expect(tab.page.get_by_role("main")).to_contain_text("printed last")
            await tab.page.goto(await console.wait_announced(2))
            await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Overview")


async def test_a_viewer_of_one_namespace_sees_its_roles_and_the_names_of_servers(
    browser: Browser, product: Product
) -> None:
    version = (await product.servers.wait_ready("main"))["status"]["version"]
    token = await product.accounts.create("shop", sees=["shop"])
    async with open_tab(browser, product.console.url) as tab:
        await sign_in(tab, token, "shop, billing")
        for path in ("/", "/roles", "/servers"):
            await tab.open(path)
            main = tab.page.get_by_role("main")
            await expect(main).to_contain_text("main" if path == "/servers" else "orders" if path != "/" else "2 of 2")
            for hidden in ("invoices", version, "127.0.0.1"):
                await expect(main).not_to_contain_text(hidden)
        await tab.open("/roles/billing/invoices")
        await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Role not visible to you")
        await tab.open("/servers/main")
        await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Server hidden")


async def test_signing_out_ends_the_session_in_every_tab(page_of_all: BrowserTab, product: Product) -> None:
    other = await page_of_all.page.context.new_page()
    await other.goto(f"{product.console.url}/roles")
    await expect(other.locator("#live-words")).to_have_text("Live")
    page_of_all.refusals.add(401)
    await page_of_all.page.get_by_role("button", name="Sign out").click()
    for page in (page_of_all.page, other):
        await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")
    await page_of_all.page.go_back()
    await expect(page_of_all.page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_a_revoked_token_leads_to_the_login_page_with_the_reason(browser: Browser, product: Product) -> None:
    token = await product.accounts.create("shop", sees=["shop"], name="leaving")
    async with open_tab(browser, product.console.url) as tab:
        await sign_in(tab, token, "shop")
        tab.refusals.add(401)
        await product.accounts.delete("shop", "leaving")
        await expect(tab.page.get_by_role("heading", level=1)).to_have_text("Sign in")
        await expect(tab.page.get_by_role("alert")).to_contain_text("It expired or was revoked.")


async def test_pages_keep_their_content_while_the_api_server_is_down(page_of_all: BrowserTab, product: Product) -> None:
    page = page_of_all.page
    await page_of_all.open("/roles")
    await expect(page.locator("#live-words")).to_have_text("Live")
    await product.api.stop()
    try:
        await expect(page.get_by_role("alert")).to_contain_text("The API server does not answer.")
        await expect(page.locator("tbody tr")).to_have_count(3)
        await page.reload()
        await expect(page.locator("tbody tr")).to_have_count(3)
    finally:
        await product.api.start()
    await expect(page.get_by_role("alert")).to_have_count(0)
    await product.shop.apply("late", name="late_app", serverRef={"name": "main"})
    await expect(page.locator("tbody tr")).to_have_count(4)
    await expect(page.locator("tr", has_text="late_app")).to_contain_text("Ready")


async def test_the_role_page_shows_for_each_field_whether_the_database_matches(
    page_of_all: BrowserTab, product: Product
) -> None:
    page = page_of_all.page

    def field(name: str) -> Locator:
        return page.locator(f'tr[data-key="field-{name}"]')

    await product.shop.apply(
        "watched", name="watched_app", serverRef={"name": "main"}, drift={"policy": "Report"}, connectionLimit=3
    )
    await product.shop.wait_all_ready()
    await page_of_all.open("/roles/shop/watched")
    await expect(field("createdb")).to_contain_text("as declared")
    async with open_database(product.postgres.dsn()) as database:
        await database.execute("ALTER ROLE watched_app CREATEDB")
        await expect(field("createdb")).to_contain_text("differs, and is left as it is")
        await database.execute("ALTER ROLE watched_app CONNECTION LIMIT 4")
        await expect(field("connectionLimit")).to_contain_text("differs, and is left as it is")
        await expect(field("createdb")).to_contain_text("differs, and is left as it is")
        await database.execute("ALTER ROLE watched_app NOCREATEDB")
        await expect(field("createdb")).to_contain_text("not reported as different")
        await expect(field("connectionLimit")).to_contain_text("differs, and is left as it is")
        await database.execute("ALTER ROLE watched_app CONNECTION LIMIT 3")
        await expect(field("connectionLimit")).to_contain_text("as declared")
    await page_of_all.open("/roles/shop/orders")
    await product.postgres.stop()
    try:
        await expect(field("login")).to_contain_text("not confirmed")
        await expect(page.get_by_role("main")).not_to_contain_text("as declared")
    finally:
        await product.postgres.start()
    await expect(field("login")).to_contain_text("as declared")
