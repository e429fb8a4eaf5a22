"""Reading config.json: right, or refused in one sentence that names the key or the file."""

import errno
import json
import os
from pathlib import Path

import pytest

from helpers.accounts import (
    FullAttention,
    InputError,
    LatentAttention,
    MoEFFN,
    count_parameters,
    kv_bytes,
    kv_bytes_per_token,
    model_names,
    model_registry,
    parse_config,
    read_config,
    weight_bytes,
)

LLAMA = model_registry()["llama-3.1-8b"]["config"]


def _of(name, **changes):
    return parse_config({**model_registry()[name]["config"], **changes}, name)


def _without(name, *keys):
    config = model_registry()[name]["config"]
    return parse_config({key: value for key, value in config.items() if key not in keys}, name)


def _windows(model):
    return [layer.attention.window for layer in model.layers]


def test_a_file_its_folder_and_a_registry_name_give_the_same_model(tmp_path):
    folder = tmp_path / "llama-3.1-8b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    assert read_config(folder) == read_config(folder / "config.json") == read_config(str(folder))
    assert read_config(folder) == read_config("llama-3.1-8b") == read_config("LLAMA-3.1-8B")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert read_config(path).name == "mine"


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"model_type": "llama", "model_type": "llama"}', "'model_type' stands twice"),
        (b'{"model_type": "llama", "hidden_size": ' + b"9" * 5000 + b"}", "a number"),
        (b"[" * 200_000, "nesting"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "key"),
        (b"{}", "'model_type' is missing"),
        (b'{"model_type": 7}', "'model_type' must be a string"),
    ],
)
def test_a_malformed_file_is_refused_in_one_sentence(tmp_path, content, named):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=named) as caught:
        read_config(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_no_file_or_far_too_large_is_refused(tmp_path):
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(20_000_000)
    with pytest.raises(InputError, match="larger than"):
        read_config(large)
    with pytest.raises(InputError, match="not a regular file"):
        read_config("/dev/null")


def test_a_deeply_nested_value_is_refused_not_followed(tmp_path):
    deep = "[" * 700 + "]" * 700
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA)[:-1] + f', "quantization_config": {{"a": {deep}}}}}')
    with pytest.raises(InputError, match="nest"):
        read_config(path)


def test_what_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"no config\.json"):
        read_config(tmp_path)
    with pytest.raises(InputError, match=r"llama-3\.1-8b"):
        read_config("lama-3.1-8b")
    for bad in ("", None, 7, "a\0b", "x" * 5000):
        with pytest.raises(InputError):
            read_config(bad)


REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
NOT_A_SIZE = (None, 0, -1, "4096", 4096.0, True, [], {}, 10**30, float("nan"), float("inf"))


@pytest.mark.parametrize("key", REQUIRED)
def test_a_size_that_makes_the_model_must_be_written_down(key):
    for name in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"):
        with pytest.raises(InputError, match=f"'{key}' is missing"):
            _without(name, key)


