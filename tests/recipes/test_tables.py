"""Tables of every kind and rows in memory give the examples of the task's own files, for every task."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.bracket.data import read_brackets
from polymax_recipes.doubts import Doubt
from polymax_recipes.readers.lines import ReadError
from polymax_recipes.readers.sound import Sound, write_wave
from polymax_recipes.readers.tables import Role, parse_columns, read_table, rows_in_memory
from polymax_recipes.training.digests import digest
from polymax_recipes.training.predict import predicted
from polymax_recipes.training.run import Run, read_samples
from polymax_recipes.training.task import MODULES, named

TREE = "(S (NP (DT a) (NN b)) (VB c))"
# the rows of each task by role, as they may be in memory
ROWS = {
    "bracket": [{"tree": TREE}, {"tree": "(S (VB go))"}],
    "classify": [{"label": "good", "text": "a fine film"}, {"label": "bad", "text": 'so "dull", so long'}],
    "entail": [{"label": "neutral", "premise": "a cat", "hypothesis": "a red cat"}] * 2,
    "listops": [{"source": "[MAX 2 9 ]", "target": "9"}, {"source": "[MIN 2 9 ]", "target": "2"}],
    "lm": [{"text": "one text"}, {"text": "another text"}],
    "parse": [{"form": ["She", "sings"], "head": [2, 0], "deprel": ["nsubj", "root"]}] * 2,
    "protein-align": [{"first": "AC-GT", "second": "A-TGT"}] * 2,
    "seq2seq": [{"source": "one two", "target": "1 2"}, {"source": "three", "target": "3"}],
    "series": [{"label": "a", "values": [0.0, 1.0, 2.0]}, {"label": "b", "values": [2.0, 1.0]}],
    "speech-align": [{"sound": "a.wav", "tokens": ["x", "y"], "ends": [0.1, 0.2]}] * 2,
    "tag": [{"token": ["Anna", "sings"], "tag": ["B-PER", "O"]}, {"token": ["x"], "tag": ["O"]}],
    "word-align": [{"source": "a dog", "target": "un chien"}, {"source": "a", "target": "un"}],
}
# the names that files of others have for these columns
OTHERS = {"token": "words", "tag": "ner", "text": "review", "source": "en", "target": "fr", "label": "class"}


def plain(examples):
    """Examples without the places that they come from, tensors as lists."""
    return json.dumps(examples, default=lambda one: getattr(one, "tolist", lambda: str(one))())[:10_000].replace(
        "data:", "table:"
    )


def write_table(rows, kind, path):
    """Write rows as a table of a kind, lists of tokens in columns of text with spaces between them."""
    flat = [{k: " ".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        cells = [list(flat[0]), *(list(row.values()) for row in flat)]
        quoted = (",".join('"' + str(cell).replace('"', '""') + '"' for cell in row) for row in cells)
        path.write_text("".join(row + "\n" for row in quoted))
    elif kind == "parquet":
        pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed").write_table(
            pytest.importorskip("pyarrow").Table.from_pylist(rows), path
        )
    else:
        pytest.importorskip("datasets", reason="datasets is not installed").Dataset.from_list(rows).save_to_disk(path)


def test_every_task_has_rows_here():
    assert set(ROWS) == set(MODULES)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "dataset"])
@pytest.mark.parametrize("name", ROWS)
def test_tables_give_the_examples_of_rows_in_memory(name, kind, tmp_path, monkeypatch):
    task, rows = named(name), ROWS[name]
    monkeypatch.chdir(tmp_path)
    write_wave("a.wav", Sound(torch.zeros(4000), 16000))
    options = task.Options()
    wanted = task.of_rows(rows_in_memory(rows, "table", task.roles), options)
    assert len(wanted) == 2
    renamed = [{OTHERS.get(role, role): value for role, value in row.items()} for row in rows]
    chosen = ",".join(f"{role}={OTHERS.get(role, role)}" for role in rows[0])
    for given, columns in ((rows, ""), (renamed, chosen)):
        file = Path(f"table{len(columns)}.{kind}")
        write_table(given, kind, file)
        if name == "series" and kind == "csv" and not columns:
            # a wide table: the class and all values of a series in a line
            continue
        found = task.read_as([file], task.Options(columns=columns))
        assert plain(found).replace(str(file), "table") == plain(wanted)


def test_rows_in_memory_come_in_many_forms():
    task, rows = named("tag"), ROWS["tag"]
    pairs = [(row["token"], row["tag"]) for row in rows]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    wanted = task.of_rows(rows_in_memory(rows, "train", task.roles), task.Options())
    for given in (pairs, columns, iter(rows)):
        assert task.of_rows(rows_in_memory(given, "train", task.roles), task.Options()) == wanted
    with pytest.raises(TypeError, match="train must be a file, a list of rows, a frame or a dataset; got int"):
        list(rows_in_memory(3, "train", task.roles))


def test_frames_and_datasets_name_their_classes():
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    task = named("tag")
    names = datasets.ClassLabel(names=["O", "B-PER"])
    features = datasets.Features({"tokens": [datasets.Value("string")], "ner_tags": [names]})
    made = datasets.Dataset.from_dict({"tokens": [["Anna", "sings"]], "ner_tags": [[1, 0]]}, features=features)
    for given in (made, made.to_pandas().assign(ner_tags=[["B-PER", "O"]])):
        (found,) = task.of_rows(rows_in_memory(given, "train", task.roles), task.Options())
        assert found.tags == ["B-PER", "O"]


def test_names_of_classes_are_kept_on_disk(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    label = datasets.ClassLabel(names=["bad", "good"])
    features = datasets.Features({"label": label, "sentence": datasets.Value("string")})
    made = datasets.Dataset.from_dict({"label": [1, 0], "sentence": ["fine", "dull"]}, features=features)
    made.save_to_disk(tmp_path / "set")
    made.to_parquet(tmp_path / "set.parquet")
    datasets.DatasetDict({"train": made}).save_to_disk(tmp_path / "parts")
    task = named("classify")
    for path in (tmp_path / "set", tmp_path / "set.parquet", tmp_path / "parts" / "train"):
        assert [example.label for example in task.read_as([path], task.Options())] == ["good", "bad"]
    with pytest.raises(ValueError, match=r"parts has parts train: give one of them, such as .*parts/train"):
        task.read_as([tmp_path / "parts"], task.Options())
    assert digest([tmp_path / "set"]) != digest([tmp_path / "parts"])


TAGGED = "id,word,ner\n1,Anna,B-PER\n1,sings,O\n2,x,O\n"


@pytest.mark.parametrize(
    ("text", "columns", "found"),
    [
        ("word,ner\nAnna,B-PER\nsings,O\n\nx,O\n", "", [2, 1]),
        (TAGGED, "sentence=id", [2, 1]),
        ("1,Anna,B-PER\n1,sings,O\n2,x,O\n", "token=1,tag=-1,sentence=0", [2, 1]),
        ("Anna,B-PER\nsings,O\n\nx,O\n", "", [2, 1]),
    ],
)
def test_tokens_of_a_sentence_may_be_rows(text, columns, found, tmp_path):
    task = named("tag")
    (tmp_path / "a.csv").write_text(text)
    sentences = task.read_as([tmp_path / "a.csv"], task.Options(columns=columns))
    assert [len(sentence.tokens) for sentence in sentences] == found
    assert sentences[0].tags == ["B-PER", "O"]


def test_columns_of_plain_files_are_chosen_by_the_same_option(tmp_path):
    task, text = named("tag"), "1\tAnna\tB-PER\t-\n2\tsings\tO\t-\n\n"
    (tmp_path / "a.txt").write_text(text)
    (found,) = task.read_as([tmp_path / "a.txt"], task.Options(columns="token=1,tag=-2"))
    assert (found.tokens, found.tags) == (["Anna", "sings"], ["B-PER", "O"])
    with pytest.raises(ValueError, match="--columns must come without --token-column"):
        task.read_as([tmp_path / "a.txt"], task.Options(columns="token=1", token_column="2"))
    classify = named("classify")
    with gzip.open(tmp_path / "b.tsv.gz", "wt") as file:
        file.write("id\tstars\treview\n7\t5\ta fine film\n")
    (example,) = classify.read_as([tmp_path / "b.tsv.gz"], classify.Options(columns="label=stars,text=review"))
    assert (example.label, example.sides[0].tokens) == ("5", ("a", "fine", "film"))


FAULTS = [
    ("a.csv", "x,y\n1,2\n", "label=x", r"a.csv:2: no column for text; there are x, y: --columns text=NAME says which"),
    ("a.csv", "x,y\n1,2\n", "label=x,text=z", r"a.csv:2: no column z for text; there are x, y"),
    ("a.csv", "x,a b\ny\n", "", r"a.csv:2: 2 columns between commas expected, label, text; got 1"),
    ("a.csv", 'x,"a b\n', "", r"a.csv:1: CSV expected: unexpected end of data"),
    ("a.tsv", "x\n", "", r"a.tsv:1: 2 columns between tabs expected, label, text; got 1"),
    ("a.tsv", "1\t2\t3\t4\n", "", r"columns between tabs expected, label, text; got 4: --columns says which"),
    ("a.jsonl", '{"label": "x", "text": ["a"]}\n', "", r"a.jsonl:1: text must be a text, not empty; got \['a'\]"),
    ("a.parquet", "no", "", r"a.parquet:1: Parquet expected"),
]


@pytest.mark.parametrize(("name", "text", "columns", "message"), FAULTS)
def test_what_is_wrong_with_a_table_is_named(name, text, columns, message, tmp_path):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    task = named("classify")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        task.read_as([tmp_path / name], task.Options(columns=columns))


def test_wrong_columns_are_named():
    roles = (Role("token"), Role("tag"))
    for text, message in (
        ("token", r"--columns must be ROLE=COLUMN with commas between, such as token=0; got 'token'"),
        ("word=0", r"--columns: unknown role word; this task has token, tag"),
    ):
        with pytest.raises(ValueError, match=message):
            parse_columns(text, roles)


def test_any_token_that_is_not_empty_is_a_token(tmp_path):
    task = named("tag")
    (tmp_path / "a.txt").write_text("\u2009\tO\n \tO\na\tB-X\n\n")
    (found,) = task.read_as([tmp_path / "a.txt"], task.Options())
    assert found.tokens == ["\u2009", " ", "a"]


SMALL = {"hidden": 4, "embedding": 4, "characters": 4, "spelling": 4, "epochs": 1, "accelerator": "cpu"}


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    """A run of a tagger, trained on rows in memory, and its model."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    out = tmp_path_factory.mktemp("runs") / "run"
    rows = [{"words": list("abc"), "ner": ["O", "B-X", "O"]}] * 8
    given = {"columns": {"token": "words", "tag": "ner"}, "loss": "softmax", **SMALL}
    return out, recipes.train("tag", train=rows, dev=rows[:4], out=out, **given), rows


