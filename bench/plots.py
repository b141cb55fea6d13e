"""A curve shows in one look where a figure bends, which no table does."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.measured import Curve


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
    for curve in curves:
        x = [at.x for at in curve.points]
        (line,) = axes.plot(x, [at.y for at in curve.points], marker="o", label=curve.line)
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
    axes.legend(fontsize="small")
    path = folder / f"{name}.png"
    picture.savefig(path)
    return path
