"""The settings of the profiler: which training steps of a run are recorded, and where to."""

from dataclasses import dataclass
from typing import Annotated

from rltrainer.field_rules import NonNegativeInt, PositiveInt, Rule
from rltrainer.params import Params

Folder = Annotated[str, Rule("the path of a folder, as text", lambda v: isinstance(v, str) and v != "")]


@dataclass(frozen=True, kw_only=True, repr=False)
class ProfilerParams(Params):
    """Record the operations of a few training steps, once a run: time and, on CUDA, kernels.

    Writes `trace.json`, for `chrome://tracing` or https://ui.perfetto.dev, and `operators.txt`, the operators that took
    most. A recording ends with its epoch at the latest, so that no test step is in it. Memory and files grow with
    `active`, not with the run: a training step of PPO, of 2,048 env steps and 32 gradient steps, has 40,000 operations,
    and takes 10 MB in the trace and 100 MB of memory until that is written.
    """

    folder: Folder = "profile"
    """The folder to write; it is made. One that exists is left as it is: `profile-2`."""
    wait: NonNegativeInt = 10
    """Training steps before, which cost nothing; what is compiled is compiled in them."""
    warmup: PositiveInt = 1
    """Training steps after those in which the profiler runs and keeps nothing: its first ones are slower."""
    active: PositiveInt = 3
    """Training steps that are recorded."""
