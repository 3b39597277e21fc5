"""Communication that uses no GPU SMs, and its CPU twin: schedules as data over shared-memory arenas."""
