"""Runs on a GPU, from env to gradient, beside peers; and gradient steps of peers. One process at a time, in turn.

`gpu.py` prints them. The rows are the works of `peers/task.py`; what a peer cannot do is left out.
"""

import dataclasses
import statistics
import subprocess
import sys

import ours  # noqa: F401  # it finds the folder of `task`
import speed
import task
from speed import Program

PROGRAMS = {
    "auto": Program("rltrainer", "ours.py", options=("--compile", "auto")),
    "compiled": Program("rltrainer, compiled", "ours.py", options=("--compile", "true")),
    "overlap": Program("rltrainer, compiled, overlap", "ours.py", options=("--compile", "true", "--overlap")),
    "sb3": speed.PROGRAMS["sb3"],
    "sbx": dataclasses.replace(speed.PROGRAMS["sbx"], venv="jax-cuda"),
    "rejax": dataclasses.replace(speed.PROGRAMS["rejax"], venv="jax-cuda"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One row: a run of a work, with the env steps per second that are aimed at.

    Args:
        title: what is trained.
        programs: keys of `PROGRAMS`.
        warmup: env steps before the clock starts.
        steps: env steps that are timed.
        goal: of the best of our programs.
        options: further arguments of our programs.
    """

    title: str
    programs: tuple[str, ...]
    warmup: int
    steps: int
    goal: int
    options: tuple[str, ...] = ()


OURS, OFF_POLICY, TENSORS = ("auto", "compiled"), ("auto", "compiled", "overlap"), ("--backend", "tensor")
RUNS = {
    "sac": Run("SAC HalfCheetah, 1 env, 1 update a step", (*OFF_POLICY, "sb3", "sbx"), 1000, 4000, 1500),
    "dqn": Run("DQN CartPole, 1 env, 1 update a step", (*OFF_POLICY, "sb3", "sbx", "rejax"), 1000, 5000, 1500),
    "dqn-images": Run("DQN, images, 1 env, 1 update a step", (*OFF_POLICY, "sb3", "sbx"), 300, 2000, 4000),
    "ppo-images": Run("PPO, images, 8 envs", (*OURS, "sb3", "sbx"), 2048, 20_480, 15_000),
    "ppo-256x4": Run(
        "PPO CartPole, tensor envs, 8 x 256", (*OURS, "sb3", "sbx", "rejax"), 8192, 204_800, 200_000, TENSORS
    ),
    "ppo-1024": Run(
        "PPO CartPole, tensor envs, 1,024 x 16", (*OURS, "sb3", "sbx", "rejax"), 32_768, 1_638_400, 3_000_000, TENSORS
    ),
    "ppo-4096": Run(
        "PPO CartPole, tensor envs, 4,096 x 16", (*OURS, "rejax"), 131_072, 19_660_800, 20_000_000, TENSORS
    ),
    "ppo-16384": Run(
        "PPO CartPole, tensor envs, 16,384 x 16", (*OURS, "rejax"), 524_288, 52_428_800, 40_000_000, TENSORS
    ),
}
NOT_MEASURED = "not measured"
UPDATE_PEERS = ("sb3", "sbx")
"""rejax takes no gradient step apart from its envs."""
UPDATE_STEPS = 1000
"""Of peers, at most: some take a hundred a second."""


def speed_of(key: str, work: str, warmup: int, steps: int, num_runs: int, device: str, *options: str) -> str:
    """Return the median of a program's steps per second, as text."""
    program = on_device(PROGRAMS[key], device) if num_runs else None
    if program is None:
        return NOT_MEASURED
    found = [speed.run_program(program, work, warmup, steps, "--device", device, *options) for _ in range(num_runs)]
    values = [result["steps"] / result["seconds"] for result in found if result is not None]
    return f"{statistics.median(values):,.0f}" if len(values) == num_runs else "failed"


def on_device(program: Program, device: str) -> Program | None:
    """Return the program in an environment for the device; None if there is none, and it cannot be made."""
    if device == "cpu" and program.venv == "jax-cuda":
        program = dataclasses.replace(program, venv="jax")
    if program.venv is None or speed.is_made(program.venv):
        return program
    if device == "cpu":  # a short look is not worth gigabytes
        return None
    try:
        speed.make_venv(program.venv)
    except subprocess.CalledProcessError as error:
        print(f"{program.title}: its environment could not be made ({error})", file=sys.stderr)
        return None
    return program


def peers_of(work: str, steps: int, num_runs: int, device: str) -> list[str]:
    """Return the gradient steps per second of each of `UPDATE_PEERS`; empty where the work is none of theirs."""
    if work not in task.WORKS:
        return [""] * len(UPDATE_PEERS)
    return [speed_of(key, work, 0, min(steps, UPDATE_STEPS), num_runs, device) for key in UPDATE_PEERS]


def merged(lines: list[str], before: list[str]) -> list[str]:
    """Return lines of a report, with those of the report before for rows that were not measured now."""
    begins = [line.partition(NOT_MEASURED)[0] if NOT_MEASURED in line else None for line in lines]
    found = (next((x for x in before if begin and x.startswith(begin)), None) for begin in begins)
    return [line if old is None else old for line, old in zip(lines, found, strict=True)]


def row(name: str, num_runs: int, device: str, stamp: str, with_peers: bool = True) -> str:
    """Measure one of `RUNS` and return its line of Markdown; briefly on the CPU, not at all with no runs."""
    run, figures = RUNS[name], dict.fromkeys(PROGRAMS, "")
    warmup, steps = (0, 1) if device == "cpu" else (run.warmup, run.steps)
    for key in run.programs:
        if key == "overlap" and device == "cpu":
            continue
        is_ours = PROGRAMS[key].is_ours
        options, count = run.options if is_ours else (), num_runs if is_ours or with_peers else 0
        figures[key] = speed_of(key, name, warmup, steps, count, device, *options)
    return f"| {run.title} | {' | '.join(figures.values())} | {run.goal:,} | {stamp if num_runs else ''} |"


def head() -> list[str]:
    """Return the head of the table of `RUNS`."""
    titles = " | ".join(program.title for program in PROGRAMS.values())
    return [f"| env steps/s | {titles} | goal | measured |", f"|---|{'---|' * len(PROGRAMS)}---|---|"]
