"""Evaluation in envs of its own, beside the test steps, while a run trains."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import gymnasium as gym
import torch

from rltrainer.algorithms import Algorithm
from rltrainer.collect import Collector
from rltrainer.collect.episode_infos import checked_keys, with_success
from rltrainer.envs import make_vec
from rltrainer.envs.deferred_envs import opened
from rltrainer.errors import ParamsError
from rltrainer.hooks.hook import TrainerContext, TrainerHook
from rltrainer.interval import Every, as_every
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, Rule, a_callable, checked

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
AnyEnvs = Annotated[
    Any,
    Rule(
        "a vector env, a gymnasium id or a factory of envs",
        lambda v: isinstance(v, gym.vector.VectorEnv) or (isinstance(v, str) and bool(v)) or callable(v),
    ),
]
TAKEN = ("training", "test", "update", "epoch", "params", "gpu")
RowName = Annotated[
    str,
    Rule(
        f"a name of letters, digits and _ other than {', '.join(TAKEN)}",
        lambda v: isinstance(v, str) and v.isidentifier() and v not in TAKEN,
    ),
]
SaveBestFn = Annotated[Callable[[Algorithm], Any], a_callable("(algorithm)")]
MOST_ENVS = 10


@dataclasses.dataclass
class _EvaluateState:
    best_score: float | None = None

    def problem(self) -> str | None:
        return "best_score: NaN is never the best" if self.best_score != self.best_score else None


class Evaluate(TrainerHook):
    """Plays whole episodes in other envs, without exploration, at the end of a training step, and logs their means.

    With the name `"hard"` a log has `hard/return`, `hard/length`, the `info_keys`, and `hard/is_success` or
    `hard/success` if the envs report it. Each interval plays the same episodes; they change no bit of the run.

    Args:
        envs: a vector env of its own, in any autoreset mode; or a gymnasium id or a factory, which makes as many envs
            as episodes, ten at most.
        name: of the rows, and of its state in checkpoints; several hooks need several names.
        save_best_fn: called with the algorithm whenever the mean return here is strictly better than all before.
        info_keys: see `Collector`.
        seed: of the episodes; None takes the trainer's.

    Raises:
        ParamsError: an argument breaks its rule; or, when the run starts, the envs belong to one of its collectors.
    """

    state_class = _EvaluateState

    def __init__(
        self,
        envs: VectorEnv | str | Callable[[], gym.Env[Any, Any]],
        every: int | Every = Every(1, "epoch"),
        *,
        num_episodes: int = 10,
        name: str = "evaluation",
        save_best_fn: Callable[[Algorithm], Any] | None = None,
        info_keys: Sequence[str] = (),
        seed: int | None = None,
    ) -> None:
        owner = "Evaluate"
        self.envs = checked(owner, "envs", envs, AnyEnvs)
        self.every: Every = as_every(owner, every)
        self.num_episodes = checked(owner, "num_episodes", num_episodes, PositiveInt)
        self.name: str = checked(owner, "name", name, RowName)
        self.save_best_fn = checked(owner, "save_best_fn", save_best_fn, SaveBestFn | None)
        self.info_keys = checked_keys(owner, info_keys)
        self._own_seed = checked(owner, "seed", seed, NonNegativeInt | None)
        self._seed = self._own_seed or 0
        self._collector: Collector | None = None
        self.state = _EvaluateState()

    @property
    def best_score(self) -> float | None:
        """The highest mean return so far; None before the first."""
        best: float | None = self.state.best_score
        return best

    def seed(self, seed: int) -> None:
        """Seed the episodes, unless they have a seed."""
        self._seed = seed if self._own_seed is None else self._own_seed

    def setup(self, ctx: TrainerContext) -> None:
        """Make the envs, unless they are given; a `ParamsError` for envs of the run's collectors."""
        envs = self.envs
        if not isinstance(envs, gym.vector.VectorEnv):
            envs = opened(make_vec(envs, min(self.num_episodes, MOST_ENVS), backend="sync"))
        # A collector without a seed draws one, which must not change the random numbers of the run.
        with torch.random.fork_rng(devices=[]):
            collector = Collector(ctx.algorithm.policy, with_success(envs, self.info_keys))
        collector.seed(self._seed)
        trained_in = ctx.params.collectors().get("training_collector")
        if trained_in is not None and trained_in.shares_an_env(collector):
            hint = "An evaluation would reset the envs of training: make others with rl.make_vec."
            raise ParamsError.about("Evaluate", "envs", "must be envs of its own", envs, hint)
        self._collector = collector

    def post_steps(self, ctx: TrainerContext) -> None:
        """Evaluate, if that is due."""
        if self._collector is None or not ctx.crossed(self.every):
            return
        self._collector.reset(first_episode=True)
        stats = self._collector.collect(num_episodes=self.num_episodes, explore=False)
        score = float(stats.reduce_agents(ctx.params.multi_agent_return_reduction).returns.mean())
        if score == score and (self.best_score is None or score > self.best_score):
            if self.save_best_fn is not None:
                ctx.once(self.save_best_fn, ctx.algorithm)
            self.state.best_score = score  # last: an algorithm that could not be saved is not the best one
        if ctx.params.logger is not None:
            row = {"return": score, "length": float(stats.lengths.mean()), **stats.info_means}
            ctx.params.logger.log(self.name, row, ctx.env_step or ctx.gradient_step, ctx.update_step, ctx.gradient_step)

    def shutdown(self, ctx: TrainerContext) -> None:
        """Close the envs that it made."""
        if self._collector is not None and not isinstance(self.envs, gym.vector.VectorEnv):
            self._collector.close()
        self._collector = None
