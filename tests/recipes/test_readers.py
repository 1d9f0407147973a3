"""Laws of readers: what packs, marks or ends a file changes nothing; faults say where; what was read can be written."""

import gzip
import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch

from polymax_recipes import readers as r
from polymax_recipes.listops import read_listops
from polymax_recipes.readers.lines import ReadError, lines


def conllu(*words: tuple[str, int | str, str]) -> str:
    """Rows of id, head and relation."""
    rows = ("\t".join([id, f"w{id}", "_", "NOUN", "_", "_", str(head), rel, "_", "_"]) for id, head, rel in words)
    return "".join(row + "\n" for row in rows) + "\n"


def words_of(sentence):
    return sentence.words


@dataclass(frozen=True)
class Format:
    """A reader, a file `head + body + tail`, whose body may be repeated, and the items of one body.

    `faults` are files, the line of the fault, a word of the message, and how many items come before.
    """

    name: str
    read: Callable[..., Any]
    body: str
    items: list[Any]
    faults: list[tuple[str, int, str, int]]
    head: str = ""
    tail: str = ""
    key: Callable[[Any], Any] = field(default=lambda item: item)

    def text(self, copies=1):
        return self.head + self.body * copies + self.tail

    def __call__(self, path):
        return [self.key(item) for item in self.read(path)]


GOOD = conllu(("1", 2, "nsubj"), ("2", 0, "root"))
SENTENCE = [
    r.Word("w1", "_", "NOUN", "_", "_", 2, "nsubj", "_", "_"),
    r.Word("w2", "_", "NOUN", "_", "_", 0, "root", "_", "_"),
]
TS = "#made\n@problemName Two\n@timeStamps false\n@univariate false\n@dimensions 2\n@classLabel true a b\n@data\n"
SNLI = '{"gold_label": "%s", "sentence1": "A b", "sentence2": "C", "sentence1_binary_parse": "( A b )"}\n'
PAPER = '{"source": ["One.", "Two."], "source_labels": [0, 1], "rouge_scores": [0.5], "target": ["T."], "title": "N"}\n'

