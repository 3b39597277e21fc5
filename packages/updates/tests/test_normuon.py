"""NorMuon against its formula, written out over whole matrices in float64."""

import pytest
import torch

from sshsdp_updates import ITERATIONS, NorMuon, heads, newton_schulz


def reference(start, gradients, rule):
    """The authors' steps on one matrix."""
    weight, momentum = start.clone(), torch.zeros_like(start)
    second = torch.zeros(len(start), 1, dtype=start.dtype)
    for gradient in gradients:
        momentum = rule.momentum * momentum + (1 - rule.momentum) * gradient
        ahead = (1 - rule.momentum) * gradient + rule.momentum * momentum
        o = newton_schulz(ahead[None], ITERATIONS["kj5"].sequence(), dtype=torch.float64)[0]
        second = rule.beta2 * second + (1 - rule.beta2) * o.square().mean(1, keepdim=True)
        divided = o / (second.sqrt() + 1e-10)
        update = divided * o.norm() / (divided.norm() + 1e-10)
        weight = weight * (1 - rule.lr * rule.weight_decay)
        weight = weight - rule.lr * max(1, start.shape[0] / start.shape[1]) ** 0.5 * update
    return weight, second.view(-1)


@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (5, 1)], ids=str)
@pytest.mark.parametrize("world", [1, 3])
def test_it_is_the_authors_formula_unit_by_unit(cluster, shape, world):
    generator = torch.Generator().manual_seed(0)
    rows, columns = shape

    def random():
        return torch.randn(2 * rows, columns, generator=generator, dtype=torch.float64)

    rule = NorMuon(0.1, ns_dtype=torch.float64)
    start, gradients = random(), [random() for _ in range(3)]
    ours = cluster([(rule, {"w": start})], world=world, units={"w": heads(rows)})
    for gradient in gradients:
        ours.set_gradients({"w": gradient}, {"w": start.numel()})
        ours.run(lambda optimizer: optimizer.step())
    found = ours.weight("w", start.numel()).view(start.shape)
    for index in range(2):
        where = slice(index * rows, (index + 1) * rows)
        weight, second = reference(start[where], [g[where] for g in gradients], rule)
        torch.testing.assert_close(found[where], weight, rtol=1e-12, atol=1e-12)
        for optimizer in ours.optimizers:
            state = optimizer.state_dict()["state"]["w"]["second_momentum"]
            torch.testing.assert_close(state[where], second, rtol=1e-12, atol=1e-15)


def test_zero_gradients_leave_weights_as_they_are(cluster):
    rule = NorMuon(0.1, weight_decay=0.0)
    start = torch.randn(4, 5)
    ours = cluster([(rule, {"w": start})])
    ours.set_gradients({"w": torch.zeros(4, 5)}, {"w": 20})
    ours.optimizers[0].step()
    assert torch.equal(ours.weight("w", 20).view(4, 5), start)


def test_fields_per_row_are_whole_and_say_so(cluster):
    ours = cluster([(NorMuon(), {"w": torch.zeros(6, 4)})], world=4)
    for optimizer in ours.optimizers:
        fields = {field.field: field for field in optimizer.fields()}
        second = fields["second_momentum"]
        assert (second.shape, second.fragment.start, second.fragment.stop) == ((6,), 0, 6)
        assert second.replicated
        assert not fields["momentum_buffer"].replicated


def test_scale_comes_last(cluster):
    """The row norms that are divided away don't take the scale of the shape with them."""
    generator = torch.Generator().manual_seed(1)
    start, gradient = (torch.randn(64, 16, generator=generator) for _ in range(2))
    moved = {}
    for scale in ("one", "original"):
        rule = NorMuon(0.1, weight_decay=0.0, adjust_lr_fn=scale, ns_dtype=torch.float32)
        ours = cluster([(rule, {"w": start})])
        ours.set_gradients({"w": gradient}, {"w": 1024})
        ours.optimizers[0].step()
        moved[scale] = (ours.weight("w", 1024).view(64, 16) - start).norm().item()
    assert moved["original"] == pytest.approx(2 * moved["one"], rel=1e-3)
