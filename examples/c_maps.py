"""Solve for a 100-layer network under EOC, TAT and DKS; print a table, draw the C maps.

python examples/c_maps.py
"""

from pathlib import Path

from skipless import DKS, EOC, TAT, Graph
from skipless.report.figures import draw_c_maps
from skipless.runs.kernels import c_map_curve
from skipless.tables import table

DEPTH = 100


def main(folder: Path) -> None:
    graph = Graph.chain(DEPTH)
    found = [c_map_curve(graph, method) for method in (EOC(), TAT(eta=0.9), DKS(zeta=1.5))]
    rows = [
        [
            curve.label,
            f"{curve.global_map[0]:.4f}",
            f"{curve.global_map[curve.c.size // 2]:.4f}",
            f"{solution.largest_residual:.0e}",
            "  ".join(f"{k}={v:.5g}" for k, v in solution.parameters.items() if v is not None),
        ]
        for solution, curve in found
    ]
    print(f"A network of {DEPTH} layers without shortcuts:\n")
    print(table(["method", "C_f(-1)", "C_f(0)", "residual", "parameters"], rows))
    folder.mkdir(exist_ok=True)
    figure = draw_c_maps(
        [curve for _, curve in found], f"{DEPTH} layers without shortcuts", folder / "c_maps.png"
    )
    print("\nC_f maps the cosine of two inputs to that of their outputs. Under EOC even opposite")
    print(f"inputs come out alike; TAT and DKS keep them apart. Figure: {figure}")


if __name__ == "__main__":
    main(Path("out"))
