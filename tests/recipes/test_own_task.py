"""Tasks of one's own: the example of the docs trains by the command, and entry points are found."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.testing import CliRunner

import polymax_recipes as recipes
from polymax_recipes import cli, tasks
from polymax_recipes.training import task as training

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


def invoke(*arguments):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def registered():
    """The tasks as they are, whatever a test registers."""
    before = dict(training.MODULES)
    yield
    training.MODULES.clear()
    training.MODULES.update(before)
    training.named.cache_clear()


@pytest.fixture
def own(tmp_path):
    """The file of the docs, with data beside it."""
    (code,) = re.findall(r"```python\n(.*?class LanguageTask.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "languages.py").write_text(code)
    (tmp_path / "train.tsv").write_text("en\twhy\nde\tzug\n" * 20)
    (tmp_path / "words.txt").write_text("why\nzug\n")
    yield tmp_path
    sys.modules.pop("polymax_task_languages", None)


def test_the_task_of_the_docs_trains_and_predicts(own):
    pytest.importorskip("lightning", reason="lightning is not installed")
    file, data = own / "languages.py", own / "train.tsv"
    files = ("--train", data, "--dev", data, "--out", own / "run")
    small = ("--epochs", 3, "--lr", 0.1, "--batch-size", 10, "--accelerator", "cpu", "--alpha", 2)
    result = invoke("train", "--task", file, "languages", *files, *small)
    assert result.exit_code == 0, result.output
    assert "the epoch with the highest dev_accuracy is kept" in result.output
    result = invoke("predict", own / "run", own / "words.txt", "--task", file)
    assert result.stdout == "en\nde\n"
    assert "accuracy" in invoke("evaluate", own / "run", data, "--task", file).stdout
    assert recipes.load(own / "run").options.alpha == 2


def test_a_run_of_an_unknown_task_says_how_to_name_it(own):
    with pytest.raises(ValueError, match="got 'languages'; --task FILE gives a task of your own"):
        training.named("languages")
    assert recipes.register_file(own / "languages.py") == "languages"
    assert training.named("languages").summary == "tell the language of a word"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "must have an object `task`"), ("task = 3", "got 3"), (None, "--task must be a Python file")],
)
def test_files_without_a_task_are_one_line(text, message, tmp_path):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    result = invoke("predict", tmp_path, tmp_path, "--task", file)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --task")
    assert message in result.stderr


def test_entry_points_are_registered_without_an_import(monkeypatch, capsys):
    found = [EntryPoint("chess", "package_that_is_not_there.chess:task", "polymax.tasks")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found if group == "polymax.tasks" else [])
    exec(compile(Path(tasks.__file__).read_text(), tasks.__file__, "exec"), {})
    assert training.MODULES["chess"] == "package_that_is_not_there.chess"
    # the command goes on without a task that cannot be imported
    result = invoke("train", "--help")
    assert result.exit_code == 0
    assert "the task chess cannot be loaded" in capsys.readouterr().err
    assert "seq2seq" in result.stdout
