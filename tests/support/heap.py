"""What work does to the memory of a process of its own: in the tests' own one much has happened already."""

from __future__ import annotations

import subprocess
import sys

_MEASURE = """
import ctypes
import torch

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a b c d mapped f g used h i".split()]

mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
mallinfo2.restype = Heap

def grown(work):
    "Bytes that are in use on glibc's heap after the work, and were not before."
    before = mallinfo2()
    work()
    after = mallinfo2()
    return after.used + after.mapped - before.used - before.mapped

torch.set_num_threads(1)
torch.set_grad_enabled(False)
"""


def script_numbers(script: str) -> list[int]:
    """The numbers that a script prints; it may use `torch` and `grown(work)`."""
    ran = subprocess.run([sys.executable, "-c", _MEASURE + script], capture_output=True, text=True, check=True)
    return [int(word) for word in ran.stdout.split()]
