"""Every algorithm solves every probe that asks for something it learns: values, and actions."""

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.collect.action_selection import random_action
from tests.fakes import POLICY_OPTIONS, RNDOfPPO
from tests.probe import envs as probes
from tests.probe import tensor_envs
from tests.probe.envs import ActionFromObs, Discounting, ProbeEnv

GAMMA = 0.5
SIGNS = torch.tensor([[-1.0], [1.0]])
DISCOUNTING, WORTH = torch.tensor([[[-0.5], [-1.0]], [[0.5], [1.0]]]), [-GAMMA, -1.0, GAMMA, 1.0]
"""The episodes of `Discounting`, and the values of what is observed in them."""
Value = Callable[[Any, torch.Tensor], torch.Tensor]


def quick(params: type[Any], **changes: Any) -> Any:
    return params(gamma=GAMMA, **({"lr": 1e-2} | changes))


def state_value(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    return algorithm.policy.value(obs)


def best_q(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    return algorithm.policy.q_values(obs).amax(1)


def q_of_policy(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    policy = algorithm.policy
    return policy.critic(obs, policy.unscale(policy.act(obs))).amin(0)


def q_of_best(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    return algorithm.policy.critic(obs).amin(0).amax(1)


def mean_of_quantiles(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    policy = algorithm.policy
    return policy.critic(obs, policy.unscale(policy.act(obs))).mean((0, 2))


def mean_of_atoms(algorithm: Any, obs: torch.Tensor) -> torch.Tensor:
    policy = algorithm.policy
    return policy.expectation(policy.critic(obs, policy.unscale(policy.act(obs)))).amin(0)


def maker(algorithm: type[Any], params: Any) -> Callable[[Any], Any]:
    options = {"hidden_sizes": (16,), **POLICY_OPTIONS.get(algorithm, {})}
    return lambda envs: algorithm(algorithm.policy_class.for_envs(envs, **options), params)


class Knows(rl.Policy):
    """Knows that each observation is the best action, or its sign."""

    def decide(self, obs: Any, state: Any, mask: Any, explore: bool, generator: Any) -> rl.Decision:
        return rl.Decision(obs if isinstance(self.action_space, gym.spaces.Box) else (obs[:, 0] > 0).long())


def student(envs: Any) -> Any:
    policy = rl.RecurrentActorCritic.for_envs(envs, hidden_sizes=(16,), cell_size=8)
    return rl.Distillation(policy, Knows.for_envs(envs), rl.DistillationParams(lr=1e-2))


def quick_dqn(params: type[Any], **changes: Any) -> Any:
    return quick(params, target_update_interval=20, **changes)


def quick_sac(params: type[Any], **changes: Any) -> Any:
    return quick(params, critic_lr=1e-2, tau=0.05, temperature=0.01, learn_temperature=False, **changes)


# By name: what makes the algorithm for envs, how it values observations, and whether its actions are a Box.
ALGORITHMS: dict[str, tuple[Callable[[Any], Any], Value | None, bool]] = {
    f"{name}{'_box' * is_box}": (maker(algorithm, quick(algorithm.params_class)), value, is_box)
    for name, algorithm, value in (
        ("ppo", rl.PPO, state_value), ("a2c", rl.A2C, state_value), ("impala", rl.IMPALA, state_value),
        ("trpo", rl.TRPO, state_value), ("recurrent_ppo", rl.RecurrentPPO, state_value),
        ("reinforce", rl.REINFORCE, None),
    )
    for is_box in (False, True)
}  # fmt: skip
ALGORITHMS |= {
    "dqn": (maker(rl.DQN, quick_dqn(rl.DQNParams, epsilon=0.5)), best_q, False),
    "double_dqn": (maker(rl.DoubleDQN, quick_dqn(rl.DQNParams, epsilon=0.5)), best_q, False),
    "c51": (maker(rl.C51, quick_dqn(rl.C51Params, epsilon=0.5)), best_q, False),
    "qr_dqn": (maker(rl.QRDQN, quick_dqn(rl.QRDQNParams, epsilon=0.5)), best_q, False),
    "pqn": (maker(rl.PQN, quick(rl.PQNParams, epsilon=0.5)), best_q, False),
    "distillation": (student, None, False),
    "distillation_box": (student, None, True),
    "recurrent_pqn": (maker(rl.RecurrentPQN, quick(rl.PQNParams, epsilon=0.5)), best_q, False),
    "rnd": (maker(RNDOfPPO, rl.RNDParams(weight=0.01, lr=1e-2)), None, False),
    "discrete_sac": (maker(rl.DiscreteSAC, quick_sac(rl.DiscreteSACParams)), q_of_best, False),
    "td3": (maker(rl.TD3, quick(rl.TD3Params, tau=0.05, exploration_noise=0.5)), q_of_policy, True),
    "ddpg": (maker(rl.DDPG, quick(rl.DDPGParams, tau=0.05, exploration_noise=0.5)), q_of_policy, True),
    "sac": (maker(rl.SAC, quick_sac(rl.SACParams)), q_of_policy, True),
    "tqc": (maker(rl.TQC, quick_sac(rl.TQCParams, num_dropped=1)), mean_of_quantiles, True),
    "crossq": (
        maker(rl.CrossQ, quick(rl.CrossQParams, critic_lr=1e-2, temperature=0.01, learn_temperature=False)),
        q_of_policy,
        True,
    ),
    "flashsac": (maker(rl.FlashSAC, quick_sac(rl.FlashSACParams)), mean_of_atoms, True),
    "xqc": (maker(rl.XQC, quick_sac(rl.XQCParams, actor_update_interval=2)), mean_of_atoms, True),
    "simbav2": (maker(rl.SimbaV2, quick_sac(rl.SimbaV2Params)), mean_of_atoms, True),
    "redq": (maker(rl.REDQ, quick_sac(rl.REDQParams, actor_update_interval=2)), q_of_policy, True),
}
DISCRETE_CQL = quick_dqn(rl.DiscreteCQLParams, conservative_coef=0.2)
CQL: Any = {"conservative_coef": 0.01, "num_sampled_actions": 4}
OFFLINE: dict[str, tuple[Callable[[Any], Any], Value | None, bool]] = {
    "td3_bc": (maker(rl.TD3BC, quick(rl.TD3BCParams, tau=0.05, alpha=50.0)), q_of_policy, True),
    "rebrac": (maker(rl.ReBRAC, quick(rl.ReBRACParams, tau=0.05)), q_of_policy, True),
    "fql": (maker(rl.FQL, quick(rl.FQLParams, tau=0.05, alpha=0.1)), q_of_policy, True),
    "iql": (maker(rl.IQL, quick(rl.IQLParams, tau=0.05, expectile=0.9, beta=20.0)), state_value, True),
    "sac": ALGORITHMS["sac"],
    "discrete_cql": (maker(rl.DiscreteCQL, DISCRETE_CQL), best_q, False),
    "cql": (maker(rl.CQL, quick_sac(rl.CQLParams, **CQL)), q_of_policy, True),
    "cal_ql": (maker(rl.CalQL, quick_sac(rl.CalQLParams, **CQL)), q_of_policy, True),
}


ON_TENSORS = ("ppo", "a2c", "impala", "trpo", "recurrent_ppo", "reinforce", "pqn", "recurrent_pqn", "rnd", "dqn", "sac")
"""Algorithms that solve the same probes as envs of tensors, too: from whole rollouts that lie on the device."""
CASES = [
    *(pytest.param(name, probes, id=name) for name in ALGORITHMS),
    *(
        pytest.param(name, tensor_envs, id=f"{name}, tensors", marks=pytest.mark.full)  # some half a second each
        for name in ALGORITHMS if name.removesuffix("_box") in ON_TENSORS
    ),
]  # fmt: skip
# What a state is worth does not depend on the kind of actions.
WITH_VALUES = [case for case in CASES if ALGORITHMS[case.values[0]][1] and not case.values[0].endswith("_box")]


def make_envs(env: type[Any], continuous: bool) -> Any:
    backend: Any = "tensor" if issubclass(env, rl.TensorEnv) else "sync"
    return rl.make_vec(lambda: env(continuous), 8, backend=backend, seed=3)


def train(name: str, env: type[Any]) -> Any:
    rl.seed(0)
    make, _, continuous = ALGORITHMS[name]
    envs = make_envs(env, continuous)
    algorithm = make(envs)
    run(algorithm, envs)
    return algorithm


def run(algorithm: Any, envs: Any) -> None:
    options: dict[str, Any] = {"max_epochs": 1, "show_progress": False, "verbose": False, "seed": 1}
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        params: Any = rl.OnPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs), epoch_num_steps=5120,
            collection_step_num_env_steps=128, batch_size=64, update_step_num_repetitions=2, **options,
        )  # fmt: skip
    else:
        spaces = (envs.single_observation_space, envs.single_action_space)
        buffer = rl.ReplayBuffer(2000, *spaces, num_envs=8)
        params = rl.OffPolicyTrainerParams(
            training_collector=rl.Collector(algorithm.policy, envs, buffer), epoch_num_steps=3000,
            collection_step_num_env_steps=8, update_step_num_gradient_steps_per_sample=0.25,
            warmup_num_env_steps=400, **options,
        )  # fmt: skip
    params.create_trainer(algorithm).run()


def train_offline(name: str, env: type[ProbeEnv]) -> Any:
    """Train on the transitions of uniformly random actions."""
    rl.seed(0)
    make, _, continuous = OFFLINE[name]
    envs = make_envs(env, continuous)
    algorithm = make(envs)
    buffer = rl.ReplayBuffer(2000, envs.single_observation_space, envs.single_action_space, num_envs=8)
    rl.Collector(algorithm.policy, envs, buffer).collect(num_steps=2000, random=True)
    options: dict[str, Any] = {"max_epochs": 1, "show_progress": False, "verbose": False, "seed": 1}
    params = rl.OfflineTrainerParams(buffer=buffer, epoch_num_steps=500, **options)
    rl.OfflineTrainer(algorithm, params).run()
    return algorithm


def values(name: str, algorithm: Any, episodes: torch.Tensor) -> list[float]:
    """Return the values of the observations of episodes [N, T, 1], in this order."""
    value, policy = (ALGORITHMS | OFFLINE)[name][1], algorithm.policy
    assert value is not None
    seen = list(episodes.unbind(1))
    with torch.no_grad():
        if policy.is_recurrent:  # which values what it remembers
            first = policy.initial_state(len(episodes))
            seen = list(accumulate(seen, lambda state, obs: policy.next_state(obs, state), initial=first))[1:]
        return torch.stack([value(algorithm, x) for x in seen], 1).flatten().tolist()


def greedy(algorithm: Any, obs: torch.Tensor) -> list[float]:
    """Return the greedy actions, a discrete one as -1 or 1."""
    policy = algorithm.policy
    action = policy.act(obs, policy.initial_state(len(obs)))[0] if policy.is_recurrent else policy.act(obs)
    return [float(a) * 2 - 1 for a in action] if action.dim() == 1 else [float(a) for a in action[:, 0]]


def assert_actions(algorithm: Any, obs: torch.Tensor, expected: list[float]) -> None:
    for action, wanted in zip(greedy(algorithm, obs), expected, strict=True):
        assert action * wanted > 0.6, f"wanted {expected}, got {greedy(algorithm, obs)}"


@pytest.mark.parametrize(("name", "envs"), WITH_VALUES)
def test_discounting(name: str, envs: Any) -> None:
    assert values(name, train(name, envs.Discounting), DISCOUNTING) == pytest.approx(WORTH, abs=0.12)


@pytest.mark.parametrize(("name", "envs"), CASES)
def test_action_from_obs(name: str, envs: Any) -> None:
    assert_actions(train(name, envs.ActionFromObs), SIGNS, [-1.0, 1.0])


@pytest.mark.full
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_flags_from_obs(name: str, tmp_path: Path) -> None:
    envs = rl.make_vec(probes.FlagsFromObs, 8, backend="sync", seed=3)
    rl.seed(0)
    algorithm = ALGORITHMS[name][0](envs)
    run(algorithm, envs)
    assert algorithm.policy.predict(SIGNS.numpy()).tolist() == [[0, 1], [1, 0]]
    assert state_value(algorithm, SIGNS).tolist() == pytest.approx([2.0, 2.0], abs=0.3)
    algorithm.save(tmp_path / "flags.safetensors")
    action = rl.load(tmp_path / "flags.safetensors").policy.predict([1.0])
    assert envs.single_action_space.contains(action)
    assert action.tolist() == [1, 0]


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_value(name: str) -> None:
    assert values(name, train_offline(name, Discounting), DISCOUNTING) == pytest.approx(WORTH, abs=0.12)


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_action(name: str) -> None:
    assert_actions(train_offline(name, ActionFromObs), SIGNS, [-1.0, 1.0])


@pytest.mark.parametrize("continuous", [False, True])
def test_behaviour_cloning_copies_the_data(continuous: bool) -> None:
    rl.seed(0)
    obs = SIGNS.repeat(200, 1)
    action = obs.clone() * 0.8 if continuous else (obs[:, 0] > 0).long()
    space = ActionFromObs(continuous)
    ended = np.ones(len(obs), bool)
    buffer = rl.ReplayBuffer.from_arrays(
        observations=obs.numpy(), actions=action.numpy(), rewards=np.zeros(len(obs), np.float32),
        terminations=ended, truncations=~ended,
        observation_space=space.observation_space, action_space=space.action_space,
    )  # fmt: skip
    algorithm = rl.BC(rl.Actor.for_spaces(buffer.observation_space, buffer.action_space), rl.BCParams(lr=1e-2))
    params = rl.OfflineTrainerParams(
        buffer=buffer, max_epochs=1, epoch_num_steps=300, seed=1, show_progress=False, verbose=False
    )
    rl.OfflineTrainer(algorithm, params).run()
    expected = [-0.8, 0.8] if continuous else [-1.0, 1.0]
    assert greedy(algorithm, SIGNS) == pytest.approx(expected, abs=0.1)


def test_random_actions_cover_their_space() -> None:
    generator = torch.Generator().manual_seed(0)
    space = ActionFromObs(continuous=True).action_space
    actions = random_action(space, 1000, generator)
    assert actions.min() < -0.9
    assert actions.max() > 0.9
