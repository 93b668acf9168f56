"""The engine's drafts and verifications in fixed shapes: what a step asks for, packed into buckets and unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from respsd.control.action import Action
from respsd.engine.drafter import CommittedRows, Drafter
from respsd.engine.kv_cache import KvArena, SequenceCache
from respsd.engine.static.batch_rows import bucket
from respsd.engine.static.capture import Capturer
from respsd.engine.static.draft import DraftShape, StaticDraft
from respsd.engine.static.verify import StaticVerify, VerifyShape
from respsd.engine.target import Target, TargetOutput
from respsd.engine.tree import DraftTree

_FEWEST_COLUMNS = 256
_FEWEST_PENDING = 8
_FUNCTIONS_KEPT = 256


@dataclass(frozen=True, slots=True)
class ToDraft:
    """One sequence's part of a draft."""

    rows: CommittedRows
    """The drafter's cache of the sequence, and the rows that wait for the drafter; the last token is the root."""
    action: Action


@dataclass(frozen=True, slots=True)
class ToVerify:
    """One sequence's part of a verification."""

    cache: SequenceCache
    tree: DraftTree
    greedy: bool
    """Whether the target's best tokens are the ones that are drawn."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of it."""

    output: TargetOutput
    """One row for each node, on the device; but for `greedy` the logits are on the host, where the sampler works: one
    copy of all rows costs less than one for each that it looks at."""
    tree: DraftTree
    """On the host; without `visible`."""
    best: list[int] | None
    """The target's best token after each node where they are drawn; -1 where its logits are not finite."""


class StaticPath:
    """Runs steps in fixed shapes."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        target_arena: KvArena,
        draft_arena: KvArena | None,
        deepest: int,
        capturer: Capturer,
    ) -> None:
        """:param deepest: depth of the deepest action that there can be."""
        self._device = target.layout.device
        self._depth = deepest + 1
        self._capturer = capturer
        self._features = 3 * target.hidden_size
        self._verifier: Callable[[VerifyShape], StaticVerify] = lru_cache(_FUNCTIONS_KEPT)(
            lambda shape: StaticVerify(target, target_arena, shape)
        )
        self._drafter: Callable[[DraftShape], StaticDraft] | None = None
        if drafter is not None and draft_arena is not None:
            self._drafter = lru_cache(_FUNCTIONS_KEPT)(lambda shape: StaticDraft(drafter, draft_arena, shape))

    def draft(self, wanted: Sequence[ToDraft]) -> list[DraftTree]:
        """Every sequence's tree; those of one action are drafted together. Its waiting rows are in its cache then."""
        trees: dict[int, DraftTree] = {}
        for action in dict.fromkeys(each.action for each in wanted):
            numbers = [number for number, each in enumerate(wanted) if each.action == action]
            drafted = self._draft_alike([wanted[number].rows for number in numbers], action)
            trees |= dict(zip(numbers, drafted, strict=True))
        return [trees[number] for number in range(len(wanted))]

    def _draft_alike(self, rows: Sequence[CommittedRows], action: Action) -> list[DraftTree]:
        assert self._drafter is not None
        counts = [tokens.shape[0] for _, tokens, _ in rows]
        columns = max(
            cache.length + count + action.depth * action.top_k
            for (cache, _, _), count in zip(rows, counts, strict=True)
        )
        pending = bucket(max(counts), _FEWEST_PENDING)
        shape = DraftShape(bucket(len(rows)), action, pending, bucket(columns, _FEWEST_COLUMNS))
        starts, lengths, used = self._to_device(
            [[cache.first_slot, cache.length, count] for (cache, _, _), count in zip(rows, counts, strict=True)],
            shape.batch,
        ).unbind(dim=1)
        tokens = self._stacked([tokens for _, tokens, _ in rows], (pending,), shape.batch)
        features = self._stacked([taps for _, _, taps in rows], (pending, self._features), shape.batch)
        outputs = self._capturer.run(
            shape,
            self._drafter(shape),
            (starts.contiguous(), lengths.contiguous(), used.contiguous(), tokens, features),
        )
        for (cache, _, _), count in zip(rows, counts, strict=True):
            cache.length += count
        return [DraftTree(*(output[number] for output in outputs)) for number in range(len(rows))]

    def verify(self, wanted: Sequence[ToVerify]) -> list[Verified]:
        """Verify all trees. Where `greedy`, the rows of the path that the best tokens make stand behind the prefix
        then, though the cache's length is not moved on. The host waits for the device once, at the end."""
        most = max(each.tree.size for each in wanted)
        columns = max(each.cache.length + each.tree.size for each in wanted)
        nodes = most if most == 1 else bucket(most, _FEWEST_PENDING)
        depth = min(self._depth, nodes - 1)
        shape = VerifyShape(bucket(len(wanted)), nodes, depth, bucket(columns, _FEWEST_COLUMNS))
        numbers = self._to_device(
            [[each.cache.first_slot, each.cache.length, each.tree.size, each.greedy] for each in wanted], shape.batch
        )
        trees = [each.tree for each in wanted]
        inputs = (
            numbers,
            *(
                self._stacked([getattr(tree, part) for tree in trees], (nodes,), shape.batch)
                for part in ("tokens", "parents", "depths", "log_probs")
            ),
            self._stacked([_entropy(tree) for tree in trees], (1,), shape.batch),
            self._visible(trees, nodes, shape.batch),
        )
        told, logits, features = self._capturer.run(shape, self._verifier(shape), inputs)
        on_host = told.cpu()
        return [
            _unpacked(each, on_host[number], logits[number], features[number]) for number, each in enumerate(wanted)
        ]

    def _to_device(self, rows: Sequence[Sequence[int]], batch: int) -> Tensor:
        """int64 [batch, numbers], zeros behind the rows; one copy, which the host does not wait for."""
        empty = [[0] * len(rows[0])] * (batch - len(rows))
        return torch.tensor([*rows, *empty]).to(self._device, non_blocking=True)

    def _stacked(self, parts: Sequence[Tensor], shape: tuple[int, ...], batch: int) -> Tensor:
        """[batch, *shape], zeros where a part ends before and behind the last one."""
        whole = parts[0].new_zeros((batch, *shape))
        for number, part in enumerate(parts):
            whole[number, : part.shape[0]] = part
        return whole

    def _visible(self, trees: Sequence[DraftTree], nodes: int, batch: int) -> Tensor:
        """bool [batch, nodes, nodes]; nodes that there are not see themselves."""
        whole = torch.eye(nodes, dtype=torch.bool, device=self._device).repeat(batch, 1, 1)
        for number, tree in enumerate(trees):
            if tree.visible is not None:
                whole[number, : tree.size, : tree.size] = tree.visible
        return whole


def _unpacked(wanted: ToVerify, told: Tensor, logits: Tensor, features: Tensor) -> Verified:
    """:param told: float64 [6, nodes], on the host; numbers of tokens are exact in it."""
    size = wanted.tree.size
    tokens, parents, depths, log_probs, entropies, best = told[:, :size]
    tree = replace(
        wanted.tree,
        tokens=tokens.long(),
        parents=parents.long(),
        depths=depths.long(),
        log_probs=log_probs.float(),
        visible=None,
        root_entropy=None if wanted.tree.root_entropy is None else entropies[0],
    )
    logits = logits[:size] if wanted.greedy else logits[:size].cpu()
    return Verified(TargetOutput(logits, features[:size]), tree, best.long().tolist() if wanted.greedy else None)


def _entropy(tree: DraftTree) -> Tensor:
    """float32 [1]."""
    return tree.log_probs[:1] if tree.root_entropy is None else tree.root_entropy[None]
