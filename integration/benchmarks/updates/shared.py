"""The frozen model of the comparison `fsdp2`, which belongs to that benchmark."""

from testing.bench_module import find, load
from testing.bench_program import ROOT

reference = load(find(ROOT, "fsdp2")).reference
