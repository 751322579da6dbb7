"""The plan a trainer hands to its algorithm: the one seam between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rltrainer.errors import ReturnedError
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.state.params import Params
from rltrainer.types import UpdateResult
from rltrainer.validation.field_rules import (
    Flag,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Rule,
    instance_of,
    is_finite,
    is_int,
)

Folder = Annotated[str, Rule("the path of a folder, as text", lambda v: isinstance(v, str) and v != "")]


@dataclass(frozen=True, kw_only=True, repr=False)
class ProfilerParams(Params):
    """Record the operations of a few training steps, once a run: time and, on CUDA, kernels.

    Writes `trace.json`, for `chrome://tracing` or https://ui.perfetto.dev, and `operators.txt`, the most expensive
    operators. A recording ends with its epoch at the latest, so that no test step is in it. A training step of PPO with
    2,048 env steps and 32 gradient steps takes 10 MB in the trace, and 100 MB of memory until that is written.
    """

    folder: Folder = "profile"
    """The folder to write; it is made. One that exists is left as it is: `profile-2`."""
    wait: NonNegativeInt = 10
    """Training steps before, which cost nothing; compilation takes place in them."""
    warmup: PositiveInt = 1
    """Training steps after these, in which the profiler runs and keeps nothing: its first ones are slower."""
    active: PositiveInt = 3
    """Training steps that are recorded."""


@dataclass(frozen=True, kw_only=True, repr=False)
class ParallelParams(Params):
    """The way a run is spread over processes that `torchrun` has started.

    A run consists of shards, each with its envs, its part of the buffer and its random streams, by the global index of
    the env. Each process trains an equal number of them.
    """

    num_shards: PositiveInt | None = None
    """Number of shards; None takes one for each process, or as many as the resumed checkpoint has."""
    exact: Flag = False
    """Sum the shards' gradients in their order, so that any number of processes gives the same bits: each process
    receives the gradients of all."""
    timeout: PositiveFloat = 60.0
    """Seconds after which a process that does not come to a collective operation is taken for lost."""


@dataclass(frozen=True, kw_only=True, repr=False)
class RuntimeParams(Params):
    """The way updates are run: their speed, not their results (but for rounding).

    A `ParamsError` if fields contradict each other.
    """

    compile: Literal["auto"] | Flag = "auto"
    """Run each gradient step as one compiled graph. "auto" does so where the run is long enough to earn the time that
    compiling takes, by a fixed rule from planned gradient steps, device and size of the networks."""
    cuda_graph: Literal["auto"] | Flag = "auto"
    """Run the gradient steps of an update as CUDA graphs, compiled or not: the same numbers, without the time between
    kernels. Off policy with a buffer on the device, a graph holds the sampling too. "auto" does so on CUDA, except with
    an optimizer or a function of yours between the operations. Unless this is False, acting on CUDA is a graph, too, if
    it can be."""
    loop: Literal["auto"] | Flag = "auto"
    """On the CPU, run all compiled gradient steps of an on-policy update as one compiled loop, where they can be one.
    "auto" does so; with a version of PyTorch that was not tested, only if the loop's first four steps equal separate
    ones to 1e-6 in the first update."""
    overlap: Flag = False
    """Off policy, step the envs while the last update runs: a copy of the policy acts, with weights that are always one
    update old. It is for a `Collector` with its policy on CUDA: there an update is only launched, and no action
    waits for it. On the CPU an update ends before the next line of Python runs, and a thread for it would run beside
    your envs' code."""
    num_threads: Literal["auto"] | PositiveInt | None = "auto"
    """Threads of PyTorch on the CPU while the trainer runs. "auto" decides by the work of a gradient step, and never
    takes more than are set (`torch.set_num_threads`, OMP_NUM_THREADS); None leaves the setting as it is."""
    matrix_library: Literal["auto", "torch", "onednn"] = "auto"
    """Library of large float32 products on the CPU while the trainer runs: "torch" is PyTorch's own, which has MKL.
    "auto" takes oneDNN on AMD's processors with AVX-512 from family 26 (Zen 5) on, and "torch" on all others."""
    deterministic: Flag = False
    """Let PyTorch take only operations that give the same bits each time, while the trainer runs; one that has no such
    form is a `RuntimeError`. Needed on CUDA only, where it needs the environment variable CUBLAS_WORKSPACE_CONFIG."""
    detect_anomaly: Flag = False
    """Have autograd look for NaN after every operation of a gradient, and name the one that made it, while the trainer
    runs: several times slower. Gradient steps run uncompiled, as a graph hides its operations."""
    profiler: Annotated[ProfilerParams, instance_of(ProfilerParams)] | None = None
    """Records a few training steps; None records none."""
    parallel: Literal["auto"] | Annotated[ParallelParams, instance_of(ParallelParams)] | None = "auto"
    """The way the run is spread over processes; "auto" is `ParallelParams()` under `torchrun`, and None elsewhere. None
    trains in one process, also under `torchrun`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("compile", "cuda_graph"):
            if self.detect_anomaly and getattr(self, field) is True:
                hint = "A graph hides its operations from detect_anomaly."
                self.raise_invalid(field, 'must be "auto" or False with detect_anomaly=True', hint)


NormType = Annotated[
    float, Rule("a number of at least 1, or infinity", lambda v: (is_int(v) or isinstance(v, float)) and v >= 1)
]


@dataclass(frozen=True, kw_only=True, repr=False)
class UpdateParams(Params):
    """The way from a gradient to a step, for each optimizer by itself; a `ParamsError` if fields contradict each other.

    With a limit or `balance_grad_norms` here, metrics hold each gradient's norm before it is clipped: `grad_norm`, or
    `critic_grad_norm` and so on of several optimizers. A limit that nothing reaches only logs them.
    """

    max_grad_norm: PositiveFloat | None = None
    """Gradients are scaled down to this norm; None leaves it to the algorithm's own `max_grad_norm`."""
    grad_norm_type: NormType = 2.0
    """The p of the norm, of the algorithm's own limit too: 2 is the Euclidean one, infinity the largest number."""
    max_grad_value: PositiveFloat | None = None
    """Every number of a gradient is clipped to [-max_grad_value, max_grad_value], instead of any limit of its norm."""

    balance_grad_norms: Flag = False
    """Each part of a loss contributes the same norm, an equal share of the limit: of the three parts of PPO's, policy,
    value and entropy, each a third. Sizes and coefficients of the parts then count no more. Needs a limit of the norm,
    here or the algorithm's own. Losses of one part are clipped as ever; A2C, PPO, RecurrentPPO and IMPALA have more."""
    accumulate: PositiveInt = 1
    """Gradient steps over which gradients are averaged before they are applied: k minibatches are like one of k times
    the size. Target networks and delayed actors count the steps that are applied. On policy, the rest at the
    end of an update is applied there; otherwise it is kept for the next update, and in checkpoints."""
    nonfinite: Literal["raise", "skip"] = "raise"
    """A gradient that is not finite is never applied. "raise" ends the run with an error that names the parameter;
    "skip" continues, and counts `skipped_steps`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance_grad_norms and self.max_grad_value is not None:
            rule = f"must be False beside max_grad_value ({self.max_grad_value})"
            self.raise_invalid("balance_grad_norms", rule, "It shares out a limit of the norm.")
        if self.max_grad_norm is not None and self.max_grad_value is not None:
            rule = f"must be None beside max_grad_norm ({self.max_grad_norm})"
            self.raise_invalid("max_grad_value", rule, "Choose one of the two limits.")

    @property
    def logs_norms(self) -> bool:
        """Return whether norms of gradients are metrics."""
        return self.max_grad_norm is not None or self.max_grad_value is not None or self.balance_grad_norms


@dataclass(frozen=True, kw_only=True, repr=False)
class PrecisionParams(Params):
    """The number formats of an update; a `ParamsError` if fields contradict each other."""

    amp: Literal["bf16", "fp16"] | None = None
    """Format of matrix products; weights, optimizers and everything else stay as they are. A processor without bf16
    instructions is 1.7 times slower with it, more so compiled; so nothing chooses it but you. With "fp16" each loss is
    scaled; a step with a gradient that is not finite then is left out and counted, and lowers the scale."""
    initial_loss_scale: PositiveFloat = 65536.0
    """The first factor of losses in "fp16", so that small gradients do not vanish, until the scale moves."""
    loss_scale_growth: Annotated[float, Rule("a number of at least 1", lambda v: is_finite(v) and v >= 1)] = 2.0
    """The scale is multiplied with this after `loss_scale_growth_interval` good steps in a row."""
    loss_scale_growth_interval: PositiveInt = 2000
    """See `loss_scale_growth`."""
    loss_scale_backoff: Annotated[float, Rule("a number in (0, 1)", lambda v: is_finite(v) and 0 < v < 1)] = 0.5
    """The scale is multiplied with this when a gradient is not finite."""
    min_loss_scale: PositiveFloat = 1.0
    """A run ends with the stop reason "min_loss_scale" if its scale falls below this."""

    weights: Literal["float32", "float64"] = "float32"
    """Format of networks, their statistics, optimizers, targets and losses: an algorithm is brought to it, in place,
    when its trainer is made. With "float64" observations, actions, buffers and random numbers stay float32, so that a
    run differs from one of float32 by rounding only; files say so, and hold twice as much."""

    tf32: Flag | None = None
    """Let a GPU take products and convolutions of float32 in TF32, with 10 bits of mantissa instead of 23, while the
    trainer runs, or forbid it; None leaves the setting as it is. PyTorch's default is TF32 for convolutions only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_loss_scale < self.min_loss_scale:
            rule = f"must be at least min_loss_scale ({self.min_loss_scale})"
            self.raise_invalid("initial_loss_scale", rule, "A run would end at once.")
        if self.amp is not None and self.weights == "float64":
            self.raise_invalid("amp", 'must be None with weights="float64"', "It would round their numbers.")

    @property
    def weight_dtype(self) -> torch.dtype:
        """Return the format of weights as PyTorch's."""
        return torch.float64 if self.weights == "float64" else torch.float32


