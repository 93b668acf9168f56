from __future__ import annotations

import numpy as np
import pytest
from support.engines import load_tiny
from support.models import folders

from policy_store import PolicyStore
from respsd.bench.comparison.arena import ArenaOptions, open_arena
from respsd.bench.comparison.methods import parse_methods
from respsd.bench.comparison.stored_policies import read_policies
from respsd.control.action import OFF, Action, ActionTable
from respsd.control.batch_plan import BatchPlan
from respsd.control.manifests import resps_manifest, static_manifest
from respsd.control.network import random_policy_weights
from respsd.control.observation import ObservationSchema
from respsd.errors import PolicyRefused, StorageError, UnknownPolicy

TABLE = ActionTable((OFF, Action(8, 3, 3), Action(16, 4, 4)))
PROMPT = (1, 40, 17, 99)


@pytest.fixture
def state_dir(tmp_path):
    """Version 1 is constant and champion, 2 a policy for the tiny model, 3 one for another model."""
    rng = np.random.default_rng(0)
    with PolicyStore(tmp_path / "policies") as store:
        draft = static_manifest(Action(8, 3, 3), code_version="0", note="n")
        store.set_alias("champion", store.create(draft, actor="t"), actor="t", reason="r")
        for width in (3 * 32, 3 * 64):
            schema = ObservationSchema(feature_width=width, projection=8)
            weights = random_policy_weights(schema.width, len(TABLE), rng)
            draft = resps_manifest(weights, TABLE, schema, rng, code_version="0", note="n")
            store.create(draft, weights, actor="t")
    return tmp_path


def test_versions_and_aliases_are_looked_up_with_what_they_need(state_dir):
    found = read_policies(state_dir, ["champion", "2"])
    assert found.versions == {"champion": 1, "2": 2}
    assert set(found.actions) == {*TABLE}
    assert found.schema == ObservationSchema(feature_width=96, projection=8)


def test_policies_choose_the_actions_of_their_requests(state_dir):
    methods = parse_methods("off,policy:champion,policy:2")
    policies = read_policies(state_dir, ["champion", "2"])
    options = ArenaOptions(target_folder=folders()[0], persistence=4, policies=policies)
    with open_arena(load_tiny(), methods, options) as arena:
        plain, static, learned = (arena.decoder(m).decode([PROMPT], 24, ignore_eos=True) for m in methods)
    assert {step.applied for step in plain.steps} == {OFF}
    assert Action(8, 3, 3) in {step.applied for step in static.steps}
    assert {batch.answers[0].token_ids for batch in (static, learned)} == {plain.answers[0].token_ids}
    assert learned.policy_seconds > 0


def test_the_calibrated_baseline_goes_by_the_number_of_streams(state_dir):
    with PolicyStore(state_dir / "policies") as store:
        store.set_alias("baseline", 1, actor="t", reason="r")
    methods = parse_methods("calibrated,policy:baseline")
    options = ArenaOptions(
        target_folder=folders()[0],
        persistence=1,
        most_streams=2,
        plan=BatchPlan(((1, Action(8, 3, 3)), (2, OFF))),
        policies=read_policies(state_dir, ["baseline"]),
    )
    with open_arena(load_tiny(), methods, options) as arena:
        for method in methods:
            one, two = (arena.decoder(method).decode([PROMPT] * n, 16, ignore_eos=True) for n in (1, 2))
            assert Action(8, 3, 3) in {step.applied for step in one.steps}
            assert {step.applied for step in two.steps if step.batch_size == 2} == {OFF}
            assert {answer.token_ids for answer in two.answers} == {one.answers[0].token_ids}


def test_what_is_not_there_is_named(state_dir, tmp_path):
    with pytest.raises(UnknownPolicy, match="9"):
        read_policies(state_dir, ["9"])
    with pytest.raises(UnknownPolicy, match="learner"):
        read_policies(state_dir, ["learner"])
    with pytest.raises(StorageError, match="state-dir"):
        read_policies(tmp_path / "nothing", ["1"])


def test_policies_with_different_observations_do_not_meet_in_one_run(state_dir):
    with pytest.raises(PolicyRefused, match="version 3"):
        read_policies(state_dir, ["2", "3"])


def test_a_policy_for_another_model_fails_before_anything_is_measured(state_dir):
    policies = read_policies(state_dir, ["3"])
    options = ArenaOptions(target_folder=folders()[0], policies=policies)
    with pytest.raises(PolicyRefused, match="192 numbers"), open_arena(load_tiny(), parse_methods("policy:3"), options):
        pass
