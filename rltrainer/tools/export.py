"""Policies as graphs that act without rltrainer: ONNX, which runtimes in many languages run, and PyTorch's `.pt2`.

`own_policy` copies the policy, `trace` makes its graph from raw observations to greedy actions for any batch size,
`compare` tries that graph beside `policy.predict`, and only then a file is written.
"""

import copy
import io
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltrainer.algorithms.load_file import Player, policy_of
from rltrainer.errors import ExportError, importing_extra, readable, without_addresses
from rltrainer.files.atomic_write import replaced_file, write_errors
from rltrainer.files.json_text import to_strict_json
from rltrainer.nets.linear import large_products_by
from rltrainer.nets.policy import Policy
from rltrainer.spaces import (
    ACTION_MASK,
    Array,
    Space,
    leaf_shape,
    leaf_spaces,
    num_choices,
    numpy_dtype,
    stored_dtype,
    to_plain,
)
from rltrainer.tree import Tree, leaves, map_tree
from rltrainer.validation.field_rules import AnyPath, checked

__all__ = ["export_onnx", "export_torch"]

# Name of the description in a `.pt2` file.
DESCRIPTION = "rltrainer.json"
PLAIN_NAME = re.compile(r"[\w./:-]+")
# Drawn numbers lie in [-10, 10] if their Box allows it: some boxes reach 3e38.
LARGEST = 10.0
TOLERANCE = 1e-4
# How many of 64 observations may differ: if two choices are equal up to rounding, either is right.
MAX_DIFFERENT = 4

Run = Callable[[Tree, tuple[Array, ...]], list[Array]]
"""Calls a graph: observations [N, ...] and the state [N, S] of a recurrent policy -> actions and the next state."""


def export_onnx(policy: Player, path: str | os.PathLike[str]) -> None:
    """Write the greedy policy as an ONNX graph, which ONNX Runtime and others run without Python, PyTorch or rltrainer.

    Inputs are the leaves of a raw observation, [batch, ...] for any batch, in float32, int64 (choices) or the dtype of
    a Box of integers: `obs`; for a Dict `obs.position`, `obs.action_mask`, `obs.camera.left`; for a Tuple `obs.0`. Keys
    that only the critic sees are left out. The output `action` is what `policy.predict` returns: within the Box,
    obeying the mask, in the dtype of the space. A recurrent policy has the input `state` [batch, S] and the output
    `next_state`: zeros start an episode.

        session = onnxruntime.InferenceSession("policy.onnx")
        (action,) = session.run(["action"], {"obs": obs})

    The metadata of the file holds `rltrainer` (the version), `policy` (the class), and as JSON `observation_space`,
    `action_space`, `inputs` and `outputs`.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best.
        path: the file; an existing one is replaced.

    Raises:
        ExportError: a module of the policy is more than a graph of tensors, or ONNX cannot express it, or the graph
            acts otherwise than `policy.predict` on observations drawn from the space; nothing was written.
        MissingExtraError: the extra `onnx` is not installed.
        ParamsError: there is no policy.
        CheckpointError: the file of the policy cannot be read.
    """
    with importing_extra("export_onnx", "onnx"):
        import onnx  # noqa: F401  # PyTorch imports these two itself
        import onnxruntime
        import onnxscript  # noqa: F401
    path = Path(checked("export_onnx", "path", path, AnyPath))
    policy = own_policy("export_onnx", policy)
    contents = _to_onnx(policy, trace("export_onnx", policy))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])

    def run(obs: Tree, state: tuple[Array, ...]) -> list[Array]:
        inputs = dict(zip(input_names(policy), [*leaves(obs), *state], strict=True))
        return session.run(output_names(policy), inputs)  # type: ignore[no-any-return]  # onnxruntime's

    compare("export_onnx", policy, run)
    with write_errors(path, ExportError), replaced_file(path) as file:
        file.write(contents)


def _to_onnx(policy: Policy, program: torch.export.ExportedProgram) -> bytes:
    names: dict[str, Any] = {"input_names": input_names(policy), "output_names": output_names(policy)}
    with quiet():
        try:
            made: Any = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False, **names)
        except Exception as error:  # the exporter's own, or its translations'
            problem = f"export_onnx: {type(policy).__name__} is no graph that ONNX has words for: {cause_of(error)}"
            raise ExportError(problem) from error
    model = made.model_proto
    described = _describe(policy)
    model.producer_name, model.producer_version = "rltrainer", described["rltrainer"]
    for key, value in described.items():
        model.metadata_props.add(key=key, value=value)
    graph = model.graph
    for node in graph.node:  # source lines with their paths
        del node.metadata_props[:]
        node.doc_string = ""
    # PyTorch calls the batch size s77 or so.
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in value.type.tensor_type.shape.dim[:1]:
            if size.dim_param:
                size.dim_param = "batch"
    return model.SerializeToString()  # type: ignore[no-any-return]  # protobuf's


