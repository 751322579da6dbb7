"""Small runs to break in two; `python -m tests.resume.runs NAME PATH` continues a saved one in its own process."""

import functools
import hashlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import rltrainer as rl
from tests.fakes import POLICY_OPTIONS, RNDOfPPO, built, counting_envs, flipped
from tests.resume.steered import negative_distance

BOX = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
DISCRETE = gym.spaces.Discrete(2)
QUIET: dict[str, Any] = {"show_progress": False, "verbose": False, "seed": 5}

ALGORITHMS: dict[str, tuple[type[Any], type[Any], Any]] = {
    "ppo": (rl.PPO, rl.ActorCritic, DISCRETE),
    "ppo_binary": (rl.PPO, rl.ActorCritic, gym.spaces.MultiBinary(2)),
    "a2c": (rl.A2C, rl.ActorCritic, BOX),
    "impala": (rl.IMPALA, rl.ActorCritic, DISCRETE),
    "recurrent_ppo": (rl.RecurrentPPO, rl.RecurrentActorCritic, DISCRETE),
    "trpo": (rl.TRPO, rl.ActorCritic, BOX),
    "reinforce": (rl.REINFORCE, rl.Actor, DISCRETE),
    "pqn": (rl.PQN, rl.QNetwork, DISCRETE),
    "distillation": (rl.Distillation, rl.RecurrentActorCritic, BOX),
    "recurrent_pqn": (rl.RecurrentPQN, rl.RecurrentQNetwork, DISCRETE),
    "rnd": (RNDOfPPO, rl.ActorCritic, DISCRETE),
    "dqn": (rl.DQN, rl.QNetwork, DISCRETE),
    "double_dqn": (rl.DoubleDQN, rl.QNetwork, DISCRETE),
    "c51": (rl.C51, rl.CategoricalQNetwork, DISCRETE),
    "qr_dqn": (rl.QRDQN, rl.QuantileQNetwork, DISCRETE),
    "td3": (rl.TD3, rl.DeterministicActorCritic, BOX),
    "sac": (rl.SAC, rl.SquashedActorCritic, BOX),
    "bc": (rl.BC, rl.Actor, DISCRETE),
    "td3_bc": (rl.TD3BC, rl.DeterministicActorCritic, BOX),
    "fql": (rl.FQL, rl.FlowActorCritic, BOX),
    "rebrac": (rl.ReBRAC, rl.DeterministicActorCritic, BOX),
    "discrete_cql": (rl.DiscreteCQL, rl.QNetwork, DISCRETE),
    "iql": (rl.IQL, rl.GaussianActorCritic, BOX),
    "discrete_sac": (rl.DiscreteSAC, rl.DiscreteActorCritic, DISCRETE),
    "ddpg": (rl.DDPG, rl.DeterministicActorCritic, BOX),
    "tqc": (rl.TQC, rl.SquashedActorCritic, BOX),
    "redq": (rl.REDQ, rl.SquashedActorCritic, BOX),
    "crossq": (rl.CrossQ, rl.SquashedActorCritic, BOX),
    "flashsac": (rl.FlashSAC, rl.CategoricalActorCritic, BOX),
    "xqc": (rl.XQC, rl.CategoricalActorCritic, BOX),
    "simbav2": (rl.SimbaV2, rl.CategoricalActorCritic, BOX),
    "cql": (rl.CQL, rl.SquashedActorCritic, BOX),
    "cal_ql": (rl.CalQL, rl.SquashedActorCritic, BOX),
    "fqe": (rl.FQE, rl.QNetwork, DISCRETE),
}
RUNS = [
    "ppo", "ppo_episodes", "a2c", "impala", "trpo", "recurrent_ppo", "reinforce_episodes", "pqn", "distillation",
    "recurrent_pqn", "rnd",
    "dqn", "double_dqn", "td3", "sac", "iql",
    "c51", "qr_dqn", "discrete_sac", "ddpg", "tqc", "redq", "crossq", "flashsac", "xqc", "simbav2",
    "a2c_sde", "sac_sde", "ddpg_drifting",
    "dqn_prioritized", "offline_sac_prioritized", "sac_mixed", "redq_mixed",
    "cal_ql_mixed",
    "ppo_float64", "sac_float64", "offline_iql_float64",
    "offline_bc", "offline_td3_bc", "offline_iql", "offline_cql", "offline_discrete_cql", "offline_sac",
    "offline_rebrac", "offline_cal_ql", "offline_fqe", "offline_fql_chunks", "fql_chunks_mixed_midway",
    "ppo_midway", "recurrent_ppo_midway", "dqn_midway", "dqn_prioritized_midway", "sac_midway", "a2c_sde_midway",
    "ddpg_drifting_midway", "flashsac_midway",
]  # fmt: skip


