"""K-FAC: natural gradients by Kronecker-factored curvature."""

from .optimizer import KFAC

__all__ = ["KFAC"]
