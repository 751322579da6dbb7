"""Policies as graphs that act where there is no rltrainer."""

from rltrainer.tools.export.onnx_file import export_onnx
from rltrainer.tools.export.torch_file import export_torch

__all__ = ["export_onnx", "export_torch"]
