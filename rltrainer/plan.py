"""The plan a trainer hands to its algorithm: the one seam between them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rltrainer.field_rules import Flag, PositiveInt
from rltrainer.params import Params


@dataclass(frozen=True, kw_only=True, repr=False)
class RuntimeParams(Params):
    """How updates are run: how fast, not what is learned (but for rounding)."""

    compile: Literal["auto"] | Flag = "auto"
    """Run each gradient step as one compiled graph. "auto" does so where the run is long enough to earn the time that
    compiling takes, by a fixed rule from planned gradient steps, device and size of the networks."""
    cuda_graph: Literal["auto"] | Flag = "auto"
    """Run the gradient steps of an update as CUDA graphs: the same numbers, without the time between kernels. "auto"
    does so on CUDA where they are compiled too."""
    num_threads: Literal["auto"] | PositiveInt | None = "auto"
    """Threads of PyTorch on the CPU while the trainer runs. "auto" decides by the work of a gradient step, and never
    takes more than are set (`torch.set_num_threads`, OMP_NUM_THREADS); None leaves what is set."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PrecisionParams(Params):
    """The number formats of an update."""

    amp: Literal["bf16"] | None = None
    """Format of matrix products; weights, optimizers and everything else stay float32."""


def no_progress() -> float:
    """Return 0: the progress of what no trainer drives."""
    return 0.0


@dataclass(frozen=True)
class UpdatePlan:
    """What an algorithm may know of the run that drives it.

    Args:
        progress: returns the share of the planned training that is done, in [0, 1]; schedules read it.
        num_gradient_steps: how many are planned; None if nobody knows.
        runtime: how updates are run.
        precision: in which number formats.
        rollouts_vary: whether rollouts differ in size, as collections by episodes do.
    """

    progress: Callable[[], float] = no_progress
    num_gradient_steps: int | None = None
    runtime: RuntimeParams = RuntimeParams()
    precision: PrecisionParams = PrecisionParams()
    rollouts_vary: bool = False
