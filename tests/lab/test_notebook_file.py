"""Reading and writing notebooks: normal form, whole-file writes, and files that are no notebooks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat import v4

from helpers.errors import InputError
from helpers.lab import notebook_file


def test_neighbouring_pieces_of_a_stream_become_one_and_metadata_goes():
    outputs = [
        v4.new_output("stream", text="a\n"),
        v4.new_output("stream", text="b\n"),
        v4.new_output("display_data", {"text/plain": "x"}, metadata={"at": "noon"}),
        v4.new_output("stream", text="c\n"),
    ]
    notebook = v4.new_notebook(cells=[v4.new_code_cell("f()", id="f-call", outputs=outputs)])
    cell = notebook_file.normalised(notebook).cells[0]
    assert [o.get("text") for o in cell.outputs] == ["a\nb\n", None, "c\n"]
    assert cell.outputs[1].metadata == {}


SOURCES = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=30
)


@given(st.lists(SOURCES, max_size=4))
def test_writing_and_reading_back_changes_nothing(tmp_path_factory, sources):
    cells = [v4.new_markdown_cell(source, id=f"cell-{number}") for number, source in enumerate(sources)]
    path = tmp_path_factory.mktemp("round") / "x.ipynb"
    once = notebook_file.normalised(v4.new_notebook(cells=cells))
    notebook_file.write(once, path)
    first = path.read_bytes()
    again = notebook_file.normalised(notebook_file.read(path))
    notebook_file.write(again, path)
    assert path.read_bytes() == first
    assert again == once


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "x.ipynb"
    path.write_text("old")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        notebook_file.write_text("new", path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.ipynb"]


def test_what_is_no_notebook_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"there is no notebook .*gone\.ipynb"):
        notebook_file.read(tmp_path / "gone.ipynb")
    (tmp_path / "bad.ipynb").write_text("{}")
    with pytest.raises(InputError, match=r"bad\.ipynb is not a valid notebook"):
        notebook_file.read(tmp_path / "bad.ipynb")
