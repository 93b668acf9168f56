"""The picture of a rollout's history: tokens per second by arm over time, promotions and rollbacks marked."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from matplotlib.dates import date2num
from matplotlib.figure import Figure

from policy_store import AuditEntry
from respsd.errors import SettingsError, StorageError
from respsd.rollout.speed_history import SpeedPoint

_COLOURS = {
    "champion": "tab:blue",
    "candidate": "tab:orange",
    "baseline": "tab:gray",
    "last-good": "tab:green",
    "learner": "tab:purple",
    "off": "tab:brown",
}
_LONGEST_GAP = 0.1
"""Of the picture's time, that a line bridges."""
_MARKS = {"promote": ("tab:green", "-"), "rollback": ("tab:red", "-"), "quarantine": ("tab:red", ":")}


def write_picture(points: Sequence[SpeedPoint], entries: Sequence[AuditEntry], path: Path) -> None:
    """Write a .png or .html file; raises SettingsError for another ending, StorageError where it cannot be written."""
    if path.suffix.lower() not in (".png", ".html"):
        raise SettingsError(f"--plot: {str(path)!r} is not possible; the name must end in .png or .html")
    buffer = io.BytesIO()
    draw(points, entries).savefig(buffer, format="png", dpi=130)
    data = buffer.getvalue()
    try:
        path.write_bytes(data if path.suffix.lower() == ".png" else _page(data, entries).encode())
    except OSError as fault:
        raise StorageError(f"{path}: {fault.strerror}") from fault


def draw(points: Sequence[SpeedPoint], entries: Sequence[AuditEntry]) -> Figure:
    """The figure; entries other than moves of the champion and quarantines are left out."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    for arm in sorted({point.arm for point in points}, key=lambda arm: (arm not in _COLOURS, arm)):
        moments, speeds = _line([point for point in points if point.arm == arm], points)
        axes.plot(moments, speeds, ".-", label=arm, color=_COLOURS.get(arm), linewidth=1)
    axes.xaxis_date()
    top = max((point.tokens_per_second for point in points), default=1.0)
    axes.set_ylim(0, top * 1.3)
    for number, entry in enumerate(each for each in entries if each.event in _MARKS):
        colour, style = _MARKS[entry.event]
        moment = _number(datetime.fromisoformat(entry.at))
        axes.axvline(moment, color=colour, linestyle=style, linewidth=1)
        height = top * (1.26 - 0.06 * (number % 4))
        axes.text(moment, height, f" {_label(entry)}", color=colour, fontsize=8)
    axes.set(xlabel="time (UTC)", ylabel="tokens/s of decoding", title="Tokens per second by arm")
    axes.grid(visible=True, alpha=0.3)
    if points:
        axes.legend(loc="lower left", ncols=3)
    figure.autofmt_xdate()
    return figure


def _line(mine: Sequence[SpeedPoint], all_points: Sequence[SpeedPoint]) -> tuple[list[float], list[float]]:
    """Moments and speeds of an arm; broken where it was away for long, since another version may have come back."""
    moments = [_number(point.at) for point in all_points]
    longest = _LONGEST_GAP * (max(moments) - min(moments))
    xs: list[float] = []
    ys: list[float] = []
    for point in mine:
        moment = _number(point.at)
        if xs and moment - xs[-1] > longest:
            xs.append(moment)
            ys.append(math.nan)
        xs.append(moment)
        ys.append(point.tokens_per_second)
    return xs, ys


def _number(moment: datetime) -> float:
    return float(date2num(moment))  # type: ignore[no-untyped-call]


def _label(entry: AuditEntry) -> str:
    if entry.event == "quarantine":
        return f"quarantine {entry.to_version}"
    return f"{entry.event} {entry.from_version or ''} → {entry.to_version}"


def _page(picture: bytes, entries: Sequence[AuditEntry]) -> str:
    """The picture and the moves as one file that needs nothing else."""
    rows = "".join(
        f"<tr><td>{html.escape(each.at)}</td><td>{html.escape(each.actor)}</td><td>{html.escape(_label(each))}</td>"
        f"<td>{html.escape(each.reason)}</td></tr>"
        for each in entries
        if each.event in _MARKS
    )
    source = base64.b64encode(picture).decode()
    return (
        '<!doctype html><meta charset="utf-8"><title>respsd: policy history</title>'
        "<style>body{font-family:sans-serif;margin:2em}td{padding:2px 12px 2px 0}img{max-width:100%}</style>"
        f'<h1>Policy history</h1><img alt="tokens per second by arm" src="data:image/png;base64,{source}">'
        f"<table>{rows}</table>\n"
    )
