"""Muon against optax, an implementation in another framework. Slow to import, so part of `full`."""

import json
import subprocess
import sys

import pytest
import torch

from sshsdp_updates import Muon

# In a process of its own: its threads would make every later fork of a test a warning.
SCRIPT = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import optax

start, gradients, scale = json.load(sys.stdin)
muon = optax.contrib.muon(
    0.02, ns_coeffs=(3.4445, -4.7750, 2.0315), ns_steps=5, beta=0.95, eps=1e-7,
    weight_decay=0.1, nesterov=False, consistent_rms=scale,
)
weights = {"w": jnp.array(start)}
state = muon.init(weights)
for gradient in gradients:
    updates, state = muon.update({"w": jnp.array(gradient)}, state, weights)
    weights = optax.apply_updates(weights, updates)
print(json.dumps(weights["w"].tolist()))
"""


@pytest.mark.full
@pytest.mark.parametrize("shape", [(6, 10), (10, 6)], ids=str)
def test_muon_is_optax_s_without_look_ahead(cluster, shape):
    """Optax keeps weights as (in, out); with Nesterov it mixes two corrections of bias."""
    pytest.importorskip("optax")
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(7)]
    rule = Muon(
        0.02,
        nesterov=False,
        adjust_lr_fn="match_rms_adamw",
        ns_dtype=torch.float64,
    )
    ours = cluster([(rule, {"w": tensors[0]})], world=2)
    for gradient in tensors[1:]:
        ours.set_gradients({"w": gradient}, {"w": gradient.numel()})
        ours.run(lambda optimizer: optimizer.step())
    given = json.dumps([tensors[0].T.tolist(), [t.T.tolist() for t in tensors[1:]], 0.2])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=given, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    theirs = torch.tensor(json.loads(done.stdout), dtype=torch.float64).T
    found = ours.weight("w", theirs.numel()).view(shape)
    torch.testing.assert_close(found, theirs, rtol=1e-7, atol=1e-7)
