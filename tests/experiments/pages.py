"""What a browser would load for a page."""

from html.parser import HTMLParser


class Loads(HTMLParser):
    """Everything a browser would fetch for a page, and its pictures' words."""

    def __init__(self, text):
        super().__init__()
        self.found, self.alts, self.cells = [], [], 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.found += [v for k, v in given.items() if k in ("src", "srcset", "data", "poster", "action") and v]
        self.found += [given["href"]] if "href" in given else []
        self.alts += [given.get("alt")] if tag == "img" else []
