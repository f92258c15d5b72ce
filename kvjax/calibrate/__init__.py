"""Offline calibration: what some methods measure of a model once, kept as an artefact of tables."""
