"""Hooks that change what an update learns from: rewards, keys, windows of steps."""

import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import ParamsError
from rltrainer.hooks import BatchSubSampler, RewardNormalizer, SelectKeys
from rltrainer.hooks.batch_transforms import windows
from tests.fakes import ScriptedOffPolicy, ScriptedOnPolicy, counting_envs, tiny_actor_critic
from tests.unit.hooks.fake_run import FakeRun, rollout, transitions


def on_policy() -> FakeRun:
    return FakeRun(ScriptedOnPolicy(tiny_actor_critic(counting_envs())))


def off_policy(**params: Any) -> FakeRun:
    return FakeRun(ScriptedOffPolicy(tiny_actor_critic(counting_envs()), rl.OffPolicyParams(**params)))


def test_one_two_three() -> None:
    batch = rollout([[1.0], [2.0], [3.0]])
    changed = RewardNormalizer().batch_process(on_policy(), batch)
    assert changed.reward.flatten().tolist() == [-1.0, 0.0, 1.0]
    assert batch.reward.flatten().tolist() == [1.0, 2.0, 3.0]
    assert changed.obs is batch.obs
    changed = RewardNormalizer(scale=10.0).batch_process(on_policy(), batch)
    assert changed.reward.flatten().tolist() == [-10.0, 0.0, 10.0]


def test_the_past_decays_by_training_step() -> None:
    hook = RewardNormalizer(decay=0.5)
    hook.update(torch.tensor([1.0, 2.0, 3.0]))
    hook.update(torch.tensor([5.0]))
    # count 0.5 * 3 + 1 = 2.5, sum 0.5 * 6 + 5 = 8, squares 0.5 * 14 + 25 = 32: mean 3.2, var (32 - 64 / 2.5) / 1.5
    expected = (5.0 - 3.2) / math.sqrt((32 - 25.6) / 1.5)
    assert hook(torch.tensor([3.2, 5.0])).tolist() == pytest.approx([0.0, expected], abs=1e-6)


def test_many_small_parts_are_one_large_one() -> None:
    numbers = 1e5 + torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hook = RewardNormalizer(decay=1.0)
    for part in numbers.split(7):
        hook.update(part)
    expected = (numbers - numbers.mean()) / numbers.std()
    torch.testing.assert_close(hook(numbers), expected, rtol=1e-6, atol=1e-6)


def test_rewards_that_do_not_vary_become_zeros() -> None:
    hook = RewardNormalizer()
    for _ in range(3):
        changed = hook.batch_process(on_policy(), rollout([[7.0]]))
        assert changed.reward.tolist() == [[0.0]]
    assert hook(torch.tensor([7.0, 7.1]))[1] == pytest.approx(0.1 / math.sqrt(hook.eps), rel=1e-3)


def test_cells_that_are_not_valid_do_not_count() -> None:
    batch = rollout([[1.0], [2.0], [3.0], [99.0]], valid=torch.tensor([[True], [True], [True], [False]]))
    assert RewardNormalizer().batch_process(on_policy(), batch).reward.flatten().tolist()[:3] == [-1.0, 0.0, 1.0]
    hook = RewardNormalizer()
    assert hook.batch_process(off_policy(), rollout([[1.0]], valid=torch.tensor([[False]]))) is None
    assert hook.state_dict()["moments"].tolist() == [0.0, 0.0, 0.0]


def test_off_policy_changes_minibatches_only() -> None:
    """Online by the statistics of what is stored, offline by those of what is sampled."""
    for batch in (rollout([[1.0], [2.0], [3.0]]), transitions([1.0, 2.0, 3.0])):
        hook, run = RewardNormalizer(), off_policy()
        assert hook.batch_process(run, batch) is None
        minibatch = transitions([3.0, 1.0])
        assert hook.process_optim_batch(run, minibatch).reward.tolist() == [1.0, -1.0]
        assert minibatch.reward.tolist() == [3.0, 1.0]


def test_sums_of_rewards_are_refused() -> None:
    with pytest.raises(ParamsError, match=r"RewardNormalizer.algorithm.n_step: must be 1; got 3 \(int\). A sum of"):
        RewardNormalizer().setup(off_policy(n_step=3))
    RewardNormalizer().setup(off_policy())
    RewardNormalizer().setup(on_policy())


SPACE = gym.spaces.Dict({name: gym.spaces.Box(-1, 1, (2,), np.float32) for name in ("position", "speed", "camera")})
ACTIONS = gym.spaces.Discrete(2)


def run_of(algorithm: type[Any] = rl.PPO, **options: Any) -> FakeRun:
    policy = algorithm.policy_class.for_spaces(SPACE, ACTIONS, **options)
    return FakeRun(algorithm(policy))


def tree(value: float, *shape: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((*shape, 2), value) for name in SPACE.spaces}


BATCH = rollout(
    [[1.0], [2.0]], obs=tree(0.0, 2, 1), last_obs=tree(1.0, 1), final_obs=tree(2.0, 0),
    extra={"margin": torch.zeros(2, 1), "version": torch.ones(2, 1)},
)  # fmt: skip
SEEN = {"net": rl.NetParams(keys=("position", "speed"))}


