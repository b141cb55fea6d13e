"""What the pages look like is judged by looking: `make screens` shows each of them in each state.

    python -m proof.screens [BEGINNING ...]

Without a beginning all pictures are made, else those whose names begin so.
A node and a database server of its own; the states are made in the rows, as a worker makes them,
and the results are Apertium's.
"""

import asyncio
import contextlib
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from playwright.async_api import Browser

from local.server import KINDS, Server, find
from partway.app.requests.split import split
from partway.batch.settle import settle
from partway.store.close import close
from partway.store.database import Database
from partway.store.settings import DatabaseSettings
from partway.store.start import open_database
from partway.worker.handlers.apertium import START_SECONDS, Apertium
from partway.worker.lease import Lease, Ready, fail
from tests.actions import ROOT, Programs, claimed, exchanged, expire, pass_time, submitted
from tests.browser import chromium, visit

FOLDER = ROOT / "docs" / "screens"
SAMPLE = ROOT / "local" / "sample.txt"
OFFERED = '{"target": {"spa": "Spanish", "cat": "Catalan"}}'

WIDE: dict[str, Any] = {"viewport": {"width": 1200, "height": 860}}
NARROW: dict[str, Any] = {"viewport": {"width": 320, "height": 720}, "device_scale_factor": 2}
TALL: dict[str, Any] = {"viewport": {"width": 1200, "height": 2030}}
LONG = {"width": 320, "height": 1600}
DARK: dict[str, Any] = {"color_scheme": "dark"}


class Scene:
    """A database with requests in every state; a class, since the shots share what is open."""

    def __init__(self, db: Database, translate: Callable[[str, float], str]) -> None:
        self.db = db
        self.translate = translate
        self.pieces = split(SAMPLE.read_text(encoding="utf-8"), "en", 100, 5000)

    async def stored(self, public_id: str) -> int:
        """The number of a new request of the sample, to be answered within half a minute."""
        number, _ = await submitted(
            self.db,
            self.pieces.sources,
            public_id=public_id,
            pieces=self.pieces,
            on_missing="source",
            deadline_ms=50_000,
            params=json.dumps({"target": "spa"}),
        )
        return number

    async def worked(self, number: int, claims: int, done: int, failed: int = 0) -> None:
        """Claim so many segments; of these some become done and some fail, here and there."""
        leases: list[Lease] = await claimed(
            self.db, number, claims, lease_seconds=60, owner_id="mt-2"
        )
        random.Random(number).shuffle(leases)
        for lease in leases[done : done + failed]:
            await fail(self.db, lease, "no_answer: the translation server sent nothing", 0, 0)
        ready = [
            Ready(lease, self.translate(lease.source, START_SECONDS)) for lease in leases[:done]
        ]
        assert not (await exchanged(self.db, ready)).lost

    async def busy(self) -> None:
        """Make what operators see on a day with some trouble: three tenants, one worker dead."""
        for name, slots, seen_seconds in (("mt-1", 16, 3), ("mt-2", 24, 9), ("mt-3", 4, 71)):
            await self.db.write(
                "INSERT INTO workers VALUES (%s, %s, NOW(6) - INTERVAL %s SECOND)",
                (name, slots, seen_seconds),
            )
        for public_id, tenant, segments, deadline_ms, seconds, held in (
            ("annual-report-2026", "acme", 100, 50_000, 31, ("mt-1", 74, 60)),
            ("6f1f2c1e-9d0c-4a52-8a4c-0d4c4a0e7b11", "beta", 24, 30_000, 16, ("mt-2", 17, 11)),
            ("manual-de-usuario", "gamma.example", 640, 55_000, 22, ("mt-1", 212, 208)),
            ("faq", "acme", 12, 55_000, 5, ("mt-3", 5, 2)),
            ("release-notes", "beta", 40, 55_000, 1, ("mt-2", 0, 0)),
        ):
            number, _ = await submitted(
                self.db,
                [self.pieces.sources[i % 90] for i in range(segments)],
                tenant=tenant,
                public_id=public_id,
                deadline_ms=deadline_ms,
            )
            owner, claims, done = held
            leases = await claimed(self.db, number, claims, lease_seconds=9, owner_id=owner)
            random.Random(number).shuffle(leases)
            ready = [
                Ready(lease, self.translate(lease.source, START_SECONDS)) for lease in leases[:done]
            ]
            await exchanged(self.db, ready)
            if owner == "mt-3":
                await expire(self.db, number)
            elif len(leases) > done:
                await fail(self.db, leases[-1], "no_answer: the server sent nothing", 0, 0)
                await fail(self.db, leases[-2], "ConnectError: refused", 4, 3)
            await pass_time(self.db, number, seconds)
        for tenant, requests in (("acme", 14), ("beta", 3), ("gamma.example", 1)):
            for n in range(requests):
                await self.db.write(
                    "INSERT INTO meter VALUES"
                    " (%s, %s, %s, 98, 5355, 5650, %s, NOW(6) - INTERVAL %s SECOND)",
                    (tenant, f"earlier-{n}", "abandoned" if n == 7 else "completed", n != 7, n + 2),
                )

    async def finished(self, public_id: str) -> int:
        """The number of a new request, which is complete."""
        number = await self.stored(public_id)
        await self.worked(number, len(self.pieces.sources), len(self.pieces.sources))
        await close(self.db, number, "completed")
        return number

    async def shown(self) -> None:
        """Make the requests that are shown, each named by its state."""
        total = len(self.pieces.sources)
        running = await self.stored("running")
        await self.worked(running, 61, 48, 1)
        await pass_time(self.db, running, 18)
        for name, claims, done, failed in (
            ("complete", total, total, 0),
            ("partial", total - 11, total - 15, 0),
            ("cancelled", 47, 41, 0),
            ("failed", total, total - 3, 3),
        ):
            number = await self.stored(name)
            await self.worked(number, claims, done, failed)
            await pass_time(self.db, number, 50 if name == "partial" else 17)
            await close(self.db, number, "cancelled" if name == "cancelled" else "completed")


