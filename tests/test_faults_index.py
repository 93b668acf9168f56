"""FAULTS.md names tests that exist, for every kind of fault in it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (PROJECT / "tests" / "FAULTS.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| fault |")
]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((PROJECT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(each.name for each in tree.body if isinstance(each, kinds) and each.name.startswith("test_"))


def test_every_line_has_a_fault_a_source_and_tests() -> None:
    assert len(ROWS) > 25
    assert all(len(row) == 3 for row in ROWS)
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("fault", "source", "tests"), ROWS, ids=[row[1] for row in ROWS])
def test_the_tests_of_a_fault_exist(fault: str, source: str, tests: str) -> None:
    assert re.search(r"[\w.-]+/[\w.-]+(#\d+| `docs/)", source), source
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named
    assert len(named) == len(tests.split(", "))
    missing = [f"{file}::{name}" for file, name in named if name not in names_in(file)]
    assert missing == []
