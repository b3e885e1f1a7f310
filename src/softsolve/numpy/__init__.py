"""Perturbed solvers in NumPy: estimators with explicit derivatives."""

from softsolve.numpy.layers import Distribution, Gradients, Perturbed
from softsolve.numpy.losses import FenchelYoungLoss

__all__ = ["Distribution", "FenchelYoungLoss", "Gradients", "Perturbed"]
