"""Parity with recorded outputs: `python -m tests.golden FOLDER` checks any folder in the golden format.

A folder holds `manifest.json` and one folder a model: `config.json`, weights, `reference.npz` (logits, keys, values,
greedy decoding of the full cache) and possibly `presses.npz` (kept sets and decode logits under compression).
"""
