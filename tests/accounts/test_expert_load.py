"""Expert counts as text: every format read, everything malformed refused by line or key."""

import json

import pytest

from helpers.accounts import (
    ExpertLoad,
    InputError,
    LoggedBalancedness,
    max_over_mean,
    published_load,
    published_loads,
    read_expert_load,
)


@pytest.fixture
def file(tmp_path):
    """Write a text file and give its path."""

    def write(text: str, name: str = "counts.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_a_csv_is_read_whatever_the_order_of_rows_and_columns(file):
    load = read_expert_load(file("\ufeffcount, layer,expert\n3,4,1\n1,4,0\n\n5,2,0\n6,2,1\n"))
    assert isinstance(load, ExpertLoad)
    assert (load.layers, load.experts, load.counts) == ((2, 4), 2, ((5, 6), (1, 3)))
    assert "layer 4 counts 4 assignments, layer 2 11" in load.notes[0]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_csv_may_be_quoted_or_separated_otherwise(file, delimiter, quote):
    rows = [("", "layer", "expert", "count"), ("1", "0", "0", "3"), ("2", "0", "1", "4")]
    text = "\r\n".join(delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in rows)
    assert read_expert_load(file(text)).counts == ((3, 4),)


def test_counts_beyond_any_service_are_refused_as_a_sum_too(file):
    with pytest.raises(InputError, match=r"counts\.csv: the sum of layer 3 is larger than 10\^12"):
        read_expert_load(file(f"layer,expert,count\n3,0,{10**12}\n3,1,1\n"))


def test_experts_numbered_from_one_are_told_so(file):
    with pytest.raises(InputError, match=r"no row for expert 0 \(experts are numbered from 0\)"):
        read_expert_load(file("layer,expert,count\n1,1,5\n1,2,6\n"))


def test_a_common_factor_of_all_counts_is_told(file):
    def notes(factor, experts):
        rows = [f"0,{expert},{factor * (1 + expert % 7)}" for expert in range(experts)]
        return read_expert_load(file("layer,expert,count\n" + "\n".join(rows))).notes

    assert "multiple of 8: probably each token was counted 8 times" in notes(8, 64)[0]
    # Few counts may share a factor by chance.
    assert notes(1, 64) == notes(8, 16) == ()


def test_steps_are_kept_apart_and_summed(file):
    load = read_expert_load(file("step,layer,expert,count\n7,0,0,1\n7,0,1,2\n9,0,0,10\n9,0,1,0\n8,0,0,0\n8,0,1,0\n"))
    assert load.steps == (((1, 2),), ((10, 0),))
    assert load.counts == ((11, 2),)
    assert load.notes == ("1 of 3 steps counted nothing and are left out",)


def test_layers_that_counted_nothing_are_left_out_and_said_so(file):
    load = read_expert_load(file("layer,expert,count\n0,0,0\n0,1,0\n1,0,4\n1,1,4\n"))
    assert load.layers == (1,)
    assert "left out (dense, or not recorded): 0" in load.notes[0]


def test_rows_are_chosen_by_another_column(file):
    path = file("traffic,layer,expert,count\nchat,0,0,1\nchat,0,1,2\ncode,0,0,3\ncode,0,1,4\n")
    assert read_expert_load(path, {"traffic": "code"}).counts == ((3, 4),)
    with pytest.raises(InputError, match=r"line 4: layer 0, expert 0 .* choose rows by the column traffic"):
        read_expert_load(path)
    with pytest.raises(InputError, match="no row with traffic=prose"):
        read_expert_load(path, {"traffic": "prose"})
    with pytest.raises(InputError, match=r"no column 'day' .*traffic"):
        read_expert_load(path, {"day": "1"})
    with pytest.raises(InputError, match="no column 'expert' to choose rows by"):
        read_expert_load(path, {"expert": "1"})
    stepped = file("step,layer,expert,count\n0,3,0,1\n0,4,0,2\n1,3,0,4\n1,4,0,8\n")
    assert read_expert_load(stepped, {"step": "1", "layer": "4"}).counts == ((8,),)


def test_rows_left_out_are_zeros_only_where_the_number_of_experts_is_said(file):
    path = file("layer,expert,count\n0,0,1\n0,2,2\n1,0,3\n1,1,4\n1,2,5\n")
    with pytest.raises(InputError, match="layer 0 has no row for expert 1"):
        read_expert_load(path)
    assert read_expert_load(path, experts=4).counts == ((1, 0, 2, 0), (3, 4, 5, 0))
    with pytest.raises(InputError, match=r"line 3: expert 2 is beyond the 2"):
        read_expert_load(path, experts=2)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("0,0,1\n0,1", "line 3: 2 values for 3 columns"),
        ("0,0,1\n0,1,-4", "line 3: count must be a whole number"),
        ("0,0,1\n0,1,2.5", "line 3: count"),
        ("0,0,1\n0,1,1_000", "line 3: count"),
        ("0,0,1\n0,1,１", "line 3: count"),
        ("0,0,1\n0,one,2", "line 3: expert"),
        ("0,0,1\n,1,2", "line 3: layer"),
        ("0,0,1\n0,1,2\n0,1,2", r"line 4: layer 0, expert 1 stands a second time \(first in line 3\)"),
        ("0,0,1\n0,999999999,2", "line 3: expert 999999999"),
        ("0,0,1\n0,1,9999999999999", "10\\^12"),
        ('0,0,"1', "not readable as CSV"),
        ("0,0,0\n0,1,0", "every count is zero"),
        ("", "holds no row"),
    ],
)
def test_a_malformed_csv_is_refused_by_line(file, rows, named):
    with pytest.raises(InputError, match=named):
        read_expert_load(file("layer,expert,count\n" + rows))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "neither a CSV"),
        ("layer,expert\n0,0\n", "neither a CSV"),
        ("layer,layer,expert,count\n0,0,0,1\n", "names a column twice"),
        ("{", "not readable JSON"),
        ("{}", "key 'snapshots' is missing"),
        ('{"snapshots": []}', "'snapshots' is empty"),
        ('{"snapshots": [{"step": 1}]}', r"snapshots\[0\]: key 'window_expert_load' is missing"),
        ('{"snapshots": [{"window_expert_load": [1, 2]}]}', "layers by experts"),
        ('{"snapshots": [{"window_expert_load": [[1, 2], [1]]}]}', "different numbers of experts"),
        ('{"snapshots": [{"window_expert_load": [[1, -2]]}]}', r"window_expert_load\[0\]\[1\]"),
        ('{"snapshots": [{"window_expert_load": [[1, 0.5]]}]}', r"window_expert_load\[0\]\[1\]"),
        ('{"snapshots": [{"window_expert_load": [[1, NaN]]}]}', r"window_expert_load\[0\]\[1\]"),
        ('{"world_size": 0, "snapshots": [{"window_expert_load": [[1, 2]]}]}', "world_size.* above zero"),
        (
            '{"num_moe_layers": 58, "snapshots": [{"window_expert_load": [[1, 2]]}]}',
            "'num_moe_layers' is 58, .* holds 1",
        ),
        ('{"num_physical_experts": 9, "snapshots": [{"window_expert_load": [[1, 2]]}]}', "'num_physical_experts' is 9"),
        ('{"num_redundant_experts": "2", "snapshots": [{"window_expert_load": [[1, 2]]}]}', "num_redundant_experts"),
        ('{"loads": []}', "holds no load$"),
        ('{"loads": [{"layer": 0, "counts": [4, 0], "tokens": 2, "experts_per_token": 2}]}', r"loads\[0\]: 4 of its 2"),
        ('{"world_size": "8", "snapshots": [{"window_expert_load": [[1, 2]]}]}', "world_size"),
        ('{"loads": [{"layer": 0, "counts": [1, 2]}]}', "key 'tokens' is missing"),
        ('{"loads": [{"layer": 0, "counts": [1, 2], "tokens": 2, "experts_per_token": 1}]}', "add up to 3"),
        ("EPLB step: balancedness=high\n", "line 1"),
        ("EPLB step: avg_tokens=0.00, max_tokens=0, balancedness=0.0000\n", "none of its 1 logged steps"),
        ("EPLB step: avg_tokens=9.00, max_tokens=4, balancedness=2.2500\n", "line 1: balancedness 2.25"),
    ],
)
def test_what_is_not_understood_is_refused(file, content, named):
    with pytest.raises(InputError, match=named):
        read_expert_load(file(content, "dump.txt"))


