"""Muon against torch.optim.Muon, the singular value decomposition and separate tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sshsdp_updates import (
    ITERATIONS,
    SCALES,
    Iteration,
    Muon,
    columns,
    experts,
    heads,
    newton_schulz,
)

SHAPES = [(6, 10), (10, 6), (8, 8), (1, 7), (7, 1), (33, 70)]


def by_svd(matrix, iteration, steps=None, eps=1e-7):
    """U p(S) V^T in float64, without a single product of matrices of the iteration."""
    u, s, v = torch.linalg.svd(matrix.double(), full_matrices=False)
    s = s / (iteration.norm * s.norm()).clamp(min=eps)
    for a, b, c in iteration.sequence(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ v


def step(cluster, rule, tensors, gradients, units=None, *, steps=1, **options):
    ours = cluster([(rule, tensors)], units=units or {}, **options)
    numels = {name: tensor.numel() for name, tensor in tensors.items()}
    for index in range(steps):
        ours.set_gradients({name: gradients[name][index] for name in tensors}, numels)
        ours.run(lambda optimizer: optimizer.step())
    return {name: ours.weight(name, t.numel()).view(t.shape) for name, t in tensors.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("name", "dtype", "bound"),
    [
        # Steep tables amplify rounding of a singular value near 1, which vectors have.
        *((name, torch.float64, 1e-11) for name in ITERATIONS),
        *((name, torch.float32, 1e-2) for name in ITERATIONS),
        *((name, torch.float32, 1e-5) for name in ("kj5", "quintic5")),
        *((name, torch.bfloat16, 3e-2) for name in ("kj5", "quintic5")),
    ],
    ids=str,
)
def test_the_iteration_is_the_polynomial_of_singular_values(name, shape, dtype, bound):
    generator = torch.Generator().manual_seed(1)
    matrices = torch.randn(3, *shape, generator=generator, dtype=torch.float64).to(dtype)
    iteration = ITERATIONS[name]
    found = newton_schulz(matrices, iteration.sequence(), norm=iteration.norm, dtype=dtype)
    for matrix, result in zip(matrices, found, strict=True):
        expected = by_svd(matrix, iteration)
        assert (result.double() - expected).norm() <= bound * expected.norm()


@pytest.mark.parametrize(
    ("name", "low", "high", "at_small"),
    [
        ("kj5", 0.682, 1.134, 0.471),
        ("quintic5", 0.978, 1.032, 0.475),
        ("polar_express_101", 0.876, 1.124, 0.846),
        ("polar_express_102", 0.859, 1.141, 0.847),
        ("cans5", 0.884, 1.120, None),
        ("steep8_exact2", 1.000, 1.001, None),
        ("cubic5", 0.774, 1.300, 0.119),
    ],
)
def test_tables_have_the_ranges_that_are_known_of_them(name, low, high, at_small):
    def polynomial(s):
        for a, b, c in ITERATIONS[name].sequence():
            s = a * s + b * s**3 + c * s**5
        return s

    values = polynomial(
        torch.linspace(7e-3, 1, 200_001, dtype=torch.float64) / ITERATIONS[name].norm
    )
    assert values.min().item() == pytest.approx(low, abs=2e-3)
    assert values.max().item() == pytest.approx(high, abs=2e-3)
    if at_small is not None:
        small = polynomial(torch.tensor(1e-3 / ITERATIONS[name].norm, dtype=torch.float64))
        assert small.item() == pytest.approx(at_small, abs=5e-3)


def test_more_steps_than_coefficients_cycle_or_repeat_the_last():
    table = ((1.0, 0.0, 0.0), (2.0, 0.0, 0.0))
    assert [t[0] for t in Iteration(table, 2).sequence(5)] == [1, 2, 1, 2, 1]
    assert [t[0] for t in Iteration(table, 2, "last").sequence(4)] == [1, 2, 2, 2]


@given(
    st.sampled_from(SHAPES),
    st.integers(1, 6),
    st.integers(0, 5),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
@settings(max_examples=80)
def test_a_matrix_does_not_feel_the_others_of_its_batch(shape, count, start, dtype):
    generator = torch.Generator().manual_seed(2)
    matrices = torch.randn(11, *shape, generator=generator)
    coefficients = ITERATIONS["kj5"].sequence()
    batch = newton_schulz(matrices[start : start + count], coefficients, dtype=dtype)
    for index in range(count):
        alone = newton_schulz(matrices[start + index][None], coefficients, dtype=dtype)
        assert torch.equal(batch[index], alone[0])


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (16, 64)], ids=str)
@pytest.mark.parametrize("scale", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_it_follows_torch(cluster, shape, scale, nesterov):
    """In bf16 both are chaotic in the last bit; their momenta are bit-equal."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.nn.Parameter(torch.randn(shape, generator=generator))
    gradients = {"w": [torch.randn(shape, generator=generator) for _ in range(4)]}
    arguments = {
        "lr": 0.02,
        "weight_decay": 0.1,
        "momentum": 0.9,
        "nesterov": nesterov,
        "adjust_lr_fn": scale,
    }
    start = {"w": weight.detach().clone()}
    ours = cluster([(Muon(**arguments), start)], world=2)
    oracle = torch.optim.Muon([weight], **arguments)
    for gradient in gradients["w"]:
        weight.grad = gradient.clone()
        ours.set_gradients({"w": gradient}, {"w": weight.numel()})
        ours.run(lambda optimizer: optimizer.step())
        oracle.step()
    momenta = [o.state_dict()["state"]["w"]["momentum_buffer"] for o in ours.optimizers]
    assert torch.equal(torch.cat(momenta).view(shape), oracle.state[weight]["momentum_buffer"])
    moved = (weight.detach() - start["w"]).norm()
    difference = (ours.weight("w", weight.numel()).view(shape) - weight.detach()).norm()
    assert difference <= 2e-2 * moved


