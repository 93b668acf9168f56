"""One step for a batch of sequences: draft, verify, commit, and some prompt tokens along. The daemon's hot path.

committed tokens of a step = accepted drafted tokens + the bonus token, cut at the first boundary (EOS, stop, budget,
context end); everything else about a request, its KV, usage, text and rows, describes that same cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from respsd.clock import Clock
from respsd.control.action import OFF, Action
from respsd.control.controller import Vector
from respsd.control.observation import ObservationBuilder
from respsd.engine.clamping import clamp
from respsd.engine.draft_time import DraftTime
from respsd.engine.drafter import Drafter
from respsd.engine.events import TokenLogProb
from respsd.engine.hooks import EngineHooks
from respsd.engine.memory import Alone, Undo, forget_frames, is_out_of_memory
from respsd.engine.pace import PrefillPace
from respsd.engine.prompting import PromptPart, emit_first, take_over
from respsd.engine.sampling import argmax_rows
from respsd.engine.scoring import score
from respsd.engine.sequence import Sequence
from respsd.engine.static.path import StaticPath, ToDraft, ToVerify
from respsd.engine.target import Rows, Target, TargetOutput
from respsd.engine.tree import DraftRequest, DraftTree, draft_trees, root_only
from respsd.engine.walk import Draw, Walk, walk
from respsd.engine.window import StepMeasure, Window
from respsd.errors import OutOfMemory

_Outputs = tuple[list[TargetOutput], list[list[int] | None]]

_PENDING_LIMIT = 256
"""Rows that may wait for the drafter while a sequence decodes plainly, which bounds the features kept for it."""


@dataclass(slots=True)
class _Draft:
    """One sequence's part of a step in progress."""

    sequence: Sequence
    applied: Action
    tree: DraftTree
    log_probs: tuple[TokenLogProb, ...] = ()
    """Of the walk's tokens, where the request asks for them."""
    is_placed: bool = False
    """The KV rows of the path that the best tokens make stand in their places already."""


