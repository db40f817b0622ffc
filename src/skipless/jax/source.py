"""Where in the user's program a recorded operation was written, and which library call it is of.

JAX keeps the Python frames under which an operation was recorded. The innermost one that belongs to
no library is the user's line. A frame of a known layer, such as `BatchNorm.__call__`, tells that
the operation is a part of that layer.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Literal

Frames = Sequence[tuple[CodeType, int]]  # innermost first, each with its place in the bytecode
CallKind = Literal["norm", "dropout", "resize", "shaped", "normalised input", "probabilities"]

# Their lines are not the user's.
_LIBRARIES = (
    "jax", "flax", "haiku", "equinox", "keras", "jaxtyping", "beartype", "jmp", "optax", "chex",
    "skipless", "numpy", "jaxlib", "tensorflow",
)  # fmt: skip
# Whole calls of libraries by file and function: what they compute is known, however they do it.
_CALLS: tuple[tuple[CallKind, str, str], ...] = (
    ("norm", r"flax/(linen|nnx/nn)/normalization\.py", r"(?!Spectral|Weight)\w*Norm\.__call__"),
    ("norm", r"haiku/_src/(batch|layer|group|rms)_norm\.py", r"\w+\.__call__"),
    ("norm", r"equinox/nn/_(normalisation|batch_norm)\.py", r"\w+\.__call__"),
    ("norm", r"keras/src/layers/normalization/\w+\.py", r"(?!Spectral)\w+\.call"),
    ("norm", r"jax/_src/nn/functions\.py", r"standardize"),
    ("dropout", r"flax/(linen|nnx/nn)/stochastic\.py", r"Dropout\.__call__"),
    ("dropout", r"haiku/_src/basic\.py", r"dropout"),
    ("dropout", r"equinox/nn/_dropout\.py", r"Dropout\.__call__"),
    ("dropout", r"keras/src/layers/regularization/\w*dropout\.py", r"\w+\.call"),
    ("resize", r"jax/_src/image/scale\.py", r"_?resize|_?scale_and_translate"),
    ("shaped", r"skipless/jax/(nnx/)?activations\.py", r"Shaped(Activation)?\.__call__"),
    ("normalised input", r"skipless/jax/normalize\.py", r"normalize_per_(location|sample)"),
    ("probabilities", r"jax/_src/nn/functions\.py", r"(log_)?softmax|_softmax\w*"),
)
# What JAX itself compiles is recorded once, with the frames of whoever used it first.
_JAX_FUNCTIONS = re.compile(r"/jax/_src/(nn|numpy|scipy|random|image|lax/(?!control_flow))")


@dataclass(frozen=True)
class Location:
    """Where an operation was recorded: its frames, the named scopes around it, the call it is in.

    Each time that a compiled function or the body of a loop is written out, it is another `call`.
    """

    traceback: object = None
    scope: str = ""
    call: int = 0
    outer: Location | None = None
    kind: CallKind | None = None  # of the call, if it is known without the frames

    def __str__(self) -> str:
        """The path of modules, if their library tells it, with the user's line."""
        line = self.line
        if self.scope:
            return f"{self.scope} ({line})" if line else self.scope
        return line or "the model itself"

    @property
    def line(self) -> str:
        """The user's file and line, or that which called what this is a part of."""
        for code, instruction in frames(self.traceback):
            if not _belongs_to_library(code.co_filename):
                return f"{Path(code.co_filename).name}:{_line_number(code, instruction)}"
        return self.outer.line if self.outer is not None else ""

    @property
    def library_call(self) -> tuple[CallKind, object] | None:
        """Of which kind of call this is a part, and what tells that call apart from others."""
        found = None if self.kind is None else (self.kind, (self.kind, self.call))
        own = frames(self.traceback)
        for depth, (code, _) in enumerate(own):
            if (kind := _kind(code)) is not None:  # the outermost one has all of it
                found = (kind, (kind, self.call, tuple(own[depth + 1 :])))
        above = self.outer.library_call if self.outer is not None else None
        return above or found

    def inside(self, called: str, call: int) -> tuple[Location, bool]:
        """Where the operations of a function are that is `called` here, and whether just here."""
        name, _, place = called.replace("\\", "/").partition(" at ")
        file = place.rpartition(":")[0]
        if not _JAX_FUNCTIONS.search(file):
            return Location(None, self.scope, call, self), False
        kind = _kind_of(file, name)
        return self if kind is None else replace(self, call=call, kind=kind), True

    def at(self, traceback: object, scope: str) -> Location:
        """An operation in the function that this is the inside of."""
        path = "/".join(part for part in (self.scope, _plain(scope)) if part)
        return Location(traceback, path, self.call, self.outer)


def frames(traceback: object) -> Frames:
    """The Python frames of JAX's record of them, innermost first."""
    if traceback is None:
        return ()
    if (raw := getattr(traceback, "raw_frames", None)) is not None:
        return tuple(zip(*raw(), strict=True))
    return tuple(_walk(getattr(traceback, "as_python_traceback", lambda: None)()))[::-1]


def _walk(traceback: object) -> Iterator[tuple[CodeType, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lasti  # pyright: ignore
        traceback = traceback.tb_next  # pyright: ignore


def _plain(scope: str) -> str:
    """The names of scopes, without those that transformations wrap around them."""
    while (inner := re.sub(r"\b\w+\(([^()]*)\)", r"\1", scope)) != scope:
        scope = inner
    return "/".join(part for part in scope.split("/") if part)


def _line_number(code: CodeType, instruction: int) -> int:
    for number, (line, *_) in enumerate(code.co_positions()):
        if number == instruction // 2 and line is not None:  # an instruction has two bytes
            return line
    return code.co_firstlineno


@cache
def _kind(code: CodeType) -> CallKind | None:
    return _kind_of(code.co_filename.replace("\\", "/"), code.co_qualname)


@cache
def _kind_of(file: str, function: str) -> CallKind | None:
    for kind, path, name in _CALLS:
        if re.search(f"/{path}$", file) and re.fullmatch(name, function):
            return kind
    return None


@cache
def _belongs_to_library(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file
    standard = file.startswith((sysconfig.get_path("stdlib"), "<frozen"))
    return (standard and not installed) or file.startswith(_library_folders())


@cache
def _library_folders() -> tuple[str, ...]:
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _LIBRARIES)
    return tuple(f"{Path(file).parent}/" for file in files if file)