def test_a_rollout() -> None:
    hook, run = SelectKeys(obs=["speed", "position"], extra=["version"]), run_of(**SEEN)
    hook.setup(run)
    found = hook.batch_process(run, BATCH)
    for trees in (found.obs, found.last_obs, found.final_obs):
        assert list(trees) == ["position", "speed"]  # in the order of the batch
    assert found.extra == {"version": BATCH.extra["version"]}
    assert found.reward is BATCH.reward
    assert list(BATCH.obs) == list(SPACE.spaces)


def test_transitions() -> None:
    hook, run = SelectKeys(obs=["position"]), run_of(rl.DQN, net=rl.NetParams(keys=("position",)))
    hook.setup(run)
    batch = transitions([1.0], obs=tree(0.0, 1), next_obs=tree(1.0, 1), extra={"a": torch.zeros(1)})
    for found in (hook.batch_process(run, batch), hook.process_optim_batch(run, batch)):
        assert list(found.obs) == list(found.next_obs) == ["position"]
        assert list(found.extra) == ["a"]
    assert hook.batch_process(run, BATCH) is None  # off policy, a rollout that is stored stays whole


def test_an_update_learns_the_same_without_what_it_does_not_read() -> None:
    def weights(hook: SelectKeys | None) -> torch.Tensor:
        torch.manual_seed(0)
        run = run_of(hidden_sizes=(8,), **SEEN)
        run.algorithm.seed(0)
        batch = BATCH if hook is None else hook.batch_process(run, BATCH)
        run.algorithm.update(batch, None, 2)
        return torch.cat([p.flatten() for p in run.algorithm.policy.parameters()])

    assert torch.equal(weights(None), weights(SelectKeys(obs=["position", "speed"], extra=[])))


MASKED = gym.spaces.Dict({**SPACE.spaces, "action_mask": gym.spaces.MultiBinary(2)})


@pytest.mark.parametrize(("obs", "space", "options", "text"), [
    (["position", "sped"], SPACE, SEEN, "'sped' is missing; there are camera, position, speed. Did"),
    (["position"], SPACE, SEEN, r"must keep 'speed', which networks read; got \['position'\]"),
    (["position"], SPACE, {}, "must keep 'camera', which networks read"),
    (["position", "speed"], SPACE, SEEN | {"normalize_obs": True}, "must keep 'camera', which networks read"),
    (["position", "speed"], MASKED, SEEN, "must keep 'action_mask', which networks read"),
    (["x"], SPACE["speed"], {}, r"must be None where observations are no Dict; got \['x'\]"),
])  # fmt: skip
def test_keys_are_checked_when_the_run_begins(obs: Any, space: Any, options: Any, text: str) -> None:
    run = FakeRun(rl.PPO(rl.ActorCritic.for_spaces(space, ACTIONS, **options)))
    with pytest.raises(ParamsError, match=f"SelectKeys.obs: {text}"):
        SelectKeys(obs=obs).setup(run)


def test_columns_that_the_algorithm_reads_are_kept() -> None:
    """Among them probabilities, where copies of the policy may lag."""
    text = r"SelectKeys.extra: must keep '{}', which its updates read; got \['version'\]"
    hook = SelectKeys(extra=["version"])
    with pytest.raises(ParamsError, match=text.format("state")):
        hook.setup(FakeRun(rl.RecurrentPPO(rl.RecurrentActorCritic.for_spaces(SPACE, ACTIONS))))
    policy = rl.ActorCritic.for_spaces(SPACE, ACTIONS)
    hook.setup(FakeRun(rl.PPO(policy), training_collector=SimpleNamespace(has_stale_data=False)))
    with pytest.raises(ParamsError, match=text.format("log_prob")):
        hook.setup(FakeRun(rl.PPO(policy), training_collector=SimpleNamespace(has_stale_data=True)))


@pytest.mark.parametrize(
    ("columns", "text"), [({"version": torch.zeros(2, 1)}, "there are version"), ({}, "there are none")]
)
def test_a_missing_column_is_named(columns: Any, text: str) -> None:
    run = run_of()
    with pytest.raises(ParamsError, match=f"SelectKeys.extra: 'log_prob' is missing; {text}"):
        SelectKeys(extra=["log_prob"]).batch_process(run, rollout([[1.0], [2.0]], extra=columns))


def made() -> rl.Rollout:
    """T = 4, N = 2; the observation of cell (t, n) is 2 t + n, after the last row 90, 91. Rewards as observations.

    Env 0 is terminated at t = 1 (observing 70), env 1 truncated at t = 3 (observing 71).
    """
    terminated, truncated = torch.zeros(4, 2, dtype=torch.bool), torch.zeros(4, 2, dtype=torch.bool)
    terminated[1, 0] = truncated[3, 1] = True
    return rollout(
        [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]], terminated=terminated, truncated=truncated,
        last_obs=torch.tensor([[90.0], [91.0]]), final_obs=torch.tensor([[70.0], [71.0]]),
        final_index=torch.tensor([2, 7]), extra={"log_prob": -torch.arange(8.0).view(4, 2)},
    )  # fmt: skip


