"""The weights that each algorithm has after 50 updates, uncompiled and compiled, are the recorded ones.

So that no rearranged code, renamed room or new seam changes a number unseen. Roundings differ between kinds of
machines: on the recorded kind every bit must be the recorded one, elsewhere the weights agree to a tolerance. Where an
order of operations has to change, `python -m tests.compile.test_same_weights` records anew; the commit says why, and
how much the weights moved.
"""

import json
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import rltrainer as rl
from tests.compile.test_compiled_updates import _fresh_compiler, make, update

RECORD = Path(__file__).with_name("same_weights.safetensors")
NAMES = ("a2c", "bc", "dqn", "double_dqn", "iql", "ppo", "sac", "td3", "td3_bc")
NUM_UPDATES = 50

TOLERANCE = 2e-5
"""Of a weight, after 50 to 200 steps of Adam. Seen: 1.3e-6 without vector instructions, 1e-7 with AVX2 for AVX-512."""

Weights = dict[str, torch.Tensor]

__all__ = ["_fresh_compiler"]  # a fixture: every test here starts with nothing compiled


def trained(name: str, is_compiled: bool, num_updates: int = NUM_UPDATES) -> Weights:
    """Return the policy's parameters after fixed updates, under names of the form `sac, compiled: actor.1.weight`."""
    algorithm = make(name)
    progress = [0.0]
    algorithm.attach(rl.UpdatePlan(lambda: progress[0], runtime=rl.RuntimeParams(compile=is_compiled)))
    for i in range(num_updates):
        progress[0] = i / NUM_UPDATES  # of the schedules
        update(algorithm, seed=i)
    assert algorithm.is_compiled == is_compiled
    return {f"{prefix(name, is_compiled)}{key}": p.detach().clone() for key, p in algorithm.policy.named_parameters()}


def prefix(name: str, is_compiled: bool) -> str:
    return f"{name}, {'compiled' if is_compiled else 'uncompiled'}: "


def recorded(name: str, is_compiled: bool) -> Weights:
    return {key: value for key, value in load_file(RECORD).items() if key.startswith(prefix(name, is_compiled))}


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


def is_the_recorded_kind() -> bool:
    with safe_open(RECORD, "pt") as file:
        return bool(json.loads(file.metadata()["kind of machine"]) == kind_of_machine())


def record() -> None:
    """Write the record of this machine."""
    torch.set_num_threads(1)
    weights: Weights = {}
    for name in NAMES:
        for is_compiled in (False, True):
            torch._dynamo.reset()
            weights |= trained(name, is_compiled)
    save_file(weights, RECORD, {"kind of machine": json.dumps(kind_of_machine())})


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_the_weights_after_fifty_updates_are_the_recorded_ones(name: str, is_compiled: bool) -> None:
    expected, found = recorded(name, is_compiled), trained(name, is_compiled)
    assert found.keys() == expected.keys()  # names are part of files
    if is_the_recorded_kind():
        different = [key for key, value in expected.items() if not torch.equal(found[key], value)]
        assert not different, "no bit may change"
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=0.0, atol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_update_is_more_than_rounding(name: str) -> None:
    expected, found = recorded(name, False), trained(name, False, num_updates=NUM_UPDATES - 1)
    assert max(float((found[key] - value).abs().max()) for key, value in expected.items()) > 2 * TOLERANCE


if __name__ == "__main__":
    record()
