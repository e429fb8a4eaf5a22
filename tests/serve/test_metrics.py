"""/metrics in Prometheus text: well-formed, and its numbers are what happened."""

import re

from helpers.serve import Engine, Options
from helpers.serve.metrics import Histogram, Metrics

LINE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{([a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*)\} (\S+)')


def values(text: str) -> dict[str, float]:
    """Every sample by name and labels, the format checked on the way."""
    found, typed = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            typed[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.fullmatch(line)
            assert match, line
            base = re.sub(r"_(bucket|sum|count)$", "", match[1])
            assert match[1] in typed or typed[base] == "histogram"
            found[match[1] + "{" + match[2] + "}"] = float(match[3])
    return found


def test_numbers_are_what_happened(tiny, bytes_tokenizer, collected, until_idle):
    engine = Engine(tiny, bytes_tokenizer, Options(speculate=2, kv_blocks=10, block_tokens=4))
    requests = [collected([5, 6] * 6, max_tokens=n) for n in (1, 7, 9)]
    gone = collected([5, 6] * 6, max_tokens=9)
    for request in (*requests, gone):
        engine.submit(request)
    engine.step()
    engine.cancel(gone)
    until_idle(engine)
    found = values(engine.metrics.text("tiny"))

    def value(name, labels=""):
        return found[f'{name}{{model_name="tiny"{labels}}}']

    finished = [request for request in requests if request.finish_reason == "length"]
    assert len(finished) == 3
    everybody = [r for r in (*requests, gone) if r.times.token_s]
    assert value("vllm:generation_tokens_total") == sum(r.output_tokens for r in everybody)
    assert value("vllm:prompt_tokens_total") == sum(len(r.prompt) for r in everybody)
    assert value("vllm:prefix_cache_hits_total") == sum(r.cached_tokens for r in everybody)
    assert value("vllm:request_success_total", ',finished_reason="length"') == 3
    assert value("vllm:request_success_total", ',finished_reason="abort"') == 1
    assert value("vllm:num_preemptions_total") == sum(r.preemptions for r in (*requests, gone))
    assert value("vllm:spec_decode_num_draft_tokens_total") == sum(r.drafted_tokens for r in everybody)
    assert value("vllm:spec_decode_num_accepted_tokens_total") == sum(r.accepted_tokens for r in everybody)
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    assert value("vllm:kv_cache_usage_perc") == 0
    assert value("vllm:time_to_first_token_seconds_count") == len(everybody)
    # One per request with at least two tokens; the formula of the course.
    assert value("vllm:request_time_per_output_token_seconds_count") == 2
    tpots = [(t[-1] - t[0]) / (len(t) - 1) for t in (r.times.token_s for r in finished) if len(t) > 1]
    assert abs(value("vllm:request_time_per_output_token_seconds_sum") - sum(tpots)) < 1e-9
    assert value("vllm:request_generation_tokens_sum") == 17


def test_buckets_are_cumulative_and_end_with_all():
    metrics = Metrics()
    for tokens in (1, 8, 9, 5000):
        metrics.step(tokens)
    found = values(metrics.text("m"))
    counts = [value for name, value in found.items() if name.startswith("vllm:iteration_tokens_total_bucket")]
    assert counts == sorted(counts)
    assert found['vllm:iteration_tokens_total_bucket{model_name="m",le="8"}'] == 2
    assert found['vllm:iteration_tokens_total_bucket{model_name="m",le="+Inf"}'] == 4
    assert found['vllm:iteration_tokens_total_sum{model_name="m"}'] == 5018


def test_a_value_on_a_bound_is_within_it():
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [1, 1, 1]


def test_a_model_name_with_quotes_is_escaped():
    assert values(Metrics().text('a "b\\c'))
