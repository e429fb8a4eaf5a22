"""How the server schedules, caches and answers: every option in one frozen record."""

from dataclasses import dataclass, fields

from helpers.errors import InputError

HEADER_POLICIES = ("early", "first-token")


@dataclass(frozen=True)
class Options:
    """Options of `running`, `spawned` and ``python -m helpers serve``. Raises InputError for a value out of range.

    `max_batch` requests run together, `max_queue` more may wait, the next is answered 429. `prefill_chunk`: prompt
    tokens computed in one step, 0 for whole prompts. `kv_blocks` blocks of `block_tokens` tokens hold the keys and
    values of all running requests; where they run out the latest request is preempted and computed again later.
    `kv_dtype`: format of the KV cache, None for the decoder's own. `prefix_caching`: prompts that begin alike share
    blocks. `speculate`: tokens drafted by prompt look-up for each greedy request and step, 0 for none. `headers`:
    ``early`` sends the response headers and the role event at once, as transformers serve does; ``first-token`` holds
    both back until there is a token, as SGLang and llama-server do. `system_prompt`: the system turn of a chat that
    brings none.
    """

    max_batch: int = 8
    max_queue: int = 64
    prefill_chunk: int = 256
    kv_blocks: int = 512
    block_tokens: int = 16
    kv_dtype: str | None = None
    prefix_caching: bool = True
    speculate: int = 0
    headers: str = "early"
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("max_batch", 1),
            ("max_queue", 0),
            ("prefill_chunk", 0),
            ("kv_blocks", 1),
            ("block_tokens", 1),
            ("speculate", 0),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.headers not in HEADER_POLICIES:
            raise InputError(f"headers must be one of {', '.join(HEADER_POLICIES)}, not {self.headers!r}")
        if not isinstance(self.prefix_caching, bool):
            raise InputError(f"prefix_caching must be True or False, not {self.prefix_caching!r}")

    def as_arguments(self) -> list[str]:
        """The command-line options of ``python -m helpers serve`` that stand for this record."""
        words: list[str] = []
        for field in fields(self):
            value, flag = getattr(self, field.name), "--" + field.name.replace("_", "-")
            if value == field.default:
                continue
            words += ["--no-prefix-caching"] if field.name == "prefix_caching" else [f"{flag}={value}"]
        return words
