"""The pattern language: `*` within a name, `**` across dots."""

import pytest

from sshsdp_fsdp_runtime.plan.patterns import matches


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("layers.*", "layers.0", True),
        ("layers.*", "layers.0.mlp", False),
        ("layers.**", "layers.0.mlp.weight", True),
        ("layers.**", "layers", False),
        ("**", "weight", True),
        ("**", "a.b.c", True),
        ("**.weight", "weight", True),
        ("**.weight", "layers.0.weight", True),
        ("**.weight", "layers.0.lora_weight", False),
        ("**.q_proj.weight", "layers.3.attention.q_proj.weight", True),
        ("layers.*.q*.weight", "layers.3.q_proj.weight", True),
        ("layers.*.q*.weight", "layers.3.attention.q_proj.weight", False),
        ("a+b", "aab", False),
        ("**.experts.**", "layers.0.experts.7.up", True),
    ],
)
def test_stars_stay_within_names_and_double_stars_cross_dots(pattern, name, expected):
    assert matches(pattern, name) is expected
