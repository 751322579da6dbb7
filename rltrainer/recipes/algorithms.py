"""The algorithms that train in envs, by the names that recipes and commands have for them: a closed list."""

from typing import Any

from rltrainer.algorithms import (
    A2C,
    C51,
    DDPG,
    DQN,
    IMPALA,
    PPO,
    QRDQN,
    REDQ,
    REINFORCE,
    SAC,
    TD3,
    TQC,
    TRPO,
    Algorithm,
    DiscreteSAC,
    DoubleDQN,
    RecurrentPPO,
)
from rltrainer.errors import ParamsError, RLTrainerError, field_error_text
from rltrainer.names import did_you_mean

ALGORITHMS: dict[str, type[Algorithm]] = {
    "a2c": A2C, "c51": C51, "ddpg": DDPG, "discrete_sac": DiscreteSAC, "double_dqn": DoubleDQN, "dqn": DQN,
    "impala": IMPALA, "ppo": PPO, "qrdqn": QRDQN, "recurrent_ppo": RecurrentPPO, "redq": REDQ, "reinforce": REINFORCE,
    "sac": SAC, "td3": TD3, "tqc": TQC, "trpo": TRPO,
}  # fmt: skip


def algorithms_for(envs: Any) -> list[str]:
    """Return the names of the algorithms whose policies take the spaces of these envs."""
    return [name for name, cls in ALGORITHMS.items() if _takes(name, cls, envs)]


def _takes(name: str, cls: type[Algorithm], envs: Any) -> bool:
    options = {"v_min": 0.0, "v_max": 1.0} if name == "c51" else {}
    try:
        cls.policy_class.for_envs(envs, **options)
    except RLTrainerError:
        return False
    return True


def algorithm_named(owner: str, name: Any) -> type[Algorithm]:
    """Return an algorithm by its name; a `ParamsError` of this owner says which one may be meant."""
    if isinstance(name, str) and name in ALGORITHMS:
        return ALGORITHMS[name]
    hint = did_you_mean(name.lower(), ALGORITHMS).strip() if isinstance(name, str) else ""
    hint = next((f"Write its name, {each!r}." for each, cls in ALGORITHMS.items() if cls is name), hint)
    raise ParamsError(field_error_text(owner, "algorithm", f"must be one of {', '.join(ALGORITHMS)}", name, hint))
