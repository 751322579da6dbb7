"""What no replay buffer can undercut: bare NumPy writes, and bare torch gathers. Prints one JSON line."""

from collections.abc import Callable

import numpy as np
import task
import torch
from data import buffer_steps, fill

SHAPES = {
    "obs": ((task.OBS_SIZE,), np.float32),
    "action": ((task.ACTION_SIZE,), np.float32),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}
"""Each observation once: the next row's is the successor."""


def buffer_work(work: task.Work, seed: int) -> Callable[[int], int]:
    """Return what writes a row to, or gathers a batch from, arrays [rows, envs] that are filled."""
    num_rows = task.BUFFER_SIZE // task.BUFFER_ENVS
    arrays = {name: np.zeros((num_rows, task.BUFFER_ENVS, *shape), dtype) for name, (shape, dtype) in SHAPES.items()}
    flat = {name: torch.from_numpy(array).flatten(0, 1) for name, array in arrays.items()}
    steps, row = buffer_steps(seed), 0

    def add() -> None:
        nonlocal row
        step = next(steps)
        for name, array in arrays.items():
            array[row] = step[name]
        row = (row + 1) % num_rows

    fill(work, add)
    size = int(work.fill * task.BUFFER_SIZE)

    def sample() -> list[torch.Tensor]:
        index = torch.randint(size, (work.batch_size,))
        batch = [column.index_select(0, index) for column in flat.values()]
        return [*batch, flat["obs"].index_select(0, (index + task.BUFFER_ENVS) % task.BUFFER_SIZE)]

    return task.repeated(add if work.kind == "add" else sample)


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    if work.kind not in ("add", "sample"):
        raise SystemExit(f"the floor is of buffers, not of {work.kind}")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    task.measure(work, buffer_work(work, args.seed), args, None, ("torch", "numpy"))


if __name__ == "__main__":
    main()