FORMATS = [
    Format(
        "conllu",
        r.read_conllu,
        "# a comment\n" + GOOD,
        [tuple(SENTENCE)],
        [
            (GOOD + "1\tw\n", 4, "10 columns", 1),
            (GOOD + GOOD.replace("w2", ""), 5, "column 2 is empty", 1),
            (GOOD + conllu(("1", 0, "root"), ("3", 1, "dep")), 5, "id 2 expected; got 3", 1),
            (GOOD + conllu(("1", 0, "root"), ("2x", 1, "dep")), 5, "id must be", 1),
            (GOOD + conllu(("1", 0, "root"), ("3-4", "_", "_"), ("2", 1, "dep")), 5, "multiword token 3-4", 1),
            (conllu(("1-2", "_", "_"), ("1", 0, "root")), 2, "multiword token goes on to 2", 0),
            (conllu(("1", 0, "root"), ("1.2", "_", "_")), 2, "empty node 1.2", 0),
            (GOOD + conllu(("1", "_", "dep"), ("2", 0, "root")), 4, "head must be a number; got '_'", 1),
            (GOOD + conllu(("1", "9" * 5000, "dep")), 4, "head must be a number", 1),
            (GOOD + conllu(("1", 3, "dep"), ("2", 0, "root")), 4, "from 0 to 2", 1),
            (GOOD + conllu(("1", 0, "root"), ("2", 0, "root")), 5, "word 1 is one already", 1),
            (GOOD + conllu(("1", 2, "dep"), ("2", 1, "dep")), 4, "no word of this sentence is the root", 1),
            (GOOD + conllu(("1", 0, "root"), ("2", 3, "dep"), ("3", 2, "dep")), 5, "word 2 is its own ancestor", 1),
            (GOOD + conllu(("1", 0, "root"), ("2", 2, "dep")), 5, "word 2 is its own ancestor", 1),
            (GOOD + "# alone\n\n" + GOOD, 4, "no words", 1),
            (GOOD[:-1] + "# late\n\n", 3, "comment inside", 0),
            (GOOD[:-1] + " \n" + GOOD, 3, "10 columns", 0),
        ],
        key=words_of,
    ),
    Format(
        "columns",
        r.read_tagged,
        "-DOCSTART- O\n\nAnna B-PER\nsings O\n \n# O\n\n",
        [r.Tagged(["Anna", "sings"], ["B-PER", "O"]), r.Tagged(["#"], ["O"])],
        [
            ("a O\n\nb x O\n", 3, "2 columns expected, as above; got 3", 1),
            ("a\n", 1, "columns of tokens and tags expected; got 1", 0),
            ("a\tO\n\n\tO\n", 3, "empty", 1),
            ("-DOCSTART- O\n\n", 1, "no tokens", 0),
        ],
    ),
    Format(
        "columns of five",
        partial(r.read_tagged, token=1, tag=2, comments=True),
        "# text = Anna sings\n1\tAnna\tB-PER\t-\tme\n2\tsings\tO\t-\t-\n\n",
        [r.Tagged(["Anna", "sings"], ["B-PER", "O"], (5, 1, 2))],
        [("1\ta\n", 1, "no column 3 for the tag; there are 2", 0)],
    ),
    Format(
        "columns by name",
        partial(r.read_tagged, token="FORM", tag="NER"),
        "# global.columns = ID FORM NER\n# text = # Anna\n1\t#\tO\n#2\tAnna\tB-PER\n\n",
        [r.Tagged(["#", "Anna"], ["O", "B-PER"], (3, 1, 2))],
        [
            ("# global.columns = ID FORM\n1\ta\n", 1, "no column 'NER' for the tag; there are ID, FORM", 0),
            ("FORM\tNER\na\tO\n\na\n", 4, "2 columns expected, as above; got 1", 1),
        ],
    ),
    Format(
        "columns with a header",
        partial(r.read_tagged, token="word", tag=-1),
        "word NN O\n\n# NN O\n\n",
        [r.Tagged(["word"], ["O"], (3, 0, 2)), r.Tagged(["#"], ["O"], (3, 0, 2))],
        [("a O\nb O\n", 1, "no column 'word' for the token; there are a, O", 0)],
        head="word  pos NER\n",
    ),
    Format(
        "columns with comments",
        r.read_tagged,
        "# a comment of words\n-DOCSTART-\tO\n\n# id = 1\nNew York\tB-LOC\n# late comment\n#tag\tO\n\n",
        [r.Tagged(["New York", "#tag"], ["B-LOC", "O"])],
        [
            ("a\tO\n\nNew York\n", 3, "2 columns expected, as above; got 1", 1),
            ("a\tO\n\n\tO\n", 3, "empty", 1),
            ("a\tO\n\nb\t \n", 3, "empty", 1),
        ],
    ),
    Format(
        "trees",
        r.read_trees,
        "( (S (NP-SBJ (-NONE- *))\n     (VP (VB go)))\n  (ID 1))\n\n(X (Y a)) (Z b)\n\n",
        [r.parse_tree(text) for text in ("( (S (NP-SBJ (-NONE- *)) (VP (VB go))) (ID 1))", "(X (Y a))", "(Z b)")],
        [
            ("(A a)\n(B\n(C c)\n", 3, "begins in line 2 is not closed", 1),
            ("(A a)\n(B\n\n(C c)\n", 3, "blank line inside of the tree that begins in line 2", 1),
            ("(A a)\n(B b))\n", 2, "( expected; got ')'", 2),
            ("(A a)\n(B b c)\n", 2, "'c' after the word 'b'", 1),
            ("(A a)\n(B (C c) d)\n", 2, "'d' beside brackets", 1),
            ("(A a)\n(B b (C c))\n", 2, "a bracket after the word 'b'", 1),
            ("(A a)\n(B)\n", 2, "nothing under the label 'B'", 1),
            ("(A a)\n()\n", 2, "empty brackets", 1),
        ],
    ),
    Format(
        "labelled",
        r.read_labelled,
        '1\tgood "film\n\n0\tbad film\n',
        [r.Labelled("1", 'good "film'), r.Labelled("0", "bad film")],
        [("1\ta\n0\n", 2, "2 columns between tabs expected, label, text; got 1", 1), ("1\ta\n0\t \n", 2, "text is", 1)],
    ),
    Format(
        "pairs",
        r.read_pairs,
        "no\ta\tb\n",
        [r.Pair("no", "a", "b")],
        [("no\ta\tb\nno\ta\n", 2, "label, first", 1)],
    ),
    Format(
        "translations",
        r.read_translations,
        "Go.\tVa\u202f!\n",
        [r.Translation("Go.", "Va\u202f!")],
        [("a\tb\na\tb\tc\n", 2, "got 3", 1)],
    ),
    Format(
        "snli",
        r.read_snli,
        SNLI % "neutral" + SNLI % "-",
        [r.ParsedPair("neutral", "A b", "C", "( A b )", None)],
        [
            (SNLI % "neutral" + "{\n", 2, "JSON expected", 1),
            (SNLI % "neutral" + "[" * 10**5 + "\n", 2, "JSON expected", 1),
            (SNLI % "neutral" + "9" * 10**4 + "\n", 2, "JSON expected", 1),
            (SNLI % "neutral" + "[]\n", 2, "a JSON object expected; got list", 1),
            (SNLI % "neutral" + '{"gold_label": 3}\n', 2, "gold_label must be a text; got 3", 1),
        ],
    ),
    Format(
        "scitldr",
        r.read_scitldr,
        PAPER,
        [r.Summarized(["One.", "Two."], ["T."], [0, 1], "N")],
        [
            (PAPER + PAPER.replace("0, 1", "0"), 2, "one per sentence, 2; got 1", 1),
            (PAPER + PAPER.replace('["T."]', "[]"), 2, "target must be a list of str", 1),
        ],
    ),
    Format(
        "series",
        r.read_series,
        "1,2,-5.8E-5:3,4,5:a\n\n7,?:8,9:b\n",
        [([[1.0, 3.0], [2.0, 4.0], [-5.8e-5, 5.0]], "a"), ([[7.0, 8.0], [-1.0, 9.0]], "b")],
        [
            ("#\n1,2\n", 2, "@data before the first series", 0),
            ("@problemName a\n@\n", 2, "no @data", 0),
            ("@timeStamps true\n", 1, "time stamps", 0),
            (TS + "1:2:a\n1:2:c\n", 9, "class must be one of a, b; got 'c'", 1),
            (TS + "1:2:a\n1:2:3:a\n", 9, "2 dimensions expected; got 3", 1),
            (TS + "1:2:a\n1:2,3:a\n", 9, "equally long; got [1, 2]", 1),
            (TS + "1:2:a\n1:x:a\n", 9, "a number expected; got 'x'", 1),
            (TS + "1:2:a\n1:1_0:a\n", 9, "a number expected; got '1_0'", 1),
            (TS + "1:2:a\na\n", 9, "a series and its class", 1),
            ("@univariate true\n@data\n1:2\n", 3, "1 dimensions expected; got 2", 0),
            ("@equalLength true\n@seriesLength 3\n@data\n1,2\n", 4, "3 values expected; got 2", 0),
        ],
        head=TS,
        key=lambda item: (item.values.nan_to_num(nan=-1.0).tolist(), item.label),
    ),
    Format(
        "long series",
        r.read_long_series,
        "1,0.5\n2,-1\n\n3,2e1\n",
        [0.5, -1.0, 20.0],
        [
            ("1,0.5\n3,1\n", 2, "number 2 expected; got '3'", 0),
            ("1\n2,3\n", 2, "got 2 columns", 0),
            ("x\n", 1, "a number expected", 0),
        ],
        key=float,
    ),
    Format(
        "alignments",
        r.read_alignments,
        '  {"1": ["2", "1", "2"],\n   "3": ["X"], "X": ["4"]},\n{"2": []},',
        [r.WordAlignment([(0, 0), (0, 1)], [2], [3]), r.WordAlignment([], [], [])],
        [
            ('[{"1": ["2"]},\n {"1": ["0"]}]\n', 2, "numbers from 1", 1),
            ('[{"1": ["2"]},\n {"1": "2"}]\n', 2, "a list of ids expected for '1'; got '2'", 1),
            ('[{"1": ["2"]},\n {"1"\n ["3"]}]\n', 3, "JSON expected", 1),
            ('[{"1": ["2"]},\n {"1": ["2"]', 2, "not closed; its last object begins in line 2", 1),
            ('[{"1": ["2"]},\n []]', 2, "a JSON object expected; got list", 1),
            ('[{"1": ["2"]},\n 3]', 2, "a JSON list of objects", 1),
            ("]", 1, "a JSON list of objects", 0),
        ],
        head="[\n",
        tail="{}]\n",
    ),
    Format(
        "listops",
        lambda path: (str(expression) for expression in read_listops(path)),
        "0\t( ( ( [SM 6 ) 4 ) ] )\n3\t3\n5\t[MAX 5 ]\n",
        ["( ( ( [SM 6 ) 4 ) ] )", "3", "( ( [MAX 5 ) ] )"],
        [
            ("3\t3\n1\t( ( ( [SM 6 ) 4 ) ] )\n", 2, "value must be 0; got '1'", 1),
            ("3\t3\n0\t( ( [SM 6 ) ( 4 ] ) )\n", 2, "from the left", 1),
            ("3\t3\n0\t( ( ( [SM 6 ) 4 ) ]\n", 2, "every bracket closed", 1),
            ("3\t3\n0\t[SM 6\n", 2, "not closed", 1),
        ],
    ),
]
FAULTS = [pytest.param(f, *fault, id=f"{f.name}-{k}") for f in FORMATS for k, fault in enumerate(f.faults)]
formats = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def drain(items, found):
    for item in items:
        found.append(item)


