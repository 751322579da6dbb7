"""A policy's graph as a file that PyTorch alone can run."""

import io
import json
import os
from pathlib import Path
from typing import Any

import torch

from rltrainer.algorithms.meant_policy import Player
from rltrainer.errors import ExportError
from rltrainer.files.atomic_write import replaced_file, write_errors
from rltrainer.spaces import Array
from rltrainer.tools.export.examples import to_tensors
from rltrainer.tools.export.graph_metadata import describe
from rltrainer.tools.export.greedy_graph import own_policy, trace
from rltrainer.tools.export.parity import compare
from rltrainer.tools.export.quiet import quiet
from rltrainer.tree import Tree
from rltrainer.validation.field_rules import AnyPath, checked

DESCRIPTION = "rltrainer.json"
"""Name of the file within the file that says what the graph is of."""


def export_torch(policy: Player, path: str | os.PathLike[str]) -> None:
    """Write the greedy policy as a graph that PyTorch runs without rltrainer: a `.pt2` file of `torch.export`.

    The graph takes raw observations as `policy(obs)` does, tensors [N, ...] for any N, a Dict or Tuple as dict (keys in
    the order of the space) or tuple of them, without the keys that only the critic sees. It returns actions [N, ...] as
    `policy.predict` does: within the Box, obeying the mask, in the dtype of their space. That of a recurrent policy
    takes the memory too and returns it with the action, `(obs, state) -> (action, next_state)`: zeros [N, S] begin an
    episode.

        graph = torch.export.load("policy.pt2").module()
        action = graph(obs)

    `torch.export.load` unpickles parts of its file: load none that you would not run. The file holds a description, the
    JSON text `rltrainer.json` among its `extra_files`: spaces, names, version.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best. It stays
            as it is.
        path: the file; what is there is replaced. PyTorch expects the ending `.pt2`.

    Raises:
        ExportError: a module of the policy is more than a graph of tensors, or the graph acts otherwise than
            `policy.predict` on observations drawn from the space; nothing was written.
        ParamsError: there is no policy.
        CheckpointError: the file of the policy cannot be read.
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
        torch.export.save(program, packed, extra_files={DESCRIPTION: json.dumps(describe(policy))})
    with write_errors(path, ExportError), replaced_file(path) as file, packed.getbuffer() as view:
        file.write(view)
