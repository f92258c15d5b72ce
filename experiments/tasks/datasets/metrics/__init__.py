"""What the benchmarks grade answers by, one metric a file, each from 0 to 1."""
