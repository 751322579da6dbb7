"""Ranges that are usual for an algorithm: after those of RL Zoo's tuner, simplified, for whom names none."""

from collections.abc import Mapping

from rltrainer.errors import ParamsError
from rltrainer.recipes import AnyRecipe
from rltrainer.sweeps.ranges import LogUniform, Range, Uniform
from rltrainer.sweeps.search_space import OWNER, Make

_NET: dict[str, Range] = {"hidden_sizes": [(64, 64), (256, 256), (400, 300)]}
_GAMMA: dict[str, Range] = {"gamma": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999]}
_ON_POLICY: dict[str, Range] = {
    "lr": LogUniform(1e-5, 2e-3), **_GAMMA, "gae_lambda": [0.8, 0.9, 0.92, 0.95, 0.98, 0.99, 1.0],
    "collection_step_num_env_steps": [256, 512, 1024, 2048, 4096], **_NET,
}  # fmt: skip
_OFF_POLICY: dict[str, Range] = {"lr": LogUniform(1e-5, 2e-3), **_GAMMA, "batch_size": [32, 64, 128, 256, 512], **_NET}
_TD3: dict[str, Range] = {
    **_OFF_POLICY, "tau": [0.001, 0.005, 0.01, 0.02, 0.05], "exploration_noise": Uniform(0.05, 0.5),
}  # fmt: skip
_SAC: dict[str, Range] = {
    **_OFF_POLICY, "tau": [0.001, 0.005, 0.01, 0.02, 0.05], "critic_lr": LogUniform(1e-5, 2e-3),
}  # fmt: skip
_Q_LEARNING: dict[str, Range] = {**_OFF_POLICY, "target_update_interval": [1, 100, 500, 1000, 5000]}
_A2C: dict[str, Range] = {
    **_ON_POLICY, "entropy_coef": LogUniform(1e-8, 0.1), "value_coef": Uniform(0.1, 1.0),
    "max_grad_norm": [0.3, 0.5, 0.7, 1.0, 2.0, 5.0],
}  # fmt: skip
DEFAULT_RANGES: dict[str, dict[str, Range]] = {
    "a2c": _A2C | {"collection_step_num_env_steps": [32, 64, 128, 256, 512]},
    "ddpg": _TD3,
    "dqn": _Q_LEARNING,
    "ppo": _A2C
    | {"batch_size": [32, 64, 128, 256, 512], "update_step_num_repetitions": [1, 5, 10, 20], "clip": [0.1, 0.2, 0.3]},
    "qrdqn": _Q_LEARNING,
    "sac": _SAC,
    "td3": _TD3,
    "tqc": _SAC | {"num_dropped": range(0, 6)},
    "trpo": _ON_POLICY | {"target_kl": [0.001, 0.005, 0.01, 0.02, 0.05], "num_cg_steps": [5, 10, 20]},
}


def default_ranges(make: Make) -> Mapping[str, Range]:
    """Return the ranges for a recipe's algorithm.

    Raises:
        ParamsError: there are none.
    """
    if not isinstance(make, AnyRecipe) or make.algorithm not in DEFAULT_RANGES:
        who = make.algorithm if isinstance(make, AnyRecipe) else "a function"
        hint = f"Usual ranges are there for {', '.join(DEFAULT_RANGES)}"
        raise ParamsError(f"{OWNER}.space: must say what varies, as there are no usual ranges for {who}. {hint}.")
    ranges = DEFAULT_RANGES[make.algorithm]
    return {name: values for name, values in ranges.items() if not (name == "hidden_sizes" and "net" in make.policy)}
