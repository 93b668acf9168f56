"""The parts of the GPU check, each a function that returns figures as JSON types and raises where it fails."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from respsd import __version__
from respsd.bench.comparison.transformers_decoder import TransformersDecoder
from respsd.bench.gpu.synthetic import LLAMA_8B, TINY, Synthetic, fitting, make_synthetic
from respsd.bench.lossless import verify_lossless
from respsd.bench.reference import Comparison, compare_with_reference
from respsd.bench.scaling.measuring import Point, PointTime, measure_scaling
from respsd.control.action import EAGLE3, OFF, Action
from respsd.engine.assembly import Models, load_models
from respsd.engine.loop import LoopLimits
from respsd.errors import EngineFault, RespsdError

Figures = dict[str, object]

ACTIONS = (OFF, Action(8, 3, 3), Action(16, 4, 4), Action(32, 5, 8), EAGLE3, Action(96, 6, 16), Action(128, 8, 32))
_LOSSLESS_ACTIONS = (Action(8, 3, 3), Action(16, 4, 4), EAGLE3)
_GENERATED = 64
"""Tokens of a run of transformers' generate."""


class NotPossible(RespsdError):
    """A part that cannot be run here, and why; no failure."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What is checked, and on what."""

    device: str
    tiny: bool = False
    """Small shapes, to see that the check itself runs."""
    reference: Path | None = None
    """Folder of a recording of the reference implementation."""
    context: int = 512
    steps: int = 20
    repeats: int = 3


def parts(options: CheckOptions) -> Mapping[str, Callable[[], Figures]]:
    """The parts by name, in order; what they share is made once, when it is first needed."""
    device = torch.device(options.device)

    @cache
    def synthetic() -> Synthetic:
        if options.tiny:
            return make_synthetic(TINY, torch.float32, device)
        free, _total = torch.cuda.mem_get_info(device)
        return make_synthetic(fitting(LLAMA_8B, torch.bfloat16, free), torch.bfloat16, device)

    return {
        "machine": lambda: _machine(device),
        "parity": lambda: _parity(options, device),
        "lossless_float32": lambda: _lossless(options, device, torch.float32),
        "lossless_bfloat16": lambda: _lossless(options, device, torch.bfloat16),
        "steps": lambda: _steps(options, synthetic()),
        "streams": lambda: _streams(options, synthetic()),
    }


def _machine(device: torch.device) -> Figures:
    figures: Figures = {
        "respsd": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": str(device),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        figures |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return figures


def _parity(options: CheckOptions, device: torch.device) -> Figures:
    """Trees and decodes of the recording, exactly."""
    trees, decodes = compare_with_reference(_reference(options), device)
    if trees.failed or decodes.failed:
        raise EngineFault(f"trees: {_told(trees)}; decodes: {_told(decodes)}")
    return {"trees": trees.checked, "decodes": decodes.checked}


def _told(comparison: Comparison) -> str:
    return f"{comparison.failed} of {comparison.checked} differ ({', '.join(comparison.first)})"


def _lossless(options: CheckOptions, device: torch.device, dtype: torch.dtype) -> Figures:
    """Trees against plain decoding with the recording's models, whose drafts are often right."""
    folder = _reference(options)
    models = load_models(folder / "target", folder / "draft", dtype=dtype, device=device)
    count, tokens = (2, 32) if options.tiny else (4, 64)
    report = verify_lossless(models, _prompts(models, count, 24), tokens, _LOSSLESS_ACTIONS)
    if report.unexplained:
        raise EngineFault(f"{report.unexplained} of {report.compared} outputs differ from plain decoding's")
    gaps = [difference.logit_gap for difference in report.differences]
    return {
        "compared": report.compared,
        "different": len(report.differences),
        "prompts": report.prompts,
        "prompts_that_differ": report.prompts_that_differ,
        "largest_gap": max(gaps, default=0.0),
    }


def _reference(options: CheckOptions) -> Path:
    if options.reference is None:
        raise NotPossible("no recording was given (--reference)")
    return options.reference


def _steps(options: CheckOptions, synthetic: Synthetic) -> Figures:
    """One stream: a step's time by action, beside a token's time of transformers' generate on the same weights.

    The two take turns, `repeats` times.
    """
    points = [Point(action, options.context, 1) for action in ACTIONS]
    decoder = TransformersDecoder(synthetic.plain, ())
    prompt = _prompts(synthetic.models, 1, options.context)
    decoder.decode(prompt, 8, ignore_eos=True)
    generated: list[float] = []
    visits: list[list[PointTime]] = []
    for visit in range(options.repeats):
        generated += decoder.decode(prompt, _GENERATED, ignore_eos=True).answers[0].gaps
        visits.append(_measure(synthetic.models, points, options, seed=visit))
    token_ms = _median(generated) * 1e3
    off_ms = _median([visit[0].p50 for visit in visits])
    return {
        "shape": synthetic.shape.name,
        "layers": synthetic.shape.layers,
        "dtype": synthetic.models.info.dtype,
        "context": options.context,
        "transformers_token_ms": token_ms,
        "off_over_transformers": token_ms / off_ms,
        "actions": [
            {
                "action": str(point.action),
                "step_ms": (step_ms := _median([visit[place].p50 for visit in visits])),
                "draft_ms": _median([visit[place].draft for visit in visits]),
                "verify_ms": _median([visit[place].verify for visit in visits]),
                "other_ms": _median([visit[place].other for visit in visits]),
                "tau_to_break_even": step_ms / off_ms,
            }
            for place, point in enumerate(points)
        ],
    }


def _streams(options: CheckOptions, synthetic: Synthetic) -> Figures:
    """Several streams: a step's time of plain decoding and of EAGLE-3's default tree."""
    counts = (1, 2, 4) if options.tiny else (1, 8, 32)
    points = [Point(action, options.context, count) for action in (OFF, EAGLE3) for count in counts]
    times = _measure(synthetic.models, points, options, seed=0)
    return {
        "context": options.context,
        "points": [
            {
                "action": str(time.point.action),
                "streams": time.point.streams,
                "step_ms": time.p50,
                "step_ms_p90": time.p90,
                "steps_per_second": time.point.streams / time.p50 * 1e3,
            }
            for time in times
        ],
    }


def _measure(models: Models, points: list[Point], options: CheckOptions, seed: int) -> list[PointTime]:
    return measure_scaling(models, points, steps=options.steps, repeats=1, limits=LoopLimits(), rng=random.Random(seed))


def _prompts(models: Models, count: int, length: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(models.info.vocab_size) for _ in range(length)] for _ in range(count)]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
