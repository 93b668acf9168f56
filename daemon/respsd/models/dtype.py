"""The number format that a machine is fast in."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from respsd.errors import SettingsError

if TYPE_CHECKING:
    import torch

_FAST_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Processor features that multiply bfloat16 matrices: x86's two, and AArch64's."""
_FLAG_FIELDS = ("flags", "Features")
"""What x86 and AArch64 kernels call the list in /proc/cpuinfo."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the choice depends on."""

    device: str
    """cpu or cuda."""
    processor_flags: Set[str]
    gpu_has_bfloat16: bool


def choose_dtype(requested: str, machine: Machine) -> str:
    """float32, bfloat16 or float16; `auto` is the fastest that the machine has hardware for."""
    if requested != "auto":
        return requested
    if machine.device == "cuda":
        return "bfloat16" if machine.gpu_has_bfloat16 else "float16"
    return "bfloat16" if _FAST_BFLOAT16 & machine.processor_flags else "float32"


def this_machine(device: str) -> Machine:
    """Look at the machine; `device` is cpu or cuda."""
    return Machine(device, processor_flags(), device == "cuda" and _gpu_has_bfloat16())


def choose_device(requested: str) -> str:
    """cpu or cuda; `auto` is CUDA where torch sees a GPU. Raises SettingsError where cuda is asked for in vain."""
    import torch

    if requested == "cuda" and not torch.cuda.is_available():
        raise SettingsError("device: 'cuda' is not possible here; torch sees no CUDA device (use cpu or auto)")
    if requested != "auto":
        return requested
    return "cuda" if torch.cuda.is_available() else "cpu"


def torch_dtype(name: str) -> torch.dtype:
    """torch's object for one of the three names."""
    import torch

    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The processor's feature names as the kernel lists them; empty where it lists none."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    fields = (line.partition(":") for line in lines)
    return next((frozenset(value.split()) for name, _, value in fields if name.strip() in _FLAG_FIELDS), frozenset())


def _gpu_has_bfloat16() -> bool:
    import torch

    # Emulated bfloat16 counts as supported unless it is left out, and it is slower than float16.
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))
