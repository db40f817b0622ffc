"""The paper's tables and figures as data, with their claims, and three items beyond the paper."""

from dataclasses import replace

from . import beyond, computed, figures, tables
from .item import Item

_DEFINED = (
    figures.figure1, computed.figure2, figures.figure3, computed.figure4, figures.figure5,
    figures.figure6, figures.figure7, computed.table1, tables.table2, tables.table3, tables.table4,
    tables.table5, tables.table6, tables.table7, tables.table8, tables.table9, tables.table10,
    tables.table11, beyond.optimizers, beyond.batch_sizes, beyond.distillation,
)  # fmt: skip

# An item is called as the function that defines it.
ITEMS: dict[str, Item] = {
    define.__name__: replace(define(), name=define.__name__) for define in _DEFINED
}
