"""The probe on a server of planted times: which runs it makes, what it sends at most, and what it leaves behind."""

import json
import threading
from dataclasses import dataclass, field

import pytest

from helpers.errors import InputError
from helpers.measure.load import Plan
from helpers.measure.probe import LONG_ROUNDS, STEPS, ProbePlan, probe
from tests.measure.replay_server import PlantedModel, ReplayServer, Script, refusal


def plain(status: int, text: str) -> Script:
    return Script([(0.0, text.encode())], 0.0, status, "text/plain", framing="length")


@dataclass
class PlantedService(PlantedModel):
    """A model with /metrics and /v1/models, whose first token takes longer for longer prompts; it keeps its prompts."""

    most_tokens: int | None = 1000
    metrics: bool = True
    refuses_from_words: int = 10**9
    prompts: list = field(default_factory=list)

    def __call__(self, path: str, body: dict) -> Script:
        if path.endswith("/metrics"):
            page = f"vllm:num_requests_running 0\nvllm:request_success_total {self.asked}\n"
            return plain(200, page) if self.metrics else plain(404, "")
        if path.endswith("/models"):
            row = {"id": "m"} | ({"max_model_len": self.most_tokens} if self.most_tokens else {})
            return plain(200, json.dumps({"data": [row]}))
        if "messages" in body and not path.endswith("/tokenize"):
            words = body["messages"][-1]["content"]
            self.prompts.append((words, body["max_tokens"]))
            if len(words.split()) >= self.refuses_from_words:
                return refusal(400, "too long")
        return super().__call__(path, body)

    def stream(self, body: dict) -> Script:
        self.ttft_s = 0.004 + 2e-5 * self.prompt_tokens(body)
        return super().stream(body)


@pytest.fixture
def service():
    return PlantedService(ttft_s=0.004, tpot_s=0.001)


SMALL = {"prompt_tokens": 60, "output_tokens": 6, "requests": 6, "warmup": 1, "lone_requests": 3}


@pytest.mark.slow
def test_a_probe_makes_one_run_for_every_question(service):
    said = []
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", concurrency=4, direct_url=server.base_url, progress=said.append, **SMALL)
        # The most that was announced is not passed.
        plan = ProbePlan(server.base_url, "m", concurrency=4, direct_url=server.base_url, **SMALL)
        assert len(service.prompts) <= plan.most_sent()[0]
        assert sum(tokens for _, tokens in service.prompts) <= plan.most_sent()[2]
    roles = [run.role for run in seen.runs]
    assert roles == ["alone"] * 3 + ["repeat", "load", "load", "beside_long", "direct"]
    assert [run.prompt_tokens for run in seen.role("alone")] == [120, 240, 60]
    assert [run.concurrency for run in seen.role("load")] == [2, 4]
    judged = seen.role("load")[-1]
    assert (judged.requests, judged.output_tokens, judged.errors) == (6, 6, {})
    assert all(run.server is not None and run.server.names == "vllm" and run.server.seconds > 0 for run in seen.runs)
    # Negotiation and warm-up are not in the window: three lone requests are all the server finished.
    assert [run.server.finished for run in seen.role("alone")] == [3, 3, 3]
    (repeat,) = seen.role("repeat")
    assert repeat.prompts_repeat and not judged.prompts_repeat and repeat.requests == 3
    (beside,) = seen.role("beside_long")
    assert beside.long_prompt_tokens == 240 and beside.long_ttft > 0 and beside.gap.n > 0
    assert "step 1 of 6: one request at a time, at three prompt lengths" in said


@pytest.mark.slow
def test_every_prompt_is_new_but_the_repeated_ones(service):
    with ReplayServer({}, answer=service) as server:
        probe(server.base_url, "m", concurrency=2, leave_out=("repeat",), **SMALL)
    prompts = [words for words, _ in service.prompts if words != "Hello"]
    assert len(set(prompts)) == len(prompts) > 14 + 3 * LONG_ROUNDS


def test_the_same_prompt_again_and_again_is_seen_as_such(service):
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", concurrency=2, same_prompt=True, leave_out=("sweep", "beside_long"), **SMALL)
    (judged,) = seen.role("load")
    assert judged.prompts_repeat and judged.prompt_tokens == 60


