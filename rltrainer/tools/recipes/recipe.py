"""Recipes: all settings of a training as data, in an env or from logged data."""

import contextlib
import dataclasses
import math
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, cast

import gymnasium as gym
import torch

from rltrainer.algorithms import Algorithm, AlgorithmParams, OffPolicyAlgorithm, OnPolicyAlgorithm, load
from rltrainer.collect import Collector
from rltrainer.collect.episode_infos import Keys, checked_keys
from rltrainer.data import HindsightReplayBuffer, MixedBuffer, PrioritizedReplayBuffer, ReplayBuffer
from rltrainer.data.memory_forecast import device_for_data
from rltrainer.device import AnyDevice, require_device, resolve_device
from rltrainer.envs import TensorEnv
from rltrainer.envs.make_vec import Backend, env_remedy, make_vec, single_env, spec_of
from rltrainer.envs.wrappers import wrappers_named
from rltrainer.errors import CheckpointError, ParamsError, SpaceError
from rltrainer.loggers import RunFolder
from rltrainer.nets import Policy
from rltrainer.seeding import seed as seed_everything
from rltrainer.spaces import spaces_mismatch
from rltrainer.state.params import Params
from rltrainer.tools.datasets import load as load_data
from rltrainer.tools.recipes.algorithms import OFFLINE, algorithm_named, algorithms_for, name_of, policy_of
from rltrainer.tools.runs import open_run
from rltrainer.trainers import (
    OfflineTrainerParams,
    OffPolicyTrainerParams,
    OnlineTrainerParams,
    OnPolicyTrainerParams,
    Trainer,
    TrainerParams,
)
from rltrainer.validation.field_rules import (
    AnyPath,
    AnyText,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    Rule,
    checked,
    field_hints,
    instance_of,
    is_finite,
)
from rltrainer.validation.suggestions import argument_names, did_you_mean, nearest

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
AnyEnv = Annotated[
    str | VectorEnv | Callable[[], gym.Env[Any, Any] | TensorEnv | VectorEnv],
    Rule(
        "a gymnasium id, a factory of envs, or a vector env",
        lambda v: callable(v) or isinstance(v, gym.vector.VectorEnv) or (isinstance(v, str) and v.strip() != ""),
        lambda v: env_remedy(v),
    ),
]
Options = Annotated[
    Mapping[str, Any],
    Rule("a dict of options by name", lambda v: isinstance(v, dict) and all(isinstance(name, str) for name in v)),
]
Wrappers = Annotated[
    Sequence[str | Mapping[str, Any]],
    Rule(
        "a sequence of names of wrappers, or of dicts of a name as 'wrapper' and its arguments",
        lambda v: isinstance(v, tuple | list) and all(isinstance(each, str | dict) for each in v),
    ),
]
"""Names of wrappers, or dicts of a name as `wrapper` and its arguments; the first one is innermost."""


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AnyRecipe(Params):
    """All settings of a training, in an env or from logged data, as data: `recipe.make_trainer().run()`.

    A field that breaks its rule raises a `ParamsError`.
    """

    algorithm: str | type[Algorithm]
    """Name of the algorithm, such as "ppo"; or a class of your own."""
    env: AnyEnv | None
    """The env: a gymnasium id, a factory, or a vector env or its factory."""
    env_kwargs: Options = dataclasses.field(default_factory=dict)
    """Arguments of the env; only with an id."""
    backend: Backend = "auto"
    """The way envs are stepped; see `make_vec`."""
    device: AnyDevice = "auto"
    """Where networks live, and the replay buffer if it fits: "cpu", "cuda", or one GPU of several, "cuda:1". "auto"
    takes the GPU, if there is one, for images, for networks of at least 50,000 parameters, and for envs of tensors."""
    wrappers: Wrappers = ()
    """Wrappers of each env, by name: `["FlattenObservation", {"wrapper": "TimeLimit", "max_episode_steps": 100}]`."""
    test_wrappers: Wrappers | None = None
    """Wrappers of the envs of test steps, in place of `wrappers`; None takes those too."""
    max_episode_steps: PositiveInt | None = None
    """Steps after which an episode is truncated. Where this and the env set no limit, test episodes have one of 10,000
    steps."""
    info_keys: Keys | AnyText = ()
    """Keys of the infos with which episodes end, whose means are logged beside returns, such as `("is_success",)`."""
    max_epochs: PositiveInt = 20
    """Epochs, each of which ends with a test step; rounded so that all have equally many whole collections."""
    test_step_num_episodes: PositiveInt = 10
    """Episodes of a test step, each in an env of its own."""
    params: Annotated[
        AlgorithmParams, instance_of(AlgorithmParams, hint="Write PPOParams(...), or those of your algorithm.")
    ]
    """Hyperparameters of the algorithm."""
    policy: Options = dataclasses.field(default_factory=dict)
    """Options of the policy, as its class's `for_envs` takes them."""
    start: AnyPath | None = None
    """A saved algorithm whose networks, statistics and optimizers continue: a file, a checkpoint, or a run's folder,
    for its best algorithm."""
    trainer: Options = dataclasses.field(default_factory=dict)
    """Fields of the trainer's params. `initial_test` is False without `start`: an untrained network is never best."""
    seed: NonNegativeInt = 0
    """Seed of networks, envs and all that is drawn."""
    source: AnyText = "own"
    """Origin of the settings."""
    published_score: FiniteFloat | None = None
    """Mean return that the source reports; None where it does not."""
    published_as: str = ""
    """Conditions of the published score: the env's version, runs, steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "algorithm", name_of(self.algorithm))
        cls = self.algorithm_class
        # `object` sets a frozen field; tuples and text equal what a file restores.
        for field in ("wrappers", "test_wrappers"):
            if (data := getattr(self, field)) is not None:
                wrappers_named(type(self).__name__, field, data)
                object.__setattr__(self, field, tuple(data))
        if taken := sorted(self.env_kwargs.keys() & {"env", "num_envs", "backend", "device", "seed", "wrappers"}):
            hint = f"The recipe has a field for it: {taken[0]}=..." if hasattr(self, taken[0]) else ""
            self.raise_invalid("env_kwargs", f"must be arguments of the env, and have no {taken[0]!r}", hint)
        keys = (self.info_keys,) if isinstance(self.info_keys, str) else self.info_keys
        object.__setattr__(self, "info_keys", checked_keys(type(self).__name__, keys))
        for field in ("start", "data"):
            if isinstance(path := getattr(self, field, None), os.PathLike):
                object.__setattr__(self, field, os.fspath(path))
        if self.start is not None and self.policy:
            self.raise_invalid("policy", "must have no options where a saved algorithm continues")
        if type(self.params) is not cls.params_class:
            self.raise_invalid("params", f"must be {cls.params_class.__name__}, as {cls.__name__} has")
        for field in ("policy", "trainer"):
            for name in getattr(self, field):
                if name not in (known := self.fields_by_owner()[field]):
                    self.raise_invalid(field, f"has no option {name!r}", did_you_mean(name, known).strip())
        params_class = self.trainer_params_class
        for name, value in self.trainer.items():
            checked(params_class.__name__, name, value, field_hints(params_class)[name])

    @classmethod
    def from_json(cls, text: str, **live: Any) -> Self:
        """Rebuild a recipe from `to_json` text; takes and raises what `Params.from_json` does.

        Gymnasium would import a module that an env's id names (`my_package:MyEnv-v0`), so pass such an `env` instead.
        """
        recipe = super().from_json(text, **live)
        if "env" not in live and ":" in recipe.env_name:
            recipe.raise_invalid("env", "must name no module in text that is read", "Pass it: env=...")
        return recipe

    @property
    def name(self) -> str:
        """The name of the recipe, such as "ppo/CartPole-v1"."""
        return f"{self.algorithm_name}/{self.env_name}"

    @property
    def algorithm_name(self) -> str:
        """The name of the algorithm, or of its class."""
        return self.algorithm if isinstance(self.algorithm, str) else self.algorithm.__name__

    @property
    def env_name(self) -> str:
        """The env's id, or the name of its factory."""
        return self.env if isinstance(self.env, str) else getattr(self.env, "__name__", type(self.env).__name__)

    @property
    @abstractmethod
    def trainer_params_class(self) -> type[TrainerParams]:
        """The class of the trainer's params."""

    @property
    def length(self) -> str:
        """The length of the run in words, rounded up to whole collections and epochs."""
        _, collection, unit = self._steps()
        epochs = {**self._epochs(), **self.trainer}
        per_epoch = math.ceil(epochs["epoch_num_steps"] / collection) * collection
        return f"{epochs['max_epochs'] * per_epoch:,} {unit}"

    @property
    def algorithm_class(self) -> type[Algorithm]:
        """The class of the algorithm."""
        return algorithm_named(type(self).__name__, self.algorithm)

    def with_fields(self, **fields: Any) -> Self:
        """Return a copy with other values of fields: the recipe's own, the algorithm's, the trainer's, the policy's.

        Each goes by its own name, wherever it belongs: `num_envs=16, lr=1e-3, batch_size=64`. A name or value that
        breaks its rule is a `ParamsError`.
        """
        known = self.fields_by_owner()
        changes: dict[str, dict[str, Any]] = {owner: {} for owner in known}
        for name, value in fields.items():
            owner = next((owner for owner, names in known.items() if name in names), None)
            if owner is None:
                raise ParamsError(f"Recipe {self.name}: has no field {name!r}.{self._field_hint(name)}")
            changes[owner][name] = value
        # A saved algorithm keeps its networks: options of the recipe's policy do not apply to them.
        own_policy = {} if changes[""].get("start") is not None else self.policy
        return dataclasses.replace(
            self,
            params=dataclasses.replace(self.params, **changes["params"]),
            trainer={**self.trainer, **changes["trainer"]},
            policy={**own_policy, **changes["policy"]},
            **changes[""],
        )

    def make_trainer(self, **live: Any) -> Trainer[Any, Any]:
        """Return the trainer; `live` has further fields of its params: `run_folder`, `logger`, `hooks`, callbacks."""
        if self.device != "auto":
            require_device(type(self).__name__, self.device)  # before envs are made
        earlier: dict[str, str] = {}
        if isinstance(folder := live.get("run_folder"), RunFolder):
            with contextlib.suppress(CheckpointError):  # a run that has not begun
                earlier = open_run(folder.path).devices
        if self.backend == "tensor" and self.device == "auto":  # before the networks: envs of tensors have a device
            device = resolve_device(type(self).__name__, "auto", None, None, "tensor", earlier.get("networks"))
            return dataclasses.replace(self, device=str(device)).make_trainer(**live)
        # Before the networks: torch's global generator draws their weights.
        seed_everything(self.seed)
        policy, fields = self._parts(earlier)
        shared = {"test_step_num_episodes": self.test_step_num_episodes, "seed": self.seed}
        shared["initial_test"] = self.start is not None  # an untrained network is never the best
        params: Any = self.trainer_params_class(**{**fields, **shared, **self.trainer, **live})
        algorithm: Algorithm = cast(Any, self.algorithm_class)(policy, self.params)
        if self.start is not None:
            algorithm.load_state_dict(self._saved(self.start).state_dict())
        return params.create_trainer(algorithm)  # type: ignore[no-any-return]  # of params that may be any

    @abstractmethod
    def _parts(self, earlier: Mapping[str, str]) -> tuple[Policy, dict[str, Any]]:
        """Return the policy, and new fields of the trainer's params: collectors, buffer, epochs.

        `earlier` are the devices of the run to resume: see `Run.devices`.
        """

    @abstractmethod
    def _steps(self) -> tuple[int, int, str]:
        """Return the steps of the run and of a collection, and their unit."""

    def _epochs(self) -> dict[str, int]:
        """Split the run into about `max_epochs` equal epochs of whole collections, rounded up."""
        num_steps, collection, _ = self._steps()
        num_collections, wanted = math.ceil(num_steps / collection), self.max_epochs
        # Epochs of `fewer` collections are at least as many as wanted, epochs of one more at most as many. The nearer
        # number of epochs is taken; if both are as near, the one with fewer steps.
        fewer = num_collections // wanted
        candidates = [(-(-num_collections // size), size) for size in (fewer, fewer + 1) if size > 0]
        count, size = min(candidates, key=lambda each: (abs(each[0] - wanted), each[0] * each[1]))
        return {"max_epochs": count, "epoch_num_steps": size * collection}

    def _place(self, policy: Policy, earlier: Mapping[str, str]) -> Policy:
        """Move a policy to its device; algorithm and collectors follow it."""
        owner, kept = type(self).__name__, earlier.get("networks")
        return policy.to(resolve_device(owner, self.device, policy, policy.observation_space, self.backend, kept))

    def _device_of_buffer(self, nbytes: int, policy: Policy, earlier: Mapping[str, str]) -> torch.device:
        """Return the policy's device if a buffer of so many bytes fits there, and did so when the run started."""
        has_no_room = earlier.get("buffer") == "cpu" and earlier.get("networks") == str(policy.device)
        return torch.device("cpu") if has_no_room else device_for_data(nbytes, policy.device)

    def _make_policy(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> Policy:
        """Return the policy with the recipe's options, or the policy of the saved algorithm that continues."""
        if self.start is not None:
            return self._saved(self.start).policy
        try:
            shared = {name: getattr(self.params, name) for name in self.algorithm_class.shared_options}
            options = {**self.algorithm_class.policy_options, **shared, **self.policy}
            return policy_of(self.algorithm).for_spaces(observation_space, action_space, **options)
        except SpaceError as error:
            others = ", ".join(algorithms_for(observation_space, action_space)) or "none"
            problem = str(error).removesuffix(".")
            raise SpaceError(f"{problem}. Of the algorithms, these spaces are taken by: {others}.") from error
        except RuntimeError as error:  # of PyTorch, which has no class for it on the CPU
            if "alloc" not in str(error) and "memory" not in str(error):
                raise
            rule = "must make networks that fit into memory"
            raise ParamsError.about(type(self).__name__, "policy", rule, self.policy, str(error)) from error

    def _saved(self, path: str | os.PathLike[str]) -> Algorithm:
        cls = self.algorithm_class
        saved = load(Path(path), classes=[cls])
        if not isinstance(saved, cls):
            hint = f"It is a {type(saved).__name__}: name that."
            self.raise_invalid("start", f"must be a saved {cls.__name__}", hint)
        return saved

    def make_envs(self, num_envs: int, *, for_tests: bool = False, seed: int | None = None) -> Any:
        """Return a vector env of training, or of test steps."""
        options: Any = {"seed": seed, "wrappers": self._wrappers(for_tests), **self.env_kwargs}
        if self.backend == "tensor" and self.device != "auto":
            options["device"] = self.device
        return vector_env(type(self).__name__, self.env, num_envs, backend=self.backend, **options)

    def make_env(self, **env_kwargs: Any) -> gym.Env[Any, Any]:
        """Return one env like the envs of test steps, with further arguments, such as `render_mode="rgb_array"`."""
        return single_env(cast(Any, self.env), self._wrappers(for_tests=True), **{**self.env_kwargs, **env_kwargs})

    def _wrappers(self, for_tests: bool) -> list[Any]:
        data = self.wrappers if self.test_wrappers is None or not for_tests else self.test_wrappers
        limit = {"wrapper": "TimeLimit", "max_episode_steps": self.max_episode_steps}
        data = [*data, *([] if self.max_episode_steps is None else [limit])]
        return wrappers_named(type(self).__name__, "wrappers", data)

    def _test_collector(self, policy: Policy, envs: VectorEnv) -> Collector:
        """Return the collector of test steps, with a limit so that all episodes end."""
        knows_limit = self.max_episode_steps is not None or self.backend in ("tensor", "envpool")
        if isinstance(self.env, str) and not knows_limit:
            spec = spec_of(self.env)
            knows_limit = bool(spec.max_episode_steps or spec.kwargs.get("max_num_frames_per_episode"))  # Atari's
        limit = None if knows_limit or envs.num_envs < self.test_step_num_episodes else MAX_TEST_STEPS
        return Collector(policy, envs, info_keys=self.info_keys, max_episode_steps=limit)

    def fields_by_owner(self) -> dict[str, list[str]]:
        """Return the names that `with_fields` takes, of the recipe (""), and of its `params`, `trainer`, `policy`."""
        made = ("seed", "max_epochs", "test_step_num_episodes", "checkpoint")
        of_trainer = dataclasses.fields(self.trainer_params_class)
        of_policy = argument_names(policy_of(self.algorithm).__init__)[0]
        own = [field.name for field in dataclasses.fields(self) if field.name not in ("params", "policy", "trainer")]
        shared = self.algorithm_class.shared_options  # in the params
        return {
            "": own,
            "params": [field.name for field in dataclasses.fields(self.params)],
            "trainer": [field.name for field in of_trainer if field.compare and field.name not in made],
            "policy": [name for name in of_policy if name not in ("observation_space", "action_space", *shared)],
        }

    def field_names(self) -> list[str]:
        """Return the names that `with_fields` takes."""
        return sorted(set().union(*self.fields_by_owner().values()))

    def live_fields(self) -> set[str]:
        """Return the names of the trainer's fields that are no data: callbacks, hooks, logger, checkpoints."""
        made = {"training_collector", "test_collector", "buffer", "run_folder"}
        live = {field.name for field in dataclasses.fields(self.trainer_params_class) if not field.compare}
        return live - made | {"checkpoint"}

    def _field_hint(self, name: str) -> str:
        """Return a sentence on the name that may be meant instead of an unknown one."""
        of_train = ("data", "folder")
        others = {*self.live_fields(), *of_train}
        if (meant := nearest(name, {*self.field_names(), *others})) not in others:
            return did_you_mean(name, self.field_names())
        also = "rl.train" if meant in of_train else "make_trainer, and of rl.train"
        return f"{f' Did you mean {meant!r}?' * (meant != name)} It is an argument of {also}."


def vector_env(owner: str, env: Any, num_envs: int, **options: Any) -> VectorEnv:
    """Return a given vector env, or a factory's, as it is (wrappers for it are a `ParamsError`); else `make_vec`'s."""
    made = env
    if callable(env) and (not isinstance(env, type) or issubclass(env, gym.vector.VectorEnv)):
        with contextlib.suppress(Exception, SystemExit):  # make_vec says which env cannot be made
            made = env()
    if not isinstance(made, gym.vector.VectorEnv):
        if made is not env and hasattr(made, "close"):
            made.close()
        return make_vec(env, num_envs, **options)
    if options.get("wrappers"):
        hint = "Wrap it yourself; a time limit is a wrapper, too."
        raise ParamsError.about(owner, "wrappers", "must be none for a vector env", options["wrappers"], hint)
    if env_kwargs := {name: options[name] for name in options.keys() - {"backend", "device", "seed", "wrappers"}}:
        raise ParamsError.about(owner, "env_kwargs", "must be none for a vector env", env_kwargs)
    return made


MAX_CAPACITY = 1_000_000
# Field of the trainer's params: the env steps of all envs in a rollout.
SIZE = "collection_step_num_env_steps"
# Steps after which test episodes are truncated if nothing else limits them.
MAX_TEST_STEPS = 10_000
BUFFERS = {None: ReplayBuffer, "hindsight": HindsightReplayBuffer, "prioritized": PrioritizedReplayBuffer}
AnyBuffer = Annotated[
    str | type[ReplayBuffer] | ReplayBuffer,
    Rule(
        "'hindsight', 'prioritized', or a ReplayBuffer or its class",
        lambda v: (isinstance(v, str) and v in BUFFERS) or isinstance(v, ReplayBuffer)
        or (isinstance(v, type) and issubclass(v, ReplayBuffer)),
    ),
]  # fmt: skip
Data = Annotated[
    str | os.PathLike[str] | ReplayBuffer,
    Rule(
        "a file or folder of data, the name of a Minari data set, or a ReplayBuffer",
        lambda v: isinstance(v, ReplayBuffer | os.PathLike) or (isinstance(v, str) and v.strip() != ""),
    ),
]
Share = Annotated[float, Rule("a number between 0 and 1", lambda v: is_finite(v) and 0 < v < 1)]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(AnyRecipe):
    """All settings of a run in an env, as data: `recipe.make_trainer().run()`. Raises as `AnyRecipe`."""

    env: AnyEnv
    """The env: a gymnasium id, a factory, or a vector env or its factory."""
    num_env_steps: PositiveInt
    """Env steps of the whole run, rounded up to whole collections and whole epochs."""
    num_envs: PositiveInt = 1
    """Copies of the env that are stepped together. On policy, `with_fields` keeps the steps of each in a rollout."""
    buffer: AnyBuffer | None = None
    """The replay buffer, off policy: "hindsight", "prioritized", a class, or a buffer; None draws uniformly."""
    capacity: PositiveInt | None = None
    """Transitions in the replay buffer, off policy; None takes all of the run, up to a million."""
    frame_stack: PositiveInt | None = None
    """Frames in an observation, where it is a stack of them: the replay buffer stores each once."""
    data: Data | None = None
    """Earlier data to learn from as well, off policy: a file or folder as `rl.datasets.load` reads it, the name of a
    Minari data set, or a buffer."""
    offline_share: Share | None = None
    """Share of `data` in each batch, 0.5 in RLPD; it needs `data`, and `data` needs it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) != (self.offline_share is None):
            missing, given = ("data", "offline_share") if self.data is None else ("offline_share", "data")
            self.raise_invalid(missing, f"must be given with {given}", "RLPD draws half of each batch from data: 0.5.")
        if self.data is not None and self.trainer_params_class is OnPolicyTrainerParams:
            self.raise_invalid("data", "must be None on policy", "Take redq, sac or another off-policy algorithm.")
        # BC learns from data only; the others can improve online.
        has_begun = self.start is not None or self.data is not None
        if self.algorithm in OFFLINE and (not has_begun or self.algorithm == "bc"):
            hint = 'Give it data: rl.train(..., data="logged.safetensors"), rltrainer train ... --data FILE.'
            self.raise_invalid("algorithm", "must be one that trains in an env", hint)
        if self.buffer is not None and self.trainer_params_class is OnPolicyTrainerParams:
            self.raise_invalid("buffer", "must be None on policy")

    @property
    def trainer_params_class(self) -> type[OnlineTrainerParams]:
        """The class of the trainer's params."""
        is_on_policy = issubclass(self.algorithm_class, OnPolicyAlgorithm)
        return OnPolicyTrainerParams if is_on_policy else OffPolicyTrainerParams

    @property
    def num_rows(self) -> int | None:
        """Env steps of each env in a rollout; None off policy, and for rollouts of whole episodes."""
        cls = self.trainer_params_class
        num_steps = self.trainer.get(SIZE, getattr(cls, SIZE)) if cls is OnPolicyTrainerParams else None
        return None if num_steps is None else math.ceil(num_steps / self.num_envs)

    def with_fields(self, **fields: Any) -> Self:
        """Return a copy with other values of fields, as `AnyRecipe.with_fields` does.

        With another `num_envs` a rollout keeps the env steps of each env, unless `fields` give its size.
        """
        made, num_rows = super().with_fields(**fields), self.num_rows
        if made.num_envs == self.num_envs or num_rows is None or SIZE in fields:
            return made
        return dataclasses.replace(made, trainer={**made.trainer, SIZE: num_rows * made.num_envs})

    def _parts(self, earlier: Mapping[str, str]) -> tuple[Policy, dict[str, Any]]:
        envs = self.make_envs(self.num_envs)
        if envs.num_envs != self.num_envs:
            self.raise_invalid("num_envs", f"must be {envs.num_envs}, as the vector env has")
        spaces = envs.single_observation_space, envs.single_action_space
        policy, buffer = self._place(self._make_policy(*spaces), earlier), None
        if self.trainer_params_class is OffPolicyTrainerParams:
            buffer = self._make_buffer(spaces, policy, earlier)
            if self.data is not None:
                buffer = MixedBuffer(buffer, self._read_data(buffer), cast(float, self.offline_share))
        fields = {"training_collector": Collector(policy, envs, buffer, info_keys=self.info_keys), **self._epochs()}
        if envs is not self.env:  # tests need envs of their own
            test_envs = self.make_envs(self.test_step_num_episodes, for_tests=True)
            fields["test_collector"] = self._test_collector(policy, test_envs)
        return policy, fields

    def _make_buffer(self, spaces: Any, policy: Policy, earlier: Mapping[str, str]) -> Any:
        if isinstance(self.buffer, ReplayBuffer):
            return self.buffer
        cls: Any = BUFFERS.get(cast(Any, self.buffer), self.buffer)
        size = max(self.capacity or min(self.num_env_steps, MAX_CAPACITY), self.num_envs)
        options: Any = {"num_envs": self.num_envs, "frame_stack": self.frame_stack}
        options["device"] = self._device_of_buffer(cls.forecast_nbytes(size, *spaces, **options), policy, earlier)
        if issubclass(cls, HindsightReplayBuffer):
            if isinstance(self.env, gym.vector.VectorEnv):
                hint = "Pass a factory, or rl.HindsightReplayBuffer(...) with its functions."
                self.raise_invalid("buffer", "must be made with the functions of a single env", hint)
            one = single_env(cast(Any, self.env), self._wrappers(for_tests=False), **self.env_kwargs)
            return cls.for_env(one, size, **options)
        return cls(size, *spaces, **options)

    def _read_data(self, online: ReplayBuffer) -> ReplayBuffer:
        """Return the data beside an online buffer; a `SpaceError` for other spaces, a `NonFiniteError` for NaN."""
        spaces = {"observation_space": online.observation_space, "action_space": online.action_space}
        data = self.data if isinstance(self.data, ReplayBuffer) else load_data(cast(str, self.data), **spaces)
        if mismatch := spaces_mismatch(f"{type(self).__name__}.data", online, data):
            raise SpaceError(f"{mismatch}. The data must be of this env.")
        data.check_finite()
        return data.to(online.device)

    def _steps(self) -> tuple[int, int, str]:
        num_steps = self.trainer.get(SIZE, getattr(self.trainer_params_class, SIZE))
        # Collections of whole episodes, None, have no number of steps.
        collection = 1 if num_steps is None else math.ceil(num_steps / self.num_envs) * self.num_envs
        return self.num_env_steps, collection, "env steps"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class OfflineRecipe(AnyRecipe):
    """All settings of a run on logged data, as data: `recipe.make_trainer().run()`. Raises as `AnyRecipe`."""

    env: AnyEnv | None = None
    """The env of test steps: a gymnasium id, or a factory. None makes no test steps, so that no algorithm is best."""
    data: Data
    """The data: a file or folder as `rl.datasets.load` reads it, the name of a Minari data set, or a buffer."""
    num_gradient_steps: PositiveInt = 100_000
    """Gradient steps of the whole run, rounded up to whole epochs."""
    trainer_params_class = OfflineTrainerParams

    def __post_init__(self) -> None:
        super().__post_init__()
        if not issubclass(self.algorithm_class, OffPolicyAlgorithm):
            hint = "It learns from its own steps only. Take sac, td3bc, iql, discrete_cql or another off-policy one."
            self.raise_invalid("algorithm", "must be one that learns from data", hint)

    @property
    def env_name(self) -> str:
        """The env's id, or the name of its factory; without an env, the data's name."""
        if self.env is not None:
            return super().env_name
        return "buffer" if isinstance(self.data, ReplayBuffer) else Path(self.data).stem

    def _parts(self, earlier: Mapping[str, str]) -> tuple[Policy, dict[str, Any]]:
        envs, spaces = None, {}
        if self.env is not None:
            envs = self.make_envs(self.test_step_num_episodes, for_tests=True)
            spaces = {"observation_space": envs.single_observation_space, "action_space": envs.single_action_space}
        # The spaces of the test envs are for data that declare none.
        buffer = self.data if isinstance(self.data, ReplayBuffer) else load_data(self.data, **spaces)
        policy = self._place(self._make_policy(buffer.observation_space, buffer.action_space), earlier)
        if buffer is not self.data:  # a buffer of the user's lies where the user wants it
            buffer = buffer.to(self._device_of_buffer(buffer.nbytes, policy, earlier))
        tests = {} if envs is None else {"test_collector": self._test_collector(policy, envs)}
        return policy, {"buffer": buffer, **tests, **self._epochs()}

    def _steps(self) -> tuple[int, int, str]:
        return self.num_gradient_steps, 1, "gradient steps"
