"""The choice of the transitions of a batch: uniform, or by the sampler beside the ring."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rltrainer.data.ring import Ring
from rltrainer.data.sampler import Sampler
from rltrainer.data.storage import Array
from rltrainer.errors import ReplayBufferError, field_error_text
from rltrainer.plan import no_progress
from rltrainer.seeding import check_generator, make_generator, reseed, set_generator
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt


@dataclass(kw_only=True)
class SamplingState:
    """State of a `BatchSampler`."""

    generator: Any
    has_own_seed: bool
    sampler: dict[str, Any] | None = None


@dataclass(kw_only=True)
class OfflineState(SamplingState):
    """State of a buffer whose data is the user's file."""

    num_transitions: NonNegativeInt


class BatchSampler:
    """Draws slots of a ring, uniformly or by the ring's sampler.

    Attributes:
        generator: of the random numbers.
        has_own_seed: whether the user gave the seed, so that no other one replaces it.
        progress: returns the share of the training that is done, for schedules; set by the algorithm that samples.
    """

    def __init__(self, ring: Ring, seed: int | None) -> None:
        self._ring = ring
        self.generator = make_generator(seed, ring.device)
        self.has_own_seed = seed is not None
        self.progress: Callable[[], float] = no_progress

    def __getstate__(self) -> dict[str, Any]:
        """Copy without the way back to a trainer."""
        return self.__dict__ | {"progress": no_progress}

    def draw(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
        """Return slots [B] or [K, B], and their weights in a loss if they are not 1."""
        sampler = self._ring.sampler
        if sampler is None:
            return self._ring.draw(shape, self.generator), None
        return sampler.draw(self._ring.num_drawable, shape, self.progress(), self.generator)

    def set_sampler(self, sampler: Sampler | None) -> None:
        """Set the ring's sampler; a `ReplayBufferError` if transitions are stored, which it would know nothing of."""
        if len(self._ring):
            hint = "Set it in the constructor of your buffer."
            rule = "must be set before anything is stored"
            raise ReplayBufferError(field_error_text("ReplayBuffer", "sampler", rule, sampler, hint))
        self._ring.sampler = sampler

    def update(self, index: Tensor, td_error: Tensor | None) -> None:
        """Report errors, both [B] or [K, B], to the sampler, if there are both.

        Of K batches the last one is reported last: of a transition in several of them, the newest error counts.
        """
        sampler, device = self._ring.sampler, self._ring.device
        if sampler is not None and td_error is not None:
            slots, errors = index.to(device), td_error.detach().to(device)
            for batch in zip(slots, errors, strict=True) if slots.dim() > 1 else ((slots, errors),):
                sampler.update(*batch)

    def seed(self, seed: int) -> None:
        """Seed the generator, unless the user gave it a seed."""
        if not self.has_own_seed:
            reseed(self.generator, "ReplayBuffer", seed)

    def state_dict(self) -> State:
        """Return the state of generator and sampler; tensors may share memory."""
        sampler, ring = self._ring.sampler, self._ring
        known = {} if sampler is None else {"sampler": sampler.state_dict(ring.drawable_slots(ring.written))}
        return {"generator": self.generator.get_state(), "has_own_seed": self.has_own_seed, **known}

    def prepare_load(self, found: SamplingState, written: Array | None = None, is_exact: bool = True) -> Load:
        """Check a state, and return the function that loads it.

        Args:
            found: the state.
            written: [N] transitions that each env will ever have stored when it is loaded; None: those of the ring now.
            is_exact: whether buffer and state must both have a sampler or none. Else transitions are new to a sampler.

        Raises:
            ReplayBufferError, CheckpointError: it is of another sampler, or no generator's.
        """
        sampler, load_sampler = self._ring.sampler, None
        if sampler is not None and found.sampler is not None:
            slots = self._ring.drawable_slots(self._ring.written if written is None else written)
            try:
                load_sampler = sampler.prepare_load(found.sampler, slots)
            except ReplayBufferError as error:
                raise ReplayBufferError(f"sampler.{error}") from error
        elif is_exact and (sampler is None) != (found.sampler is None):
            text = "one of the two buffers draws uniformly, the saved one and this one, the other not"
            raise ReplayBufferError(f"sampler: {text}")
        check_generator("generator", self.generator, found.generator)

        def load() -> None:
            if load_sampler is not None:
                load_sampler()
            self.load_generator(found)

        return load

    def load_generator(self, found: SamplingState) -> None:
        """Take over a checked state of the generator."""
        set_generator(self.generator, found.generator)
        self.has_own_seed = found.has_own_seed
