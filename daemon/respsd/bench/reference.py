"""Exact comparison with recordings of the reference implementation (SafeAILab/EAGLE): trees and whole decodes.

A recording is a folder with a target and a drafter checkpoint, `trees.json` (single draft trees: `prompt`, `root`,
action, `draft_tokens`, `parents` with -1 for the root, `positions`) and `decodes.json` (greedy decodes: `prompt`,
action, `output`, `accepted` drafted tokens of each step). Everything is float32 and compared exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from respsd.control.action import Action, ActionTable
from respsd.engine.assembly import Models, load_models
from respsd.engine.kv_cache import SequenceCache
from respsd.engine.local_run import StepLog, fixed_request, run, running_engine
from respsd.engine.target import causal_rows
from respsd.engine.tree import draft_tree
from respsd.errors import CheckpointError

_MISMATCHES_KEPT = 5
_CPU = torch.device("cpu")

Case = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many cases were compared, how many differ, and how the first of these do."""

    checked: int
    failed: int
    first: tuple[str, ...]

    @classmethod
    def of(cls, mismatches: Sequence[str | None]) -> Comparison:
        """From each case's mismatch, None where it agrees."""
        found = [mismatch for mismatch in mismatches if mismatch is not None]
        return cls(len(mismatches), len(found), tuple(found[:_MISMATCHES_KEPT]))


def compare_with_reference(folder: Path, device: torch.device = _CPU) -> tuple[Comparison, Comparison]:
    """Compare every tree and every decode of a recording; raises CheckpointError where it cannot be read."""
    trees, decodes = _cases(folder / "trees.json"), _cases(folder / "decodes.json")
    models = load_models(folder / "target", folder / "draft", dtype=torch.float32, device=device)
    with torch.inference_mode():
        tree_mismatches = [_compare_tree(models, number, case) for number, case in enumerate(trees)]
    return Comparison.of(tree_mismatches), Comparison.of(_compare_decodes(models, decodes))


def _compare_tree(models: Models, number: int, case: Case) -> str | None:
    drafter, prompt, action = models.drafter, _numbers(case, "prompt"), _action(case)
    assert drafter is not None
    count = len(prompt)
    cache = SequenceCache(models.target.layout, count)
    output = models.target.forward([causal_rows(cache, prompt, scored=1)])[0]
    root = int(output.logits[0].argmax())
    draft_cache = SequenceCache(drafter.layout, count + max(1, action.depth * action.top_k))
    state = drafter.extend(draft_cache, torch.tensor([*prompt[1:], root], device=output.logits.device), output.features)
    tree = draft_tree(drafter, draft_cache, torch.tensor([root], device=state.device), state, action)
    ours = {
        "root": root,
        "draft_tokens": tree.tokens.tolist(),
        "parents": [-1, *tree.parents.tolist()[1:]],
        "positions": tree.depths.tolist(),
    }
    return next(
        (f"tree {number} ({action}): {what} differs" for what, value in ours.items() if value != case[what]), None
    )


def _compare_decodes(models: Models, cases: Sequence[Case]) -> list[str | None]:
    log = StepLog()
    largest = ActionTable(tuple({_action(case) for case in cases})).largest
    with running_engine(models, largest, log) as engine:
        mismatches: list[str | None] = []
        for number, case in enumerate(cases):
            action, output, accepted = _action(case), _numbers(case, "output"), _numbers(case, "accepted")
            log.steps.clear()
            # Asked for more than was recorded, so that no step of the recording is cut or clamped by the budget.
            budget = len(output) + action.depth + 2
            completion = run(engine, fixed_request(_numbers(case, "prompt"), action, budget))
            mismatches.append(
                _difference(f"decode {number} ({action}): output", completion.token_ids[: len(output)], output)
                or _difference(
                    f"decode {number} ({action}): accepted",
                    [step.accepted_tokens for step in log.steps[: len(accepted)]],
                    accepted,
                )
            )
        return mismatches


def _difference(what: str, ours: Sequence[int], theirs: Sequence[int]) -> str | None:
    if list(ours) == list(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    return f"{what} differs from place {place} on"


def _cases(file: Path) -> list[Case]:
    try:
        cases = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(str(file), f"is not a readable recording: {error}") from error
    if not isinstance(cases, list) or not all(isinstance(case, dict) for case in cases):
        raise CheckpointError(str(file), "is not a list of cases")
    return cases


def _action(case: Case) -> Action:
    total_tokens, depth, top_k = (case.get(name) for name in ("total_tokens", "depth", "top_k"))
    if not (isinstance(total_tokens, int) and isinstance(depth, int) and isinstance(top_k, int)):
        raise CheckpointError("recording", f"a case has no action: {sorted(case)}")
    return Action(total_tokens, depth, top_k).validated()


def _numbers(case: Case, name: str) -> list[int]:
    value = case.get(name)
    if not isinstance(value, list) or not value or not all(isinstance(each, int) for each in value):
        raise CheckpointError("recording", f"a case's {name} is not a list of integers")
    return value
