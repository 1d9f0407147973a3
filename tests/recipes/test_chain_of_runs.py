"""A tagger and a parser follow each other: `polymax predict TAGGER PARSER text.txt --text`."""

import pytest
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli
from polymax_recipes.parse.task import ParseTask
from polymax_recipes.training import fit
from polymax_recipes.training.run import Config

pytest.importorskip("lightning", reason="lightning is not installed")

SIZES = {"hidden": 4, "embedding": 4, "characters": 4, "spelling": 4, "epochs": 1, "accelerator": "cpu"}
LINES = "1\tDogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tbark\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of a tagger and of a parser on one small treebank."""
    folder = tmp_path_factory.mktemp("chain")
    (folder / "train.conllu").write_text(LINES * 10)
    files = {part: [folder / "train.conllu"] for part in ("train", "dev")}
    small = {"arcs": 4, "labels": 4, "layers": 1}
    fit.train("tag", files, folder / "tagger", {"loss": "softmax", **SIZES})
    fit.train("parse", files, folder / "parser", {"loss": "softmax-heads", **small, **SIZES})
    return folder


def test_a_tagger_writes_what_a_parser_reads(runs, tmp_path):
    text, output = tmp_path / "a.txt", tmp_path / "a.conllu"
    text.write_text("Dogs bark. Bark, dogs!\n")
    both = (runs / "tagger", runs / "parser", text, "--text")
    result = invoke("predict", *both, "--output", output)
    assert result.exit_code == 0, result.output
    rows = [line.split("\t") for line in output.read_text().splitlines() if line and line[0] != "#"]
    assert [row[1] for row in rows] == ["Dogs", "bark", ".", "Bark", ",", "dogs", "!"]
    assert {row[3] for row in rows} <= {"NOUN", "VERB"}
    assert all(row[6].isdecimal() and row[7] in ("nsubj", "root") for row in rows)
    assert invoke("predict", *both).stdout == output.read_text()
    # alone, the parser leaves the part of speech open
    alone = invoke("predict", runs / "parser", text, "--text").stdout
    assert {line.split("\t")[3] for line in alone.splitlines() if line and line[0] != "#"} == {"_"}


def test_an_input_without_a_run_is_refused(tmp_path):
    result = invoke("predict", tmp_path / "a.txt")
    assert result.stderr.startswith("error: RUN... INPUT must be a run or several, and an input; got ")


def test_defaults_of_a_parser_fit_the_size_of_the_data(runs, capsys):
    assert recipes.load(runs / "parser").options.loss == "softmax-heads"
    learning = Config.read(runs / "parser" / "config.json").learning
    assert (learning.batch_size, learning.lr) == (8, 0.002)
    assert [ParseTask().fitted(count)["batch_size"] for count in (1, 1315, 3000, 12544)] == [8, 8, 16, 64]


def test_options_that_are_given_are_not_fitted(runs, tmp_path, capsys):
    files = {part: [runs / "train.conllu"] for part in ("train", "dev")}
    given = {"loss": "softmax-heads", "arcs": 4, "labels": 4, "layers": 1, "batch_size": 5, **SIZES}
    fit.train("parse", files, tmp_path / "run", given)
    assert "defaults for 10 training examples: --lr 0.002\n" in capsys.readouterr().out
    assert Config.read(tmp_path / "run" / "config.json").learning.batch_size == 5
