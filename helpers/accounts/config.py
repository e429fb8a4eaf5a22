"""Reading a Hugging Face config.json into a `Model`: strictly, by keys, and refusing what is not understood."""

import contextlib
import copy
import difflib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from helpers.accounts.architectures import ARCHITECTURES, FLAT, WRAPPERS
from helpers.accounts.keys import Keys
from helpers.accounts.model import DecoderDetails, Model
from helpers.errors import InputError

_LARGEST_FILE_BYTES = 16_000_000
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

# Keys of every configuration class that change neither parameters, cache nor FLOPs: bookkeeping, token ids,
# training, and defaults for text generation.
_HARMLESS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "attention_dropout",
        "attn_implementation",
        "auto_map",
        "bad_words_ids",
        "begin_suppress_tokens",
        "bos_token_id",
        "cache_implementation",
        "chunk_size_feed_forward",
        "decoder_start_token_id",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "eos_token_id",
        "exponential_decay_length_penalty",
        "finetuning_task",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_llama_config",
        "label2id",
        "length_penalty",
        "max_length",
        "min_length",
        "no_repeat_ngram_size",
        "num_beam_groups",
        "num_beams",
        "num_labels",
        "num_return_sequences",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "output_scores",
        "pad_token_id",
        "prefix",
        "pretraining_tp",
        "problem_type",
        "remove_invalid_values",
        "repetition_penalty",
        "return_dict",
        "rope_interleaved",
        "return_dict_in_generate",
        "sep_token_id",
        "suppress_tokens",
        "task_specific_params",
        "temperature",
        "tf_legacy_loss",
        "tokenizer_class",
        "top_k",
        "top_p",
        "torchscript",
        "transformers.js_config",
        "transformers_version",
        "typical_p",
        "unsloth_fixed",
        "unsloth_version",
        "use_bfloat16",
        "use_cache",
    }
)

# Keys that would change the answer at another value than these: seen in real files, always switched off.
_MUST_BE_OFF: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (None, False),
    "cross_attention_hidden_size": (None,),
    "is_encoder_decoder": (None, False),
    "pruned_heads": (None, {}),
    "tie_encoder_decoder": (None, False),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "num_nextn_predict_layers": (0,),
}


def read_config(source: str | Path, ignore: Collection[str] = ()) -> Model:
    """The model of a config.json: `source` is its path, the path of its folder, or a name of the registry.

    `ignore` names keys to leave unread (see `parse_config`). A path that exists wins over a registry name. A
    hf_quant_config.json (NVIDIA ModelOpt) beside the config.json is read where that has no quantization_config.
    Raises InputError for a file that cannot be read or understood, naming the file and the key.
    """
    if not isinstance(source, str | Path) or not str(source):
        raise InputError(f"a config is given as a path or a registry name, not {source!r}")
    path = Path(source)
    with contextlib.suppress(RuntimeError):  # "~" of nobody is a path like any other, which will not exist.
        path = path.expanduser()
    try:
        exists = path.exists()
    except PermissionError:
        # It may well be there: reading it says what stands in the way.
        exists = True
    except (OSError, ValueError):
        exists = False
    if exists:
        try:
            return _read_file(path, ignore)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from None
    registry = model_registry()
    name = str(source).lower()
    if name not in registry:
        close = difflib.get_close_matches(name, registry, n=3, cutoff=0.4)
        hint = f"; close names: {', '.join(close)}" if close else ""
        shown = str(source)[:120].replace("\x00", "?")
        raise InputError(f"{shown!r} is neither an existing path nor a name of the registry{hint}")
    return parse_config(registry[name]["config"], name, ignore=ignore)


