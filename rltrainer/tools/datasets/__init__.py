"""Data sets: other projects' files as buffers, and some episodes of a buffer as a buffer of their own."""

from rltrainer.tools.datasets.any_file import load
from rltrainer.tools.datasets.array_files import from_hdf5, from_npz
from rltrainer.tools.datasets.chosen_episodes import best_episodes, episodes_with_return, split_episodes
from rltrainer.tools.datasets.minari_data import from_minari, to_minari
from rltrainer.tools.datasets.parquet_files import from_lerobot, from_parquet

__all__ = [
    "best_episodes", "episodes_with_return", "from_hdf5", "from_lerobot", "from_minari", "from_npz", "from_parquet",
    "load", "split_episodes", "to_minari",
]  # fmt: skip
