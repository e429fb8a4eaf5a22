"""Multimodal wrappers: a config.json whose text_config is the language model, and its keys that concern the rest."""

from collections.abc import Mapping

_QWEN_VISION = frozenset(
    {
        "image_token_id",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
        "vision_token_id",
    }
)

WRAPPERS: Mapping[str, frozenset[str]] = {
    "qwen2_vl": _QWEN_VISION,
    "qwen2_5_vl": _QWEN_VISION,
    "qwen3_vl": _QWEN_VISION,
    "qwen3_vl_moe": _QWEN_VISION,
    "gemma3": frozenset(
        {
            "boi_token_index",
            "eoi_token_index",
            "image_token_index",
            "mm_tokens_per_image",
            "vision_config",
            "boi_token_id",
            "eoi_token_id",
            "image_token_id",
        }
    ),
    "gemma4": frozenset(
        {
            "audio_config",
            "audio_token_id",
            "boa_token_id",
            "boi_token_id",
            "eoa_token_id",
            "eoa_token_index",
            "eoi_token_id",
            "image_token_id",
            "video_token_id",
            "vision_config",
            "vision_soft_tokens_per_image",
        }
    ),
    "mistral3": frozenset(
        {
            "image_token_id",
            "image_token_index",
            "multimodal_projector_bias",
            "projector_hidden_act",
            "spatial_merge_size",
            "vision_config",
            "vision_feature_layer",
        }
    ),
    "llama4": frozenset(
        {
            "boi_token_id",
            "boi_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "image_token_id",
            "image_token_index",
            "vision_config",
        }
    ),
    "kimi_k25": frozenset(
        {
            "ignore_index",
            "media_placeholder_token_id",
            "use_unified_vision_chunk",
            "video_placeholder",
            "vision_config",
        }
    ),
}

# Published files that hold the language model's keys at the top, beside a vision_config.
FLAT: Mapping[str, str] = {"qwen2_vl": "qwen2_vl_text", "qwen2_5_vl": "qwen2_5_vl_text"}