class Stepper:
    """Runs steps; owns no queue and no thread."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        observations: ObservationBuilder,
        persistence: int,
        uniform: Callable[[], float],
        clock: Clock,
        hooks: EngineHooks,
        static: StaticPath | None = None,
    ) -> None:
        """:param persistence: steps of a window; `uniform` draws from [0, 1) for policies that sample.
        :param static: runs drafts, and steps without prompt parts, in fixed shapes; None: as they come.
        """
        self._target = target
        self._drafter = drafter
        self._observations = observations
        self._persistence = persistence
        self._uniform = uniform
        self._clock = clock
        self._hooks = hooks
        self._static = static
        self._draft_time = DraftTime() if target.layout.device.type == "cuda" else None

    def step(self, batch: list[Sequence], prompts: list[PromptPart], pace: PrefillPace) -> list[Sequence]:
        """One step of every running sequence, with parts of prompts in the same target forward.

        :param batch: running sequences
        :param prompts: what the step takes of sequences whose prompt is not in yet
        :param pace: told how long the step took
        :return: sequences whose prompt is in now and whose first token is known.
        :raises OutOfMemory: the step's work does not fit the memory, and nothing has changed.
        """
        opened = self._clock.monotonic_ns()
        undo = [Undo(sequence) for sequence in batch]
        try:
            self._open_windows([sequence for sequence in batch if sequence.window is None], len(batch))
            began = self._clock.monotonic_ns()
            drafts = self._draft(batch)
            drafted = self._clock.monotonic_ns()
            outputs, greedy = self._verify(drafts, prompts)
            if batch and self._draft_time is not None:
                drafted = began + self._draft_time.ns()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            forget_frames(error)
            for each in undo:
                each.restore()
            raise OutOfMemory from None
        verified = self._clock.monotonic_ns()
        walks = [
            self._commit(draft, output, tokens) for draft, output, tokens in zip(drafts, outputs, greedy, strict=False)
        ]
        committed = self._clock.monotonic_ns()
        started = [self._take_prompt(*each) for each in zip(prompts, outputs[len(drafts) :], strict=True)]
        ended = self._clock.monotonic_ns()
        prompt_tokens = sum(part.count for part in prompts)
        pace.learn(len(batch), prompt_tokens, ended - opened)
        # The prompts' part of the forward is no decoding time: rewards and usage leave it out.
        prompt_ns = verified - drafted
        if batch:
            prompt_ns = min(prompt_ns, max(0, pace.prompt_ns(prompt_tokens) - (ended - committed)))
        for part in prompts:
            part.sequence.prefill_ns += (ended - committed) + prompt_ns
        other = (began - opened) + (committed - verified)
        for draft, path in zip(drafts, walks, strict=True):
            if path is not None:
                with Alone(draft.sequence):
                    self._account(draft, path, len(batch), drafted - began, verified - drafted - prompt_ns, other)
        return [sequence for sequence in started if sequence is not None]

    def start_sample(self, sequence: Sequence) -> None:
        """Begin a further sample from the first one's prompt, which is in."""
        began = self._clock.monotonic_ns()
        take_over(sequence)
        sequence.prefill_ns += self._clock.monotonic_ns() - began

    def close_window(self, sequence: Sequence, *, truncated: bool) -> None:
        """Turn the open window, if any, into a transition of the sequence."""
        if sequence.window is not None:
            row = sequence.window.close(self._observations.schema.fingerprint, truncated=truncated)
            if row is not None:
                before = sequence.transitions[-1].decision if sequence.transitions else row.decision
                sequence.transitions.append(row.at_rest())
                self._hooks.after_window(row)
                if row.decision.action != before.action:
                    self._hooks.after_switch(before, row.decision)
            sequence.window = None

    def _open_windows(self, opening: list[Sequence], batch_size: int) -> None:
        if opening:
            # [sequences, 3 * hidden]; one transfer for all
            features = torch.stack(
                [sequence.last_features for sequence in opening if sequence.last_features is not None]
            )
            for sequence, row in zip(opening, features.float().cpu().numpy(), strict=True):
                self._open_window(sequence, row, batch_size)

    def _open_window(self, sequence: Sequence, features: Vector, batch_size: int) -> None:
        signals = sequence.signals.vector(
            context_length=sequence.cache.length,
            context_limit=self._target.context_length,
            batch_size=batch_size,
            temperature=sequence.request.sampling.temperature,
        )
        observation: Vector = self._observations.build(features, signals)
        decision = sequence.controllers.current().choose(observation, self._uniform())
        sequence.window = Window(sequence.windows, self._clock.time_ns(), observation, decision, sequence.cache.length)
        if sequence.windows == 0:
            sequence.version_first = decision.policy_version
        sequence.version_last = decision.policy_version
        sequence.windows += 1

    def _draft(self, batch: list[Sequence]) -> list[_Draft]:
        """Every sequence's tree; the drafter runs over all of them at once, level by level."""
        if self._draft_time is not None:
            self._draft_time.begin()
        drafts: list[_Draft] = []
        requests: list[DraftRequest] = []
        late: list[Sequence] = []
        for sequence in batch:
            assert sequence.window is not None
            root = torch.tensor([sequence.root], device=self._target.layout.device)
            action = self._clamp(sequence, sequence.window.decision.action)
            drafts.append(_Draft(sequence, action, root_only(root)))
            if sequence.draft_cache is None:
                continue
            if not action.is_off:
                requests.append(DraftRequest(sequence.draft_cache, root, action))
            elif len(sequence.pending) > _PENDING_LIMIT:
                late.append(sequence)
        if self._drafter is not None and requests:
            drafted = [draft for draft in drafts if not draft.applied.is_off]
            trees = self._trees(self._drafter, [draft.sequence for draft in drafted], requests)
            for draft, tree in zip(drafted, trees, strict=True):
                draft.tree = tree
        if self._drafter is not None and late:
            self._catch_up(self._drafter, late)
        if self._draft_time is not None:
            self._draft_time.end()
        return drafts

    def _trees(self, drafter: Drafter, sequences: list[Sequence], requests: list[DraftRequest]) -> list[DraftTree]:
        if self._static is None:
            return draft_trees(drafter, requests, self._catch_up(drafter, sequences))
        pairs = zip(sequences, requests, strict=True)
        return self._static.draft([ToDraft((want.cache, *each.pending.take()), want.action) for each, want in pairs])

    def _verify(self, drafts: list[_Draft], prompts: list[PromptPart]) -> _Outputs:
        """The target's outputs for all trees and prompt parts, and each tree's best tokens as of `_greedy_tokens`."""
        if self._static is not None and drafts and not prompts:
            return self._verify_in_fixed_shapes(self._static, drafts)
        outputs = self._target.forward([self._tree_rows(draft) for draft in drafts] + [part.rows() for part in prompts])
        return outputs, [self._greedy_tokens(d.sequence, output) for d, output in zip(drafts, outputs, strict=False)]

    def _verify_in_fixed_shapes(self, static: StaticPath, drafts: list[_Draft]) -> _Outputs:
        for draft in drafts:
            draft.is_placed = draft.sequence.sampler.is_plain_greedy
        found = static.verify([ToVerify(draft.sequence.cache, draft.tree, draft.is_placed) for draft in drafts])
        for draft, verified in zip(drafts, found, strict=True):
            draft.tree = verified.tree
        return [each.output for each in found], [each.best for each in found]

    def _clamp(self, sequence: Sequence, action: Action) -> Action:
        if self._drafter is None or sequence.draft_cache is None:
            return OFF
        return clamp(
            action,
            draft_vocab=self._drafter.config.draft_vocab_size,
            context_left=self._target.context_length - 1 - sequence.cache.length,
            budget_left=sequence.request.stopping.max_new_tokens - len(sequence.output),
        )

    def _greedy_tokens(self, sequence: Sequence, output: TargetOutput) -> list[int] | None:
        """Every node's best token in one transfer, where the device is not the processor.

        On the processor the sampler looks at the visited rows alone, which is less work and needs no transfer.
        """
        if output.logits.device.type == "cpu" or not sequence.sampler.is_plain_greedy:
            return None
        # A row with NaN gives -1 and is left to the sampler, which names the fault.
        return argmax_rows(output.logits).tolist()

    def _commit(self, draft: _Draft, output: TargetOutput, greedy: list[int] | None) -> Walk | None:
        """Walk the tree by the target's tokens and keep the path's KV and features; None where the target failed."""
        sequence = draft.sequence
        position = sequence.cache.length + 1  # of the token drawn at the root

        def draw(node: int, path: list[int]) -> int:
            if greedy is not None and greedy[node] >= 0:
                return greedy[node]
            return sequence.sampler.sample(output.logits[node], position + len(path), path)

        with Alone(sequence):
            path = self._walk(draft, draw)
            if (top := sequence.request.log_probs) is not None:
                draft.log_probs = score(output.logits[path.nodes], path.tokens, top)
            if draft.is_placed:
                sequence.cache.advance(len(path.nodes))
            else:
                sequence.cache.commit(path.nodes)
            # A copy: a view would keep the whole batch's features alive for as long as a row is pending.
            kept = output.features[path.nodes]
            sequence.last_features = kept[-1]
            if sequence.draft_cache is not None:
                sequence.pending.add(path.tokens, kept)
            return path
        return None

    def _walk(self, draft: _Draft, draw: Draw) -> Walk:
        """Walk the tree and tell the signals what came of it; a tree with NaN or Inf is cut to its root."""
        tree = draft.tree
        tokens, parents = tree.tokens.cpu().numpy(), tree.parents.cpu().numpy()
        log_probs, depths = tree.log_probs.tolist()[1:], tree.depths.tolist()[1:]
        entropy = 0.0 if tree.root_entropy is None else float(tree.root_entropy)
        if not math.isfinite(sum(log_probs)):
            self._hooks.drafter_fault()
            draft.applied, log_probs, depths, entropy = OFF, [], [], 0.0
            tokens, parents = tokens[:1], parents[:1]
        path = walk(tokens, parents, draw)
        draft.sequence.signals.observe_step(draft.applied, log_probs, depths, entropy, path.accepted)
        return path

    def _account(
        self, draft: _Draft, path: Walk, batch_size: int, draft_ns: int, verify_ns: int, other_ns: int
    ) -> None:
        """Emit the step's tokens and book them, with the step's time, to the sequence's window."""
        sequence = draft.sequence
        assert sequence.window is not None
        committed = sequence.emit(path.tokens, draft.log_probs)
        measure = StepMeasure(
            applied=draft.applied,
            drafted_tokens=draft.tree.size - 1,
            accepted_tokens=min(committed, path.accepted),
            committed_tokens=committed,
            draft_ns=draft_ns,
            verify_ns=verify_ns,
            other_ns=other_ns,
            batch_size=batch_size,
        )
        sequence.window.add(measure)
        sequence.steps += 1
        sequence.drafted_tokens += measure.drafted_tokens
        sequence.accepted_tokens += measure.accepted_tokens
        sequence.decode_ns += draft_ns + verify_ns + other_ns
        self._hooks.after_step(sequence.window.decision.arm, measure)
        if sequence.window.is_over(self._persistence) and sequence.ended is None:
            self.close_window(sequence, truncated=False)

    def _tree_rows(self, draft: _Draft) -> Rows:
        tree, cache = draft.tree, draft.sequence.cache
        return Rows(
            cache=cache,
            tokens=tree.tokens,
            positions=tree.depths + cache.length,
            visible=tree.visible,
            scored=torch.arange(tree.size, device=tree.tokens.device),
        )

    def _take_prompt(self, part: PromptPart, output: TargetOutput) -> Sequence | None:
        """Keep a part's KV and give its rows to the drafter; the sequence, where this was the prompt's last part."""
        sequence, prompt = part.sequence, part.sequence.request.prompt_ids
        start = sequence.cache.length
        end = start + part.count
        with Alone(sequence):
            sequence.cache.commit(list(range(part.count)))
            sequence.last_features = output.features[-1].clone()
            part.score(start, output)
            if end < len(prompt):
                self._feed_drafter(sequence, list(prompt[start + 1 : end + 1]), output.features, keep_last=False)
                return None
            token = sequence.sampler.sample(output.logits[-1], end)
            self._feed_drafter(sequence, [*prompt[start + 1 :], token], output.features, keep_last=True)
            emit_first(sequence, output.logits[-1], token)
            return sequence
        return None

    def _feed_drafter(self, sequence: Sequence, tokens: list[int], features: Tensor, *, keep_last: bool) -> None:
        """Give prompt rows to the drafter; the last one stays pending where the next step starts from it."""
        if sequence.draft_cache is None or self._drafter is None:
            return
        sequence.pending.add(tokens, features)
        pending_tokens, pending_features = sequence.pending.take()
        split = len(pending_tokens) - keep_last
        if split:
            self._drafter.extend(sequence.draft_cache, pending_tokens[:split], pending_features[:split])
        if keep_last:
            sequence.pending.add(tokens[-1:], pending_features[split:].clone())

    def _catch_up(self, drafter: Drafter, sequences: list[Sequence]) -> Tensor:
        """Run the drafter over all pending rows of some sequences; its outputs at their last rows, [n, hidden]."""
        pending = []
        for sequence in sequences:
            assert sequence.draft_cache is not None
            pending.append((sequence.draft_cache, *sequence.pending.take()))
        return drafter.extend_all(pending)
