"""How fast rltrainer is beside its peers, measured in one run.

Each measurement is a process of its own, one at a time, the programs in turn; the figure is the median. A peer's
virtual environment is made when it is first needed, under `benchmarks/.peers/`.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
VENVS = HERE / ".peers"
STORE = HERE / "results.json"
"""What the processes of the last measurement of each case printed; `results.md` is made from it."""
MUJOCO = ("gymnasium[mujoco]", "mujoco==3.10.0")

REQUIREMENTS = {
    "sb3": ("stable-baselines3==2.9.*", *MUJOCO),
    "tianshou": ("tianshou==2.0.*", *MUJOCO),
    "torchrl": ("torchrl==0.14.*", *MUJOCO),
    "d3rlpy": ("d3rlpy==2.8.*",),
    "skrl": ("skrl==2.1.*", *MUJOCO),
    "jax-cuda": ("sbx-rl==0.28.*", "rejax==0.1.3", "gymnax==0.0.9", "jax[cuda12]==0.10.*", "flax==0.12.*", *MUJOCO),
    "jax": ("sbx-rl==0.28.*", "rejax==0.1.3", "gymnax==0.0.9", "jax==0.10.*", "flax==0.12.*", *MUJOCO),
}
"""What each virtual environment holds, beside the PyTorch version that we run on."""

# One thread each, also in the libraries that read it at import. What is measured is this checkout, also where another
# one is installed.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}


@dataclass(frozen=True)
class Program:
    """One column of the comparison.

    Args:
        title: its name in the table.
        script: below benchmarks/.
        venv: the virtual environment that it runs in; None is ours.
        options: its own arguments.
        is_compiled: whether its updates are compiled.
    """

    title: str
    script: str
    venv: str | None = None
    options: tuple[str, ...] = ()
    is_compiled: bool = False

    @property
    def is_ours(self) -> bool:
        return self.script == "ours.py"

    @property
    def python(self) -> str:
        return sys.executable if self.venv is None else str(VENVS / self.venv / "bin" / "python")


COMPILED = ("--compile", "true")
PROGRAMS = {
    "ours": Program("rltrainer", "ours.py", options=("--compile", "false")),
    "ours-sync": Program("rltrainer, sync envs", "ours.py", options=("--compile", "false", "--backend", "sync")),
    "ours-compiled": Program("rltrainer, compiled", "ours.py", options=COMPILED, is_compiled=True),
    "ours-bf16": Program(
        "rltrainer, compiled, bf16", "ours.py", options=(*COMPILED, "--amp", "bf16"), is_compiled=True
    ),
    "ours-tensor": Program(
        "rltrainer, compiled, tensor envs", "ours.py", options=(*COMPILED, "--backend", "tensor"), is_compiled=True
    ),
    "ours-prioritized": Program("rltrainer, by priority", "ours.py", options=("--prioritized",)),
    "sb3": Program("Stable-Baselines3", "peers/with_sb3.py", "sb3"),
    "tianshou": Program("Tianshou", "peers/with_tianshou.py", "tianshou"),
    "torchrl": Program("TorchRL", "peers/with_torchrl.py", "torchrl"),
    "torchrl-compiled": Program("TorchRL, compiled", "peers/with_torchrl.py", "torchrl", COMPILED, is_compiled=True),
    "skrl": Program("skrl", "peers/with_skrl.py", "skrl"),
    "d3rlpy": Program("d3rlpy", "peers/with_d3rlpy.py", "d3rlpy"),
    "sbx": Program("SBX (JAX)", "peers/with_sbx.py", "jax", is_compiled=True),
    "rejax": Program("rejax (JAX, envs too)", "peers/with_rejax.py", "jax", is_compiled=True),
    "floor": Program("NumPy writes, torch gathers", "peers/floor.py"),
}
FLOOR = "floor"


@dataclass(frozen=True)
class Case:
    """One row of the comparison.

    Args:
        title: what is done.
        unit: `env steps/s` or `updates/s`, of which more is better, or `us`, of which less is.
        peers: keys of `PROGRAMS`.
        ours: likewise.
        warmup: steps before the clock starts.
        steps: steps that are timed.
        goals: what our eager, compiled and bf16 programs shall reach, by their key: times the best peer, or us.
        is_quick: part of `--quick`.
    """

    title: str
    unit: str
    peers: tuple[str, ...]
    ours: tuple[str, ...]
    warmup: int
    steps: int
    goals: dict[str, float]
    is_quick: bool = False


def goals(eager: float, compiled: float, bf16: float | None = None) -> dict[str, float]:
    """Return goals in times the best peer."""
    return {"ours": eager, "ours-compiled": compiled} | ({} if bf16 is None else {"ours-bf16": bf16})


ONLINE, UPDATE, BOTH = "env steps/s", "updates/s", ("ours", "ours-compiled")
ALL = (*BOTH, "ours-bf16")
CARTPOLE_PEERS = ("sb3", "tianshou", "torchrl", "torchrl-compiled", "skrl", "sbx", "rejax")
CARTPOLE_OURS = ("ours", "ours-sync", "ours-compiled", "ours-tensor")
BUFFER_PEERS = ("sb3", "tianshou", "torchrl", FLOOR)
ADD, SAMPLE = {"ours": 5.0}, {"ours": 80.0}

CASES = {
    "ppo-256x4": Case(
        "PPO CartPole, batch 256 x 4", ONLINE, CARTPOLE_PEERS, CARTPOLE_OURS, 8192, 40_960,
        goals(1.9, 2.8) | {"ours-tensor": 0.8}, is_quick=True,
    ),
    "ppo-64x10": Case(
        "PPO CartPole, batch 64 x 10", ONLINE, CARTPOLE_PEERS, CARTPOLE_OURS, 8192, 40_960,
        goals(1.3, 5.0) | {"ours-tensor": 0.8},
    ),
    "ppo-1024": Case(
        "PPO CartPole, 1,024 envs, batch 1,024 x 4", ONLINE, ("sb3", "rejax"), (*BOTH, "ours-tensor"), 32_768, 163_840,
        goals(1.5, 3.0) | {"ours-tensor": 1.0},
    ),
    "collect": Case("collection alone, CartPole", ONLINE, ("sb3",), ("ours", "ours-sync"), 8192, 40_960, {"ours": 3.0}),
    "ppo-cheetah": Case(
        "PPO HalfCheetah, batch 64 x 10", ONLINE, ("sb3", "sbx"), BOTH, 4096, 20_480, goals(1.4, 3.5)
    ),
    "a2c": Case("A2C CartPole", ONLINE, ("sb3",), BOTH, 4000, 20_000, goals(1.5, 3.0)),
    "dqn": Case("DQN CartPole", ONLINE, ("sb3", "tianshou", "sbx"), BOTH, 1000, 5000, goals(1.5, 3.5)),
    "sac": Case(
        "SAC HalfCheetah", UPDATE, ("sb3", "tianshou", "skrl", "sbx"), ALL, 400, 1000,
        goals(1.05, 1.3), is_quick=True,
    ),
    "td3": Case(
        "TD3 HalfCheetah", UPDATE, ("sb3", "tianshou", "sbx"), ALL, 400, 1000, goals(1.05, 1.3)
    ),
    "dqn-4": Case(
        "DQN CartPole, 4 updates an env step", ONLINE, ("sb3", "tianshou", "sbx"), BOTH, 500, 2500, goals(1.5, 3.5)
    ),
    "sac-4": Case(
        "SAC HalfCheetah, 4 updates an env step", ONLINE, ("sb3", "tianshou", "sbx"), BOTH, 200, 400, goals(1.05, 1.3)
    ),
    "td3bc": Case("TD3+BC, offline", UPDATE, ("tianshou", "d3rlpy"), ALL, 400, 1000, goals(1.05, 1.8, 2.8)),
    "iql": Case("IQL, offline", UPDATE, ("d3rlpy",), ALL, 400, 1000, goals(1.05, 2.2, 3.2)),
    "bc": Case("BC, offline", UPDATE, ("tianshou", "d3rlpy"), ALL, 400, 2000, goals(1.05, 1.7, 2.0)),
    "add-10": Case("buffer 10 % full: add 16 cells", "us", BUFFER_PEERS, ("ours",), 1000, 5000, ADD),
    "add-100": Case("buffer 100 % full: add 16 cells", "us", BUFFER_PEERS, ("ours",), 1000, 5000, ADD),
    "sample-10": Case(
        "buffer 10 % full: sample 256", "us", BUFFER_PEERS, ("ours",), 500, 2000, SAMPLE, is_quick=True
    ),
    "sample-100": Case(
        "buffer 100 % full: sample 256", "us", BUFFER_PEERS, ("ours", "ours-prioritized"), 500, 2000,
        SAMPLE | {"ours-prioritized": 250.0},
    ),
}  # fmt: skip

QUICK_SHARE = 0.1
"""Of the steps, with `--quick`."""

Runs = dict[str, dict[str, list[dict]]]
"""What the processes printed, by case and program."""


def make_venv(name: str) -> None:
    """Make a peer's virtual environment, with the PyTorch version that we run on, unless it is there."""
    if is_made(name):
        return
    venv = VENVS / name
    print(f"making {venv}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    torch = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
    # torch first: left to the peer, pip would choose its newest build. Named again, it stays what it is.
    for requirements in ((torch,), (torch, *REQUIREMENTS[name])):
        subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements], check=True)
    (venv / ".installed").write_text("\n".join(REQUIREMENTS[name]), encoding="utf-8")


