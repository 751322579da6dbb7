"""The algorithms by their names in recipes and commands: a closed list."""

from typing import Any

import gymnasium as gym

from rltrainer import algorithms as known
from rltrainer.algorithms import Algorithm
from rltrainer.errors import ParamsError, RLTrainerError
from rltrainer.nets import Actor, Policy
from rltrainer.validation.suggestions import did_you_mean

Space = gym.Space[Any]

OFFLINE: dict[str, type[Algorithm]] = {
    "bc": known.BC, "cal_ql": known.CalQL, "cql": known.CQL, "discrete_cql": known.DiscreteCQL, "fql": known.FQL,
    "iql": known.IQL, "rebrac": known.ReBRAC, "td3bc": known.TD3BC,
}  # fmt: skip
"""Algorithms that recipes train from data only; other off-policy algorithms can learn from data, too."""
ALGORITHMS: dict[str, type[Algorithm]] = {
    "a2c": known.A2C, "c51": known.C51, "crossq": known.CrossQ, "ddpg": known.DDPG, "discrete_sac": known.DiscreteSAC,
    "double_dqn": known.DoubleDQN, "dqn": known.DQN, "flashsac": known.FlashSAC, "impala": known.IMPALA,
    "ppo": known.PPO, "pqn": known.PQN, "qrdqn": known.QRDQN, "recurrent_ppo": known.RecurrentPPO,
    "recurrent_pqn": known.RecurrentPQN, "redq": known.REDQ, "reinforce": known.REINFORCE,
    "sac": known.SAC, "simbav2": known.SimbaV2, "td3": known.TD3, "tqc": known.TQC, "trpo": known.TRPO,
    "xqc": known.XQC, **OFFLINE,
}  # fmt: skip


def policy_of(algorithm: str | type[Algorithm]) -> type[Policy]:
    """Return the class of an algorithm's policy."""
    cls = algorithm_named("recipes", algorithm)
    return Actor if issubclass(cls, known.BC) else cls.policy_class


def algorithms_for(observation_space: Space, action_space: Space) -> list[str]:
    """Return the names of the algorithms that take these spaces of an env or a data set."""
    return [name for name in ALGORITHMS if takes(name, observation_space, action_space)]


def takes(name: str, observation_space: Space, action_space: Space) -> bool:
    """Return whether an algorithm's policy takes these spaces."""
    options: Any = {"v_min": 0.0, "v_max": 1.0} if name == "c51" else {}
    try:
        policy_of(name).for_spaces(observation_space, action_space, **options)
    except RLTrainerError:
        return False
    return True


def algorithm_named(owner: str, name: Any) -> type[Algorithm]:
    """Return an algorithm by its name, or the class itself; a `ParamsError` about `owner` says which may be meant."""
    if isinstance(name, type) and issubclass(name, Algorithm):
        return name
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    hint = did_you_mean(name.lower(), ALGORITHMS).strip() if isinstance(name, str) else ""
    if isinstance(name, str) and name.endswith(".safetensors"):
        hint = "A saved algorithm continues by start=..., --start of a command."
    if owner == "train" and isinstance(name, str) and name in gym.registry:
        hint = "The env comes first: rl.train(env, algorithm)."
    raise ParamsError.about(owner, "algorithm", f"must be one of {', '.join(ALGORITHMS)}", name, hint)


def name_of(algorithm: Any) -> Any:
    """Return the name of an algorithm or class, or a user's class itself; all else stays as it is."""
    cls = type(algorithm) if isinstance(algorithm, Algorithm) else algorithm
    return next((name for name, each in ALGORITHMS.items() if each is cls), cls)