def test_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\x80\x04\x95\xff")
    with pytest.raises(InputError, match=r"x\.csv is not UTF-8 text"):
        read_expert_load(tmp_path / "x.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_expert_load(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read"):
        read_expert_load(tmp_path)


def vllm_dump() -> dict:
    return {
        "world_size": 2,
        "num_moe_layers": 2,
        "num_physical_experts": 4,
        "num_logical_experts": 3,
        "num_redundant_experts": 1,
        "window_size": 100,
        "snapshots": [
            {
                "step": step,
                "window_expert_load": [[5, 5, 1, 1], [3, 3, 3, 3.0]],
                "latest_expert_load": [[1, 0, 0, 0], [0, 0, 1, 0]],
                "physical_to_logical_map": [[0, 1, 2, 0], [0, 1, 2, 0]],
            }
            for step in (3000, 6000)
        ],
    }


def test_a_vllm_dump_gives_the_slots_of_its_ranks(file):
    load = read_expert_load(file(json.dumps(vllm_dump()), "model_expert_load.json"))
    assert (load.ranks, load.layers, load.experts, len(load.steps)) == (2, (0, 1), 4, 2)
    assert load.counts == ((10, 10, 2, 2), (6, 6, 6, 6))
    assert "4 physical slots, of which 1 are replicas" in load.notes[0]
    close = vllm_dump()
    close["snapshots"][1]["step"] = 3050
    load = read_expert_load(file(json.dumps(close), "model_expert_load.json"))
    assert any("closer than their window of 100 passes" in note for note in load.notes)


