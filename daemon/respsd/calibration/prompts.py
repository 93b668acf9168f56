"""What acceptance is measured on: a few plain prompts of the kinds that people send."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from respsd.engine.api import Tokenizer

_CHAT = (
    "I have two hours before my guests arrive and only rice, eggs, onions and a few tomatoes. What should I cook?",
    "My neighbour's dog barks every morning at six. How do I bring it up without starting a quarrel?",
    "Explain to someone who has never sailed why a boat can move against the wind.",
)
_CODE = (
    "Write a Python function `merge(left, right)` that merges two sorted lists into one. Do not use `sorted`.",
    "Here is a shell loop: for f in *.txt; do mv $f ${f%.txt}.md; done. It fails on names with spaces. Correct it.",
    "Write an SQL query that lists each customer with the sum of their orders in 2024, the largest sum first.",
)
_ARITHMETIC = (
    "A train leaves at 9:40 and arrives at 13:15. It stops three times for 5 minutes. How long does it move?",
    "A jacket costs 80 euros. It is reduced by 15 %, and members get another 10 % off that price. What do members pay?",
)
_SUMMARISING = (
    "Summarise in two sentences: The town council met on Tuesday to decide about the old mill by the river. Two "
    "plans were on the table: a developer wants to turn it into flats, while a group of residents asks for a "
    "library and a cafe. After three hours of debate the council put the decision off until spring, because the "
    "cost of repairing the roof is still not known. Until then the building stays closed, and the fence around it "
    "will be made higher.",
    "Give the main points as a list: Bees do not see red, but they see ultraviolet light, which we do not. Many "
    "flowers carry patterns that appear only in ultraviolet and lead the bee to the nectar. A bee also learns: it "
    "remembers the colour, the scent and the time of day at which a kind of flower was worth a visit. Back in the "
    "hive it tells the others by a dance in which direction and how far they have to fly.",
)

PROMPTS = tuple(prompt for turn in zip_longest(_CHAT, _CODE, _ARITHMETIC, _SUMMARISING) for prompt in turn if prompt)
"""The kinds take turns, so that the first few are a fair selection."""


_UNSEEN = (
    "What should I look at when I buy a used bicycle?",
    "Write a Python function that counts how often each word occurs in a text file.",
    "A tank holds 240 litres. One pump fills it in 3 hours, another in 5 hours. How long do both together need?",
    "Summarise in one sentence: The museum opens a new wing in June. It shows maps from four centuries, lent by twelve "
    "libraries. Admission stays free on Sundays, and guides offer tours for children every afternoon.",
    "Write a short note to a colleague who has helped me finish a report in time.",
    "Explain what a hash table is and when it is a poor choice.",
    "I save 35 euros a month. After how many months can I pay 500 euros, and what is left over?",
    "Describe a morning at a fish market for a travel magazine.",
)
UNSEEN_COUNT = len(_UNSEEN)


def unseen_prompts(count: int) -> tuple[str, ...]:
    """Prompts of the same kinds that take no part in calibration, to check it with."""
    return _UNSEEN[:count]


def encoded_prompts(tokenizer: Tokenizer, prompts: Sequence[str] = PROMPTS) -> list[tuple[int, ...]]:
    """Token ids by the model's chat template, as plain text where it has none."""

    def encode(prompt: str) -> Sequence[int]:
        if tokenizer.has_chat_template:
            return tokenizer.render_chat([{"role": "user", "content": prompt}])
        return tokenizer.encode(prompt)

    return [tuple(encode(prompt)) for prompt in prompts]