def model_registry() -> dict[str, dict[str, Any]]:
    """The registry: name → {"config": structural keys of its config.json, "source": where they come from}."""
    text = (Path(__file__).parents[1] / "data" / "models.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


def model_names() -> tuple[str, ...]:
    """Names that `read_config` takes in place of a path."""
    return tuple(model_registry())


def model_types() -> tuple[str, ...]:
    """The model_types of a config.json that this version reads, multimodal wrappers included, in alphabetical order."""
    return tuple(sorted({*ARCHITECTURES, *WRAPPERS}))


def _read_file(path: Path, ignore: Collection[str]) -> Model:
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise InputError(f"the folder {str(path.parent)!r} holds no config.json")
    if not path.is_file():
        raise InputError(f"{path}: is not a regular file")
    if path.stat().st_size > _LARGEST_FILE_BYTES:
        raise InputError(f"{path}: is larger than {_LARGEST_FILE_BYTES:,} bytes, which no config.json is")
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    # File names need not be text; what is printed must be.
    name = name.encode("utf-8", "replace").decode()
    config = _parse_json(path.read_bytes(), str(path))
    beside = path.with_name("hf_quant_config.json")
    if path.name == "config.json" and beside.is_file():
        config = _with_modelopt(config, beside)
    return parse_config(config, name, ignore=ignore)


def _with_modelopt(config: Any, path: Path) -> Any:
    """`config` with the quantization that NVIDIA's ModelOpt writes into a file of its own, where it has none itself."""
    if not isinstance(config, dict) or config.get("quantization_config") is not None:
        return config
    found = _parse_json(path.read_bytes(), str(path))
    quantization = found.get("quantization") if isinstance(found, dict) else None
    if not isinstance(quantization, dict):
        raise InputError(f"{path}: key 'quantization' must be an object")
    return {**config, "quantization_config": {"quant_method": "modelopt", **quantization}}


def parse_config_text(text: str | bytes, name: str, where: str, ignore: Collection[str] = ()) -> Model:
    """The model of a config.json given as its text (UTF-8); `where` names it in messages, the rest as `parse_config`.

    Raises InputError for text that is not one JSON object without duplicate keys.
    """
    return parse_config(_parse_json(text, where), name, ignore=ignore)


def _parse_json(text: str | bytes, where: str) -> Any:
    if len(text) > _LARGEST_FILE_BYTES:
        raise InputError(f"{where}: is larger than {_LARGEST_FILE_BYTES:,} bytes, which no config.json is")
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text.removeprefix("\ufeff")
    except UnicodeDecodeError:
        raise InputError(f"{where}: is not a text file in UTF-8") from None
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: is not valid JSON ({error.msg}, line {error.lineno})") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: holds a number or a nesting beyond what JSON readers take") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InputError(f"key {key!r} stands twice in one object")
        result[key] = value
    return result


def parse_config(config: Mapping[str, Any], name: str, ignore: Collection[str] = ()) -> Model:
    """The model that the object of a config.json describes; `name` is what to call it.

    Every key is read, known to be harmless, or refused by name; keys named in `ignore` are treated as missing (at
    the top, in text_config and in quantization_config). A missing key takes the default of the transformers
    configuration class where real files leave it out. `Model.notes` says both. A multimodal config gives its
    language model (text_config) alone, and the notes say so too.

    Raises InputError, naming the key, for anything missing, malformed, contradictory or unknown.
    """
    try:
        return _parse(config, name, (ignore,) if isinstance(ignore, str) else ignore)
    except RecursionError:
        raise InputError(f"{name}: the config is nested too deeply") from None


