"""Commands as a user gives them: what they do, what they say, how they end."""

import dataclasses
import os
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rltrainer as rl
from rltrainer.tools.cli import main
from rltrainer.tools.cli.fields import field_texts, fields_of, option_texts
from rltrainer.tools.recipes.algorithms import ALGORITHMS
from tests.unit.ranks.rank_programs import set_variables
from tests.unit.tools.recipes.any_recipes import any_recipe, logged

pytest.importorskip("click")
ROOT = Path(__file__).parents[4]
SHORT = shlex.split("--num-env-steps 512 --max-epochs 2 --test-step-num-episodes 2 --show-progress false")
SWEEP = "sweep ppo --env CartPole-v1"
Capture = pytest.CaptureFixture[str]


def test_training_says_what_it_does_and_a_run_goes_on(capsys: Capture) -> None:
    net = ["--net.norm", "layer", "--critic-net.hidden-sizes", "32"]
    assert main(["train", "ppo", "--env", "CartPole-v1", "--lr", "1e-3", "--seed", "4", *net, *SHORT]) == 0
    out = capsys.readouterr().out
    words = "rltrainer: recipe ppo/CartPole-v1 (RL Zoo); 512 env steps\nrltrainer: to runs/ppo_CartPole-v1\n"
    assert out.startswith(words)
    assert out.endswith("rltrainer: the best algorithm is runs/ppo_CartPole-v1/best.safetensors\n")
    run = rl.open_run("runs/ppo_CartPole-v1")
    assert (run.algorithm["lr"], run.trainer["seed"], run.trainer["max_epochs"]) == (1e-3, 4, 2)
    policy: Any = run.load_best().policy
    assert [tuple(weight.shape) for weight in policy.critic.parameters()] == [(32, 4), (32,), (1, 32), (1,)]
    assert any("norm" in type(module).__name__.lower() for module in policy.actor.modules())
    assert main(["resume", str(run.folder.path), "--max-epochs", "3"]) == 0
    assert rl.open_run(run.folder.path).rows("epoch")["epoch"].tolist() == [1, 2, 3]
    assert main(["evaluate", str(run.folder.path), "--num-episodes", "3"]) == 0
    shown = capsys.readouterr()
    last = shown.out.splitlines()[-2:]
    assert re.fullmatch(r"return [\d.]+ \+- [\d.]+ \(from [\d.]+ to [\d.]+\)", last[0])
    assert "begins again" not in shown.err
    assert main(["resume", str(run.folder.path)]) == 0
    assert "rltrainer: the run is finished; --max-epochs N extends it\n" in capsys.readouterr().out
    shutil.rmtree(run.folder.checkpoints)  # as a sweep does
    best = run.folder.best.read_bytes()
    assert main(["resume", str(run.folder.path)]) == 1
    text = f"rltrainer: {run.folder.path}: its checkpoints are gone, as a sweep removes those of what is over. Train on"
    assert text in capsys.readouterr().err
    assert run.folder.best.read_bytes() == best
    run.folder.checkpoints.mkdir()  # as of a run that was killed before its first
    assert main(["resume", str(run.folder.path)]) == 0
    assert f"rltrainer: {run.folder.path} has no checkpoint; it begins again\n" in capsys.readouterr().err


def test_seeds_have_folders_of_their_own_and_train_as_one_does(capsys: Capture) -> None:
    for seeds in ("--seed 1,2 --plot", "--seed 1 --num-seeds 2 --checkpoint.keep-last 1", "--seed 2"):
        assert main(["train", "ppo", "--env", "CartPole-v1", *shlex.split(seeds), *SHORT]) == 0
    out = capsys.readouterr().out
    for name in ("", "-2"):  # the list, and the number, of seeds
        assert re.search(rf"^seed 2: best score [\d.]+, runs/ppo_CartPole-v1{name}/seed-2$", out, re.MULTILINE)
    runs = [rl.open_run(f"runs/ppo_CartPole-v1{end}") for end in ("/seed-2", "-2/seed-2", "-3")]
    assert [run.rows("update")["loss"].tolist() for run in runs] == [runs[2].rows("update")["loss"].tolist()] * 3
    assert [len(list(run.folder.checkpoints.glob("checkpoint-*"))) for run in runs] == [2, 1, 2]
    page = Path("runs/ppo_CartPole-v1/page.html").read_text()
    assert all(text in page for text in ("PPO on CartPole-v1, 2 seeds", "seed-1: best score", "seed-2: best score"))
    assert main(["plot", "runs/ppo_CartPole-v1-2"]) == 0
    assert (Path("runs/ppo_CartPole-v1-2") / "learning_curve.png").stat().st_size > 1000


