"""Names of other packages' private API: a short table, each with its reason, and looked at again for each version."""

import ast
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import torch
from torch import nn

from rltrainer.execution.compiler import TESTED

PACKAGE = Path(__file__).parents[1] / "rltrainer"
OVERRIDDEN: dict[str, type] = {
    "nn.Module": nn.Module, "Policy": nn.Module, "nn.Linear": nn.Linear, "nn.Sequential": nn.Sequential,
    "gym.Env": gym.Env, "gym.Wrapper": gym.Wrapper, "VectorEnv": gym.vector.VectorEnv,
}  # fmt: skip
"""Classes whose private methods a class of ours may override, by the names of its bases."""
FAMILIES = {"_foreach_": "_foreach_*", "_forward_": "_*_hooks", "_backward_": "_*_hooks"}
"""Beginnings of names that stand in the table as one."""
PRIVATE = {
    "_foreach_*": "one call for all tensors of a list; documented as beta, most without a public name",
    "_fused_adam_": "torch.optim.Adam(fused=True) spends most of its time around this call",
    "_dynamo": "trace_autograd_ops: without it no compiled step can take its gradients",
    "_inductor": "a loop around a graph that takes gradients has no public name",
    "_modules": "nn.Module's attribute lookup is 2 us of a forward pass",
    "_parameters": "as of _modules",
    "_*_hooks": "a module whose hooks are called takes the usual way",
    "_linear_pointwise": "oneDNN's product and activation in one call",
    "_apply": "the one place that .to() and .double() go through",
    "_trial_id": "Optuna continues a trial by it",
}
"""Names, and why no public one serves."""
MOST = 10
"""So many of them may be used."""


def sources() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in ("_", "_exit")  # os._exit is documented


def own_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def used_names(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Yield the private names of others that a file reads, imports or overrides."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in own:
            yield node.attr
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("rltrainer"):
            yield from [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            yield from [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ClassDef) and set(map(ast.unparse, node.bases)) & OVERRIDDEN.keys():
            parents = [OVERRIDDEN[base] for base in map(ast.unparse, node.bases) if base in OVERRIDDEN]
            names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            yield from [name for name in names if any(hasattr(parent, name) for parent in parents)]


def found_names() -> dict[str, set[str]]:
    """Return the private names of others in the package, each with the files that use it."""
    trees, found = sources(), dict[str, set[str]]()
    own = {name for tree in trees.values() for name in own_names(tree)}
    for path, tree in trees.items():
        for name in filter(is_private, used_names(tree, own)):
            family = next((family for start, family in FAMILIES.items() if name.startswith(start)), name)
            found.setdefault(family, set()).add(path)
    return found


def test_every_private_name_has_its_reason() -> None:
    found = found_names()
    assert {name: files for name, files in found.items() if name not in PRIVATE} == {}, "give a reason, or do without"
    assert len(found) <= MOST


def test_a_version_of_torch_was_looked_at() -> None:
    """If this fails: look at each name below in the new version, run tests/compile, and add the version to `TESTED`."""
    assert torch.__version__.startswith(TESTED), f"look at {', '.join(PRIVATE)} in torch {torch.__version__}"
