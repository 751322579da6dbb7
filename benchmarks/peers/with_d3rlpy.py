"""The offline work with d3rlpy. Runs in its own virtual environment; prints one JSON line.

d3rlpy compiles on CUDA only, so here it is eager.
"""

from typing import Any

import d3rlpy
import numpy as np
import task
import torch
from d3rlpy.algos import BCConfig, IQLConfig, TD3PlusBCConfig
from d3rlpy.logging import NoopAdapterFactory
from d3rlpy.models import VectorEncoderFactory
from data import offline_data

PACKAGES = ("d3rlpy", "torch", "gymnasium", "numpy")


def make_algorithm(work: task.Work) -> Any:
    """Return the algorithm with the networks that the work says."""
    encoder = VectorEncoderFactory(hidden_units=list(work.hidden_sizes), activation="relu")
    if work.kind == "bc":
        return BCConfig(learning_rate=work.lr, batch_size=work.batch_size, encoder_factory=encoder).create("cpu:0")
    shared = {
        "actor_learning_rate": work.lr, "critic_learning_rate": work.lr, "batch_size": work.batch_size,
        "gamma": task.GAMMA, "tau": task.TAU, "actor_encoder_factory": encoder, "critic_encoder_factory": encoder,
    }  # fmt: skip
    if work.kind == "iql":
        return IQLConfig(value_encoder_factory=encoder, **shared).create("cpu:0")
    if work.kind == "td3bc":
        return TD3PlusBCConfig(**shared).create("cpu:0")
    raise SystemExit(f"d3rlpy does no {work.kind} here")


def make_dataset(seed: int) -> d3rlpy.dataset.MDPDataset:
    """Return the episodes; d3rlpy leaves out the last transition of each that ends in a time limit."""
    data = offline_data(seed)
    return d3rlpy.dataset.MDPDataset(
        observations=data["obs"], actions=data["action"], rewards=data["reward"],
        terminals=data["terminated"].astype(np.float32), timeouts=data["truncated"].astype(np.float32),
    )  # fmt: skip


def main() -> None:
    args = task.parser(__doc__).parse_args()
    work = task.WORKS[args.work]
    torch.set_num_threads(1)
    d3rlpy.seed(args.seed)
    algorithm, dataset = make_algorithm(work), make_dataset(args.seed)

    def advance(steps: int) -> int:
        algorithm.fit(
            dataset, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=NoopAdapterFactory(), show_progress=False
        )
        return steps

    task.measure(work, advance, args, None, PACKAGES)


if __name__ == "__main__":
    main()
