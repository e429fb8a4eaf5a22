"""The skew sliders of notebook 04 in JupyterLab in a real browser: run the cell, move, read.

The cell alone, with the start of the notebook: the whole notebook times things for minutes.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "04_moe_gating_skew.ipynb"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cell(tmp_path_factory, lab_kit):
    """The sliders' cell after Run All Cells; what went wrong on the page is a failure."""
    from nbformat import v4
    from playwright.sync_api import sync_playwright

    from helpers.lab import notebook_file

    root, scratch = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("server")
    by_id = {cell.id: cell for cell in notebook_file.read(NOTEBOOK).cells}
    # Stands for the t(M) that the notebook measured.
    clock = v4.new_code_cell(
        "from helpers.lab import skew_widget\n\nseconds_of = skew_widget.v3_expert_floor()", id="measured-clock"
    )
    cells = [by_id["moe-gating-skew-title"], by_id["moe-gating-skew-start"], clock, by_id["sliders-widget"]]
    notebook_file.write(notebook_file.normalised(v4.new_notebook(cells=cells)), root / NOTEBOOK.name)
    faults: list[str] = []
    with (
        sync_playwright() as playwright,
        lab_kit.lab_server(root, scratch) as (base, token),
    ):
        browser = playwright.chromium.launch(executable_path=lab_kit.CHROMIUM, args=lab_kit.CHROME_ARGUMENTS)
        with lab_kit.watched_page(browser, base, faults) as page:
            panel = lab_kit.open_notebook(page, base, token, NOTEBOOK.name)
            found = panel.locator(".jp-Cell").nth(len(cells) - 1)
            assert "run this cell first" in found.text_content(), "what a stored notebook shows"
            lab_kit.run_all(page)
            lab_kit.wait_done(panel, 120)
            found.scroll_into_view_if_needed()
            yield found
        browser.close()
    assert faults == []


def test_more_skew_is_faster_on_one_device_and_slower_on_ranks_where_compute_binds(cell):
    from playwright.sync_api import expect

    out, page = cell.locator(".jp-OutputArea-output .widget-output"), cell.page
    expect(out).to_contain_text("top-8 of 64, 64 tokens, alpha 0, contiguous")
    image = out.locator("img")
    expect(image).to_have_attribute("alt", "Load of 64 experts, and the predicted time of each of 4 ranks.")
    before = image.get_attribute("src")
    skew, step = (cell.get_by_role("slider").nth(number) for number in (0, 1))
    skew.focus()
    page.keyboard.press("End")
    expect(out).to_contain_text("all to the same")
    expect(out).to_contain_text("0.50 times an even gate's 0.210 ms")
    step.focus()
    page.keyboard.press("End")
    expect(out).to_contain_text("top-8 of 64, 4096 tokens, all to the same")
    expect(out).to_contain_text("3.99 times an even gate's")
    cell.get_by_label("Placement").select_option(label="packed on these counts")
    expect(out).to_contain_text("1.00 times an even gate's 0.36")
    cell.get_by_label("Gate (k of E)").select_option(label="DeepSeek-V3, top-8 of 256")
    expect(out).to_contain_text("top-8 of 256, 4096 tokens")
    expect(image).to_have_count(1)
    assert image.get_attribute("src") != before
