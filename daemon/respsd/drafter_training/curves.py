"""The curves of a run: as JSON for scripts, as a picture for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from respsd.drafter_training.run_state import Evaluation
from respsd.errors import TrainingDataError


def write_curves(history: Sequence[Evaluation], folder: Path) -> None:
    """Write `curves.json` and `curves.png`: loss, and held-out top-1 agreement by unrolled step."""
    try:
        new = folder / "curves.json.part"
        new.write_text(json.dumps([asdict(point) for point in history], indent=1) + "\n")
        new.replace(folder / "curves.json")
        new = folder / "curves.png.part"
        draw_curves(history).savefig(new, format="png")
        new.replace(folder / "curves.png")
    except OSError as error:
        raise TrainingDataError(str(folder), f"the curves cannot be written: {error}") from error


def draw_curves(history: Sequence[Evaluation]) -> Figure:
    """Two panels over optimiser steps."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    loss, agreement = figure.subplots(1, 2)
    steps = [point.step for point in history]
    loss.plot(steps, [point.training_loss for point in history], label="training")
    loss.plot(steps, [point.held_out_loss for point in history], label="held out")
    loss.set(xlabel="optimiser step", ylabel="loss, all unrolled steps", title="Loss")
    for number in range(len(history[-1].agreement) if history else 0):
        shares = [point.agreement[number] for point in history]
        (line,) = agreement.plot(steps, shares, label=f"step {number}")
        training = [point.training_agreement[number] for point in history]
        agreement.plot(steps, training, color=line.get_color(), linewidth=0.7, linestyle=":")
    agreement.set(xlabel="optimiser step", title="Top-1 agreement by unrolled step (dotted: training)")
    for panel in (loss, agreement):
        panel.grid(visible=True, alpha=0.3)
        panel.legend()
    return figure