@pytest.mark.slow
def test_a_server_that_tells_nothing_is_probed_all_the_same(service):
    service.metrics, service.most_tokens, service.tokenizes = False, None, False
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", concurrency=2, leave_out=("sweep", "beside_long"), **SMALL)
    assert all(run.server is None for run in seen.runs) and len(seen.runs) == 5
    assert any("/metrics answers 404" in note for note in seen.notes)


@pytest.mark.slow
def test_the_engines_own_port_tells_what_a_proxy_hides(service):
    hidden = PlantedService(metrics=False)
    with ReplayServer({}, answer=hidden) as front, ReplayServer({}, answer=service) as engine:
        out = ("sweep", "beside_long", "repeat")
        seen = probe(front.base_url, "m", concurrency=1, direct_url=engine.base_url, leave_out=out, **SMALL)
    assert all(run.server is not None for run in seen.runs)


@pytest.mark.slow
def test_a_length_the_server_does_not_take_is_left_out_and_said(service):
    service.refuses_from_words = 150
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", concurrency=1, **SMALL)
    assert [run.prompt_tokens for run in seen.role("alone")] == [120, 60]
    assert any("240 prompt tokens" in note for note in seen.notes)
    # The longest that was answered takes its place.
    assert seen.role("beside_long")[0].long_prompt_tokens == 120


@pytest.mark.slow
def test_failures_of_the_load_are_evidence_and_no_crash(service):
    service.fails = lambda i: i > 17
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", concurrency=2, leave_out=("repeat", "sweep", "beside_long"), **SMALL)
    assert seen.role("load")[0].errors["http_503"] > 0


def test_an_open_loop_is_swept_at_half_its_rate(service):
    with ReplayServer({}, answer=service) as server:
        seen = probe(server.base_url, "m", rate=200.0, leave_out=("alone", "beside_long"), **SMALL)
    assert [(run.role, run.rate_per_s) for run in seen.runs] == [("load", 100.0), ("load", 200.0)]


def test_ctrl_c_leaves_no_thread_behind(service):
    before = threading.active_count()

    def interrupt(line: str) -> None:
        if "measured requests" in line:
            raise KeyboardInterrupt

    with ReplayServer({}, answer=service) as server:
        with pytest.raises(KeyboardInterrupt):
            probe(server.base_url, "m", concurrency=2, progress=interrupt, **SMALL)
        assert not [thread for thread in threading.enumerate() if thread.name == "metrics"]
    assert threading.active_count() <= before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "concurrency and rate"),
        ({"concurrency": 1, "rate": 1.0}, "concurrency and rate"),
        ({"concurrency": 0}, "concurrency"),
        ({"rate": -1.0}, "rate"),
        ({"concurrency": 1, "prompt_tokens": 0}, "prompt_tokens"),
        ({"concurrency": 1, "leave_out": ("tea",)}, "tea"),
        ({"concurrency": 1, "direct_url": "nowhere"}, "nowhere"),
        ({"concurrency": 1, "same_prompt": True, "second_client": True}, "same_prompt"),
    ],
)
def test_what_is_no_plan_is_refused_before_anything_is_sent(options, named):
    with pytest.raises(InputError, match=named):
        probe("http://127.0.0.1:1/v1", "m", **options)


def test_a_plan_says_its_steps_in_the_order_of_the_questions():
    full = ProbePlan("http://h/v1", "m", concurrency=16, direct_url="http://e/v1", second_client=True)
    assert full.steps() == STEPS and [plan.arrivals.concurrency for plan in full.sweep()] == [4, 8]
    assert full.lengths() == (64, 1024, 256) and full.lengths(most_tokens=600) == (64, 536, 256)
    bare = ProbePlan("http://h/v1", "m", concurrency=1, leave_out=("alone",))
    assert bare.steps() == ("sweep", "load") and bare.sweep() == ()
    assert all(isinstance(plan, Plan) for _, plan in full.loads())


@pytest.mark.slow
def test_a_second_client_measures_from_another_process(service):
    with ReplayServer({}, answer=service) as server:
        out = ("repeat", "sweep", "beside_long")
        seen = probe(server.base_url, "m", concurrency=2, second_client=True, leave_out=out, **SMALL)
    (other,) = seen.role("second_client")
    assert other.requests == 6 and other.errors == {} and other.ttft.n == 6
