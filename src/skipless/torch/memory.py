"""Which recorded tensors share their memory, so that a write into one is seen in the others."""

from __future__ import annotations

from torch import fx

_VIEWS = {
    "flatten", "view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze", "contiguous",
    "detach", "slice", "expand", "alias", "movedim", "unflatten", "select", "narrow", "getitem",
    "chunk", "split", "split_with_sizes", "swapaxes", "numpy_T", "to", "dropout",
}  # fmt: skip


class Memory:
    """Follows views of tensors and operations in place."""

    def __init__(self) -> None:
        self._first: dict[fx.Node, fx.Node] = {}  # the tensor that first held the numbers of each

    def follow(self, node: fx.Node, source: fx.Node, name: str) -> None:
        """Note whether the result of the operation `name` on `source` may lie where that does."""
        shares = name in _VIEWS or name.endswith("_")
        self._first[node] = self._first.get(source, source) if shares else node

    def read_later(self, node: fx.Node, written: fx.Node) -> fx.Node | None:
        """A reader of what `node` changes by writing into `written`, under another name."""
        memory = self._first[node]
        for other, first in [*self._first.items(), (memory, memory)]:
            if first is memory and other not in (written, node, node.args[0]):
                for user in other.users:
                    if user > node:
                        return user
        return None
