"""The wheel and the sdist: what is in them, and that the wheel works in a fresh environment, outside the clone."""

import dataclasses
import os
import re
import site
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.tools.recipes import cookbook

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def build(source: Path, folder: Path, target: str) -> Path:
    """Build the wheel or the sdist of a source tree; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    run = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


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
    assert {"rltrainer/py.typed", "rltrainer/__init__.py", "rltrainer/tools/recipes/measured.json"} <= package
    assert {name.partition("/")[2] for name in about} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"
    }  # fmt: skip
    assert (metadata["Name"], metadata["Version"]) == ("rltrainer", rl.__version__)
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    needed = {re.match(r"[\w-]+", each)[0] for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each}
    assert needed == {"gymnasium", "numpy", "safetensors", "sensai-utils", "tensorboard", "torch", "tqdm"}


def test_it_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path / "source", filter="data")
    again = build(tmp_path / "source" / sdist.name.removesuffix(".tar.gz"), tmp_path / "again", "wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


@dataclasses.dataclass(frozen=True)
class Installed:
    """A fresh environment with the wheel, and a folder to run programs in, from which nothing of the clone is seen."""

    bin: Path
    packages: Path
    folder: Path

    def run(self, program: str, *args: str) -> str:
        """Run a program of the environment; return what it prints."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        run = subprocess.run(
            [str(self.bin / program), *args],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, capture_output=True, text=True, check=True)
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    assert {path.name for path in packages.iterdir()} == {"rltrainer", f"rltrainer-{rl.__version__}.dist-info"}
    # PyTorch and the others are those of this environment: a path here, whose own .pth files are not read.
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    return Installed(python.parent, packages, folder)


# README's first program, cut short: as it stands it trains for minutes.
PROGRAM = """
import rltrainer as rl
print(rl.__file__)
quick = {"num_env_steps": 2048, "runtime": rl.RuntimeParams(compile=False), "verbose": False, "show_progress": False}
result = rl.train("CartPole-v1", **quick)
print(result.info.env_step)
result.algorithm.save("agent.safetensors")
print(rl.load_policy("agent.safetensors").predict([0.0, 0.0, 0.0, 0.0]) in (0, 1))
"""


def test_it_trains_in_a_fresh_environment(installed: Installed) -> None:
    found = installed.run("python", "-W", "error", "-c", PROGRAM).split()
    assert found == [str(installed.packages / "rltrainer" / "__init__.py"), "2048", "True"]


RECIPES = """
import rltrainer as rl
from rltrainer.tools.recipes import cookbook
print(len([cookbook.get(*name.split("/", 1)) for name in cookbook.names()]))
"""


def test_its_recipes_and_commands_work_in_a_fresh_environment(installed: Installed) -> None:
    assert installed.run("python", "-c", RECIPES).split() == [str(len(cookbook.names()))]
    pytest.importorskip("click")
    names = [line.split()[0] for line in installed.run("rltrainer", "list", "recipes").splitlines() if "/" in line]
    assert set(cookbook.names()) <= set(names)
    assert installed.run("python", "-m", "rltrainer", "--help") == installed.run("rltrainer", "--help")
    options = "--num-env-steps", "2048", "--runtime.compile", "false", "--folder", "mine"
    installed.run("rltrainer", "train", "--env", "CartPole-v1", *options)
    assert len(list((installed.folder / "mine").glob("*/best.safetensors"))) == 1
    assert installed.run("rltrainer", "doctor").startswith("python  ")
