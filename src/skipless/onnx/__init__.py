"""ONNX files: write a model, quantise it, read it as a graph, find its peak memory."""

from .graph import peak_memory, read
from .writer import export, quantize

__all__ = ["export", "peak_memory", "quantize", "read"]
