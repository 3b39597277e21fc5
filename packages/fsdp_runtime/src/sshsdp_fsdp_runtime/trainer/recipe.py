"""Recipe: what of the decoder is computed as one, and which optimizer updates it in what units."""

import torch

from sshsdp_fsdp_runtime import Pack, ParameterSpec, Update, is_matrix
from sshsdp_fsdp_runtime.trainer.config import OptimizerConfig
from sshsdp_fsdp_runtime.trainer.model import DecoderShape
from sshsdp_updates import AdamW, Muon, columns, experts, heads


def decoder_packs(shape: DecoderShape) -> list[Pack]:
    """Projections of the same input, each computed as one product."""
    attention = Pack("layers.*.attention", ["q_proj", "k_proj", "v_proj"])
    if shape.experts:  # their weights are no linear layers
        return [attention]
    return [attention, Pack("layers.*.mlp", ["gate_proj", "up_proj"])]


def decoder_updates(config: OptimizerConfig, shape: DecoderShape) -> list[Update]:
    """Rules for a decoder's parameters, the general one last.

    With Muon, a projection of attention is updated head by head, the weights of experts matrix by
    matrix and every other matrix of a block as a whole; embeddings, the head, routers and vectors
    are AdamW's. Its updates are scaled to a root mean square that does not depend on the shape (Liu
    et al. 2025, section 2.2).

    Args:
        config: of the optimizer.
        shape: of the decoder. The size of a head is the rows of one in the query, key and value
            projections, and the columns of one in the output projection.
    """
    matrices = AdamW(lr=config.lr, betas=config.betas, weight_decay=config.weight_decay)
    others = AdamW(lr=config.lr, betas=config.betas, weight_decay=0.0)
    rules = [
        Update("**", others, where=_is_vector),
        Update("embed.weight", matrices),
        Update("head.weight", matrices),
        *([Update("**.router.weight", matrices)] if shape.experts else []),
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
        *(Update(f"**.{name}_proj.weight", muon, unit=heads(shape.head_size)) for name in "qkv"),
        Update("**.o_proj.weight", muon, unit=columns(shape.head_size)),
        Update("**", muon, unit=experts() if shape.experts else None),
    ]


def _is_vector(parameter: ParameterSpec) -> bool:
    return not is_matrix(parameter)
