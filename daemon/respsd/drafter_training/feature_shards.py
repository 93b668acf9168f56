"""Feature shards: what one frozen pass of the target over an answer leaves for training, on disk.

A shard is a safetensors file with the rows of some hundred answers, one after another. It is read by memory map, a
sequence at a time, so training needs no more memory for more data. About 8 * hidden + 8 bytes a token in bfloat16.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from respsd.drafter_training.answers import Answer
from respsd.errors import TrainingDataError


@dataclass(frozen=True, slots=True)
class SequenceFeatures:
    """One prompt with its answer, as the target saw it."""

    tokens: Tensor  # int64 [length]
    taps: Tensor  # [length, 3 * hidden]: inputs of layers 2, L // 2 and L - 3, low | mid | high
    final: Tensor  # [length, hidden]: what the target's head turns into the logits of the next token
    best: Tensor  # int64 [length]: the target's most probable next token
    answer_start: int
    """Position of the answer's first token."""
    label_end: int
    """Positions before it have a next token that means something; past an end-of-text token there is none."""


@dataclass(frozen=True, slots=True)
class SequencePlace:
    """Where a sequence stands, without its rows."""

    shard: int
    start: int
    length: int
    answer_start: int
    label_end: int
    prompt_digest: int
    """Equal for equal prompts; what the held-out split goes by."""


class Sliceable(Protocol):
    """A tensor in a file, read by rows."""

    def __getitem__(self, rows: slice) -> Tensor:
        """These rows."""
        ...


class FeatureShard:
    """An open shard."""

    def __init__(self, file: Path, number: int) -> None:
        """Raises TrainingDataError where the file is damaged."""
        try:
            self._file = safe_open(file, framework="pt")
            table: Tensor = self._file.get_tensor("sequences")  # type: ignore[no-untyped-call]  # int64 [sequences, 5]
            self._rows: dict[str, Sliceable] = {
                name: self._file.get_slice(name)  # type: ignore[no-untyped-call]  # a typeless extension
                for name in ("tokens", "taps", "final", "best")
            }
        except (OSError, SafetensorError) as error:
            raise TrainingDataError(
                str(file), f"is no feature shard ({error}); delete it to have it made anew"
            ) from error
        self.places = [SequencePlace(number, *row) for row in table.tolist()]

    def read(self, place: SequencePlace) -> SequenceFeatures:
        """The rows of one sequence."""
        rows = slice(place.start, place.start + place.length)
        return SequenceFeatures(
            tokens=self._rows["tokens"][rows].long(),
            taps=self._rows["taps"][rows],
            final=self._rows["final"][rows],
            best=self._rows["best"][rows].long(),
            answer_start=place.answer_start,
            label_end=place.label_end,
        )


def write_shard(file: Path, answers: Sequence[Answer], rows: Sequence[SequenceFeatures]) -> None:
    """Write a whole shard or none: to a temporary name, synced, then renamed."""
    table, start = [], 0
    for answer, one in zip(answers, rows, strict=True):
        length = len(one.tokens)
        digest = int.from_bytes(bytes.fromhex(Answer(answer.source, 0.0, answer.prompt_ids, [0]).key)[:7])
        table.append([start, length, one.answer_start, one.label_end, digest])
        start += length
    write_tensors(
        file,
        {
            "sequences": torch.tensor(table),
            "tokens": torch.cat([one.tokens for one in rows]).int(),
            "taps": torch.cat([one.taps for one in rows]),
            "final": torch.cat([one.final for one in rows]),
            "best": torch.cat([one.best for one in rows]).int(),
        },
    )


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file that is whole or not there; raises TrainingDataError (a full disk, say)."""
    temporary = file.with_name(file.name + ".part")
    try:
        save_file(dict(tensors), temporary, dict(metadata) if metadata else None)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise TrainingDataError(
            str(file), f"cannot be written: {error}; what was written before is kept, run again to go on"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder for output; raises TrainingDataError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainingDataError(str(folder), f"cannot be made: {error}") from error
