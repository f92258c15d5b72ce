"""Benchmarks that come as data sets: LongBench, LongBench-E and v2, InfiniteBench, LongMemEval, LongProc, SCBench, NeedleBench,
AIME and ZeroSCROLLS."""
