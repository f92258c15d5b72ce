"""Slow NumPy transcriptions of the published formulas, float64, one idea a file, no JAX.

Axis letters are those of the library: h KV heads, g query heads per KV head, w window rows, n key positions, d head
dimension, l layers. There is no batch axis: a reference describes one prompt, so a batched result is compared row by
row.
"""
