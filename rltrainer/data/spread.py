"""Laying the transitions of one ring out over the envs of another, so that as many are kept as fit."""

import heapq
import logging
from bisect import bisect_right

import numpy as np
import torch

from rltrainer.data.incoming_cells import Cells, count_up
from rltrainer.data.ring import Ring
from rltrainer.data.storage import Array


def append(source: Ring, target: Ring, caller: str, chunk_size: int) -> None:
    """Append the newest cells of a ring to another one of the same columns; its own oldest give way.

    Args:
        source: the ring they come from.
        target: the ring they go to.
        caller: what the warning begins with that is logged if not all of them fit.
        chunk_size: how many cells at once.
    """
    capacity = target.cells_per_env * target.num_envs
    num_left_out = len(source) - capacity
    if num_left_out > 0:
        text = "%s: %d of %d transitions do not fit into a capacity of %d and are left out; the newest are kept"
        logging.getLogger("rltrainer").warning(text, caller, num_left_out, len(source), capacity)
    cells, env, ended = _lay_out(source, target, capacity)
    copy_cells(source, target, cells, env, ended, chunk_size)


def copy_cells(source: Ring, target: Ring, cells: Array, env: Array, ended: Array, chunk_size: int) -> None:
    """Append some cells of a ring to another one of the same columns, as traces of their own.

    Args:
        source, target: where they come from and go to.
        cells: [M] flat indices in the source, oldest first.
        env: [M] the envs of the target that they go to.
        ended: [M] bool, at which of them a trace ends.
        chunk_size: how many cells at once.
    """
    target.end_trajectory(None)
    columns = {name: column.flat for name, column in source.columns.items()}
    for start in range(0, len(cells), chunk_size):
        chunk, to, ends = (x[start : start + chunk_size] for x in (cells, env, ended))
        last = np.zeros(target.num_envs, np.int64)
        last[to] = chunk  # the last of those that are assigned to an env stays
        final_obs, last_obs = (
            source.stored_successors(torch.from_numpy(at).to(source.device)) for at in (chunk[ends], last)
        )
        kept, origin = target.store(Cells(columns, chunk, to, ends, final_obs, last_obs))
        if target.sampler is not None and source.sampler is not None:
            stored = torch.from_numpy(kept).to(target.device)
            target.sampler.copied(stored, source.sampler, torch.from_numpy(origin).to(source.device))
    target.end_trajectory(None)


def _lay_out(source: Ring, target: Ring, capacity: int) -> tuple[Array, Array, Array]:
    """Return the newest cells [M], oldest first, the envs that each goes to, and whether a trace ends there.

    Where both rings have as many envs, and nothing is lost by it, each env's cells go to the same env. Otherwise whole
    traces, in the order of their ends, go to the env that holds the fewest cells, and are broken where it is full.
    """
    kept = newest(source.sizes(), capacity)
    remaining = newest(target.sizes(), capacity - int(kept.sum()))
    if source.num_envs == target.num_envs and (kept + remaining <= target.cells_per_env).all():
        cells = np.concatenate([_newest_cells(source, env, size) for env, size in enumerate(kept.tolist())])
        env, length = np.arange(source.num_envs), kept
    else:
        cells, traces = _traces(source, kept)
        env, length = _place(traces, remaining, target.cells_per_env)
    ended = source.final.slots.reshape(-1)[cells] > 0
    ended[np.cumsum(length)[length > 0] - 1] = True
    return cells, np.repeat(env, length), ended


def newest(sizes: Array, count: int) -> Array:
    """Return how many of its newest cells each env keeps [N], if all envs together keep the newest `count`."""
    if int(sizes.sum()) <= count:
        return sizes
    rows = bisect_right(range(int(sizes.max())), count, key=lambda n: int(np.minimum(sizes, n).sum())) - 1
    kept = np.minimum(sizes, rows)
    kept[np.flatnonzero(sizes > rows)[: count - int(kept.sum())]] += 1
    return kept


def _newest_cells(ring: Ring, env: int, size: int) -> Array:
    """Return the flat indices of an env's newest cells, oldest first."""
    return (int(ring.written[env]) - size + np.arange(size)) % ring.num_rows * ring.num_envs + env


def _traces(ring: Ring, kept: Array) -> tuple[Array, Array]:
    """Return the cells that are kept [M], trace by trace as traces ended, and the traces' lengths."""
    slots = ring.final.slots.reshape(-1)
    streams, lengths, ages = [], [], []
    for env, size in enumerate(kept.tolist()):
        cells = _newest_cells(ring, env, size)
        ends = np.union1d(np.flatnonzero(slots[cells]), [size - 1] if size else [])
        streams.append(cells)
        lengths.append(np.diff(ends, prepend=-1))
        ages.append(size - ends)
    stream, length, age = np.concatenate(streams), np.concatenate(lengths), np.concatenate(ages)
    length = length.astype(np.int64)
    order = np.argsort(-age, kind="stable")
    first = (np.cumsum(length) - length)[order]
    return stream[np.repeat(first, length[order]) + count_up(length[order])], length[order]


def _place(traces: Array, filled: Array, limit: int) -> tuple[Array, Array]:
    """Return the env and the length of each piece of the traces, given their lengths and how full the envs are."""
    heap = [(size, env) for env, size in enumerate(filled.tolist())]
    heapq.heapify(heap)
    pieces: list[tuple[int, int]] = []
    for length in traces.tolist():
        left = length
        while left:
            size, env = heap[0]
            piece = min(left, limit - size)
            pieces.append((env, piece))
            heapq.heapreplace(heap, (size + piece, env))
            left -= piece
    placed = np.array(pieces, np.int64).reshape(-1, 2)
    return placed[:, 0], placed[:, 1]
