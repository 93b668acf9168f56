"""The picture of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from respsd.bench.comparison.report import Row
from respsd.bench.comparison.run import BenchResult
from respsd.bench.picture import colour, save
from respsd.bench.wording import milliseconds, share


def draw_bench(result: BenchResult, file: Path) -> None:
    """Ratios with intervals, latencies, where a step's time goes, acceptance by depth, and speed by streams."""
    several = len({row.concurrency for row in result.rows}) > 1
    figure = Figure(figsize=(14, 11 if several else 8), layout="constrained")
    grid = figure.subplots(3 if several else 2, 2)
    lowest = min(row.concurrency for row in result.rows)
    rows = [row for row in result.rows if row.concurrency == lowest]
    last = [row for row in rows if row.questions == rows[-1].questions]
    _ratios(grid[0][0], result, rows)
    _latencies(grid[0][1], result, last)
    _step_parts(grid[1][0], result, last)
    _acceptance(grid[1][1], result, last)
    if several:
        _by_streams(grid[2][0], result, relative=False)
        _by_streams(grid[2][1], result, relative=True)
    caption = (
        f"{result.target}, {result.dtype} on {result.device}, {result.threads} threads, "
        f"answers of at most {result.max_new_tokens} tokens"
    )
    figure.suptitle(caption)
    save(figure, file, caption=caption, headers=_HEADERS, rows=[_table_row(result, row) for row in result.rows])


_HEADERS = (
    "questions",
    "method",
    "streams",
    "tokens/s",
    "ratio",
    "interval",
    "p",
    "tau",
    "next token p50 / p99 ms",
    "equal",
)


def _table_row(result: BenchResult, row: Row) -> tuple[str, ...]:
    ratio, latency = row.ratio, row.inter_token_latency
    return (
        row.questions,
        result.label(row),
        str(row.concurrency),
        f"{row.tokens_per_second:.1f}",
        "" if ratio is None else f"{ratio.ratio:.2f}",
        "" if ratio is None else f"{ratio.low:.2f} to {ratio.high:.2f}",
        "" if ratio is None else f"{ratio.p:.2g}",
        f"{row.tau:.2f}",
        "" if latency is None else f"{milliseconds(latency.p50)} / {milliseconds(latency.p99)}",
        share(row.equal_outputs),
    )


def _ratios(axes: Axes, result: BenchResult, rows: Sequence[Row]) -> None:
    sets, methods = _names(row.questions for row in rows), _names(row.method for row in rows)
    width = 0.8 / len(methods)
    for number, method in enumerate(methods):
        mine = [row for row in rows if row.method == method and row.ratio is not None]
        places = [sets.index(row.questions) + (number - (len(methods) - 1) / 2) * width for row in mine]
        ratios = [row.ratio for row in mine if row.ratio is not None]
        errors = [[each.ratio - each.low for each in ratios], [each.high - each.ratio for each in ratios]]
        heights = [each.ratio for each in ratios]
        axes.bar(places, heights, width, yerr=errors, capsize=2, label=method, color=colour(number))
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(sets)), sets)
    axes.set_ylabel(f"tokens/s over those of {result.first}")
    axes.set_title("Speed, with intervals" if rows[0].concurrency == 1 else f"Speed of {rows[0].concurrency} streams")
    axes.margins(y=0.25)
    axes.legend(fontsize="small", loc="upper center", ncols=3)


def _latencies(axes: Axes, result: BenchResult, rows: Sequence[Row]) -> None:
    mine = [row for row in rows if row.inter_token_latency is not None]
    for number, row in enumerate(mine):
        assert row.inter_token_latency is not None
        p50, p99 = row.inter_token_latency.p50 * 1e3, row.inter_token_latency.p99 * 1e3
        axes.bar([number], [p50], 0.6, color=colour(number))
        axes.errorbar([number], [p50], yerr=[[0.0], [p99 - p50]], color="black", capsize=4)
    axes.set_xticks(range(len(mine)), [result.label(row) for row in mine])
    axes.set_ylabel("ms between two deliveries of a stream")
    axes.set_title("Inter-token latency: p50, whisker to p99")


def _step_parts(axes: Axes, result: BenchResult, rows: Sequence[Row]) -> None:
    mine = [row for row in rows if row.steps is not None]
    parts = ("draft_share", "verify_share", "overhead_share")
    bottom = [0.0] * len(mine)
    for number, part in enumerate(parts):
        heights = [getattr(row.steps, part) * row.steps.step_ms_p50 for row in mine if row.steps is not None]
        axes.bar(range(len(mine)), heights, 0.6, bottom=bottom, label=part.split("_")[0], color=colour(number))
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(mine)), [result.label(row) for row in mine])
    axes.set_ylabel("ms of the median step")
    axes.set_title("Where a step's time goes")
    if mine:
        axes.legend(fontsize="small")


def _acceptance(axes: Axes, result: BenchResult, rows: Sequence[Row]) -> None:
    for number, row in enumerate(rows):
        if row.steps is not None and row.steps.acceptance:
            depths = range(1, len(row.steps.acceptance) + 1)
            axes.plot(depths, row.steps.acceptance, marker="o", label=result.label(row), color=colour(number))
    axes.set_ylim(0, 1)
    axes.set_xlabel("depth")
    axes.set_ylabel("share of steps that accept so deep")
    axes.set_title("Acceptance")
    if axes.lines:
        axes.legend(fontsize="small")


def _by_streams(axes: Axes, result: BenchResult, *, relative: bool) -> None:
    last = result.rows[-1].questions
    rows = [row for row in result.rows if row.questions == last]
    for number, method in enumerate(_names(row.method for row in rows)):
        mine = [row for row in rows if row.method == method]
        if relative:
            values = [row.ratio.ratio if row.ratio is not None else float("nan") for row in mine]
        else:
            values = [row.whole_tokens_per_second for row in mine]
        axes.plot([row.concurrency for row in mine], values, marker="o", label=method, color=colour(number))
    axes.set_xscale("log", base=2)
    streams = sorted({row.concurrency for row in rows})
    axes.set_xticks(streams, [str(each) for each in streams])
    axes.set_xlabel("streams at the same time")
    axes.set_ylabel(f"ratio to {result.first}" if relative else "tokens/s of all streams, with prefill")
    axes.set_title("Ratio by streams" if relative else "Throughput")
    axes.legend(fontsize="small")


def _names(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
