"""Draws the medians as an SVG of two bar charts."""

from xml.sax.saxutils import escape

BAR, GAP, LABEL, WIDTH = 22, 8, 210, 760
OURS, THEIRS = "#2b6cb0", "#a0aec0"


def panel(title, rows, top):
    """rows: (name, tokens/s, is ours). Returns SVG lines and the new bottom."""
    lines = [f'<text x="0" y="{top + 16}" class="title">{escape(title)}</text>']
    y = top + 30
    longest = max(value for _, value, _ in rows)
    scale = (WIDTH - LABEL - 90) / longest
    for name, value, ours in rows:
        width = max(1.0, value * scale)
        middle = y + BAR / 2 + 4
        lines += [
            f'<text x="{LABEL - 8}" y="{middle}" text-anchor="end">'
            f'{escape(name)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" '
            f'rx="2" fill="{OURS if ours else THEIRS}"/>',
            f'<text x="{LABEL + width + 6:.1f}" y="{middle}">'
            f'{value:.4g}</text>',
        ]
        y += BAR + GAP
    return lines, y + 14


def draw(panels, caption):
    """panels: list of (title, rows). Returns the SVG's text."""
    lines, y = [], 0
    for title, rows in panels:
        if rows:
            more, y = panel(title, rows, y)
            lines += more
    lines.append(f'<text x="0" y="{y + 8}" class="note">{escape(caption)}</text>')
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
        f'height="{y + 20}" viewBox="0 0 {WIDTH} {y + 20}">',
        "<style>text{font:13px sans-serif;fill:#2d3748}"
        ".title{font-weight:bold;font-size:15px}.note{font-size:11px}"
        "@media(prefers-color-scheme:dark){text{fill:#e2e8f0}}</style>",
        *lines, "</svg>", ""])