def test_a_vllm_dump_of_one_snapshot_a_line_is_the_same(file):
    dump = vllm_dump()
    lines = [{key: value for key, value in dump.items() if key != "snapshots"} | each for each in dump["snapshots"]]
    text = "\n".join(map(json.dumps, lines)) + "\n"
    whole = read_expert_load(file(json.dumps(dump), "dump"))
    assert read_expert_load(file(text, "dump")) == whole
    with pytest.raises(InputError, match="line 2 is not readable JSON"):
        read_expert_load(file(text[:-20], "dump"))
    lines[1]["world_size"] = 4
    with pytest.raises(InputError, match="line 2: key 'world_size' is another"):
        read_expert_load(file("\n".join(map(json.dumps, lines)), "dump"))


VLLM_LOG = """\
INFO 09-17 17:43:06 [eplb_state.py:390] EPLB step: avg_tokens=0.00, max_tokens=0, balancedness=0.0000
INFO 09-17 17:43:07 [eplb_state.py:390] EPLB step: avg_tokens=12.50, max_tokens=20, balancedness=0.6250
something else
INFO [eplb_state.py:390] EPLB step: avg_tokens=30.00, max_tokens=40, balancedness=0.7500
"""
SGLANG_LOG = """\
[2026-01-02 10:00:00 TP0] [Expert Balancedness] forward_pass_id=1 current_pass_balancedness=0.581 \
last_10_average_balancedness=0.581 last_100_average_balancedness=0.581 gpu_physical_count_sum=24576
[2026-01-02 10:00:01 TP0] [Expert Balancedness] forward_pass_id=2 current_pass_balancedness=1.000 \
last_10_average_balancedness=0.790 last_100_average_balancedness=0.790 gpu_physical_count_sum=0
"""


def test_log_lines_give_what_was_logged_and_no_more(file):
    logged = read_expert_load(file(VLLM_LOG, "server.log"))
    assert isinstance(logged, LoggedBalancedness)
    assert (logged.values, logged.idle) == ((0.625, 0.75), 1)
    assert "layers in place of ranks" in logged.meaning
    # A step without tokens is logged as perfectly balanced by SGLang.
    logged = read_expert_load(file(SGLANG_LOG, "server.log"))
    assert (logged.values, logged.idle) == ((0.581,), 1)
    older = SGLANG_LOG.replace("gpu_physical_count_sum=24576", "").splitlines()[0]
    assert read_expert_load(file(older, "server.log")).values == (0.581,)
    with pytest.raises(InputError, match="line 2: a line with"):
        read_expert_load(file(SGLANG_LOG.splitlines()[0] + "\n" + older, "server.log"))
    with pytest.raises(InputError, match="both SGLang and vLLM"):
        read_expert_load(file(VLLM_LOG + SGLANG_LOG, "server.log"))


