"""Tools of the tests and benchmarks; not shipped with any package."""
