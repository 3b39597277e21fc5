"""Checks that check: faults planted into the sources, each of which must fail a named test.

``faults/*.toml`` hold them, as data. ``python -m testing.mutants`` runs them all in a copy.
"""
