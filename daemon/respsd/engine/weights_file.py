"""The tensors of a checkpoint folder, whichever published file form holds them, read without running code from it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from respsd.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], str]:
    """All tensors by their published names, on the CPU in the file's dtypes, and the file to name in complaints.

    Looks for `model.safetensors`, then its sharded index, then `pytorch_model.bin`, which is unpickled with
    `weights_only=True` and nothing else. Raises CheckpointError.
    """
    if (folder / SINGLE).is_file():
        return _read_safetensors(folder / SINGLE), str(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _read_shards(folder), str(folder / INDEX)
    if (folder / PICKLED).is_file():
        return _read_pickled(folder / PICKLED), str(folder / PICKLED)
    raise CheckpointError(str(folder), f"holds none of {SINGLE}, {INDEX}, {PICKLED}")


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(str(file), f"is not a readable safetensors file: {error}") from error


def _read_shards(folder: Path) -> dict[str, Tensor]:
    index_file = folder / INDEX
    try:
        weight_map: dict[str, str] = json.loads(index_file.read_text())["weight_map"]
        shards = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(str(index_file), f"holds no weight_map: {error!r}") from error

    tensors: dict[str, Tensor] = {}
    for shard in shards:
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise CheckpointError(str(index_file), f"shard {shard!r} is not a file beside it")
        tensors.update(_read_safetensors(folder / shard))
    if tensors.keys() != weight_map.keys():
        odd = sorted(tensors.keys() ^ weight_map.keys())
        raise CheckpointError(str(index_file), f"index and shards disagree about {', '.join(odd[:4])}")
    return tensors


def _read_pickled(file: Path) -> dict[str, Tensor]:
    try:
        loaded: object = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, OSError, EOFError, ValueError) as error:
        raise CheckpointError(str(file), f"is not a plain file of tensors: {error}") from error
    if not isinstance(loaded, dict) or not all(isinstance(tensor, Tensor) for tensor in loaded.values()):
        raise CheckpointError(str(file), "holds something other than named tensors")
    return {str(name): tensor for name, tensor in loaded.items()}
