"""RND's bonuses, their scale and their advantages by hand, and what it leaves to the algorithm that it wraps."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.types import DenseRollout
from tests import batches
from tests.batches import processed
from tests.fakes import counting_envs

BOX, DISCRETE = gym.spaces.Box(-9.0, 9.0, (1,), np.float32), gym.spaces.Discrete(2)
LINEAR = rl.NetParams(hidden_sizes=())


def make(algorithm: Any = rl.PPO, params: Any = None, space: Any = BOX, policy: Any = None, **fields: Any) -> rl.RND:
    """Return RND whose error on obs is obs * (3, 4), and on the paper's form the value 0."""
    rl.seed(1)
    policy = policy or algorithm.policy_class.for_spaces(space, DISCRETE, hidden_sizes=(4,))
    fields = {"net": LINEAR, "num_outputs": 2, "normalize_obs": False, **fields}
    rnd = rl.RND(algorithm(policy, params), rl.RNDParams(**fields))
    with torch.no_grad():
        for network, weight in ((rnd.target, [[3.0], [4.0]]), (rnd.predictor, [[0.0], [0.0]])):
            network[-1].weight.copy_(torch.tensor(weight).expand_as(network[-1].weight))
            network[-1].bias.zero_()
        for parameter in [] if rnd.critic is None else rnd.critic[-1].parameters():
            parameter.zero_()
    return rnd


def rollout(next_obs: list[float], end: int | None = None, **fields: Any) -> rl.Rollout:
    """Return steps of an env without rewards whose successors are these; one may terminate."""
    number, successors = len(next_obs), torch.tensor(next_obs).view(-1, 1, 1)
    obs = torch.cat([torch.zeros(1, 1, 1), successors[:-1]])
    if end is not None:
        obs[end + 1] = 0.0
        fields |= {"terminated": torch.arange(number).view(-1, 1) == end}
        fields |= {"final_obs": successors[end], "final_index": torch.tensor([end])}
    zeros = torch.zeros(number, 1)
    return batches.rollout(obs, zeros.long(), zeros, last_obs=successors[-1], **fields)


def trainer_of(algorithm: Any, params: Any = None, rnd_params: Any = None, size: int | None = None) -> Any:
    """Return a trainer of RND around an algorithm, over two collections from two envs."""
    envs = counting_envs(2, truncates=True, action_space=DISCRETE)
    policy = algorithm.policy_class.for_envs(envs, hidden_sizes=(8,), normalize_obs=True)
    return rl.OnPolicyTrainerParams(
        training_collector=rl.Collector(policy, envs), max_epochs=1, epoch_num_steps=32, batch_size=size,
        collection_step_num_env_steps=16, verbose=False, show_progress=False, seed=1,
    ).create_trainer(rl.RND(algorithm(policy, params), rnd_params))  # fmt: skip


def test_the_bonus_of_a_step_is_its_successors_and_joins_the_reward() -> None:
    rnd = make(rl.REINFORCE, rl.REINFORCEParams(gamma=0.0, standardize_return=False), weight=0.1)
    samples = processed(rnd, rollout([1.0, 2.0, -3.0], end=1))  # 5 * |obs|; of the last step's episode after an end
    assert samples.extra["bonus"].flatten().tolist() == pytest.approx([5.0, 10.0, 15.0])
    assert samples.return_.flatten().tolist() == pytest.approx([0.5, 1.0, 1.5])
    assert samples.extra["successor"].flatten().tolist() == [1.0, 2.0, -3.0]


def test_a_weight_may_follow_a_schedule_and_data_stays_as_it_is() -> None:
    rnd, data = make(weight=rl.LinearSchedule(1.0)), rollout([1.0, 1.0])
    rnd.attach(rl.UpdatePlan(lambda: 0.75))
    found = rnd.update(data, None, 1).floats()
    assert float(rnd.weight.value) == pytest.approx(0.25)
    assert found["bonus"] == pytest.approx(5.0)
    assert found["predictor_loss"] == pytest.approx(12.5)  # (9 + 16) / 2
    assert data.reward.flatten().tolist() == [0.0, 0.0]


def test_half_the_square_is_scaled_by_the_deviation_of_discounted_sums_over_time() -> None:
    """Bonuses 1, 0, 2; gamma .9: sums 1, .9, 2.81 with variance .770467, which no end of an episode resets."""
    rnd = make(separate_value=True, gamma=0.9)
    data = rollout([(2 / 25) ** 0.5, 0.0, (4 / 25) ** 0.5], end=0)
    rnd.observe(data)
    assert rnd.bonus_scaler is not None
    assert float(rnd.bonus_scaler.moments.var) == pytest.approx(0.770467, abs=1e-6)
    bonus = processed(rnd, data).extra["bonus"].flatten()
    assert bonus.tolist() == pytest.approx([1.139261, 0.0, 2.278521], abs=1e-5)


def test_advantages_of_bonuses_do_not_end_with_an_episode_and_are_added() -> None:
    """Bonuses 1, 1, a terminal step at 0, gamma .9, lambda 1: 1 + .9 * 1 = 1.9, and 1 with the end."""
    params = rl.PPOParams(gae_lambda=1.0)
    fields: dict[str, Any] = {"separate_value": True, "gamma": 0.9, "weight": 0.5}
    data = rollout([(2 / 25) ** 0.5, (2 / 25) ** 0.5], end=0)
    samples = processed(make(params=params, **fields), data)
    assert samples.extra["bonus_return"].flatten().tolist() == pytest.approx([1.9, 1.0])
    alone = processed(make(params=params, **(fields | {"weight": 0.0})), data)
    expected = alone.advantage.flatten() + 0.5 * torch.tensor([1.9, 1.0])
    torch.testing.assert_close(samples.advantage.flatten(), expected)
    torch.testing.assert_close(samples.return_, alone.return_)  # the critic of rewards learns rewards alone