@contextlib.asynccontextmanager
async def node(folder: Path) -> AsyncIterator[tuple[Scene, Programs]]:
    """The scene, and the programs that can be started on its database."""
    program = next(filter(None, map(find, KINDS)), None)
    assert program is not None, "there is no database server; local/setup.sh test installs one"
    server = Server(program, folder / "db")
    server.start()
    apertium = Apertium()
    apertium.setup()
    programs = Programs(server.url("screens"), folder)
    try:
        server.execute("CREATE DATABASE screens")
        async with open_database(DatabaseSettings(database_url=programs.url)) as db:
            yield Scene(db, partial(apertium.translate, "eng-spa")), programs
    finally:
        await programs.end()
        apertium.close()
        server.stop()


async def shot(
    browser: Browser, url: str, name: str, path: str, options: dict[str, Any], act: str = ""
) -> None:
    """A picture of what stands at a path, once the button `act` has been pressed there."""
    async with visit(browser, url, expected=("404", "410", "422"), **options) as page:
        await page.goto(path)
        if act:
            await page.get_by_role("button", name=act).click()
        await page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")


async def main(beginnings: Sequence[str]) -> None:
    """Make these pictures anew, all without a beginning; nothing comes back."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = tuple(beginnings) or ("",)

    async def take(url: str, name: str, path: str, options: dict[str, Any], act: str = "") -> None:
        if name.startswith(wanted):
            await shot(browser, url, name, path, options, act)

    with tempfile.TemporaryDirectory() as folder:
        async with node(Path(folder)) as (scene, programs), chromium() as browser:
            await scene.shown()
            client = await programs.app(APP_PAGE_PARAMS=OFFERED)
            keyed = await programs.app(APP_KEYLESS="off")
            url, locked = str(client.base_url), str(keyed.base_url)
            requests = ("running", "partial", "complete", "cancelled", "failed")
            for name in ("start", *requests):
                path = "/" if name == "start" else f"/requests/{name}"
                await take(url, name, path, WIDE)
                await take(url, f"{name}-dark", path, WIDE | DARK)
                await take(url, f"{name}-320", path, NARROW)
            await take(url, "error", "/", WIDE, act="Send")
            await settle(scene.db, await scene.finished("settled"), 0)
            await take(url, "settled", "/requests/settled", WIDE)
            await take(url, "unknown", "/requests/nobody-sent-this", WIDE)
            await take(locked, "login", "/", WIDE)
            await take(locked, "login-wrong", "/login?wrong=1", WIDE | DARK)
            await scene.busy()
            report = "/ops/requests/acme/annual-report-2026"
            await take(url, "ops", "/ops", TALL)
            await take(url, "ops-dark", "/ops", TALL | DARK)
            await take(url, "ops-320", "/ops", NARROW | {"viewport": LONG})
            await take(url, "ops-request", report, WIDE)
            await take(url, "ops-cancel", f"{report}/cancel", WIDE)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
