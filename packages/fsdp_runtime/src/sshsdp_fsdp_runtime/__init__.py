"""Sharded data parallelism that separates how parameters are computed with from how they are updated."""
