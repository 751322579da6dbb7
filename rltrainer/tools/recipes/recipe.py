"""A recipe of a training in an env: how many steps, of how many envs, with how large a buffer."""

import dataclasses
import math
from typing import Any

from rltrainer.algorithms import OnPolicyAlgorithm
from rltrainer.collect import Collector
from rltrainer.data import ReplayBuffer
from rltrainer.nets import Policy
from rltrainer.tools.recipes.algorithms import OFFLINE
from rltrainer.tools.recipes.any_recipe import AnyEnv, AnyRecipe, whole_epochs
from rltrainer.trainers import OffPolicyTrainerParams, OnlineTrainerParams, OnPolicyTrainerParams
from rltrainer.validation.field_rules import PositiveInt

MAX_CAPACITY = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(AnyRecipe):
    """All that makes a training in an env, as data: `recipe.make_trainer().run()`.

    Raises:
        ParamsError: a value breaks its field's rule, or an option is none of the policy's or trainer's.
    """

    env: AnyEnv
    """The env: a gymnasium id, or a factory."""
    num_env_steps: PositiveInt
    """Env steps of the whole training, rounded up to whole collections and whole epochs."""
    num_envs: PositiveInt = 1
    """Copies of the env that are stepped together."""
    capacity: PositiveInt | None = None
    """Transitions in the replay buffer, off policy; None takes all of the run, up to a million."""
    frame_stack: PositiveInt | None = None
    """Frames in an observation, where it is a stack of them: the replay buffer stores each once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.algorithm in OFFLINE:
            hint = 'Give it data: rl.train(..., data="logged.safetensors"), rltrainer train ... --data FILE.'
            self.raise_invalid("algorithm", "must be one that trains in an env", hint)

    @property
    def trainer_params_class(self) -> type[OnlineTrainerParams]:
        """The class of the trainer's params."""
        is_on_policy = issubclass(self._algorithm_class(), OnPolicyAlgorithm)
        return OnPolicyTrainerParams if is_on_policy else OffPolicyTrainerParams

    @property
    def length(self) -> str:
        """The length of the training in words: of the whole collections and epochs that it comes to."""
        epochs, collection = {**self._epochs(), **self.trainer}, self._collection()
        per_epoch = epochs["epoch_num_steps"]
        if collection is not None:
            per_epoch = math.ceil(per_epoch / collection) * collection
        return f"{epochs['max_epochs'] * per_epoch:,} env steps"

    def _parts(self) -> tuple[Policy, dict[str, Any]]:
        envs = self.make_envs(self.num_envs)
        test_envs = self.make_envs(self.test_step_num_episodes, for_tests=True)
        spaces = envs.single_observation_space, envs.single_action_space
        policy, buffer = self._make_policy(*spaces), None
        if self.trainer_params_class is OffPolicyTrainerParams:
            size = max(self.capacity or min(self.num_env_steps, MAX_CAPACITY), self.num_envs)
            buffer = ReplayBuffer(size, *spaces, num_envs=self.num_envs, frame_stack=self.frame_stack)
        collectors = {
            "training_collector": Collector(policy, envs, buffer, info_keys=self.info_keys),
            "test_collector": Collector(policy, test_envs, info_keys=self.info_keys),
        }
        return policy, {**collectors, **self._epochs()}

    def _epochs(self) -> dict[str, int]:
        """Return epochs of equally many whole collections, of `num_env_steps` in all or a little more."""
        collection = self._collection() or 1
        return whole_epochs(-(-self.num_env_steps // collection), self.max_epochs, collection)

    def _collection(self) -> int | None:
        """Return the env steps of a collection; None if it is of whole episodes."""
        fields = {field.name: field.default for field in dataclasses.fields(self.trainer_params_class)}
        num_steps = {**fields, **self.trainer}["collection_step_num_env_steps"]
        return None if num_steps is None else math.ceil(num_steps / self.num_envs) * self.num_envs
