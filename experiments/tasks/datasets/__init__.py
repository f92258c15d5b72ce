"""Benchmarks that come as data sets: LongBench and LongBench-E, LongBench v2, InfiniteBench."""
