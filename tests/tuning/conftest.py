"""A learner in a store, and a log of its explorers' windows, small enough to train in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.recorders import NOON

from policy_store import PolicyStore
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.controller import Decision
from respsd.control.manifests import resps_manifest, static_manifest
from respsd.control.network import PolicyNetwork, log_softmax, random_policy_weights
from respsd.control.observation import ObservationSchema
from respsd.experience.backlog import Entry
from respsd.experience.database import open_log
from respsd.experience.records import RequestRecord, TransitionRecord
from respsd.experience.rows import Origin
from respsd.experience.writer import Writer
from respsd.paths import POLICIES, TRANSITIONS

TABLE = ActionTable((OFF, Action(8, 3, 3), Action(16, 4, 4), Action(32, 5, 8)))
SCHEMA = ObservationSchema(feature_width=12, projection=5)
ORIGIN = Origin("box", "run-1", "target", "drafter", "float32", "cpu", "c0ffee")


@dataclass
class Workshop:
    """A state folder with a baseline (version 1, the champion too) and a learner (version 2)."""

    state: Path
    store: PolicyStore
    writer: Writer
    baseline: int
    learner: int
    requests: int = 0

    @property
    def log(self) -> Path:
        return self.state / TRANSITIONS

    def record(
        self,
        windows: int = 5,
        *,
        faster: int | None = 2,
        arm: str = "learner",
        origin: Origin = ORIGIN,
        **changes: object,
    ) -> None:
        """Log one request: its windows drawn by the learner, those of action `faster` twice as fast."""
        rng = np.random.default_rng(self.requests)
        policy = self.store.load("learner")
        network = PolicyNetwork(policy.weights, policy.manifest.normaliser)
        transitions = []
        for window in range(windows):
            observation = rng.standard_normal(SCHEMA.width).astype("<f4")
            log_probs = log_softmax(network.logits(observation))
            index = int(rng.choice(len(TABLE), p=np.exp(log_probs)))
            version = policy.manifest.version if arm == "learner" else self.baseline
            decision = Decision(TABLE[index], float(log_probs[index]), arm, version, index, TABLE.fingerprint)
            seconds = (0.5 if index == faster else 1.0) * float(np.exp(0.05 * rng.standard_normal()))
            transitions.append(transition(window, observation, decision, seconds, changes))
        self._write(origin, Entry(request(self.requests), tuple(transitions)))
        self.requests += 1

    def _write(self, origin: Origin, entry: Entry) -> None:
        self.writer._origin = origin
        self.writer.write([entry])


def transition(
    window: int, observation: np.ndarray, decision: Decision, seconds: float, changes: dict[str, object]
) -> TransitionRecord:
    values: dict[str, object] = {
        "window": window,
        "opened_at_ns": NOON + window,
        "observation": observation.tobytes(),
        "observation_schema": SCHEMA.fingerprint,
        "decision": decision,
        "applied": decision.action,
        "degraded_steps": 0,
        "steps": 10,
        "drafted_tokens": 100,
        "accepted_tokens": 20,
        "committed_tokens": 30,
        "draft_ns": int(seconds * 4e8),
        "verify_ns": int(seconds * 5e8),
        "other_ns": int(seconds * 1e8),
        "context_length": 100 + 30 * window,
        "batch_size": 1.0,
        "truncated": False,
    }
    return TransitionRecord(**(values | changes))  # type: ignore[arg-type]


def request(number: int) -> RequestRecord:
    return RequestRecord(
        request_id=f"r-{number}",
        created_at_ns=NOON,
        finished_at_ns=NOON + number,
        prompt_tokens=10,
        completion_tokens=150,
        finish_reason="length",
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=number,
        steps=50,
        drafted_tokens=500,
        accepted_tokens=100,
        queue_ns=0,
        prefill_ns=0,
        decode_ns=5_000_000_000,
        policy_version_first=2,
        policy_version_last=2,
    )


@pytest.fixture
def workshop(tmp_path: Path) -> Iterator[Workshop]:
    rng = np.random.default_rng(0)
    with PolicyStore(tmp_path / POLICIES, lambda: NOON) as store:
        baseline = store.create(static_manifest(TABLE[1], code_version="0", note="baseline"), actor="test")
        weights = random_policy_weights(SCHEMA.width, len(TABLE), rng, (16, 16))
        draft = resps_manifest(weights, TABLE, SCHEMA, rng, hidden_sizes=(16, 16), code_version="0", note="random")
        learner = store.create(draft, weights, actor="test")
        for alias, version in (("baseline", baseline), ("champion", baseline), ("learner", learner)):
            store.set_alias(alias, version, actor="test", reason="start")
        writer = Writer(lambda: open_log(tmp_path / TRANSITIONS, lambda: NOON), ORIGIN)
        yield Workshop(tmp_path, store, writer, baseline, learner)
        writer.close()


@pytest.fixture
def filled(workshop: Workshop) -> Callable[..., Workshop]:
    """The workshop after some requests."""

    def fill(requests: int = 30, **changes: object) -> Workshop:
        for _ in range(requests):
            workshop.record(**changes)  # type: ignore[arg-type]
        return workshop

    return fill
