"""The paper's tables and figures as data, with their claims, and three items beyond the paper."""

from __future__ import annotations

from .beyond import batch_sizes, distillation, optimizers
from .computed import figure2, figure4, table1
from .figures import figure1, figure3, figure5, figure6, figure7
from .item import Item
from .tables import table2, table3, table4, table5, table6, table7, table8, table9, table10, table11

_PAPER = (
    figure1, figure2, figure3, figure4, figure5, figure6, figure7,
    table1, table2, table3, table4, table5, table6, table7, table8, table9, table10, table11,
)  # fmt: skip
_BEYOND = (optimizers, batch_sizes, distillation)

ITEMS: dict[str, Item] = {item.name: item for item in (define() for define in _PAPER + _BEYOND)}
