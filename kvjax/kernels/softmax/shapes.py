"""Shapes met in use: rows of scores and slots each, as data for tests."""

#: (rows, n): a window of five queries of three query heads, and of one of four.
SHAPES = {
    "smollm2-135m, a pivot's window, 8k": (15, 8192),
    "smollm2-135m, a pivot's window, 32k": (15, 32768),
    "llama-3-8b, a pivot's window, 32k": (20, 32768),
}
