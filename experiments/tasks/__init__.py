"""Tasks, a module each: `examples(...)` yields frozen `Example`s, `grade(...)` scores compressed contexts."""
