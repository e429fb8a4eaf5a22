"""Binary expert-count dumps: NumPy and SGLang's, and what is never unpickled."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch

from helpers.engine.expert_dumps import read_expert_dump
from helpers.errors import InputError


@pytest.fixture
def stat_dump(tmp_path):
    """As SGLang's stat mode saves: a ring buffer with unused steps, the first layer dense."""
    counts = torch.zeros(5, 3, 4, dtype=torch.int32)
    counts[0, 1:] = torch.tensor([[1, 2, 3, 4], [10, 0, 0, 0]])
    counts[1, 1:] = torch.tensor([[4, 3, 2, 1], [0, 10, 0, 0]])
    path = tmp_path / "expert_distribution_recorder_1767340800.0.pt"
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": 0.51}, path)
    return path


def per_pass_dump(path, rank: int, passes: dict[int, list[list[int]]]):
    """As SGLang's per_pass mode saves, one file for each rank."""
    records = [
        {
            "forward_pass_id": number,
            "rank": rank,
            "gatherer_key": "primary",
            "global_physical_count": torch.tensor(counts, dtype=torch.int32),
        }
        for number, counts in passes.items()
    ]
    torch.save({"records": records, "last_physical_to_logical_map": torch.arange(4).repeat(1, 1)}, path)
    return path


def test_a_stat_dump_is_read_without_its_unused_steps_and_dense_layers(stat_dump):
    load = read_expert_dump(stat_dump)
    assert load.layers == (1, 2)
    assert len(load.steps) == 2
    assert load.counts == ((5, 5, 5, 5), (10, 10, 0, 0))
    assert any("dense" in note for note in load.notes)


def test_per_pass_dumps_are_summed_over_the_files_of_the_ranks(tmp_path):
    first = per_pass_dump(tmp_path / "r_0.pt", 0, {7: [[1, 2, 0, 0]], 9: [[1, 0, 0, 0]]})
    second = per_pass_dump(tmp_path / "r_1.pt", 1, {9: [[0, 0, 0, 5]], 7: [[0, 0, 3, 4]]})
    load = read_expert_dump([first, second])
    assert [list(step[0]) for step in load.steps] == [[1, 2, 3, 4], [1, 0, 0, 5]]
    assert load.counts == ((2, 2, 3, 9),)
    alone = read_expert_dump(first)
    assert alone.counts == ((2, 2, 0, 0),)
    assert any("only rank 0 is in" in note for note in alone.notes)
    with pytest.raises(InputError, match="rank 0 counts pass 7 a second time"):
        read_expert_dump([first, first])


