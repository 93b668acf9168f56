"""Running the frozen target over answers, once, and keeping what training needs of it in feature shards."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import structlog
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from respsd.clock import Clock
from respsd.drafter_training.answer_survey import parts
from respsd.drafter_training.answers import Answer
from respsd.drafter_training.feature_shards import FeatureShard, SequenceFeatures, write_shard
from respsd.drafter_training.folder_lock import sole_writer
from respsd.engine.target import default_feature_layers
from respsd.errors import CheckpointError
from respsd.telemetry.progress import ProgressReport

log = structlog.get_logger(__name__)

_BATCH_TOKENS = 2048
"""Padded tokens of one forward; more is not faster on two cores and costs memory for logits."""
_SHARD_ANSWERS = 128
_HEAD_TOLERANCE = 0.02
"""Of the largest logit: what rounding may change between the model's own logits and final state times head."""


class FeatureExtractor:
    """The target with taps on three layers and on the input of its head."""

    def __init__(self, model: PreTrainedModel, eos_token_ids: Sequence[int]) -> None:
        self._model = model.eval().requires_grad_(False)
        self._eos = frozenset(eos_token_ids)
        self._caught: dict[str, Tensor] = {}
        self._head_checked = False
        layers = model.get_decoder().layers
        for name, layer in zip(("low", "mid", "high"), default_feature_layers(len(layers)), strict=True):
            layers[layer].register_forward_pre_hook(partial(self._catch, name), with_kwargs=True)
        self.head = model.get_output_embeddings()
        self.head.register_forward_pre_hook(partial(self._catch, "final"), with_kwargs=True)

    @classmethod
    def load(
        cls, folder: Path, dtype: torch.dtype, device: torch.device, eos_token_ids: Sequence[int]
    ) -> FeatureExtractor:
        """Load a checkpoint folder; raises CheckpointError."""
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(str(folder), str(error)) from error
        loaded: PreTrainedModel = model.to(device)  # type: ignore[arg-type]  # transformers wraps it without types
        return cls(loaded, eos_token_ids)

    @torch.inference_mode()
    def run(self, answers: Sequence[Answer]) -> list[SequenceFeatures]:
        """One forward over all of them, right-padded: a causal model's rows do not see what stands behind them."""
        sequences = [torch.tensor(answer.prompt_ids + answer.answer_ids) for answer in answers]
        ids = nn.utils.rnn.pad_sequence(sequences, batch_first=True)  # [batch, longest]
        logits = self._model(input_ids=ids.to(self._model.device), use_cache=False).logits  # [batch, longest, vocab]
        self._check_head(logits[0, : len(sequences[0])])
        best = logits.max(dim=-1).indices.cpu()  # argmax is five times slower on a CPU
        taps = torch.cat([self._caught[name] for name in ("low", "mid", "high")], dim=-1).cpu()
        final = self._caught["final"].cpu()
        features = []
        for row, (answer, tokens) in enumerate(zip(answers, sequences, strict=True)):
            length = len(tokens)
            ended = answer.answer_ids[-1] in self._eos
            features.append(
                SequenceFeatures(
                    tokens,
                    taps[row, :length].clone(),
                    final[row, :length].clone(),
                    best[row, :length].clone(),
                    answer_start=len(answer.prompt_ids),
                    label_end=length - 1 if ended else length,
                )
            )
        return features

    def _catch(self, name: str, _module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        assert isinstance(hidden, Tensor)
        self._caught[name] = hidden

    def _check_head(self, logits: Tensor) -> None:
        """Training takes the target's distribution from its final state and head; refuse models that do more."""
        if self._head_checked:
            return
        final = self._caught["final"][0, : logits.shape[0]]
        product = final @ self.head.weight.T
        scale = float(logits.abs().max())
        if float((product - logits).abs().max()) > _HEAD_TOLERANCE * scale:
            raise CheckpointError(
                str(self._model.config.name_or_path),
                "adds to, scales or caps its logits behind the head; training cannot follow",
            )
        self._head_checked = True


def cache_features(
    answers: Iterable[Answer],
    count: int,
    folder: Path,
    target: Path,
    *,
    dtype: torch.dtype,
    device: torch.device,
    eos_token_ids: Sequence[int],
    clock: Clock,
) -> list[Path]:
    """Shard files for the answers, in their order; those that exist already are not made again.

    Several runs may share the folder; one that comes while another fills it waits. A shard's name holds a digest of its
    answers, the target and the dtype, so what changed is made anew. Answers are taken from the iterable a shard at a
    time; `count` is their number, for the estimate of time left.
    """
    fingerprint = f"{_fingerprint(target)} {dtype}"
    extractor: FeatureExtractor | None = None
    files: list[Path] = []
    with sole_writer(folder, "features", wait=True), ProgressReport("target features", count, clock) as progress:
        for part in parts(answers, _SHARD_ANSWERS):
            file = folder / f"features-{_digest(part, fingerprint)}.safetensors"
            if not file.exists():
                extractor = extractor or FeatureExtractor.load(target, dtype, device, eos_token_ids)
                write_shard(file, part, _extract(extractor, part))
            files.append(file)
            progress.advance(len(part))
    return files


def open_shards(files: Sequence[Path]) -> list[FeatureShard]:
    """The shards, numbered in order."""
    return [FeatureShard(file, number) for number, file in enumerate(files)]


def _extract(extractor: FeatureExtractor, answers: Sequence[Answer]) -> list[SequenceFeatures]:
    """Features in the answers' order; computed in batches of similar length."""
    lengths = [len(answer.prompt_ids) + len(answer.answer_ids) for answer in answers]
    by_length = sorted(range(len(answers)), key=lambda index: lengths[index])
    found: dict[int, SequenceFeatures] = {}
    batch: list[int] = []
    for index in by_length:
        if batch and lengths[index] * (len(batch) + 1) > _BATCH_TOKENS:
            found.update(zip(batch, extractor.run([answers[i] for i in batch]), strict=True))
            batch = []
        batch.append(index)
    found.update(zip(batch, extractor.run([answers[i] for i in batch]), strict=True))
    return [found[index] for index in range(len(answers))]


def _digest(answers: Sequence[Answer], fingerprint: str) -> str:
    digest = hashlib.sha256(fingerprint.encode())
    for answer in answers:
        digest.update(f"{answer.key} {answer.answer_ids}".encode())
    return digest.hexdigest()[:20]


def _fingerprint(target: Path) -> str:
    """Tells targets apart, also one that was trained further: a digest of its config and all its weights."""
    digest = hashlib.sha256((target / "config.json").read_bytes())
    for path in sorted(file for file in target.iterdir() if file.suffix in (".safetensors", ".bin")):
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
