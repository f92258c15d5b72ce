"""Tasks: a module each, with `examples(...)` that yields frozen `Example`s and `grade(...)` that scores cached contexts."""
