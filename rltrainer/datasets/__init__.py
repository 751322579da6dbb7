"""Data sets: other projects' files as buffers, and some episodes of a buffer as a buffer of their own."""

from rltrainer.data.chosen_episodes import best_episodes, episodes_with_return, split_episodes
from rltrainer.datasets.any_file import load
from rltrainer.datasets.hdf5_file import from_hdf5
from rltrainer.datasets.lerobot_folder import from_lerobot
from rltrainer.datasets.minari_read import from_minari
from rltrainer.datasets.minari_write import to_minari
from rltrainer.datasets.npz_file import from_npz
from rltrainer.datasets.parquet_file import from_parquet

__all__ = [
    "best_episodes",
    "episodes_with_return",
    "from_hdf5",
    "from_lerobot",
    "from_minari",
    "from_npz",
    "from_parquet",
    "load",
    "split_episodes",
    "to_minari",
]
