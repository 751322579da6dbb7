"""The commands on the page of the command line: each runs as it stands there, and leaves what the page says."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

import rltrainer as rl
from rltrainer.tools.cli import main

pytest.importorskip("click")
PAGE = Path(__file__).parents[4] / "docs" / "guides" / "command_line.md"
SHORT = "--num-env-steps 260 --max-epochs 2 --test-step-num-episodes 1 --show-progress false"
PPO, SAC = "runs/ppo_CartPole-v1", "runs/sac_Pendulum-v1"
OF_SEEDS = {f"{PPO}_seed{seed}": f"train ppo --env CartPole-v1 --seed {seed}" for seed in (1, 2)}

LEAVES = {
    "train --env CartPole-v1 --plot --record": [
        f"{PPO}/learning_curve.png", f"{PPO}/page.html", f"{PPO}/videos/best.mp4", f"{PPO}/best.safetensors"
    ],
    "train ppo --env CartPole-v1 --lr 1e-3 --seed 1..3": [f"{PPO}_seed{seed}/best.safetensors" for seed in (1, 2, 3)],
    "train --recipe sac/Pendulum-v1": [f"{SAC}/best.safetensors"],
    "train sac --env Pendulum-v1 --start runs/sac_Pendulum-v1": [f"{SAC}-2/best.safetensors"],
    "train --env Acrobot-v1 --num-envs 8 --hidden-sizes 128,128 --clip linear:0.2": [
        "runs/ppo_Acrobot-v1/best.safetensors"
    ],
    "evaluate runs/sac_Pendulum-v1 --num-episodes 20": [],
    "record runs/sac_Pendulum-v1": [f"{SAC}/videos/best.mp4"],
    "plot runs/ppo_CartPole-v1_seed1 runs/ppo_CartPole-v1_seed2 --path ppo.png": ["ppo.png"],
    "plot runs": ["curves.png"],
    "export runs/sac_Pendulum-v1": [f"{SAC}/best.onnx"],
    "resume runs/sac_Pendulum-v1": [f"{SAC}/best.safetensors"],
    "list recipes": [],
    "doctor": [],
    "doctor env CartPole-v1": [],
}  # fmt: skip
"""Files of some size after each command of the page."""
EXPENSIVE = ("train", "export", "doctor env", "record")  # whole trainings, new processes, compilers


def lines() -> list[str]:
    """Return the commands of the page's first block, without the program's name."""
    block = re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    return [line.removeprefix("rltrainer ") for line in block[1].splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with short runs that commands go on with."""
    folder = tmp_path_factory.mktemp("trained")
    recipes = {SAC: rl.recipes.get("sac/Pendulum-v1").with_fields(warmup_num_env_steps=38)}
    recipes |= {path: rl.recipes.get("ppo/CartPole-v1") for path in OF_SEEDS}
    for path, recipe in recipes.items():
        short = recipe.with_fields(
            num_env_steps=40, max_epochs=2, test_step_num_episodes=1, show_progress=False, verbose=False,
            runtime=rl.RuntimeParams(compile=False), seed=int(path[-1]),
        )  # fmt: skip
        (folder / path).mkdir(parents=True)
        rl.recipes.run_recipe(short, rl.RunFolder(folder / path))
    return folder


def test_every_line_of_the_page_is_looked_at() -> None:
    assert lines() == list(LEAVES)


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.full if line.startswith(EXPENSIVE) else ()) for line in LEAVES]
)
def test_a_command_of_the_page_runs(
    line: str, trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "runs" in line:
        shutil.copytree(trained / "runs", "runs")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    short = f"{SHORT} --runtime.compile false" if line.startswith("train") else ""
    assert main(shlex.split(f"{line} {short}")) == 0, capfd.readouterr()
    for path in map(tmp_path.joinpath, LEAVES[line]):
        assert path.stat().st_size > 1000
        assert before.get(path) != path.stat().st_mtime_ns or line.startswith("resume")
    if "--record" in line:
        assert "best.mp4" in Path(f"{PPO}/page.html").read_text()
    if "Acrobot" in line:
        run = rl.open_run("runs/ppo_Acrobot-v1")
        assert run.algorithm["clip"] == {"schedule": "LinearSchedule", "start": 0.2, "end": 0.0, "until": 1.0}
        assert json.loads((run.folder.path / "recipe.json").read_text())["fields"]["num_envs"] == 8
