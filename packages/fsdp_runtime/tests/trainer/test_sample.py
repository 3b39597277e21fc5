"""Sampling follows the model's logits, and its text is safe to show."""

import pytest
import torch

from sshsdp_fsdp_runtime.trainer.sample import NoSampleError, generate, printable


def successor(tokens):
    """Logits of a model that is sure that n is followed by n + 1, of 10."""
    return 50.0 * torch.nn.functional.one_hot((tokens + 1) % 10, 10).float()


def test_a_sure_model_is_followed():
    options = {"count": 12, "context": 4, "seed": 0}
    expected = [(3 + n) % 10 for n in range(12)]
    assert generate(successor, [1, 2], temperature=0.0, **options) == expected
    assert generate(successor, [1, 2], temperature=1.0, **options) == expected
    assert generate(successor, [1, 2], temperature=1e-320, **options) == expected


def test_a_forward_never_sees_more_than_the_context():
    lengths = []

    def forward(tokens):
        lengths.append(tokens.shape[1])
        return successor(tokens)

    generate(forward, [0], count=6, context=3, temperature=0.0, seed=0)
    assert lengths == [1, 2, 3, 3, 3, 3]


def test_draws_depend_on_the_seed_and_follow_the_temperature():
    def forward(tokens):
        return torch.log(torch.tensor([0.7, 0.2, 0.1])).expand(1, tokens.shape[1], 3)

    def draw(seed, temperature=1.0):
        return generate(forward, [0], count=400, context=1, temperature=temperature, seed=seed)

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert 0.6 < draw(1).count(0) / 400 < 0.8
    assert draw(1, 0.3).count(0) / 400 > 0.9


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_that_are_not_finite_give_no_sample(temperature):
    def forward(tokens):
        return torch.full((1, tokens.shape[1], 3), torch.nan)

    with pytest.raises(NoSampleError, match="expected finite outputs of the model, got inf or NaN"):
        generate(forward, [0], count=1, context=1, temperature=temperature, seed=0)


def test_control_characters_never_reach_the_terminal():
    assert printable("a\x1b[2J\tb\n\fé", "utf-8") == "a\ufffd[2J\tb\n\ufffdé"
    assert printable("é", "ascii") == "?"
