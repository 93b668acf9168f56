"""What a training run leaves on disk so that a killed one goes on exactly where its last checkpoint was."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from respsd.drafter_training.optimiser import DrafterOptimiser
from respsd.drafter_training.unrolled import UnrolledDrafter
from respsd.errors import SettingsError, TrainingDataError


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The curves' values at one point of a run."""

    step: int
    rows: int
    """Predicted tokens trained on so far, repetitions counted."""
    training_loss: float
    """Mean over the steps since the last point."""
    held_out_loss: float
    agreement: tuple[float, ...]
    """Held-out top-1 agreement by unrolled step."""
    training_agreement: tuple[float, ...]


@dataclass(slots=True)
class Tally:
    """Sums since the last evaluation, and the points so far."""

    loss: float = 0.0
    batches: int = 0
    agreed: list[int] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    rows: int = 0
    history: list[Evaluation] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RunState:
    """The state file of a run's folder."""

    file: Path
    digest: str
    """Identity of settings and data (`TrainOptions.digest`)."""

    def save(self, step: int, drafter: UnrolledDrafter, optimiser: DrafterOptimiser, tally: Tally) -> None:
        """Replace the state as a whole; raises TrainingDataError, and then the old one stands."""
        temporary = self.file.with_name(self.file.name + ".part")
        state = {
            "digest": self.digest,
            "step": step,
            "drafter": drafter.state_dict(),
            "optimiser": optimiser.state_dict(),
            "tally": json.dumps(asdict(tally)),
        }
        try:
            with temporary.open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.file)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            temporary.unlink(missing_ok=True)
            raise TrainingDataError(
                str(self.file), f"cannot be written: {error}; the last checkpoint stands, run again to go on from it"
            ) from error

    def load(self, drafter: UnrolledDrafter, optimiser: DrafterOptimiser) -> tuple[int, Tally]:
        """Set the saved state and return the next step with the sums; step 0 where there is no file.

        Raises SettingsError where the file is of a run with other settings or data.
        """
        if not self.file.exists():
            return 0, Tally()
        try:
            state = torch.load(self.file, map_location="cpu", weights_only=True)
            digest = state["digest"]
        except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
            raise TrainingDataError(
                str(self.file), f"is no training state: {error}; delete it to start anew"
            ) from error
        if digest != self.digest:
            raise SettingsError(
                f"{self.file}: is of a run with other settings or data; repeat those, or give another output folder"
            )
        drafter.load_state_dict(state["drafter"])
        optimiser.load_state_dict(state["optimiser"])
        return int(state["step"]), _tally(state["tally"])


def _tally(text: str) -> Tally:
    values = json.loads(text)
    history = [_evaluation(point) for point in values.pop("history")]
    return Tally(**values, history=history)


def _evaluation(point: dict[str, object]) -> Evaluation:
    def numbers(name: str) -> tuple[float, ...]:
        values = point.pop(name)
        assert isinstance(values, Sequence)
        return tuple(float(value) for value in values)

    agreement, training = numbers("agreement"), numbers("training_agreement")
    return Evaluation(**point, agreement=agreement, training_agreement=training)  # type: ignore[arg-type]  # just parsed
