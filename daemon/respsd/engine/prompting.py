"""A prompt's way into the engine: in parts along with others' steps, or taken over from another sample of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from respsd.engine.scoring import score
from respsd.engine.sequence import PromptEnd, Sequence
from respsd.engine.target import Rows, TargetOutput, causal_rows


@dataclass(frozen=True, slots=True)
class PromptPart:
    """The next tokens of a sequence's prompt, for one step."""

    sequence: Sequence
    count: int

    def half(self) -> PromptPart | None:
        """The first half of it; None of a single token."""
        return PromptPart(self.sequence, self.count // 2) if self.count > 1 else None

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it."""
        return self.sequence.cache.length + self.count == len(self.sequence.request.prompt_ids)

    def rows(self) -> Rows:
        """Its rows in a forward; only the prompt's very last row gets logits, unless all are scored."""
        cache, request = self.sequence.cache, self.sequence.request
        tokens = request.prompt_ids[cache.length : cache.length + self.count]
        return causal_rows(cache, tokens, scored=int(self.is_last) if request.prompt_log_probs is None else self.count)

    def score(self, start: int, output: TargetOutput) -> None:
        """Take the log-probs of the prompt tokens that follow its rows, where the request asks for them.

        :param start: prompt tokens before it.
        """
        request = self.sequence.request
        if request.prompt_log_probs is None:
            return
        following = request.prompt_ids[start + 1 : start + self.count + 1]
        scores = score(output.logits[: len(following)], following, request.prompt_log_probs)
        self.sequence.score_prompt(scores, is_last=start + self.count == len(request.prompt_ids))


def emit_first(sequence: Sequence, logits: Tensor, token: int) -> None:
    """Emit the token after the prompt. :param logits: [vocab], at the prompt's last token."""
    top = sequence.request.log_probs
    if sequence.request.samples > 1 and sequence.request.sample == 0:
        assert sequence.last_features is not None
        sequence.prompt_end = PromptEnd(logits.clone(), sequence.last_features)
    sequence.emit([token], () if top is None else score(logits[None], [token], top))


def take_over(sequence: Sequence) -> None:
    """Begin a further sample from the first one's prompt: its rows are copied, not computed again."""
    first = sequence.first_sample
    assert first is not None
    assert first.prompt_end is not None
    end, rows = first.prompt_end, len(sequence.request.prompt_ids)
    sequence.cache.copy_prefix(first.cache, rows)
    sequence.last_features = end.features
    token = sequence.sampler.sample(end.logits, rows)
    if sequence.draft_cache is not None and first.draft_cache is not None:
        sequence.draft_cache.copy_prefix(first.draft_cache, rows - 1)
        sequence.pending.add([token], end.features[None])
    emit_first(sequence, end.logits, token)
