"""The claims ledger and the comparisons: filled from what cells printed, and "not shown" where they printed nothing."""

import copy
import json
import re

import pytest
from nbformat import v4

from helpers.errors import InputError
from helpers.lab import comparisons, ledger
from helpers.lab.cell_outputs import read_folder

IDS = [*(f"C{n}" for n in range(1, 25)), "Q1", "Q2", "Q3"]


@pytest.fixture(scope="module")
def stored():
    """The committed notebooks, by name."""
    return read_folder(ledger.NOTEBOOKS)


@pytest.fixture
def notebooks(stored):
    """A copy of them that a test may spoil."""
    return copy.deepcopy(stored)


def cell_of(notebooks, notebook, cell_id):
    return next(cell for cell in notebooks[notebook].cells if cell.id == cell_id)


def row(notebooks, claim_id):
    return ledger.one_row(ledger.rows(notebooks), claim_id)


def printed(text):
    return v4.new_output("stream", text=text)


def say(cell, text):
    """Let a cell have printed `text` and nothing else."""
    cell.outputs = [printed(text)]


def test_every_claim_and_question_has_one_row():
    assert [claim["id"] for claim in ledger.claims()] == IDS
    assert all(claim["says"] and claim["verdict"] and claim["readings"] for claim in ledger.claims())


def test_every_cell_exists_and_every_pattern_finds_its_numbers_in_the_stored_notebooks(stored):
    rows = ledger.rows(stored)
    assert [(r.id, x.words) for r in rows for x in r.readings if not x.shown] == []
    assert all(r.shown for r in rows)
    assert ledger.count_text(rows) == "27 of 27 claims and questions are shown"


def test_every_comparison_is_found_in_the_stored_notebooks(stored):
    found = comparisons.comparisons(stored)
    assert [pair.what for pair in found if pair.reason] == []
    assert {pair.kind for pair in found} == set(comparisons.KINDS)
    assert all(pair.ratio > 0 for pair in found)


CONDITIONS = {"4", "8", "16", "64", "4,096", "8,192"}


@pytest.mark.parametrize("text", [ledger.CLAIMS, comparisons.COMPARISONS], ids=lambda path: path.name)
def test_the_table_holds_no_result(text):
    """Numbers in its words are conditions (8,192 tokens); results come out of named groups of the patterns."""
    table = json.loads(text.read_text())
    entries = [r for claim in table.get("claims", []) for r in claim["readings"]] + table.get("comparisons", [])
    for entry in entries:
        words = entry.get("words", entry.get("what", ""))
        named = set(re.findall(r"\(\?P<(\w+)>", entry["pattern"]))
        assert named
        assert set(re.findall(r"\{(\w+)\}", words)) - named <= {"heading"}
        assert set(re.findall(r"(?<![\w.-])[\d.,]+(?![\w.-])", words)) - {","} <= CONDITIONS | {"32"}


def test_no_cell_that_printed_nothing_shows_a_number():
    """Every cell of the table once, run and silent: no reading is shown, and no verdict is left."""
    silent = {
        notebook: v4.new_notebook(
            cells=[v4.new_code_cell(id=cell, execution_count=1, outputs=[printed("")]) for cell in cells]
        )
        for notebook, cells in ledger.cited_cells().items()
    }
    rows = ledger.rows(silent)
    assert {found.verdict for found in rows} == {"not shown"}
    reasons = {reading.words for found in rows for reading in found.readings}
    assert all(reason.endswith("ran, but did not print what is looked for") for reason in reasons)
    page = ledger.html_table(ledger.rows({}))
    assert page.count("not shown: notebook 04_moe_gating_skew") == sum(
        any(reading.notebook.startswith("04") for reading in found.readings) for found in rows
    ), "a notebook that did not run is told once in a claim"


def test_a_renamed_a_failed_an_unrun_and_a_missing_cell_each_say_why(notebooks):
    cell = cell_of(notebooks, "04_moe_gating_skew", "c10-claim")
    cell.outputs.append(v4.new_output("error", ename="E"))
    assert (row(notebooks, "C10").verdict, row(notebooks, "C10").readings[0].words) == (
        "not shown",
        "cell c10-claim failed",
    )
    cell.outputs, cell.execution_count = [], None
    assert row(notebooks, "C10").readings[0].words == "cell c10-claim was not run"
    cell.id = "c10-renamed"
    assert row(notebooks, "C10").readings[0].words == "04_moe_gating_skew has no code cell c10-claim"
    del notebooks["04_moe_gating_skew"]
    found = row(notebooks, "C10")
    assert (found.shown, found.readings[0].words) == (False, "notebook 04_moe_gating_skew was not run")
    assert not row({}, "C3").shown


def change(notebooks, notebook, cell_id, old, new):
    cell = cell_of(notebooks, notebook, cell_id)
    text = "".join(output.get("text", "") for output in cell.outputs)
    assert re.search(old, text, re.MULTILINE)
    say(cell, re.sub(old, new, text, flags=re.MULTILINE))


def test_the_numbers_follow_what_ran(notebooks):
    change(notebooks, "01_two_accounts", "verdict-table", r"671\.03 B", "123.45 B")
    assert "123.45 B" in row(notebooks, "C5").readings[0].words


