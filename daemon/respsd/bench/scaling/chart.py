"""The picture of how a step's time grows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from respsd.bench.picture import colour, save
from respsd.bench.scaling.measuring import PointTime
from respsd.control.action import Action

_HEADERS = ("action", "context", "streams", "step ms p50", "p10 to p90", "draft", "verify", "rest")


def draw_scaling(times: Sequence[PointTime], short: int, file: Path, caption: str) -> None:
    """Step time over context and over streams, and what the streams' tokens cost.

    :param short: the context of the points with several streams
    """
    figure = Figure(figsize=(15, 5), layout="constrained")
    by_context, by_streams, throughput = figure.subplots(1, 3)
    for number, action in enumerate(dict.fromkeys(time.point.action for time in times)):
        mine = sorted((time for time in times if time.point.action == action), key=lambda time: time.point)
        one = [time for time in mine if time.point.streams == 1]
        many = [time for time in mine if time.point.context == short]
        _band(by_context, [time.point.context for time in one], one, action, number)
        _band(by_streams, [time.point.streams for time in many], many, action, number)
        streams = [time.point.streams for time in many]
        steps = [time.point.streams / time.p50 * 1e3 for time in many]
        throughput.plot(streams, steps, marker="o", label=str(action), color=colour(number))
    by_context.set(xlabel="tokens of context, one stream", ylabel="ms of a step", title="Step time by context")
    by_streams.set(xlabel=f"streams, {short} tokens of context", ylabel="ms of a step", title="Step time by streams")
    throughput.set(xlabel="streams", ylabel="steps of all streams per second", title="Throughput")
    for axes in (by_context, by_streams, throughput):
        axes.set_ylim(0, None)
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize="small", title="action")
    figure.suptitle(caption)
    save(figure, file, caption=caption, headers=_HEADERS, rows=[_cells(time) for time in times])


def _band(axes: Axes, x: Sequence[int], times: Sequence[PointTime], action: Action, number: int) -> None:
    axes.plot(x, [time.p50 for time in times], marker="o", label=str(action), color=colour(number))
    low, high = [time.p10 for time in times], [time.p90 for time in times]
    axes.fill_between(x, low, high, alpha=0.2, color=colour(number))


def _cells(time: PointTime) -> tuple[str, ...]:
    return (
        str(time.point.action),
        str(time.point.context),
        str(time.point.streams),
        f"{time.p50:.1f}",
        f"{time.p10:.1f} to {time.p90:.1f}",
        f"{time.draft:.1f}",
        f"{time.verify:.1f}",
        f"{time.other:.1f}",
    )