def test_rows_in_memory_train_and_resume(tagger):
    out, trained, rows = tagger
    assert trained.reports["dev"]["sentences"] == 4
    assert trained.evaluate(rows)["sentences"] == 8
    assert read_samples(Run(out))[0] == list("abc")
    assert trained.results(read_samples(Run(out)))[0].tokens == list("abc")
    given = {"epochs": 2, "out": out, "resume": True}
    assert recipes.train("tag", train=rows, dev=rows[:4], **given).reports["dev"]["sentences"] == 4
    with pytest.raises(ValueError, match=r"train: not the rows that .*run began with"):
        recipes.train("tag", train=rows[:2], dev=rows[:4], **given)
    with pytest.raises(FileExistsError, match="has a run already"):
        recipes.train("tag", train=rows, dev=rows, out=out, **SMALL)


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


def test_tables_are_predicted(tagger, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"words": ["a", "b"]}\n{"words": ["c"]}\n')
    result = invoke("predict", tagger[0], file)
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["a", "b", "", "c", ""]
    file.write_text('{"tokens": ["c"]}\n')
    result = invoke("predict", tagger[0], file, "--columns", "token=tokens")
    assert [line.split("\t")[0] for line in result.stdout.splitlines()] == ["c", ""]
    assert "no column words for token" in invoke("predict", tagger[0], file).stderr