def short_episodes(num_envs: int, action_space: Any, seed: int | None = None, in_workers: bool = False) -> Any:
    """Return envs whose episodes have 5 steps, so that every collection ends at an episode's start."""
    return counting_envs(num_envs, seed, in_workers, truncates=True, action_space=action_space)


def build(
    name: str,
    max_epochs: int = 3,
    logger: rl.Logger | None = None,
    device: str = "cpu",
    num_envs: int = 2,
    make_envs: Any = short_episodes,
    buffer_device: str | None = None,
    acting_device: str | None = None,
    **params_of_trainer: Any,
) -> Any:
    """Return the trainer of a run; collections have 5 rows, or 3 episodes, and epochs twice as many.

    Those of runs `_midway` have 3 rows, and epochs three times as many.

    Args:
        name: of `RUNS`, or one that ends in `_masked` or `_hindsight`, for `steered_envs`.
        max_epochs, logger, params_of_trainer: fields of the trainer's params.
        device: of the policy.
        num_envs: of training and of testing.
        make_envs: makes them, of their number and an action space.
        buffer_device: of the buffer; None is the policy's.
        acting_device: of the copy of the policy that collects; None makes no copy.
    """
    rl.seed(11)
    buffer_device = buffer_device or device
    is_midway = name.endswith("_midway")
    name = name.removesuffix("_midway")
    kind = name.removeprefix("offline_")
    for suffix in (
        "_float64",
        "_episodes",
        "_prioritized",
        "_mixed",
        "_sde",
        "_drifting",
        "_masked",
        "_hindsight",
        "_adaptive",
        "_chunks",
        "_symmetric",
    ):
        kind = kind.removesuffix(suffix)
    if name.endswith(("_masked", "_hindsight")):
        make_envs = functools.partial(make_envs, kind=name.rpartition("_")[2])
    algorithm_class, policy_class, action_space = ALGORITHMS[kind]
    envs = make_envs(num_envs, action_space)
    options: dict[str, Any] = (
        {"normalize_reward": True} if policy_class is rl.ActorCritic or kind in ("tqc", "flashsac") else {}
    )
    options |= POLICY_OPTIONS.get(algorithm_class, {})
    options |= {"use_sde": True, "sde_sample_interval": 3} if name.endswith("_sde") else {}
    chunks = {"chunk_length": 2} if "_chunks" in name else {}
    options |= chunks
    policy = policy_class.for_envs(envs, hidden_sizes=(8,), normalize_obs=True, **options).to(device)
    params = algorithm_class.params_class
    changes: dict[str, Any] = {"lr": rl.LinearSchedule(1e-2, 1e-3)} | ({"n_step": 2} if kind in ("dqn", "sac") else {})
    changes |= {"lr": 2e-3, "desired_kl": 1e-3} if name.endswith("_adaptive") else chunks
    changes |= {"symmetry": flipped(2)} if name.endswith("_symmetric") else {}
    changes |= {"separate_value": True, "share": 0.5} if kind == "rnd" else {}
    algorithm = built(algorithm_class, policy, params(**changes))
    if name.endswith("_drifting"):
        policy.exploration = rl.OrnsteinUhlenbeckNoise(rl.LinearSchedule(0.5, 0.1))
    test = rl.Collector(policy, make_envs(num_envs, action_space))
    common = QUIET | {"test_collector": test, "max_epochs": max_epochs, "logger": logger} | params_of_trainer
    if name.endswith("_float64"):
        common["precision"] = rl.PrecisionParams(weights="float64")
    spaces = (envs.single_observation_space, envs.single_action_space)
    buffer_class: Any = rl.ReplayBuffer
    if name.endswith("_prioritized"):
        buffer_class = functools.partial(rl.PrioritizedReplayBuffer, beta=rl.LinearSchedule(0.4, 1.0))
    if name.endswith("_hindsight"):
        buffer_class = functools.partial(rl.HindsightReplayBuffer, compute_reward=negative_distance)
    if name.startswith("offline"):
        buffer = buffer_class(50 * num_envs, *spaces, num_envs=num_envs, device=buffer_device)
        collector = rl.Collector(policy, envs, buffer)
        collector.seed(2)
        collector.collect(num_steps=50 * num_envs, random=True)
        return rl.OfflineTrainer(
            algorithm, rl.OfflineTrainerParams(buffer=buffer, epoch_num_steps=4, batch_size=8, **common)
        )
    num_rows = 3 if is_midway else 5
    collection: dict[str, Any] = {
        "collection_step_num_env_steps": num_rows * num_envs,
        "epoch_num_steps": (3 if is_midway else 2) * num_rows * num_envs,
    }
    if name.endswith("_episodes"):
        collection = {
            "collection_step_num_env_steps": None, "collection_step_num_episodes": 3, "epoch_num_steps": 30
        }  # fmt: skip
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        collector = rl.Collector(policy, envs, device=acting_device)
        params_class: Any = rl.OnPolicyTrainerParams
        size = (3 if is_midway else 5) if algorithm.trains_recurrent else 4  # whole envs
        more: dict[str, Any] = {"batch_size": size, "update_step_num_repetitions": 2}
    else:
        # 17 rows wrap around within the 30 rows of the run.
        buffer = buffer_class(17 * num_envs, *spaces, num_envs=num_envs, device=buffer_device)
        if name.endswith("_mixed"):
            data = rl.PrioritizedReplayBuffer(10 * num_envs, *spaces, num_envs=num_envs, device=buffer_device)
            rl.Collector(policy, make_envs(num_envs, action_space, seed=1), data).collect(num_steps=10 * num_envs)
            buffer = rl.MixedBuffer(buffer, data)
        collector = rl.Collector(policy, envs, buffer, device=acting_device)
        params_class = rl.OffPolicyTrainerParams
        more = {
            "batch_size": 8,
            "update_step_num_gradient_steps_per_sample": 0.35,
            "warmup_num_env_steps": 5 * num_envs,
        }
    return params_class(training_collector=collector, **(collection | more | common)).create_trainer(algorithm)


