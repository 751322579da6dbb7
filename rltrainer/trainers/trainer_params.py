"""The params that all trainers share."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
from torch import nn

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint.checkpoint_params import CheckpointParams
from rltrainer.collect import CollectStats, DataSource
from rltrainer.collect.episode_infos import as_number
from rltrainer.errors import ParamsError
from rltrainer.hooks import HookRunner, TrainerHook
from rltrainer.hooks.hook import lent
from rltrainer.loggers import Logger, RunFolder
from rltrainer.nets.linear import choose_library
from rltrainer.plan import PrecisionParams, RuntimeParams, UpdateParams, UpdatePlan
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.params import Params
from rltrainer.trainers.torch_settings import check_deterministic, choose_num_threads
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, Rule, a_callable, instance_of, is_int

StepFn = Annotated[Callable[[int, int], None], a_callable("(epoch, env_step)")]
StopFn = Annotated[Callable[[float], bool], a_callable("(score) -> bool")]
ScoreFn = Annotated[Callable[[CollectStats], float], a_callable("(CollectStats) -> float")]
SaveBestFn = Annotated[Callable[[Any], object], a_callable("(algorithm)")]
CheckpointFn = Annotated[Callable[[int, int, int], str], a_callable("(epoch, env_step, gradient_step) -> str")]
Array = np.ndarray[Any, Any]
ReductionFn = Annotated[Callable[[Array], Array], a_callable("(returns [E, A]) -> returns [E]")]
AnyCollector = Annotated[
    DataSource, Rule("a Collector", lambda v: isinstance(v, DataSource), "Write rl.Collector(algorithm.policy, envs).")
]
AnyLogger = Annotated[
    Logger, instance_of(Logger, hint="Write rl.TensorBoardLogger(folder), or rl.get_logger(name, folder).")
]
Hooks = Annotated[
    Sequence[TrainerHook],
    Rule(
        "a list or tuple of TrainerHook objects",
        lambda v: isinstance(v, list | tuple) and all(isinstance(each, TrainerHook) for each in v),
        lambda v: (
            f"Write [{type(v).__name__}(...)]."
            if isinstance(v, TrainerHook)
            else "Write [rl.EarlyStopping(...)]; rl.FunctionHook makes a hook of a function."
        ),
    ),
]


def live(default: Any) -> Any:
    """Declare a field that holds a live object or a callback: not compared, and only named in print and JSON."""
    # A field without a default is written out, as a type checker must see that it has none.
    return dataclasses.field(default=default, compare=False)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class TrainerParams(Params):
    """Settings of every trainer; a `ParamsError` if fields contradict each other.

    Counts and sizes are of the whole run: if it has several shards, each takes its part of them.
    """

    max_epochs: PositiveInt = 100
    """Epochs to train for; fewer if `stop_fn` says so."""
    epoch_num_steps: PositiveInt = 30000
    """Steps per epoch: env steps online (as many training steps as reach them), training steps offline."""
    test_collector: AnyCollector | None = live(None)
    """Collects the test episodes; None makes no test steps."""
    test_step_num_episodes: PositiveInt = 1
    """Episodes of a test step."""
    training_fn: StepFn | None = live(None)
    """Called at the start of each training step."""
    test_fn: StepFn | None = live(None)
    """Called at the start of each test step."""
    stop_fn: StopFn | None = live(None)
    """Given the score of a test step, decides whether training ends."""
    compute_score_fn: ScoreFn | None = live(None)
    """Values a test step; None takes the mean return."""
    save_best_fn: SaveBestFn | None = live(None)
    """Called with the algorithm at each test step that scores strictly better than all before."""
    save_checkpoint_fn: CheckpointFn | None = live(None)
    """Called after each training step; saves something of its own and returns where."""
    resume_from_log: Flag = False
    """Continue from the epoch, step counters and best score of the logger's existing log, where a log is all that is
    left of a run; networks and buffers are yours to load. A run with a `checkpoint` resumes by itself."""
    multi_agent_return_reduction: ReductionFn | None = live(None)
    """Turns the returns of several agents into one per episode."""
    logger: AnyLogger | None = live(None)
    """Receives the numbers; None keeps them in the returned stats only."""
    verbose: Flag = True
    """Print one line per epoch, and at the start the choices for "auto"."""
    show_progress: Flag = True
    """Show a progress bar."""
    seed: NonNegativeInt | None = None
    """Seeds actions, buffers, minibatches, noise and envs, each by a stream of its own; an object's own seed wins."""
    hooks: Hooks = live(())
    """Called at points of the run in this order; see `TrainerHook`."""
    update: Annotated[UpdateParams, instance_of(UpdateParams)] = UpdateParams()
    """The way from gradients to steps: limits, accumulation, treatment of a gradient that is not finite."""
    precision: Annotated[PrecisionParams, instance_of(PrecisionParams)] = PrecisionParams()
    """The number formats of updates."""
    runtime: Annotated[RuntimeParams, instance_of(RuntimeParams)] = RuntimeParams()
    """The way updates are run: compilation, threads."""
    checkpoint: (
        Annotated[CheckpointParams, instance_of(CheckpointParams, hint="Write rl.CheckpointParams(folder).")] | None
    ) = None
    """Saves the run while it trains, and lets `run` continue from there; None does neither."""
    initial_test: Flag = True
    """Make a test step before training; its score is the first best."""
    run_folder: (
        Annotated[RunFolder, instance_of(RunFolder, hint="Write rl.RunFolder.new(name), or rl.RunFolder(folder).")]
        | None
    ) = live(None)
    """The folder of the run: where `logger`, `save_best_fn` and `checkpoint` are None, it writes a log of JSON lines,
    the best algorithm of test steps, and checkpoints there."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "hooks", tuple(self.hooks))  # frozen; a list could change under a run
        if self.run_folder is not None:
            self._write_to(self.run_folder)
        HookRunner(type(self).__name__, self.hooks)
        if self.test_collector is None:
            for field in ("stop_fn", "test_fn", "save_best_fn", "compute_score_fn"):
                if getattr(self, field) is not None:
                    self.raise_invalid(field, "needs a test_collector", "It acts on test steps, and there are none.")
        elif self.test_collector.buffer is not None:
            self.raise_invalid("test_collector", "must have no buffer", "Test episodes are not data to train on.")
        if self.resume_from_log and self.logger is None:
            hint = "Pass logger=..., or trainer.restore(path) a checkpoint."
            self.raise_invalid("resume_from_log", "needs a logger", hint)
        if self.resume_from_log and self.checkpoint is not None:
            hint = "A checkpoint continues the log too."
            self.raise_invalid("resume_from_log", "must be False with checkpoints", hint)

    def _write_to(self, folder: RunFolder) -> None:
        folder.refuse_links()
        own: dict[str, Any] = {"checkpoint": CheckpointParams(folder.checkpoints), "logger": folder.logger()}
        if self.test_collector is not None:
            own["save_best_fn"] = folder.save_best
        for field, value in own.items():
            if getattr(self, field) is None:
                object.__setattr__(self, field, value)  # frozen, until here

    def call(self, field: str, *args: Any) -> Any:
        """Call the callback in this field, if there is one; a note at its errors names the field."""
        callback = getattr(self, field)
        if callback is None:
            return None
        try:
            return callback(*args)
        except Exception as error:
            error.add_note(f"{type(self).__name__}.{field} raised this.")
            raise

    def score(self, stats: CollectStats) -> float:
        """Return the score of a collection: its mean return, or by `compute_score_fn`; a `ParamsError` if no number."""
        if self.compute_score_fn is None:
            return float(stats.returns.mean())
        score = as_number(self.call("compute_score_fn", lent(stats)))
        if isinstance(score, float) or is_int(score):
            return float(score)
        raise self._wrong_return("compute_score_fn", "must return a number", score, "Return a float.")

    def wants_to_stop(self, score: float) -> bool:
        """Return whether `stop_fn` ends the run at a score; without one, none does. No bool is a `ParamsError`."""
        if self.stop_fn is None:
            return False
        answer = as_number(self.call("stop_fn", score))
        if isinstance(answer, bool):
            return answer
        raise self._wrong_return("stop_fn", "must return True or False", answer, "Compare: lambda score: score >= 475.")

    def _wrong_return(self, field: str, rule: str, value: object, hint: str) -> ParamsError:
        hint = "Does it lack a return?" if value is None else hint
        return ParamsError.about(type(self).__name__, field, rule, value, hint)

    def collectors(self) -> dict[str, DataSource]:
        """Return the collectors by the name of their field."""
        return {} if self.test_collector is None else {"test_collector": self.test_collector}

    def parts(self) -> dict[str, Any]:
        """Return the objects with a state of their own by name; a checkpoint holds a file for each."""
        parts: dict[str, Any] = {**self.collectors()}
        if self.logger is not None:
            parts["logger"] = self.logger
        if self.hooks:
            parts["hooks"] = HookRunner(type(self).__name__, self.hooks)
        return parts

    @property
    def can_overlap(self) -> bool:
        """Return whether data can be collected while an update runs; see `RuntimeParams.overlap`."""
        return False

    def check_fits(self, algorithm: Algorithm) -> None:
        """Raise a `ParamsError` if collectors or device do not fit the algorithm."""
        check_deterministic(self.runtime, algorithm.device)
        if self.runtime.overlap and not self.can_overlap:
            fits = "an off-policy Collector without a device has envs of arrays and a policy on CUDA"
            hint = 'Move the policy, `.to("cuda")`, before its algorithm and collector are made.'
            self.runtime.raise_invalid("overlap", f"must be False unless {fits}", hint)
        for field, collector in self.collectors().items():
            if collector.policy is not algorithm.policy:
                hint = "Make it with Collector(algorithm.policy, envs)."
                self.raise_invalid(field, "must use the algorithm's policy", hint)

    def update_plan(
        self, progress: Callable[[], float], runtime: RuntimeParams, policy: nn.Module, ranks: Ranks = ALONE
    ) -> UpdatePlan:
        """Return the plan of the algorithm; `runtime` is these params' or, in a resumed run, the saved choice."""
        work = sum(p.numel() for p in policy.parameters()) * self.gradient_batch_size // ranks.world
        num_threads = choose_num_threads(self.runtime.num_threads, runtime.num_threads, work)
        library = choose_library(self.runtime.matrix_library, runtime.matrix_library)
        new: dict[str, Any] = {name: getattr(self.runtime, name) for name in ("detect_anomaly", "profiler")}
        if self.runtime.detect_anomaly:  # it sees no operation of a graph
            new |= {"compile": False, "cuda_graph": False}
        return UpdatePlan(
            progress=progress,
            num_gradient_steps=self.planned_num_gradient_steps,
            runtime=dataclasses.replace(runtime, num_threads=num_threads, matrix_library=library, **new),
            precision=self.precision,
            update=self.update,
            varies_in_length=self.varies_in_length,
            ranks=ranks,
        )

    @abstractmethod
    def create_trainer(self, algorithm: Algorithm) -> Any:
        """Return the trainer that these params configure."""

    @property
    def planned_num_steps(self) -> int:
        """Steps of the whole run, if nothing stops it; progress is measured against them."""
        return self.max_epochs * self.epoch_num_steps

    def share_done(self, num_epochs: int, num_steps: int = 0) -> float:
        """Return progress in [0, 1] after so many epochs, and steps of the next."""
        # Counted by epochs: collections by episodes may take more steps than planned, and a schedule to 0 must not
        # reach it before the last update.
        planned = self.planned_num_steps
        per_epoch = planned / self.max_epochs
        return min((num_epochs * per_epoch + min(num_steps, per_epoch)) / planned, 1.0)

    @property
    @abstractmethod
    def planned_num_gradient_steps(self) -> int:
        """Gradient steps of the whole run, roughly, if nothing stops it."""

    @property
    @abstractmethod
    def gradient_batch_size(self) -> int:
        """Samples of a gradient step."""

    @property
    def varies_in_length(self) -> bool:
        """Return whether collections differ in size."""
        return False
