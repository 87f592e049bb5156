"""Benchmark: cases in their own processes, beside other readers and the bare decoder."""
