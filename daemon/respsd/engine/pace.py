"""How many prompt tokens a step may take along, so that a long prompt does not hold up the streams that run.

A step that takes prompt tokens may last `slowdown` times as long as the running sequences' steps usually do. What they
usually last, by their number, and what a prompt token adds are learnt from the steps themselves. While nothing else
runs, whole chunks are taken.
"""

from __future__ import annotations

_WEIGHT = 0.2
"""Of the newest measurement in the running means."""
_FEWEST = 4
"""Prompt tokens that a step takes at least: a prompt gets on, whatever the means say."""
_FIRST = 32
"""Prompt tokens of a step beside running sequences before anything was measured."""


class PrefillPace:
    """Learns from steps and sets the next one's share of prompt tokens."""

    def __init__(self, chunk: int, step_tokens: int | None, slowdown: float) -> None:
        """Nothing is known yet.

        :param chunk: prompt tokens that a step takes at most.
        :param step_tokens: tokens that a step takes at most beside running sequences, theirs included; None: no bound
            but the slowdown.
        :param slowdown: how many times as long as usual a step may take for the sake of prompts.
        """
        self._chunk = chunk
        self._step_tokens = step_tokens
        self._slowdown = slowdown
        self._usual_ns: dict[int, float] = {}  # a step without prompt tokens, by the number of sequences
        self._token_ns: float | None = None  # what a prompt token adds to a step

    def budget(self, sequences: int, tokens_each: int) -> int:
        """Prompt tokens that the next step may take.

        :param sequences: running ones in the step; `tokens_each` the most that one of them verifies.
        """
        if not sequences:
            return self._chunk
        bounds = [self._chunk]
        if self._step_tokens is not None:
            bounds.append(self._step_tokens - sequences * tokens_each)
        usual = self._usual(sequences)
        if usual is None or self._token_ns is None:
            bounds.append(_FIRST)
        else:
            bounds.append(int((self._slowdown - 1) * usual / self._token_ns))
        return max(_FEWEST, min(bounds))

    def learn(self, sequences: int, prompt_tokens: int, step_ns: int) -> None:
        """Take note of a step: its running sequences, the prompt tokens that it took along, and its whole time."""
        if not prompt_tokens:
            self._usual_ns[sequences] = _mean(self._usual_ns.get(sequences), step_ns)
            return
        usual = self._usual(sequences) if sequences else 0.0
        if usual is not None:
            self._token_ns = _mean(self._token_ns, max(0.0, step_ns - usual) / prompt_tokens)
        elif self._token_ns is not None:
            self._usual_ns[sequences] = max(0.0, step_ns - prompt_tokens * self._token_ns)

    def prompt_ns(self, prompt_tokens: int) -> int:
        """What so many prompt tokens add to a step's time, by the means; the sequences' reward leaves it out."""
        return round(prompt_tokens * (self._token_ns or 0.0))

    def _usual(self, sequences: int) -> float | None:
        """The usual time of so many sequences' steps, or of the next number of sequences that has been measured."""
        if not self._usual_ns:
            return None
        nearest = min(self._usual_ns, key=lambda number: abs(number - sequences))
        return self._usual_ns[nearest]


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
