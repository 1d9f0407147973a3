"""Predictions stream: in pieces, as far as the input can be read, and from where they were stopped."""

import errno
import json
import os
import re
from dataclasses import replace

import pytest
import torch

from polymax_recipes.readers.lines import ReadError, grouped, lines
from polymax_recipes.training import predict
from polymax_recipes.training.predict import predictions, write_predictions
from polymax_recipes.training.shards import Shard, shard_lines
from polymax_recipes.training.task import Task, Trained


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


def partial(output):
    return output.with_name("out.part")


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
    assert not output.exists()
    assert partial(output).read_text().splitlines() == SHOUTED[:3]
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
        with partial(output).open("a") as torn:
            torn.write("3 half a li")
        with pytest.raises(FileExistsError, match="is not finished; --resume continues it"):
            write(trained, source, output)
        write(trained, source, output, resume=True)
    assert output.read_text().splitlines() == SHOUTED
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


def test_a_stopped_output_is_begun_again_by_force(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    trained.task.stop = "d"
    with pytest.raises(KeyboardInterrupt):
        write(trained, source, output)
    assert partial(output).exists()
    trained.task.stop = ""
    write(trained, source, output, force=True)
    assert output.read_text().splitlines() == SHOUTED
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


def test_only_the_same_is_gone_on_with(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    with pytest.raises(FileNotFoundError, match="nothing was begun, or all is written"):
        write(trained, source, output, resume=True)
    trained.task.stop = "d"
    with pytest.raises(KeyboardInterrupt):
        write(trained, source, output)
    kept = partial(output).read_bytes()
    with pytest.raises(ValueError, match="of another model, or of other options"):
        write(trained, source, output, resume=True, model="other")
    source.write_text(TEXT.replace("c", "x"))
    with pytest.raises(ValueError, match=r"not the text that .*out.part began with"):
        write(trained, source, output, resume=True)
    record = output.with_name("out.progress")
    stored = json.loads(record.read_text())
    for text in ("{}x", "[]", "[" * 10_000, *(json.dumps({**stored, name: None}) for name in stored), '{"units": -1}'):
        record.write_text(text)
        with pytest.raises(ValueError, match=r"out.progress: not a record of progress, or a damaged one"):
            write(trained, source, output, resume=True)
    # zeros would fill the gap
    record.write_text(json.dumps({**stored, "bytes": 999}))
    source.write_text(TEXT)
    with pytest.raises(ValueError, match=r"out.part must have 999 bytes, as .*; got \d+: --force begins again"):
        write(trained, source, output, resume=True)
    assert partial(output).read_bytes() == kept


def test_what_exists_is_replaced_if_asked_for(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    output.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out exists; --force writes over it"):
        write(trained, source, output)
    trained.task.stop = "d"
    with pytest.raises(KeyboardInterrupt):
        write(trained, source, output, force=True)
    # until all is there
    assert output.read_text() == "mine"
    trained.task.stop = ""
    write(trained, source, output, resume=True, force=True)
    assert output.read_text().splitlines() == SHOUTED
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "out"]


def test_a_link_named_like_the_partial_output_is_not_written_through(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    partial(output).symlink_to(source)
    write(trained, source, output)
    assert source.read_text() == TEXT
    assert output.read_text().splitlines() == SHOUTED


def test_a_pipe_is_written_as_it_is(trained, tmp_path):
    source, output = tmp_path / "in", tmp_path / "pipe"
    source.write_text(TEXT)
    os.mkfifo(output)
    reader = os.open(output, os.O_RDONLY | os.O_NONBLOCK)
    write(trained, source, output)
    assert os.read(reader, 1000).decode().splitlines() == SHOUTED
    os.close(reader)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in", "pipe"]


def test_a_full_disk_keeps_a_run_that_can_be_resumed(trained, tmp_path, monkeypatch):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(TEXT)
    for allowed, left in ((0, ["in"]), (1, ["in", "out.part", "out.progress"])):
        calls = []

        def full(descriptor, calls=calls, allowed=allowed):
            calls.append(descriptor)
            if len(calls) > allowed:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"no space is left to write .*out.progress"):
                write(trained, source, output)
        assert sorted(file.name for file in tmp_path.iterdir()) == left
    write(trained, source, output, resume=True)
    assert output.read_text().splitlines() == SHOUTED


def test_a_model_is_asked_in_order(trained):
    again = replace(trained)
    assert list(again.predict(["z", "", "y"])) == ["1 Z", "2 Y"]


def test_shards_join_to_the_same_bytes(trained, tmp_path):
    source = tmp_path / "in"
    source.write_text("".join(f"{word}\n\n" for word in "abcdefghi"))
    write(trained, source, tmp_path / "whole")
    for count in (1, 2, 3, 4, 7):
        outputs = []
        for number in range(1, count + 1):
            before, own = shard_lines(trained, lambda: lines(source), Shard(number, count), predict.CHUNK)
            output = tmp_path / f"{number} of {count}"
            write_predictions(trained, "m", (str(source), own), output, before=before)
            outputs.append(output.read_bytes())
        assert b"".join(outputs) == (tmp_path / "whole").read_bytes()
    # a shard that was stopped goes on
    trained.task.stop = "g"
    output = tmp_path / "stopped"
    before, own = shard_lines(trained, lambda: lines(source), Shard(2, 2), 2)
    with pytest.raises(KeyboardInterrupt):
        write_predictions(trained, "m", (str(source), own), output, before=before)
    trained.task.stop = ""
    before, own = shard_lines(trained, lambda: lines(source), Shard(2, 2), 2)
    write_predictions(trained, "m", (str(source), own), output, resume=True, before=before)
    assert output.read_text().splitlines() == ["5 E", "6 F", "7 G", "8 H", "9 I"]


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_wrong_shards_are_refused(text):
    with pytest.raises(ValueError, match="--shard must be I/N"):
        Shard.parsed(text)


def test_copies_keep_the_order_and_the_errors(trained, tmp_path):
    trained.model = torch.nn.Linear(1, 1)
    copies = [replace(trained, model=torch.nn.Linear(1, 1)) for _ in range(2)]
    texts = [part for word in "abcdefghi" for part in (word, "")]
    alone = [piece.output for piece in predict.predicted(trained, "input", predict.as_lines(texts))]
    assert [piece.output for piece in predict.predicted(trained, "input", predict.as_lines(texts), 0, copies)] == alone
    texts[10] = "bad"
    pieces, found = predict.predicted(trained, "input", predict.as_lines(texts), 0, copies), []
    with pytest.raises(ReadError, match="input:11: bad"):
        found.extend(piece.output for piece in pieces)
    assert found == [*alone[:2], ["5 E"]]