def no_progress() -> float:
    """Return 0: the progress without a trainer."""
    return 0.0


@dataclass(frozen=True)
class UpdateCallbacks:
    """Functions that are called around gradient steps. One that is None costs nothing.

    Uncompiled, a callback that only reads changes no bit. `on_loss` breaks the graph of a compiled step, which may
    round otherwise; the other two break nothing, but CUDA graphs then hold one step each.
    """

    before: Callable[[Any], Any] | None = None
    """Given the batch of each gradient step, as `Algorithm.update` made it; may return another of that shape."""
    on_loss: Callable[[str, Tensor, Callable[[Tensor], None]], Tensor | None] | None = None
    """Given the name of a loss ("critic", "actor", ...; "loss" where there is one), the loss, and `step`; may return a
    loss instead. `step(loss)` takes the optimizer's step at once, uncompiled; else it is taken afterwards. Not called
    for a step that is known to be left out: by `PPOParams.target_kl`, or for a loss that is not finite."""
    after: Callable[[Any, UpdateResult], None] | None = None
    """Given the batch and the result of each gradient step in which no optimizer left its step out."""
    replaces: bool = True
    """False if `before` never returns another batch, so that ranks need no exchange after it."""

    def replace_batch(self, batch: Any) -> Any:
        """Call `before`, and return the batch of the gradient step; a `ReturnedError` if it is of another class."""
        found = None if self.before is None else self.before(batch)
        if found is not None and type(found) is not type(batch):
            rule = f"must return a {type(batch).__name__} or None"
            raise ReturnedError.about("UpdateCallbacks", "before", rule, found)
        return batch if found is None else found

    def notify(self, name: str, loss: Tensor, step: Callable[[Tensor], None]) -> Tensor | None:
        """Call `on_loss`; return the loss [] to step on, None if it took the step; a `ReturnedError` if no loss."""
        if self.on_loss is None:
            return loss
        taken: list[Tensor] = []

        def step_at_once(loss: Tensor) -> None:
            taken.append(loss)  # before the step, which may fail
            step(loss)

        found: Any = self.on_loss(name, loss, step_at_once)
        if found is not None and not isinstance(found, Tensor):
            raise ReturnedError.about("UpdateCallbacks", "on_loss", "must return a loss or None", found)
        return None if taken else loss if found is None else found


