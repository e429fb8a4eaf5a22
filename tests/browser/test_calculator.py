"""The calculator of notebook 03 in JupyterLab in a real browser: run, move, read, paste, be refused."""

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "03_kv_cache_size.ipynb"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cell(tmp_path_factory, lab_kit):
    """The calculator's cell of the whole notebook, after Run All Cells; what went wrong on the page is a failure."""
    from playwright.sync_api import sync_playwright

    from helpers.lab import notebook_file

    root, scratch = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("server")
    shutil.copy(NOTEBOOK, root)
    cells = notebook_file.read(NOTEBOOK).cells
    number = next(i for i, cell in enumerate(cells) if cell.id == "calculator-widget")
    faults: list[str] = []
    with (
        sync_playwright() as playwright,
        lab_kit.lab_server(root, scratch) as (base, token),
    ):
        browser = playwright.chromium.launch(executable_path=lab_kit.CHROMIUM, args=lab_kit.CHROME_ARGUMENTS)
        with lab_kit.watched_page(browser, base, faults) as page:
            panel = lab_kit.open_notebook(page, base, token, NOTEBOOK.name)
            found = panel.locator(".jp-Cell").nth(number)
            assert "run this cell first" in found.text_content(), "what a stored notebook shows"
            lab_kit.run_all(page)
            lab_kit.wait_done(panel, 500)
            found.scroll_into_view_if_needed()
            yield found
        browser.close()
    assert faults == []


def test_a_slider_that_moves_changes_the_number_and_redraws_the_figure(cell):
    from playwright.sync_api import expect

    out, page = cell.locator(".jp-OutputArea-output .widget-output"), cell.page
    expect(out).to_contain_text("KV cache, 8,192 tokens      1.07 GB (1.00 GiB)")
    expect(out).to_contain_text("at most 56")
    image = out.locator("img")
    expect(image).to_have_attribute(
        "alt",
        "Bytes of one request against its length for llama-3.1-8b, "
        "llama-3.1-70b, gemma-3-27b, qwen3-next-80b-a3b, deepseek-v3.",
    )
    before = image.get_attribute("src")
    context = cell.get_by_role("slider").first
    context.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    expect(out).to_contain_text("KV cache, 32,768 tokens     4.29 GB (4.00 GiB)")
    expect(out).to_contain_text("at most 14")
    cell.get_by_label("KV dtype").select_option(label="fp8")
    expect(out).to_contain_text("at most 28")
    cell.get_by_label("Model").select_option(label="gemma-3-27b")
    expect(out).to_contain_text("gemma-3-27b, KV cache in fp8")
    expect(image).to_have_count(1)
    assert image.get_attribute("src") != before


def test_a_broken_config_that_is_pasted_is_refused_in_one_sentence_and_a_sound_one_is_read(cell):
    from playwright.sync_api import expect

    out, box = cell.locator(".jp-OutputArea-output .widget-output"), cell.get_by_role("textbox").last
    box.fill('{"model_type": "llama", "hidden_size": 4096}')
    box.blur()
    expect(out).to_have_text("refused: the pasted config: key 'num_attention_heads' is missing")
    expect(out.locator("img")).to_have_count(0)
    box.fill(
        '{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
        '"num_key_value_heads": 4, "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-05, '
        '"max_position_embeddings": 8192, "tie_word_embeddings": false, "hidden_act": "silu"}'
    )
    box.blur()
    expect(out).to_contain_text("the pasted config, KV cache in")
    expect(out.locator("img")).to_have_count(1)
