"""The shards of a run that this process trains: a trainer for each, in a thread of its own.

A run of S shards in P processes has S / P of them in each. They share what they learn, not their envs and data.
"""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from rltrainer.algorithms import Algorithm
from rltrainer.checkpoint.folder import KnownFiles, on_first
from rltrainer.checkpoint.store import num_shards_to_resume
from rltrainer.collect import Collector, CollectStats
from rltrainer.collect.collector import require_collector
from rltrainer.errors import ParamsError
from rltrainer.nets.blocks import BatchNorm
from rltrainer.plan import ParallelParams
from rltrainer.ranks.ranks import ALONE, Meeting, Ranks
from rltrainer.ranks.torch_ranks import process_ranks
from rltrainer.seeding import seed as seed_everything
from rltrainer.seeding import stream_seed
from rltrainer.state.global_random import GlobalRandom
from rltrainer.trainers.same_program import require_same_program
from rltrainer.trainers.trainer_params import TrainerParams

TParams = TypeVar("TParams", bound=TrainerParams)
# Lazy ones become one of these.
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, BatchNorm)
SHARED_OUT = ("collection_step_num_episodes", "batch_size")
"""Fields with counts; each shard takes an equal part of them."""
OF_FIRST: Any = {
    "logger": None, "verbose": False, "show_progress": False, "save_best_fn": None, "save_checkpoint_fn": None,
}  # fmt: skip
"""Fields that only the first shard of a run follows, with what the others have."""


def meeting_of(algorithm: Algorithm, params: TrainerParams, known: KnownFiles) -> Meeting | None:
    """Return where this process's shards exchange tensors; None if the whole run has one shard.

    Their number comes from the params, or from the checkpoint to resume. The first process notes in `known` the
    checkpoint files that it reads.

    Raises:
        CheckpointError: the checkpoint that the params name cannot be read.
        ParamsError: the processes cannot share out that number, or their programs differ.
    """
    chosen = params.runtime.parallel
    parallel = chosen if isinstance(chosen, ParallelParams) else ParallelParams()
    outer = ALONE if chosen is None else process_ranks(parallel.timeout, parallel.exact)
    if outer.world > 1:
        require_same_program(outer, algorithm, params)
    num_shards, checkpoint = parallel.num_shards, params.checkpoint
    if num_shards is None and chosen is not None and checkpoint is not None:
        num_shards = on_first(outer, partial(num_shards_to_resume, checkpoint, known))
    num_shards = outer.world if num_shards is None else num_shards
    if num_shards % outer.world:
        counts = ", ".join(str(n) for n in range(1, num_shards + 1) if num_shards % n == 0)
        rule = f"must be a multiple of the number of processes, {outer.world}"
        raise ParamsError.about("ParallelParams", "num_shards", rule, num_shards, f"{counts} processes can share them.")
    return None if num_shards == 1 else Meeting(num_shards // outer.world, outer)


def split(
    trainer: type[Any], algorithm: Algorithm, params: TParams, meeting: Meeting
) -> tuple[Ranks, TParams, list[Any]]:
    """Return rank and params of this process's first shard, and a trainer of this class for each other one.

    Collectors and buffers of the params become the first shard's; the other shards get copies.

    Raises:
        ParamsError: something in the params or the algorithm cannot be split.
    """
    first, *others = meeting.ranks
    _check_layers(algorithm)
    if params.resume_from_log:
        params.raise_invalid("resume_from_log", "must be False in a run of several shards", "Resume from a checkpoint.")
    collectors = _collectors(params)
    for owner, collector in collectors.items():
        collector.check_part(owner, first.world)
    for field in SHARED_OUT:
        _require_multiple(params, field, first.world)
    quiet = _quiet(params, training_fn=None, test_fn=None)  # which are called once in each process
    params = _quiet(params) if first.rank > 0 else params
    shared = {id(each): each for collector in collectors.values() for each in collector.replaced()}  # such as envs
    copies = [copy.deepcopy((algorithm, quiet), dict(shared)) for _ in others]
    for ranks, own in zip(meeting.ranks, (params, *(own for _, own in copies)), strict=True):
        for owner, collector in _collectors(own).items():
            collector.take_part(owner, ranks.rank, ranks.world)
    for own in (params, *(own for _, own in copies)):
        for collector in _collectors(own).values():
            collector.open()
    return first, params, [trainer_of_shard(trainer, ranks, *own) for ranks, own in zip(others, copies, strict=True)]


def trainer_of_shard(cls: type[Any], ranks: Ranks, algorithm: Algorithm, params: TrainerParams) -> Any:
    """Return a trainer of this class with a place among the ranks; a user's constructor takes two arguments."""
    trainer: Any = object.__new__(cls)
    trainer.ranks = ranks
    trainer.__init__(algorithm, params)
    return trainer


def _collectors(params: TrainerParams) -> dict[str, Collector]:
    """Return the collectors by the names of their fields; a `ParamsError` if one is of another class."""
    named = {f"{type(params).__name__}.{field}": source for field, source in params.collectors().items()}
    return {owner: require_collector(owner, source) for owner, source in named.items()}


def _require_multiple(params: TrainerParams, field: str, world: int) -> None:
    count = getattr(params, field, None)
    if count is not None and count % world:
        below = count - count % world
        hint = f"Take {f'{below} or ' if below else ''}{below + world}."
        params.raise_invalid(field, f"must be a multiple of the number of shards, {world}", hint)


def _quiet(params: TParams, **changes: Any) -> TParams:
    """Return the params of another shard than the first one."""
    quiet = copy.copy(params)  # not made anew: a user's class may require what only the first shard has
    for field, value in {**OF_FIRST, **changes}.items():
        object.__setattr__(quiet, field, value)  # frozen
    return quiet


def merged_stats(stats: CollectStats, ranks: Ranks) -> CollectStats:
    """Return the statistics of all ranks' collections, which took place at the same time."""
    if ranks.world == 1:
        return stats
    infos = {name: values.tolist() for name, values in stats.infos.items()}
    plain = {**vars(stats), "returns": stats.returns.tolist(), "lengths": stats.lengths.tolist(), "infos": infos}
    parts = []
    for found in ranks.from_all(plain):
        returns, lengths = np.array(found["returns"], np.float64), np.array(found["lengths"], np.int64)
        arrays = {name: np.array(values, np.float64) for name, values in found["infos"].items()}
        parts.append(CollectStats(**found | {"returns": returns, "lengths": lengths, "infos": arrays}))
    # Episodes in turn, in proportion to each rank's number, so that the last ones are of all ranks.
    turns = [np.linspace(1, 0, len(part.lengths), endpoint=False)[::-1] for part in parts]
    order = np.argsort(np.concatenate(turns), kind="stable")
    merged, longest = CollectStats.merge(parts), max(part.collect_time for part in parts)
    infos = {name: values[order] for name, values in merged.infos.items()}
    returns, lengths = merged.returns[order], merged.lengths[order]
    return dataclasses.replace(merged, returns=returns, lengths=lengths, infos=infos, collect_time=longest)


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
            hint = "It needs one: train in one shard." if algorithm.uses_batch_stats else "Take nn.LayerNorm."
            raise ParamsError.about(type(algorithm).__name__, "policy", rule, type(part), hint)
