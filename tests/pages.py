"""Reads the HTML pages of a class as a browser would, and says what is wrong with them."""

from html.parser import HTMLParser

_VOID = ("meta", "br", "rect", "link", "img", "input", "hr")
_TAGS = frozenset(
    "html head meta title style body h1 h2 h3 p strong code pre mark span div table caption thead"
    " tbody tr th td svg rect br a ul li main".split()
)
_ATTRIBUTES = frozenset(
    "lang charset name content http-equiv class id scope href viewbox preserveaspectratio"
    " aria-hidden aria-label focusable width height tabindex role".split()
)


class Page(HTMLParser):
    """A page: its text, and a list of what it should not have."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.bars: list[float] = []
        self._ids: set[str] = set()
        self._targets: set[str] = set()
        self._open: list[str] = []
        self.feed(html)
        self.close()
        if self._open:
            self.faults.append(f"not closed: {self._open}")
        if self._targets - self._ids:
            self.faults.append(f"leads nowhere: {self._targets - self._ids}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag or attribute that no template has, and every reference but to the page."""
        if tag not in _TAGS:
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            if name not in _ATTRIBUTES:
                self.faults.append(f"{tag} {name}={value}")
            if name == "href":
                if not (value or "").startswith("#"):
                    self.faults.append(f"leads elsewhere: {value}")
                self._targets.add((value or "")[1:])
            if name == "id":
                self._ids.add(value or "")
            if tag == "rect" and name == "width":
                self.bars.append(float(value or "nan"))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close what was opened last."""
        if tag in _VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        """Keep text, that of a table's cell apart."""
        if "style" in self._open:
            for word in ("url(", "@import", "expression"):
                if word in data:
                    self.faults.append(f"style: {word}")
            return
        self.text.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += data

    @property
    def words(self) -> str:
        """All text, blanks and line ends as one blank each."""
        return " ".join(" ".join(self.text).split())


def checked(html: str) -> Page:
    """Return a page that is well-formed, without scripts or references; fail where it is not."""
    page = Page(html)
    assert not page.faults, page.faults
    assert html.startswith("<!DOCTYPE html>") and "default-src 'none'" in html
    assert all(0 <= bar <= 100 for bar in page.bars)
    assert not any(char in html for char in "\x00\x1b\x07\u202e\u2066"), "control characters"
    return page
