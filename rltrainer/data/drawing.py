"""The draw of transitions from a buffer: a generator, and a sampler where they are not drawn uniformly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltrainer.data.memory_forecast import check_fits
from rltrainer.data.ring import Ring
from rltrainer.data.sampler import Sampler
from rltrainer.data.state_checks import require
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, field_error_text, readable
from rltrainer.plan import no_progress
from rltrainer.seeding import make_generator, reseed
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, UnitFloat, checked


class Drawing:
    """Draws cells of a ring, uniformly or as the ring's sampler says.

    Args:
        ring: where the cells lie.
        seed: None takes one that another seed may replace.

    Attributes:
        progress: returns the share of the training that is done, which schedules go by; set by who samples.
    """

    def __init__(self, ring: Ring, seed: int | None) -> None:
        self.ring = ring
        self.generator = make_generator(seed, ring.device)
        self.has_own_seed = seed is not None
        self.progress: Callable[[], float] = no_progress

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the way back to a trainer."""
        return self.__dict__ | {"progress": no_progress}

    @property
    def sampler(self) -> Sampler | None:
        """The sampler that draws the cells; None draws them uniformly. A buffer sets one in its constructor.

        Raises:
            ReplayBufferError: one is set where transitions are stored already, of which it would know nothing.
        """
        return self.ring.sampler

    @sampler.setter
    def sampler(self, sampler: Sampler | None) -> None:
        if len(self.ring):
            hint = "Set it in the constructor of your buffer."
            rule = "must be set before anything is stored"
            raise ReplayBufferError(field_error_text("ReplayBuffer.drawing", "sampler", rule, sampler, hint))
        self.ring.sampler = sampler

    @property
    def num_cells(self) -> int:
        """The number of cells; they are numbered from 0, and a few of them are always empty."""
        return self.ring.num_cells

    def update(self, index: Tensor, td_error: Tensor | None) -> None:
        """Tell the sampler of the errors at cells, both [B] or [K, B]; do nothing without one, or without errors.

        Of K batches the last one is told last: of a transition that several of them hold, the newest error counts.
        """
        sampler, device = self.ring.sampler, self.ring.device
        if sampler is not None and td_error is not None:
            cells, errors = index.to(device), td_error.detach().to(device)
            for batch in zip(cells, errors, strict=True) if cells.dim() > 1 else ((cells, errors),):
                sampler.update(*batch)

    def draw(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Return cells [B] or [K, B], and their weights in a loss if they are not 1."""
        sampler = self.ring.sampler
        if sampler is None:
            return self.ring.draw(shape, self.generator), None
        return sampler.draw(self.ring.num_drawable, shape, self.progress(), self.generator)

    def seed(self, seed: int) -> None:
        """Seed the generator, unless it was given a seed of its own."""
        if not self.has_own_seed:
            reseed(self.generator, "ReplayBuffer", seed)

    def state_dict(self) -> State:
        """Return the whole state; its tensors may share memory."""
        generator = {
            "device": self.generator.device.type,
            "state": self.generator.get_state(),
            "seed": self.generator.initial_seed(),
            "has_own_seed": self.has_own_seed,
        }
        return {"generator": generator, **self.sampler_state()}

    def prepare_load(self, state: State, written: Array | None = None, is_exact: bool = True) -> Load:
        """Check a whole state, and return what loads it; see `prepare_sampler`, for what is raised too."""
        load_sampler = self.prepare_sampler(state, written, is_exact)
        try:
            self._set_generator(torch.Generator(self.ring.device), state)
            require(isinstance(state["generator"]["has_own_seed"], bool), "generator: must say whether it was seeded")
        except (RuntimeError, LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            text = f"generator: not the state of a generator ({type(error).__name__}: {error})"
            raise ReplayBufferError(text) from error

        def load() -> None:
            load_sampler()
            self.load_generator(state)

        return load

    def load_generator(self, state: State) -> None:
        """Restore the generator from a state that was checked."""
        self._set_generator(self.generator, state)
        self.has_own_seed = state["generator"]["has_own_seed"]

    def sampler_state(self) -> State:
        """Return the state of the sampler, if there is one."""
        sampler, ring = self.ring.sampler, self.ring
        return {} if sampler is None else {"sampler": sampler.state_dict(ring.drawable_cells(ring.written))}

    def prepare_sampler(self, state: State, written: Array | None = None, is_exact: bool = True) -> Load:
        """Check what `sampler_state` returned, and return what loads it; for errors see `Sampler.prepare_load`.

        Args:
            state: what may hold the state of a sampler.
            written: how many cells each env will ever have stored when it is loaded [N]; None takes the ring's.
            is_exact: whether a state without one fits no ring with a sampler, nor the other way round. Else a sampler
                takes the cells for new ones.
        """
        found, sampler = state.get("sampler"), self.ring.sampler
        if sampler is None or found is None:
            fits = not is_exact or sampler is found
            require(fits, "sampler: one of the two buffers draws uniformly, the saved one and this one, the other not")
            return lambda: None
        require(isinstance(found, dict), f"sampler: expected a state, found {readable(found)}")
        try:
            cells = self.ring.drawable_cells(self.ring.written if written is None else written)
            return sampler.prepare_load(found, cells)
        except ReplayBufferError as error:
            raise ReplayBufferError(f"sampler.{error}") from error

    @staticmethod
    def _set_generator(generator: torch.Generator, state: State) -> None:
        """Set a generator; one that lived on another kind of device starts from its seed, as their states differ."""
        saved = state["generator"]
        if saved["device"] == generator.device.type:
            generator.set_state(saved["state"].cpu())
        else:
            generator.manual_seed(saved["seed"])


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
