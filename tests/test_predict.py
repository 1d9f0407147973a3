"""Predictions stream: in pieces, as far as the input can be read, and from where they were stopped."""

import re
from dataclasses import replace

import pytest

from polymax.recipes.readers.lines import ReadError, grouped, lines
from polymax.recipes.training import predict
from polymax.recipes.training.predict import predictions, write_predictions
from polymax.recipes.training.task import Task, Trained


class Loud(Task):
    """Sentences of a word a line, shouted and numbered."""

    asked: list[int]
    stop = ""

    def units(self, lines):
        return grouped(lines)

    def parse(self, file, unit):
        for line in unit:
            if line.text == "bad":
                raise ReadError.at(file, line.number, "bad")
        return [line.text for line in unit if not line.blank]

    def predict(self, trained, inputs, before):
        self.asked.append(len(inputs))
        for number, words in enumerate(inputs, before + 1):
            if self.stop in words:
                raise KeyboardInterrupt
            yield f"{number} {' '.join(words).upper()}"

    read = vocabularies = encode = model = evaluate = None


@pytest.fixture
def trained(monkeypatch):
    monkeypatch.setattr(predict, "CHUNK", 2)
    # the methods of a training are not asked for
    task = type("Whole", (Loud,), {"__abstractmethods__": frozenset()})()
    task.asked = []
    return Trained(task, None, {}, None)


TEXT = "a\nb\n\nc\n\n\nd\n\ne\nf\n"
SHOUTED = ["1 A B", "2 C", "3 D", "4 E F"]


def write(trained, source, output, **options):
    done = []
    options = {"model": "m", **options}
    inputs = (str(source), lines(source))
    write_predictions(trained, options.pop("model"), inputs, output, advanced=done.append, **options)
    return done


def test_lines_are_taken_a_few_at_a_time(trained):
    found = predictions(trained, TEXT.split("\n")[:-1])
    assert trained.task.asked == []
    assert next(found) == SHOUTED[0]
    assert trained.task.asked == [2]
    assert list(found) == SHOUTED[1:]
    assert list(predictions(trained, [])) == []


def test_what_comes_before_a_fault_is_written(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT.replace("e\n", "bad\n"))
    with pytest.raises(ReadError, match=re.escape(f"{source}:9: bad")):
        write(trained, source, output)
    assert output.read_text().splitlines() == SHOUTED[:3]
    # mended, it goes on
    source.write_text(TEXT)
    assert write(trained, source, output, resume=True) == [8, 2]
    assert output.read_text().splitlines() == SHOUTED
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


@pytest.mark.parametrize("stop", ["a", "d", "f"])
def test_a_stopped_output_goes_on(trained, tmp_path, stop):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    trained.task.stop = stop
    with pytest.raises(KeyboardInterrupt):
        write(trained, source, output)
    trained.task.stop = ""
    if stop == "a":
        # nothing was written: there is nothing to go on with
        write(trained, source, output)
    else:
        with output.open("a") as torn:
            torn.write("3 half a li")
        with pytest.raises(FileExistsError, match="is not finished; --resume continues it"):
            write(trained, source, output)
        write(trained, source, output, resume=True)
    assert output.read_text().splitlines() == SHOUTED
    assert not output.with_name("out.progress").exists()


def test_only_the_same_is_gone_on_with(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    with pytest.raises(FileNotFoundError, match="nothing was begun, or all is written"):
        write(trained, source, output, resume=True)
    trained.task.stop = "d"
    with pytest.raises(KeyboardInterrupt):
        write(trained, source, output)
    kept = output.read_bytes()
    with pytest.raises(ValueError, match="of another model, or of other options"):
        write(trained, source, output, resume=True, model="other")
    source.write_text(TEXT.replace("c", "x"))
    with pytest.raises(ValueError, match=r"not the text that .*out began with"):
        write(trained, source, output, resume=True)
    output.with_name("out.progress").write_text("{}x")
    with pytest.raises(ValueError, match="not a record of progress"):
        write(trained, source, output, resume=True)
    assert output.read_bytes() == kept


def test_a_model_is_asked_in_order(trained):
    again = replace(trained)
    assert list(again.predict(["z", "", "y"])) == ["1 Z", "2 Y"]
