"""Whoever watches a document come in sees it whole, in place and as text, in a real browser."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, FilePayload, Page, expect

from local.server import KINDS, Server, find
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.lease import Ready, fail, give_back
from tests.actions import (
    WAIT_SECONDS,
    Client,
    Programs,
    answer_of,
    arrived,
    bearer,
    claimed,
    exchanged,
    pass_time,
    statuses,
    submitted,
    wait_until,
    worked,
)
from tests.browser import chromium, visit
from tests.conftest import AnyServer

# All share one browser, and most of them one node: a browser takes a second to start.
# A page is the same whichever server holds the rows.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.either_server]

one_server = pytest.mark.one_server

OFFERED = '{"target": {"spa": "Spanish", "cat": "Catalan"}}'

SENTENCES = ["The train is late.", "The soup is hot.", "The hut is gone.", "The bread is good."]
TEXT = " ".join(SENTENCES)

expect.set_options(timeout=WAIT_SECONDS * 1000)


class House:
    """A database with one node on it, for many tests: each has requests of its own."""

    def __init__(self, db: Database, programs: Programs, node: Client) -> None:
        self.db = db
        self.programs = programs
        self.url = str(node.base_url)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """The browser of all tests."""
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house(
    server: AnyServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    """A node without keys, and its database."""
    server.execute("CREATE DATABASE partway_pages")
    programs = Programs(server.url("partway_pages"), tmp_path_factory.mktemp("pages"))
    async with open_database(DatabaseSettings(database_url=programs.url, pool_size=20)) as db:
        node = await programs.app(APP_PAGE_PARAMS=OFFERED)
        yield House(db, programs, node)
        await programs.end()
    server.execute("DROP DATABASE partway_pages")


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, house: House) -> AsyncIterator[Page]:
    """A tab of a new visitor, in which nothing may go wrong."""
    async with visit(browser, house.url) as tab:
        yield tab


async def sent(page: Page, db: Database, text: str = TEXT, seconds: int = 50) -> tuple[int, str]:
    """Send a text by the form; the number and the id of its request."""
    await page.goto("/")
    await page.get_by_label("Text", exact=True).fill(text)
    await page.get_by_label("Seconds to wait").fill(str(seconds))
    await page.get_by_role("button", name="Send").click()
    await page.wait_for_url("**/requests/*")
    public_id = page.url.rsplit("/", 1)[1]
    return (await arrived(db, public_id)).id, public_id


def segment(page: Page, index: int) -> Any:
    """The segment of this index, as it stands on the page."""
    return page.locator(f"#s{index}")


async def headline(page: Page, words: str) -> None:
    """Come back once the page says so in its first line."""
    await expect(page.get_by_role("heading", level=1)).to_have_text(words)


async def legend(page: Page) -> dict[str, int]:
    """How many segments the page counts in each state."""
    items = await page.locator(".legend li").all_inner_texts()
    return {word: int(count) for count, word in (item.split() for item in items)}


async def ending(db: Database, number: int) -> None:
    """Finish what is left of a request with its source for a result, as workers would."""
    left = sum(status == "pending" for status in await statuses(db, number))
    await worked(db, number, left)


async def test_a_text_is_sent_and_each_result_comes_into_its_place_before_the_end(
    page: Page, house: House
) -> None:
    number, _ = await sent(page, house.db)
    await page.evaluate("window.isTheSame = true")
    assert await page.locator("#segments > li").count() == 4
    await expect(segment(page, 2)).to_have_attribute("data-state", "pending")
    await expect(segment(page, 2).locator(".word")).to_have_text("waiting")
    await expect(segment(page, 2).locator(".source")).to_have_text(SENTENCES[2])

    first, second = await claimed(house.db, number, 2)
    await expect(segment(page, 1).locator(".word")).to_have_text("working")
    await exchanged(house.db, [Ready(second, "La sopa está caliente.")])
    await expect(segment(page, 1).locator(".word")).to_have_text("done")
    await expect(segment(page, 1).locator(".result")).to_have_text("La sopa está caliente.")
    await headline(page, "1 of 4 done")
    await expect(page.locator("#characters-in")).to_have_text("16")
    await expect(page.locator("#characters-out")).to_have_text("22")
    await expect(page.get_by_text("provisional")).to_be_visible()
    assert await legend(page) == {"waiting": 2, "working": 1, "done": 1, "failed": 0}

    await exchanged(house.db, [Ready(first, "El tren llega tarde.")])
    await ending(house.db, number)
    await expect(page.locator("#sentence")).to_contain_text("The text is complete")
    await headline(page, "4 of 4 done")
    assert await page.title() == "4 of 4 done · Partway"
    await expect(page.locator("dd", has_text="final")).to_be_visible()
    whole = "El tren llega tarde. La sopa está caliente. The hut is gone. The bread is good."
    assert await page.locator("#whole").input_value() == whole
    assert await page.evaluate("window.isTheSame"), "it was never loaded anew"


@one_server
async def test_a_segment_that_is_given_back_waits_again(page: Page, house: House) -> None:
    number, _ = await sent(page, house.db)
    _, second = await claimed(house.db, number, 2)
    await expect(segment(page, 1).locator(".word")).to_have_text("working")

    await give_back(house.db, second)

    await expect(segment(page, 1).locator(".word")).to_have_text("waiting")
    assert await legend(page) == {"waiting": 3, "working": 1, "done": 0, "failed": 0}


@one_server
async def test_what_was_sent_is_answered_at_its_deadline_though_nobody_watches(
    house: House,
) -> None:
    fields = {"text": TEXT, "seconds": "0.5"}
    response = await house.programs.clients[0].post("/", data=fields, files={"file": b""})
    public_id = response.headers["Location"].removeprefix("/requests/")

    async def is_closed() -> bool:
        return (await answer_of(house.db, public_id)).status == "partial"

    await wait_until(is_closed, "the end of the request")


@one_server
async def test_what_is_waited_for_is_said_at_the_quarters_and_the_end_only(
    page: Page, house: House
) -> None:
    number, public_id = await submitted(house.db, 8)
    await worked(house.db, number, 1)
    await page.goto(f"/requests/{public_id}")
    await page.evaluate(
        """() => {
          window.said = [];
          const region = document.querySelector("[role=status]");
          const heard = () => window.said.push(region.textContent);
          new MutationObserver(heard).observe(region, { childList: true });
        }"""
    )
    for done in range(2, 8):
        await worked(house.db, number, 1)
        await headline(page, f"{done} of 8 done")
    await worked(house.db, number, 1)
    await headline(page, "8 of 8 done")
    await expect(page.get_by_role("status")).to_contain_text("8 of 8 done. The text is complete")

    said = await page.evaluate("window.said")

    assert said[:3] == ["2 of 8 done", "4 of 8 done", "6 of 8 done"]
    assert len(said) == 4
    assert await page.locator("[aria-live], [role=alert]").count() == 0


@one_server
async def test_a_reload_and_a_second_tab_show_what_the_rows_say(page: Page, house: House) -> None:
    number, _ = await sent(page, house.db)
    await worked(house.db, number, 1)
    await headline(page, "1 of 4 done")

    await page.reload()
    await headline(page, "1 of 4 done")
    await expect(segment(page, 0).locator(".result")).to_have_text(SENTENCES[0])
    second = await page.context.new_page()
    await second.goto(page.url)
    await worked(house.db, number, 1)
    for tab in (page, second):
        await headline(tab, "2 of 4 done")
        await expect(segment(tab, 1).locator(".result")).to_have_text(SENTENCES[1])
    await ending(house.db, number)
    for tab in (page, second):
        await headline(tab, "4 of 4 done")


@one_server
async def test_nothing_jumps_when_a_result_comes(house: House, browser: Browser) -> None:
    for width in (1100, 320):
        async with visit(browser, house.url, viewport={"width": width, "height": 900}) as page:
            number, _ = await sent(page, house.db)
            boxes = "[...document.querySelectorAll('#segments > li')].map(e => e.offsetTop)"
            before = await page.evaluate(boxes)
            await worked(house.db, number, 2)
            await headline(page, "2 of 4 done")

            assert await page.evaluate(boxes) == before


@one_server
async def test_a_cancel_keeps_what_is_finished_and_what_still_ends_well(
    page: Page, house: House
) -> None:
    number, public_id = await sent(page, house.db)
    await worked(house.db, number, 1)
    (straggler,) = await claimed(house.db, number)
    await headline(page, "1 of 4 done")
    await expect(page.get_by_text("What is finished stays and is billed")).to_be_visible()

    await page.get_by_role("button", name="Cancel").click()

    await headline(page, "1 of 4 done, 3 cancelled")
    await expect(page.locator("#sentence")).to_contain_text("It was cancelled")
    await expect(page.locator("dd", has_text="provisional")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    await exchanged(house.db, [Ready(straggler, "La sopa.")])
    await headline(page, "2 of 4 done, 2 cancelled")
    await expect(segment(page, 1).locator(".result")).to_have_text("La sopa.")
    await expect(page.locator("dd", has_text="final")).to_be_visible()
    usage = (await answer_of(house.db, public_id)).usage
    assert await page.locator("#characters-out").inner_text() == str(usage.output_characters)


@one_server
async def test_a_cancel_from_elsewhere_is_seen(page: Page, house: House) -> None:
    number, _ = await sent(page, house.db)
    await worked(house.db, number, 1)

    await close(house.db, number, "cancelled")

    await headline(page, "1 of 4 done, 3 cancelled")
    assert await legend(page) == {"done": 1, "cancelled": 3}


@one_server
async def test_of_a_partial_answer_the_missing_can_be_tried_again(page: Page, house: House) -> None:
    number, first_id = await sent(page, house.db, seconds=2)
    await worked(house.db, number, 1)
    await headline(page, "1 of 4 done, 3 timed out")
    await expect(page.locator("#sentence")).to_have_text("The time was up after 2 s.")
    await expect(segment(page, 3).locator(".word")).to_have_text("timed out")
    assert await page.locator("#whole").input_value() == TEXT
    assert await page.get_by_label("Show the original").is_hidden()

    await page.get_by_role("button", name="Try the missing 3 again").click()

    await headline(page, "0 of 3 done")
    again_url = page.url
    assert await page.locator(".source").all_inner_texts() == SENTENCES[1:]
    await page.goto(f"/requests/{first_id}")
    await page.get_by_role("button", name="again").click()
    # Twice is once, while it runs.
    await page.wait_for_url(again_url)
    await ending(house.db, (await arrived(house.db, again_url.rsplit("/", 1)[1])).id)
    await headline(page, "3 of 3 done")
    assert await page.locator("#whole").input_value() == "\n".join(SENTENCES[1:])


@one_server
async def test_a_failed_segment_says_why(page: Page, house: House) -> None:
    number, _ = await sent(page, house.db)
    (lease,) = await claimed(house.db, number)
    await fail(house.db, lease, "no_answer: <b>nothing</b> came", 0, 0)
    await expect(segment(page, 0).locator(".word")).to_have_text("failed")
    await expect(segment(page, 0).locator(".result")).to_have_text("no_answer: <b>nothing</b> came")

    await ending(house.db, number)

    await headline(page, "3 of 4 done, 1 failed")
    await expect(page.locator("#sentence")).to_contain_text("Not all of it could be done")


@one_server
async def test_the_whole_text_can_be_copied_and_downloaded(page: Page, house: House) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "  Uno.\n\n\tDos <b>&amp;</b>  tres.\n"
    number, public_id = await sent(page, house.db, text)
    await ending(house.db, number)
    await page.get_by_role("button", name="Copy the text").click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == text

    async with page.expect_download() as coming:
        await page.get_by_role("link", name="Download the text").click()
    download = await coming.value

    assert download.suggested_filename == f"{public_id}.txt"
    assert Path(await download.path()).read_bytes() == text.encode()
    await page.get_by_text("The whole text", exact=True).click()
    await expect(page.get_by_label("The whole text")).to_have_value(text)


# What goes wrong.


@one_server
async def test_what_is_wrong_with_a_form_is_said_and_what_was_written_is_kept(
    browser: Browser, house: House
) -> None:
    async with visit(browser, house.url, expected=("422",)) as page:
        await page.goto("/")
        given = await page.locator("[name=id]").input_value()
        await page.get_by_label("Text", exact=True).fill("  \n ")
        await page.get_by_label("Seconds to wait").fill("12")
        await page.get_by_label("Target").select_option("Catalan")
        await page.get_by_label("Language of the text").select_option("Greek")
        await page.get_by_role("button", name="Send").click()

        await expect(page.get_by_role("alert")).to_contain_text("There is no text.")
        assert await page.get_by_label("Text", exact=True).input_value() == "  \n "
        assert await page.get_by_label("Seconds to wait").input_value() == "12"
        assert await page.get_by_label("Target").input_value() == "cat"
        assert await page.locator("[name=id]").input_value() == given
        assert await page.get_by_label("Language of the text").input_value() == "el"


@one_server
@pytest.mark.parametrize(
    "fields, file, said",
    [
        ({"text": "Here.", "seconds": "1000"}, b"", "The deadline in milliseconds must be at most"),
        ({"text": "Here.", "seconds": "soon"}, b"", "The seconds to wait are not a number."),
        ({"text": "Here.", "seconds": "nan"}, b"", "The seconds to wait are not a number."),
        ({"text": "Here.", "language": "?"}, b"", "The language string should match"),
        ({"text": "Here."}, b"There.", "There is a text and a file."),
        ({"text": ""}, b"\xff\xfe", "The text is not UTF-8."),
        ({}, b"", "There is no text."),
    ],
)
async def test_a_form_that_cannot_be_taken_is_answered_with_a_page(
    house: House, fields: dict[str, str], file: bytes, said: str
) -> None:
    node = house.programs.clients[0]

    response = await node.post("/", data=fields, files={"file": ("a.txt", file)})

    assert response.status_code == 422
    assert "<h2>This was not sent</h2>" in response.text
    assert said in response.text


@one_server
async def test_a_body_that_is_no_form_of_ours_is_refused_with_a_page(house: House) -> None:
    node = house.programs.clients[0]
    for content, kind in (
        (b"{}", "application/json"),
        (b"x", "multipart/form-data"),
        (b"text=x", "application/x-www-form-urlencoded"),
    ):
        response = await node.post("/", content=content, headers={"Content-Type": kind})
        assert (response.status_code, "Send the form of this page." in response.text) == (415, True)

    large = await node.post("/", data={"text": "x" * 3_000_000}, files={"file": b""})
    assert (large.status_code, "This was not sent" in large.text) == (413, True)


@one_server
async def test_a_form_that_is_sent_twice_is_one_request_and_a_changed_one_is_another(
    house: House,
) -> None:
    node = house.programs.clients[0]

    async def place(text: str, public_id: str = "twice") -> str:
        fields = {"id": public_id, "text": text, "seconds": "50"}
        response = await node.post("/", data=fields, files={"file": b""})
        assert response.status_code == 303
        return response.headers["Location"]

    assert await place("One.") == await place("One.") == "/requests/twice"
    other = await place("Two.")
    assert other != "/requests/twice"
    await node.post("/requests/twice/cancel")
    assert await place("One.") not in ("/requests/twice", other), "it has ended"
    await settle(house.db, (await arrived(house.db, "twice")).id, 0)
    assert await place("One.") not in ("/requests/twice", other), "it is settled"
    assert await place("One.", "../x?<") != "/requests/../x?<"


@one_server
async def test_an_id_that_never_was_has_a_page_that_says_so(browser: Browser, house: House) -> None:
    async with visit(
        browser,
        house.url,
        expected=("404", "405"),
    ) as page:
        for path in ("nobody", "%3Cimg src=x onerror=alert(1)%3E", "nobody/text", "a%00b"):
            response = await page.goto(f"/requests/{path}")
            assert response is not None
            assert response.status == 404
            await headline(page, "There is no such request")


@one_server
async def test_what_a_dead_node_left_is_closed_by_who_looks_after_the_deadline(
    house: House,
) -> None:
    number, public_id = await submitted(house.db, 2)
    await worked(house.db, number, 1)
    await pass_time(house.db, number, 31)

    response = await house.programs.clients[0].get(f"/requests/{public_id}")

    assert "1 of 2 done, 1 timed out" in re.sub(r"<[^>]+>", "", response.text)
    assert (await answer_of(house.db, public_id)).status == "partial"


@one_server
async def test_an_abandoned_request_is_said_to_cost_nothing(house: House) -> None:
    number, public_id = await submitted(house.db, 2)
    await worked(house.db, number, 1)
    await close(house.db, number, "abandoned")

    response = await house.programs.clients[0].get(f"/requests/{public_id}")

    assert "so nothing is billed." in response.text
    assert "<dt>Bill</dt><dd>nothing</dd>" in response.text


@one_server
async def test_a_page_keeps_what_it_has_when_its_request_is_gone(
    browser: Browser, house: House
) -> None:
    node = await house.programs.app()
    async with visit(browser, str(node.base_url), expected=("net::ERR", "410")) as page:
        number, _ = await sent(page, house.db)
        await worked(house.db, number, 1)
        await headline(page, "1 of 4 done")
        node.program.process.kill()
        await ending(house.db, number)
        await close(house.db, number, "completed")
        await settle(house.db, number, 0)
        house.programs.start("app", "--port", str(node.base_url.port))

        await expect(page.get_by_text("what is here is the last that was seen")).to_be_visible()
        await expect(segment(page, 0).locator(".result")).to_have_text(SENTENCES[0])


@one_server
async def test_a_settled_request_shows_what_was_metered(browser: Browser, house: House) -> None:
    async with visit(browser, house.url, expected=("410",)) as page:
        number, public_id = await sent(page, house.db)
        await ending(house.db, number)
        await headline(page, "4 of 4 done")
        await settle(house.db, number, 0)

        await page.reload()

        await headline(page, "This request is settled")
        characters = sum(map(len, SENTENCES))
        await expect(page.locator("dl")).to_contain_text(f"Characters in{characters}")
        for path in ("/text", "/again", "/cancel"):
            method = "get" if path == "/text" else "post"
            response = await house.programs.clients[0].request(
                method, f"/requests/{public_id}{path}"
            )
            assert response.status_code == 410


@one_server
async def test_while_the_database_is_away_the_text_is_kept(
    browser: Browser, house: House, tmp_path: Path
) -> None:
    program = next(filter(None, map(find, KINDS)), None)
    if program is None:
        pytest.skip("the server that was given is not ours to stop")
    own = Server(program, tmp_path / "db")
    own.start()
    own.execute("CREATE DATABASE pages")
    node = await house.programs.app(url=own.url("pages"))
    async with visit(browser, str(node.base_url), expected=("503",)) as page:
        await page.goto("/")
        await page.get_by_label("Text", exact=True).fill(TEXT)
        own.kill()
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_contain_text("Your text is still here")
        assert await page.get_by_label("Text", exact=True).input_value() == TEXT
        await page.goto("/requests/mine")
        await headline(page, "The database cannot be reached")

        own.start()

        await page.goto("/")
        await page.get_by_label("Text", exact=True).fill(TEXT)
        await page.get_by_role("button", name="Send").click()
        await headline(page, "0 of 4 done")
    own.stop()


@one_server
async def test_a_page_goes_on_when_its_node_dies_and_another_takes_its_place(
    browser: Browser, house: House
) -> None:
    node = await house.programs.app()
    async with visit(browser, str(node.base_url), expected=("net::ERR",)) as page:
        number, _ = await sent(page, house.db)
        node.program.process.kill()
        await expect(page.get_by_text("The connection is lost")).to_be_visible()
        await worked(house.db, number, 1)
        house.programs.start("app", "--port", str(node.base_url.port))
        await headline(page, "1 of 4 done")
        await expect(page.get_by_text("The connection is lost")).to_be_hidden()
        await ending(house.db, number)
        await headline(page, "4 of 4 done")


# How it is used.


@one_server
async def test_without_javascript_the_form_is_sent_and_the_page_keeps_up(
    browser: Browser, house: House
) -> None:
    async with visit(browser, house.url, java_script_enabled=False) as page:
        await page.goto("/")
        file: FilePayload = {
            "name": "a.txt",
            "mimeType": "text/plain",
            "buffer": b"\xef\xbb\xbf" + TEXT.encode(),
        }
        await page.get_by_label("Or a text file").set_input_files(file)
        await page.get_by_label("Seconds to wait").fill("50")
        await page.get_by_role("button", name="Send").click()
        await headline(page, "0 of 4 done")
        public_id = page.url.rsplit("/", 1)[1]
        number = (await arrived(house.db, public_id)).id
        await worked(house.db, number, 1)
        await headline(page, "1 of 4 done")
        await page.get_by_role("button", name="Cancel").click()
        await headline(page, "1 of 4 done, 3 cancelled")
        await page.get_by_text("The whole text, with the original").click()
        await expect(page.get_by_label("The whole text")).to_have_value(TEXT)
        await expect(page.get_by_role("button", name="Copy")).to_be_hidden()
        assert await page.locator("meta[http-equiv=refresh]").count() == 0, "it has ended"
        await page.get_by_role("button", name="Try the missing 3 again").click()
        await headline(page, "0 of 3 done")


@one_server
async def test_a_file_can_be_dropped_or_chosen_and_read_before_it_is_sent(page: Page) -> None:
    await page.goto("/")
    drop = """text => {
      const carried = new DataTransfer();
      carried.items.add(new File([text], "a.txt", { type: "text/plain" }));
      const dropped = new DragEvent("drop", { dataTransfer: carried, cancelable: true });
      document.getElementById("text").dispatchEvent(dropped);
    }"""
    await page.evaluate(drop, "Dropped 🙂.")
    await expect(page.get_by_label("Text", exact=True)).to_have_value("Dropped 🙂.")
    await expect(page.get_by_text("10 characters.")).to_be_visible()
    file: FilePayload = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"Chosen."}

    await page.get_by_label("Or a text file").set_input_files(file)

    await expect(page.get_by_label("Text", exact=True)).to_have_value("Chosen.")
    assert await page.get_by_label("Or a text file").evaluate("e => e.files.length") == 0


async def focused(page: Page) -> str:
    """The name of what has the focus, which must be seen to have it."""
    outline = "e => [getComputedStyle(e).outlineStyle, getComputedStyle(e).outlineWidth]"
    holder = await page.evaluate_handle("document.activeElement")
    assert await holder.evaluate(outline) == ["solid", "3px"]
    named = "e => e.labels?.[0]?.innerText ?? e.getAttribute('aria-label') ?? e.innerText"
    return str(await holder.evaluate(named)).strip()


@one_server
async def test_everything_is_reached_by_the_keyboard(page: Page, house: House) -> None:
    await page.goto("/")
    met = []
    for _ in range(8):
        await page.keyboard.press("Tab")
        met.append(await focused(page))
        if met[-1] == "Text":
            await page.keyboard.type(TEXT)
        if met[-1] == "Seconds to wait":
            await page.keyboard.press("Control+A")
            await page.keyboard.type("50")
    assert met == [
        *("Skip to the content", "Partway", "Text", "Or a text file", "Language of the text"),
        *("Target", "Seconds to wait", "Send"),
    ]
    await page.keyboard.press("Enter")
    await headline(page, "0 of 4 done")
    for name in ("Skip to the content", "Partway", "Cancel"):
        await page.keyboard.press("Tab")
        assert await focused(page) == name

    await page.keyboard.press("Space")

    await headline(page, "0 of 4 done, 4 cancelled")
    for _ in range(3):
        await page.keyboard.press("Tab")
    assert await focused(page) == "Copy the text"


@one_server
async def test_the_focus_is_not_lost_when_the_end_takes_what_had_it(
    page: Page, house: House
) -> None:
    number, _ = await sent(page, house.db)
    await page.get_by_role("button", name="Cancel").focus()

    await ending(house.db, number)

    await headline(page, "4 of 4 done")
    await expect(page.locator("#sentence")).to_be_focused()


# What it looks like; the rest of that is judged by looking (proof/screens.py).


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def states(house: House) -> dict[str, str]:
    """The path of a page in each state, those that end in nothing included."""
    paths = {"start": "/", "unknown": "/requests/nobody"}
    for state in ("running", "complete", "partial", "cancelled", "failed"):
        number, public_id = await submitted(house.db, SENTENCES, deadline_ms=50_000)
        paths[state] = f"/requests/{public_id}"
        await worked(house.db, number, 4 if state == "complete" else 1)
        held = await claimed(house.db, number) if state != "complete" else []
        if state == "failed":
            await fail(house.db, held[0], "long" * 50, 0, 0)
            await worked(house.db, number, 2)
        if state == "partial":
            await pass_time(house.db, number, 51)
        if state != "running":
            await close(house.db, number, "cancelled" if state == "cancelled" else "completed")
    return paths


@one_server
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_no_page_has_a_fault_that_axe_finds(
    browser: Browser, house: House, states: dict[str, str], scheme: str
) -> None:
    look: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": 800, "height": 900}}
    async with visit(
        browser,
        house.url,
        expected=("404", "422"),
        **look,
    ) as page:

        async def faultless() -> None:
            found = (await Axe().run(page)).response["violations"]
            assert [(fault["id"], fault["nodes"][0]["html"]) for fault in found] == []

        for path in states.values():
            await page.goto(path)
            await faultless()
        await page.goto("/")
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_role("alert")).to_be_visible()
        await faultless()


@one_server
async def test_every_page_fits_into_320_pixels(
    browser: Browser, house: House, states: dict[str, str]
) -> None:
    long = "Donaudampfschifffahrtsgesellschaft" * 20
    _, public_id = await submitted(house.db, [long], public_id="x" * 64, params=f'{{"{long}": 1}}')
    paths = [*states.values(), f"/requests/{public_id}"]
    viewport = {"width": 320, "height": 640}
    async with visit(browser, house.url, expected=("404",), viewport=viewport) as page:
        for path in paths:
            await page.goto(path)
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert (path, width) == (path, 320)


@one_server
async def test_on_a_narrow_page_a_result_takes_the_place_of_its_source(
    browser: Browser, house: House, states: dict[str, str]
) -> None:
    viewport = {"width": 320, "height": 640}
    async with visit(browser, house.url, viewport=viewport) as page:
        await page.goto(states["running"])
        assert await segment(page, 0).locator(".result").is_visible()
        assert await segment(page, 0).locator(".source").is_hidden()
        assert await segment(page, 2).locator(".source").is_visible()

        await page.get_by_label("Show the original").check()

        assert await segment(page, 0).locator(".source").is_visible()


@one_server
async def test_a_state_is_told_by_a_shape_and_a_word_and_moves_only_for_who_likes_it(
    browser: Browser, house: House, states: dict[str, str]
) -> None:
    shapes = """() => Object.fromEntries([...document.querySelectorAll("#segments > li")].map(e =>
      [e.dataset.state, getComputedStyle(e.querySelector(".mark")).backgroundImage
        .replaceAll(/rgba?[(][^)]*[)]/g, "")]))"""
    drawn: dict[str, str] = {}
    async with visit(browser, house.url, reduced_motion="reduce") as page:
        for path in list(states.values())[2:]:
            await page.goto(path)
            drawn |= await page.evaluate(shapes)
        await page.goto(states["running"])
        still = await page.evaluate("document.getAnimations().length")
    async with visit(browser, house.url, reduced_motion="no-preference") as page:
        await page.goto(states["running"])
        moving = await page.evaluate("document.getAnimations().length")

    # done is full and waiting is empty: neither is drawn by an image.
    assert drawn.pop("done") == drawn.pop("pending") == "none"
    assert set(drawn) == {"processing", "failed", "timed_out", "cancelled"}
    assert len(set(drawn.values())) == 4
    assert (still, moving > 0) == (0, True)


@one_server
async def test_a_thousand_segments_stay_usable(page: Page, house: House) -> None:
    number, public_id = await submitted(house.db, 1000, deadline_ms=50_000)
    await page.goto(f"/requests/{public_id}")
    assert await page.locator("#segments > li").count() == 1000
    await worked(house.db, number, 400)
    await headline(page, "400 of 1,000 done")
    assert await legend(page) == {"waiting": 600, "working": 0, "done": 400, "failed": 0}

    await ending(house.db, number)

    await headline(page, "1,000 of 1,000 done")
    await expect(segment(page, 999).locator(".result")).to_have_text("s999")


# What it must never do.


@one_server
async def test_what_anybody_wrote_is_text(page: Page, house: House) -> None:
    evil = [
        "<script>window.ran = 1</script>",
        "<img src=x onerror='window.ran = 1'>",
        "</textarea></div><svg onload='window.ran = 1'>",
        "\"'><a href=javascript:window.ran=1>{{ 7 * 7 }}{% raw %}",
    ]
    params = json.dumps({text: [text] for text in evil} | {"target": evil[1]})
    number, public_id = await submitted(house.db, evil, params=params)
    await page.goto(f"/requests/{public_id}")
    await worked(house.db, number, 1)
    held = await claimed(house.db, number, 1)
    await fail(house.db, held[0], evil[1], 0, 0)
    await expect(segment(page, 1).locator(".result")).to_have_text(evil[1])
    await ending(house.db, number)
    await headline(page, "3 of 4 done, 1 failed")
    for _ in range(2):
        assert await page.locator(".source").all_text_contents() == evil
        assert await page.locator(".result").all_text_contents() == evil
        assert await page.locator("#whole").input_value() == " ".join(evil)
        facts = await page.locator(".facts").text_content()
        assert facts is not None
        assert all(text in facts for text in evil)
        assert await page.evaluate("window.ran") is None
        await page.reload()


@one_server
async def test_a_browser_is_told_to_run_nothing_but_our_own(house: House) -> None:
    node = house.programs.clients[0]
    page = await node.get("/")
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
    assert len(files) == 3
    for path in ("/", "/requests/nobody", "/static/none.js", *files):
        headers = (await node.get(path)).headers
        policy = headers["Content-Security-Policy"].split("; ")
        assert "default-src 'none'" in policy
        assert {"script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} < set(policy)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] == (
            "public, max-age=31536000, immutable" if path in files else "no-store"
        )
    old = (await node.get("/static/page.css?v=0")).headers
    assert (old["Cache-Control"], old["Content-Type"]) == ("no-cache", "text/css; charset=utf-8")
    assert "style=" not in page.text
    assert re.findall(r"<script(?! src=)", page.text) == []


@one_server
async def test_with_keys_a_page_is_for_who_has_logged_in(browser: Browser, house: House) -> None:
    node = await house.programs.app(APP_KEYLESS="off")
    key = (await bearer(house.db, "acme"))["Authorization"].removeprefix("Bearer ")
    _, theirs = await submitted(house.db, 1, tenant="beta")
    number, mine = await submitted(house.db, 2, tenant="acme")
    async with visit(
        browser,
        str(node.base_url),
        expected=("404", "401"),
    ) as page:
        await page.goto(f"/requests/{mine}")
        await headline(page, "Log in with your key")
        await expect(page.get_by_role("button", name="Log out")).to_have_count(0)
        await page.get_by_label("Key").fill("pw_wrong")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("alert")).to_contain_text("This is no key")
        assert (await Axe().run(page)).response["violations"] == []
        await page.get_by_label("Key").fill(key)
        await page.get_by_role("button", name="Log in").click()

        await headline(page, "0 of 2 done")
        await worked(house.db, number, 2)
        await headline(page, "2 of 2 done")
        await page.goto(f"/requests/{theirs}")
        await headline(page, "There is no such request")
        await page.get_by_role("button", name="Log out").click()
        await headline(page, "Log in with your key")
        await page.goto(f"/requests/{mine}")
        await headline(page, "Log in with your key")


@one_server
async def test_a_key_of_operators_is_told_that_it_sends_nothing(house: House) -> None:
    node = await house.programs.app(APP_KEYLESS="off")
    operator = await bearer(house.db, "acme", "operator")

    response = await node.get("/", headers=operator)

    assert (response.status_code, "The key does not allow this" in response.text) == (403, True)


@one_server
async def test_without_keys_there_is_nothing_to_log_in_or_out_of(
    browser: Browser, house: House
) -> None:
    async with visit(browser, house.url) as page:
        cookie = {"name": "partway_session", "value": "old", "url": house.url}
        await page.context.add_cookies([cookie])  # type: ignore[list-item]  # a SetCookieParam
        await page.goto("/login")
        await headline(page, "Send a text, say how long you can wait")
        await expect(page.get_by_role("button", name="Log out")).to_have_count(0)