def is_made(name: str) -> bool:
    """Whether the virtual environment is there, with what is required now."""
    stamp = VENVS / name / ".installed"
    return stamp.exists() and stamp.read_text(encoding="utf-8") == "\n".join(REQUIREMENTS[name])


def run_program(program: Program, work: str, warmup: int, steps: int, *options: str) -> dict[str, Any] | None:
    """Run a program in a new process and return the JSON line that it prints; None if it fails."""
    VENVS.mkdir(exist_ok=True)
    command = [program.python, str(HERE / program.script), work, *program.options, *options]
    command += ["--warmup", str(warmup), "--steps", str(steps)]
    # The last lines of stderr say what failed; some libraries write files where they run.
    run = subprocess.run(command, env=ENVIRONMENT, cwd=VENVS, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        print(f"{work:12} {program.title:18} failed: {' '.join(run.stderr.split()[-40:])}", file=sys.stderr)
        return None
    return dict(json.loads(run.stdout.splitlines()[-1]))


def run_once(key: str, case: str, warmup: int, steps: int) -> dict[str, Any] | None:
    """Run the program of a case; return what it prints, with `value` in the case's unit, or None if it fails."""
    result = run_program(PROGRAMS[key], case, warmup, steps)
    if result is None:
        return None
    per_step = result["seconds"] / result["steps"]
    result["value"] = per_step * 1e6 if CASES[case].unit == "us" else 1 / per_step
    print(f"{case:12} {key:18} {result['value']:12,.1f} {CASES[case].unit}", file=sys.stderr)
    return result


def measure(cases: list[str], programs: list[str], num_runs: int, share: float) -> Runs:
    """Run the programs of each case in turn, `num_runs` times, on this share of its steps."""
    results: Runs = {}
    for name in cases:
        case = CASES[name]
        keys = [key for key in (*case.peers, *case.ours) if key in programs]
        results[name] = {key: [] for key in keys}
        for _ in range(num_runs):
            for key in keys:
                result = run_once(key, name, int(case.warmup * share), int(case.steps * share))
                if result is not None:
                    results[name][key].append(result)
    return results


def best_peer(case: Case, medians: dict[str, float], with_compiled: bool) -> float | None:
    """Return the best peer's median: of all peers, or of those that compile nothing."""
    values = [
        medians[key]
        for key in case.peers
        if key in medians and key != FLOOR and (with_compiled or not PROGRAMS[key].is_compiled)
    ]
    return (min(values) if case.unit == "us" else max(values)) if values else None


def table(results: Runs) -> str:
    """Return the medians as a Markdown table; ours are also in times the best peer."""
    head = ["case", "unit", "program", "envs", "median", "lowest to highest", "first chunk, s", "peak MB"]
    lines = ["| " + " | ".join([*head, "times the best peer", "goal"]) + " |", "|---|---|---|---|" + "---:|" * 6]
    for name, by_program in results.items():
        case = CASES[name]
        runs = {key: found for key, found in by_program.items() if found}
        medians = {key: statistics.median(run["value"] for run in found) for key, found in runs.items()}
        for key, found in runs.items():
            program, median = PROGRAMS[key], medians[key]
            digits = 1 if median < 1000 else 0
            peer = best_peer(case, medians, program.is_compiled) if program.is_ours else None
            ratio = "" if peer is None else f"{peer / median if case.unit == 'us' else median / peer:.2f}"
            goal = case.goals.get(key)
            goal_text = "" if goal is None else f"{goal:g} us" if case.unit == "us" else f"{goal:g}"
            values = [run["value"] for run in found]
            spread = f"{min(values):,.{digits}f} to {max(values):,.{digits}f}"
            first = statistics.median(run["compile_seconds"] for run in found)
            peak = statistics.median(run["peak_mb"] for run in found)
            cells = [case.title, case.unit, program.title, found[0]["envs"], f"{median:,.{digits}f}", spread]
            lines.append("| " + " | ".join([*cells, f"{first:.2f}", f"{peak:,.0f}", ratio, goal_text]) + " |")
    return "\n".join(lines)


NOT_MEASURED = """\
## Not measured here

CleanRL and LeanRL have no package that fits here. Of `cleanrl`, the package index has for Python 3.11 only 0.4.8 and
older, as source archives; 1.2.0 wants Python before 3.11. Its `leanrl` is another project, a reader of XBRL reports.
These figures for PPO on CartPole were published by others; they are **not from this run and not from this machine**:

| program | batch 256 x 4, env steps/s | batch 64 x 10, env steps/s |
|---|---:|---:|
| CleanRL | 9,200 | 2,700 |
| LeanRL | 11,500 | 2,500 |
| LeanRL, compiled | 14,300 | |"""


def machine() -> str:
    """Return the processor, its cores and the system."""
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else [])
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.processor() or platform.machine()
    return f"{processor}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"


