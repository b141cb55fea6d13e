"""What people see is tried in what they see it with: one real Chromium, a fresh profile a visit."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

# Debian's, or the one that is there: a download of Playwright's own is one more that can be away.
# The first is the same engine without windows: a visit takes it a sixth of the time.
PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")

FLAGS = (
    "--no-sandbox",  # Tests may run as root, who has none.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A running browser, for as long as the block lasts."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert path is not None, "there is no chromium; local/setup.sh test installs it"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        await browser.close()


@asynccontextmanager
async def visit(
    browser: Browser, url: str, *, expected: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Page]:
    """An empty tab of a new visitor to this node; `options` are those of a Playwright context.

    At the end of the block nothing was complained of in its console, but what has one of the words
    that are `expected` in it, and nothing was asked of anybody but the node.
    """
    complaints: list[str] = []

    def heard(message: ConsoleMessage) -> None:
        is_complaint = message.type in ("error", "warning")
        if is_complaint and not any(word in message.text for word in expected):
            complaints.append(message.text)

    def asked(request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(url).netloc:
            complaints.append(f"asked for {request.url}")

    context = await browser.new_context(base_url=url, **options)
    context.on("console", heard)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on("request", asked)
    try:
        yield await context.new_page()
    finally:
        await context.close()
    assert not complaints, complaints
