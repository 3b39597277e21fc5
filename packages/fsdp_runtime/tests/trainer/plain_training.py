"""A run of the trainer again: plain PyTorch, one process, the optimizers of torch."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from sshsdp_fsdp_runtime.trainer import Decoder, TrainConfig
from sshsdp_fsdp_runtime.trainer.batches import TrainBatches
from sshsdp_fsdp_runtime.trainer.configfile import read_config
from sshsdp_fsdp_runtime.trainer.corpus import open_corpus
from sshsdp_fsdp_runtime.trainer.order import Order
from sshsdp_fsdp_runtime.trainer.schedule import lr_factor


def matrices(name, tensor, head_size):
    """What Muon works on of a tensor in a block: heads, the matrices of experts, or all of it."""
    if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
        return tensor.split(head_size, 0)
    if name.endswith("o_proj.weight"):
        return tensor.split(head_size, 1)
    return tensor.unbind() if tensor.ndim == 3 else (tensor,)


class PlainOptimizer:
    """AdamW and Muon of torch over an unsharded decoder; a matrix is a parameter of its own."""

    def __init__(self, model, config):
        named = dict(model.named_parameters())
        self.size, decay = model.shape.head_size, config.weight_decay
        self.blocks = {
            n: p
            for n, p in named.items()
            if n.startswith("layers") and p.ndim > 1 and "router" not in n
        }
        self.parts = {
            n: [nn.Parameter(part.clone()) for part in matrices(n, p.detach(), self.size)]
            for n, p in self.blocks.items()
        }
        muon = torch.optim.Muon(
            [part for parts in self.parts.values() for part in parts],
            lr=config.muon_lr,
            weight_decay=decay,
            momentum=config.momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        others = [p for n, p in named.items() if n not in self.blocks]
        adamw = torch.optim.AdamW(
            [
                {"params": [p for p in others if p.ndim == 2], "weight_decay": decay},
                {"params": [p for p in others if p.ndim != 2], "weight_decay": 0.0},
            ],
            lr=config.lr,
            betas=config.betas,
        )
        self.optimizers = {muon: config.muon_lr, adamw: config.lr}

    def step(self, factor):
        for name, parameter in self.blocks.items():
            pieces = matrices(name, parameter.grad, self.size)
            for part, piece in zip(self.parts[name], pieces, strict=True):
                part.grad = piece
        with pytest.MonkeyPatch.context() as patch:
            # torch's iteration always is in BF16: here its one cast gives a copy in full precision.
            patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
            for optimizer, lr in self.optimizers.items():
                for group in optimizer.param_groups:
                    group["lr"] = lr * factor
                optimizer.step()
        for name, parameter in self.blocks.items():
            places = matrices(name, parameter.detach(), self.size)
            for place, part in zip(places, self.parts[name], strict=True):
                place.copy_(part.detach())


def loss_of(model, rows, balance_weight=0.01):
    """What a decoder is trained for, and the part of it that is reported."""
    logits, balance = model(rows[:, :-1], balance=True)
    loss = cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    return loss + balance_weight * balance, loss.item()


def unsharded_losses(run):
    """The losses of a run's steps, computed anew."""
    config, corpus = read_config(run / "config.toml", TrainConfig), open_corpus(run / "data")
    model = Decoder(config.model.shape(vocab=256, context=config.context), seed=config.seed)
    optimizer = PlainOptimizer(model, config.optimizer)
    order = Order(config.seed, len(corpus.train), config.context, config.batch)
    batches = TrainBatches(corpus.train, order, rank=0, world=1, microbatch=config.batch)
    losses = []
    for step in range(config.steps):
        (rows,) = batches.microbatches(step)
        loss, reported = loss_of(model, rows)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip)
        optimizer.step(lr_factor(step, config.steps, config.optimizer))
        losses.append(reported)
    return losses
