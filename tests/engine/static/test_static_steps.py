"""Steps in fixed shapes against steps as they come: the same trees, the same tokens, the same KV."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from support import models as tiny_models
from support import tiny
from support.engines import (
    LARGEST,
    CountingHooks,
    MemorySink,
    Rig,
    load_tiny,
    request,
    running,
    static_router,
)
from support.graphs import Machine
from torch import Tensor

from respsd.clock import SystemClock
from respsd.control.action import OFF, Action
from respsd.control.observation import ObservationSchema
from respsd.engine.assembly import EngineConfig, Models, Shapes, build_engine
from respsd.engine.kv_cache import KvArena, SequenceCache
from respsd.engine.loop import LoopLimits
from respsd.engine.request import GenerationRequest, SamplingParams
from respsd.engine.static.capture import Capturer, Eager, Recorded
from respsd.engine.static.path import StaticPath, ToDraft, ToVerify
from respsd.engine.target import Rows, causal_rows
from respsd.engine.tree import DraftRequest, DraftTree, draft_trees, root_only
from respsd.engine.walk import walk
from respsd.errors import SettingsError

PROMPTS = ([1, 40, 17, 99, 254, 3, 60], [1, 200], [1, 77, 5] * 9)
SLOTS = 1300


class Pair:
    """Sequences behind their prompts twice: in arenas, where fixed shapes work, and in caches of their own.

    The arenas' memory holds NaN wherever nobody wrote: reading what one must not read would show.
    """

    def __init__(self, models: Models, prompts: Sequence[Sequence[int]] = PROMPTS) -> None:
        assert models.drafter is not None
        self.target, self.drafter = models.target, models.drafter
        self.arena, self.draft_arena = (KvArena(each.layout, SLOTS) for each in (self.target, self.drafter))
        for arena in (self.arena, self.draft_arena):
            arena.data[:, :, :, :SLOTS] = float("nan")
        self.path = StaticPath(self.target, self.drafter, self.arena, self.draft_arena, 8, Eager())
        self.caches, self.draft_caches, self.own, self.own_draft = ([], [], [], [])
        self.waiting: list[tuple[Tensor, Tensor]] = []
        for number, prompt in enumerate(prompts):
            slots = slice(400 * number + 3, 400 * (number + 1))
            pairs = (
                (self.arena.cache(slots), SequenceCache(self.target.layout, 400)),
                (self.draft_arena.cache(slots), SequenceCache(self.drafter.layout, 400)),
            )
            features = None
            for cache in pairs[0]:
                features = self.target.forward([causal_rows(cache, prompt, scored=1)])[0].features
                cache.commit(list(range(len(prompt))))
            assert features is not None
            tokens, split = torch.tensor([*prompt[1:], 55 + number]), max(0, len(prompt) - 1 - number)
            for cache in pairs[1]:
                if split:
                    self.drafter.extend(cache, tokens[:split], features[:split])
            self.waiting.append((tokens[split:], features[split:]))
            for caches, pair in zip(((self.caches, self.own), (self.draft_caches, self.own_draft)), pairs, strict=True):
                caches[0].append(pair[0])
                caches[1].append(pair[1])

    def roots(self) -> list[Tensor]:
        return [tokens[-1:] for tokens, _ in self.waiting]

    def drafted(self, actions: Sequence[Action]) -> list[DraftTree]:
        rows = [(cache, *waiting) for cache, waiting in zip(self.draft_caches, self.waiting, strict=True)]
        return self.path.draft([ToDraft(*each) for each in zip(rows, actions, strict=True)])

    def as_they_come(self, actions: Sequence[Action]) -> list[DraftTree]:
        rows = [(cache, *waiting) for cache, waiting in zip(self.own_draft, self.waiting, strict=True)]
        outputs = self.drafter.extend_all(rows)
        requests = [DraftRequest(*each) for each in zip(self.own_draft, self.roots(), actions, strict=True)]
        return draft_trees(self.drafter, requests, outputs)


@pytest.fixture(scope="module")
def models() -> Models:
    return load_tiny()


@pytest.fixture
def pair(models) -> Iterator[Pair]:
    with torch.inference_mode():
        yield Pair(models)


ACTIONS = [Action(16, 4, 4), Action(60, 7, 10), Action(4, 1, 2), Action(9, 8, 1), Action(3, 0, 4), Action(128, 8, 32)]


@pytest.mark.parametrize("actions", [*([action] * 3 for action in ACTIONS), ACTIONS[:3]])
def test_the_trees_are_the_same_node_for_node(pair, actions):
    found, expected = pair.drafted(actions), pair.as_they_come(actions)
    for mine, other in zip(found, expected, strict=True):
        for part in ("tokens", "parents", "depths", "visible"):
            assert torch.equal(getattr(mine, part), getattr(other, part)), part
        torch.testing.assert_close(mine.log_probs, other.log_probs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.root_entropy, other.root_entropy)
    assert [cache.length for cache in pair.draft_caches] == [cache.length for cache in pair.own_draft]
    for mine, other in zip(pair.draft_caches, pair.own_draft, strict=True):
        torch.testing.assert_close(mine.data[:, :, :, : mine.length], other.data[:, :, :, : other.length])


@pytest.mark.parametrize("actions", [[Action(16, 4, 4), Action(60, 7, 10), None], [None, None, None]])
def test_verification_gives_the_same_logits_walk_and_memory(pair, actions):
    """A tree for each, or none: `off` beside trees, and `off` alone."""
    drafted = pair.as_they_come([action or Action(4, 1, 2) for action in actions])
    trees = [
        tree if action is not None else root_only(root)
        for tree, action, root in zip(drafted, actions, pair.roots(), strict=True)
    ]
    lengths = [cache.length for cache in pair.caches]
    found = pair.path.verify([ToVerify(cache, tree, True) for cache, tree in zip(pair.caches, trees, strict=True)])
    outputs = pair.target.forward(
        [
            Rows(cache, tree.tokens, tree.depths + cache.length, tree.visible, torch.arange(tree.size))
            for cache, tree in zip(pair.own, trees, strict=True)
        ]
    )
    accepted = 0
    for number, (mine, tree, output) in enumerate(zip(found, trees, outputs, strict=True)):
        torch.testing.assert_close(mine.output.logits, output.logits, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(mine.output.features, output.features, rtol=1e-4, atol=1e-4)
        assert mine.best == output.logits.argmax(dim=-1).tolist()
        assert torch.equal(mine.tree.tokens, tree.tokens)
        assert torch.equal(mine.tree.parents, tree.parents)
        assert torch.equal(mine.tree.log_probs, tree.log_probs)
        path = walk(tree.tokens.numpy(), tree.parents.numpy(), lambda node, _path, best=mine.best: best[node])
        accepted += path.accepted
        pair.own[number].commit(path.nodes)
        assert pair.caches[number].length == lengths[number]
        pair.caches[number].advance(len(path.nodes))
        rows = slice(pair.own[number].length)
        torch.testing.assert_close(
            pair.caches[number].data[:, :, :, rows], pair.own[number].data[:, :, :, rows], rtol=1e-4, atol=1e-4
        )
    assert accepted > 0 or actions == [None] * 3


def test_where_the_best_tokens_are_not_drawn_the_rows_stay_and_the_logits_come_to_the_host(pair):
    trees = pair.as_they_come([Action(16, 4, 4)] * 3)
    found = pair.path.verify([ToVerify(cache, tree, False) for cache, tree in zip(pair.caches, trees, strict=True)])
    pair.target.forward(
        [
            Rows(cache, tree.tokens, tree.depths + cache.length, tree.visible, torch.arange(tree.size))
            for cache, tree in zip(pair.own, trees, strict=True)
        ]
    )
    for mine, cache, own, tree in zip(found, pair.caches, pair.own, trees, strict=True):
        assert mine.best is None
        assert mine.output.logits.shape[0] == tree.size
        rows = slice(cache.length, cache.length + tree.size)
        torch.testing.assert_close(cache.data[:, :, :, rows], own.data[:, :, :, rows], rtol=1e-4, atol=1e-4)


@contextmanager
def running_in(shapes: Shapes | None, models: Models, capturer: Capturer | None = None) -> Iterator[Rig]:
    """An engine whose steps run so."""
    sink, hooks = MemorySink(), CountingHooks()
    schema = ObservationSchema(feature_width=models.schema_features, projection=8)
    limits = LoopLimits(max_running=8, prefill_chunk=16)
    config = EngineConfig(
        reserved=LARGEST, persistence=3, kv_tokens=4096, limits=limits, shapes=shapes, capturer=capturer
    )
    router = static_router(Action(16, 4, 4))
    engine = build_engine(
        models, router, schema, sink, config, uniform=random.Random(0).random, clock=SystemClock(), hooks=hooks
    )
    engine.start()
    try:
        yield Rig(engine, models, router, sink, hooks, schema)
    finally:
        engine.stop()


def requests() -> list[GenerationRequest]:
    sampled = SamplingParams(temperature=1.0, seed=4)
    return [
        request(PROMPTS[0], 24, action=Action(60, 7, 10)),
        request(PROMPTS[1], 9, action=OFF),
        request(PROMPTS[2], 20, action=Action(4, 1, 2), sampling=sampled),
        request([1, 9] * 30, 21, action=Action(16, 4, 4), sampling=SamplingParams(frequency_penalty=1.0)),
        request([8], 24, action=Action(128, 8, 32), sampling=SamplingParams(temperature=0.7, top_p=0.9, seed=5)),
        request([8, 9], 24),
        request([8, 9, 10], 24, min_new_tokens=12, ignore_eos=False),
    ]


def test_an_engine_in_fixed_shapes_gives_the_same_tokens_alone_and_with_batch_mates(models):
    with running(models, persistence=3) as rig:
        expected = [rig.generate(each) for each in requests()]
    with running_in("static", models) as rig:
        alone = [rig.generate(each) for each in requests()]
        alone_steps = len(rig.hooks.steps)
        with ThreadPoolExecutor(8) as clients:
            together = list(clients.map(rig.generate, requests()))
        assert rig.engine.load().kv_tokens_reserved == 0
        assert max(step.batch_size for _, step in rig.hooks.steps[alone_steps:]) > 1
    for mine, crowded, other in zip(alone, together, expected, strict=True):
        assert mine.token_ids == crowded.token_ids == other.token_ids
        assert mine.finished.steps == crowded.finished.steps == other.finished.steps
        assert mine.finished.accepted_tokens == crowded.finished.accepted_tokens == other.finished.accepted_tokens


def test_recorded_steps_give_the_same_tokens(models):
    """Graphs that are played on the processor: inputs are copied into them, outputs are overwritten by the next."""
    machine = Machine()
    graphs = Recorded(machine.record)
    asked = [request(PROMPTS[0], 20, action=Action(16, 4, 4)), request(PROMPTS[1], 12, action=OFF)]
    with running(models, persistence=3) as rig:
        expected = [rig.generate(each).token_ids for each in asked]
    with running_in("static", models, graphs) as rig:
        assert [rig.generate(each).token_ids for each in asked] == expected
    assert graphs.recorded == len(machine.graphs) >= 3  # a draft, its verification, and plain decoding
    assert sum(graph.replays for graph in machine.graphs) > 10


def test_the_host_waits_once_a_step_for_what_it_has_to_know(models, monkeypatch):
    """Greedy streams under one action: the walk needs nothing but the one transfer."""
    transfers: list[torch.dtype] = []
    to_cpu = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: transfers.append(tensor.dtype) or to_cpu(tensor))
    with running_in("static", models) as rig:
        rig.generate(request(PROMPTS[0], 40, action=Action(16, 4, 4)))
        steps, windows = len(rig.hooks.steps), len(rig.sink.transitions)
        told = [dtype for dtype in transfers if dtype == torch.float64]
        assert len(told) == steps > 5
        # Beside them: an observation for each window, and the tokens and parents of the tree, which are there already.
        assert len(transfers) == steps + 2 * steps + windows


def test_a_broken_drafter_costs_its_speculation_and_nothing_else(models, tmp_path):
    poisoned = load_tiny(tiny.write_drafter(tmp_path / "drafter", tiny_models.folders()[0], poison=float("nan")))
    with running(models, persistence=3) as rig:
        expected = rig.generate(request(PROMPTS[0], 20, action=OFF)).token_ids
    with running_in("static", poisoned) as rig:
        assert rig.generate(request(PROMPTS[0], 20, action=Action(16, 4, 4))).token_ids == expected
        assert rig.hooks.faults > 10
        assert {step.applied for _, step in rig.hooks.steps} == {OFF}


def test_a_processor_runs_steps_as_they_come_unless_told_otherwise_and_has_no_graphs(models):
    with running_in(None, models) as rig:
        assert rig.engine._stepper._static is None
    with pytest.raises(SettingsError, match="graphs"), running_in("graphs", models):
        pass
