"""Labs from solutions: what is blanked, what is refused, and that the same source gives the same bytes."""

import copy

import pytest
from nbformat import v4

from helpers.errors import InputError
from helpers.lab import generate, notebook_file
from helpers.lab.exercises import find

ANSWER = '''def weight_bytes(parameters, bits_per_parameter):
    """Bytes."""
    ### BEGIN SOLUTION
    half = parameters * bits_per_parameter
    return half / 8
    ### END SOLUTION


check.exercise("1.1", weight_bytes)'''


def solution(answer=ANSWER, answer_id="exercise-1-1-answer"):
    cells = [
        v4.new_markdown_cell("# Lab", id="lab-title"),
        v4.new_markdown_cell("solved", id="solved-note", metadata={"tags": ["solution-only"]}),
        v4.new_code_cell("print(1)", id="plain-code", execution_count=1, outputs=[v4.new_output("stream", text="1\n")]),
        v4.new_code_cell(answer, id=answer_id, execution_count=2),
    ]
    cells[2].metadata = {"scrolled": True, "tags": ["b", "a"], "execution": {"iopub.status.busy": "2026-01-01"}}
    return v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python", "version": "3.11.2"}})


def test_a_solution_becomes_a_blank_at_the_same_indentation():
    lab = generate.lab_of(solution(), "01_x.ipynb")
    title = find("1.1").title
    assert lab.cells[-1].source == (
        'def weight_bytes(parameters, bits_per_parameter):\n    """Bytes."""\n'
        f"    # Exercise 1.1: {title} — replace the next line with your code.\n"
        f'    raise NotImplementedError("Exercise 1.1: {title}")\n\n\n'
        'check.exercise("1.1", weight_bytes)'
    )


def test_outputs_counts_metadata_and_solution_only_cells_go_and_ids_stay():
    lab = generate.lab_of(solution(), "01_x.ipynb")
    assert [cell.id for cell in lab.cells] == ["lab-title", "plain-code", "exercise-1-1-answer"]
    assert lab.cells[1].outputs == []
    assert lab.cells[1].execution_count is None
    assert lab.cells[1].metadata == {"tags": ["a", "b"]}
    assert lab.metadata == notebook_file.NOTEBOOK_METADATA


def test_the_first_cell_sends_the_learner_to_a_copy():
    first = generate.lab_of(solution(), "01_x.ipynb").cells[0].source
    assert "my_01_x.ipynb" in first
    assert "`make labs` writes it anew" in first


def test_the_solution_itself_is_left_alone():
    before = solution()
    after = copy.deepcopy(before)
    generate.lab_of(after, "01_x.ipynb")
    assert after == before


def test_the_same_solution_gives_the_same_bytes():
    first, second = (notebook_file.to_text(generate.lab_of(solution(), "01_x.ipynb")) for _ in range(2))
    assert first == second
    assert first.endswith("}\n")


NO_END = ANSWER.replace("    ### END SOLUTION\n", "")
OUTSIDE = "### BEGIN SOLUTION\nanswer = 3\n### END SOLUTION"


@pytest.mark.parametrize(
    ("answer", "cell_id", "said"),
    [
        (NO_END, "exercise-1-1-answer", "BEGIN SOLUTION without"),
        (ANSWER.replace("    ### BEGIN SOLUTION\n", ""), "exercise-1-1-answer", "unbalanced"),
        (ANSWER.replace("### END", "### BEGIN"), "exercise-1-1-answer", "unbalanced"),
        (ANSWER.replace("### BEGIN SOLUTION", "# BEGIN SOLUTION"), "exercise-1-1-answer", "misspelt"),
        (OUTSIDE, "exercise-1-1-answer", "inside a function body"),
        ("if True:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION", "exercise-1-1-answer", "function body"),
        ("class A:\n    ### BEGIN SOLUTION\n    x = 1\n    ### END SOLUTION", "exercise-1-1-answer", "function body"),
        (ANSWER + "\n%matplotlib inline", "exercise-1-1-answer", "not Python"),
        (ANSWER, "some-other-id", "needs an id like"),
        (ANSWER, "exercise-77-1-answer", "there is no exercise '77.1'"),
    ],
)
def test_what_cannot_be_blanked_is_refused_with_notebook_and_cell(answer, cell_id, said):
    with pytest.raises(InputError, match=said) as caught:
        generate.lab_of(solution(answer, cell_id), "01_x.ipynb")
    if "no exercise" not in said:
        assert f"01_x.ipynb, cell {cell_id}" in str(caught.value)


def test_a_notebook_must_begin_with_text():
    notebook = solution()
    notebook.cells = notebook.cells[2:]
    with pytest.raises(InputError, match="the first cell must be Markdown"):
        generate.lab_of(notebook, "01_x.ipynb")


@pytest.fixture
def course(tmp_path):
    (tmp_path / "labs").mkdir()
    notebook_file.write(solution(), tmp_path / "solutions" / "01_x.ipynb")
    return tmp_path


def test_the_command_writes_once_checks_and_spares_the_learners_own_files(course, capsys):
    mine = course / "labs" / "my_01_x.ipynb"
    mine.write_text("mine")
    old = course / "labs" / "02_gone.ipynb"
    old.write_text("old")
    arguments = ["--root", str(course)]
    assert generate.main([*arguments, "--check"]) == 1
    assert not (course / "labs" / "01_x.ipynb").exists()
    assert generate.main(arguments) == 0
    assert "wrote labs/01_x.ipynb" in capsys.readouterr().out
    assert not old.exists()
    assert generate.main([*arguments, "--check"]) == 0
    assert generate.main(arguments) == 0
    assert capsys.readouterr().out == ""
    assert mine.read_text() == "mine"


def test_an_edited_lab_is_out_of_date(course, capsys):
    generate.main(["--root", str(course)])
    lab = course / "labs" / "01_x.ipynb"
    lab.write_text(lab.read_text().replace("# Lab", "# My lab"))
    capsys.readouterr()
    assert generate.main(["--root", str(course), "--check"]) == 1
    assert "out of date: labs/01_x.ipynb" in capsys.readouterr().out


def test_a_broken_solution_is_one_line_and_exit_code_2(course, capsys):
    notebook_file.write(solution(NO_END), course / "solutions" / "02_y.ipynb")
    assert generate.main(["--root", str(course)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 02_y.ipynb, cell exercise-1-1-answer")
    assert error.count("\n") == 1
    assert not (course / "labs" / "01_x.ipynb").exists()