def export_torch(policy: Player, path: str | os.PathLike[str]) -> None:
    """Write the greedy policy as a graph that PyTorch runs without rltrainer: a `.pt2` file of `torch.export`.

    The graph takes raw observations as `policy(obs)` does: tensors [N, ...] for any N, a Dict or Tuple as dict (keys in
    the order of the space) or tuple of them, without the keys that only the critic sees. It returns actions [N, ...] as
    `policy.predict` does: within the Box, obeying the mask, in the dtype of their space. A recurrent policy's graph
    maps `(obs, state) -> (action, next_state)`: zeros [N, S] start an episode.

        graph = torch.export.load("policy.pt2").module()
        action = graph(obs)

    `torch.export.load` unpickles parts of its file: load only files that you would run. The file describes itself in
    the JSON text `rltrainer.json` among its `extra_files`: spaces, names, version.

    Args:
        policy: as of `export_onnx`; raises what that function raises.
        path: the file; an existing one is replaced. PyTorch expects the ending `.pt2`.
    """
    path = Path(checked("export_torch", "path", path, AnyPath))
    policy = own_policy("export_torch", policy)
    program = trace("export_torch", policy)
    module = program.module()

    def run(obs: Tree, state: tuple[Array, ...]) -> list[Array]:
        with torch.no_grad():
            outputs: Any = module(to_tensors(obs), *map(torch.from_numpy, state))
        return [output.numpy() for output in (outputs if state else [outputs])]

    compare("export_torch", policy, run)
    packed = io.BytesIO()
    with quiet():
        torch.export.save(program, packed, extra_files={DESCRIPTION: json.dumps(_describe(policy))})
    with write_errors(path, ExportError), replaced_file(path) as file, packed.getbuffer() as view:
        file.write(view)


def own_policy(owner: str, player: Player) -> Policy:
    """Return a copy of the policy on the CPU, in eval mode, without gradients; `policy_of` accepts `player`."""
    return copy.deepcopy(policy_of(owner, player)).to("cpu").eval().requires_grad_(False)


class GreedyGraph(nn.Module):
    """`policy.predict` from tensor to tensor: normalise, mask, decide, clip, cast."""

    low: Tensor
    high: Tensor

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy, space, tree = policy, policy.action_space, leaf_spaces(policy.observation_space)
        self.dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
        self.is_clipped = isinstance(space, spaces.Box) and self.dtype is not torch.float32  # `act` clips float32
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.from_numpy(space.low.copy()))
            self.register_buffer("high", torch.from_numpy(space.high.copy()))
        self.unseen = {
            key: map_tree(lambda leaf: torch.zeros((1, *leaf_shape(leaf)), dtype=stored_dtype(leaf)), tree[key])
            for key in policy.unseen_keys
        }

    def forward(self, obs: Tree, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return actions [N, ...] in the dtype of their space; with a state [N, S], the next one too."""
        if self.unseen:
            size = leaves(obs)[0].shape[0]
            obs = obs | map_tree(lambda zeros: zeros.expand(size, *zeros.shape[1:]), self.unseen)
        action, next_state = (self.policy.act(obs), None) if state is None else self.policy.act(obs, state)
        action = action.to(self.dtype)
        action = action.clamp(self.low, self.high) if self.is_clipped else action
        return action if next_state is None else (action, next_state)


def trace(owner: str, policy: Policy) -> torch.export.ExportedProgram:
    """Return the graph of the greedy policy for any batch size; an `ExportError`, about `owner`, if it has none."""
    _check_names(owner, policy.observation_space)
    # Two observations: PyTorch would take a batch size of 0 or 1 for a constant.
    args = (to_tensors(draw_observations(policy, 2)), *map(torch.from_numpy, draw_state(policy, 2)))
    batch = torch.export.Dim("batch", min=1)
    # oneDNN's products are our operator, which other programs do not know.
    with torch.no_grad(), large_products_by("torch"), quiet():
        try:
            # Strict reads the code as well as running it: `len(x)` is no constant, and `if x.sum() > 0` is found.
            shapes = map_tree(lambda _: {0: batch}, args)
            program = torch.export.export(GreedyGraph(policy), args, dynamic_shapes=shapes, strict=True)
        except Exception as error:  # whatever a user's module raises on tensors without numbers
            problem = f"{owner}: {type(policy).__name__} is no graph of tensors: {cause_of(error)}"
            hint = "Its modules must do the same for all numbers and any number of observations: torch.where, not if."
            raise ExportError(f"{problem}. {hint}") from error
    # Critics, and the source lines with their paths, stay out of the file.
    signature = program.graph_signature
    used = {*signature.inputs_to_parameters.values(), *signature.inputs_to_buffers.values()}
    for name in program.state_dict.keys() - used:
        del program.state_dict[name]
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def cause_of(error: BaseException) -> str:
    """Return the first cause in one line: exporters wrap errors in errors, with pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in without_addresses(str(error)).splitlines())
    return f"{type(error).__name__}: {next(filter(None, lines), '')}".rstrip(":. ")


