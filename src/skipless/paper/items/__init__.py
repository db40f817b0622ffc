"""Every table and figure of the paper, one module each, and three items beyond it."""

from __future__ import annotations

from skipless.paper.item import Item

from . import (
    batch_sizes,
    distillation,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    figure7,
    optimizers,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
    table10,
    table11,
)

_MODULES = (
    figure1, figure2, figure3, figure4, figure5, figure6, figure7,
    table1, table2, table3, table4, table5, table6, table7, table8, table9, table10, table11,
    optimizers, batch_sizes, distillation,
)  # fmt: skip

ITEMS: dict[str, Item] = {module.ITEM.name: module.ITEM for module in _MODULES}