def versions(results: Runs) -> list[str]:
    """Return a line for each program that ran, with the versions that it printed."""
    found = {key: runs[0]["versions"] for by_program in results.values() for key, runs in by_program.items() if runs}
    return [
        f"- {PROGRAMS[key].title}: {', '.join(f'{name} {version}' for name, version in names.items())}"
        for key, names in found.items()
    ]


def report(held: dict[str, Any]) -> str:
    """Return `results.md` from what the store holds."""
    results: Runs = {name: held[name]["runs"] for name in CASES if name in held}
    failed = [
        f"- failed, {len(runs)} of {held[name]['num_runs']} runs left: {PROGRAMS[key].title}, {CASES[name].title}"
        for name, by_program in results.items()
        for key, runs in by_program.items()
        if len(runs) < held[name]["num_runs"]
    ]
    cases_of: dict[str, list[str]] = {}
    for name in results:
        cases_of.setdefault(held[name]["command"], []).append(CASES[name].title)
    return "\n".join(
        [
            "# Speed beside peers",
            "",
            "Each figure is the median of processes that took turns, one thread each, after a warm-up; the README of "
            "`benchmarks` says what is measured.",
            "",
            *(f"- {command}: {'; '.join(titles)}" for command, titles in cases_of.items()),
            f"- {machine()}",
            *versions(results),
            *failed,
            "",
            "Times the best peer: our eager program beside the best peer that compiles nothing, our compiled ones "
            "beside the best of all. Of `us`, less is better. The first chunk is what the first rollout or epoch took, "
            "compilation and all; the peak is the most memory that the process held.",
            "",
            table(results),
            "",
            NOT_MEASURED,
            "",
        ]
    )


