"""A process is as small as what it uses: garbage is found soon, and freed memory goes back to the system."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from support.heap import script_numbers

from respsd import process_memory
from respsd.process_memory import keep_giving_back, leave_out_of_garbage_rounds, use_huge_pages


class Knot:
    """Refers to itself, so that only the garbage collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()


def test_full_rounds_look_at_new_objects_only_and_still_find_their_garbage(thawed) -> None:
    old = weakref.ref(Knot())  # garbage by now
    leave_out_of_garbage_rounds()
    assert old() is None
    assert gc.get_freeze_count() > 10_000
    assert len(gc.get_objects(2)) < 1000
    new = weakref.ref(Knot())
    gc.collect()
    assert new() is None


FREED = """
from respsd.process_memory import give_back_free_memory

def resident():
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1])

kept = [bytes(1000) for _ in range(60_000)][-1]  # the last stands above all others on the heap
before = resident()
give_back_free_memory()
print(before - resident())
"""


def test_what_was_freed_below_something_in_use_goes_back_to_the_system() -> None:
    (kib,) = script_numbers(FREED)
    assert kib > 30_000


HUGE = """
from respsd.process_memory import use_huge_pages

def huge():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("AnonHugePages")).split()[1])

kept = bytearray(b"x") * (64 << 20)
before = huge()
print(use_huge_pages(), huge() - before, kept.count(b"x"))
"""


def test_memory_in_use_moves_to_huge_pages_where_the_system_can() -> None:
    told, moved, whole = script_numbers(HUGE)
    assert whole == 64 << 20
    if not told:
        pytest.skip("this system moves no memory to huge pages when asked (Linux from 6.1 does)")
    assert told >= 60 << 20
    assert moved >= 60 << 20


def test_a_system_that_has_no_such_thing_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_memory, "_MAPS", tmp_path / "none")
    assert use_huge_pages() == 0
    monkeypatch.setattr(process_memory, "_of_libc", lambda _name: None)
    assert use_huge_pages() == 0


HEAPS = """
import threading
from respsd.process_memory import use_few_heaps

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p

def heaps(name):
    file = ctypes.c_void_p(libc.fopen(name.encode(), b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
    return open(name).read().count("<heap nr=")

use_few_heaps()
together, held = threading.Barrier(12), []

def work():
    together.wait()
    held.append([bytes(5000) for _ in range(100)])

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import tempfile
with tempfile.NamedTemporaryFile() as file:
    print(heaps(file.name))
"""


def test_many_threads_share_two_heaps() -> None:
    (heaps,) = script_numbers(HEAPS)
    assert heaps <= 2


async def test_memory_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    enough, times = asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        times.append(1)
        if len(times) == 3:
            loop.call_soon_threadsafe(enough.set)

    monkeypatch.setattr(process_memory, "give_back_free_memory", give_back)
    task = asyncio.create_task(keep_giving_back(0.001))
    await asyncio.wait_for(enough.wait(), 30)
    task.cancel()


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory.ctypes, "CDLL", lambda _name: object())
    process_memory.use_few_heaps()
    process_memory.give_back_free_memory()
