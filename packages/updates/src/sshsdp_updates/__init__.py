"""Staged, sharded optimizers: a rule declares what it reads and writes, the package distributes it."""
