"""The colours of the house in light and in dark mode, as CSS variables, and its type."""

from __future__ import annotations

import re

# name: (light, dark). `ink` and `soft` are for text, also on every fill; the `-ink` ones are for
# text and lines on paper.
PALETTE = {
    "paper": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#f0f6fc"),
    "soft": ("#4b535d", "#b1bac4"),
    "line": ("#6e7781", "#8b949e"),
    "faint": ("#b8c0c8", "#444c56"),
    "grey": ("#eaeef2", "#21262d"),
    "blue": ("#cfe4ff", "#123a66"),
    "blue-ink": ("#0550ae", "#79c0ff"),
    "orange": ("#ffe0b8", "#5a3606"),
    "orange-ink": ("#8a4600", "#ffb057"),
    "green": ("#c6efce", "#0f4a2a"),
    "green-ink": ("#116329", "#56d364"),
    "plum": ("#ecdafc", "#42256b"),
    "plum-ink": ("#6639ba", "#d2a8ff"),
    "teal": ("#b5e6e3", "#0d4a4d"),
}
FILLS = ("paper", "grey", "blue", "orange", "green", "plum", "teal")
SANS = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif'
MONO = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'


def variables() -> tuple[str, str]:
    """The colours as CSS variables, in light and in dark mode."""
    light, dark = (
        "".join(f"--{name}:{pair[mode]};" for name, pair in PALETTE.items()) for mode in (0, 1)
    )
    return light, dark


def style_sheet(drawn: str) -> str:
    """The palette in both modes, and a class for every colour that the elements use."""
    light, dark = variables()
    used = sorted(set(re.findall(r"\b([fs])-([a-z-]+)", drawn)))
    kinds = {"f": "fill", "s": "stroke"}
    rules = [
        f".{kind}-{name}{{{kinds[kind]}:{'none' if name == 'none' else f'var(--{name})'}}}\n"
        for kind, name in used
    ]
    return (
        f"svg{{{light}font-family:{SANS}}}\n"
        f"@media (prefers-color-scheme: dark){{svg{{{dark}}}}}\n"
        f".bold{{font-weight:600}}\n.mono{{font-family:{MONO}}}\n"
        ".halo{paint-order:stroke;stroke:var(--paper);stroke-width:5px;stroke-linejoin:round}\n"
        + "".join(rules)
    )
