"""The decoder computes what its parts say, by formulas of their own."""

from dataclasses import replace

import pytest
import torch

from sshsdp_fsdp_runtime.trainer.model import Attention, Decoder, DecoderShape, Rotary

SHAPE = DecoderShape(vocab=50, context=24, width=48, layers=2, heads=6, kv_heads=2, hidden=40)


def tokens(batch=2, length=24):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


def test_logits_have_a_row_per_token_and_every_parameter_gets_a_gradient():
    model = Decoder(SHAPE)
    logits = model(tokens())
    assert logits.shape == (2, 24, 50)
    logits.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("experts", [{}, {"experts": 4, "active": 2}])
def test_a_shape_knows_how_many_parameters_its_model_has(experts):
    shape = replace(SHAPE, **experts)
    assert shape.parameters == sum(each.numel() for each in Decoder(shape).parameters())


def test_query_key_and_value_are_separate_layers_and_keys_are_narrower():
    names = dict(Decoder(SHAPE).named_parameters())
    assert names["layers.0.attention.q_proj.weight"].shape == (48, 48)
    assert names["layers.0.attention.k_proj.weight"].shape == (16, 48)
    assert names["layers.0.attention.v_proj.weight"].shape == (16, 48)


def test_a_later_token_changes_no_earlier_logit():
    model, first = Decoder(SHAPE), tokens()
    second = first.clone()
    second[:, 10] = (second[:, 10] + 1) % 50
    with torch.no_grad():
        before, after = model(first), model(second)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_grouped_queries_equal_repeated_keys_and_values():
    torch.manual_seed(0)
    layer = Attention(SHAPE).double()
    x = torch.randn(2, 24, 48, dtype=torch.float64)

    def heads(projection, count):
        return projection(x).view(2, 24, count, 8).transpose(1, 2)

    key = layer.rotary(heads(layer.k_proj, 2)).repeat_interleave(3, dim=1)
    value = heads(layer.v_proj, 2).repeat_interleave(3, dim=1)
    scores = layer.rotary(heads(layer.q_proj, 6)) @ key.transpose(-1, -2) / 8**0.5
    scores = scores.masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), -torch.inf)
    mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(2, 24, 48)
    torch.testing.assert_close(layer(x), layer.o_proj(mixed))


def test_rotary_keeps_norms_and_depends_on_distances_only():
    rotary = Rotary(8, 64)
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    queries, keys = rotary(query.expand(64, 8)), rotary(key.expand(64, 8))
    torch.testing.assert_close(queries.norm(dim=-1), query.norm().expand(64))
    products = queries @ keys.T
    for distance in (0, 3, 17):
        diagonal = products.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_rotary_turns_pairs_by_position_times_frequency():
    rotated = Rotary(4, 8)(torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(8, 4))[5]
    first = torch.polar(torch.tensor(1.0), torch.tensor(5.0)) * torch.complex(
        *torch.tensor([1.0, 3.0])
    )
    assert rotated[0] == pytest.approx(first.real.item(), abs=1e-5)
    assert rotated[2] == pytest.approx(first.imag.item(), abs=1e-5)


def test_initial_values_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = Decoder(SHAPE, seed=3).state_dict()
    torch.manual_seed(2)
    again, other = Decoder(SHAPE, seed=3).state_dict(), Decoder(SHAPE, seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kv_heads": 4}, r"kv_heads to divide heads=6, got 4; use one of \[1, 2, 3, 6\]"),
        ({"width": 50}, r"a width that 6 heads divide into even sizes, got 50; use 48"),
        ({"layers": 0}, "expected layers >= 1, got 0"),
        ({"experts": -1}, "expected experts >= 0, got -1; use 0 for none"),
        ({"active": 2}, "expected active = 0 without experts, got 2; set experts"),
        ({"experts": 4}, "expected 1 <= active <= experts = 4, got active = 0; use 2"),
        ({"experts": 1, "active": 2}, "<= experts = 1, got active = 2; use 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, text):
    sizes = {name: getattr(SHAPE, name) for name in SHAPE.__dataclass_fields__}
    with pytest.raises(ValueError, match=text):
        DecoderShape(**{**sizes, **change})