def test_skipped_sentences_are_reported_with_the_measures(tagger, tmp_path):
    out, trained, _ = tagger
    test = tmp_path / "test.txt"
    test.write_text("a\tO\n\nb\n\nc\tO\n")
    options = recipes.load(out, skip_bad=True, columns="")
    with pytest.warns(Doubt, match=r"not comparable with measures of the whole file:\n  .*test.txt:3: 2 columns"):
        report = options.evaluate(test)
    assert (report["sentences"], report["skipped"]) == (2, 1)
    assert "skipped" not in trained.evaluate(tagger[2])


BAD = "a\tO\n\nb\tO\nc\n\na\tO\n\n"


def test_predictions_skip_inputs_that_cannot_be_read(tagger, tmp_path):
    out = tagger[0]
    test, output = tmp_path / "test.txt", tmp_path / "tagged.txt"
    test.write_text(BAD)
    result = invoke("predict", out, test, "--output", output)
    assert result.exit_code == 1
    assert "test.txt:4: 2 columns expected" in result.stderr
    # the stopped output goes on, past the sentence at which it stopped
    result = invoke("predict", out, test, "--output", output, "--resume", "--skip-bad")
    assert result.exit_code == 0, result.output
    assert "passed over 1 inputs that cannot be read:\n  " in result.stderr
    written = output.read_text().splitlines()
    assert [line.split("\t")[0] for line in written] == ["a", "", "b", "c", "", "a", ""]
    assert written[2:4] == ["b\tO", "c"]


def test_a_line_that_cannot_be_read_stays_a_line():
    class Judge:
        task = named("entail")
        vocabularies, options = {}, named("entail").Options()

    lines = list(named("entail").lines_of_rows(None, rows_in_memory(ROWS["entail"], "x", named("entail").roles)))
    assert [line.text for line in lines] == ["a cat\ta red cat"] * 2
    errors = []
    bad = lines[0]._replace(text="one column")
    (piece,) = predicted(Judge(), "input", [bad], 0, (), errors)
    assert piece.output == [""]
    assert "premise and hypothesis between tabs expected" in str(errors[0])


def test_trees_in_tables_are_those_of_files(tmp_path):
    (tmp_path / "a.ptb").write_text(TREE)
    task = named("bracket")
    assert task.of_rows(rows_in_memory(ROWS["bracket"][:1], "x", task.roles), None) == read_brackets(
        [tmp_path / "a.ptb"]
    )
    with pytest.raises(ReadError, match="x:1: "):
        task.of_rows(rows_in_memory([{"tree": "(S"}], "x", task.roles), None)


def test_a_table_that_only_gives_inputs_is_read_to_predict(tmp_path):
    (tmp_path / "a.tsv").write_text("a cat\ta dog\n")
    rows = list(read_table(tmp_path / "a.tsv", named("entail").roles, predict=True))
    assert rows[0].values == {"premise": "a cat", "hypothesis": "a dog"}
