"""The growth of stores as a picture, legible on a light page and on a dark one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from edited import Growth

_INK = "#848d97"  # a grey, a blue and an orange between white and black
_WITH, _WITHOUT = "#2f81f7", "#db6d28"
_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "font.family": "sans-serif",
    "font.size": 10,
    "svg.fonttype": "none",  # text stays text: small, and in the page's own fonts
    "svg.hashsalt": "growth",  # the same picture for the same figures
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def draw(growth: Growth, target: Path) -> None:
    """Write an SVG with opening time and disk over the number of edits."""
    fresh, rows = growth.fresh, growth.rows
    edits = [row.edits for row in rows]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        opening, disk = figure.subplots(1, 2)
        _panel(opening, "Opening time in ms", fresh.opened.seconds * 1_000)
        _line(opening, edits, [row.without.opened.seconds * 1_000 for row in rows], _WITHOUT)
        _line(opening, edits, [row.compacted.opened.seconds * 1_000 for row in rows], _WITH)
        _panel(disk, "Disk in MiB", fresh.disk / (1 << 20))
        _line(disk, edits, [row.without.disk / (1 << 20) for row in rows], _WITHOUT)
        _line(disk, edits, [row.compacted.disk / (1 << 20) for row in rows], _WITH)
        handles = [*opening.lines[1:], opening.lines[0]]
        labels = ["without compaction", "with compaction", "a fresh store"]
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None})


def _panel(axes: Axes, title: str, fresh: float) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("edits")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=True, color=_INK, alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.axhline(fresh, color=_INK, linestyle=":", linewidth=1.5)


def _line(axes: Axes, edits: Sequence[int], figures: Sequence[float], colour: str) -> None:
    axes.plot(edits, figures, color=colour, marker="o", linewidth=2)
    for number, figure in zip(edits, figures, strict=True):
        axes.annotate(
            f"{figure:,.0f}" if figure >= 10 else f"{figure:.2g}",
            (number, figure),
            xytext=(0, 5),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=8,
        )
