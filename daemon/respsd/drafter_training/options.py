"""Settings of a training run; what they are is stored with its state, and a resumed run must have the same."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

from respsd.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Everything that the loss curve depends on, beside data and machine."""

    draft_vocab: int = 8192
    """Tokens that the drafter can propose: the most frequent ones of the answers."""
    new_vocabulary: bool = False
    """Of a run that begins with a drafter: choose these tokens anew. Those that it has keep their rows of the head."""
    intermediate_size: int | None = None
    """Width of the drafter's MLP; None: the target's."""
    kv_heads: int | None = None
    """Key-value heads of the drafter's attention; None: the target's. The last token reaches the output through the
    values alone, so a target with few of them (3 of 64 channels, say) leaves its drafter a narrow door."""
    unrolled_steps: int = 4
    """Tokens ahead that are trained for; each costs as much time again."""
    step_decay: float = 0.8
    """Step j of the unrolling weighs this to the power j."""
    epochs: float = 2.5
    """Passes over the training set; the learning rate falls to zero over them."""
    rows_per_batch: int = 2048
    """Predicted tokens of a batch, which with its prompts has at most four times as many (or is one sequence). Memory
    grows with it, not with the data: 4.9 GB were seen at 2,048 rows, 8,192 draft tokens and 4 unrolled steps."""
    matrix_learning_rate: float = 1e-2
    """Muon's, for the layer's matrices."""
    learning_rate: float = 3e-3
    """AdamW's, for norms and the head."""
    weight_decay: float = 0.0
    warmup: int = 40
    """Optimiser steps over which the learning rates rise."""
    gradient_clip: float = 1.0
    prompt_weight: float = 0.5
    """What predictions inside prompts count beside answers' 1; above 0 the prompts are trained on too."""
    held_out: float = 0.03
    """Share of the prompts that is kept for evaluation."""
    seed: int = 0

    def validated(self) -> TrainOptions:
        """Return self, or raise InvalidRequest naming the first field that is out of range."""
        limits: dict[str, tuple[float, float]] = {
            "draft_vocab": (1, float("inf")),
            "kv_heads": (1, float("inf")),
            "intermediate_size": (1, float("inf")),
            "unrolled_steps": (1, 16),
            "step_decay": (0, 1),
            "epochs": (1e-6, 1e6),
            "rows_per_batch": (1, float("inf")),
            "matrix_learning_rate": (0, 1),
            "learning_rate": (0, 1),
            "weight_decay": (0, 1),
            "warmup": (0, float("inf")),
            "gradient_clip": (1e-6, float("inf")),
            "prompt_weight": (0, 1),
            "held_out": (1e-6, 0.9),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidRequest(name, value, f"it must be from {low:g} to {high:g}")
        return self

    def digest(self, data: str) -> str:
        """Identity of a run: these settings over this data."""
        return hashlib.sha256(f"{dataclasses.asdict(self)} {data}".encode()).hexdigest()[:24]
