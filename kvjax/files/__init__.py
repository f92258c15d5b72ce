"""Files that hold arrays: written whole or not at all, checked when read."""
