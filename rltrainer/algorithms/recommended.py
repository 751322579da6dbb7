"""Fields of trainer params that train well: the result of `Algorithm.recommended`. The params' defaults are neutral."""

from typing import Any, NotRequired, TypedDict

import gymnasium as gym

from rltrainer.errors import ParamsError
from rltrainer.spaces import has_images

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]


class OnPolicyFields(TypedDict):
    """Fields of `OnPolicyTrainerParams`."""

    collection_step_num_env_steps: int | None
    collection_step_num_episodes: NotRequired[int | None]
    batch_size: int | None
    update_step_num_repetitions: int


class OffPolicyFields(TypedDict):
    """Fields of `OffPolicyTrainerParams`."""

    collection_step_num_env_steps: int
    batch_size: int
    update_step_num_gradient_steps_per_sample: float
    warmup_num_env_steps: int


class OfflineFields(TypedDict):
    """Fields of `OfflineTrainerParams`."""

    batch_size: int


def a_step_per_sample(algorithm: type[Any], envs: VectorEnv) -> OffPolicyFields:
    """Return fields of `OffPolicyTrainerParams` that train well: `**rl.SAC.recommended(envs)`."""
    # A gradient step of 256 transitions per sample, after 1,000 random samples, if the algorithm says no other numbers:
    # SAC's table 1, with the warm-up of its authors' code; TD3's appendix C, which has batches of 100 (256 are its
    # authors' later code and Stable-Baselines3). HalfCheetah and its like need 10,000 (TD3's appendix C; RL Zoo).
    return OffPolicyFields(
        collection_step_num_env_steps=look_at(envs, algorithm)[0], batch_size=256,
        update_step_num_gradient_steps_per_sample=algorithm.recommended_steps_per_sample,
        warmup_num_env_steps=algorithm.recommended_num_warmup_steps,
    )  # fmt: skip


def whole_envs(algorithm: type[Any], envs: VectorEnv) -> OnPolicyFields:
    """Return fields of `OnPolicyTrainerParams` that train well: `**rl.RecurrentPPO.recommended(envs)`."""
    # 128 steps of each env, whole envs in at most 4 minibatches, 4 repetitions (CleanRL's PPO with an LSTM).
    num_envs, _ = look_at(envs, algorithm)
    return OnPolicyFields(
        collection_step_num_env_steps=128 * num_envs, batch_size=128 * -(-num_envs // 4),
        update_step_num_repetitions=4,
    )  # fmt: skip


def offline_fields(algorithm: type[Any], envs: VectorEnv | None = None) -> OfflineFields:
    """Return fields of `OfflineTrainerParams` that train well: `**rl.IQL.recommended()`."""
    # 256 transitions per gradient step, as in TD3+BC and its BC (table 3), CQL (appendix F; 32 on Atari) and IQL.
    return {"batch_size": 256}


def look_at(envs: VectorEnv, algorithm: type[Any]) -> tuple[int, bool]:
    """Return the number of envs, and whether they show images; a `ParamsError` if they are no vector env."""
    if not isinstance(envs, gym.vector.VectorEnv):
        hint = "Make one with rl.make_vec(env_id, num_envs=1)."
        owner = f"{algorithm.__name__}.recommended"
        raise ParamsError.about(owner, "envs", "must be a gymnasium VectorEnv", envs, hint)
    return envs.num_envs, has_images(envs.single_observation_space)
