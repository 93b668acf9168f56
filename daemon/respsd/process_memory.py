"""What keeps a long-lived process as small as what it uses.

Measured on the soak test's ten minutes of mixed traffic, 1 % of growth being 6 MB: garbage in cycles came to 12 MB
between two full rounds of the collector, and free memory in glibc's heaps of 18 threads went from 15 to 25 MB.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable, Iterator
from pathlib import Path

_M_ARENA_MAX = -8
"""glibc's number of the option."""
_ARENAS = 2
_MADV_COLLAPSE = 25
"""Linux's number of the advice."""
_HUGE = 2 << 20
_MAPS = Path("/proc/self/maps")
_SECONDS = 30.0
"""Between two looks for free memory."""


def use_few_heaps() -> None:
    """Have all threads of the process share two of glibc's heaps; call it before there are threads.

    By default each thread has one, up to eight for a processor, and what is free in one is of no use to the others.
    """
    if (mallopt := _of_libc("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, _ARENAS)


def leave_out_of_garbage_rounds() -> None:
    """Have the garbage collector look no more at what there is by now, half a million objects once a model is loaded.

    A full round would hold up every thread for a good part of a second, and takes place only once a quarter as many
    objects are new: until then cycles keep what they hold, megabytes of ended calls and former policies.
    """
    gc.collect()
    gc.freeze()
    gc.collect()  # counts anew what there is, of which a quarter must be new before it goes over all of it


def give_back_free_memory() -> None:
    """Give the system what glibc keeps of freed memory; takes milliseconds, in which other threads may run."""
    if (malloc_trim := _of_libc("malloc_trim")) is not None:
        malloc_trim(0)


def use_huge_pages() -> int:
    """Have the system put the memory that is in use by now into pages of 2 MB; returns how many bytes it did.

    For weights, which every step reads from end to end: with pages of 4 KB a good part of the time goes into finding
    them (Xeon in a virtual machine, two cores: a step of the demo model takes 26.5 in place of 30 ms). It takes a
    second for 400 MB. Linux does it from 6.1 on, whatever its setting of transparent huge pages; others return 0.
    """
    madvise = _of_libc("madvise")
    if madvise is None:
        return 0
    give_back_free_memory()
    done = 0
    for start, end in _anonymous_memory():
        first, last = -(-start // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if first < last and madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE) == 0:
            done += last - first
    return done


def _anonymous_memory() -> Iterator[tuple[int, int]]:
    """Where the process's own memory lies: heaps and what was mapped for large blocks."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:  # another system than Linux
        return
    for line in lines:
        place, access, _offset, _device, _inode, *name = line.split()
        if access == "rw-p" and name in ([], ["[heap]"]):
            start, _, end = place.partition("-")
            yield int(start, 16), int(end, 16)


async def keep_giving_back(seconds: float = _SECONDS) -> None:
    """Give free memory back now and then; runs until it is cancelled."""
    while True:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(give_back_free_memory)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of the C library; None where it is another one than glibc and has none of the name."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None), name, None)
    return found
