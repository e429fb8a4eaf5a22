"""Checkpoint folders: what is missing, too much or damaged is refused by name; random weights fit the device."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.accounts import count_parameters, read_config
from helpers.engine import (
    KVCache,
    expected_tensors,
    largest_that_fits,
    load_folder,
    random_decoder,
    weights,
)
from helpers.errors import InputError
from tests.engine.conftest import tiny_config


@pytest.fixture
def folder(tmp_path, tiny_model):
    """A sound checkpoint of the tiny Qwen2."""
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("qwen2")))
    tensors = {name: torch.randn(shape) for name, shape in expected_tensors(tiny_model("qwen2")).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


def change(folder, **tensors):
    """Rewrite the checkpoint with some tensors replaced (None: removed); ``__`` in a name stands for a dot."""
    file = folder / "model.safetensors"
    content = load_file(file)
    for name, value in tensors.items():
        content.pop(name.replace("__", "."), None)
        if value is not None:
            content[name.replace("__", ".")] = value
    save_file(content, file)


def test_expected_tensors_are_all_parameters_of_the_account():
    for name in ("smollm2-135m", "llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "mistral-7b-v0.1"):
        model = read_config(name)
        elements = sum(torch.Size(shape).numel() for shape in expected_tensors(model).values())
        assert elements == count_parameters(model).total


def test_a_sharded_folder_loads_as_the_single_file_does(folder, tmp_path):
    tokens = torch.tensor([[1, 2, 3]])
    wanted = load_folder(folder)(tokens)
    content = load_file(folder / "model.safetensors")
    names = sorted(content)
    shards = {"a.safetensors": names[: len(names) // 2], "b.safetensors": names[len(names) // 2 :]}
    for file, part in shards.items():
        save_file({name: content[name] for name in part}, folder / file)
    (folder / "model.safetensors").unlink()
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    torch.testing.assert_close(load_folder(folder)(tokens), wanted)
    (folder / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors is missing"):
        load_folder(folder)


def test_an_index_that_leaves_its_folder_is_refused(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(InputError, match="outside its folder"):
        load_folder(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="weight_map"):
        load_folder(folder)


def test_a_missing_tensor_is_named(folder):
    change(folder, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(InputError, match=r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"):
        load_folder(folder)


def test_an_unexpected_tensor_is_named(folder):
    change(folder, model__layers__9__extra=torch.zeros(2))
    with pytest.raises(InputError, match=r"ignore: model\.layers\.9\.extra"):
        load_folder(folder)


def test_a_misshapen_tensor_is_named(folder):
    change(folder, model__norm__weight=torch.zeros(7))
    with pytest.raises(InputError, match=r"model\.norm\.weight has shape \[7\], the config asks for \[32\]"):
        load_folder(folder)


def test_a_quantised_tensor_is_named(folder):
    change(folder, model__norm__weight=torch.zeros(32, dtype=torch.int8))
    with pytest.raises(InputError, match=r"model\.norm\.weight is torch\.int8"):
        load_folder(folder)


def test_a_repeated_tied_head_is_allowed(folder):
    tokens = torch.tensor([[1, 2, 3]])
    wanted = load_folder(folder)(tokens)
    change(folder, lm_head__weight=torch.zeros(97, 32))
    torch.testing.assert_close(load_folder(folder)(tokens), wanted)


@pytest.mark.parametrize("damage", [b"", b"not safetensors", None])
def test_a_damaged_file_is_refused_in_one_sentence(folder, damage):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if damage is None else damage)
    with pytest.raises(InputError, match=r"model\.safetensors is not a readable safetensors file") as refusal:
        load_folder(folder)
    assert "\n" not in str(refusal.value)


def test_folders_without_config_or_weights_are_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no safetensors file"):
        load_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config\.json"):
        load_folder(folder)


def test_random_weights_repeat_with_their_seed(tiny_model):
    one, same, other = (random_decoder(tiny_model("qwen3"), seed=seed).head.stored for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_random_weights_larger_than_memory_are_refused_before_they_are_made(monkeypatch):
    monkeypatch.setattr(weights, "free_bytes", lambda device: 10**9)
    with pytest.raises(InputError, match=r"llama-3\.1-8b in bf16 takes 16\.06 GB .* 1\.00 GB .* free on cpu"):
        random_decoder("llama-3.1-8b", "bf16")


@pytest.mark.parametrize(
    ("device", "free", "expected"),
    [
        ("cuda", 140 * 2**30, "llama-3.1-8b"),
        ("cuda", 16 * 2**30, "llama-3.2-3b"),
        ("cpu", 140 * 2**30, "llama-3.2-1b"),
        ("cpu", 2 * 2**30, "smollm2-135m"),
        ("cpu", None, "llama-3.2-1b"),
    ],
)
def test_the_largest_shape_that_fits_is_chosen(monkeypatch, device, free, expected):
    monkeypatch.setattr(weights, "free_bytes", lambda device: free)
    assert largest_that_fits(device) == read_config(expected)


def test_nothing_fits_into_too_little(monkeypatch):
    monkeypatch.setattr(weights, "free_bytes", lambda device: 10**6)
    with pytest.raises(InputError, match="smollm2-135m needs"):
        largest_that_fits("cpu")


def test_a_registry_shape_with_one_layer_runs_in_bf16():
    import dataclasses

    model = read_config("llama-3.2-1b")
    short = dataclasses.replace(model, layers=model.layers[:1], vocab_size=1000)
    decoder = random_decoder(short, "bf16", layout="output-major")
    cache = KVCache(short, 1, 5, "bf16")
    assert decoder(torch.zeros(1, 4, dtype=torch.long), cache).isfinite().all()
    assert decoder(torch.zeros(1, 1, dtype=torch.long), cache).isfinite().all()