def _parse(config: Mapping[str, Any], name: str, ignore: Collection[str]) -> Model:
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise InputError(f"{name}: a config must be a JSON object")
    config, ignored = _without_ignored(config, ignore)
    model_type = Keys(config, name).text("model_type")
    notes = [f"left unread, as asked: {', '.join(ignored)}"] if ignored else []
    quantization, dtype = config.get("quantization_config"), None
    if model_type in FLAT and "text_config" not in config:
        config = _nested(config, model_type)
    if model_type in WRAPPERS:
        text, quantization, dtype, tied, note = _unwrap(config, name, model_type)
        notes.append(note)
        keys = Keys(text, f"{name}: text_config")
        if tied is not None:
            keys.same_as("tie_word_embeddings", "tie_word_embeddings outside text_config", tied)
            keys.values = {**text, "tie_word_embeddings": tied}
    else:
        keys = Keys(config, name)
        if "text_config" in config:
            raise InputError(
                f"{name}: model_type {model_type[:60]!r} with a text_config is not supported by this version "
                f"(known: {', '.join(sorted(WRAPPERS))})"
            )
    inner_type = keys.text("model_type")
    if inner_type not in ARCHITECTURES:
        close = difflib.get_close_matches(inner_type, model_types(), n=3, cutoff=0.7)
        hint = f"close names: {', '.join(close)}; " if close else ""
        raise InputError(
            f"{keys.where}: model_type {inner_type[:60]!r} is not supported by this version "
            f"({hint}`python -m helpers account --types` lists those that are)"
        )
    return _parse_text_model(keys, name, model_type, inner_type, notes, quantization, dtype)


