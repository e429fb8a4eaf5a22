"""Records: what is written is what is read; anything else is refused by its key; files are whole or absent."""

import copy
import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import planted
from simulated import steady

from helpers.errors import InputError
from helpers.measure import Record, load_record, parse_record, record_text, records, save_record
from helpers.measure.record import SCHEMA

GOOD = planted.record(steady(0.05, noise=0.02))
TEXT = record_text(GOOD)


def edited(path: str, value) -> str:
    """The good record with the value at a path such as ``ceilings.gemm.0.work`` replaced (or removed: `...`)."""
    tree = json.loads(TEXT)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    node = tree
    for part in parents:
        node = node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return json.dumps(tree)


def test_a_record_survives_the_round_trip_to_the_last_bit():
    assert parse_record(TEXT) == GOOD
    assert record_text(parse_record(TEXT)) == TEXT


@pytest.mark.parametrize("path", [f.name for f in dataclasses.fields(Record)] + ["ceilings.gemm.0.timing.samples"])
def test_a_missing_key_is_named(path):
    with pytest.raises(InputError, match=path.rpartition(".")[2]):
        parse_record(edited(path, ...))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("surprise", 1, "key surprise is unknown"),
        ("ceilings.machine.hostname", "h", "key ceilings.machine.hostname is unknown"),
        ("schema", "inference-lab.record/2", "this version reads 'inference-lab.record/1'"),
        ("created", "yesterday", "created"),
        ("created", "2026-01-02T03:04:05", "created"),
        ("weights", "borrowed", "weights"),
        ("decode_step", "magic", "decode_step"),
        ("weight_bytes", 0, "weight_bytes"),
        ("weight_bytes", 1.5, "weight_bytes must be int"),
        ("weight_bytes", True, "weight_bytes must be int"),
        ("weight_bytes", 10**40, "weight_bytes is too large"),
        ("dtype", "bf16", "dtype"),
        ("model", None, "model must be str"),
        ("prefill", [], "prefill must be an object"),
        ("prefill.phase", "decode", "prefill"),
        ("prefill.points.0.tokens", "16", "prefill.points[0].tokens must be int"),
        ("prefill.points.0.binds", "luck", "binds"),
        ("decode.points.1.timing.samples", [], "decode.points[1].timing"),
        ("decode.points.1.timing.samples", [0.1, -0.1], "decode.points[1].timing"),
        ("decode.points.1.timing.samples.0", "0.1", "samples[0] must be float"),
        ("ceilings.gemm", [], "ceilings"),
        ("ceilings.gemm.0.work", 0, "ceilings.gemm[0]"),
        ("ceilings.machine.versions.torch", 2, "ceilings.machine.versions.torch must be str"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(path, value, says):
    with pytest.raises(InputError) as refusal:
        parse_record(edited(path, value))
    assert says in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "[" * 100_000, '{"schema": NaN}', "1" * 5000])
def test_what_is_no_record_at_all_is_refused(text):
    with pytest.raises(InputError):
        parse_record(text)


def test_a_key_given_twice_is_refused():
    with pytest.raises(InputError, match="'schema' appears twice"):
        parse_record(TEXT.replace('"schema"', f'"schema": "{SCHEMA}", "schema"', 1))


def paths(node, prefix=()):
    yield prefix
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from paths(child, (*prefix, key))


TREE = json.loads(TEXT)
PATHS = [path for path in paths(TREE) if path]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from(PATHS), JSON), min_size=1, max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_fuzzed_record_is_read_right_or_refused(changes):
    tree = copy.deepcopy(TREE)
    for path, value in changes:
        node = tree
        try:
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        record = parse_record(json.dumps(tree))
    except InputError:
        return
    # Read: then every number in it is the number in the text, and the summaries can be computed.
    assert json.loads(record_text(record)) == tree
    assert record.ceilings.flops_per_s > 0
    assert record.prefill.to_text()
    assert all(point.ratio >= 0 for point in record.decode.points)


def test_a_file_is_never_overwritten_unless_forced(tmp_path):
    target = tmp_path / "mine.json"
    target.write_text("precious")
    with pytest.raises(InputError, match="exists already"):
        save_record(GOOD, target)
    assert target.read_text() == "precious"
    save_record(GOOD, target, force=True)
    assert load_record(target) == GOOD
    assert os.listdir(tmp_path) == ["mine.json"]


def test_a_failed_write_leaves_neither_a_half_file_nor_a_lost_old_one(tmp_path, monkeypatch):
    target = tmp_path / "mine.json"
    target.write_text("precious")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_record(GOOD, target, force=True)
    assert target.read_text() == "precious"
    assert os.listdir(tmp_path) == ["mine.json"]


def test_a_file_that_appears_while_writing_is_not_overwritten(tmp_path, monkeypatch):
    target = tmp_path / "mine.json"
    monkeypatch.setattr(os, "fsync", lambda _: target.write_text("somebody was faster"))
    with pytest.raises(InputError, match="exists already"):
        save_record(GOOD, target)
    assert target.read_text() == "somebody was faster"
    assert os.listdir(tmp_path) == ["mine.json"]


def test_a_target_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match="folder"):
        save_record(GOOD, tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        save_record(GOOD, tmp_path / "absent" / "mine.json")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InputError, match=r"gone\.json"):
        load_record(tmp_path / "gone.json")
    (tmp_path / "latin.json").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match=r"latin\.json"):
        load_record(tmp_path / "latin.json")
    (tmp_path / "bad.json").write_text(edited("model", 3))
    with pytest.raises(InputError, match=r"bad\.json.*model"):
        load_record(tmp_path / "bad.json")


def test_every_record_that_travels_with_the_course_is_valid_and_anonymous():
    for path in records():
        record = load_record(path)
        assert record.prefill.points, path.name
        assert record.decode.points, path.name
        assert "/home" not in path.read_text(encoding="utf-8")
