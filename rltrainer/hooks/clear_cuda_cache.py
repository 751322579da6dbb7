"""Return of unused GPU memory to the device."""

import torch

from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.interval import Every, as_every


class ClearCudaCache(TrainerHook):
    """Gives the memory that PyTorch holds and does not use back to the GPU, at the end of a training step.

    It helps where other programs need the GPU's memory, or where blocks of many sizes leave gaps; taking memory anew
    costs time. Without CUDA it does nothing.

    Args:
        every: the interval, an int in training steps.

    Raises:
        ParamsError: `every` is no interval.
    """

    def __init__(self, every: int | Every = 100) -> None:
        self.every: Every = as_every("ClearCudaCache", every, "training_step")

    def post_steps(self, ctx: TrainerContext) -> None:
        """Empty the cache, if that is due."""
        if ctx.crossed(self.every) and torch.cuda.is_available():
            torch.cuda.empty_cache()
