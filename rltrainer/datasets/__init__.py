"""Data sets: some episodes of a buffer as a buffer of their own."""

from rltrainer.data.chosen_episodes import best_episodes, episodes_with_return, split_episodes

__all__ = ["best_episodes", "episodes_with_return", "split_episodes"]
