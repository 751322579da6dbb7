"""The arguments of a sample: checked, and whether there is anything to sample and room for it."""

from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.ring import Ring
from rltrainer.errors import ReplayBufferError, field_error_text
from rltrainer.field_rules import NonNegativeInt, PositiveInt, UnitFloat, checked

MAX_NUM_BATCHES, MAX_SAMPLE_NBYTES = 32, 2**26
"""Batches, and bytes of them, that trainers sample at once: more would gain nothing, and priorities would be stale."""


def max_num_batches(batch_nbytes: int) -> int:
    """Return how many batches are sampled at once at most, so that their memory stays small beside the data."""
    return min(max(MAX_SAMPLE_NBYTES // (2 * batch_nbytes), 1), MAX_NUM_BATCHES)


def check_sample(
    owner: str, ring: Ring, cell_nbytes: int, batch_size: int, n_step: int, gamma: float, num_batches: int | None
) -> tuple[tuple[int, ...], int, float]:
    """Return the shape of a sample, (B,) or (K, B), `n_step` and `gamma`; see `ReplayBuffer.sample`.

    Args:
        owner: the method, for errors.
        ring: what is sampled from.
        cell_nbytes: bytes of a transition, or sequence.

    Raises:
        ReplayBufferError: one breaks its rule, the buffer is empty, or the sample would not fit into memory.
    """
    are_right = type(batch_size) is type(n_step) is int and type(gamma) is float  # as most often
    if not (are_right and batch_size > 0 and n_step > 0 and 0 <= gamma <= 1 and num_batches is None):
        batch_size = checked(owner, "batch_size", batch_size, PositiveInt, ReplayBufferError)
        n_step = checked(owner, "n_step", n_step, PositiveInt, ReplayBufferError)
        gamma = checked(owner, "gamma", gamma, UnitFloat, ReplayBufferError)
        num_batches = checked(owner, "num_batches", num_batches, PositiveInt | None, ReplayBufferError)
    if not ring.written.any():
        raise ReplayBufferError(f"{owner}: the buffer is empty. Collect or load transitions first.")
    num_cells = batch_size * (num_batches or 1)
    if num_cells > ring.num_cells:
        check_fits(owner, "batch_size", batch_size, 2 * num_cells * cell_nbytes, ring.device)
    return (batch_size,) if num_batches is None else (num_batches, batch_size), n_step, gamma


def check_lengths(owner: str, ring: Ring, length: int, burn_in: int) -> tuple[int, int]:
    """Return the lengths of `ReplayBuffer.sample_sequences`.

    Raises:
        ReplayBufferError: one breaks its rule, or no trace that is stored can be as long as both.
    """
    length = checked(owner, "length", length, PositiveInt, ReplayBufferError)
    burn_in = checked(owner, "burn_in", burn_in, NonNegativeInt, ReplayBufferError)
    if length + burn_in > ring.cells_per_env:
        rule = f"must with burn_in={burn_in} be at most the {ring.cells_per_env} transitions that each env keeps"
        raise ReplayBufferError(field_error_text(owner, "length", rule, length, "Give the buffer more capacity."))
    return length, burn_in
