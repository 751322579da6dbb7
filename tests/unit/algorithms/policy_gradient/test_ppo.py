"""PPO: the ratio of probabilities is 1 before the first gradient step, in every number format."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.algorithms import OnPolicyBatch
from tests import batches

VECTOR = gym.spaces.Box(-np.inf, np.inf, (17,), np.float32)
ROWS_FIRST = gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
CHANNELS_FIRST = gym.spaces.Box(0, 255, (3, 36, 36), np.uint8)
DISCRETE = gym.spaces.Discrete(6)
BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)


class Recorder(rl.PPO):
    """Keeps what the first gradient step is given and what it makes of it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[tuple[torch.Tensor, ...]] = []

    def policy_loss(self, log_prob: torch.Tensor, batch: OnPolicyBatch) -> torch.Tensor:
        if not self.seen:
            self.seen.append((log_prob.detach() - batch.log_prob, self.policy.value(batch.obs).detach() - batch.value))
        return super().policy_loss(log_prob, batch)


def first_step(obs_space: Any, action_space: Any, amp: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """Return the logarithms of the ratios, and how far the values are from the old ones, in the first step."""
    rl.seed(1)
    policy = rl.ActorCritic.for_spaces(obs_space, action_space, hidden_sizes=(64, 64), **options)
    with torch.no_grad():  # as after a long training: actions differ, and the policy is sure of them
        policy.actor[2].linear.weight.mul_(100.0)
        if action_space is BOX:
            policy.actor[2].log_std.fill_(-2.0)
    algorithm = Recorder(policy, rl.PPOParams(value_clip=0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on processors without bf16 instructions
        algorithm.attach(rl.UpdatePlan(precision=rl.PrecisionParams(amp=amp)))
    g = torch.Generator().manual_seed(0)

    def observations(*shape: int) -> torch.Tensor:
        if obs_space is VECTOR:
            return torch.randn(*shape, 17, generator=g)
        return torch.randint(0, 256, (*shape, *obs_space.shape), generator=g).to(torch.uint8)

    obs = observations(16, 4)
    action = policy.select_action(obs.flatten(0, 1), explore=True, generator=g).action.unflatten(0, (16, 4))
    reward = torch.randn(16, 4, generator=g)
    rollout = batches.rollout(obs, action, reward, last_obs=observations(4))
    algorithm.update(rollout, batch_size=32, repeat=1)
    return algorithm.seen[0]


@pytest.mark.parametrize("amp", [None, "bf16"])
@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("obs_space", [VECTOR, ROWS_FIRST, CHANNELS_FIRST], ids=["vector", "hwc", "chw"])
def test_the_ratio_is_one_before_the_first_step(obs_space: Any, action_space: Any, amp: Any) -> None:
    log_ratio, moved = first_step(obs_space, action_space, amp)
    # Up to rounding: products of other sizes are summed in another order. In bf16 a sum that this puts on the other
    # side of a rounding boundary moves by 1/256 of itself; most do not.
    assert log_ratio.abs().median() < 1e-5
    assert log_ratio.abs().max() < (1e-4 if amp is None else 0.05)
    assert moved.abs().max() < (1e-4 if amp is None else 0.02)


def test_the_pass_over_the_rollout_is_in_eval_mode_and_gradient_steps_in_the_mode_that_is_set() -> None:
    modes: list[bool] = []

    class Noticing(nn.Tanh):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            modes.append(self.training)
            return super().forward(x)

    first_step(VECTOR, DISCRETE, None, activation=Noticing)
    acting, updating = modes[:2], modes[2:]
    assert acting == [True, True], "act and select_action leave the modes to their caller"
    num_of_rollout = updating.index(True)
    assert num_of_rollout > 0
    assert set(updating[num_of_rollout:]) == {True}


def test_a_shared_encoder_sees_each_observation_of_a_rollout_once() -> None:
    rl.seed(1)
    policy = rl.ActorCritic.for_spaces(ROWS_FIRST, DISCRETE, hidden_sizes=(4,), share_encoder=True)
    g = torch.Generator().manual_seed(0)
    obs, last = (torch.randint(0, 256, (*n, 36, 36, 3), generator=g).to(torch.uint8) for n in ((6, 2), (2,)))
    action, reward = torch.randint(0, 6, (6, 2), generator=g), torch.randn(6, 2, generator=g)
    rollout = batches.rollout(obs, action, reward, last_obs=last)
    seen: list[int] = []
    policy.actor[0].register_forward_hook(lambda module, args, output: seen.append(len(args[0])))
    with torch.no_grad():
        samples = rl.PPO(policy).process(rollout)
        assert seen == [6 * 2 + 2]
        flat = samples.flatten()
        expected = policy.distribution(flat.obs).log_prob(flat.action)
    torch.testing.assert_close(flat.log_prob, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(flat.value, policy.value(flat.obs).detach(), rtol=0, atol=1e-6)


class OwnHeads(rl.ActorCritic):
    """Overrides what takes observations alone."""

    def value(self, obs: Any) -> torch.Tensor:  # type: ignore[override]  # as users write it
        return 2 * super().value(obs)

    def distribution(self, obs: Any) -> Any:  # type: ignore[override]  # as users write it
        return super().distribution(obs)


@pytest.mark.parametrize("algorithm", [rl.A2C, rl.PPO])
def test_a_policys_own_heads_are_asked(algorithm: Any) -> None:
    envs = rl.make_vec("CartPole-v1", num_envs=2, seed=1)
    own = algorithm(OwnHeads.for_envs(envs, hidden_sizes=(4,)))
    rollout = batches.collected(own.policy, envs, 4)
    value = own.process(rollout).value
    torch.testing.assert_close(value.flatten(), 2 * own.policy.critic(rollout.obs.flatten(0, 1)).squeeze(-1))
    own.update(rollout, None, 1)


@pytest.mark.parametrize(
    # Values were 0. They move by at most .5 before the error is taken, which counts where it is the larger one.
    ("value_clip", "losses"),
    [(None, [1.0, 0.5625, 0.0]), (0.5, [1.0, 0.5625, 2.25])],
)
def test_the_value_loss_is_the_larger_of_the_plain_and_the_clipped_one(value_clip: Any, losses: list[float]) -> None:
    ppo = rl.PPO(rl.ActorCritic.for_spaces(VECTOR, DISCRETE, hidden_sizes=()), rl.PPOParams(value_clip=value_clip))
    zeros = torch.zeros(3)
    batch = OnPolicyBatch(zeros, zeros, zeros, torch.tensor([1.0, 1.0, 2.0]), zeros, zeros, torch.ones(3))
    assert ppo.value_loss(torch.tensor([2.0, 0.25, 2.0]), batch).tolist() == losses
