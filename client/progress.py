"""Who waits at a terminal sees the segments come in against the deadline."""

import sys
import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn

from partway.client.answer import Accepted, End, Event, Segment, Working


class Bars(Progress):
    """Two bars on standard error, segments above time, that go away at the end.

    Where standard error is no terminal they show nothing. The time is this machine's, from the
    sending on: a request that is joined later ends before its bar does.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._began = time.monotonic()
        self._deadline_seconds = deadline_seconds
        self._running: set[int] = set()
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[said]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._segments = self.add_task("segments", total=None, said="waiting for the server")
        self.add_task("time", total=deadline_seconds, said="")

    def show(self, event: Event) -> None:
        """Move the bars as an event says; nothing comes back."""
        match event:
            case Accepted(total=total):
                self.update(self._segments, total=total)
            case Segment(index=index):
                self._running.discard(index)
                self.advance(self._segments)
            case Working(indexes=indexes):
                self._running = set(indexes)
            case End(answer=answer):
                finished = answer.counts.done + answer.counts.failed
                self._running.clear()
                self.update(self._segments, total=answer.counts.total, completed=finished)
        segments = self.tasks[0]
        said = f"{segments.completed:.0f} of {segments.total:.0f}" if segments.total else ""
        if self._running:
            said += f", {len(self._running)} working"
        self.update(self._segments, said=said)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, the lower one as long as the time that has passed."""
        elapsed = min(time.monotonic() - self._began, self._deadline_seconds)
        said = f"{elapsed:.1f} of {self._deadline_seconds:g} s"
        # Rich looks once while it is being made, when there is no bar yet.
        for task in self.tasks[1:]:
            self.update(task.id, completed=elapsed, said=said)
        return super().get_renderables()
