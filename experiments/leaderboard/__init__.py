"""Every method beside every other: a sweep over all of them, one table of its rows, and a page to look at it."""
