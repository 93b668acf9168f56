"""The picture of a daemon under load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from respsd.bench.load.report import LoadRow
from respsd.bench.percentiles import Percentiles
from respsd.bench.picture import colour, save
from respsd.bench.wording import milliseconds, share

_HEADERS = ("offered", "answered", "goodput", "good", "tokens/s", "first token p50 / p99 ms", "next p50 / p99 ms")


def draw_load(rows: Sequence[LoadRow], file: Path, caption: str) -> None:
    """Goodput and latencies over the offered rate."""
    figure = Figure(figsize=(14, 8), layout="constrained")
    (goodput, first), (following, whole) = figure.subplots(2, 2)
    offered = [row.offered for row in rows]
    goodput.plot(offered, offered, linestyle=":", color="black", label="offered")
    goodput.plot(offered, [row.answered for row in rows], marker="o", label="answered", color=colour(0))
    goodput.plot(offered, [row.goodput for row in rows], marker="o", label="within the objectives", color=colour(2))
    goodput.set(ylabel="requests/s", title="Goodput", ylim=(0, None))
    _percentiles(first, offered, [row.time_to_first_token for row in rows], "Time to first token")
    _percentiles(following, offered, [row.inter_token_latency for row in rows], "Between two deliveries")
    _percentiles(whole, offered, [row.whole for row in rows], "Whole request")
    for axes in (goodput, first, following, whole):
        axes.set_xlabel("offered requests/s")
        axes.legend(fontsize="small")
        axes.grid(visible=True, alpha=0.3)
    figure.suptitle(caption)
    save(figure, file, caption=caption, headers=_HEADERS, rows=[_cells(row) for row in rows])


def _percentiles(axes: Axes, offered: Sequence[float], found: Sequence[Percentiles | None], title: str) -> None:
    known = [(rate, each) for rate, each in zip(offered, found, strict=True) if each is not None]
    for number, name in enumerate(("p50", "p90", "p99")):
        values = [getattr(each, name) * 1e3 for _, each in known]
        axes.plot([rate for rate, _ in known], values, marker="o", label=name, color=colour(number))
    axes.set(ylabel="ms", title=title, ylim=(0, None))


def _cells(row: LoadRow) -> tuple[str, ...]:
    return (
        f"{row.offered:g}",
        f"{row.answered:.3g}",
        f"{row.goodput:.3g}",
        share(row.good_share),
        f"{row.tokens_per_second:.1f}",
        _p50_and_p99(row.time_to_first_token),
        _p50_and_p99(row.inter_token_latency),
    )


def _p50_and_p99(found: Percentiles | None) -> str:
    return "" if found is None else f"{milliseconds(found.p50)} / {milliseconds(found.p99)}"
