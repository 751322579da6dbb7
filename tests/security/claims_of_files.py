"""Files of all kinds that claim far more than they hold, or lie far longer than they should, and their readers.

Each maker writes one into a folder and returns its path, whose name says who reads it.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rltrainer as rl
from rltrainer.checkpoint import read_checkpoint
from rltrainer.loggers import RunFolder
from rltrainer.loggers.json_lines import read_log
from rltrainer.tools.recipes.cookbook import recipe_of

WIDE, LONG = 20_000_000, 10**10
"""Numbers in a row, of which there is none or one; bytes of a file with a hole, which takes no disk."""


def read_as_named(path: str | Path) -> object:
    """Read a file, or a folder, by its name."""
    path = Path(path)
    match path.name.split(".")[0]:
        case "run":
            run = rl.open_run(path)
            return [run.rows(kind) for kind in run.kinds]
        case "log":
            return read_log(path)
        case "resumed":
            return rl.JSONLinesLogger(path).read_progress()
        case "counters":
            return rl.CSVLogger(path).read_progress()
        case "recipe":
            return recipe_of(RunFolder(path))
        case "sweep":
            return rl.open_sweep(path)
        case "checkpoint":
            return read_checkpoint(path)
    return rl.datasets.load(path)


def columns(num_rows: int, width: int) -> dict[str, Any]:
    """Return the columns of a data set whose rows are wide."""
    wide, one = np.zeros((num_rows, width), np.float32), np.zeros(num_rows, np.float32)
    return {"observations": wide, "actions": one, "rewards": one, "terminals": one, "next_observations": wide}


def npz_without_rows(folder: Path) -> Path:
    np.savez(folder / "empty.npz", **columns(0, WIDE))
    return folder / "empty.npz"


def npz_of_zeros(folder: Path) -> Path:
    np.savez_compressed(folder / "zeros.npz", **columns(1, 4_000_000))
    return folder / "zeros.npz"


def npz_nested_deep(folder: Path) -> Path:
    np.savez(folder / "deep.npz", **columns(2, 1), **{"observations" + "/a" * 20_000: np.zeros(2)})
    return folder / "deep.npz"


def npz_of_many(folder: Path) -> Path:
    np.save(member := io.BytesIO(), np.zeros(2, np.float32))
    with zipfile.ZipFile(folder / "many.npz", "w") as file:
        for i in range(3000):
            file.writestr(f"observations/{i}.npy", member.getvalue())
    return folder / "many.npz"


def hdf5(name: str, fill: Callable[[Any], object]) -> Callable[[Path], Path]:
    """Return what makes a file that is filled so."""

    def make(folder: Path) -> Path:
        import h5py

        with h5py.File(folder / f"{name}.hdf5", "w") as file:
            fill(file)
        return folder / f"{name}.hdf5"

    return make


def nest_deep(group: Any) -> None:
    for name in ("observations", *["a"] * 1000):
        group = group.create_group(name)


def parquet_without_rows(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    one, wide = pa.float32(), pa.list_(pa.float32(), WIDE)
    types = {name: one if column.ndim == 1 else wide for name, column in columns(0, 1).items()}
    parquet.write_table(pa.schema(types).empty_table(), folder / "empty.parquet")
    return folder / "empty.parquet"


def lerobot_without_rows(folder: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    path = folder / "lerobot"
    (path / "meta").mkdir(parents=True)
    (path / "data").mkdir()
    features = {name: {"dtype": "float32", "shape": [WIDE]} for name in ("observation.state", "action")}
    (path / "meta" / "info.json").write_text(json.dumps({"features": features}))
    names = {"observation.state": 1.0, "action": 1.0, "episode_index": 0, "frame_index": 0}
    parquet.write_table(pa.table({name: pa.array([], pa.float32()) for name in names}), path / "data" / "0.parquet")
    return path


def long(name: str, beginning: str = "{") -> Callable[[Path], Path]:
    """Return what makes a file that begins like a sound one and has no end, and returns what is read."""

    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for other in ("counters.csv", "study.log"):  # what a reader wants to find beside it
            (path.parent / other).write_text("step,name,value\n")
        path.write_text(beginning)
        os.truncate(path, LONG)
        return folder / name.split("/")[0].removesuffix(".progress.json")

    return make


def log_of_many_names(folder: Path) -> Path:
    path = folder / "run.names"
    (path / "logs").mkdir(parents=True)
    wide = {"kind": "training", "step": 0} | {f"training/{i}": 1.0 for i in range(5000)}
    rows = [wide] + [{"kind": "training", "step": i} for i in range(5000)]
    (path / "logs" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


TOO_WIDE_COLUMNS = "expected columns of at most"
TOO_WIDE = "all must hold at most 1048576 numbers"
TOO_LONG = "longer than 33,554,432 bytes"
ROW = '{"kind": "training", "step": 0}\n'
TOO_LONG_A_LINE = "has a line of more than 33,554,432 bytes"
CASES: list[tuple[Callable[[Path], Path], str]] = [
    (npz_without_rows, TOO_WIDE),
    (npz_of_zeros, TOO_WIDE),
    (npz_nested_deep, "nested at most 100 deep"),
    (npz_of_many, "expected the member 'actions'"),
    (hdf5("empty", lambda f: [f.create_dataset(n, data=x) for n, x in columns(0, WIDE).items()]), TOO_WIDE_COLUMNS),
    (hdf5("unwritten", lambda f: [f.create_dataset(n, (1, WIDE), "f4") for n in columns(0, 1)]), TOO_WIDE_COLUMNS),
    (hdf5("deep", nest_deep), "expected groups nested at most 100 deep"),
    (parquet_without_rows, TOO_WIDE),
    (lerobot_without_rows, TOO_WIDE),
    (long("run.params/params.json"), TOO_LONG),
    (long("recipe.long/recipe.json"), TOO_LONG),
    (long("sweep.long/sweep.json"), TOO_LONG),
    (long("checkpoint.long/manifest.json"), TOO_LONG),
    (long("log.json/log.jsonl", ROW), TOO_LONG_A_LINE),
    (long("resumed.jsonl", ROW), TOO_LONG_A_LINE),
    (long("counters.csv.progress.json"), TOO_LONG),
    (log_of_many_names, "5,000 names in 5,001 rows"),
]
"""Makers of files, and what their readers say."""
