"""What tells the states of two stages apart: their classes, and what of every number is not counted by slots or rows."""

import jax
from jaxtyping import PyTree


def form_of(tree: PyTree, axes: int) -> tuple:
    """Structure, classes, and of every leaf its dtype and its shape behind the first `axes` axes; to be compared.

    The classes are asked for by themselves: to jaxlib two dataclasses of as many fields have one structure.
    """
    structure = jax.tree.structure(tree)
    return structure, _classes(structure), [(x.shape[axes:], x.dtype) for x in jax.tree.leaves(tree)]


def _classes(structure: PyTree) -> tuple:
    """The class of a node, and those of what it holds; None for a leaf."""
    node = structure.node_data()
    return node and node[0], *map(_classes, structure.children())