def _without_ignored(config: Mapping[str, Any], ignore: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """`config` without the keys of `ignore`, at its top, in text_config and in quantization_config; and those found."""
    kept = {key: value for key, value in config.items() if key not in ignore}
    found = {key for key in config if key in ignore}
    for part in ("text_config", "quantization_config"):
        if isinstance(kept.get(part), dict):
            kept[part], inside = _without_ignored(kept[part], ignore)
            found.update(inside)
    return kept, sorted(found)


def _nested(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """A flat multimodal config as its later form: the language model's keys in a text_config."""
    outside = WRAPPERS[model_type] | {"architectures", "quantization_config", "tie_word_embeddings"}
    outer = {key: value for key, value in config.items() if key in outside}
    text = {key: value for key, value in config.items() if key not in outside}
    return {**outer, "model_type": model_type, "text_config": {**text, "model_type": FLAT[model_type]}}


def _unwrap(
    config: Mapping[str, Any], name: str, model_type: str
) -> tuple[dict[str, Any], Any, str | None, bool | None, str]:
    outer = Keys(config, name)
    text = dict(outer.object("text_config"))
    outer.ignore(["model_type", *WRAPPERS[model_type], *_HARMLESS])
    _refuse_switched_on(outer)
    _check_architectures(outer)
    dtype = _dtype(outer)
    tied = outer.flag("tie_word_embeddings") if "tie_word_embeddings" in config else None
    quantization = config.get("quantization_config")
    outer.read.add("quantization_config")
    if "quantization_config" in text:
        inner = text["quantization_config"]
        if quantization is not None and inner is not None and inner != quantization:
            raise outer.refuse("quantization_config", "differs from the one inside text_config")
        quantization = quantization if inner is None else inner
    outer.refuse_unread()
    return text, quantization, dtype, tied, "language model alone (text_config): the vision part is left out"


def _parse_text_model(
    keys: Keys,
    name: str,
    model_type: str,
    inner_type: str,
    notes: list[str],
    quantization: Any,
    outer_dtype: str | None,
) -> Model:
    architecture = ARCHITECTURES[inner_type]
    keys.defaults = architecture.defaults
    layers, extras = architecture.layers(keys), architecture.extras(keys)
    notes += architecture.notes(keys)
    decoder = DecoderDetails(
        rms_norm_eps=keys.positive_number(architecture.norm_key),
        hidden_act=keys.text(architecture.activation_key),
        **_rotary(keys),
    )
    dtype = _dtype(keys) or outer_dtype
    if dtype is None:
        notes.append("the file names no dtype: bf16 assumed for what is not quantised")
    keys.read.add("quantization_config")
    if quantization is not None and not isinstance(quantization, dict):
        raise keys.refuse("quantization_config", "must be an object")
    if isinstance(quantization, dict):
        keys.ignore(architecture.quantization_keys)
        quantization = {**{key: keys.values.get(key) for key in architecture.quantization_keys}, **quantization}
    vocab_size, hidden_size = keys.size("vocab_size"), keys.size("hidden_size")
    max_positions, tied = keys.size("max_position_embeddings"), keys.flag("tie_word_embeddings")
    _check_architectures(keys)
    _refuse_switched_on(keys)
    keys.ignore([*_HARMLESS, *architecture.harmless, "hidden_act", "hidden_activation"])
    keys.refuse_unread()
    if keys.defaulted:
        taken = ", ".join(f"{key} = {_default_text(key, value)}" for key, value in sorted(keys.defaulted.items()))
        notes.append(f"not in the file, taken from the transformers defaults of {inner_type}: {taken}")
    return Model(
        name=name,
        model_type=model_type,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        tied_embeddings=tied,
        max_position_embeddings=max_positions,
        layers=layers,
        weights_dtype=dtype or "bf16",
        decoder=decoder,
        quantization=copy.deepcopy(quantization),
        notes=tuple(notes),
        **extras,
    )


def _default_text(key: str, value: Any) -> str:
    derived = {"head_dim": "hidden_size / num_attention_heads", "num_key_value_heads": "num_attention_heads"}
    return derived[key] if value is None and key in derived else json.dumps(value)


def _refuse_switched_on(keys: Keys) -> None:
    for key, off in _MUST_BE_OFF.items():
        if key not in keys.read:
            keys.one_of(key, off, "and this version does not know what that changes")


def _check_architectures(keys: Keys) -> None:
    """A class without the language-model head has other parameters than the ones counted here."""
    keys.read.add("architectures")
    classes = keys.values.get("architectures")
    if classes is None:
        return
    if not isinstance(classes, list) or not all(isinstance(item, str) for item in classes):
        raise keys.refuse("architectures", "must be a list of class names")
    for item in classes:
        if not item.endswith(("ForCausalLM", "ForConditionalGeneration")):
            raise keys.refuse("architectures", f"names {item[:60]!r}, which is not a causal language model")


def _dtype(keys: Keys) -> str | None:
    found = None
    for key in ("dtype", "torch_dtype"):
        keys.read.add(key)
        value = keys.values.get(key)
        if value is None or value == "auto":
            continue
        if not isinstance(value, str) or value.removeprefix("torch.") not in _DTYPES:
            raise keys.refuse(key, f"is {str(value)[:40]!r}; known are {', '.join(_DTYPES)}")
        dtype = _DTYPES[value.removeprefix("torch.")]
        if found not in (None, dtype):
            raise keys.refuse(key, "contradicts dtype")
        found = dtype
    return found


def _rotary(keys: Keys) -> dict[str, Any]:
    """Rotary settings as a decoder needs them; no account reads them, but malformed ones are refused."""
    for key in ("rope_parameters", "rope_scaling"):
        if keys.values.get(key) is not None:
            keys.object(key)
    scaling = keys.values.get("rope_parameters") or keys.values.get("rope_scaling")
    keys.ignore(["rope_parameters", "rope_scaling"])
    for key in ("rope_theta", "rope_local_base_freq", "partial_rotary_factor"):
        keys.read.add(key)
        if keys.values.get(key) is not None:
            keys.positive_number(key)
    theta = keys.values.get("rope_theta")
    partial = keys.values.get("partial_rotary_factor")
    if scaling is not None:
        nested = Keys(scaling, f"{keys.where}: rotary settings")
        for key in ("rope_theta", "partial_rotary_factor"):
            if nested.values.get(key) is not None:
                nested.positive_number(key)
        theta = scaling.get("rope_theta", theta)
        partial = scaling.get("partial_rotary_factor", partial)
    return {
        "rope_theta": None if theta is None else float(theta),
        "rope_scaling": copy.deepcopy(scaling),
        "partial_rotary_factor": 1.0 if partial is None else float(partial),
    }
