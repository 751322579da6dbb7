"""The wheel: what is in it, and that it works in a fresh environment, beside nothing but what it asks for."""

import os
import re
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import rltrainer as rl

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (path,) = folder.iterdir()
    return path


def test_it_holds_the_package_and_nothing_else_and_says_what_pyproject_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = Parser().parsestr(file.read(f"rltrainer-{rl.__version__}.dist-info/METADATA").decode())
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "rltrainer").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {name for name in names if name.startswith(f"rltrainer-{rl.__version__}.dist-info/")}
    assert names - about == package
    assert {"rltrainer/py.typed", "rltrainer/__init__.py"} <= package
    assert {name.partition("/")[2] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip
    assert (metadata["Name"], metadata["Version"]) == ("rltrainer", rl.__version__)
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    needed = {re.match(r"[\w-]+", each)[0] for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert needed == {"gymnasium", "numpy", "safetensors", "sensai-utils", "tensorboard", "torch", "tqdm"}


PROGRAM = """
import rltrainer as rl
print(rl.__file__)
envs = rl.make_vec("CartPole-v1", num_envs=2, seed=1)
algorithm = rl.PPO(rl.ActorCritic.for_envs(envs))
params = rl.OnPolicyTrainerParams(
    training_collector=rl.Collector(algorithm.policy, envs), max_epochs=1, epoch_num_steps=64,
    collection_step_num_env_steps=64, runtime=rl.RuntimeParams(compile=False), show_progress=False, verbose=False,
)
print(algorithm.run_training(params).env_step)
algorithm.save("agent.safetensors")
print(rl.load_policy("agent.safetensors").predict([0.0, 0.0, 0.0, 0.0]) in (0, 1))
"""


def test_it_works_in_a_fresh_environment(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    assert {path.name for path in packages.iterdir()} == {"rltrainer", f"rltrainer-{rl.__version__}.dist-info"}
    # PyTorch and the others are those of this environment: a path here, whose own .pth files are not read.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [str(python), "-W", "error", "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [str(packages / "rltrainer" / "__init__.py"), "64", "True"]
    pytest.importorskip("click")
    command = [str(folder / "bin" / "rltrainer"), "list", "recipes"]  # data files are there, too
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "  ppo/CartPole-v1  " in run.stdout