class Harmful:
    """An object whose unpickling writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_no_code_of_a_dump_is_run(tmp_path):
    written = tmp_path / "written"
    harmful = Harmful(written)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(harmful))
    torch.save({"logical_count": harmful}, tmp_path / "b.pt")
    np.save(tmp_path / "c.npy", np.array([harmful], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "d.npz", counts=np.array([[harmful]], dtype=object))
    torch.save({"logical_count": harmful}, tmp_path / "e.pt", _use_new_zipfile_serialization=False)
    for name in ("a.pkl", "b.pt", "c.npy", "d.npz", "e.pt"):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            read_expert_dump(tmp_path / name)
    assert not written.exists()


def test_a_pass_that_a_rank_has_not_counted_is_left_out(tmp_path):
    first = per_pass_dump(tmp_path / "r_0.pt", 0, {7: [[9, 9, 0, 0]], 8: [[1, 2, 0, 0]]})
    second = per_pass_dump(tmp_path / "r_1.pt", 1, {8: [[0, 0, 3, 4]], 9: [[0, 0, 9, 9]]})
    load = read_expert_dump([first, second])
    assert load.counts == ((1, 2, 3, 4),)
    assert any("2 of 3 passes are left out" in note for note in load.notes)
    apart = per_pass_dump(tmp_path / "r_2.pt", 2, {30: [[1, 1, 1, 1]]})
    with pytest.raises(InputError, match=r"ranks \(0, 1, 2\) have no forward pass in common"):
        read_expert_dump([first, second, apart])


def test_ranks_that_counted_the_same_tokens_are_told_by_the_common_factor(tmp_path):
    # Without data-parallel attention every rank sees every token, and the files of the ranks are alike.
    counts = {number: [[5, 3, 8, 1], [2, 7, 4, 4]] for number in range(6)}
    files = [per_pass_dump(tmp_path / f"r_{rank}.pt", rank, counts) for rank in range(4)]
    assert any("every count is a multiple of 4" in note for note in read_expert_dump(files).notes)
    assert not any("multiple" in note for note in read_expert_dump(files[0]).notes)


def test_a_programs_archive_is_refused_without_a_warning(tmp_path, recwarn):
    written = tmp_path / "written"
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as file:
        for member in ("a/data.pkl", "a/constants.pkl"):
            file.writestr(member, pickle.dumps(Harmful(written)))
        file.writestr("a/version", "3")
    with zipfile.ZipFile(tmp_path / "member.npz", "w") as file:
        file.writestr("counts.npy", pickle.dumps(Harmful(written)))
    for name in ("script.pt", "member.npz"):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            read_expert_dump(tmp_path / name)
    assert not written.exists() and not recwarn.list


def test_a_column_major_array_counts_the_same(tmp_path):
    counts = np.arange(1, 13).reshape(3, 4)
    np.save(tmp_path / "columns.npy", np.asfortranarray(counts))
    np.save(tmp_path / "swapped.npy", counts.astype(">i4"))
    for name in ("columns.npy", "swapped.npy"):
        assert read_expert_dump(tmp_path / name).counts == tuple(map(tuple, counts.tolist()))


def test_numpy_counts_are_layers_by_experts(tmp_path):
    np.save(tmp_path / "counts.npy", np.array([[1, 2], [3, 4]], dtype=np.uint16))
    assert read_expert_dump(tmp_path / "counts.npy").counts == ((1, 2), (3, 4))
    np.savez_compressed(tmp_path / "counts.npz", counts=np.array([[[1, 2]], [[0, 0]], [[3, 4]]]), other=np.zeros(3))
    load = read_expert_dump(tmp_path / "counts.npz")
    assert (load.counts, len(load.steps)) == (((4, 6),), 2)


def test_top_k_ids_tell_tokens_and_k(tmp_path):
    ids = np.array([[[0, 1], [1, 2], [1, 0]]], dtype=np.uint8)
    np.savez(tmp_path / "ids.npz", topk_ids=ids)
    load = read_expert_dump(tmp_path / "ids.npz")
    assert (load.counts, load.tokens, load.experts_per_token) == (((2, 3, 1),), 3, 2)
    assert "largest id" in load.notes[0]
    assert read_expert_dump(tmp_path / "ids.npz", experts=5).counts == ((2, 3, 1, 0, 0),)
    with pytest.raises(InputError, match="expert id 2, but there are 2 experts"):
        read_expert_dump(tmp_path / "ids.npz", experts=2)


@pytest.mark.parametrize(
    ("arrays", "named"),
    [
        ({"counts": np.ones((2, 3))}, "float64"),
        ({"counts": np.array([[1, -2]])}, "count -2"),
        ({"counts": np.array([[1, 2]], dtype="m8[s]")}, "timedelta64"),
        ({"counts": np.array([[True, False]])}, "bool"),
        ({"counts": np.zeros((2, 3), int)}, "every count is zero"),
        ({"counts": np.ones(3, int)}, r"shape \[3\]"),
        ({"counts": np.ones((0, 3), int)}, "counts nothing"),
        ({"a": np.ones((2, 3), int), "b": np.ones((2, 3), int)}, "which of its arrays .*: a, b"),
        ({"topk_ids": np.array([[[1, 1]]])}, "layer 0, token 0 chose an expert twice"),
        ({"topk_ids": np.array([[[1, -1]]])}, "expert id -1"),
        ({"topk_ids": np.array([[1, 2]])}, r"top-k ids are \[layers, tokens, k\]"),
    ],
)
def test_malformed_arrays_are_refused_by_name(tmp_path, arrays, named):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=named):
        read_expert_dump(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("dump", "named"),
    [
        ({}, "key 'records' is missing"),
        ([1], "holds a list"),
        ({"logical_count": torch.ones(2, 3, 4)}, "whole numbers"),
        ({"logical_count": torch.ones(2, 3, 4, dtype=torch.bool)}, "whole numbers"),
        ({"logical_count": torch.ones(2, 3, 4, dtype=torch.int32).to_sparse()}, "whole numbers"),
        ({"logical_count": torch.ones(2, 3, 4, dtype=torch.int32, device="meta")}, "holds no counts"),
        ({"logical_count": torch.ones(1, 1, 1, dtype=torch.int32).expand(9, 9, 10**8)}, "holds no counts"),
        ({"logical_count": torch.ones(3, 4, dtype=torch.int32)}, r"\[steps, layers, experts\]"),
        ({"logical_count": [[1]]}, "must be a tensor"),
        ({"records": []}, "'records' is empty"),
        ({"records": [{"rank": 0}]}, r"records\[0\]: key 'forward_pass_id' is missing"),
        ({"records": [{"forward_pass_id": 1, "rank": 0}]}, "'global_physical_count' is missing"),
        ({"records": [{"forward_pass_id": "1", "rank": 0, "global_physical_count": None}]}, "whole numbers"),
    ],
)
def test_malformed_torch_dumps_are_refused_by_key(tmp_path, dump, named):
    torch.save(dump, tmp_path / "x.pt")
    with pytest.raises(InputError, match=named):
        read_expert_dump(tmp_path / "x.pt")


def test_broken_and_foreign_files_are_refused(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, counts=np.ones((2, 200), int))
    (tmp_path / "cut.npz").write_bytes(buffer.getvalue()[:400])
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("readme.txt", "hello")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for name in ("cut.npz", "other.zip", "cut.npy"):
        with pytest.raises(InputError, match=name.replace(".", r"\.")):
            read_expert_dump(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_expert_dump(tmp_path / "missing.npz")
    with pytest.raises(InputError, match="no file"):
        read_expert_dump([])


def test_text_is_read_as_the_accounts_read_it(tmp_path):
    (tmp_path / "a.npz").write_text("layer,expert,count\n0,0,3\n0,1,4\n")
    assert read_expert_dump(tmp_path / "a.npz").counts == ((3, 4),)
    with pytest.raises(InputError, match=r"a\.npz is no SGLang per-pass dump"):
        read_expert_dump([tmp_path / "a.npz", tmp_path / "a.npz"])
    with pytest.raises(InputError, match="array does not apply"):
        read_expert_dump(tmp_path / "a.npz", array="counts")


def test_the_real_ids_give_the_real_counts(shared):
    from helpers.accounts import read_expert_load

    folder = shared / "facts" / "moe-data"
    ids = read_expert_dump(folder / "esft_deepseek_v2_lite_topk_ids.npz", array="summary")
    counts = read_expert_load(folder / "esft_deepseek_v2_lite_expert_counts.csv", {"task": "summary"})
    assert ids.counts == counts.counts
    assert ids.experts_per_token == 6
    assert any("array 'summary', of 3 dimensions, is taken for top-k ids" in note for note in ids.notes)
    with pytest.raises(InputError, match="which of its arrays"):
        read_expert_dump(folder / "esft_deepseek_v2_lite_topk_ids.npz")
