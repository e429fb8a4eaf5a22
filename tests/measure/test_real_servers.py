"""The client against a real server: `transformers serve` with a tiny random model, started and stopped here."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from helpers import cli
from helpers.measure import measure_request
from helpers.measure.prompts import WORDS

LAUNCHER = """
import sys
from transformers.modeling_utils import PreTrainedModel

real = PreTrainedModel.from_pretrained.__func__

def without_device_map(cls, *arguments, device_map=None, **options):
    # A device map wants the package accelerate, which one device does not need.
    return real(cls, *arguments, **options)

PreTrainedModel.from_pretrained = classmethod(without_device_map)
from transformers.cli.transformers import main

sys.argv = ["transformers", "serve", *sys.argv[1:]]
main()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama of 50 thousand random weights with a byte-level tokenizer and a chat template."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    # Every word of the prompts becomes one token, with and without a space before it.
    tokenizer.train_from_iterator([word for word in WORDS for _ in range(9)] + [f" {w}" for w in WORDS] * 9, trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}<s>assistant:"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=len(fast),
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def transformers_serve(folder):
    """The base URL of a running `transformers serve`."""
    pytest.importorskip("fastapi", reason="transformers serve needs fastapi")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launcher, log = folder / "launch.py", folder / "log"
    launcher.write_text(LAUNCHER)
    options = ["--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, str(launcher), str(folder), *options],
            env=env,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 180
        while not _healthy(port):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def _healthy(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).status == 200
    except OSError:
        return False


@pytest.mark.slow
def test_one_request_to_transformers_serve_is_sound_though_it_never_says_done(transformers_serve, folder):
    request = {"model": str(folder), "messages": [{"role": "user", "content": "time people"}], "max_tokens": 24}
    result = measure_request(transformers_serve, request)
    assert result.error is None, result
    assert result.finish_reason in ("length", "stop") and result.token_count_source == "usage"
    assert result.finish_reason == "stop" or result.output_tokens == 24
    assert 0 < result.headers_ms < result.ttft_ms <= result.e2e_ms <= result.stream_closed_ms
    assert result.output_tokens is not None and result.prompt_tokens > 2


@pytest.mark.slow
def test_a_load_on_transformers_serve_finds_its_dialect_and_keeps_a_log(transformers_serve, folder, tmp_path, capsys):
    log = tmp_path / "run.jsonl"
    lengths = ["--prompt-tokens", "64", "--output-tokens", "12", "--requests", "6", "--concurrency", "2"]
    code = cli.main(
        ["measure", "--base-url", transformers_serve, "--model", str(folder), *lengths, "--log", str(log), "--json"]
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    result = json.loads(out)
    assert result["errors"]["total"] == 0 and result["ttft_ms"]["n"] == 6
    assert result["conditions"]["prompt_tokens"]["low"] == result["conditions"]["prompt_tokens"]["high"] == 64
    assert not result["conditions"]["ignore_eos"] and any("ignore_eos" in note for note in result["notes"])
    assert any("no /tokenize" in note for note in result["notes"])
    assert cli.main(["measure", "--replay", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
