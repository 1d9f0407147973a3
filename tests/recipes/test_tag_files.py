"""Tagging files as people have them: other columns, comments, faults, raw text; and warnings of what looks wrong."""

import warnings

import pytest
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.doubts import PACKAGES, Doubt, plain_doubts, skipped_of
from polymax_recipes.readers.columns import Places, Tagged
from polymax_recipes.readers.lines import ReadError, grouped
from polymax_recipes.tag.columns import Chosen, Remembered, column, looks_wrong
from polymax_recipes.tag.data import Sentences, read_tags, vocabularies_of
from polymax_recipes.tag.task import MANY, TagOptions, task
from polymax_recipes.tag.text import Reader
from polymax_recipes.text.tokenizer import sentences, tokens
from polymax_recipes.training.predict import as_lines

FIVE = "# text = Anna sings\n1\tAnna\tB-PER\t-\tme\n2\tsings\tO\t-\t-\n\n# text = #x\n1\t#x\tO\t-\t-\n\n"
WANTED = [["Anna", "sings"], ["#x"]], [["B-PER", "O"], ["O"]]
HEADED = "id\tword\tner\tx\ty\n" + FIVE

LAYOUTS = {
    "numbers": (FIVE, "2", "3"),
    "from the end": (FIVE, "-4", "-3"),
    "header": (HEADED, "word", "ner"),
    "header and number": (HEADED, "word", "3"),
    "global columns": ("# global.columns = ID FORM NER A B\n" + FIVE, "FORM", "NER"),
    "carriage returns": ("\ufeff" + FIVE.replace("\n", "\r\n"), "2", "3"),
    "documents": ("-DOCSTART-\tX\tO\t-\t-\n\n" + FIVE, "2", "3"),
    "spaces": (FIVE.replace("\t", "   "), "2", "3"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_columns_are_chosen(layout, tmp_path):
    text, token, tag = LAYOUTS[layout]
    (tmp_path / "a.txt").write_bytes(text.encode())
    found = task.read_as([tmp_path / "a.txt"], TagOptions(token_column=token, tag_column=tag))
    assert ([s.tokens for s in found], [s.tags for s in found]) == WANTED
    # and what was read so is written back in the same place
    reader = Reader(Chosen(token, tag), Remembered.of(found, Chosen(token, tag)))
    lines = text.removeprefix("\ufeff").replace("\r", "").split("\n")
    written = []
    for block in grouped(as_lines(lines)):
        sentence = reader.sentence("input", block)
        written += sentence.tagged(["NEW"] * len(sentence.rows))
    assert [s for s in written if "NEW" in s] == [
        s.replace("B-PER", "NEW").replace("O", "NEW") for s in lines if "-" in s and "DOC" not in s
    ]
    assert [a for a, b in zip(written, lines, strict=True) if a == b] == [
        s for s in lines if "-" not in s or "DOC" in s
    ]


CONLLU = "1\tDogs\tdog\tNOUN\tNNS\t_\t0\troot\t_\t_\n\n"


def test_columns_of_conllu_have_their_names(tmp_path):
    (tmp_path / "a.conllu").write_text(CONLLU)

    def read(**chosen):
        return task.read_as([tmp_path / "a.conllu"], TagOptions(**chosen))

    assert read() == [Tagged(["Dogs"], ["NOUN"], Places(0, 1, 3))]
    assert read(tag_column="XPOS") == read(tag_column="5") == [Tagged(["Dogs"], ["NNS"], Places(0, 1, 4))]
    assert read(token_column="LEMMA")[0].tokens == ["dog"]
    for wrong in ("NER", "11"):
        with pytest.raises(ValueError, match="--tag-column must be"):
            read(tag_column=wrong)
    reader = Reader(Chosen("", "XPOS"), Remembered.of(read(tag_column="XPOS"), Chosen("", "XPOS")))
    (block,) = grouped(as_lines(CONLLU.split("\n")[:2]))
    assert next(reader.sentence("input", block).tagged(["VB"])) == CONLLU.split("\n")[0].replace("NNS", "VB")


def test_columns_that_are_none_are_named(tmp_path):
    with pytest.raises(
        ValueError, match="--tag-column must be a name or a number from 1, or from -1 at the end; got 0"
    ):
        column("--tag-column", "0")
    (tmp_path / "a.txt").write_text("a O\n")
    for chosen, message in (
        ({"tag_column": "3"}, "a.txt:1: no column 3 for the tag; there are 2$"),
        ({"token_column": "x"}, "no tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            task.read_as([tmp_path / "a.txt"], TagOptions(**chosen))


def test_comments_are_said_or_guessed(tmp_path):
    (tmp_path / "a.txt").write_text("# O\n#c d e\na O\n")

    def read(comments):
        return [s.tokens for s in task.read_as([tmp_path / "a.txt"], TagOptions(comments=comments))]

    assert read("auto") == [["#", "a"]]
    assert read("yes") == [["a"]]
    with pytest.raises(ValueError, match=r"a\.txt:2: 2 columns expected, as above; got 3$"):
        read("no")


BROKEN = "a O\n\nb\n\n c O\n\nd\tO\n\tO\n\ne x O\n\nf O\n"


def test_what_cannot_be_read_is_left_out_counted_and_listed(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(BROKEN)
    with pytest.raises(ValueError, match=r"a\.txt:3: 2 columns expected, as above; got 1; --skip-bad"):
        task.read_as([file], TagOptions())
    with pytest.warns(Doubt) as found:
        kept = task.read_as([file], TagOptions(skip_bad=True))
    assert [s.tokens for s in kept] == [["a"], ["c"], ["f"]]
    assert str(found[0].message).splitlines() == [
        "left out 3 of 6 sentences that cannot be read; measures are those of the others, and not comparable with "
        "measures of the whole file:",
        f"  {file}:3: 2 columns expected, as above; got 1",
        f"  {file}:8: the token or its tag is empty",
        f"  {file}:10: 2 columns expected, as above; got 3",
    ]
    assert [str(error).rpartition("/")[2][:7] for error in skipped_of(kept)] == ["a.txt:3", "a.txt:8", "a.txt:1"]
    # nothing is left, or nothing was wrong
    file.write_text("a O\n")
    assert len(task.read_as([file], TagOptions(skip_bad=True))) == 1


LOOKS = [
    (["a", "b"], ["O", "O"], "all 2 tokens have the tag 'O': there is nothing to learn"),
    (["a", "b", "c"], ["a", "b", "O"], "2 of 3 tags are equal to their tokens"),
    (["X", "Y"] * 15, [f"w{k}" for k in range(30)], "there are more different tags, 30, than tokens, 2"),
    (["1", "2"], ["O", "B-PER"], "all tokens are their own numbers"),
    (["a", "b"], ["O", "B-PER"], None),
    ([f"w{k}" for k in range(30)], ["X", "Y"] * 15, None),
]


@pytest.mark.parametrize(("words", "tags", "message"), LOOKS)
def test_tags_that_look_wrong_are_warned_of(words, tags, message):
    found = looks_wrong([Tagged(words, tags)])
    assert message is None if found is None else found.startswith(message)
    if message:
        with pytest.warns(Doubt, match=f"--train: {message}"):
            task.used([Tagged(words, tags)], "train", TagOptions())


def test_an_accuracy_of_one_at_once_is_warned_of():
    def doubts(accuracy, count):
        dev = [Tagged(["a"] * 10, ["O"] * 10)] * (count // 10)
        return list(task.doubts([{"dev_accuracy": accuracy}], Sentences(dev, vocabularies_of(dev, "same", 10))))

    assert "were right after one epoch" in doubts("1.0", MANY)[0]
    assert doubts("0.99", MANY) == doubts("1.0", MANY - 10) == []


def test_doubts_are_one_line_at_the_command(capsys):
    with plain_doubts():
        warnings.warn("strange", Doubt, stacklevel=1)
        warnings.simplefilter("always", RuntimeWarning)
        warnings.warn_explicit("our own", RuntimeWarning, str(PACKAGES[0] / "cli.py"), 1)
        with pytest.raises(UserWarning):
            warnings.warn("other", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: strange\nwarning: our own\n"


KNOWN = ["O", "B-PER", "I-PER"]
TWO = Remembered.of([Tagged([], [])], Chosen())


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["The cat sleeps"], "input:1: 2 columns expected, as in the training, or a token alone; got 3; --text reads"),
        (["The cat"], "input:1: tags of the training, or _, expected in column 2; got 'cat'; --text reads raw text"),
        (["a\tO", "", "a\tb\tO"], "input:3: 2 columns expected, as in the training, or a token alone; got 3"),
    ],
)
def test_columns_unlike_those_of_the_training_are_refused(lines, message):
    reader = Reader(Chosen(), TWO, KNOWN.__contains__)
    with pytest.raises(ReadError) as error:
        [reader.sentence("input", block) for block in grouped(as_lines(lines))]
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["a", "b"], ["a\tT", "b\tT"]),
        (["# a comment here", "a _", "#b ?"], ["# a comment here", "a T", "#b T"]),
        (["a B-NEW", "b O"], ["a T", "b T"]),
        (["#a"], ["#a\tT"]),
        (["# newdoc id = 7"], ["# newdoc id = 7"]),
    ],
)
def test_columns_like_those_of_the_training_are_tagged(lines, found):
    (block,) = grouped(as_lines(lines))
    sentence = Reader(Chosen(), TWO, KNOWN.__contains__).sentence("input", block)
    assert list(sentence.tagged(["T"] * len(sentence.rows))) == found


TEXTS = {
    "Don't go. We'll see Anna's cat!": ["Do n't go .", "We 'll see Anna 's cat !"],
    'He asked: "Why?" and left... "Now!" She did.': ['He asked : " Why ? " and left ...', '" Now ! "', "She did ."],
    "Mr. J. Smith of the U.S. paid $1,000.50 at 12:30.": ["Mr. J. Smith of the U.S. paid $ 1,000.50 at 12:30 ."],
    "See https://x.org/a?b=1, www.y.com. Mail a.b@c.de!!! @me #now": [
        "See https://x.org/a?b=1 , www.y.com .",
        "Mail a.b@c.de !!!",
        "@me #now",
    ],
    "It costs 3.5% (or -2) -- so what?! e-mail and/or AT&T": [
        "It costs 3.5 % ( or -2 ) -- so what ? ! e-mail and / or AT&T"
    ],
    "今天好。明天呢？「好！」": ["今天好 。", "明天呢 ？", "「 好 ！ 」"],
    "  ": [],
}


@pytest.mark.parametrize("text", TEXTS)
def test_raw_text_is_cut_by_the_rules(text):
    found = sentences(text)
    assert [" ".join(sentence.tokens) for sentence in found] == TEXTS[text]
    # nothing is lost or made up
    assert "".join(t for s in found for t in s.tokens) == "".join(text.split())
    assert [t for s in found for t in s.tokens] == tokens(text)
    for sentence in found:
        rebuilt = "".join(t + " " * space for t, space in zip(sentence.tokens, sentence.spaces))
        assert rebuilt.strip() == " ".join(sentence.text.split())


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


SMALL = ("--hidden", 8, "--embedding", 8, "--characters", 4, "--spelling", 4, "--accelerator", "cpu", "--epochs", 1)


def test_a_run_keeps_its_columns(tmp_path):
    train, run = tmp_path / "a.iob2", tmp_path / "run"
    train.write_text(HEADED * 1 + FIVE * 3 + "1\tbad\n\n")
    chosen = ("--token-column", "word", "--tag-column", "ner", "--skip-bad")
    result = invoke("train", "tag", "--train", train, "--dev", train, "--out", run, *chosen, *SMALL)
    assert result.exit_code == 0, result.output
    assert "warning: left out 1 of 9 sentences that cannot be read;" in result.output
    assert invoke("evaluate", run, train).exit_code == 0
    output = list(recipes.load(run).predict(HEADED.splitlines()))
    assert [line.split("\t")[:2] for line in output] == [line.split("\t")[:2] for line in HEADED.splitlines()]
    assert all(line.count("\t") in (0, 4) for line in output)
    (tmp_path / "raw.txt").write_text("Anna sings. She doesn't!\n\nEnd\n")
    result = invoke("predict", run, tmp_path / "raw.txt", "--text")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == [
        *("Anna", "sings", ".", ""),
        *("She", "does", "n't", "!", ""),
        *("End", ""),
    ]
    result = invoke("predict", run, tmp_path / "raw.txt")
    assert "raw.txt:1: 5 columns expected, as in the training, or a token alone; got 4; --text" in result.output
    other = tmp_path / "two.txt"
    other.write_text("Anna B-PER\n")
    result = invoke("evaluate", run, other, "--set", "token_column=1", "--set", "tag_column=2")
    assert result.exit_code == 0
    assert "warning" not in result.output
    other.write_text("Anna PROPN\n")
    result = invoke("evaluate", run, other, "--set", "token_column=1", "--set", "tag_column=2")
    assert "warning: the training had none of these tags, such as 'PROPN'; are --token-column and" in result.output
    other.write_text("Anna B-PER\n")
    assert read_tags([other]) == [Tagged(["Anna"], ["B-PER"])]
