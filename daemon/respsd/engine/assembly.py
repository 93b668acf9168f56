"""Puts an engine together: models from checkpoint folders, then the loop around them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import structlog
import torch

from respsd.clock import Clock
from respsd.control.action import Action
from respsd.control.observation import ObservationBuilder, ObservationSchema
from respsd.control.router import RequestRouter
from respsd.engine.admission import Admission, scratch_rows
from respsd.engine.api import ModelInfo
from respsd.engine.checkpoint import load_drafter_checkpoint
from respsd.engine.drafter import Drafter
from respsd.engine.hooks import EngineHooks
from respsd.engine.kv_cache import KvLayout, KvPool
from respsd.engine.loop import EngineLoop, LoopLimits
from respsd.engine.static.capture import Capturer, Eager, cuda_graphs
from respsd.engine.static.path import StaticPath
from respsd.engine.step import Stepper
from respsd.engine.target import Target
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import SettingsError
from respsd.experience.records import ExperienceSink
from respsd.process_memory import use_huge_pages

log = structlog.get_logger(__name__)

_KV_MEMORY_SHARE = {"cuda": 0.8, "cpu": 0.25}
"""Of what is free on a GPU once the weights are there; of a machine's whole memory, which it shares with others."""

_FEWEST_TOKENS = 2
"""One of a prompt and one of its output."""

_HUGE_PAGES_FROM = 64 << 20
"""Bytes of weights; fewer are read from the processor's caches."""

Shapes = Literal["dynamic", "static", "graphs"]
"""How steps run: as they come, in fixed shapes, or in fixed shapes recorded as CUDA graphs (see `static`)."""


@dataclass(frozen=True, slots=True)
class Models:
    """What is served: target, drafter (None: plain decoding only) and tokenizer."""

    target: Target
    drafter: Drafter | None
    tokenizer: HfTokenizer
    info: ModelInfo

    @property
    def schema_features(self) -> int:
        """Width of the features that observations are built from: 3 * hidden."""
        return 3 * self.target.hidden_size

    def make_kernels(self) -> None:
        """Have the matrix library make and keep now what it would later, in the middle of requests; takes seconds.

        On a thread that ends with it, for the reason that `load_models` gives.
        """
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="kernels") as maker:
            maker.submit(self._make_kernels).result()

    @torch.inference_mode()
    def _make_kernels(self) -> None:
        self.target.make_kernels()
        if self.drafter is not None:
            self.drafter.make_kernels()

    @property
    def kv_layouts(self) -> tuple[KvLayout, ...]:
        """What a sequence keeps for each token."""
        return (self.target.layout, *(() if self.drafter is None else (self.drafter.layout,)))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Sizes of the engine."""

    reserved: Action
    """Memory is kept for trees of this size; no larger action is taken."""
    persistence: int = 10
    """Steps of a window."""
    kv_tokens: int | None = None
    """KV budget; None: by the machine's memory."""
    limits: LoopLimits = field(default_factory=LoopLimits)
    shapes: Shapes | None = None
    """How steps run; None: by the device."""
    capturer: Capturer | None = None
    """What runs steps in fixed shapes; None: by `shapes`."""