def assert_resumes(made: Callable[[], Any], folder: Path) -> Any:
    """Check that a run which is saved after an epoch and restored ends as a whole one; return its trainer."""
    whole, stopped, resumed = made(), made(), made()
    whole.run()
    stopped.execute_epoch()
    stopped.save(folder / "checkpoint")
    resumed.restore(folder / "checkpoint")
    resumed.run()
    assert digest(resumed) == digest(whole)
    return resumed


def digest(trainer: Any, left_out: Collection[str] = ("logger",)) -> str:
    """Return a hash over everything that a run may differ in, seconds and these parts aside."""
    parts = {"algorithm": trainer.algorithm, **trainer.params.parts()}
    states = {name: part.state_dict() for name, part in parts.items() if name not in left_out}
    state: Any = trainer.state.to_state()
    for entry in [state, *state["epochs"]]:
        entry.pop("timing")
    for epoch in state["epochs"]:
        for stats in ("collect_stats", "test_stats"):
            if epoch[stats] is not None:
                epoch[stats].pop("collect_time")
    del state["params"], state["global_random"]  # filled in when it is saved
    hasher = hashlib.sha256()
    _feed(hasher, {**states, "trainer": state})
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value):
            hasher.update(str(key).encode())
            _feed(hasher, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(hasher, item)
    elif isinstance(value, torch.Tensor):
        hasher.update(
            str((value.dtype, tuple(value.shape))).encode() + value.detach().cpu().contiguous().numpy().tobytes()
        )
    else:
        hasher.update(repr(value).encode())


if __name__ == "__main__":
    torch.set_num_threads(1)
    continued = build(sys.argv[1])
    continued.restore(Path(sys.argv[2]))
    continued.run()
    print(digest(continued))
