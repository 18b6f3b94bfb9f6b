"""The colours of the house in light and in dark mode, and its type."""

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


def style_sheet(drawn: str) -> str:
    """A class for every colour that the elements use, in light and then in dark mode.

    Without CSS variables, which most programs other than browsers do not know: they draw black.
    """
    used = sorted(set(re.findall(r"\b([fs])-([a-z-]+)", drawn)))
    light, dark = (_rules(used, mode) for mode in (0, 1))
    return (
        f"svg{{font-family:{SANS}}}\n.bold{{font-weight:600}}\n.mono{{font-family:{MONO}}}\n"
        ".halo{paint-order:stroke;stroke-width:5px;stroke-linejoin:round}\n"
        f"{light}@media (prefers-color-scheme: dark){{\n{dark}}}\n"
    )


def _rules(used: list[tuple[str, str]], mode: int) -> str:
    kinds = {"f": "fill", "s": "stroke"}
    rules = [f".halo{{stroke:{PALETTE['paper'][mode]}}}\n"]
    for kind, name in used:
        colour = "none" if name == "none" else PALETTE[name][mode]
        rules.append(f".{kind}-{name}{{{kinds[kind]}:{colour}}}\n")
    return "".join(rules)