def load_models(
    target_folder: Path,
    drafter_folder: Path | None,
    *,
    dtype: torch.dtype,
    device: torch.device,
    target_name: str | None = None,
    drafter_name: str | None = None,
    packed_weights: bool | None = None,
    exact: bool = False,
) -> Models:
    """Load checkpoints as published; raise CheckpointError where one is refused.

    :param packed_weights: whether the target's weights are laid out for the processor's kernels; None: as far as a
        share of the memory goes
    :param exact: whether verification and plain decoding agree bit for bit

    The work is done on a thread that ends with it. OpenMP keeps a pool of workers for each thread that ever computed,
    and puts workers to sleep between operations once they outnumber the processors: a loading thread that lived on
    would slow the engine's thread down (measured: 38 in place of 23 ms a step on two cores).
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader") as loader:
        target = loader.submit(
            Target.load, target_folder, dtype, device, packed_weights=packed_weights, exact=exact
        ).result()
        models = loader.submit(_load_models, target, target_folder, drafter_folder, target_name, drafter_name).result()
    if target.packing is not None and target.packing.bytes >= _HUGE_PAGES_FROM:
        log.info("huge_pages", bytes=use_huge_pages())
    return models


def _load_models(
    target: Target, target_folder: Path, drafter_folder: Path | None, target_name: str | None, drafter_name: str | None
) -> Models:
    tokenizer = HfTokenizer.load(target_folder)
    drafter = None
    if drafter_folder is not None:
        checkpoint = load_drafter_checkpoint(
            drafter_folder, target_vocab_size=target.vocab_size, target_hidden_size=target.hidden_size
        )
        target.tap(checkpoint.aux_layers(target.layout.layers))
        drafter = Drafter(checkpoint, target.embedding)
    info = ModelInfo(
        target=target_name or target_folder.name,
        drafter=(drafter_name or drafter_folder.name) if drafter_folder is not None else None,
        dtype=str(target.layout.dtype).removeprefix("torch."),
        device=str(target.layout.device),
        vocab_size=target.vocab_size,
        context_length=target.context_length,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    if drafter is None:
        log.warning("no_drafter", detail="every request is decoded plainly until a drafter is given")
    return Models(target, drafter, tokenizer, info)


def build_engine(
    models: Models,
    router: RequestRouter,
    schema: ObservationSchema,
    sink: ExperienceSink,
    config: EngineConfig,
    *,
    uniform: Callable[[], float],
    clock: Clock,
    hooks: EngineHooks | None = None,
) -> EngineLoop:
    """The engine, not yet started. `uniform` draws from [0, 1) for policies that sample."""
    hooks = hooks or EngineHooks()
    pool = KvPool(config.kv_tokens or affordable_kv_tokens(*models.kv_layouts))
    info = _as_far_as_memory_goes(models.info, pool, config.reserved)
    admission = Admission(models.target, models.drafter, models.tokenizer, router, pool, config.reserved, clock)
    stepper = Stepper(
        models.target,
        models.drafter,
        ObservationBuilder(schema),
        config.persistence,
        uniform,
        clock,
        hooks,
        _static_path(models, admission, config),
    )
    return EngineLoop(info, models.tokenizer, stepper, admission, sink, config.limits, clock, hooks)


def step_shapes(models: Models, config: EngineConfig) -> Shapes:
    """How the steps of an engine of this configuration run."""
    by_device: Shapes = (
        "static" if models.target.layout.device.type == "cuda" and not models.target.exact else "dynamic"
    )
    return config.shapes or by_device


def _static_path(models: Models, admission: Admission, config: EngineConfig) -> StaticPath | None:
    """What runs steps in fixed shapes; None where they run as they come. Raises SettingsError."""
    shapes, device = step_shapes(models, config), models.target.layout.device
    if shapes == "dynamic":
        return None
    if models.target.exact:
        raise SettingsError(f"engine.shapes: {shapes!r} is not exact; engine.exact needs 'dynamic' or 'auto'")
    if shapes == "graphs" and device.type != "cuda":
        raise SettingsError(f"engine.shapes: 'graphs' are CUDA's, and the models are on {device}")
    capturer = config.capturer or (cuda_graphs() if shapes == "graphs" else Eager())
    arenas = admission.target_kv, admission.draft_kv
    return StaticPath(models.target, models.drafter, *arenas, config.reserved.depth, capturer)


def _as_far_as_memory_goes(info: ModelInfo, pool: KvPool, reserved: Action) -> ModelInfo:
    """With the context that a sequence alone can fill, where the KV budget is less than the model's own.

    Raises SettingsError where there is room for the largest tree alone.
    """
    tree = scratch_rows(reserved)
    if pool.total_tokens >= info.context_length + tree:
        return info
    if pool.total_tokens < tree + _FEWEST_TOKENS:
        raise SettingsError(
            f"engine.kv_tokens: {pool.total_tokens} is too few; the largest tree needs {tree}, and a sequence at least "
            f"{_FEWEST_TOKENS} more"
        )
    return replace(info, context_length=pool.total_tokens - tree)


def affordable_kv_tokens(*layouts: KvLayout) -> int:
    """KV tokens, in each of the layouts, that the device's memory can hold beside the weights."""
    device = layouts[0].device
    if device.type == "cuda":
        memory, _total = torch.cuda.mem_get_info(device)
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    tokens = int(memory * _KV_MEMORY_SHARE[device.type]) // sum(layout.bytes_per_token for layout in layouts)
    if tokens < 1:
        raise SettingsError(f"device {device}: {memory} bytes are too few for a KV cache")
    return tokens
