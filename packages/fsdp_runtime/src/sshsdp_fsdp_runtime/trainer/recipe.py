"""Recipe: what of the decoder is computed as one, and which optimizer updates it in what units."""

import torch

from sshsdp_fsdp_runtime import Pack, ParameterSpec, Update, is_matrix
from sshsdp_fsdp_runtime.trainer.config import OptimizerConfig
from sshsdp_updates import AdamW, Muon, columns, heads

DECODER_PACKS = (
    Pack("layers.*.attention", ["q_proj", "k_proj", "v_proj"]),
    Pack("layers.*.mlp", ["gate_proj", "up_proj"]),
)
"""Projections of the same input, each computed as one product."""


def decoder_updates(config: OptimizerConfig, head_size: int) -> list[Update]:
    """Rules for a decoder's parameters, the general one last.

    With Muon, a projection of attention is updated head by head and every other matrix of a block
    as a whole; embeddings, the head and vectors are AdamW's. Its updates are scaled to a root mean
    square that does not depend on the shape (Liu et al. 2025, section 2.2).

    Args:
        config: of the optimizer.
        head_size: rows of a head in the query, key and value projections, columns of one in the
            output projection.
    """
    matrices = AdamW(lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    others = AdamW(lr=config.lr, betas=config.betas, weight_decay=0.0)
    rules = [
        Update("**", others, where=_is_vector),
        Update("embed.weight", matrices),
        Update("head.weight", matrices),
    ]
    if config.name == "adamw":
        return [*rules, Update("**", matrices)]
    muon = Muon(
        lr=config.muon_lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
        ns_dtype=torch.float32,  # products of BF16 are emulated on most CPUs, and slow
    )
    return [
        *rules,
        *(Update(f"**.{name}_proj.weight", muon, unit=heads(head_size)) for name in "qkv"),
        Update("**.o_proj.weight", muon, unit=columns(head_size)),
        Update("**", muon),
    ]


def _is_vector(parameter: ParameterSpec) -> bool:
    return not is_matrix(parameter)
