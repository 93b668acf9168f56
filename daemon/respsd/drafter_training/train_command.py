"""From answer files to a drafter checkpoint: the whole of `respsd drafter train` behind its options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from respsd.clock import Clock
from respsd.drafter_training.answer_survey import AnswerFiles
from respsd.drafter_training.batches import Packer, split_by_prompt
from respsd.drafter_training.checkpoint_export import export_checkpoint
from respsd.drafter_training.curves import write_curves
from respsd.drafter_training.feature_shards import FeatureShard
from respsd.drafter_training.folder_lock import sole_writer
from respsd.drafter_training.optimiser import parameter_count
from respsd.drafter_training.options import TrainOptions
from respsd.drafter_training.prompts import Skipped
from respsd.drafter_training.run_state import Evaluation, RunState
from respsd.drafter_training.target_features import cache_features, open_shards
from respsd.drafter_training.training import Labeller, Schedule, Trainer
from respsd.drafter_training.unrolled import UnrolledDrafter
from respsd.drafter_training.vocabulary import coverage, draft_vocabulary
from respsd.engine.checkpoint import DrafterCheckpoint, load_drafter_checkpoint
from respsd.engine.drafter_config import DrafterConfig
from respsd.engine.rope import DEFAULT_MAX_POSITIONS, DEFAULT_THETA, RopeConfig
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import CheckpointError, InvalidRequest, TrainingDataError

log = structlog.get_logger(__name__)

_HEAD = "lm_head.weight"
_ALIKE = (
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "norm_before_residual",
    "norm_before_fc",
    "fc_norm",
    "norm_output",
    "aux_layer_ids",
)
"""Parts of a drafter's config that say what its layer computes, and that training has no choice of."""
_SCALE_SEQUENCES = 64
"""Sequences that the taps' channel scales are measured on."""


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run ended with."""

    folder: Path
    parameters: int
    steps: int
    draft_coverage: float
    """Share of the answers' tokens that the draft vocabulary has."""
    last: Evaluation
    skipped: Skipped


@dataclass(frozen=True, slots=True)
class _TargetWeights:
    embedding: Tensor  # [vocab, hidden]
    head: Tensor  # [vocab, hidden]
    final_norm: Tensor  # [hidden]
    config: PreTrainedConfig


def train(
    answer_files: Sequence[Path],
    folder: Path,
    target: Path,
    options: TrainOptions,
    *,
    dtype: torch.dtype,
    device: torch.device,
    clock: Clock,
    features: Path | None = None,
    schedule: Schedule | None = None,
    initial: Path | None = None,
    max_tokens: int = 2048,
) -> Trained:
    """Train a drafter; run again after a kill, with the same arguments, it goes on from its last checkpoint.

    `folder` gets the checkpoint (`config.json`, `model.safetensors`), `curves.png`, `curves.json` and `state.pt`.

    :param features: where the target's features are cached (default: in `folder`); runs may share it.
    :param initial: a drafter of the same sizes to begin with, its draft vocabulary included but for `new_vocabulary`.
    :param max_tokens: prompts with their answers that are longer are left out and counted.
    """
    options.validated()
    with sole_writer(folder, "run", wait=False):
        skipped = Skipped()
        weights = _load_weights(target, dtype)
        answers = AnswerFiles(answer_files, min(max_tokens, int(weights.config.max_position_embeddings)))
        vocab_size = int(weights.config.vocab_size)
        survey = answers.survey(vocab_size, skipped)
        tokenizer = HfTokenizer.load(target)
        start = _start(initial, weights) if initial is not None else None
        if start is None or options.new_vocabulary:
            draft_ids = draft_vocabulary(survey.token_counts, options.draft_vocab)
        else:
            draft_ids = start.draft_to_target
        options = dataclasses.replace(options, draft_vocab=len(draft_ids))
        config = drafter_config(weights.config, options)
        if start is not None:
            _check_alike(start, config)
        files = cache_features(
            answers,
            survey.answers,
            features or folder / "features",
            target,
            dtype=dtype,
            device=device,
            eos_token_ids=tokenizer.eos_token_ids,
            clock=clock,
        )
        shards = open_shards(files)
        training, held_out = split_by_prompt(shards, options.held_out)
        if not training or not held_out:
            parts = f"{len(training)} to train on and {len(held_out)} held out"
            fault = f"{survey.answers} answers split into {parts}; give more"
            raise TrainingDataError(", ".join(map(str, answer_files)), fault)
        drafter = _new_drafter(weights, draft_ids, tap_scale(shards), config, options.seed, start, device)
        trainer = Trainer(
            drafter,
            _labeller(weights, draft_ids, device),
            Packer(shards, options.rows_per_batch, options.prompt_weight, survey.common_prefix),
            training,
            held_out,
            options,
            schedule or Schedule(),
            RunState(folder / "state.pt", options.digest(f"{[file.name for file in files]} {initial}")),
            clock,
        )
        share = coverage(survey.token_counts, draft_ids)
        log.info(
            "training",
            sequences=len(training),
            held_out=len(held_out),
            steps=trainer.total_steps,
            parameters=parameter_count(drafter),
            draft_coverage=round(share, 4),
            skipped=skipped.describe(),
        )

        def evaluated(history: Sequence[Evaluation]) -> None:
            export_checkpoint(drafter, draft_ids, folder, torch.bfloat16)
            write_curves(history, folder)

        history = trainer.run(evaluated)
        evaluated(history)
        return Trained(folder, parameter_count(drafter), trainer.total_steps, share, history[-1], skipped)


