"""The settings of a run's checkpoints: their folder, the interval of saves, which stay, where the run resumes."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from rltrainer.interval import Every
from rltrainer.state.params import Params
from rltrainer.validation.field_rules import Flag, NonNegativeInt, PositiveInt, Rule, is_int


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"")


Interval = Annotated[
    int | Every,
    Rule(
        "a positive integer, or an Every",
        lambda v: isinstance(v, Every) or (is_int(v) and v > 0),
        'Write rl.Every(600, "second"), or a number of training steps.',
    ),
]
Folder = Annotated[str | os.PathLike[str], Rule("the path of a folder", _is_path)]
Resume = Annotated[str | os.PathLike[str], Rule('"auto", "never", or the path of a checkpoint', _is_path)]


@dataclass(frozen=True, kw_only=True, repr=False)
class CheckpointParams(Params):
    """Save a run while it trains, and resume it by itself: `TrainerParams(checkpoint=CheckpointParams(...))`.

    The same program, killed at any moment and started again, continues its run: the end is the same bit for bit, and so
    is the log.
    """

    folder: Folder = field(kw_only=False)
    """Folder of the checkpoints of this run, and of no other: `RunFolder("runs/cartpole").checkpoints`. The first
    checkpoint makes it. One process at a time writes there."""
    every: Interval = Every(1, "epoch")
    """Interval of saves, after the training step in which a multiple was crossed; an int counts training steps. At the
    end of an epoch the test step comes first. The end of the run is always saved."""
    keep_last: PositiveInt | None = 3
    """Number of the newest checkpoints that stay; None keeps all."""
    keep_best: NonNegativeInt = 1
    """Number of checkpoints with the highest test scores that stay too. The best test step of the run so far is
    saved though no save is due; not with 0. NaN is never best."""
    resume: Resume = "auto"
    """Start of `run` and `execute_epoch`. "auto" takes the newest intact checkpoint in `folder`, with a warning of
    each damaged one that is newer; it is an error if all are damaged, and a new run if there are none. A path takes
    that checkpoint and no other. "never" starts a new run, as `Trainer.reset` does; both are an error if `folder` has
    checkpoints."""
    signals: Flag = True
    """End at the first SIGTERM or SIGINT (Ctrl-C) after the current training step, saved: with `SystemExit(143)` or
    `KeyboardInterrupt`. A test step is broken off, and repeated later. A second signal ends at once. SIGUSR1 saves and
    continues. In the main thread only; earlier signal handlers return after the run."""
    on_save_error: Literal["raise", "warn"] = "raise"
    """Outcome of a save that fails, as on a full disk: earlier checkpoints stay, and the run ends with the error, or
    continues with a warning and tries again when the next save is due."""
    record_episodes: Flag = False
    """Record seed and actions of each training episode in `folder/episodes`, a few bytes for each env step, so that
    `rl.replay_episode(folder, env, episode, make_env)` steps through it again. It needs envs with episodes that
    follow from these, such as envs of `make_vec(..., backend="sync")`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "folder", str(Path(self.folder)))  # frozen; JSON has no paths
        if self.resume not in ("auto", "never"):
            object.__setattr__(self, "resume", str(Path(self.resume)))