def test_positional_arguments_are_torch_s():
    import inspect

    theirs = list(inspect.signature(torch.optim.Muon).parameters)[1:]
    ours = list(inspect.signature(Muon).parameters)
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize(
    ("unit", "shape", "split"),
    [
        (heads(4), (12, 7), lambda t: t.split(4)),
        (columns(4), (7, 12), lambda t: t.split(4, dim=1)),
        (experts(), (3, 4, 7), list),
        (columns(3), (2, 4, 6), lambda t: [c for e in t for c in e.split(3, dim=1)]),
    ],
    ids=["heads", "columns", "experts", "columns of experts"],
)
@pytest.mark.parametrize("scale", list(SCALES))
@pytest.mark.parametrize("world", [1, 4])
def test_units_are_updated_as_tensors_of_their_own(cluster, unit, shape, split, scale, world):
    generator = torch.Generator().manual_seed(4)

    def random():
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    rule = Muon(0.1, adjust_lr_fn=scale, ns_dtype=torch.float64)
    start, gradients = random(), [random(), random()]
    whole = step(cluster, rule, {"w": start}, {"w": gradients}, {"w": unit}, steps=2, world=world)[
        "w"
    ]
    parts = {f"p{i}": part.contiguous() for i, part in enumerate(split(start))}
    of_parts = {
        f"p{i}": [split(gradient)[i].contiguous() for gradient in gradients]
        for i in range(len(parts))
    }
    apart = step(cluster, rule, parts, of_parts, steps=2)
    for found, (name, _) in zip(split(whole), parts.items(), strict=True):
        torch.testing.assert_close(found, apart[name], rtol=1e-12, atol=1e-12)
    fused = step(cluster, rule, {"w": start.reshape(shape)}, {"w": gradients}, steps=2)["w"]
    assert (fused - whole).norm() > 0.05 * (whole - start).norm()


def test_a_zero_gradient_gives_a_zero_update(cluster):
    start = torch.randn(4, 5)
    rule = Muon(0.1, weight_decay=0.0)
    after = step(cluster, rule, {"w": start}, {"w": [torch.zeros(4, 5)]})["w"]
    assert torch.equal(after, start)


def test_a_tiny_gradient_is_not_lost(cluster):
    generator = torch.Generator().manual_seed(5)
    start, gradient = (torch.randn(16, 16, generator=generator) for _ in range(2))
    rule = Muon(0.1, weight_decay=0.0, momentum=0.0, ns_dtype=torch.float32)
    tiny = step(cluster, rule, {"w": start}, {"w": [gradient / gradient.norm() * 1e-6]})["w"]
    plain = step(cluster, rule, {"w": start}, {"w": [gradient]})["w"]
    torch.testing.assert_close(tiny, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"lr": -1.0}, "expected a lr >= 0"),
        ({"ns_steps": 100}, "ns_steps from 0 to 99"),
        ({"adjust_lr_fn": "spectral"}, "one of original, match_rms_adamw"),
        ({"ns_coefficients": "polar_express"}, "among kj5, .*polar_express_101"),
        ({"ns_coefficients": (1.0, 2.0)}, "three ns_coefficients"),
        ({"ns_dtype": torch.int32}, "ns_dtype"),
    ],
)
def test_values_that_cannot_be_are_refused(change, text):
    with pytest.raises(ValueError, match=text):
        Muon(**change)


def test_the_dtype_of_the_iteration_stays_what_it_was_laid_out_for(cluster):
    ours = cluster([(Muon(), {"w": torch.zeros(2, 3)})])
    ours.optimizers[0].param_groups[0]["ns_dtype"] = torch.float32
    with pytest.raises(ValueError, match="build a new optimizer"):
        ours.optimizers[0].step()