def test_a_step_that_is_not_valid_ends_the_bonuses_before_it() -> None:
    rnd = make(params=rl.PPOParams(gae_lambda=1.0), separate_value=True, gamma=0.9)
    data = rollout([(2 / 25) ** 0.5] * 3, valid=torch.tensor([[True], [False], [True]]))
    assert processed(rnd, data).extra["bonus_return"].flatten().tolist() == pytest.approx([1.0, 1.9, 1.0])


def test_what_is_seen_often_gets_no_bonus_and_the_last_observation_of_an_episode_too() -> None:
    rnd, data = make(lr=0.1), rollout([1.0, 2.0, 1.0, 2.0], end=1)
    first, last = [rnd.update(data, None, 20).floats()["bonus"] for _ in range(10)][::9]
    assert last < 0.1 * first
    assert not [p for p in rnd.target.parameters() if p.requires_grad]


def test_only_a_share_is_predicted_and_each_update_draws_it() -> None:
    rnd = make(share=0.25)
    drawn = []
    for _ in range(2):
        (batch,) = rnd.batches(processed(rnd, rollout([1.0] * 1000)), None, 1)
        drawn.append(batch.extra["is_predicted"])
    assert 0.2 < drawn[0].float().mean() < 0.3
    assert not torch.equal(*drawn)
    assert rnd.gradient_step(batch).floats()["predictor_loss"] == pytest.approx(
        12.5 * 4 * float(batch.extra["is_predicted"].float().mean())
    )


def test_keys_choose_what_may_be_new() -> None:
    space = gym.spaces.Dict(place=BOX, noise=BOX)
    rnd = make(space=space, net=rl.NetParams(hidden_sizes=(), keys=["place"]), normalize_obs=True)
    obs = {"place": torch.ones(2, 1, 1), "noise": torch.rand(2, 1, 1)}
    last = {name: x[0] for name, x in obs.items()}
    samples = processed(rnd, batches.rollout(obs, torch.zeros(2, 1).long(), torch.zeros(2, 1), last_obs=last))
    assert list(samples.extra["successor"]) == ["place"]  # type: ignore[call-overload]  # a tree
    assert samples.extra["bonus"].flatten().tolist() == pytest.approx([5.0, 5.0])


@pytest.mark.parametrize(
    ("algorithm", "size"),
    [(rl.A2C, None), (rl.IMPALA, None), (rl.TRPO, 4), (rl.REINFORCE, None), (rl.PQN, 4), (rl.RecurrentPPO, 8)],
)
def test_it_wraps_every_algorithm_on_policy(algorithm: Any, size: int | None, tmp_path: Path) -> None:
    trainer = trainer_of(algorithm, None, rl.RNDParams(lr=1e-2), size)
    rnd = trainer.algorithm
    before = rnd.predictor[-1].weight.clone()
    assert trainer.run().epochs[0].update.floats()["bonus"] > 0
    assert not torch.equal(before, rnd.predictor[-1].weight)
    assert float(rnd.obs_normalizer.moments["0"].count) > 32  # random actions came first
    rnd.save(tmp_path / "rnd.safetensors")
    loaded: Any = rl.load(tmp_path / "rnd.safetensors")
    assert (type(loaded), type(loaded.algorithm), loaded.params) == (rl.RND, algorithm, rnd.params)
    for name, value in rnd.predictor.state_dict().items():
        assert torch.equal(loaded.predictor.state_dict()[name], value)
    again, weights = rl.load_policy(tmp_path / "rnd.safetensors").state_dict(), rnd.policy.state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.items() if isinstance(value, torch.Tensor))


def test_scaled_rewards_have_bonuses_in_their_scale() -> None:
    """A scale of rewards alone would be nearly 0 where rewards are rare."""
    policy = rl.ActorCritic.for_spaces(BOX, DISCRETE, normalize_reward=True)
    rnd = make(policy=policy, weight=1.0)
    rnd.observe(rollout([1.0, 2.0, 3.0]))
    assert policy.reward_normalizer is not None
    assert float(policy.reward_normalizer.moments.var) > 10


def test_envs_of_tensors_give_the_same_samples() -> None:
    rnd, plain = make(separate_value=True), rollout([1.0, 2.0, 3.0], end=1)
    fields = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    dense = DenseRollout(**fields, successor=torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    one, other = processed(rnd, plain), processed(rnd, dense.of_one_shape())
    torch.testing.assert_close(one.advantage, other.advantage)
    torch.testing.assert_close(one.extra["bonus_return"], other.extra["bonus_return"])


def test_a_resumed_run_must_have_the_same_params(tmp_path: Path) -> None:
    trainer_of(rl.PPO).save(tmp_path / "checkpoint")
    others = {"PPOParams": (rl.PPOParams(lr=1e-2),), "RNDParams": (None, rl.RNDParams(lr=1e-2))}
    for owner, params in others.items():
        with pytest.raises(rl.errors.CheckpointError, match=f"{owner}.lr"):
            trainer_of(rl.PPO, *params).restore(tmp_path / "checkpoint")
