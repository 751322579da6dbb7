"""The shards of a run that this process trains: a trainer for each, in a thread of its own.

A run of S shards in P processes has S / P of them in each. They share what they learn, not their envs and data.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import nn

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint.folder import num_shards_of
from rltrainer.checkpoint.store import newest_num_shards
from rltrainer.collect.collector import require_collector
from rltrainer.errors import ParamsError
from rltrainer.plan import ParallelParams
from rltrainer.ranks.ranks import ALONE, Meeting, Ranks
from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.seeding import seed as seed_everything
from rltrainer.seeding import stream_seed
from rltrainer.state.global_random import GlobalRandom
from rltrainer.trainers.same_program import require_same_program
from rltrainer.trainers.trainer_params import TrainerParams

TParams = TypeVar("TParams", bound=TrainerParams)
P = ParamSpec("P")
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)  # lazy ones become one of these
T = TypeVar("T")


def meeting_of(algorithm: Algorithm, params: TrainerParams) -> Meeting | None:
    """Return the meeting of this process's shards: as many as the params say, or as the run has that they resume.

    None if the whole run has one shard.

    Raises:
        ParamsError: the processes cannot share out that number, or their programs differ.
    """
    chosen = params.runtime.parallel
    parallel = chosen if isinstance(chosen, ParallelParams) else ParallelParams()
    outer = ALONE if chosen is None else process_ranks(parallel.timeout, parallel.exact)
    if outer.world > 1:
        require_same_program(outer, algorithm, params)
    num_shards, checkpoint = parallel.num_shards, params.checkpoint
    if num_shards is None and chosen is not None and checkpoint is not None and checkpoint.resume != "never":
        is_auto = checkpoint.resume == "auto"
        num_shards = newest_num_shards(checkpoint.folder) if is_auto else num_shards_of(Path(checkpoint.resume))
    num_shards = outer.world if num_shards is None else num_shards
    if num_shards % outer.world:
        counts = ", ".join(str(n) for n in range(1, num_shards + 1) if num_shards % n == 0)
        rule = f"must be a multiple of the number of processes, {outer.world}"
        raise ParamsError.about("ParallelParams", "num_shards", rule, num_shards, f"{counts} processes can share them.")
    return None if num_shards == 1 else Meeting(num_shards // outer.world, outer)


def split(trainer: type[Any], algorithm: Algorithm, params: TParams, meeting: Meeting) -> tuple[TParams, list[Any]]:
    """Return the params of this process's first shard, and a trainer of this class for each other one.

    Collectors and buffers of the params become those of the first shard; the other ones get copies.

    Raises:
        ParamsError: something in the params or the algorithm cannot be split.
    """
    first, *others = meeting.ranks
    _check_layers(algorithm)
    if params.resume_from_log:
        params.raise_invalid("resume_from_log", "must be False in a run of several shards", "Resume from a checkpoint.")
    for field, collector in params.collectors().items():
        owner = f"{type(params).__name__}.{field}"
        require_collector(owner, collector).let_go(owner, first.world)
    copies = [copy.deepcopy((algorithm, params.of_rank(ranks))) for ranks in others]
    params = params.of_rank(first)
    params.take_parts()
    trainers = []
    for own_algorithm, own_params in copies:
        for name in ("training_fn", "test_fn"):  # called once in each process
            object.__setattr__(own_params, name, None)  # frozen
        own_params.take_parts()
        trainers.append(trainer(own_algorithm, own_params))
    return params, trainers


def on_all_shards(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Make a method of a trainer run for each shard of this process; it returns what the first one returns."""

    @functools.wraps(method)
    def run(self: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        meeting: Meeting | None = self.meeting
        if meeting is None or meeting.is_on:
            return method(self, *args, **kwargs)
        return meeting.run([partial(method, each, *args, **kwargs) for each in (self, *self.replicas)])[0]

    return cast(Callable[Concatenate[Any, P], T], run)


@contextmanager
def own_global_random(ranks: Ranks, seed: int | None) -> Iterator[None]:
    """Give each process but the first global random streams of its own in this block; then all have the first one's."""
    is_other = ranks.rank > 0 and ranks.is_first_here
    if is_other:
        seed_everything(stream_seed("rank", ranks.rank, seed))
    yield
    # What the program draws next, such as a network or a learning rate, must be equal on all ranks.
    now = GlobalRandom.of_now()
    states = now.torch, now.numpy, now.python, now.cuda[torch.cuda.current_device()] if now.cuda else None
    *lists, spares = ranks.from_first([*(None if x is None else x.tolist() for x in states), now.spare_normals])
    if is_other:
        tensors: Any = [None if x is None else torch.tensor(x) for x in lists]
        own, numpy, python, gpu = tensors
        gpus = [] if gpu is None else [gpu.byte()] * torch.cuda.device_count()
        GlobalRandom(own.byte(), gpus, numpy, python, spares).restore()


def _check_layers(algorithm: Algorithm) -> None:
    for part in algorithm.policy.modules():
        if isinstance(part, BATCH_NORMS):
            rule = "must have no batch norm in a run of several shards, as each would have statistics of its own"
            raise ParamsError.about(type(algorithm).__name__, "policy", rule, type(part), "Take nn.LayerNorm.")
