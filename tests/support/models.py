"""The tiny pair of `support.tiny`, written once a run and loaded as a user's checkpoints."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path

import torch
from support import tiny

from respsd.engine.checkpoint import load_drafter_checkpoint
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.target import Rows, Target, TargetOutput, causal_rows

CPU = torch.device("cpu")
LONG_CONTEXT = 60_000


@functools.cache
def folders() -> tuple[Path, Path]:
    """Target and drafter checkpoint folders, kept until the run ends."""
    root = Path(_directory().name)
    target = tiny.write_target(root / "target")
    return target, tiny.write_drafter(root / "drafter", target)


@functools.cache
def long_target() -> Path:
    """The tiny target with a context of LONG_CONTEXT tokens, which no test lives to see the end of."""
    folder = Path(_directory().name) / "long"
    shutil.copytree(folders()[0], folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": LONG_CONTEXT}))
    return folder


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="respsd-tiny-")


@functools.cache
def target() -> Target:
    """The loaded tiny target, float32."""
    return Target.load(folders()[0], torch.float32, CPU)


def drafter(folder: Path | None = None) -> Drafter:
    """The loaded tiny drafter, or another of its shape."""
    checkpoint = load_drafter_checkpoint(
        folder or folders()[1], target_vocab_size=tiny.VOCAB, target_hidden_size=tiny.HIDDEN
    )
    return Drafter(checkpoint, target().embedding)


def prefill(cache: SequenceCache, prompt: list[int]) -> TargetOutput:
    """Run a prompt into an empty cache; every row is scored."""
    output = target().forward([rows(cache, prompt)])[0]
    cache.commit(list(range(len(prompt))))
    return output


def rows(cache: SequenceCache, tokens: list[int]) -> Rows:
    """Causal rows behind the cache's prefix, all scored."""
    return causal_rows(cache, tokens, scored=len(tokens))
