"""A limit on training episodes."""

import dataclasses

from rltrainer.hooks.context import TrainerContext
from rltrainer.hooks.hook import TrainerHook
from rltrainer.state.typed_state import from_state, to_state
from rltrainer.types import Load, State
from rltrainer.validation.field_rules import NonNegativeInt, PositiveInt, checked


class MaxEpisodes(TrainerHook):
    """Ends the run after the training step in which so many training episodes have ended, over all envs.

    Args:
        num_episodes: how many.

    Raises:
        ParamsError: it is no positive integer.
    """

    def __init__(self, num_episodes: int) -> None:
        self.num_episodes = checked("MaxEpisodes", "num_episodes", num_episodes, PositiveInt)
        self._state = MaxEpisodesState()

    def post_steps(self, ctx: TrainerContext) -> None:
        """Count, and end the run if it is time."""
        if ctx.collect_stats is not None:
            self._state.num_ended += ctx.collect_stats.num_collected_episodes
        if self._state.num_ended >= self.num_episodes:
            ctx.request_stop(f"{self._state.num_ended} training episodes have ended")

    def reset(self) -> None:
        """Forget an earlier run."""
        self._state = MaxEpisodesState()

    def state_dict(self) -> State:
        """Return how many have ended."""
        return dict(to_state(self._state))

    def prepare_load(self, state: State) -> Load:
        """Check it, and return what goes on with it."""
        found = from_state(MaxEpisodesState, state, type(self).__name__)

        def load() -> None:
            self._state = found

        return load


@dataclasses.dataclass
class MaxEpisodesState:
    """State of a `MaxEpisodes`."""

    num_ended: NonNegativeInt = 0