def test_a_measured_no_contradicts_and_noise_leaves_open(notebooks):
    where = ("02_prefill_vs_decode", "verdicts-clock", r"^(C11 prefill is compute bound +).*$")
    change(notebooks, *where, r"\1too noisy to say")
    assert row(notebooks, "C11").verdict == "too noisy to say here"
    change(notebooks, *where, r"\1no")
    assert row(notebooks, "C11").verdict == "CONTRADICTED here"
    assert row(notebooks, "C1").verdict == "CONTRADICTED here"
    change(notebooks, *where, r"\1perhaps")
    assert row(notebooks, "C11").verdict == "not shown"


def test_verdict_words_follow_the_numbers_that_decide_them(notebooks):
    for right, verdict in (("7", "holds"), ("0", "wrong"), ("3", "half true")):
        change(notebooks, "04_moe_gating_skew", "c10-claim", r"right in \d+ of", f"right in {right} of")
        assert row(notebooks, "C10").verdict == verdict
    change(notebooks, "04_moe_gating_skew", "own-counts-q3-claim", r"(step of 8 ranks +x) [\d.]+", r"\1 1.02")
    assert row(notebooks, "Q3").verdict == "not skewed enough to cost a fifth of a step"
    change(notebooks, "01_two_accounts", "verdict-table", r"^(C6 +)loose", r"\1right")
    assert not row(notebooks, "C6").shown, "a word that the table does not know is no verdict"
    change(notebooks, "01_two_accounts", "verdict-table", r"(C1 +predicted +prefill:) compute", r"\1 bandwidth")
    assert row(notebooks, "C1").verdict == "CONTRADICTED here"


def test_a_running_notebook_can_leave_its_own_readings_out(stored):
    rows = ledger.rows(stored, without=["05_ttft_and_tpot"])
    assert all(r.notebook != "05_ttft_and_tpot" for found in rows for r in found.readings)
    assert ledger.one_row(rows, "C1").shown


def test_the_tables_link_every_reading_to_its_cell(stored):
    rows = ledger.rows(stored)
    text = ledger.table(rows)
    assert len(text.splitlines()) == 2 + len(IDS)
    for found in rows:
        for r in found.readings:
            assert f"]({r.notebook}.ipynb#cell-id={r.cell})" in text
    assert all(line.replace("\\|", "").count("|") == 5 for line in text.splitlines())
    page = ledger.html_table(rows, lambda notebook, cell: f"#{notebook}--{cell}")
    assert 'href="#04_moe_gating_skew--c10-claim"' in page
    assert "&quot;latency 800 ms&quot;" in page


def test_strange_output_is_escaped(notebooks):
    change(notebooks, "03_kv_cache_size", "verdict-table", r"^Q2: \S+", "Q2: <b>*|x*")
    rows = ledger.rows(notebooks)
    assert "<b>" not in ledger.html_table(rows) + ledger.table(rows)


def test_stored_numbers_are_never_called_live(monkeypatch, tmp_path):
    monkeypatch.delenv(ledger.FOLDER_VARIABLE, raising=False)
    assert "outputs stored in notebooks/" in ledger.caption()
    monkeypatch.setenv(ledger.FOLDER_VARIABLE, str(tmp_path))
    assert "this report" in ledger.caption()
    assert ledger.ledger()[0].verdict == "not shown"


def test_an_unknown_claim_is_refused(stored):
    with pytest.raises(InputError, match="C99"):
        ledger.one_row(ledger.rows(stored), "C99")


def test_a_comparison_that_ran_otherwise_is_noted(notebooks):
    change(notebooks, "03_kv_cache_size", "allocated-equals-predicted", r"allocated [\d,]+", "allocated 5,898,240")
    change(notebooks, "02_prefill_vs_decode", "guess-against-floor-clock", r"(decode +measured) +[\d.]+", r"\1 1.00")
    say(cell_of(notebooks, "05_ttft_and_tpot", "total-time-clock"), "nothing")
    found = comparisons.comparisons(notebooks)
    assert [pair.ratio for pair in found if pair.cell == "allocated-equals-predicted"] == [0.5]
    pages = {kind: comparisons.html_table(found, kind, lambda *_: "#") for kind in comparisons.KINDS}
    assert "differs" in pages["exact"]
    assert "faster than the floor" in pages["floor"]
    assert "Faster than the floor: 1." in comparisons.summary(found, "floor")
    assert "not shown: cell total-time-clock ran, but did not print what is looked for" in pages["estimate"]
    assert "Not shown: 1 cell." in comparisons.summary(found, "estimate")


def test_noise_is_carried_over_and_headings_name_their_rows(stored):
    found = comparisons.comparisons(stored)
    printed = "".join(o.text for o in cell_of(stored, "02_prefill_vs_decode", "prefill-sweep-clock").outputs)
    noisy = [pair for pair in found if pair.cell == "prefill-sweep-clock" and pair.noisy]
    assert len(noisy) == len(re.findall(r"(?:compute|bandwidth) NOISY$", printed, re.MULTILINE))
    layers = [pair.what for pair in found if pair.cell == "layer-clock"]
    assert {text.split(", ")[1] for text in layers} == {"16 tokens", "256 tokens"}
