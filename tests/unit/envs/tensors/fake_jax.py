"""The parts of JAX and gymnax that the adapters use, made of PyTorch; `benchmarks/jax_envs.py` runs the real ones."""

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `import jax` and gymnax's conversion of spaces find these."""
    jax, spaces = ModuleType("jax"), ModuleType("gymnax.environments.spaces")
    tree = SimpleNamespace(map=pytree.tree_map, leaves=pytree.tree_leaves, structure=pytree.tree_structure)
    parts = {
        "jit": lambda function: function,
        "vmap": vmap,
        "tree": tree,
        "numpy": SimpleNamespace(where=torch.where, array=torch.as_tensor),
        "random": SimpleNamespace(PRNGKey=torch.tensor, split=split),
        "dlpack": SimpleNamespace(from_dlpack=torch.clone),
    }
    vars(jax).update(parts)
    vars(spaces)["gymnax_space_to_gym_space"] = lambda space: space
    modules = {name: ModuleType(name) for name in ("gymnax", "gymnax.environments")}
    for name, module in {"jax": jax, "gymnax.environments.spaces": spaces, **modules}.items():
        monkeypatch.setitem(sys.modules, name, module)


def split(key: torch.Tensor, num: int) -> torch.Tensor:
    """Return keys [num] that depend on the key alone."""
    return (key * 31 + torch.arange(num) * 7 + 1) % 1009


def vmap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function for each row, and stack the results; numbers become tensors, as in JAX."""

    def mapped(*args: Any) -> Any:
        num_rows = len(pytree.tree_leaves(args)[0])
        rows = [function(*pytree.tree_map(lambda leaf, n=n: leaf[n], args)) for n in range(num_rows)]
        return pytree.tree_map(lambda *leaves: torch.stack([torch.as_tensor(leaf) for leaf in leaves]), *rows)

    return mapped