@pytest.mark.parametrize("key", REQUIRED)
@pytest.mark.parametrize("value", NOT_A_SIZE, ids=repr)
def test_a_size_that_is_no_size_is_refused_by_key(key, value):
    with pytest.raises(InputError, match=key):
        _of("llama-3.1-8b", **{key: value})


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("llama-3.1-8b", {"num_key_value_heads": 5}, "num_key_value_heads"),
        ("llama-3.1-8b", {"head_dim": None, "num_attention_heads": 24}, "num_attention_heads"),
        ("llama-3.1-8b", {"attention_bias": "yes"}, "attention_bias"),
        ("llama-3.1-8b", {"tie_word_embeddings": None}, "tie_word_embeddings"),
        ("llama-3.1-8b", {"sliding_window": 4096}, "sliding_window"),
        ("llama-3.1-8b", {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        ("llama-3.1-8b", {"is_encoder_decoder": True}, "is_encoder_decoder"),
        ("llama-3.1-8b", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("llama-3.1-8b", {"add_cross_attention": True}, "add_cross_attention"),
        ("llama-3.1-8b", {"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ("llama-3.1-8b", {"dtype": "float32"}, "torch_dtype"),
        ("llama-3.1-8b", {"torch_dtype": "float8"}, "torch_dtype"),
        ("llama-3.1-8b", {"num_experts": 8}, "num_experts"),
        ("llama-3.1-8b", {"kv_lora_rank": 512}, "kv_lora_rank"),
        ("llama-3.1-8b", {"rope_theta": -1}, "rope_theta"),
        ("llama-3.1-8b", {"rope_scaling": 8}, "rope_scaling"),
        ("llama-3.1-8b", {"quantization_config": "fp8"}, "quantization_config"),
        ("llama-3.1-8b", {"text_config": {}}, "text_config"),
        ("qwen2.5-7b", {"attention_bias": False}, "attention_bias"),
        ("qwen2.5-7b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("qwen2.5-7b", {"layer_types": ["sliding_attention"] * 28}, "sliding_window"),
        ("qwen2.5-7b", {"layer_types": ["linear_attention"] * 28}, "linear_attention"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 129}, "num_experts_per_tok"),
        ("qwen3-30b-a3b", {"num_local_experts": 64}, "num_local_experts"),
        ("qwen3-30b-a3b", {"shared_expert_intermediate_size": 512}, "shared_expert_intermediate_size"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("mixtral-8x7b", {"num_local_experts": 0}, "num_local_experts"),
        ("gemma-3-27b", {"sliding_window": None}, "sliding_window"),
        ("gemma-3-27b", {"layer_types": ["full_attention"] * 62}, "layer_types"),
        ("gemma-3-27b", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gpt-oss-20b", {"experts_per_token": 8}, "experts_per_token"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek-v3", {"num_key_value_heads": 8}, "num_key_value_heads"),
        ("deepseek-v3", {"head_dim": 100}, "head_dim"),
        ("deepseek-v3", {"qk_head_dim": 100}, "qk_head_dim"),
        ("deepseek-v3", {"n_routed_experts": None}, "n_routed_experts"),
        ("deepseek-v3", {"index_topk": 2048}, "index_topk"),
    ],
)
def test_a_key_that_contradicts_another_or_changes_the_answer_is_refused_by_name(name, changes, named):
    with pytest.raises(InputError, match=named):
        _of(name, **changes)


def test_an_unknown_key_is_refused_unless_it_is_ignored_by_name():
    config = {**LLAMA, "_comment": "from the hub"}
    with pytest.raises(InputError, match="_comment"):
        parse_config(config, "mine")
    assert parse_config(config, "mine", ignore=("_comment",)).layers == read_config("llama-3.1-8b").layers
    assert parse_config(config, "mine", ignore="_comment").layers == read_config("llama-3.1-8b").layers


def test_an_ignored_key_is_really_left_unread_and_the_notes_say_so():
    model = parse_config(LLAMA, "mine", ignore=["num_key_value_heads"])
    assert model.layers[0].attention.kv_heads == 32 != LLAMA["num_key_value_heads"]
    assert "left unread, as asked: num_key_value_heads" in model.notes
    with pytest.raises(InputError, match="'hidden_size' is missing"):
        parse_config(LLAMA, "mine", ignore=["hidden_size"])
    assert not any("left unread" in note for note in parse_config(LLAMA, "mine", ignore=["absent"]).notes)


def test_a_key_is_ignored_in_text_config_and_in_quantization_config_too():
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    config = {**LLAMA, "quantization_config": {**awq, "mine": 1}}
    with pytest.raises(InputError, match=r"'mine'.*--ignore-key"):
        weight_bytes(parse_config(config, "x"))
    plain = parse_config({**LLAMA, "quantization_config": awq}, "x")
    assert weight_bytes(parse_config(config, "x", ignore=["mine"])) == weight_bytes(plain)
    wrapped = {"model_type": "gemma3", "text_config": {**model_registry()["gemma-3-27b"]["config"], "mine": 1}}
    assert parse_config(wrapped, "x", ignore=["mine"]).layers == read_config("gemma-3-27b").layers


@pytest.mark.parametrize("model_type", ["mamba", "mpt", "gpt2", "LLAMA", "", "gemma3n"])
def test_an_unsupported_model_type_is_refused_by_name(model_type):
    with pytest.raises(InputError, match=f"model_type '{model_type}'"):
        parse_config({**LLAMA, "model_type": model_type}, "mine")


def test_head_dim_is_read_where_given_and_computed_only_where_it_is_not():
    assert read_config("qwen3-0.6b").layers[0].attention.head_dim == 128 != 1024 // 16
    derived = _without("llama-3.1-8b", "head_dim")
    assert derived.layers[0].attention.head_dim == 128
    assert any("head_dim" in note for note in derived.notes)


def test_missing_kv_heads_mean_multi_head_attention_for_llama_and_are_refused_for_mistral():
    model = _without("llama-3.1-8b", "num_key_value_heads")
    assert model.layers[0].attention.kv_heads == 32
    assert any("num_key_value_heads" in note for note in model.notes)
    with pytest.raises(InputError, match="num_key_value_heads"):
        _without("mistral-7b-v0.1", "num_key_value_heads")


def test_a_window_that_is_switched_off_is_no_window():
    off = _of("qwen2.5-7b", sliding_window=4096, use_sliding_window=False)
    on = _of("qwen2.5-7b", sliding_window=4096, use_sliding_window=True, max_window_layers=20)
    assert _windows(off) == [None] * 28
    assert _windows(on) == [None] * 20 + [4096] * 8
    assert _windows(_of("mistral-7b-v0.1", sliding_window=None)) == [None] * 32
    assert _windows(read_config("mistral-7b-v0.1")) == [4096] * 32


def test_patterns_of_windows_follow_layer_types_or_the_class_rule():
    assert _windows(read_config("gemma-2-9b"))[:4] == [4096, None, 4096, None]
    assert _windows(read_config("gemma-3-27b")).count(None) == 10
    assert _windows(_of("gemma-3-27b", sliding_window_pattern=2))[:4] == [1024, None, 1024, None]
    assert _windows(_without("gpt-oss-20b", "layer_types")) == _windows(read_config("gpt-oss-20b"))
    assert _windows(_of("gpt-oss-20b", layer_types=["full_attention"] * 24)) == [None] * 24


def test_latent_attention_and_dense_first_layers_are_read_from_keys():
    model = read_config("deepseek-v3")
    attention = model.layers[0].attention
    assert isinstance(attention, LatentAttention)
    assert (attention.kv_lora_rank, attention.q_lora_rank, attention.qk_head_dim) == (512, 1536, 192)
    assert [isinstance(layer.feed_forward, MoEFFN) for layer in model.layers] == [False] * 3 + [True] * 58
    assert read_config("deepseek-v2-lite").layers[0].attention.q_lora_rank is None


def test_multi_token_prediction_layers_are_left_out_and_said_so():
    assert any("multi-token-prediction" in note for note in read_config("deepseek-v3").notes)
    without = _of("deepseek-v3", num_nextn_predict_layers=0)
    assert without.notes == ()
    assert count_parameters(without) == count_parameters(read_config("deepseek-v3"))


def test_biases_and_norms_are_per_type():
    assert read_config("qwen2.5-7b").layers[0].attention == FullAttention(28, 4, 128, qkv_bias=True)
    assert read_config("qwen3-8b").layers[0].attention == FullAttention(32, 8, 128, qk_norm=True)
    gpt_oss = read_config("gpt-oss-20b").layers[1]
    assert gpt_oss.attention.sinks and gpt_oss.attention.output_bias and gpt_oss.feed_forward.router_bias
    assert read_config("gemma-2-9b").layers[0].norms == 4


def test_a_kimi_k2_name_reads_as_deepseek_v3():
    assert _of("deepseek-v3", model_type="kimi_k2").layers == read_config("deepseek-v3").layers


def test_a_flat_multimodal_config_reads_as_its_nested_form():
    # Qwen/Qwen2.5-VL-7B-Instruct as published: the language model's keys stand at the top, beside vision_config.
    text = {
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_position_embeddings": 128000,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_section": [16, 24, 24], "type": "mrope"},
        "rope_theta": 1000000.0,
        "sliding_window": 32768,
        "torch_dtype": "bfloat16",
        "use_sliding_window": False,
        "vocab_size": 152064,
    }
    outer = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "image_token_id": 151655,
        "tie_word_embeddings": False,
        "vision_config": {"depth": 32},
    }
    flat = parse_config({**outer, **text}, "flat")
    nested = parse_config({**outer, "text_config": {**text, "model_type": "qwen2_5_vl_text"}}, "flat")
    assert flat == nested
    # The language model of the 7B is Qwen2.5-7B's, and caches the 57,344 B a token of its logs.
    assert count_parameters(flat) == count_parameters(read_config("qwen2.5-7b"))
    assert kv_bytes_per_token(flat) == 57_344
    with pytest.raises(InputError, match="surprise"):
        parse_config({**outer, **text, "surprise": 1}, "flat")
    # Only these files are flat: another wrapper must have its text_config.
    with pytest.raises(InputError, match="text_config"):
        parse_config({**text, "model_type": "qwen3_vl", "tie_word_embeddings": False}, "flat")


@pytest.mark.parametrize(
    ("model_type", "change", "named"),
    [
        ("falcon", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ("falcon", {"multi_query": False, "num_kv_heads": 2}, "num_kv_heads"),
        ("glm4_moe", {"n_routed_experts": 4, "num_local_experts": 5}, "num_local_experts"),
        ("minimax_m2", {"attn_type_list": [0, 1, 1]}, "attn_type_list"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size"),
        ("llama4_text", {"no_rope_layers": [1, 1]}, "no_rope_layers"),
        (
            "llama4_text",
            {"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 3},
            "attention_chunk_size",
        ),
        ("gemma4_text", {"layer_types": ["full_attention"] * 2 + ["sliding_attention"]}, "layer_types"),
        ("gemma4_text", {"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
        ("gemma4_text", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        ("gemma4_text", {"top_k_experts": 9}, "top_k_experts"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank"),
        ("deepseek_v32", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ("deepseek_v4", {"compress_ratios": [0, 4, 8]}, "compress_ratios"),
        ("deepseek_v4", {"num_key_value_heads": 2}, "num_key_value_heads"),
        ("deepseek_v4", {"hc_mult": 1}, "hc_mult"),
    ],
)
def test_what_a_type_cannot_mean_is_refused_by_its_key(model_type, change, named, fixed_configs):
    parse_config(fixed_configs[model_type], "sound")
    with pytest.raises(InputError, match=named):
        parse_config({**fixed_configs[model_type], **change}, "changed")


def test_a_multimodal_config_gives_its_language_model_alone_and_says_so():
    # text_config of google/gemma-3-4b-it as published: most keys left to the class defaults.
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "transformers_version": "4.50.0.dev0",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    }
    model = parse_config(config, "gemma-3-4b")
    assert count_parameters(model).total == 3_880_263_168
    assert model.weights_dtype == "bf16"
    assert any("vision part is left out" in note for note in model.notes)
    assert any("vocab_size = 262208" in note for note in model.notes)
    with pytest.raises(InputError, match="audio_config"):
        parse_config({**config, "audio_config": {}}, "gemma-3-4b")
    with pytest.raises(InputError, match="tie_word_embeddings"):
        nested = {**config["text_config"], "tie_word_embeddings": False}
        parse_config({**config, "tie_word_embeddings": True, "text_config": nested}, "gemma-3-4b")


def test_a_config_without_a_dtype_assumes_bf16_and_says_so():
    model = _without("llama-3.1-8b", "torch_dtype")
    assert model.weights_dtype == "bf16"
    assert any("bf16 assumed" in note for note in model.notes)
    assert _of("llama-3.1-8b", torch_dtype="float32").weights_dtype == "fp32"


@pytest.mark.parametrize("name", model_names())
def test_every_registry_model_reads_with_its_source(name):
    row = model_registry()[name]
    assert "Hugging Face" in row["source"]
    model = read_config(name)
    assert model.name == name
    assert weight_bytes(model).total > 0
    assert kv_bytes(model, 1) > 0


def test_a_parsed_model_keeps_nothing_of_the_callers_object():
    config = json.loads(json.dumps(LLAMA))
    model = parse_config(config, "mine")
    config["rope_scaling"]["factor"] = 1
    assert model.decoder.rope_scaling["factor"] == 8.0
    assert hash(model) == hash(parse_config(LLAMA, "mine"))


@pytest.mark.parametrize("method", ["exists", "is_file", "read_bytes"])
def test_a_path_that_may_not_be_read_is_refused_by_name(monkeypatch, tmp_path, method):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")

    def forbidden(self, *arguments, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    # Patched rather than made unreadable: root may read everything.
    monkeypatch.setattr(Path, method, forbidden)
    if method == "exists":
        monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)") as refusal:
        read_config(tmp_path)
    assert str(tmp_path) in str(refusal.value)


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model_registry()["llama-3.1-8b"]["config"]))
    assert read_config("~/model").layers == read_config("llama-3.1-8b").layers
    with pytest.raises(InputError, match="nobody-of-that-name"):
        read_config("~nobody-of-that-name/model")
