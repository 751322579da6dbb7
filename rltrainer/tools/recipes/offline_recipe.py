"""A recipe of a training from logged data: what data, how many gradient steps, and where the agent is tested."""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym

from rltrainer.algorithms import OffPolicyAlgorithm
from rltrainer.collect import Collector
from rltrainer.data import ReplayBuffer
from rltrainer.nets import Policy
from rltrainer.tools.datasets import load
from rltrainer.tools.recipes.any_recipe import AnyEnv, AnyRecipe, whole_epochs
from rltrainer.trainers import OfflineTrainerParams
from rltrainer.validation.field_rules import PositiveInt, Rule

Data = Annotated[
    str | os.PathLike[str] | ReplayBuffer,
    Rule(
        "a file or folder of data, the name of a Minari data set, or a ReplayBuffer",
        lambda v: isinstance(v, ReplayBuffer | os.PathLike) or (isinstance(v, str) and v.strip() != ""),
    ),
]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OfflineRecipe(AnyRecipe):
    """All that makes a training from logged data, as data: `recipe.make_trainer().run()`.

    Raises:
        ParamsError: a value breaks its field's rule, or an option is none of the policy's or trainer's.
    """

    env: AnyEnv | None = None
    """The env of test steps: a gymnasium id, or a factory. None makes no test steps, so that no algorithm is best."""
    data: Data
    """The data: a file or folder as `rl.datasets.load` reads it, the name of a Minari data set, or a buffer."""
    num_gradient_steps: PositiveInt = 100_000
    """Gradient steps of the whole training, rounded up to whole epochs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.data, os.PathLike):
            object.__setattr__(self, "data", os.fspath(self.data))  # frozen, and equal to what a file brings back
        if not issubclass(self._algorithm_class(), OffPolicyAlgorithm):
            hint = "It learns from its own steps only. Take sac, td3bc, iql, discrete_cql or another off-policy one."
            self.raise_invalid("algorithm", "must be one that learns from data", hint)

    @property
    def env_name(self) -> str:
        """The env's id, or the name of its factory; without an env that of the data."""
        if self.env is not None:
            return super().env_name
        return "buffer" if isinstance(self.data, ReplayBuffer) else Path(self.data).stem

    @property
    def trainer_params_class(self) -> type[OfflineTrainerParams]:
        """The class of the trainer's params."""
        return OfflineTrainerParams

    @property
    def length(self) -> str:
        """The length of the training in words: of the whole epochs that it comes to."""
        epochs = {**self._epochs(), **self.trainer}
        return f"{epochs['max_epochs'] * epochs['epoch_num_steps']:,} gradient steps"

    def _parts(self) -> tuple[Policy, dict[str, Any]]:
        test_envs = None if self.env is None else self.make_envs(self.test_step_num_episodes, for_tests=True)
        buffer = self.data if isinstance(self.data, ReplayBuffer) else load(self.data, **_spaces_of(test_envs))
        policy = self._make_policy(buffer.observation_space, buffer.action_space)
        tests = {} if test_envs is None else {"test_collector": Collector(policy, test_envs, info_keys=self.info_keys)}
        return policy, {"buffer": buffer, **tests, **self._epochs()}

    def _epochs(self) -> dict[str, int]:
        return whole_epochs(self.num_gradient_steps, self.max_epochs)


def _spaces_of(envs: Any) -> dict[str, gym.Space[Any]]:
    """Return the spaces of test envs, by which data is read that says less of them; nothing without envs."""
    if envs is None:
        return {}
    return {"observation_space": envs.single_observation_space, "action_space": envs.single_action_space}
