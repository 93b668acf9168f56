from __future__ import annotations

from pathlib import Path

import pytest
import torch

from respsd.errors import SettingsError
from respsd.models.dtype import Machine, choose_device, choose_dtype, processor_flags, torch_dtype

NONE: frozenset[str] = frozenset()


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (Machine("cpu", frozenset({"avx2", "avx512f"}), False), "float32"),
        (Machine("cpu", frozenset({"avx512f", "avx512_bf16"}), False), "bfloat16"),
        (Machine("cpu", frozenset({"amx_bf16", "amx_tile"}), False), "bfloat16"),
        (Machine("cpu", frozenset({"asimd", "bf16"}), False), "bfloat16"),
        (Machine("cpu", NONE, True), "float32"),
        (Machine("cuda", NONE, True), "bfloat16"),
        (Machine("cuda", frozenset({"avx512_bf16"}), False), "float16"),
    ],
)
def test_auto_takes_what_the_hardware_is_fast_in(machine: Machine, expected: str) -> None:
    assert choose_dtype("auto", machine) == expected


@pytest.mark.parametrize("requested", ["float32", "bfloat16", "float16"])
def test_a_request_overrides_the_machine(requested: str) -> None:
    assert choose_dtype(requested, Machine("cuda", NONE, True)) == requested
    assert torch_dtype(requested) is getattr(torch, requested)


def test_processor_flags_are_read_as_the_kernel_lists_them(tmp_path: Path) -> None:
    x86 = tmp_path / "x86"
    x86.write_text("processor\t: 0\nflags\t\t: fpu sse2 amx_bf16\nbugs\t\t: mds\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor_flags(x86) == {"fpu", "sse2", "amx_bf16"}
    arm = tmp_path / "arm"
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert processor_flags(arm) == {"fp", "asimd", "bf16"}
    assert processor_flags(tmp_path / "none") == NONE


def test_cuda_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    with pytest.raises(SettingsError, match="device: 'cuda' is not possible here"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == "cuda"
    assert choose_device("cpu") == "cpu"
