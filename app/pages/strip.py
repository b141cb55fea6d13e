"""A request's progress is drawn as a strip of cells, one or more segments to a cell."""

from dataclasses import dataclass

from partway.app.pages.labels import OPS_LABELS, STATES

# A strip is one line on a desk.
CELLS = 100


@dataclass(frozen=True)
class SegmentStrip:
    """How far a request is: a letter for each of its segments that was read, in order."""

    segments: int
    letters: str

    @property
    def counts(self) -> dict[str, int]:
        """How many segments are in each state that there is."""
        found = {state: self.letters.count(letter) for letter, state in STATES.items()}
        return {state: count for state, count in found.items() if count or state == "done"}

    @property
    def text(self) -> str:
        """What the strip shows, for one who does not see it."""
        counts = self.counts
        most = "" if len(self.letters) == self.segments else "at least "
        words = [f"{most}{counts.pop('done'):,} of {self.segments:,} done"]
        return ", ".join(words + [f"{n:,} {OPS_LABELS[state]}" for state, n in counts.items()])

    def size(self, most: int) -> int:
        """How many segments a cell stands for, where there are at most so many cells."""
        return max(-(-self.segments // most), 1)

    def cells(self, most: int = CELLS) -> list[str]:
        """The state of each cell of the strip."""
        size = self.size(most)
        return [cell_state(self.letters[i : i + size]) for i in range(0, self.segments, size)]


def cell_state(letters: str) -> str:
    """The state of a cell: what needs an eye on it before what does not."""
    kinds = set(letters)
    if not kinds:
        return "unread"
    if len(kinds) == 1:
        return STATES[letters[0]]
    return next((STATES[letter] for letter in "fxr" if letter in kinds), "part")
