"""How many prompt tokens a step may take along, so that a long prompt does not hold up the streams that run.

A step that takes prompt tokens may last `slowdown` times as long as the running sequences' steps usually do. What they
usually last, by their number, and what a prompt token adds are learnt from the steps themselves. While nothing else
runs, whole chunks are taken, and while several prompts wait, more than for one: many wait for what few would gain.

What a prompt token seems to add feeds on itself: a step that takes a prompt along is slower by some milliseconds
whatever it takes, and sequences that joined, or read a longer context, are slower, too. Laid to the prompt, that makes
its tokens seem dear, so that the next step takes fewer, which then seem dearer still; eight questions about long texts
went in at four tokens a step once, and had their first tokens after 21 s. So a token is never held to add more than
twice what it takes where prompts are alone.
"""

from __future__ import annotations

_WEIGHT = 0.2
"""Of the newest measurement in the running means."""
_FEWEST = 1
"""Prompt tokens that a step takes at least: a prompt gets on, whatever the means say."""
_FIRST = 32
"""Prompt tokens of a step beside running sequences before anything was measured."""
_FURTHER_SHARE = 2.0
"""Of one prompt's share of a step, what each further prompt that waits adds to it where one sequence runs; of several,
each has its part."""
_MOST_SHARES = 4.0
"""Times as much as one prompt's share of a step that many prompts may take."""
_DEAREST = 2.0
"""Times as much as alone that a prompt token can add to a step."""
_GROWTH = 4
"""Times as many as steps have taken lately that one may take beside running sequences."""


class _Ratio:
    """What steps' prompt tokens took by their number, as the ratio of two running means."""

    def __init__(self) -> None:
        self._ns: float | None = None
        self.tokens: float | None = None

    def add(self, ns: float, tokens: int) -> None:
        """Take note of a step."""
        self._ns, self.tokens = _mean(self._ns, ns), _mean(self.tokens, tokens)

    @property
    def value(self) -> float | None:
        """Time of a token in ns; None before the first step."""
        return None if self._ns is None or self.tokens is None else max(0.0, self._ns) / self.tokens


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
        # Running means of what prompts added to steps, and of their tokens: their ratio is what a token adds. Steps
        # that took few tokens say little, and so count for little.
        self._added = _Ratio()
        self._alone = _Ratio()  # the same of steps that took nothing else

    def budget(self, sequences: int, tokens_each: int, prompts: int = 1) -> int:
        """Prompt tokens that the next step may take.

        :param sequences: running ones in the step; `tokens_each` the most that one of them verifies.
        :param prompts: how many prompts are not in yet.
        """
        if not sequences:
            return self._chunk
        bounds = [self._chunk]
        if self._step_tokens is not None:
            bounds.append(self._step_tokens - sequences * tokens_each)
        usual, token_ns = self._usual(sequences), self._token_ns
        # Where steps scatter much, a few tokens may seem to add nothing: what was tried so far bounds the next try.
        bounds.append(
            _FIRST if usual is None or token_ns is None else round(_GROWTH * max(_FIRST, self._added.tokens or 0))
        )
        if usual is not None and token_ns:
            share = (self._slowdown - 1) * min(_MOST_SHARES, 1.0 + _FURTHER_SHARE * (prompts - 1) / sequences)
            bounds.append(int(share * usual / token_ns))
        return max(_FEWEST, min(bounds))

    def learn(self, sequences: int, prompt_tokens: int, step_ns: int) -> None:
        """Take note of a step: its running sequences, the prompt tokens that it took along, and its whole time."""
        if not prompt_tokens:
            self._usual_ns[sequences] = _mean(self._usual_ns.get(sequences), step_ns)
            return
        usual = self._usual(sequences) if sequences else 0.0
        if not sequences:
            fixed = min(self._usual_ns.values(), default=0.0)
            self._alone.add(max(0.0, step_ns - fixed), prompt_tokens)
        if usual is not None:
            self._added.add(step_ns - usual, prompt_tokens)
        elif self._token_ns is not None:
            self._usual_ns[sequences] = max(0.0, step_ns - prompt_tokens * self._token_ns)

    def prompt_ns(self, prompt_tokens: int) -> int:
        """What so many prompt tokens add to a step's time, by the means; the sequences' reward leaves it out."""
        return round(prompt_tokens * (self._token_ns or 0.0))

    @property
    def _token_ns(self) -> float | None:
        """What a prompt token adds to a step."""
        added, alone = self._added.value, self._alone.value
        return added if added is None or not alone else min(added, _DEAREST * alone)

    def _usual(self, sequences: int) -> float | None:
        """The usual time of so many sequences' steps, or of the next number of sequences that has been measured."""
        if not self._usual_ns:
            return None
        nearest = min(self._usual_ns, key=lambda number: abs(number - sequences))
        return self._usual_ns[nearest]


def _mean(mean: float | None, value: float) -> float:
    return value if mean is None else mean + _WEIGHT * (value - mean)
