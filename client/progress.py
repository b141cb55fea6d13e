"""Shows finished segments and elapsed time as bars, while a person waits at a terminal."""

import sys
import time
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn

from partway.client.answer import Accepted, End, Event, Segment, Working


class Bars(Progress):
    """Two bars on standard error, for segments and for time; they disappear at the end.

    They are not shown when standard error is not a terminal. The time is measured on this machine
    from the sending on: a request that was sent before ends earlier than its bar.
    """

    def __init__(self, deadline_seconds: float) -> None:
        self._began = time.monotonic()
        self._deadline_seconds = deadline_seconds
        self._running: set[int] = set()
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )
        self._segments = self.add_task("segments", total=None, text="waiting for the server")
        self.add_task("time", total=deadline_seconds, text="")

    def show(self, event: Event) -> None:
        """Update the bars after an event."""
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
        text = f"{segments.completed:.0f} of {segments.total:.0f}" if segments.total else ""
        if self._running:
            text += f", {len(self._running)} working"
        self.update(self._segments, text=text)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The bars, after an update of the elapsed time."""
        elapsed = min(time.monotonic() - self._began, self._deadline_seconds)
        text = f"{elapsed:.1f} of {self._deadline_seconds:g} s"
        # Rich also calls this in its constructor, when there is no bar yet.
        for task in self.tasks[1:]:
            self.update(task.id, completed=elapsed, text=text)
        return super().get_renderables()
