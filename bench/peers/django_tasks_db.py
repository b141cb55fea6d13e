"""django-tasks-db as its users run it: in the MySQL or MariaDB they have, two worker processes."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import django
from django.core.management import call_command
from django.db import transaction
from django_tasks import task

from bench.peers.alike import POLL_SECONDS, ThreadedRequest, compute, pause_seconds

COMMANDS = (("django-admin", "db_worker", f"--interval={POLL_SECONDS}", "--no-startup-delay"),) * 2

# Before the first task is declared; the workers inherit it.
os.environ["DJANGO_SETTINGS_MODULE"] = "bench.peers.django_settings"


@task()
def segment(source: str) -> str:
    """The result of one source."""
    return compute(source)


@asynccontextmanager
async def opened() -> AsyncIterator[ThreadedRequest]:
    """What sends a request and waits for it."""
    django.setup()
    # Not at the top: models exist only after that.
    from django_tasks_db.models import DBTaskResult

    def request(sources: list[str]) -> list[str]:
        began = time.monotonic()
        with transaction.atomic():
            ids = [segment.enqueue(source).id for source in sources]
        mine = DBTaskResult.objects.filter(id__in=ids)
        while mine.successful().count() < len(ids):
            time.sleep(pause_seconds(began))
        results = {str(row.id): row.return_value for row in mine}
        return [results[one] for one in ids]

    await asyncio.to_thread(call_command, "migrate", verbosity=0)
    yield request
