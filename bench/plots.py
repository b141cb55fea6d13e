"""A curve shows in one look where a figure bends, which no table does.

    python -m bench.plots --into docs .run/bench/results.json

draws what runs have written once more; curves of the same name from several share their picture.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.measured import Curve, Point


def draw(curves: Sequence[Curve], folder: Path) -> list[Path]:
    """One PNG for each name among the curves; where they are."""
    return [
        _draw(name, [curve for curve in curves if curve.name == name], folder)
        for name in dict.fromkeys(curve.name for curve in curves)
    ]


def _draw(name: str, curves: Sequence[Curve], folder: Path) -> Path:
    # Without pyplot, which keeps what it draws and looks for a screen.
    picture = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    for number, curve in enumerate(curves):
        x = [at.x for at in curve.points]
        # There are ten colours, and more peers.
        style = "-" if number < 10 else "--"
        (line,) = axes.plot(x, [at.y for at in curve.points], style, marker="o", label=curve.line)
        # The band is what the rounds of this run differed by.
        low, high = [at.low for at in curve.points], [at.high for at in curve.points]
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15)
    places = sorted({at.x for curve in curves for at in curve.points})
    # Numbers that double or grow tenfold are evenly apart; linthresh keeps a zero on the page.
    axes.set_xscale("symlog", linthresh=min(place for place in places if place > 0))
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(curves[0].x)
    axes.set_ylabel(curves[0].y)
    axes.set_title(curves[0].title)
    axes.grid(alpha=0.3)
    picture.legend(loc="outside right upper", fontsize="small")
    path = folder / f"{name}.png"
    picture.savefig(path)
    return path


def read_curves(results: Path) -> Iterator[Curve]:
    """The curves that a run has written."""
    for row in json.loads(results.read_text(encoding="utf-8"))["rows"]:
        for curve in row["curves"]:
            yield Curve(**curve | {"points": [Point(**at) for at in curve["points"]]})


def main() -> None:
    """Draw, and print where; nothing comes back."""
    parser = argparse.ArgumentParser(prog="python -m bench.plots")
    parser.add_argument("results", nargs="+", type=Path, help="the results.json of each run")
    parser.add_argument("--into", type=Path, required=True, help="the folder of the pictures")
    given = parser.parse_args()
    for path in draw([curve for run in given.results for curve in read_curves(run)], given.into):
        print(path)


if __name__ == "__main__":
    main()
