"""Every argument of every public constructor against values that users and their mistakes pass.

A value is accepted, or is an error of ours whose text is the same in every run; numbers of NumPy count as numbers.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rltrainer as rl
from rltrainer.errors import RLTrainerError
from tests.fakes import CountingEnv, counting_envs, tiny_actor_critic


class Anything:
    pass


BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
VALUES = [
    -1, 0, 1, 3, math.inf, math.nan, -0.5, 1.5, 1j, "", "x", b"x", None, True, False, [], [1], (), {}, {"a": 1},
    set(), range(3), np.int64(3), np.int64(-1), np.float32(0.5), np.float64("nan"), np.bool_(True), np.array(3),
    np.array([1.0, 2.0]), np.timedelta64(3), torch.tensor(3), torch.zeros(2), Anything(), Anything, len, int,
    lambda: None, lambda *args, **options: None, rl.PPOParams, rl.PPOParams(), rl.ActorCritic, gym.spaces.Discrete(2),
    BOX, CountingEnv, CountingEnv(),
]  # fmt: skip
ENVS, BOX_ENVS = counting_envs(), counting_envs(action_space=BOX)
SPACES = (ENVS.single_observation_space, ENVS.single_action_space)
POLICY = tiny_actor_critic(ENVS)
Q = rl.QNetwork.for_envs(ENVS, hidden_sizes=(4,))
DETERMINISTIC = rl.DeterministicActorCritic.for_envs(BOX_ENVS, hidden_sizes=(4,))


def replay_buffer() -> rl.ReplayBuffer:
    return rl.ReplayBuffer(10, *SPACES, num_envs=2)


def filled_buffer() -> rl.ReplayBuffer:
    buffer = replay_buffer()
    rl.Collector(POLICY, counting_envs(), buffer).collect(num_steps=10)
    return buffer


def defaults(cls: Any, **given: Any) -> dict[str, Any]:
    return {field.name: given.get(field.name, field.default) for field in dataclasses.fields(cls)}


def of_policy(action_space: Any) -> dict[str, Any]:
    return {"observation_space": SPACES[0], "action_space": action_space, "hidden_sizes": (4,), "normalize_obs": False}


INTERVALS = {"training_interval": 3, "test_interval": 1, "update_interval": 2, "strict": False}
MAKERS: dict[Callable[..., Any], dict[str, Any]] = {
    rl.Actor: of_policy(SPACES[1]),
    rl.ActorCritic: of_policy(SPACES[1]) | {
        "share_encoder": False, "normalize_reward": False, "net": None, "critic_net": None, "log_std_init": 0.0,
        "orthogonal_init": True,
    },
    rl.QNetwork: of_policy(SPACES[1]) | {"dueling": False},
    rl.CategoricalQNetwork: of_policy(SPACES[1]) | {"num_atoms": 3, "v_min": 0.0, "v_max": 1.0},
    rl.QuantileQNetwork: of_policy(SPACES[1]) | {"num_quantiles": 3},
    rl.DiscreteActorCritic: of_policy(SPACES[1]) | {"num_critics": 2},
    rl.DeterministicActorCritic: of_policy(BOX) | {"num_critics": 2},
    rl.SquashedActorCritic: of_policy(BOX) | {"activation": torch.nn.ReLU, "smooth_log_std": False},
    rl.CategoricalActorCritic: of_policy(BOX) | {"num_atoms": 3, "v_min": -1.0, "v_max": 1.0, "limit_returns": True},
    rl.GaussianActorCritic: of_policy(BOX) | {"num_critics": 2},
    rl.FlowActorCritic: of_policy(BOX) | {"chunk_length": 2},
    rl.PPO: {"policy": POLICY, "params": None},
    rl.DQN: {"policy": Q, "params": None},
    rl.TD3BC: {"policy": DETERMINISTIC, "params": None},
    rl.BC: {"policy": POLICY, "params": None},
    **{
        cls: defaults(cls)
        for cls in (
            rl.PPOParams, rl.A2CParams, rl.DQNParams, rl.SACParams, rl.TD3Params, rl.TD3BCParams, rl.IQLParams,
            rl.DDPGParams, rl.TQCParams, rl.REDQParams, rl.CQLParams, rl.DiscreteCQLParams, rl.BCParams,
            rl.C51Params, rl.DiscreteSACParams, rl.QRDQNParams, rl.PQNParams, rl.ReBRACParams, rl.CrossQParams,
            rl.XQCParams, rl.SimbaV2Params, rl.FlashSACParams, rl.CalQLParams, rl.FQEParams,
            rl.FQLParams, rl.DistillationParams,
            rl.RuntimeParams, rl.PrecisionParams, rl.UpdateParams, rl.EpsilonGreedy, rl.GaussianNoise,
            rl.OrnsteinUhlenbeckNoise,
        )
    },
    rl.OnPolicyTrainerParams: defaults(rl.OnPolicyTrainerParams, training_collector=rl.Collector(POLICY, ENVS)),
    rl.OffPolicyTrainerParams: defaults(
        rl.OffPolicyTrainerParams, training_collector=rl.Collector(POLICY, ENVS, replay_buffer())
    ),
    rl.OfflineTrainerParams: defaults(rl.OfflineTrainerParams, buffer=filled_buffer()),
    rl.OnPolicyTrainer: {"algorithm": rl.PPO(POLICY), "params": None},
    rl.Collector: {"policy": POLICY, "envs": ENVS, "buffer": None, "exploration": None},
    rl.ReplayBuffer: {
        "capacity": 10, "observation_space": SPACES[0], "action_space": SPACES[1], "num_envs": 2, "device": "cpu",
        "seed": 1, "extra": None,
    },
    rl.RolloutBuffer: {
        "num_steps": 10, "observation_space": SPACES[0], "action_space": SPACES[1], "num_envs": 2, "device": "cpu",
        "extra": None,
    },
    rl.LinearSchedule: {"start": 1.0, "end": 0.0, "until": 0.5},
    rl.CosineSchedule: {"start": 1.0, "end": 0.0, "until": 0.5},
    rl.Every: {"n": 3, "unit": "env_step"},
    rl.CSVLogger: {"path": "log.csv", **INTERVALS},
    rl.JSONLinesLogger: {"path": "log.jsonl", **INTERVALS},
    rl.TensorBoardLogger: {"folder": "runs", **INTERVALS},
    rl.ConsoleLogger: INTERVALS,
    rl.ActorCritic.for_envs: {"envs": ENVS},
    rl.NetParams: defaults(rl.NetParams),
    rl.RecurrentActorCritic: of_policy(SPACES[1]) | {"cell": "gru", "cell_size": 3, "share_cell": False},
    rl.PPOParams.from_json: {"text": "{}"},
    rl.load: {"path": "algorithm", "classes": (), "device": "cpu", "strict": True},
    rl.load_policy: {"path": "algorithm", "classes": (), "device": "cpu", "strict": True},
    POLICY.save: {"path": "policy"},
    POLICY.predict: {"obs": np.zeros(2), "state": None},
    rl.PPO(POLICY).run_training: {"params": None},
    replay_buffer().seed: {"seed": 1},
    filled_buffer().sample: {"batch_size": 3, "n_step": 1, "gamma": 0.9},
    rl.PPO(POLICY).seed: {"seed": 1},
    rl.PPO(POLICY).save: {"path": "algorithm"},
    rl.PPO(POLICY).load: {"path": "algorithm", "strict": True},
    POLICY.load: {"path": "policy", "strict": True},
    filled_buffer().save: {"path": "buffer"},
    rl.ReplayBuffer.load: {"path": "buffer"},
    rl.Collector(POLICY, ENVS).seed: {"seed": 1},
}  # fmt: skip


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__qualname__)
def test_any_value_is_accepted_or_an_error_of_ours(
    make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in MAKERS[make]:
        for value in VALUES:
            try:
                make(**MAKERS[make] | {name: value})
            except RLTrainerError as error:
                if re.search(r"at 0x|\bid=\d", str(error)):
                    wrong.append(f"{name}={value!r}: {error}")
            except Exception as error:
                wrong.append(f"{name}={value!r}: {type(error).__name__}: {error}")
    assert wrong == []


def test_integers_of_numpy_count_everything() -> None:
    two, ten = np.int64(2), np.uint32(10)
    rl.seed(np.int64(3))
    envs = rl.make_vec("CartPole-v1", two, backend="sync", seed=np.int64(3))
    buffer = rl.ReplayBuffer(ten, envs.single_observation_space, envs.single_action_space, num_envs=two, seed=ten)
    assert (type(buffer.capacity), type(buffer.num_envs)) == (int, int)
    collector = rl.Collector(rl.QNetwork.for_envs(envs), envs, buffer, max_episode_steps=np.int64(1000))
    collector.seed(np.int64(3))
    assert collector.collect(num_steps=np.int64(8)).num_env_steps == 8
    assert collector.collect(num_episodes=np.int64(2)).num_collected_episodes == 2
    batch = buffer.sample(batch_size=np.int64(3), n_step=np.int64(2), gamma=np.float64(0.9))
    assert batch.reward.shape == (3,)
    rl.RolloutBuffer(two, two, envs.single_observation_space, envs.single_action_space)
    assert type(rl.Every(np.int64(10), "env_step").n) is int
    logger = rl.ConsoleLogger(training_interval=np.int64(10), strict=np.bool_(False))
    assert type(logger.strict) is bool
    envs.close()


@pytest.mark.parametrize("backend", ["sync", "native"])
def test_envs_are_reset_with_seeds_of_numpy(backend: Any) -> None:
    envs = rl.make_vec("CartPole-v1", 2, backend=backend)
    first = envs.reset(seed=5)[0]
    assert np.array_equal(envs.reset(seed=np.int64(5))[0], first)
    if backend == "sync":
        assert np.array_equal(envs.reset(seed=[np.int64(5), np.int64(6)])[0], first)  # type: ignore[arg-type]
    envs.close()


def test_seeds_of_numpy_are_those_of_python_and_large_ones_are_folded_into_the_range_of_torch() -> None:
    seen = []
    for number in (5, np.int64(5), 2**64 + 5):
        rl.seed(number)
        algorithm = rl.PPO(POLICY)
        algorithm.seed(number)
        buffer = rl.ReplayBuffer(10, *SPACES, seed=number)
        seen.append((torch.rand(1).item(), algorithm.generator.initial_seed(), buffer.generator.initial_seed()))
    assert seen[0] == seen[1] == seen[2]
