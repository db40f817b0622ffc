r"""Which multiple of each tensor, and how far moved, a network may compute in its place.

A network may keep a tensor $x$ as another one, $p$, with

$$x = \text{scale} \cdot p + \text{shift},$$

if whoever reads it knows. The pair is the tensor's *gauge*. An affine layer can be made to read any
gauge and to write any other, by a change of its weights. A shaped activation, which is
$s_o\,(\varphi(s_i x + b_i) + b_o)$, is the plain φ if its input has the gauge
$(1 / s_i, -b_i / s_i)$ and its output $(s_o, s_o b_o)$; a rectifier, being homogeneous, leaves one
scale free. So the question which constants fold into which weights is a system of linear equations:
in the logarithms of the scales, and in the shifts. What an operation asks of its own gauges can
always be met. That a tensor is read in the gauge in which it was written may contradict the rest:
there, a multiplication or an addition has to remain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, fx

from .roles import Affine, Blind, Opaque, Passes, Plus, Role, Shaped, Sum, Times, inputs

# Far above the rounding of a few hundred additions, far below what float32 resolves.
SAME = 1e-12
Unknown = Hashable  # a node for its output, or a slot
_PROBE = torch.linspace(-12.0, 12.0, 49, dtype=torch.float64)


@dataclass(frozen=True)
class Gauge:
    """A tensor x is kept as (x - `shift`) / `scale`."""

    scale: float
    shift: float


class Equations:
    """Linear equations in named unknowns, each taken unless it contradicts those taken before.

    >>> equations = Equations()
    >>> equations.take(3.0, (1.0, "x"), (1.0, "y")), equations.take(1.0, (1.0, "x"))
    (True, True)
    >>> equations.take(5.0, (1.0, "y"))
    False
    >>> equations.values()
    {'x': 1.0, 'y': 2.0}
    """

    def __init__(self) -> None:
        self._order: dict[Hashable, int] = {}
        self._solved: dict[int, tuple[dict[int, float], float]] = {}

    def take(self, value: float, *terms: tuple[float, Hashable]) -> bool:
        """Whether Σ coefficient · unknown = `value` holds from now on."""
        row: dict[int, float] = defaultdict(float)
        for coefficient, unknown in terms:
            row[self._order.setdefault(unknown, len(self._order))] += coefficient
        row, value = self._reduced(row, value)
        if not row:
            return abs(value) <= SAME
        # The newest unknown is given by older ones, as in the network itself: the other way round,
        # a long sum of weighted terms would be divided by its weights again and again.
        newest = max(row)
        lead = row.pop(newest)
        self._solved[newest] = ({i: -c / lead for i, c in row.items()}, value / lead)
        return True

    def _reduced(self, row: dict[int, float], value: float) -> tuple[dict[int, float], float]:
        """The same equation in unknowns that no other gives."""
        left: dict[int, float] = {}
        while row:
            newest = max(row)
            coefficient = row.pop(newest)
            if abs(coefficient) <= SAME:
                continue
            if newest not in self._solved:
                left[newest] = coefficient
                continue
            older, constant = self._solved[newest]
            value -= coefficient * constant
            for i, c in older.items():
                row[i] += coefficient * c
        return left, value

    def values(self) -> dict[Hashable, float]:
        """Every unknown, in the order of their first mention; zero where nothing is asked."""
        numbers: dict[int, float] = {}
        for i in self._order.values():
            older, constant = self._solved.get(i, ({}, 0.0))
            numbers[i] = constant + sum(c * numbers[j] for j, c in older.items())
        return {unknown: numbers[i] for unknown, i in self._order.items()}


def slot(node: fx.Node, role: Role, source: fx.Node) -> Unknown:
    """The unknown that stands for `source` as `node` reads it.

    All calls of one layer share it, for they share the weights. A factor or a number to be added
    reads what is there, since it is free to change.
    """
    match role:
        case Affine():
            return (role.weight, "input")
        case Times() | Plus():
            return source
        case _:
            return (node, source)


def solve_gauges(roles: Mapping[fx.Node, Role]) -> dict[Unknown, Gauge]:
    """A gauge for each tensor, by its node, and for each reading of it, by its `slot`.

    First come the needs of each operation; then, from input to output, that tensors are read as
    they were written; then wishes: that activations and sums keep their values, lest scales pile up
    along a sum, and that factors and added numbers, which were in the network before, vanish.
    """
    scales, shifts = Equations(), Equations()
    for node, role in roles.items():
        _relate_scales(scales, node, role)
        _relate_shifts(shifts, node, role)
    for node, role in roles.items():
        for source in dict.fromkeys(inputs(role)):
            for equations in (scales, shifts):
                equations.take(0.0, (-1.0, source), (1.0, slot(node, role, source)))
    for kind in (Shaped, Sum):
        for node in (node for node, role in roles.items() if isinstance(role, kind)):
            scales.take(0.0, (1.0, node))
    for node, role in roles.items():
        if isinstance(role, Times) and role.factor > 0.0:
            scales.take(math.log(role.factor), (1.0, node), (-1.0, role.input))
        elif isinstance(role, Plus):
            shifts.take(role.number, (1.0, node), (-1.0, role.input))
    scale, shift = scales.values(), shifts.values()
    unknowns = dict.fromkeys([*scale, *shift])
    return {u: Gauge(math.exp(scale.get(u, 0.0)), shift.get(u, 0.0)) for u in unknowns}


def _relate_scales(scales: Equations, node: fx.Node, role: Role) -> None:
    """What the operation at `node` asks of the logarithms of scales."""
    slots = _slots(node, role)
    match role:
        case Blind() | Times():
            pass
        case Opaque():
            for unknown in (*slots, node):
                scales.take(0.0, (1.0, unknown))
        case Passes() | Sum() | Plus():
            for unknown in slots:
                scales.take(0.0, (-1.0, unknown), (1.0, node))
        case Affine():
            scales.take(0.0, (-1.0, (role.weight, "output")), (1.0, node))
        case Shaped():
            input_scale, _, output_scale, _ = _affine_constants(role)
            if _homogeneous(role.activation.function):
                both = math.log(input_scale) + math.log(output_scale)
                scales.take(both, (-1.0, slots[0]), (1.0, node))
            else:
                scales.take(-math.log(input_scale), (1.0, slots[0]))
                scales.take(math.log(output_scale), (1.0, node))
        case _:
            assert_never(role)


def _relate_shifts(shifts: Equations, node: fx.Node, role: Role) -> None:
    """What the operation at `node` asks of shifts."""
    slots = _slots(node, role)
    match role:
        case Blind() | Plus():
            pass
        case Opaque() | Passes(shift=False):
            for unknown in (*slots, node):
                shifts.take(0.0, (1.0, unknown))
        case Passes():
            for unknown in slots:
                shifts.take(0.0, (-1.0, unknown), (1.0, node))
        case Sum(terms):
            weighed = ((-w, slot(node, role, source)) for w, source in terms)
            shifts.take(0.0, *weighed, (1.0, node))
        case Times():
            shifts.take(0.0, (-role.factor, role.input), (1.0, node))
        case Affine():
            shifts.take(0.0, (-1.0, (role.weight, "output")), (1.0, node))
            if not role.shift:
                shifts.take(0.0, (1.0, slots[0]))
        case Shaped():
            input_scale, input_shift, output_scale, output_shift = _affine_constants(role)
            shifts.take(-input_shift / input_scale, (1.0, slots[0]))
            shifts.take(output_scale * output_shift, (1.0, node))
        case _:
            assert_never(role)


def _affine_constants(role: Shaped) -> Iterator[float]:
    """The constants around φ: input scale and shift, output scale and shift."""
    names = {"input_scale": 1.0, "input_shift": 0.0, "output_scale": 1.0, "output_shift": 0.0}
    return (role.activation.constants.get(name, default) for name, default in names.items())


def _homogeneous(phi: Callable[[Tensor], Tensor]) -> bool:
    """Whether φ(k x) = k φ(x) for positive k, as far as a probe can tell."""
    return torch.equal(phi(4.0 * _PROBE), 4.0 * phi(_PROBE))  # powers of two do not round


def _slots(node: fx.Node, role: Role) -> list[Unknown]:
    return [slot(node, role, source) for source in dict.fromkeys(inputs(role))]