def store(results: Runs, num_runs: int) -> dict[str, Any]:
    """Put the cases into the store, with how they were measured; return all that it holds."""
    held: dict[str, Any] = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    command = f"`python benchmarks/speed.py {' '.join(sys.argv[1:])}` ({datetime.date.today()}, {num_runs} processes)"
    for name, by_program in results.items():
        held[name] = {"command": command, "num_runs": num_runs, "runs": by_program}
    STORE.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    return held


def is_quick(key: str) -> bool:
    """Whether the program needs no environment made, or is the one peer that is worth the wait."""
    venv = PROGRAMS[key].venv
    # Compiling takes longer than all the rest.
    return key != "ours-sync" and not PROGRAMS[key].is_compiled and (venv in (None, "sb3") or is_made(venv))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write docs/measurements/results.md")
    parser.add_argument("--runs", type=int, help="processes per program and case; by default 3, with --quick 1")
    parser.add_argument("--share", type=float, help="of each case's steps; by default 1, with --quick 0.1")
    parser.add_argument(
        "--quick", action="store_true", help="a few cases, fewer steps, nothing compiled, and only peers that are there"
    )
    parser.add_argument("--only", choices=PROGRAMS, action="append", help="these programs only; may be repeated")
    parser.add_argument("--case", choices=CASES, action="append", help="these cases only; may be repeated")
    args = parser.parse_args()
    num_runs = args.runs or (1 if args.quick else 3)
    cases = args.case or [name for name, case in CASES.items() if case.is_quick or not args.quick]
    asked = args.only or list(PROGRAMS)
    needed = {key for name in cases for key in (*CASES[name].peers, *CASES[name].ours)}
    programs = [key for key in asked if key in needed]
    if args.quick and args.only is None:
        programs = [key for key in programs if is_quick(key)]
    for venv in dict.fromkeys(PROGRAMS[key].venv for key in programs):
        if venv is not None:
            make_venv(venv)
    share = args.share or (QUICK_SHARE if args.quick else 1.0)
    results: Runs = {}
    for name in cases:
        results |= measure([name], programs, num_runs, share)
        if args.write:  # after each case: the whole takes an hour or two
            (HERE.parent / "docs/measurements/results.md").write_text(
                report(store(results, num_runs)), encoding="utf-8"
            )
    print(table(results))
    if any(len(runs) < num_runs for by_program in results.values() for runs in by_program.values()):
        raise SystemExit("some programs failed; see above")


if __name__ == "__main__":
    main()
