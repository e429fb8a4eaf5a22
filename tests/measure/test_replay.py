"""The raw log: the same run again, byte for byte, and no nonsense taken for one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.measure import ClosedLoop, Exchange, LoadRun, Plan, Read, Sent, load_log, save_log
from tests.measure.test_results import planted


@given(
    st.lists(st.tuples(st.integers(0, 2**60), st.binary(max_size=30), st.none() | st.integers(0, 2**60)), max_size=6)
)
def test_any_bytes_and_times_come_back_as_they_were(tmp_path_factory, reads):
    exchange = Exchange(
        {"m": "猫"}, 5, "cut", 9, tuple(Read(*read) for read in reads), 200, {"server": "x"}, 7, 4, 3, "d"
    )
    plan = Plan("http://127.0.0.1/v1", "m", ClosedLoop(2), 1, 40, 4)
    run = LoadRun(plan, (Sent("measured", exchange),), "usage", False, True, 0.5, 2.0, ("note",))
    file = tmp_path_factory.mktemp("log") / "run.jsonl"
    save_log(run, file, {"cpu": "some"})
    assert load_log(file) == run


@pytest.fixture
def log(tmp_path):
    save_log(planted(), tmp_path / "run.jsonl")
    return tmp_path / "run.jsonl"


def test_the_log_can_be_read_by_eye(log):
    head, first, *_ = log.read_text().splitlines()
    assert json.loads(head)["schema"] == "inference-lab/measure-log/1"
    assert json.loads(first)["reads"][0][2].startswith("data: {")


@pytest.mark.parametrize("line", [1, 2, 5])
@pytest.mark.parametrize("damage", [lambda line: line[:-9], lambda line: "[]", lambda line: "7", lambda line: "{}"])
def test_a_damaged_line_is_refused_by_its_number(log, line, damage):
    lines = log.read_text().splitlines()
    lines[line - 1] = damage(lines[line - 1])
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=f"line {line}:"):
        load_log(log)


@pytest.mark.parametrize(
    ("key", "value"),
    [("start_ns", 1.5), ("end_ns", None), ("end", "never"), ("phase", "other"), ("reads", [[1, 2]]), ("status", "200"),
     ("reads", [[None, 1, {"base64": "!"}]]), ("reads", [[None, None, "x"]]), ("request", [])],
)  # fmt: skip
def test_a_wrong_value_is_refused(log, key, value):
    lines = log.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {key: value})
    log.write_text("\n".join(lines))
    with pytest.raises(InputError, match="line 2:"):
        load_log(log)


@pytest.mark.parametrize("text", ["", "\n", "{}", "not a log"])
def test_another_file_is_no_log(tmp_path, text):
    (tmp_path / "x").write_text(text)
    with pytest.raises(InputError, match="line 1"):
        load_log(tmp_path / "x")


def test_a_log_without_requests_or_without_a_file_is_refused(log, tmp_path):
    log.write_text(log.read_text().splitlines()[0])
    with pytest.raises(InputError, match="no requests"):
        load_log(log)
    with pytest.raises(InputError, match="cannot be read"):
        load_log(tmp_path / "nowhere")


def test_a_log_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        save_log(planted(), tmp_path / "no" / "run.jsonl")
    assert list(tmp_path.iterdir()) == []