def vllm_line(ratio: float, model: str = "m", pid: int = 7) -> str:
    """As vLLM of 2026 logs it."""
    return (
        f"(EngineCore_DP0 pid={pid}) INFO 08-20 17:43:06 [eplb_state.py:604] EPLB step: 10 for model {model}: "
        f"avg_tokens={100 * ratio:.2f}, max_tokens=100, balancedness={ratio:.4f}, "
        "steps until the next rearrangement: 2990\n"
    )


def test_lines_of_todays_vllm_are_read_for_one_model(file):
    logged = read_expert_load(file(vllm_line(0.5) + vllm_line(0.75), "server.log"))
    assert (logged.values, logged.notes) == ((0.5, 0.75), ())
    with pytest.raises(InputError, match=r"several models \(m, m-MTP\)"):
        read_expert_load(file(vllm_line(0.5) + vllm_line(0.75, "m-MTP"), "server.log"))


def test_a_log_is_read_whatever_carries_it(file, tmp_path):
    line = vllm_line(0.5)
    coloured = line.replace("avg_tokens=50.00", "avg_tokens=\x1b[1m50.00\x1b[0m")
    for text in (coloured, json.dumps({"log": line, "stream": "stderr"}), f"2026-08-20T17:43:06Z stdout F {line}"):
        assert read_expert_load(file(text, "server.log")).values == (0.5,)
    (tmp_path / "bytes.log").write_bytes(b"prompt: \xe4\xbd\n" + line.encode())
    assert read_expert_load(tmp_path / "bytes.log").values == (0.5,)
    assert read_expert_load(file(line.rstrip() + vllm_line(0.75), "server.log")).values == (0.5, 0.75)


@pytest.mark.parametrize("cut", ["balancedness=0.7", "avg_tok"])
def test_a_line_that_was_cut_is_refused(file, cut):
    text = vllm_line(0.5) + vllm_line(0.75)
    with pytest.raises(InputError, match="line 2: a line with 'EPLB step:' whose values are not understood"):
        read_expert_load(file(text[: text.rindex(cut) + len(cut)], "server.log"))


def test_several_processes_in_one_log_are_told(file):
    logged = read_expert_load(file(vllm_line(0.5) + vllm_line(0.75, pid=8), "server.log"))
    assert "several processes" in logged.notes[0]
    passes = SGLANG_LOG.replace("forward_pass_id=2", "forward_pass_id=1")
    assert "several processes" in read_expert_load(file(passes, "server.log")).notes[0]
    assert read_expert_load(file(SGLANG_LOG, "server.log")).notes == ()


def test_choices_that_do_not_apply_are_refused(file):
    for text in (json.dumps(vllm_dump()), VLLM_LOG):
        for options in ({"where": {"a": "b"}}, {"experts": 4}):
            with pytest.raises(InputError, match="is no CSV"):
                read_expert_load(file(text, "dump"), **options)


def test_published_loads_are_whole_and_name_their_source():
    for model, traffic, source in published_loads():
        load = published_load(model, traffic)
        assert all(sum(row) == load.tokens * load.experts_per_token for row in load.counts)
        assert max(map(max, load.counts)) <= load.tokens
        assert "github.com/" in source and ("Apache-2.0" in source or "MIT" in source)
    with pytest.raises(InputError, match="OLMoE-1B-7B-0924 github"):
        published_load("OLMoE-1B-7B-0924", "poems")


def test_published_loads_show_the_skew_their_sources_show():
    skew = {row[:2]: max_over_mean(published_load(*row[:2]).counts[1]) for row in published_loads()}
    assert skew["OLMoE-1B-7B-0924", "github"] == pytest.approx(6.2, abs=0.06)
    assert all(1.05 < value < 1.4 for (model, _), value in skew.items() if model.startswith("Mixtral"))


def test_published_loads_are_the_counts_of_the_ground_truth(shared):
    folder = shared / "facts" / "moe-data"
    rows = {"model": "mixtral-8x7b", "domain": "book", "counting": "topk"}
    assert (
        published_load("Mixtral-8x7B-v0.1", "book").counts
        == read_expert_load(folder / "olmoe_mixtral_expert_counts.csv", rows).counts
    )
    ours = published_load("DeepSeek-V2-Lite", "law")
    theirs = read_expert_load(folder / "esft_deepseek_v2_lite_expert_counts.csv", {"task": "law"})
    assert ours.counts == tuple(theirs.counts[theirs.layers.index(layer)] for layer in ours.layers)
