"""ONNX files: write, read as a graph, quantise, weigh and time."""

from .export import export_onnx

__all__ = ["export_onnx"]
