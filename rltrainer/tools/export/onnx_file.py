"""A policy's graph as an ONNX file, which runtimes in many languages run."""

import os
from pathlib import Path
from typing import Any

import torch

from rltrainer.algorithms.meant_policy import Player
from rltrainer.errors import ExportError, missing_extra
from rltrainer.files.atomic_write import replaced_file, write_errors
from rltrainer.nets.policy import Policy
from rltrainer.spaces import Array
from rltrainer.tools.export.graph_metadata import describe, input_names, output_names, version
from rltrainer.tools.export.greedy_graph import cause_of, own_policy, trace
from rltrainer.tools.export.parity import compare
from rltrainer.tools.export.quiet import quiet
from rltrainer.tree import Tree, leaves
from rltrainer.validation.field_rules import AnyPath, checked


def export_onnx(policy: Player, path: str | os.PathLike[str]) -> None:
    """Write the greedy policy as an ONNX graph, which ONNX Runtime and others run without Python, PyTorch or rltrainer.

    Inputs are the leaves of a raw observation, [batch, ...] for any batch, in float32, int64 (choices) or what a Box of
    integers has: `obs`; of a Dict `obs.position`, `obs.action_mask`, `obs.camera.left`; of a Tuple `obs.0`. Keys that
    only the critic sees are left out. The output `action` is what `policy.predict` returns: within the Box, obeying the
    mask, in the dtype of the space. A recurrent policy has the input `state` [batch, S] and the output `next_state`:
    zeros begin an episode.

        session = onnxruntime.InferenceSession("policy.onnx")
        (action,) = session.run(["action"], {"obs": obs})

    The metadata of the file holds `rltrainer` (the version), `policy` (the class), and as JSON `observation_space`,
    `action_space`, `inputs` and `outputs`.

    Args:
        policy: a policy, an algorithm, or the path of a file, of a checkpoint, or of a run's folder: its best. It stays
            as it is.
        path: the file; what is there is replaced.

    Raises:
        ExportError: a module of the policy is more than a graph of tensors, or one that ONNX has no words for, or the
            graph acts otherwise than `policy.predict` on observations drawn from the space; nothing was written.
        MissingExtraError: the extra `onnx` brings what is missing.
        ParamsError: there is no policy.
        CheckpointError: the file of the policy cannot be read.
    """
    onnxruntime = _require_onnx()
    path = Path(checked("export_onnx", "path", path, AnyPath))
    policy = own_policy("export_onnx", policy)
    contents = _to_onnx(policy, trace("export_onnx", policy))
    session = _session(onnxruntime, contents)

    def run(obs: Tree, state: tuple[Array, ...]) -> list[Array]:
        inputs = dict(zip(input_names(policy), [*leaves(obs), *state], strict=True))
        return session.run(output_names(policy), inputs)  # type: ignore[no-any-return]  # onnxruntime's

    compare("export_onnx", policy, run)
    with write_errors(path, ExportError), replaced_file(path) as file:
        file.write(contents)


def _require_onnx() -> Any:
    """Return onnxruntime; PyTorch imports the others itself."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise missing_extra("export_onnx", "onnx", error) from error
    return onnxruntime


def _to_onnx(policy: Policy, program: torch.export.ExportedProgram) -> bytes:
    names: dict[str, Any] = {"input_names": input_names(policy), "output_names": output_names(policy)}
    with quiet():
        try:
            made: Any = torch.onnx.export(program, dynamo=True, external_data=False, verbose=False, **names)
        except Exception as error:  # the exporter's own, and what its translations raise
            problem = f"export_onnx: {type(policy).__name__} is no graph that ONNX has words for: {cause_of(error)}"
            raise ExportError(problem) from error
    model = made.model_proto
    model.producer_name, model.producer_version = "rltrainer", version()
    for key, value in describe(policy).items():
        model.metadata_props.add(key=key, value=value)
    graph = model.graph
    for node in graph.node:  # lines of code with their paths
        del node.metadata_props[:]
        node.doc_string = ""
    # PyTorch calls the number of observations s77 or so.
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in value.type.tensor_type.shape.dim[:1]:
            if size.dim_param:
                size.dim_param = "batch"
    return model.SerializeToString()  # type: ignore[no-any-return]  # protobuf's


def _session(onnxruntime: Any, contents: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
