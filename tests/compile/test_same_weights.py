"""The weights that each algorithm has after 50 updates, in each way of running, are the recorded ones.

So that no rearranged code, renamed room or new seam changes a number unseen. Roundings differ between kinds of
machines: on the recorded kind every bit must be the recorded one, elsewhere the weights agree to a tolerance. Where an
order of operations has to change, `python -m tests.compile.test_same_weights "sac, compiled"` records these rows anew,
and without arguments all; the commit says why, and how much the weights moved. What is compiled is also compared with
uncompiled steps of the same data, and is one graph without a break.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import rltrainer as rl
from rltrainer.data.ring import Ring
from rltrainer.ranks.ranks import ALONE, Ranks
from rltrainer.tree import map_tensors
from rltrainer.types import DenseRollout
from tests import batches
from tests.compile.test_compiled_updates import DELAYED_ACTORS, MAKERS, OBS, rollout, transitions
from tests.contract.test_all_algorithms import WITHOUT_RANKS
from tests.devices.second_device import second_device
from tests.fakes import built, policy_options, run_in_threads

RECORD = Path(__file__).with_name("same_weights.json")
WAYS = ("uncompiled", "compiled", "CUDA graphs", "uncompiled, 2 ranks", "compiled, 2 ranks")
"""CUDA graphs are those of the stand-in device. Ranks are threads, and in float64, as in other tests here: what these
have compiled lies in the compiler's cache."""
KINDS = ("ppo", "recurrent_ppo", "dqn", "sac")
"""One of each kind stands for compiled ranks; `test_ranks` traces what ranks exchange in all others."""
NUM_UPDATES = 50

TOLERANCE = 1e-5
"""Of a projection, after 50 to 400 steps of Adam."""
OTHERS = "other kinds of machine"
"""The key of records of machines that round some rows otherwise by more: TRPO's conjugate gradients amplify it."""
OF_COMPILED = {"compiled": 1e-4, "compiled, 2 ranks": 1e-9}
"""How far a projection may be from the one of uncompiled steps, by the number format."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """A policy's weights, in short: a hash of all bits, and for each parameter one projection."""

    bits: str
    projections: dict[str, float]

    @classmethod
    def of(cls, network: nn.Module) -> "Weights":
        named = {name: p.detach().cpu() for name, p in network.named_parameters()}
        whole = b"".join(p.contiguous().numpy().tobytes() for p in named.values())
        return cls(hashlib.sha256(whole).hexdigest()[:16], {name: projection(p) for name, p in named.items()})

    def distance(self, other: "Weights") -> float:
        """Return the largest difference of two projections."""
        assert self.projections.keys() == other.projections.keys()  # names are part of files
        return max(abs(value - other.projections[name]) for name, value in self.projections.items())


def projection(x: Tensor) -> float:
    """Return the length of a tensor along a direction that depends on the place of each number."""
    flat = x.double().flatten()
    direction = torch.cos(torch.arange(len(flat), dtype=torch.float64))
    return float(flat @ direction / direction.norm())


def made(name: str, device: str) -> Any:
    algorithm, policy, action_space, params = MAKERS[name]
    rl.seed(5)
    options = policy_options(algorithm, params)
    student = policy.for_spaces(OBS, action_space, hidden_sizes=(16, 16), **options).to(device)
    one = built(algorithm, student, params)
    one.seed(3)
    return one


def dense(plain: rl.Rollout, seed: int) -> rl.Rollout:
    """Return a rollout as envs of tensors would give it, in which episodes end."""
    g = torch.Generator().manual_seed(seed)
    done = torch.rand(plain.reward.shape, generator=g) < 0.1
    fields = {field.name: getattr(plain, field.name) for field in dataclasses.fields(rl.Rollout)} | {
        "terminated": done, "valid": torch.ones_like(done), "final_index": done.flatten().nonzero().squeeze(1),
        "successor": torch.randn(plain.obs.shape, generator=g),
    }  # fmt: skip
    return DenseRollout(**fields)


def update(algorithm: Any, seed: int, buffer: rl.ReplayBuffer | None, alternates: bool) -> None:
    """Take four gradient steps, or off policy one; if it `alternates`, from envs of tensors or a buffer in turn."""
    device, is_other = algorithm.device, seed % 2 == 1 and alternates
    if buffer is None:
        data = rollout(algorithm, seed)
        data = dense(data, seed) if is_other else data
        size = 24 if algorithm.trains_recurrent else 20  # whole envs
        algorithm.update(map_tensors(lambda x: x.to(device), data), batch_size=size, repeat=2)
    elif is_other:
        algorithm.update_from(buffer, batch_size=16)
    else:
        algorithm.update(transitions(algorithm, seed).to(device))


def buffer_of(algorithm: Any) -> rl.ReplayBuffer | None:
    """Return a filled buffer for an off-policy algorithm."""
    if isinstance(algorithm, rl.OnPolicyAlgorithm):
        return None
    buffer = rl.ReplayBuffer(50, OBS, algorithm.policy.action_space, 5, device=algorithm.device, seed=3)
    buffer.add_rollout(rollout(algorithm, seed=0))
    return buffer


def trained(
    algorithm: Any, runtime: rl.RuntimeParams, alternates: bool, ranks: Ranks = ALONE
) -> tuple[Weights, Weights]:
    """Return the weights before the last update and after it."""
    progress, buffer, weights = [0.0], buffer_of(algorithm), list[Weights]()
    precision = rl.PrecisionParams(weights="float32" if ranks is ALONE else "float64")
    algorithm.attach(rl.UpdatePlan(lambda: progress[0], runtime=runtime, ranks=ranks, precision=precision))
    for i in range(NUM_UPDATES):
        progress[0] = i / NUM_UPDATES  # of the schedules
        update(algorithm, i * ranks.world + ranks.rank, buffer, alternates)
        if i >= NUM_UPDATES - 2:
            weights.append(Weights.of(batches.trained(algorithm)))
    assert (algorithm.is_compiled, algorithm.has_cuda_graph) == (runtime.compile, runtime.cuda_graph)
    return weights[0], weights[1]


