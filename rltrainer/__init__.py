"""rltrainer: trains reinforcement-learning agents with PyTorch. The public names."""

from typing import TYPE_CHECKING, Any

from rltrainer import algorithms, collect, data, envs, errors, hooks, loggers, nets, trainers
from rltrainer.algorithms import *
from rltrainer.checkpoint import CheckpointParams
from rltrainer.collect import *
from rltrainer.data import *
from rltrainer.envs import *
from rltrainer.functional import scores
from rltrainer.hooks import *
from rltrainer.interval import Every
from rltrainer.loggers import *
from rltrainer.nets import *
from rltrainer.plan import (
    ParallelParams,
    PrecisionParams,
    ProfilerParams,
    RuntimeParams,
    UpdateCallbacks,
    UpdateParams,
    UpdatePlan,
)
from rltrainer.schedules import CosineSchedule, LinearSchedule
from rltrainer.seeding import seed
from rltrainer.state import registry
from rltrainer.state.registry import register
from rltrainer.trainers import *
from rltrainer.types import Rollout, Sequences, Transitions, UpdateResult

__version__ = "0.1.0"

# The core's names that no room lists, and the tools' names: the tools are imported when one is asked for.
__all__ = [
    "CheckpointParams", "CosineSchedule", "Every", "LinearSchedule", "LogUniform", "OfflineRecipe", "ParallelParams",
    "PrecisionParams", "ProfilerParams", "Recipe", "Rollout", "Run", "RuntimeParams", "SeedRun", "Sequences",
    "SweepResult", "SweepTrial", "Training", "Transitions", "Uniform", "UpdateCallbacks", "UpdateParams", "UpdatePlan",
    "UpdateResult", "VideoRecorder", "datasets", "errors", "evaluate_policy", "export_onnx", "export_torch", "open_run",
    "open_sweep", "plots", "recipes", "record", "register", "resume", "run_seeds", "scores", "seed", "sweep", "train",
    "watch",
]  # fmt: skip
__all__ += algorithms.__all__
__all__ += collect.__all__
__all__ += data.__all__
__all__ += envs.__all__
__all__ += hooks.__all__
__all__ += loggers.__all__
__all__ += nets.__all__
__all__ += trainers.__all__
__all__.remove("EnvAdapter")
__all__.remove("EnvStep")
__all__.remove("HookRunner")
__all__.remove("Sampler")

_CORE = {name: value for name, value in globals().items() if name in __all__}
registry.add_classes(_CORE.values())

if TYPE_CHECKING:
    from rltrainer.tools import *

else:  # to a type checker every name would exist

    def __getattr__(name: str) -> Any:
        """Import the tools when one of their names is asked for; suggest a name for a misspelt or foreign one."""
        if name in __all__:
            from rltrainer import tools

            return getattr(tools, name)
        from rltrainer.validation.hints import PACKAGE
        from rltrainer.validation.suggestions import did_you_mean

        is_private = name.startswith("_")  # Python and tools ask for such
        hint = f" Here {PACKAGE[name]}." if name in PACKAGE else "" if is_private else did_you_mean(name, __all__)
        raise errors.NoSuchNameError(f"rltrainer.{name}: there is no such attribute.{hint}", name=name)

    def __dir__() -> list[str]:
        """List the tools too."""
        return sorted({*globals(), *__all__})