@dataclass(frozen=True)
class UpdatePlan:
    """The part of a run that its algorithm knows."""

    progress: Callable[[], float] = no_progress
    """Returns the share of the planned training that is done, in [0, 1], for schedules."""
    num_gradient_steps: int | None = None
    """Planned gradient steps, if they are known."""
    runtime: RuntimeParams = RuntimeParams()
    precision: PrecisionParams = PrecisionParams()
    update: UpdateParams = UpdateParams()
    varies_in_length: bool = False
    """True if rollouts differ in size, as collections by episodes do."""
    callbacks: UpdateCallbacks = UpdateCallbacks()
    ranks: Ranks = ALONE
    """This rank among the ranks that train one algorithm together."""
    all_reduce: Callable[[Tensor], Tensor] | None = None
    """Returns the mean over ranks of an optimizer's flat gradient and then its loss [P + 1], before it is checked
    and clipped, so that all ranks decide alike; None takes the average over `ranks`."""

    @property
    def is_shared(self) -> bool:
        """Return whether several ranks train the algorithm."""
        return self.all_reduce is not None or self.ranks.world > 1

    @property
    def leaves_graph(self) -> bool:
        """Return whether a gradient step calls the user's functions between its operations."""
        return self.callbacks.on_loss is not None or self.all_reduce is not None

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of a tensor [...] over ranks; a `ReturnedError` if `all_reduce` returns another shape."""
        if self.all_reduce is None:
            return self.ranks.mean(x)
        result: Any = self.all_reduce(x)
        if not isinstance(result, Tensor) or result.shape != x.shape:
            rule = f"must return a tensor of shape {tuple(x.shape)}"
            raise ReturnedError.about("UpdatePlan", "all_reduce", rule, result)
        return result

    @property
    def skips_steps(self) -> bool:
        """Return whether a gradient that is not finite is left out and counted, instead of raised."""
        return self.update.nonfinite == "skip" or self.precision.amp == "fp16"


def unattached(weight_dtype: torch.dtype) -> UpdatePlan:
    """Return the plan of an algorithm that no trainer drives, with weights in this format."""
    return UpdatePlan(precision=PrecisionParams(weights="float64" if weight_dtype is torch.float64 else "float32"))