def weights_of(name: str, way: str, alternates: bool | None = None) -> tuple[Weights, Weights]:
    """Return the weights before the last of fixed updates and after it; `alternates` by default if not compiled."""
    alternates = not way.startswith("compiled") if alternates is None else alternates
    device, num_ranks = "cuda" if way == "CUDA graphs" else "cpu", 2 if way.endswith("2 ranks") else 1
    runtime = rl.RuntimeParams(compile=way.startswith("compiled"), cuda_graph=device == "cuda")
    with contextlib.ExitStack() as stack:
        # Buffers on the CPU draw as those on a device do.
        stack.enter_context(mock.patch.object(Ring, "_counts_on_device", True))
        if device == "cuda":
            stack.enter_context(second_device())
        made_of_rank = [made(name, device) for _ in range(num_ranks)]  # not in threads: one generator makes all
        if num_ranks == 1:
            return trained(made_of_rank[0], runtime, alternates)
        train = [lambda ranks: trained(made_of_rank[ranks.rank], runtime, alternates, ranks)] * num_ranks
        both = run_in_threads(train)
    assert both[0] == both[1]
    return both[0]


@cache
def kind_of_machine() -> dict[str, str]:
    """Return what decides how sums are rounded: the builds, the processor, and the instructions that are used."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    compiler = shutil.which("g++") or shutil.which("clang++")
    version = compiler and subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return {
        "torch": torch.__version__,
        "processor": " ".join([fields.get("vendor_id", platform.processor()), fields.get("cpu family", "")]),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "compiler": version.splitlines()[0] if version else "",
    }


@cache
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text())  # type: ignore[no-any-return]


def expected_of(row: str) -> tuple[Weights, bool]:
    """Return the recorded weights, and whether a machine of this kind has recorded them."""
    for each in (recorded(), *recorded().get(OTHERS, [])):
        if each["kind of machine"] == kind_of_machine() and row in each:
            return Weights(**each[row]), True
    return Weights(**recorded()[row]), False


def record(rows: Sequence[str]) -> None:
    """Write the record of this machine, or only the rows with one of these texts in their names."""
    torch.set_num_threads(1)
    found = recorded() if rows else {"kind of machine": kind_of_machine()}
    record_here = found
    if found["kind of machine"] != kind_of_machine():
        others = found.setdefault(OTHERS, [])
        of_this_kind = [each for each in others if each["kind of machine"] == kind_of_machine()]
        record_here = of_this_kind[0] if of_this_kind else {"kind of machine": kind_of_machine()}
        others += [] if of_this_kind else [record_here]
    for name, way in itertools.product(MAKERS, WAYS):
        if way == "compiled, 2 ranks" and name not in KINDS:
            continue
        row = f"{name}, {way}"
        if name in WITHOUT_RANKS and way.endswith("ranks"):
            continue
        if not rows or any(each in row for each in rows):
            torch._dynamo.reset()
            record_here[row] = dataclasses.asdict(weights_of(name, way)[1])
            lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
            RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


FAST = [f"{name}, uncompiled" for name in ("ppo", "a2c", "dqn", "sac", "td3", "iql", "bc")]
FAST += [f"{name}, compiled" for name in ("ppo", "dqn", "sac")]
FULL_COMPILED = [
    f"{name}, compiled" for name in ("ppo", "a2c", "recurrent_ppo", "trpo", "dqn", "c51", "td3", "sac", "bc")
]
"""One of each kind of step. Compiling the others takes minutes, so these are slow tests: `test_update_params` traces
the steps of every algorithm and compares their numbers, and `test_ranks` compares compiled ranks."""
ROWS = [row for row in recorded() if row not in ("kind of machine", OTHERS)]


def mark(row: str) -> Any:
    name, _, way = row.partition(", ")
    # `tests/contract/test_ranks.py` trains all algorithms as two ranks and as one.
    is_slow = name not in KINDS if way == "uncompiled, 2 ranks" else ", compiled" in row and row not in FULL_COMPILED
    return pytest.param(row, marks=pytest.mark.slow if is_slow else pytest.mark.full)


@pytest.mark.parametrize("row", [*FAST, *(mark(row) for row in ROWS if row not in FAST)])
def test_the_weights_after_fifty_updates_are_the_recorded_ones(row: str) -> None:
    name, _, way = row.partition(", ")
    if way.startswith("compiled") and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("needs a C++ compiler")
    torch._dynamo.reset()
    counters.clear()
    expected, is_of_this_kind = expected_of(row)
    before, found = weights_of(name, way)
    if way in OF_COMPILED:
        assert not counters["graph_break"]
        num_ranks = 1 + way.endswith("2 ranks")
        assert counters["stats"]["unique_graphs"] == num_ranks * (1 + (name in DELAYED_ACTORS))
        uncompiled = weights_of(name, f"un{way}", alternates=False)[1]
        assert found.distance(uncompiled) < OF_COMPILED[way]
    if is_of_this_kind:
        assert found.bits == expected.bits, "no bit may change"
    assert found.distance(expected) < TOLERANCE
    assert before.distance(expected) > 2 * TOLERANCE, "a missing update must be more than rounding"


if __name__ == "__main__":
    record(sys.argv[1:])