def drafter_config(target: PreTrainedConfig, options: TrainOptions) -> DrafterConfig:
    """One layer of the target's own sizes, but where the options say others. Raises InvalidRequest."""
    hidden, heads = int(target.hidden_size), int(target.num_attention_heads)
    head_dim = int(getattr(target, "head_dim", None) or hidden // heads)
    rope = getattr(target, "rope_parameters", None) or {}
    kv_heads = options.kv_heads or int(getattr(target, "num_key_value_heads", None) or heads)
    if heads % kv_heads:
        raise InvalidRequest("kv_heads", kv_heads, f"it must divide the target's {heads} attention heads")
    return DrafterConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        intermediate_size=options.intermediate_size or int(target.intermediate_size),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=float(getattr(target, "rms_norm_eps", 1e-5)),
        hidden_act="silu",
        vocab_size=int(target.vocab_size),
        draft_vocab_size=options.draft_vocab,
        attention_bias=False,
        norm_before_residual=False,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        aux_layer_ids=None,
        rope=RopeConfig(
            head_dim=head_dim,
            theta=float(rope.get("rope_theta", DEFAULT_THETA)),
            max_position_embeddings=int(getattr(target, "max_position_embeddings", DEFAULT_MAX_POSITIONS)),
        ),
    )


def tap_scale(shards: Sequence[FeatureShard]) -> Tensor:
    """Root mean square of each channel of the taps over some sequences, [3 * hidden]; never zero."""
    places = [(shard, place) for shard in shards for place in shard.places][:_SCALE_SEQUENCES]
    taps = torch.cat([shard.read(place).taps for shard, place in places]).float()
    return taps.square().mean(dim=0).sqrt().clamp_min(1e-6)


def _load_weights(target: Path, dtype: torch.dtype) -> _TargetWeights:
    """Embedding and head, copied so that the rest of the model is freed."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(target, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(str(target), str(error)) from error
    return _TargetWeights(
        _weight(model.get_input_embeddings()),
        _weight(model.get_output_embeddings()),
        _final_norm(model, target),
        model.config.get_text_config(),
    )


def _final_norm(model: PreTrainedModel, target: Path) -> Tensor:
    """Weight of the norm before the target's head."""
    norm = getattr(model.get_decoder(), "norm", None)
    if not isinstance(getattr(norm, "weight", None), Tensor):
        raise CheckpointError(str(target), "has no norm with a weight before its head; training needs one")
    return _weight(norm).float()


def _weight(module: nn.Module | None) -> Tensor:
    assert module is not None
    assert isinstance(module.weight, Tensor)
    return module.weight.detach().clone()


def _new_drafter(
    weights: _TargetWeights,
    draft_ids: Tensor,
    scale: Tensor,
    config: DrafterConfig,
    seed: int,
    start: DrafterCheckpoint | None,
    device: torch.device,
) -> UnrolledDrafter:
    """A drafter as a run begins with it: drawn from the seed, or with the weights of `start`."""
    torch.manual_seed(seed)
    embedding, head = weights.embedding.to(device), weights.head[draft_ids].float()
    # Drawn on the CPU, so that a seed means the same on every machine.
    drafter = UnrolledDrafter(config, embedding, head, weights.final_norm, scale).to(device)
    if start is not None:
        tensors = {**start.tensors, _HEAD: _head_rows(start, draft_ids, head)}
        drafter.load_published(tensors, start.folder)
    return drafter


def _start(folder: Path, weights: _TargetWeights) -> DrafterCheckpoint:
    vocab_size, hidden = weights.embedding.shape
    return load_drafter_checkpoint(folder, target_vocab_size=vocab_size, target_hidden_size=hidden)


def _check_alike(start: DrafterCheckpoint, config: DrafterConfig) -> None:
    """Refuse a drafter that computes something else than training would with its weights; shapes are checked later."""
    for name in _ALIKE:
        theirs, ours = getattr(start.config, name), getattr(config, name)
        if theirs != ours:
            raise CheckpointError(start.folder, f"{name} is {theirs}; training goes on from drafters with {ours}")
    theirs, ours = ((rope.rope_type, rope.theta, dict(rope.scaling)) for rope in (start.config.rope, config.rope))
    if theirs != ours:
        raise CheckpointError(start.folder, f"rotates by {theirs}; training goes on from drafters with {ours}")


def _head_rows(start: DrafterCheckpoint, draft_ids: Tensor, fresh: Tensor) -> Tensor:
    """`start`'s head for a draft vocabulary, [draft_vocab, hidden]; `fresh` has the rows of tokens that it lacks."""
    place = torch.full((int(start.draft_to_target.max().maximum(draft_ids.max())) + 1,), -1)
    place[start.draft_to_target] = torch.arange(len(start.draft_to_target))
    known = place[draft_ids]
    return torch.where((known >= 0)[:, None], start.tensors[_HEAD][known.clamp(min=0)].float(), fresh)


def _labeller(weights: _TargetWeights, draft_ids: Tensor, device: torch.device) -> Labeller:
    to_draft = torch.full((weights.head.shape[0],), -1)
    to_draft[draft_ids] = torch.arange(len(draft_ids))
    return Labeller(weights.head[draft_ids].to(device), to_draft.to(device))
