"""Admission: whether a request can ever run, whether it fits now, and the sequence that it becomes."""

from __future__ import annotations

from respsd.clock import Clock
from respsd.control.action import Action
from respsd.control.router import RequestRouter
from respsd.control.signals import SignalTracker
from respsd.engine.api import Deliver
from respsd.engine.drafter import Drafter
from respsd.engine.kv_cache import KvArena, KvPool
from respsd.engine.request import GenerationRequest
from respsd.engine.sampling import Sampler
from respsd.engine.sequence import Sequence
from respsd.engine.stopping import StopScanner
from respsd.engine.target import Target
from respsd.engine.tokenizer import HfTokenizer
from respsd.errors import InvalidRequest


class Admission:
    """Reserves a request's whole memory, the largest draft tree included, before it starts."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        tokenizer: HfTokenizer,
        router: RequestRouter,
        pool: KvPool,
        reserved: Action,
        clock: Clock,
    ) -> None:
        """:param reserved: at least as large in every knob as any action that a policy can choose."""
        self._target = target
        self._drafter = drafter
        self._tokenizer = tokenizer
        self._router = router
        self._pool = pool
        self._reserved = reserved
        self._clock = clock
        self.target_kv = KvArena(target.layout, pool.total_tokens)
        self.draft_kv = KvArena(drafter.layout, pool.total_tokens) if drafter is not None else None

    @property
    def pool(self) -> KvPool:
        """The KV budget."""
        return self._pool

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidRequest or UnknownPolicy where the request could never run."""
        if not request.prompt_ids:
            raise InvalidRequest("prompt", (), "it must hold at least one token")
        total = len(request.prompt_ids) + request.stopping.max_new_tokens
        if total > self._target.context_length:
            limit = f"prompt and output together have {self._target.context_length} positions"
            raise InvalidRequest("stopping.max_new_tokens", request.stopping.max_new_tokens, limit)
        self._router.check(request.speculation)
        self._check_possible(request)

    def _check_possible(self, request: GenerationRequest) -> None:
        """Raise InvalidRequest where the need exceeds the whole KV budget, so that waiting would never end."""
        most, needed = self._pool.total_tokens, self.kv_tokens(request)
        if needed > most:
            budget = request.stopping.max_new_tokens
            limit = f"prompt, output and draft tree need {needed} KV tokens, and the daemon has {most}"
            raise InvalidRequest("stopping.max_new_tokens", budget, limit)

    def kv_tokens(self, request: GenerationRequest) -> int:
        """KV tokens that the request needs at most."""
        return len(request.prompt_ids) + request.stopping.max_new_tokens + scratch_rows(self._largest_tree(request))

    def admit(
        self, request: GenerationRequest, deliver: Deliver, submitted_ns: int, created_at_ns: int
    ) -> Sequence | None:
        """Reserve and build; None where the memory is not free now."""
        kv_tokens = self.kv_tokens(request)
        if not self._pool.fits(kv_tokens):
            return None
        slots = self._pool.reserve(kv_tokens)
        try:
            return self._sequence(request, deliver, submitted_ns, created_at_ns, slots)
        except BaseException:
            self._pool.release(slots)
            raise

    def release(self, sequence: Sequence) -> None:
        """Give a finished sequence's memory back."""
        self._pool.release(sequence.slots)

    def _sequence(
        self, request: GenerationRequest, deliver: Deliver, submitted_ns: int, created_at_ns: int, slots: slice
    ) -> Sequence:
        controllers = self._router.resolve(request.speculation)
        eos = self._tokenizer.eos_token_ids
        sampler = Sampler(request.sampling, request.stopping, request.prompt_ids, self._target.vocab_size, eos)
        detokenizer = self._tokenizer.detokenizer(
            skip_special_tokens=request.skip_special_tokens,
            follows=request.prompt_ids if request.echo is not None else (),
        )
        scanner = StopScanner(request, eos, detokenizer)
        drafts = self.draft_kv is not None and not self._largest_tree(request).is_off
        return Sequence(
            request=request,
            deliver=deliver,
            controllers=controllers,
            sampler=sampler,
            scanner=scanner,
            signals=SignalTracker(),
            cache=self.target_kv.cache(slots),
            draft_cache=self.draft_kv.cache(slots) if self.draft_kv is not None and drafts else None,
            slots=slots,
            submitted_ns=submitted_ns,
            admitted_ns=self._clock.monotonic_ns(),
            created_at_ns=created_at_ns,
        )

    def _largest_tree(self, request: GenerationRequest) -> Action:
        return request.speculation.action or self._reserved


def scratch_rows(tree: Action) -> int:
    """Rows behind a sequence's prefix that a step needs: the tree's in the target, the frontiers' in the drafter."""
    return tree.total_tokens if tree.is_off else max(tree.total_tokens, tree.depth * tree.top_k)
