"""The parts of the GPU check, each a function that returns figures as JSON types and raises where it fails."""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from respsd import __version__
from respsd.bench.comparison.transformers_decoder import TransformersDecoder
from respsd.bench.gpu.synthetic import LLAMA_8B, TINY, Synthetic, fitting, make_synthetic
from respsd.bench.lossless import GREEDY, SAMPLED, LosslessReport, verify_lossless
from respsd.bench.reference import Comparison, compare_with_reference
from respsd.bench.scaling.measuring import Point, PointTime, measure_scaling
from respsd.control.action import EAGLE3, OFF, Action, ActionTable
from respsd.engine.assembly import EngineConfig, Models, Shapes, load_models
from respsd.engine.local_run import fixed_request, run, running_engine
from respsd.engine.loop import LoopLimits
from respsd.engine.static.capture import cuda_graphs
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
        "shapes": lambda: _same_in_all_shapes(options, device),
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


def _same_in_all_shapes(options: CheckOptions, device: torch.device) -> Figures:
    """Small models in float32: steps as they come, in fixed shapes, and as graphs give the same tokens, greedily and
    sampled, alone and with batch mates; and graphs were recorded."""
    models = make_synthetic(TINY, torch.float32, device).models
    count, tokens = (2, 12) if options.tiny else (4, 96)
    prompts = _prompts(models, count, 40)
    outputs: dict[str, list[tuple[int, ...]]] = {}
    figures: Figures = {}
    for shapes in shapes_of(device):
        capturer = cuda_graphs() if shapes == "graphs" else None
        reserved = ActionTable(ACTIONS).largest
        limits = LoopLimits(max_running=len(prompts))
        config = EngineConfig(reserved=reserved, kv_tokens=8192, limits=limits, shapes=shapes, capturer=capturer)
        with running_engine(models, reserved, config=config) as engine, ThreadPoolExecutor(len(prompts)) as clients:
            asked = [
                fixed_request(prompt, action, tokens, sampling=sampling)
                for sampling in (GREEDY, SAMPLED)
                for action in (OFF, *_LOSSLESS_ACTIONS)
                for prompt in prompts
            ]
            alone = [run(engine, each).token_ids for each in asked[:: len(prompts)]]
            together = [each.token_ids for each in clients.map(partial(run, engine), asked)]
        outputs[shapes] = [*alone, *together]
        if capturer is not None:
            if capturer.fault is not None or not capturer.recorded:
                raise EngineFault(f"no graph was recorded: {capturer.fault}")
            figures["graphs_recorded"] = capturer.recorded
    first = outputs[shapes_of(device)[0]]
    for name, found in outputs.items():
        different = sum(mine != other for mine, other in zip(found, first, strict=True))
        if different:
            raise EngineFault(f"{different} of {len(first)} outputs in {name} shapes differ")
    return {"compared": len(first), "shapes": list(outputs), **figures}


def shapes_of(device: torch.device) -> tuple[Shapes, ...]:
    """The ways in which steps can run on a device."""
    return ("dynamic", "static", "graphs") if device.type == "cuda" else ("dynamic", "static")


def _lossless(options: CheckOptions, device: torch.device, dtype: torch.dtype) -> Figures:
    """Trees against plain decoding with the recording's models, whose drafts are often right."""
    folder = _reference(options)
    models = load_models(folder / "target", folder / "draft", dtype=dtype, device=device)
    count, tokens = (2, 32) if options.tiny else (4, 64)
    prompts = _prompts(models, count, 24)
    return {
        shapes: _told_of(verify_lossless(models, prompts, tokens, _LOSSLESS_ACTIONS, shapes=shapes))
        for shapes in shapes_of(device)
    }


def _told_of(report: LosslessReport) -> Figures:
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
    ways = shapes_of(torch.device(options.device))
    visits: dict[Shapes, list[list[PointTime]]] = {shapes: [] for shapes in ways}
    for visit in range(options.repeats):
        generated += decoder.decode(prompt, _GENERATED, ignore_eos=True).answers[0].gaps
        for shapes in ways:
            visits[shapes].append(_measure(synthetic.models, points, options, visit, shapes))
    token_ms = _median(generated) * 1e3
    return {
        "shape": synthetic.shape.name,
        "layers": synthetic.shape.layers,
        "dtype": synthetic.models.info.dtype,
        "context": options.context,
        "transformers_token_ms": token_ms,
        **{shapes: _step_figures(points, found, token_ms) for shapes, found in visits.items()},
    }


def _step_figures(points: list[Point], visits: list[list[PointTime]], token_ms: float) -> Figures:
    """:param visits: [visits, points]."""
    off_ms = _median([visit[0].p50 for visit in visits])
    return {
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
    return {
        "context": options.context,
        **{
            shapes: [
                {
                    "action": str(time.point.action),
                    "streams": time.point.streams,
                    "step_ms": time.p50,
                    "step_ms_p90": time.p90,
                    "steps_per_second": time.point.streams / time.p50 * 1e3,
                }
                for time in _measure(synthetic.models, points, options, 0, shapes)
            ]
            for shapes in shapes_of(torch.device(options.device))
        },
    }


def _measure(models: Models, points: list[Point], options: CheckOptions, seed: int, shapes: Shapes) -> list[PointTime]:
    rng, limits = random.Random(seed), LoopLimits()
    return measure_scaling(models, points, steps=options.steps, repeats=1, limits=limits, rng=rng, shapes=shapes)


def _prompts(models: Models, count: int, length: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(models.info.vocab_size) for _ in range(length)] for _ in range(count)]


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
