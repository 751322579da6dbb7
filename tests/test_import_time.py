"""`import rltrainer` stays cheap beside `import torch, gymnasium`: it loads little that those two have not loaded.

Modules are counted, not seconds, so that a busy machine cannot fail the test.
"""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys
import torch, gymnasium
before = set(sys.modules)
import rltrainer
print(json.dumps(sorted(set(sys.modules) - before)))
"""

# Third-party packages that are needed at once and take milliseconds.
LIGHT = {"rltrainer", "safetensors", "sensai", "tqdm"}

# What extras, and loggers, bring: nothing of it is imported before it is used.
EXTRAS = {
    "ale_py", "cv2", "envpool", "fastapi", "h5py", "imageio_ffmpeg", "matplotlib", "minari", "mlflow", "mujoco", "onnx",
    "onnxruntime", "onnxscript", "optuna", "pandas", "pettingzoo", "PIL", "psutil", "pyarrow", "pygame", "ray",
    "tensorboard", "tyro", "uvicorn", "wandb", "yaml",
}  # fmt: skip

# Modules of Python, torch and gymnasium that the two have not loaded themselves; 11 when this was written.
MAX_OTHERS = 20

# Parts of torch and gymnasium that take tenths of a second, and that torch and gymnasium leave out themselves.
HEAVY = (
    "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "torch.onnx", "torch.profiler", "torch.testing",
    "torch.utils.tensorboard", "gymnasium.envs.mujoco", "gymnasium.wrappers.rendering",
)  # fmt: skip


@pytest.fixture(scope="module")
def added() -> list[str]:
    """The modules that `import rltrainer` loads after `import torch, gymnasium`."""
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def test_no_heavy_third_party_package_is_loaded(added: list[str]) -> None:
    packages = {name.partition(".")[0] for name in added}
    assert "rltrainer" in packages
    third_party = {name for name in packages if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert third_party - {"torch", "gymnasium", "numpy"} <= LIGHT


def test_nothing_of_an_extra_is_loaded(added: list[str]) -> None:
    assert {name.partition(".")[0] for name in added} & EXTRAS == set()


def test_few_modules_of_python_torch_and_gymnasium_are_loaded_beside(added: list[str]) -> None:
    others = [name for name in added if name.partition(".")[0] not in LIGHT]
    assert len(others) <= MAX_OTHERS, others


@pytest.mark.parametrize("heavy", HEAVY)
def test_no_heavy_part_of_torch_or_gymnasium_is_loaded(added: list[str], heavy: str) -> None:
    assert [name for name in added if f"{name}.".startswith(f"{heavy}.")] == []
