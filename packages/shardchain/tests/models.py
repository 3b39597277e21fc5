"""Per-layer parameters of public models, as their published configurations state them.

Per tensor its shape, the last dimension contiguous. Sources: the ``config.json`` published with the
weights of each model; GPT-OSS keeps its experts in one tensor per projection.
"""


def _experts(count, hidden, intermediate):
    return {
        f"experts.{expert}.{name}": shape
        for expert in range(count)
        for name, shape in _mlp(hidden, intermediate).items()
    }


def _mlp(hidden, intermediate):
    return {
        "gate_proj": (intermediate, hidden),
        "up_proj": (intermediate, hidden),
        "down_proj": (hidden, intermediate),
    }


LLAMA_3_8B = {
    "input_norm": (4096,),
    "post_norm": (4096,),
    "q_proj": (4096, 4096),
    "k_proj": (1024, 4096),
    "v_proj": (1024, 4096),
    "o_proj": (4096, 4096),
    **_mlp(4096, 14336),
}

QWEN3_30B_A3B = {
    "input_norm": (2048,),
    "post_norm": (2048,),
    "q_norm": (128,),
    "k_norm": (128,),
    "q_proj": (4096, 2048),
    "k_proj": (512, 2048),
    "v_proj": (512, 2048),
    "o_proj": (2048, 4096),
    "router": (128, 2048),
    **_experts(128, 2048, 768),
}

GPT_OSS_120B = {
    "input_norm": (2880,),
    "post_norm": (2880,),
    "sinks": (64,),
    "q_proj": (4096, 2880),
    "q_bias": (4096,),
    "k_proj": (512, 2880),
    "k_bias": (512,),
    "v_proj": (512, 2880),
    "v_bias": (512,),
    "o_proj": (2880, 4096),
    "o_bias": (2880,),
    "router": (128, 2880),
    "router_bias": (128,),
    "experts.gate_up_proj": (128, 5760, 2880),
    "experts.gate_up_bias": (128 * 5760,),
    "experts.down_proj": (128, 2880, 2880),
    "experts.down_bias": (128 * 2880,),
}

_DEEPSEEK_V3_ATTENTION = {
    "input_norm": (7168,),
    "post_norm": (7168,),
    "q_a_proj": (1536, 7168),
    "q_a_norm": (1536,),
    "q_b_proj": (128 * 192, 1536),
    "kv_a_proj": (512 + 64, 7168),
    "kv_a_norm": (512,),
    "kv_b_proj": (128 * 256, 512),
    "o_proj": (7168, 128 * 128),
}

DEEPSEEK_V3_DENSE = {**_DEEPSEEK_V3_ATTENTION, **_mlp(7168, 18432)}

DEEPSEEK_V3_MOE = {
    **_DEEPSEEK_V3_ATTENTION,
    "router": (256, 7168),
    "router_bias": (256,),
    **{f"shared.{name}": shape for name, shape in _mlp(7168, 2048).items()},
    **_experts(256, 7168, 2048),
}

MODELS = {
    "DeepSeek-V3, expert layers": DEEPSEEK_V3_MOE,
    "DeepSeek-V3, dense layers": DEEPSEEK_V3_DENSE,
    "GPT-OSS-120B": GPT_OSS_120B,
    "Qwen3-30B-A3B": QWEN3_30B_A3B,
    "Llama-3-8B": LLAMA_3_8B,
}