@pytest.mark.parametrize(("command", "status", "text"), [
    ("train ppo --env CartPole-v1 --lrr 3", 2, "No such option '--lrr'. (Did you mean one of: '--folder', '--lr', "),
    ("train ppo --env CartPole-v1 --batch-size 0", 2, "OnPolicyTrainerParams.batch_size: must be a positive integer"),
    ("train ppo --env CartPole-v1 --checkpoint.every 0", 2, "CheckpointParams.every: must be a positive integer"),
    ("train ppo --env CartPole-v1 --runtime.compile maybe", 2, "RuntimeParams.compile: must be "),
    ("train ppo --env CartPole-v1 --explain lrr", 2, "there is no field or group 'lrr'. Did you mean 'lr'?"),
    ("train ppo --env CartPole-v1 --seed 1..2 --num-seeds 2", 2, "--num-seeds counts from one seed, not from 1..2"),
    ("train ppo --env CartPole-v1 --seed 2..1", 2, "'2..1' is no seed: 3, 1..5, or 1,2,7"),
    ("train pppo --env CartPole-v1", 2, "train.algorithm: must be one of a2c, "),
    ("train --recipe ppo/CartPole-v7", 2, "there is no recipe 'ppo/CartPole-v7'. Did you mean 'ppo/CartPole-v1'?"),
    ("train dqn --recipe ppo/CartPole-v1", 2, "the recipe ppo/CartPole-v1 is of ppo, not of dqn"),
    ("train", 2, "name an env (--env CartPole-v1), a recipe (--recipe ppo/CartPole-v1) or data (--data logged."),
    ("train td3bc --env Pendulum-v1", 2, "td3bc learns from data: name it, --data logged.safetensors"),
    ("sweep td3bc --env Pendulum-v1", 2, "td3bc learns from data: name it, --data logged.safetensors"),
    ("sweep td3bc --data x.npz", 1, "OfflineRecipe.env: must be what trials are tested in; got None (NoneType)."),
    ("train iql --data x.npz --recipe ppo/CartPole-v1", 2, "a recipe trains in its env: name it, or data"),
    ("train ppo --data x.npz", 2, "OfflineRecipe.algorithm: must be one that learns from data; got 'ppo' (str)."),
    ("train redq --env Pendulum-v1 --data x.npz --offline-share 2", 2, "Recipe.offline_share: must be a number betwee"),
    ("train redq --env Pendulum-v1 --offline-share 0.5", 2, "Recipe.data: must be given with offline_share; got None"),
    ("train iql --data x.npz --plot", 2, "--plot and --record show test episodes: name their env, --env ENV"),
    ("train iql --data x.npz --record", 2, "--plot and --record show test episodes: name their env, --env ENV"),
    ("train iql --data x.npz --num-envs 3", 2, "No such option '--num-envs'."),
    ("train --env nowhere:Env", 2, "'nowhere:Env': No module named 'nowhere'"),
    ("train --env json:dumps_", 2, "'json:dumps_': module 'json' has no attribute 'dumps_'"),
    ("train --env json:JSONDecoder", 2, "'json:JSONDecoder' is no env, and makes none"),
    ("train CartPole-v1", 2, "CartPole-v1 is no algorithm. Name an env by --env CartPole-v1"),
    ("train my_envs:Mine", 2, "my_envs:Mine is no algorithm. Name an env by --env my_envs:Mine"),
    ("train ppo --env CartPole-v1 --folder /proc/runs", 1, "/proc/runs/ppo_CartPole-v1: could not be written"),
    ("doctor CartPole-v1", 2, "No such command 'CartPole-v1'. An env is looked at by: rltrainer doctor env CartPole"),
    ("trian", 2, "No such command 'trian'. Did you mean 'train'?"),
    ("doctor env Q12345-v0", 2, "Environment `Q12345` doesn't exist. One of your own is"),
    ("train iql --data x.npz", 1, "from_npz: x.npz: there is no such file"),
    ("train ppo --env CartPole-v1 --start x.safetensors", 1, "x.safetensors: there is no such file"),
    ("sweep", 2, "name an env (--env CartPole-v1), a recipe"),
    (f"{SWEEP} --batch-sise 1/2", 2, "No such option '--batch-sise'. Did you mean '--batch-size'?"),
    (f"{SWEEP} --gamma uniform:0.9:1.1", 1, "sweep.space['gamma']: has values that the field does not take. PPOParam"),
    (f"{SWEEP} --gamma uniform:0.9", 2, "'uniform:0.9' is no range: uniform:0.9:0.999"),
    (f"{SWEEP} --lr log:0:1", 2, "LogUniform.low: must be positive; got 0.0 (float)"),
    (f"{SWEEP} --lr 9..1", 1, "sweep.space['lr']: must be rl.Uniform, rl.LogUniform, a range of integers"),
    (f"{SWEEP} --update.max-grad-norm 1/2", 2, "--update.max-grad-norm: cannot vary"),
    (f"{SWEEP} --checkpoint.every 3", 2, "No such option '--checkpoint.every'"),
    (f"{SWEEP} --batch-size 0", 2, "OnPolicyTrainerParams.batch_size: must be a positive integer"),
    (f"{SWEEP} --trials 0", 1, "sweep.num_trials: must be a positive integer; got 0 (int)"),
])  # fmt: skip
def test_a_wrong_command_ends_with_one_sentence(
    command: str, status: int, text: str, capsys: Capture, tmp_path: Path
) -> None:
    assert main(shlex.split(command)) == status
    captured = capsys.readouterr()
    assert text in " ".join((captured.err + captured.out).split())
    assert "Traceback" not in captured.err
    assert list(tmp_path.glob("runs/*")) == [] == list(tmp_path.glob("[!r]*"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_field_is_an_option_with_its_docstring(algorithm: str) -> None:
    recipe = any_recipe(algorithm)
    fields = list(fields_of(recipe))
    assert len({field.flag for field in fields}) == len({field.key for field in fields}) == len(fields)
    assert [field.flag for field in fields if not field.text] == []
    names = {field.name for field in fields}
    of_trainer = {f.name for f in dataclasses.fields(recipe.trainer_params_class) if f.compare}
    groups = {"seed", "test_step_num_episodes", "update", "precision", "runtime", "checkpoint"}
    assert {f.name for f in dataclasses.fields(recipe.params)} | (of_trainer - groups) <= names


def test_data_trains_and_what_it_trained_goes_on_in_the_env(capsys: Capture) -> None:
    logged().save("logged.safetensors")
    short = "--max-epochs 2 --test-step-num-episodes 2 --show-progress false --batch-size 8"
    command = f"train sac --data logged.safetensors --num-gradient-steps 20 --hidden-sizes 8, {short}"
    assert main(shlex.split(f"{command} --env Pendulum-v1")) == 0
    out = capsys.readouterr().out
    assert out.startswith("rltrainer: the recommended settings of sac on data; 20 gradient steps\n")
    run = "runs/sac_Pendulum-v1"
    assert main(["resume", run, "--max-epochs", "3"]) == 0
    assert rl.open_run(run).rows("epoch")["gradient_step"].tolist() == [10, 20, 30]
    assert main(["evaluate", run, "--num-episodes", "1"]) == 0
    online = f"train sac --env Pendulum-v1 --num-env-steps 40 {short}"
    assert main(shlex.split(f"{online} --start {run}/best.safetensors --warmup-num-env-steps 8")) == 0
    assert next(rl.load(f"{run}-2/best.safetensors").policy.actor.parameters()).shape[0] == 8
    assert main(shlex.split(command)) == 0  # without an env the last algorithm is kept
    assert next(rl.open_run("runs/sac_logged").load_best().policy.actor.parameters()).shape[0] == 8
    assert main(shlex.split(f"{command} --seed 1,2")) == 0
    assert next(rl.load("runs/sac_logged-2/seed-2").policy.actor.parameters()).shape[0] == 8
    assert main(["evaluate", "runs/sac_logged", "--num-episodes", "1"]) == 1
    text = "runs/sac_logged/params.json: does not say which env the run is of. Name it: --env my_package:MyEnv."
    assert text in capsys.readouterr().err
    assert main(["evaluate", "runs/sac_logged", "--num-episodes", "1", "--env", "Pendulum-v1"]) == 0


def test_texts_are_read_from_the_source() -> None:
    texts = field_texts(rl.PPOParams)
    assert texts["gamma"] == field_texts(rl.A2CParams)["gamma"] != ""
    assert "Separate value" not in option_texts(rl.QNetwork)["num_outputs"]
    assert option_texts(rl.QNetwork)["dueling"] == "separate value and advantage streams (Wang et al. 2016)."


def test_help_stays_on_a_screen(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    others = "resume evaluate watch record plot export list doctor"
    trainings = ["train", "train redq --env Pendulum-v1", "train td3bc --data logged.npz", "sweep", "sweep trpo"]
    for command in ["", *trainings, *others.split(), "doctor env"]:
        assert main([*shlex.split(command), "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 24, command
        assert max(map(len, lines)) < 80
        assert not any(line.endswith("...") for line in lines[1:])


def test_help_names_fields_by_group_and_explains_them(capsys: Capture) -> None:
    assert main(["--help"]) == 0
    named = re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    words = "train sweep resume evaluate watch record plot export list doctor verify"
    assert named == words.split()
    assert main(["train", "--help-all"]) == 0
    out = capsys.readouterr().out
    groups = ["run", "algorithm", "policy", "trainer", "fields of"]
    assert re.findall(r"^  ([a-z][a-z ]+?)  ", out, re.MULTILINE) == groups
    assert re.search(r"^  fields of +net critic_net update precision runtime checkpoint$", out, re.MULTILINE)
    assert main(["train", "--env", "CartPole-v1", "--explain", "lr"]) == 0
    lr = "--lr [linear:0.001:0:1]\n    Learning rate, or a schedule of it over progress.\n"
    assert capsys.readouterr().out == lr
    assert main(["train", "--env", "CartPole-v1", "--explain", "runtime"]) == 0
    assert capsys.readouterr().out.count("--runtime.") == 9
    for name in ("critic-net", "critic_net"):
        assert main(["train", "--env", "CartPole-v1", "--explain", name]) == 0
        assert "--critic-net.hidden-sizes [none]\n    Units of each hidden layer.\n" in capsys.readouterr().out


MODULE = """
import gymnasium as gym, numpy as np

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.num_steps = 0
        return self.observe(), {}
    def step(self, action):
        self.num_steps += 1
        return self.observe(), 1.0, self.num_steps >= 10, False, {}
    def observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

class Filmed(Mine):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    def __init__(self, render_mode=None):
        self.render_mode = render_mode
    def render(self):
        return np.zeros((32, 32, 3), np.uint8)

class Careless(Mine):
    def observe(self):
        return np.random.uniform(-1, 1, 2).astype(np.float32)

class Small(Mine):
    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    def observe(self):
        return self.np_random.integers(0, 255, (8, 8, 3), np.uint8)

class Unbounded(Mine):
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,))

class Large(Mine):
    observation_space = gym.spaces.Box(-1e6, 1e6, (2,))
    def step(self, action):
        obs, _, _, _, info = super().step(action)
        return obs, 1e9, bool(obs[0] > 5e5), False, info
    def observe(self):
        return 6e5 * super().observe()

class Wrong(Mine):
    def observe(self):
        return np.full(2, np.nan, np.float32)

def several():
    return gym.vector.SyncVectorEnv([Mine])
"""


def test_an_env_of_ones_own(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "my_envs.py").write_text(MODULE)
    assert main(["train", "ppo", "--env", "my_envs:Mine", *SHORT]) == 0
    assert "no recipe for Mine, so the recommended settings of ppo" in capsys.readouterr().out
    assert main(["evaluate", "runs/ppo_Mine"]) == 1
    assert "JSON holds only the name 'Mine'; name it: --env my_package:MyEnv" in capsys.readouterr().err
    assert main(["evaluate", "runs/ppo_Mine", "--env", "my_envs:Mine"]) == 0
    assert "return 10 +- 0" in capsys.readouterr().out
    assert main(["record", "runs/ppo_Mine", "--env", "my_envs:Mine"]) == 1
    assert "record.env: must render frames; got render_mode=None" in capsys.readouterr().err
    assert main(["train", "ppo", "--env", "my_envs:Mine", "--record", *SHORT]) == 1  # before it trains
    assert "record.env: must render frames; got render_mode=None" in capsys.readouterr().err
    tensors = ["--env", "rltrainer.envs.tensors.classic_control:Pendulum", "--backend", "tensor"]
    assert main(["train", "ppo", *tensors, "--record", *SHORT]) == 1
    assert "record.env: must render frames; got render_mode=None" in capsys.readouterr().err
    assert [path.name for path in Path("runs").iterdir()] == ["ppo_Mine"]
    assert main(["record", "runs/ppo_Mine", "--env", "my_envs:Filmed"]) == 0
    assert "best.mp4: returns 10" in capsys.readouterr().out
    Path("runs/ppo_Mine/recipe.json").unlink()
    assert rl.open_run("runs/ppo_Mine").env_id is None
    assert main(["evaluate", "runs/ppo_Mine"]) == 1
    assert "does not say which env the run is of. Name it: --env my_package:MyEnv." in capsys.readouterr().err
    assert main(["evaluate", "runs/ppo_Mine", "--env", "my_envs:Mine", "--num-episodes", "2"]) == 0
    assert "return 10 +- 0" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::UserWarning")  # gymnasium's own, of the envs that are wrong
def test_the_doctor_finds_what_is_wrong_with_an_env(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "their_envs.py").write_text(MODULE)
    assert main(["doctor", "env", "their_envs:Mine"]) == 0
    good = capsys.readouterr().out
    assert "BAD" not in good
    assert re.search(r"^ok   episodes +100 ended in 1000 steps, 10 steps each, and began again$", good, re.MULTILINE)
    for env, status, *patterns in (
        ("CartPole-v1", 0, "^ok   gymnasium +its own checks pass$",
         "^ok   episodes.*and began again; the time limit is 500$"),
        ("Pendulum-v1", 0, "^ok   gymnasium +its own checks pass$", "^ok   episodes +4 ended in .* 200$"),
        ("their_envs:Small", 1, "^BAD  algorithms +none takes these spaces: .*SmallConvEncoder"),
        ("their_envs:Unbounded", 0, "A Box action space minimum value is -infinity"),
        ("their_envs:Careless", 1, "^BAD  determinism +the same seed and actions give another"),
        ("their_envs:Mine", 0,
         "^HINT time limit +every episode is terminated at its step 10: return a time limit as trun"),
        ("their_envs:Large", 0, r"^HINT rewards +as large as 1e\+09: ",
         r"^HINT scale +observations as large as \d(\.\d+)?e\+05"),
        ("their_envs:Wrong", 1, "^BAD  steps +NonFiniteError: "),
        ("their_envs:several", 1, "^BAD  making +it makes a vector env; name what makes one env$"),
    ):  # fmt: skip
        assert main(["doctor", "env", env]) == status
        found = capsys.readouterr().out
        assert all(re.search(pattern, found, re.MULTILINE) for pattern in patterns), found


@pytest.mark.parametrize("kwargs", [{}, {"goal_velocity": 0.01}])
def test_a_run_without_a_recipe_says_its_env(kwargs: dict[str, float], capsys: Capture) -> None:
    recipe = rl.recipes.get("ppo/CartPole-v1").with_fields(
        env="MountainCar-v0", env_kwargs=kwargs, num_env_steps=40, max_epochs=1, test_step_num_episodes=1,
        collection_step_num_env_steps=40, verbose=False, show_progress=False, runtime=rl.RuntimeParams(compile=False),
    )  # fmt: skip
    rl.recipes.run_recipe(recipe, rl.RunFolder("plain"))
    Path("plain/recipe.json").unlink()
    run = rl.open_run("plain")
    assert (run.env_id, run.env_kwargs) == ("MountainCar-v0", kwargs)
    assert main(["evaluate", "plain", "--num-episodes", "1"]) == 0
    assert "return -200 +- 0" in capsys.readouterr().out
    assert main(["resume", "plain"]) == 1  # no recipe says how the run was made


def test_the_doctor_knows_the_machine(capsys: Capture) -> None:
    assert main(["doctor"]) == 0
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {"python", "torch", "processor", "AVX-512", "bf16", "compiler", "CUDA", "ffmpeg"} <= set(found)
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert extras - {"cli", "docs", "dev"} <= set(found)


def test_envs_are_listed_with_the_algorithms_of_their_recipes(capsys: Capture) -> None:
    assert main(["list", "envs"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert "envs that recipes are for" in first
    cartpole = next(row for row in rows if "CartPole" in row)
    assert re.fullmatch(r"  CartPole-v1 +a2c, dqn, ppo, pqn, qrdqn, recurrent_pqn, trpo", cartpole)
    assert sum(row.count(",") + 1 for row in rows) == len(rl.recipes.names())


@pytest.mark.parametrize("seeds", [(), (1, 2)])
def test_ctrl_c_saves_and_says_how_to_go_on(seeds: tuple[int, ...], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rltrainer", "train", "ppo", "--env", "CartPole-v1", "--runtime.compile", "false"]
    command += ["--seed", ",".join(map(str, seeds))] * bool(seeds)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folders = [f"runs/ppo_CartPole-v1/seed-{seed}" for seed in seeds] or ["runs/ppo_CartPole-v1"]
    logs = [tmp_path / folder / "logs" / "log.jsonl" for folder in folders]
    deadline = time.monotonic() + 90
    while not all(log.exists() and b'"update"' in log.read_bytes() for log in logs) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "rltrainer: saved; resume with: rltrainer resume runs/ppo_CartPole-v1\n" in err
    for folder in folders:
        run = rl.open_run(folder)
        assert run.newest_checkpoint is not None
        assert not run.is_finished


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    assert main(["list"]) == 1
    assert 'pip install "rltrainer[cli]"' in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [
    ("3", 3), ("1e-3", 1e-3), ("1e5", 100_000), ("1.0", 1.0), ("true", True), ("False", False), ("none", None),
    ("64,64", (64, 64)), ("64,", (64,)), ("auto", "auto"), ("linear:1e-3", rl.LinearSchedule(1e-3)),
    ("cosine:1.0:0.5", rl.CosineSchedule(1.0, 0.5)), ("600:second", rl.Every(600, "second")),
    ("rms_prop", rl.rms_prop), ("relu", nn.ReLU), ("RMSProp", torch.optim.RMSprop), ("rellu", "rellu"),
])  # fmt: skip
def test_words_are_values(text: str, value: Any) -> None:
    from rltrainer.tools.cli.values import read_value

    found = read_value(text)
    assert found == value
    assert type(found) is type(value)


def test_ranks_train_one_seed_and_only_the_first_draws(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    started: list[int] = []

    def run_here(owner: str, num_ranks: int, function: Any) -> Any:
        started.append(num_ranks)
        return pickle.loads(pickle.dumps(function))()

    monkeypatch.setattr("rltrainer.tools.cli.train_command.run_ranks", run_here)
    command = ["train", "ppo", "--env", "CartPole-v1", *SHORT]
    assert main([*command, "--num-ranks", "2"]) == 0
    assert started == [2]
    assert capsys.readouterr().out.endswith("rltrainer: the best algorithm is runs/ppo_CartPole-v1/best.safetensors\n")
    assert main([*command, "--num-ranks", "2", "--seed", "1..3"]) == 2
    text = "--num-ranks and torchrun train one seed, not 3: run several seeds without it, or one after the other"
    assert text in capsys.readouterr().err
    assert main([*command, "--num-ranks", "0"]) == 2
    set_variables(monkeypatch)
    assert main([*command, "--num-ranks", "2"]) == 1
    assert "train.num_ranks: must be None, or 4 as of torchrun" in capsys.readouterr().err
    assert main([*command, "--seed", "1,2"]) == 2
    assert started == [2]
