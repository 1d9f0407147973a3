"""Small models of Transformers' architectures with random parameters, and what two implementations must agree on."""

import copy

import torch
import transformers
from transformers.models.auto import modeling_auto

TASKS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}
# the names that configurations give to sizes
SIZES = {
    40: "vocab_size vocab_size_per_layer_input codebook_size",
    32: "hidden_size d_model n_embd dim embed_dim emb_dim hidden_dim embedding_size encoder_hidden_dim model_dim width "
    "word_embed_proj_dim dim_model input_embedding_size output_embedding_size q_lora_rank kv_lora_rank",
    24: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim d_ff n_inner ffn_hidden_size ffn_intermediate_size "
    "moe_intermediate_size shared_expert_intermediate_size intermediate_size_mlp dim_ff d_inner mlp_dim",
    2: "num_hidden_layers n_layer num_layers encoder_layers decoder_layers n_layers num_decoder_layers n_groups "
    "num_encoder_layers num_key_value_heads multi_query_group_num num_kv_heads num_experts_per_tok moe_topk moe_k "
    "num_experts_per_token num_experts_per_topk num_global_key_value_heads shared_kv_layers",
    4: "num_attention_heads n_head num_heads n_heads encoder_attention_heads decoder_attention_heads num_experts "
    "num_local_experts n_routed_experts moe_num_experts num_decoder_attention_heads sliding_window attention_window",
    8: "head_dim d_kv d_head kv_channels qk_rope_head_dim v_head_dim qk_nope_head_dim hidden_size_per_layer_input "
    "attention_head_dim rotary_dim global_head_dim qk_head_dim",
    64: "max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length",
}
SMALL = {name: size for size, names in SIZES.items() for name in names.split()}
# what the table cannot say
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
INDEXED = {"index_topk": 4, "index_head_dim": 16, "index_n_heads": 2}
LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
EXTRA = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "ctrl": {"dff": 24},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED,
    "hy_v4": INDEXED,
    "axk2": INDEXED,
    "mistral_large4": INDEXED,
    "esm": {"vocab_size": 40, "pad_token_id": 0, "mask_token_id": 3},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "fsmt": {"src_vocab_size": 40, "tgt_vocab_size": 40, "langs": ["a", "b"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2, "num_cross_attention_heads": 4},
    "qwen3_5": LINEAR,
    "qwen3_5_moe": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "qwen3_5_text": LINEAR,
    "qwen3_next": LINEAR,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "local"],
        "local_attn_chunk_length": 16,
    },
    "xmod": {"default_language": "en_XX"},
    "roc_bert": {"pronunciation_vocab_size": 40, "shape_vocab_size": 40},
}
MORE = {("masked", "reformer"): {"is_decoder": False}}


def options_of(config):
    """Small sizes for a configuration class, in its parts too, and no dropout."""
    fields = config().to_dict()
    options = {}
    for name, size in {**SMALL, **IDS}.items():
        if isinstance(fields.get(name), int):
            options[name] = size
    for name, value in fields.items():
        if "drop" in name and isinstance(value, int | float) and not isinstance(value, bool):
            options[name] = type(value)(0)
    if "qk_rope_head_dim" in options:
        # latent attention has as many heads of keys as of queries
        options |= {"num_key_value_heads": 4, "head_dim": 8}
    for key, part in config.sub_configs.items():
        if hasattr(part, "model_type") and isinstance(fields.get(key), dict):
            options[key] = options_of(part)
    return options


def architecture(task, kind):
    """The class of an architecture, and a small configuration."""
    name = TASKS[task][kind]
    model = getattr(transformers, name if isinstance(name, str) else name[0])
    options = {**options_of(model.config_class), **EXTRA.get(kind, {}), **MORE.get((task, kind), {})}
    if task == "causal" and options_decoder(model.config_class):
        options["is_decoder"] = True
    return model, model.config_class(**options)


def options_decoder(config):
    """True for configurations of encoders that can be decoders."""
    fields = config().to_dict()
    return fields.get("is_decoder") is False and not fields.get("is_encoder_decoder", False)


def size(model, config):
    """The number of parameters."""
    with torch.device("meta"):
        return sum(
            p.numel() for p in model._from_config(copy.deepcopy(config), attn_implementation="eager").parameters()
        )


def build(model, config, implementation, seed=0):
    """The same parameters for every implementation, large enough for attention to matter."""
    torch.manual_seed(seed)
    made = model._from_config(copy.deepcopy(config), attn_implementation=implementation).eval()
    if made.can_generate() and made.generation_config.decoder_start_token_id is None:
        # not the padding, which some decoders mask
        made.generation_config.decoder_start_token_id = 3
    generator = torch.Generator().manual_seed(seed)
    for p in made.parameters():
        if p.dim() > 1 and p.is_floating_point():
            p.data = torch.randn(p.shape, generator=generator) * p.shape[-1] ** -0.5
    return made


def batch(task, padding, vocabulary=40, length=7):
    """Token numbers and the mask of two sequences, one shorter, padded on a side."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, vocabulary, (2, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, slice(length - 2, None) if padding == "right" else slice(2)] = 0
    ids = ids * mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {**inputs, "decoder_input_ids": ids.flip(1).clamp(min=4)} if task == "seq2seq" else inputs


def logits(model, inputs):
    """The logits of tokens, without those at padding, where implementations may differ."""
    keep = inputs["attention_mask"].bool()
    keep = torch.ones_like(keep) if "decoder_input_ids" in inputs else keep
    return model(**inputs).logits[keep]


def gradients(model, inputs):
    """The gradients of a random function of the logits, by parameter."""
    model.zero_grad()
    found = logits(model, inputs)
    (found * torch.randn(found.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None and p.numel()}


GENERATION = {
    "generation with a cache": {"use_cache": True},
    "generation without a cache": {"use_cache": False},
    "generation with a static cache": {"cache_implementation": "static", "disable_compile": True},
    "generation by beams": {"num_beams": 2},
}


def tokens(model, task, options):
    """What a model generates after a padded batch."""
    inputs = batch(task, "right" if task == "seq2seq" else "left")
    inputs.pop("decoder_input_ids", None)
    return model.generate(**inputs, do_sample=False, max_new_tokens=4, min_new_tokens=4, **options)
