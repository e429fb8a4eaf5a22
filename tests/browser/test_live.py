"""The live figure in JupyterLab in a real browser: strokes and words are added while the stream is under way."""

import time

import pytest
from nbformat import v4

from helpers.lab import notebook_file

pytestmark = pytest.mark.slow

SERVER = """
import json, socket, threading, time

GAP_S, WORDS = 0.25, [" word%d" % number for number in range(12)]


def event(text, finish=None, usage=None):
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\\n\\n"


def serve(listener):
    connection, _ = listener.accept()
    connection.recv(65536)
    head = "HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n"
    connection.sendall(head.encode())
    usage = {"prompt_tokens": 7, "completion_tokens": len(WORDS), "total_tokens": 7 + len(WORDS)}
    for number, word in enumerate(WORDS, 1):
        time.sleep(GAP_S)
        last = number == len(WORDS)
        piece = event(word, "stop" if last else None, usage if last else None)
        connection.sendall(b"%x\\r\\n" % len(piece) + piece + b"\\r\\n")
    connection.sendall(b"0\\r\\n\\r\\n")
    connection.close()


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener,), daemon=True).start()
"""
WATCH = """
from helpers.lab import live

url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
seen = live.watch(url, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20})
"""


def test_tokens_appear_in_the_browser_one_after_the_other_and_the_numbers_at_the_end(tmp_path, lab_kit):
    from playwright.sync_api import expect, sync_playwright

    root, scratch = tmp_path / "notebooks", tmp_path / "server"
    root.mkdir(), scratch.mkdir()
    cells = [v4.new_code_cell(SERVER.strip(), id="server"), v4.new_code_cell(WATCH.strip(), id="watch")]
    notebook_file.write(notebook_file.normalised(v4.new_notebook(cells=cells)), root / "live.ipynb")
    faults: list[str] = []
    with sync_playwright() as playwright, lab_kit.lab_server(root, scratch) as (base, token):
        browser = playwright.chromium.launch(executable_path=lab_kit.CHROMIUM, args=lab_kit.CHROME_ARGUMENTS)
        with lab_kit.watched_page(browser, base, faults) as page:
            panel = lab_kit.open_notebook(page, base, token, "live.ipynb")
            lab_kit.run_all(page)
            out = panel.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output")
            states = _states_until(out, 12, 60)
            lab_kit.wait_done(panel, 60)
            expect(out).to_contain_text("at concurrency 1 (this client's), 7 prompt tokens, 12 output tokens")
            expect(out).to_contain_text("word0 word1 word2 word3 word4 word5 word6 word7 word8 word9 word10 word11")
            expect(out.locator("svg")).to_have_count(1)
            label = out.locator("svg").get_attribute("aria-label")
        browser.close()
    assert faults == []
    assert label.startswith("Time axis: TTFT ")
    assert "12 events with output" in label
    assert states == sorted(states)
    assert len([count for count in states if 0 < count < 12]) >= 4, "it was drawn at the end and not while it came"


def _states_until(out, wanted, seconds):
    """The different numbers of strokes that were on the screen, until there are `wanted` of them."""
    states, end = [], time.monotonic() + seconds
    while time.monotonic() < end and states[-1:] != [wanted]:
        count = out.locator("svg line.event").count()
        if states[-1:] != [count]:
            states.append(count)
        time.sleep(0.05)
    return states