def test_windows_by_hand() -> None:
    # from (0, 0), (1, 0), (2, 1): the first cells 0, 2, 5
    found = windows(made(), torch.tensor([0, 2, 5]), 2)
    assert found.obs.squeeze(-1).tolist() == [[0.0, 2.0, 5.0], [2.0, 4.0, 7.0]]
    assert found.reward.tolist() == [[0.0, 2.0, 5.0], [2.0, 4.0, 7.0]]
    assert found.extra["log_prob"].tolist() == [[0.0, -2.0, -5.0], [-2.0, -4.0, -7.0]]
    assert found.terminated.tolist() == [[False, True, False], [True, False, False]]
    assert found.truncated.tolist() == [[False, False, False], [False, False, True]]
    # After them come (2, 0); (3, 0); and the end of the rollout.
    assert found.last_obs.squeeze(-1).tolist() == [4.0, 6.0, 91.0]
    assert found.next_obs.squeeze(-1).tolist() == [[2.0, 70.0, 7.0], [70.0, 6.0, 71.0]]
    assert found.starts.tolist() == [True] * 3


def test_the_successor_of_each_cell_is_that_in_the_rollout() -> None:
    whole = made()
    for length in range(1, 5):
        first = torch.arange((4 - length + 1) * 2)
        found = windows(whole, first, length)
        cells = found.reward.long()  # a reward is the number of its cell
        assert torch.equal(found.next_obs, whole.next_obs.flatten(0, 1)[cells])


def drawn(batch_size: int, length: int, batch: rl.Rollout, seed: int = 0) -> rl.Rollout:
    return BatchSubSampler(batch_size, length, seed=seed).batch_process(FakeRun(), batch)


def test_all_windows_are_drawn_the_last_one_too_and_none_twice() -> None:
    found = drawn(12, 2, made())
    assert sorted(found.reward[0].tolist()) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert torch.equal(found.reward[1], found.reward[0] + 2)


def test_each_window_is_as_likely() -> None:
    hook, counts = BatchSubSampler(2, 2, seed=0), torch.zeros(6)
    for _ in range(3000):
        counts[hook.batch_process(FakeRun(), made()).reward[0].long()] += 1
    assert counts.sum() == 3000
    # 500 each; six standard deviations of a binomial are 6 * sqrt(3000 * 1/6 * 5/6) = 122
    assert (counts - 500).abs().max() < 122


def test_shapes_and_short_rollouts() -> None:
    assert drawn(4, 2, made()).reward.shape == (2, 2)
    assert drawn(4, 4, made()).reward.shape == (4, 1)
    assert drawn(16, 8, made()).reward.shape == (4, 2)  # only 4 steps: whole envs
    assert drawn(100, 1, made()).reward.shape == (1, 8)


def test_windows_begin_with_cells_that_count() -> None:
    batch = made()
    batch.valid[:, 0] = False
    assert sorted(drawn(12, 2, batch).reward[0].tolist()) == [1.0, 3.0, 5.0]
    batch.valid[:] = False
    assert drawn(4, 2, batch).reward.shape == (2, 2)


def test_seeds() -> None:
    def first(hook: BatchSubSampler) -> list[float]:
        return hook.batch_process(FakeRun(), made()).reward[0].tolist()

    def seeded(own: int | None, runs: int) -> BatchSubSampler:
        hook = BatchSubSampler(6, 2, seed=own)
        hook.seed(runs)
        return hook

    assert first(seeded(None, 1)) == first(seeded(None, 1))
    assert len({tuple(first(seeded(None, n))) for n in range(5)}) > 1
    before = torch.get_rng_state()
    assert {tuple(first(seeded(3, n))) for n in range(5)} == {tuple(first(BatchSubSampler(6, 2, seed=3)))}
    assert torch.equal(torch.get_rng_state(), before)


def test_it_needs_rollouts_with_windows() -> None:
    policy = tiny_actor_critic(counting_envs())
    with pytest.raises(ParamsError, match="BatchSubSampler.algorithm: must be on policy; got .*A replay buffer"):
        BatchSubSampler(4, 2).setup(FakeRun(ScriptedOffPolicy(policy)))
    collector = rl.Collector(policy, counting_envs(2))
    run = FakeRun(ScriptedOnPolicy(policy), training_collector=collector, collection_step_num_env_steps=7)
    BatchSubSampler(4, 4).setup(run)
    text = r"BatchSubSampler.sub_traj_len: must be at most 4, the steps of each env in a collection step; got 5 \(int\)"
    with pytest.raises(ParamsError, match=text):
        BatchSubSampler(5, 5).setup(run)
    run.params.collection_step_num_env_steps = None
    BatchSubSampler(5, 5).setup(run)