def compare(owner: str, policy: Policy, run: Run) -> None:
    """Compare a graph with `policy.predict` on 1 observation and on 63; raise an `ExportError` if they differ."""
    different = 0
    for num in (1, 63):
        obs, state = draw_observations(policy, num, seed=num), draw_state(policy, num, seed=num)
        expected = policy.predict(obs, *state)
        expected, found = list(expected) if state else [expected], run(obs, state)
        for name, here, there in zip(("action", "state"), expected, found, strict=False):
            if (here.shape, here.dtype) != (there.shape, there.dtype):
                texts = [f"{array.dtype} {array.shape}" for array in (here, there)]
                raise ExportError(f"{owner}: {name}: expected {texts[0]}, the graph returns {texts[1]}")
        is_close = [
            np.isclose(here, there, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True).reshape(num, -1).all(1)
            for here, there in zip(expected, found, strict=True)
        ]
        different += num - int(np.all(is_close, axis=0).sum())
    if different > MAX_DIFFERENT:
        problem = f"{type(policy).__name__} as a graph acts otherwise than policy.predict for {different} of 64"
        hint = "Something in its modules is no function of their inputs, such as a counter or random numbers."
        raise ExportError(f"{owner}: {problem} observations. {hint}")


def draw_observations(policy: Policy, num: int, seed: int = 0) -> Tree:
    """Draw raw observations [num, ...] of the parts that the policy acts on; a mask allows some of every choice."""
    space = copy.deepcopy(policy.observation_space)  # its random numbers are the user's
    space.seed(seed)
    samples = map_tree(lambda leaf: _samples(leaf, num), leaf_spaces(space))
    if policy.has_mask:
        first = np.cumsum([0, *(num_choices(policy.action_space) or ())])[:-1]
        samples[ACTION_MASK][:, first] = 1
    return seen_part(policy, samples)


def _samples(space: Space, num: int) -> Array:
    values = np.stack([space.sample() for _ in range(num)])
    if isinstance(space, spaces.Box) and values.dtype.kind == "f":
        low, high = np.maximum(space.low, -LARGEST), np.minimum(space.high, LARGEST)
        values = np.clip(values, np.minimum(low, space.high), np.maximum(high, space.low))
    return values.astype(numpy_dtype(space))


def draw_state(policy: Policy, num: int, seed: int = 0) -> tuple[Array, ...]:
    """Draw states [num, S] in [-1, 1]; none for a policy without memory."""
    state = policy.initial_state(num) if policy.is_recurrent else None
    if state is None:
        return ()
    return (np.random.default_rng(seed).uniform(-1, 1, tuple(state.shape)).astype(np.float32),)


def seen_part(policy: Policy, tree: Tree) -> Tree:
    """Return the parts of an observation's tree, of any shape, that the policy acts on."""
    return {k: part for k, part in tree.items() if k not in policy.unseen_keys} if isinstance(tree, dict) else tree


def to_tensors(tree: Tree) -> Tree:
    """Return the arrays of a tree, of any shape, as tensors."""
    return map_tree(torch.from_numpy, tree)


def _check_names(owner: str, observation_space: Space) -> None:
    # PyTorch writes these names into code, and an observation space may come from a file.
    names = list(dotted_names(leaf_spaces(observation_space)))
    for name in names:
        if not PLAIN_NAME.fullmatch(name):
            rule = "keys must consist of letters, digits and ._-/:"
            raise ExportError(f"{owner}: {readable(name)}: {rule}. Rename them in a wrapper of the env.")
        if names.count(name) > 1:
            raise ExportError(f"{owner}: two parts of an observation are called {name!r}. Rename one in a wrapper.")


def dotted_names(tree: Tree, name: str = "obs") -> Iterator[str]:
    """Yield the name of each leaf, of any shape: `obs`, `obs.camera.left` or `obs.0`, in the order of the space."""
    if isinstance(tree, dict | tuple):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from dotted_names(part, f"{name}.{key}")
    else:
        yield name


@contextmanager
def quiet() -> Iterator[None]:
    """Silence PyTorch's exporters (missing packages, deprecations, traces), but not errors."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "torch"]
    handlers = [handler for name in names for handler in logging.getLogger(name).handlers]
    others_only = logging.Filter("rltrainer")  # lets records of other loggers than PyTorch's pass
    for handler in handlers:
        handler.addFilter(others_only)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(others_only)


def input_names(policy: Policy) -> list[str]:
    """Return the names of a graph's inputs, in their order."""
    seen = seen_part(policy, leaf_spaces(policy.observation_space))
    return [*dotted_names(seen), *(["state"] if policy.is_recurrent else [])]


def output_names(policy: Policy) -> list[str]:
    """Return the names of a graph's outputs."""
    return ["action", "next_state"] if policy.is_recurrent else ["action"]


def _describe(policy: Policy) -> dict[str, str]:
    """Describe a graph for readers in any language; spaces and names are JSON."""
    return {
        "rltrainer": sys.modules["rltrainer"].__version__,
        "policy": type(policy).__name__,
        "observation_space": to_strict_json(to_plain(policy.observation_space)),
        "action_space": to_strict_json(to_plain(policy.action_space)),
        "inputs": json.dumps(input_names(policy)),
        "outputs": json.dumps(output_names(policy)),
    }
