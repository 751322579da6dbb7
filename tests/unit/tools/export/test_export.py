"""`export_onnx` and `export_torch`: what they take, leave alone, write beside the graph, and what they say."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import rltrainer as rl
from rltrainer.errors import CheckpointError, ExportError, MissingExtraError, ParamsError
from rltrainer.files.json_text import read_strict_json
from rltrainer.spaces import from_plain
from rltrainer.tools.export import draw_observations
from rltrainer.tree import leaves
from tests.unit.tools.refusals import refuses

OBS = spaces.Box(-np.inf, np.inf, (3,))
BOX = spaces.Box(-1.0, 1.0, (2,))
EXPORTS = {"policy.pt2": rl.export_torch, "policy.onnx": rl.export_onnx}
Export = Callable[[Any, Any], None]
each_export = pytest.mark.parametrize(("name", "export"), EXPORTS.items())


def policy_of(**options: Any) -> Any:
    rl.seed(1)
    given = {name: value for name, value in {"hidden_sizes": (4,), **options}.items() if value is not None}
    return rl.SquashedActorCritic(OBS, BOX, **given)


def action_of(path: Path, obs: Any) -> Any:
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(torch.from_numpy(obs)).numpy()
    return onnxruntime.InferenceSession(path).run(["action"], {"obs": obs})[0]


@each_export
def test_a_policy_an_algorithm_or_a_file_is_exported_and_stays_as_it_is(
    name: str, export: Export, tmp_path: Path
) -> None:
    policy = policy_of(normalize_obs=True)
    algorithm = rl.SAC(policy)
    algorithm.save(tmp_path / "sac.safetensors")
    obs = draw_observations(policy, 5)
    expected = policy.predict(obs)
    policy.critic.eval()
    policy.observation_space.seed(3)
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    modes = [module.training for module in policy.modules()]
    numbers, generator = torch.get_rng_state(), policy.observation_space.np_random.bit_generator.state
    for i, source in enumerate((policy, algorithm, tmp_path / "sac.safetensors")):
        path = tmp_path / f"new/{i}" / name
        export(source, path)
        np.testing.assert_allclose(action_of(path, obs), expected, atol=1e-6)
    assert [module.training for module in policy.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert torch.equal(torch.get_rng_state(), numbers)
    assert policy.observation_space.np_random.bit_generator.state == generator


def test_critics_and_paths_are_left_out(tmp_path: Path) -> None:
    # 1,000 x 1,000 numbers of critics would be 4 MB each.
    policy = policy_of(critic_net=rl.NetParams(hidden_sizes=(1000, 1000)))
    for name, export in EXPORTS.items():
        export(policy, tmp_path / name)
        contents = (tmp_path / name).read_bytes()
        assert len(contents) < 200_000
        assert b"greedy_graph.py" not in contents


def descriptions(folder: Path) -> list[dict[str, str]]:
    files = {"rltrainer.json": ""}
    torch.export.load(folder / "policy.pt2", extra_files=files)
    model = onnx.load(folder / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "rltrainer"
    return [json.loads(files["rltrainer.json"]), {prop.key: prop.value for prop in model.metadata_props}]


def test_files_say_what_they_are_of(tmp_path: Path) -> None:
    near = spaces.Tuple((OBS, spaces.Dict(a=spaces.Discrete(2))))
    space = spaces.Dict(far=OBS, near=near, action_mask=spaces.MultiBinary(2))
    net: Any = rl.NetParams(keys=("near",))
    policy = rl.RecurrentActorCritic(space, spaces.Discrete(2), net=net, share_cell=True, cell_size=3)
    for name, export in EXPORTS.items():
        export(policy, tmp_path / name)
    for found in descriptions(tmp_path):
        assert found["policy"] == "RecurrentActorCritic"
        assert re.fullmatch(r"(\d+\.\d+\.\d+\S*)?", found["rltrainer"])
        assert from_plain(read_strict_json(found["observation_space"])) == space
        assert from_plain(read_strict_json(found["action_space"])) == spaces.Discrete(2)
        assert json.loads(found["inputs"]) == ["obs.near.0", "obs.near.1.a", "obs.action_mask", "state"]
        assert json.loads(found["outputs"]) == ["action", "next_state"]
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [(each.name, each.shape, each.type) for each in session.get_inputs()] == [
        ("obs.near.0", ["batch", 3], "tensor(float)"),
        ("obs.near.1.a", ["batch"], "tensor(int64)"),
        ("obs.action_mask", ["batch", 2], "tensor(int8)"),
        ("state", ["batch", 3], "tensor(float)"),
    ]
    assert [each.shape for each in session.get_outputs()] == [["batch"], ["batch", 3]]


PROGRAM = """
import sys
sys.modules["rltrainer"] = None
import torch
graph = torch.export.load(sys.argv[1]).module()
action, state = graph(torch.zeros(3, 3), torch.zeros(3, 8))
print(tuple(action.shape), tuple(state.shape), action.requires_grad)
"""


def test_a_graph_needs_pytorch_only(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt2"
    rl.export_torch(rl.RecurrentActorCritic(OBS, BOX, cell_size=4), path)
    run = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=False)
    assert run.stdout == "(3, 2) (3, 8) False\n", run.stderr


class Calls(nn.Module):
    """A function of an observation, and of the number of the call."""

    num_calls = 0

    def __init__(self, function: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.function(x, self.num_calls)


def policy_with(function: Callable[[Tensor, int], Tensor]) -> Any:
    return policy_of(net=rl.NetParams(encoder=lambda space: Calls(function), hidden_sizes=(4,)), hidden_sizes=None)


NO_GRAPH = "SquashedActorCritic is no graph of tensors: "
NO_WORDS = "SquashedActorCritic is no graph that ONNX has words for: "
OTHERWISE = r"SquashedActorCritic as a graph acts otherwise than policy.predict for \d+ of 64 observations. "


@pytest.mark.parametrize(("function", "text"), [
    (lambda x, call: x if x.sum() > 0 else -x, NO_GRAPH),  # Python's control flow by numbers
    (lambda x, call: x if len(x) < 10 else -x, NO_GRAPH),  # one program for a few, another for many
    (lambda x, call: x * call, OTHERWISE),
    (lambda x, call: x + torch.rand_like(x), OTHERWISE),
], ids=["branches", "fixed_batch", "counts", "random"])  # fmt: skip
def test_what_is_no_graph(function: Any, text: str, tmp_path: Path) -> None:
    policy = policy_with(function)
    said = refuses(ExportError, f"^export_torch: {text}", rl.export_torch, policy, tmp_path / "policy.pt2")
    assert " at 0x" not in said
    assert "\n" not in said
    assert said.endswith(
        "any number of observations: torch.where, not if."
        if text is NO_GRAPH
        else "Something in its modules is no function of their inputs, such as a counter or random numbers."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "key", ['c"d', "a b", "x']); __import__('os')._exit(3)  #", "two\nlines", "back\\slash", "(", ";", "é\u2028x"]
)
@each_export
def test_keys_that_are_no_names(name: str, export: Export, key: str, tmp_path: Path) -> None:
    # PyTorch writes them into Python code that it runs; a policy's file may hold any.
    policy = rl.ActorCritic(spaces.Dict(a=spaces.Dict({key: OBS})), BOX, hidden_sizes=(4,))
    policy.save(tmp_path / "file.safetensors")
    rule = "keys must consist of letters, digits and ._-/:. Rename them in a wrapper of the env."
    text = f"^{export.__name__}: .*: {re.escape(rule)}$"
    refuses(ExportError, text, export, tmp_path / "file.safetensors", tmp_path / name)
    assert not (tmp_path / name).exists()


@each_export
def test_keys_of_other_kinds_and_two_leaves_of_one_name(name: str, export: Export, tmp_path: Path) -> None:
    keys = ["robot0/eef-pos", "ärm:1", "class", "0", "x.y", "self", "obs", "__import__"]
    space = spaces.Dict({key: OBS for key in keys})
    export(rl.ActorCritic(space, BOX, hidden_sizes=(4,)), tmp_path / name)
    assert (tmp_path / name).exists()
    policy = rl.ActorCritic(spaces.Dict({"a.b": OBS, "a": spaces.Dict(b=OBS)}), BOX)
    text = f"^{export.__name__}: two parts of an observation are called 'obs.a.b'. Rename one in a wrapper.$"
    refuses(ExportError, text, export, policy, tmp_path / name)


def test_what_onnx_has_no_words_for(tmp_path: Path) -> None:
    policy = policy_with(lambda x, call: torch.special.bessel_j0(x))
    rl.export_torch(policy, tmp_path / "policy.pt2")
    refuses(ExportError, f"^export_onnx: {NO_WORDS}.*bessel_j0", rl.export_onnx, policy, tmp_path / "policy.onnx")


@each_export
def test_what_is_given_wrongly(name: str, export: Export, tmp_path: Path) -> None:
    who = export.__name__
    for wrong in (policy_of().actor, None):
        rule = f"^{who}.policy: must be a policy, an algorithm, or the path of a file or folder that one was "
        refuses(ParamsError, rule, export, wrong, tmp_path / name)
    refuses(ParamsError, f"^{who}.path: must be a path; got 1 ", export, policy_of(), 1)
    refuses(CheckpointError, "there is no such file", export, tmp_path / "missing.safetensors", tmp_path / name)
    refuses(ExportError, f"^{re.escape(str(tmp_path))}: could not be written", export, policy_of(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    text = "^export_onnx needs a package that is not installed: "
    said = refuses(MissingExtraError, text, rl.export_onnx, policy_of(), tmp_path / "policy.onnx")
    assert package in said
    assert said.endswith('Run: pip install "rltrainer[onnx]"')


def test_examples_lie_in_their_space() -> None:
    box = spaces.Box(np.array([-3e38, 100, -300, 0], np.float32), np.array([3e38, 200, -200, np.inf], np.float32))
    space = spaces.Dict(a=box, b=spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2)))))
    policy = rl.ActorCritic(space, spaces.Discrete(2))
    obs = draw_observations(policy, 9)
    for i in range(9):
        row: Any = {"a": obs["a"][i], "b": (obs["b"][0][i], obs["b"][1][i])}
        assert space.contains(row)
    assert np.abs(obs["a"][:, [0, 3]]).max() <= 10
    assert all(len(leaf) == 9 for leaf in leaves(obs))
