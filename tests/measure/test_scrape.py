"""/metrics by meaning: every engine's names, several series, restarts, and a watch over a load."""

import dataclasses
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helpers.errors import InputError
from helpers.measure.scrape import Scrape, Scraper, Watch, parse_metrics, window

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/m"} 3.0
vllm:num_requests_running{engine="1",model_name="org/m"} 5.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="org/m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="org/m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="org/m",reason="capacity"} 9.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="org/m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="org/m"} 0.75
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="org/m"} 2.0
vllm:num_preemptions_total{engine="1",model_name="org/m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="org/m"} 1.788184174081528e+09
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="org/m"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="org/m"} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="org/m"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="org/m"} 10.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="org/m"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="org/m"} 2.5
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="org/m"} 4.0
vllm:iteration_tokens_total_count{engine="0",model_name="org/m"} 4.0
vllm:iteration_tokens_total_sum{engine="0",model_name="org/m"} 100.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
"""

SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="1",dp_rank="0"} 4.0
sglang:num_running_reqs{model_name="m",tp_rank="0",dp_rank="1"} 6.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",dp_rank="0"} 2.0
sglang:token_usage{model_name="m",tp_rank="0",dp_rank="0"} 0.28
sglang:num_retracted_requests_total{model_name="m",tp_rank="0",dp_rank="0"} 3
sglang:prompt_tokens_total{model_name="m"} 8.0e+03
sglang:cached_tokens_total{model_name="m",cache_source="device"} 5.0e+02
sglang:queue_time_seconds_sum{model_name="m"} 1.5
sglang:queue_time_seconds_count{model_name="m"} 3
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="prefill_forward"} 6.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="prefill_forward"} 3
sglang:per_stage_req_latency_seconds_sum{model_name="m",stage="decode_waiting"} 60.0
sglang:per_stage_req_latency_seconds_count{model_name="m",stage="decode_waiting"} 3
"""

LLAMACPP = """\
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 512
llamacpp:tokens_predicted_total 100
llamacpp:tokens_predicted_seconds_total 2.5
llamacpp:predicted_tokens_seconds nan
llamacpp:requests_processing 1
llamacpp:requests_deferred 4
"""


def test_vllm_counts_of_several_engines_are_added_and_the_fullest_cache_counts():
    scrape = parse_metrics(VLLM, 1.0, "org/m")
    assert scrape.names == "vllm" and scrape.series == 2 and "2 engines" in scrape.notes[0]
    expected = {"running": 8, "waiting": 1, "kv_share": 0.75, "preemptions": 6, "finished": 10}
    assert scrape.values == expected
    assert scrape.histograms == {"ttft": (2.5, 10.0), "step_tokens": (100.0, 4.0)}
    assert scrape.started_s == 1.7e9


def test_names_of_older_vllm_are_understood():
    scrape = parse_metrics('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_preemptions{model_name="m"} 2\n')
    assert scrape.values == {"kv_share": 0.5, "preemptions": 2.0}


def test_tensor_parallel_ranks_of_sglang_are_not_counted_twice():
    scrape = parse_metrics(SGLANG)
    assert (scrape.names, scrape.series) == ("sglang", 2)
    assert scrape.values["running"] == 10 and scrape.values["waiting"] == 2 and scrape.values["preemptions"] == 3
    assert scrape.histograms["prefill"] == (6.0, 3.0) and scrape.histograms["queue"] == (1.5, 3.0)


def test_sglang_looks_every_prompt_token_up_and_llamacpp_counts_seconds():
    before = parse_metrics(SGLANG, 0.0)
    after = parse_metrics(SGLANG.replace("8.0e+03", "9.0e+03").replace("5.0e+02", "9.0e+02"), 2.0)
    seen = window(before, after)
    assert (seen.cache_queried_tokens, seen.cache_hit_tokens, seen.prompt_tokens) == (1000, 400, 1000)
    later = LLAMACPP.replace("predicted_total 100", "predicted_total 150").replace("_total 2.5", "_total 3.5")
    seen = window(parse_metrics(LLAMACPP, 0.0), parse_metrics(later, 1.0), [parse_metrics(later, 0.5)])
    assert (seen.names, seen.generated_tokens, seen.tpot_mean) == ("llamacpp", 50, 20.0)
    assert (seen.running_p50, seen.waiting_max, seen.kv_share_max) == (1, 4, None)


def test_the_model_that_was_asked_for_is_told_from_others_and_others_are_never_silently_one():
    text = 'vllm:num_requests_running{model_name="a"} 3\nvllm:num_requests_running{model_name="b"} 4\n'
    one, none = parse_metrics(text, model="a"), parse_metrics(text, model="x")
    assert one.values["running"] == 3 and "2 models" in one.notes[0]
    assert none.values["running"] == 7 and "added" in none.notes[0]


