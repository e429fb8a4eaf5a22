"""One HTML file that asks the network for nothing: the frame and the style of the reports."""

import html

# Contrast of text is above 7:1 (black, #333, #0b3d91 on white and #f3f3f3); links are underlined, not only coloured.
STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #000; background: #fff; max-width: 72em; margin: 0 auto;
  padding: 1em; overflow-wrap: break-word }
h1, h2, h3, h4 { line-height: 1.25 }
h2 { border-bottom: 2px solid #333; padding-top: 1em }
a { color: #0b3d91; text-decoration: underline }
a:focus-visible, summary:focus-visible, [tabindex]:focus-visible { outline: 3px solid #0b3d91; outline-offset: 2px }
.skip { position: absolute; left: -99em }
.skip:focus { position: static }
.lead { font-size: 1.25em; border-left: .4em solid #333; padding: .4em 1em; background: #f3f3f3 }
.scroll { overflow-x: auto; margin: 1em 0 }
table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: .35em .8em .35em 0; border-bottom: 1px solid #999 }
td.number, th.number { text-align: right; white-space: nowrap }
td ul { margin: 0; padding-left: 1.2em }
thead th { border-bottom: 2px solid #333 }
pre { background: #f3f3f3; padding: .6em; overflow-x: auto; font: 14px/1.4 ui-monospace, monospace }
figure { margin: 1em 0 }
figure img, svg { max-width: 100%; height: auto }
figcaption { color: #333 }
dt { font-weight: bold }
@media (max-width: 48em) { .scroll::before { content: "Wider than the window? Scroll this table sideways."; color: #333;
  font-size: .9em } }
@media print { .scroll::before { content: none }
  a { color: #000 } .skip { display: none } .scroll, pre { overflow-x: visible; white-space: pre-wrap } }
"""


def document(title: str, body: str) -> str:
    """The whole page: `title` is plain text, `body` finished HTML with its own h1."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{html.escape(title)}</title>
<style>{STYLE}</style>
</head>
<body><a class="skip" href="#content">Skip to the content</a>
<main id="content">
{body}
</main></body>
</html>
"""


def scrollable(name: str, content: str) -> str:
    """Finished HTML that may be wider than the window, in a region that a keyboard can reach and scroll."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(name)}">{content}</div>'


def preformatted(name: str, text: str) -> str:
    """Plain text as printed, in a region that a keyboard can reach and scroll."""
    return f'<pre role="region" tabindex="0" aria-label="{html.escape(name)}">{html.escape(text)}</pre>'
