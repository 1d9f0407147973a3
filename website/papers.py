"""Addresses of the papers that `See:` lines name, by first author, year and, if needed, title."""

import re

ARXIV = "https://arxiv.org/abs/"
DOI = "https://doi.org/"
ACL = "https://aclanthology.org/"

# (first author, year, a word that the reference must have): address
PAPERS: dict[tuple[str, str, str], str] = {
    ("Agarwal", "2024", ""): f"{ARXIV}2306.13649",
    ("Bahdanau", "2015", ""): f"{ARXIV}1409.0473",
    ("Bain", "2023", ""): f"{ARXIV}2303.00747",
    ("Bengio", "2013", ""): f"{ARXIV}1308.3432",
    ("Berthet", "2020", ""): f"{ARXIV}2002.08676",
    ("Blondel", "2020", "Fenchel"): f"{ARXIV}1901.02324",
    ("Blondel", "2020", "sorting"): f"{ARXIV}2002.08871",
    ("Blondel", "2021", ""): f"{ARXIV}2010.08354",
    ("Chen", "2016", ""): f"{ARXIV}1604.06174",
    ("Chen", "2017", ""): f"{ARXIV}1609.06038",
    ("Choi", "2018", ""): f"{ARXIV}1707.02786",
    ("Collins", "2002", ""): f"{ACL}W02-1001",
    ("Correia", "2019", ""): f"{ARXIV}1909.00015",
    ("Correia", "2020", ""): f"{ARXIV}2007.01919",
    ("Corro", "2019", "latent"): f"{ACL}P19-1551",
    ("Corro", "2019", ""): f"{ARXIV}1807.09875",
    ("Cuturi", "2017", ""): f"{ARXIV}1703.01541",
    ("Dozat", "2017", ""): f"{ARXIV}1611.01734",
    ("Eisner", "1996", ""): f"{ACL}C96-1058",
    ("Frank", "1956", ""): f"{DOI}10.1002/nav.3800030109",
    ("Gotoh", "1982", ""): f"{DOI}10.1016/0022-2836(82)90398-9",
    ("Graves", "2006", ""): f"{DOI}10.1145/1143844.1143891",
    ("Graves", "2012", ""): f"{ARXIV}1211.3711",
    ("Itakura", "1975", ""): f"{DOI}10.1109/TASSP.1975.1162641",
    ("Jang", "2017", ""): f"{ARXIV}1611.01144",
    ("Jonker", "1987", ""): f"{DOI}10.1007/BF02278710",
    ("Kim", "2017", ""): f"{ARXIV}1702.00887",
    ("Kim", "2020", ""): f"{ARXIV}2005.11129",
    ("Koo", "2007", ""): f"{ACL}D07-1015",
    ("Koo", "2010", ""): f"{ACL}P10-1001",
    ("Kuang", "2022", ""): f"{ARXIV}2206.13236",
    ("Lacoste-Julien", "2015", ""): f"{ARXIV}1511.05932",
    ("Lafferty", "2001", ""): "https://dl.acm.org/doi/10.5555/645530.655813",
    ("Li", "2009", "semirings"): f"{ACL}D09-1005",
    ("Liu", "2018", ""): f"{ARXIV}1705.09207",
    ("Luong", "2015", ""): f"{ARXIV}1508.04025",
    ("Maddison", "2014", ""): f"{ARXIV}1411.0030",
    ("Maddison", "2017", ""): f"{ARXIV}1611.00712",
    ("Maillard", "2018", ""): f"{ARXIV}1806.00840",
    ("Malaviya", "2018", ""): f"{ARXIV}1805.08241",
    ("Marcheggiani", "2017", ""): f"{ARXIV}1703.04826",
    ("Martins", "2015", ""): "https://jmlr.org/papers/v16/martins15a.html",
    ("Martins", "2016", ""): f"{ARXIV}1602.02068",
    ("Martins", "2017", ""): f"{ACL}D17-1036",
    ("Martins", "2020", ""): f"{ARXIV}2004.02644",
    ("McDonald", "2005", ""): f"{ACL}H05-1066",
    ("McDonald", "2006", ""): f"{ACL}E06-1011",
    ("Mensch", "2018", ""): f"{ARXIV}1802.03676",
    ("Mnih", "2014", ""): f"{ARXIV}1402.0030",
    ("Müller", "2007", ""): f"{DOI}10.1007/978-3-540-74048-3",
    ("Niculae", "2017", ""): f"{ARXIV}1705.07704",
    ("Niculae", "2018", "graphs"): f"{ARXIV}1809.00653",
    ("Niculae", "2018", ""): f"{ARXIV}1802.04223",
    ("Niculae", "2020", ""): f"{ARXIV}2001.04437",
    ("Niepert", "2021", ""): f"{ARXIV}2106.01798",
    ("Nocedal", "2006", ""): f"{DOI}10.1007/978-0-387-40065-5",
    ("Peng", "2018", ""): f"{ARXIV}1805.04658",
    ("Peters", "2019", ""): f"{ARXIV}1905.05702",
    ("Rabiner", "1989", ""): f"{DOI}10.1109/5.18626",
    ("Rennie", "2017", ""): f"{ARXIV}1612.00563",
    ("Roulet", "2025", ""): f"{ARXIV}2501.18537",
    ("Sakoe", "1978", ""): f"{DOI}10.1109/TASSP.1978.1163055",
    ("Sarawagi", "2004", ""): (
        "https://papers.nips.cc/paper_files/paper/2004/hash/eb06b9db06012a7a4179b8f3cb5384d3-Abstract.html"
    ),
    ("Schulman", "2017", ""): f"{ARXIV}1707.06347",
    ("Stern", "2017", ""): f"{ACL}P17-1076",
    ("Tai", "2015", ""): f"{ARXIV}1503.00075",
    ("Tsochantaridis", "2005", ""): "https://jmlr.org/papers/v6/tsochantaridis05a.html",
    ("Tsuboi", "2008", ""): f"{ACL}C08-1113",
    ("Vaswani", "2017", ""): f"{ARXIV}1706.03762",
    ("Viterbi", "1967", ""): f"{DOI}10.1109/TIT.1967.1054010",
    ("Vlastelica", "2020", ""): f"{ARXIV}1912.02175",
    ("Wainwright", "2008", ""): f"{DOI}10.1561/2200000001",
    ("Wang", "2015", ""): f"{ARXIV}1503.01002",
    ("Wijmans", "2024", ""): f"{ARXIV}2411.09009",
    ("Williams", "1992", ""): f"{DOI}10.1007/BF00992696",
    ("Xu", "2023", ""): f"{ARXIV}2304.06795",
    ("Yogatama", "2017", ""): f"{ARXIV}1611.09100",
    ("Yu", "2021", ""): f"{ARXIV}2010.11148",
    ("Yuan", "2006", ""): f"{DOI}10.1111/j.1467-9868.2005.00532.x",
    ("Zeng", "2014", ""): f"{ARXIV}1409.4271",
}
NAME = re.compile(
    r"(?P<author>[A-ZÀ-Ž][\w-]+)(?:(?:, [A-ZÀ-Žv][\w -]+)*(?: and [A-Z][\w -]+)?| et al\.) (?P<year>\d{4})"
)


def linked(text: str) -> str:
    """Return the text of a `See:` line with each paper's authors and year as a link.

    Example:
        >>> linked("Mensch and Blondel 2018, section 3.")
        '[Mensch and Blondel 2018](https://arxiv.org/abs/1802.03676), section 3.'
    """
    parts = []
    for part in re.split(r"(; )", text):
        found = NAME.search(part)
        target = address(found["author"], found["year"], part) if found else None
        if found and target:
            part = part.replace(found[0], f"[{found[0]}]({target})", 1)
        parts.append(part)
    return "".join(parts)


def address(author: str, year: str, text: str) -> str | None:
    """Return the address of a paper, or None if it is not known."""
    for (first, when, word), target in PAPERS.items():
        if (first, when) == (author, year) and word in text:
            return target
    return None