def test_a_window_is_the_difference_of_counters_the_mean_of_histograms_and_the_median_of_gauges():
    before = Scrape(
        10.0, "vllm", {"preemptions": 2.0, "running": 9.0}, {"ttft": (1.0, 10.0), "step_tokens": (10.0, 1.0)}
    )
    after = Scrape(
        14.0, "vllm", {"preemptions": 5.0, "running": 0.0}, {"ttft": (3.0, 20.0), "step_tokens": (70.0, 3.0)}
    )
    samples = [Scrape(0, "vllm", {"running": r, "waiting": w, "kv_share": r / 8}) for r, w in ((1, 0), (4, 2), (8, 7))]
    seen = window(before, after, samples)
    assert (seen.seconds, seen.samples, seen.preemptions) == (4.0, 3, 3.0)
    assert seen.ttft_mean == pytest.approx(200.0) and seen.step_tokens_mean == pytest.approx(30.0)
    assert (seen.running_p50, seen.running_max, seen.waiting_p50, seen.waiting_max, seen.kv_share_max) == (
        4,
        8,
        2,
        7,
        1,
    )
    nothing = window(before, dataclasses.replace(before, at_s=11.0))
    assert nothing.ttft_mean is None and nothing.preemptions == 0 and nothing.running_p50 is None


@pytest.mark.parametrize(
    "changed",
    [
        {"values": {"preemptions": 1.0}},
        {"values": {}},
        {"histograms": {"ttft": (1.0, 9.0)}},
        {"started_s": 2.0},
        {"names": "sglang"},
    ],
)
def test_a_server_that_was_restarted_is_refused(changed):
    before = Scrape(0.0, "vllm", {"preemptions": 2.0}, {"ttft": (1.0, 10.0)}, started_s=1.0)
    after = dataclasses.replace(before, at_s=1.0, **changed)
    with pytest.raises(InputError, match="restarted"):
        window(before, after)


@pytest.mark.parametrize("text", ["", "<html>not found</html>", "python_gc_objects_collected_total 3\n"])
def test_a_page_without_an_engines_numbers_is_none(text):
    assert parse_metrics(text) is None


def test_text_that_is_no_prometheus_text_is_refused():
    with pytest.raises(InputError, match="/metrics is not understood"):
        parse_metrics('vllm:num_requests_running{model_name="m} oops\n')


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        status, text = self.server.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def page():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.asked, server.answer = [], lambda path: (200, VLLM)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    server.base_url = f"http://127.0.0.1:{server.server_port}/prefix/v1"
    yield server
    server.shutdown()
    server.server_close()


def test_the_page_lies_beside_v1_and_gets_the_key(page, monkeypatch):
    monkeypatch.setenv("PLANTED_KEY", "sk-1")
    scraper = Scraper(page.base_url, model="org/m", key_variable="PLANTED_KEY")
    assert scraper.read().values["running"] == 8 and scraper.read() is not None
    scraper.close()
    assert page.asked == [("/prefix/metrics", "Bearer sk-1")] * 2


def test_no_page_is_none_and_a_note(page):
    page.answer = lambda path: (404, "")
    scraper = Scraper(page.base_url)
    assert scraper.read() is None and scraper.read() is None
    scraper.close()
    assert scraper.notes == ["/prefix/metrics answers 404: the server's own numbers are not known"]
    nobody = Scraper("http://127.0.0.1:1/v1")
    assert nobody.read() is None and "cannot be read" in nobody.notes[0]


def test_a_watch_samples_the_gauges_while_a_load_runs(page):
    count = iter(range(10**6))
    page.answer = lambda path: (
        200,
        VLLM.replace(
            'waiting{engine="0",model_name="org/m"} 1.0', f'waiting{{engine="0",model_name="org/m"}} {next(count)}'
        ),
    )
    scraper = Scraper(page.base_url)
    with Watch(scraper, every_s=0.001) as watch:
        while len(watch._kept) < 5:
            pass
    scraper.close()
    seen = watch.window()
    assert seen.samples >= 5 and seen.waiting_max > seen.waiting_p50 > 0
    assert (seen.running_p50, seen.kv_share_max, seen.preemptions) == (8, 0.75, 0)


def test_a_watch_of_a_server_that_tells_nothing_has_no_window(page):
    page.answer = lambda path: (404, "")
    scraper = Scraper(page.base_url)
    with Watch(scraper) as watch:
        pass
    scraper.close()
    assert watch.window() is None