def expected(form):
    # the list of alignments ends with an object of its own
    return form.items + ([r.WordAlignment([], [], [])] if form.tail else [])


@formats
def test_items(form, tmp_path):
    path = tmp_path / "file"
    path.write_text(form.text(), encoding="utf-8")
    assert form(path) == expected(form)


@formats
@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.rstrip(b"\n"),
        lambda data: data + b"\n\n",
        lambda data: b"\n" + data,
    ],
    ids=["byte order mark", "carriage returns", "no last line end", "blank lines after", "blank line before"],
)
def test_what_surrounds_text_changes_nothing(form, change, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(change(form.text().encode()))
    assert form(path) == expected(form)


@formats
def test_packed_files_are_the_same(form, tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(form.text().encode()))
    assert form(str(path)) == expected(form)


@formats
@pytest.mark.parametrize("text", ["", "\n", " \r\n\n"])
def test_an_empty_file_is_a_fault(form, text, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(text.encode())
    with pytest.raises(r.ReadError, match=rf"file:{max(text.count(chr(10)), 1)}: the file is empty"):
        list(form.read(path))


@pytest.mark.parametrize(("form", "text", "line", "message", "before"), FAULTS)
def test_a_fault_names_its_line_after_all_items_before(form, text, line, message, before, tmp_path):
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    found = []
    with pytest.raises(r.ReadError) as fault:
        drain(form.read(path), found)
    assert str(fault.value).startswith(f"{path}:{line}: ")
    assert message in str(fault.value)
    assert len(found) == before


@formats
def test_bytes_that_are_no_text(form, tmp_path):
    path = tmp_path / "file"
    good = form.text().encode()
    path.write_bytes(good + b"\n\xff\n")
    found = []
    line = good.count(b"\n") + 2
    with pytest.raises(r.ReadError, match=rf"file:{line}: UTF-8 expected"):
        drain(form.read(path), found)
    # a long series is one item, which is not whole
    assert found == [] if form.name == "long series" else [form.key(item) for item in found] == expected(form)


@pytest.mark.parametrize("cut", [0, 1, -4, None])
def test_packed_files_that_are_broken(cut, tmp_path):
    path = tmp_path / "file.gz"
    data = gzip.compress(b"1\ta\n" * 1000)
    path.write_bytes(data[:cut] if cut is not None else b"1\ta\n")
    with pytest.raises(r.ReadError, match=r"file.gz:\d+: (gzip data expected|the file is empty)"):
        list(r.read_labelled(path))


@pytest.mark.parametrize("form", [form for form in FORMATS if form.name != "long series"], ids=lambda form: form.name)
def test_memory_does_not_grow_with_the_file(form, tmp_path):
    peaks = []
    for copies in (50, 50, 3000):
        path = tmp_path / f"file{copies}"
        path.write_text(form.text(copies), encoding="utf-8")
        tracemalloc.start()
        count = sum(1 for _ in form.read(path))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count == copies * len(form.items) + bool(form.tail)
    # the first call fills caches; files are read in pieces of a fixed size
    assert peaks[2] < peaks[1] + 2**18


def test_errors_travel_between_processes():
    error = r.ReadError.at("file", 3, "wrong")
    assert str(pickle.loads(pickle.dumps(error))) == "file:3: wrong"
    assert isinstance(error, ValueError)


def test_a_file_is_replaced_when_the_next_is_whole(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("1\ta\n0\tb\n")
    r.write_rows(path, (row._replace(label="2") for row in r.read_labelled(path)))
    assert path.read_text() == "2\ta\n2\tb\n"
    with pytest.raises(ValueError, match="rows must"):
        r.write_rows(path, [["3", "a"], ["3", ""]])
    assert path.read_text() == "2\ta\n2\tb\n"
    (tmp_path / "link").symlink_to(path)
    r.write_rows(tmp_path / "link", [["4", "c"]])
    assert path.read_text() == "4\tc\n"
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.tsv", "link"]


def test_tagged_and_tables_come_back(tmp_path):
    path = tmp_path / "a.gz"
    sentences = [r.Tagged(["New York", "#"], ["B-LOC", "O"]), r.Tagged(["-"], ["O"])]
    r.write_tagged(path, sentences)
    assert list(r.read_tagged(path)) == sentences
    rows = [r.Pair("a", " b", 'c "d'), r.Pair("e", "f", "g\u2028h")]
    r.write_rows(path, rows)
    assert list(r.read_pairs(path)) == rows
    for broken in (["a\tb"], ["a", ""], ["a\n"]):
        with pytest.raises(ValueError, match="rows must"):
            r.write_rows(path, [broken])
    with pytest.raises(ValueError, match="one per token, 1; got 2"):
        r.write_tagged(path, [r.Tagged(["a"], ["O", "O"])])
    with pytest.raises(ValueError, match="must fit in a column"):
        r.write_tagged(path, [r.Tagged(["a\tb"], ["O"])])


def test_series_are_float64(tmp_path):
    path = tmp_path / "a"
    path.write_text("@classLabel false\n@data\n1,2,3\n")
    (series,) = r.read_series(path)
    assert series.label is None
    assert torch.equal(series.values, torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64))


def test_lines_that_end_in_carriage_returns_alone_are_named(tmp_path):
    file = tmp_path / "old.txt"
    file.write_bytes(b"Anna NOUN\rsings VERB\r\r")
    with pytest.raises(ReadError, match="carriage returns alone"):
        list(lines(file))
    file.write_bytes(b"Anna\rB NOUN\nsings VERB\r\n")
    assert len(list(lines(file))) == 2
