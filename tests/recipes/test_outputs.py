"""Files that commands write: never one that is read, by whatever name; whole or not at all; over others if asked to."""

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polymax_recipes import cli
from polymax_recipes.outputs import atomic_write, save_picture, writable_directory, writable_file
from polymax_recipes.readers.lines import write
from polymax_recipes.seq2seq import numbers
from polymax_recipes.training import fit
from polymax_recipes.training.digests import atomic_write_with_digest

pytest.importorskip("lightning", reason="lightning is not installed")

TINY = {"hidden": 4, "embedding": 4, "longest": 4, "accelerator": "cpu", "epochs": 1}
TEXT = "nine\ntwo hundred\n"


def invoke(*arguments, **options):
    return CliRunner().invoke(cli.application(), [str(argument) for argument in arguments], **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run, with its data beside it."""
    folder = tmp_path_factory.mktemp("outputs")
    train, dev = numbers.write(folder, train=20, dev=5)
    fit.train("seq2seq", {"train": [train], "dev": [dev]}, folder / "run", TINY)
    return folder / "run"


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "tok.txt"
    file.write_text(TEXT)
    return file


def itself(source):
    return source


def soft_link(source):
    link = source.with_name("soft")
    link.symlink_to(source.name)
    return link


def hard_link(source):
    link = source.with_name("hard")
    link.hardlink_to(source)
    return link


def other_spelling(source):
    return source.parent / ".." / source.parent.name / source.name


def relative(source):
    return Path(os.path.relpath(source))


def through_a_folder(source):
    link = source.parent.parent / f"{source.parent.name}-link"
    link.symlink_to(source.parent, target_is_directory=True)
    return link / source.name


@pytest.mark.parametrize("name", [itself, soft_link, hard_link, other_spelling, relative, through_a_folder])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_the_input_is_no_output(run, source, name, force):
    output = name(source)
    for first, second in ((source, output), (output, source)):
        result = invoke("predict", run, first, "--output", second, *force)
        assert result.exit_code == 1
        assert result.stderr == (
            f"error: --output: {second} is the file that is read as {first}; it must be another one\n"
        )
    assert source.read_text() == TEXT


@pytest.mark.skipif(not Path("/dev/stdin").exists(), reason="there is no /dev/stdin")
@pytest.mark.parametrize("name", ["-", "/dev/stdin", "/dev/fd/0"])
def test_the_standard_input_is_no_output(source, name):
    kept = os.dup(0)
    try:
        with source.open() as opened:
            os.dup2(opened.fileno(), 0)
        with pytest.raises(ValueError, match=f"is the file that is read as {name}; it must be another one"):
            writable_file(source, inputs=[Path(name)])
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_the_partial_output_is_no_input(run, source):
    output = source.with_name("out")
    for ending in (".part", ".progress"):
        named = source.rename(output.with_name("out" + ending))
        result = invoke("predict", run, named, "--output", output, "--force")
        assert result.exit_code == 1
        assert "must be another" in result.stderr
        source = named
    assert source.read_text() == TEXT


@pytest.mark.parametrize("command", ["predict", "ambiguous", "plot-log", "plot-attention"])
@pytest.mark.parametrize("file", ["weights.pt", "config.json", "log.csv", "digests.json"])
def test_files_of_the_run_are_no_outputs(run, source, command, file):
    arguments = {
        "predict": ("predict", run, source, "--force", "--output"),
        "ambiguous": ("ambiguous", run, source, "--force", "--output"),
        "plot-log": ("plot-log", run, "--measure", "loss", "--out"),
        "plot-attention": ("plot-attention", run, "--source", "nine", "--out"),
    }[command]
    before = (run / file).read_bytes()
    result = invoke(*arguments, run / file)
    assert result.exit_code == 1
    assert f"{run / file} is the file that is read as {run / file}" in result.stderr
    assert (run / file).read_bytes() == before


def test_what_exists_is_written_over_if_asked_to(run, source):
    output = source.with_name("out")
    assert invoke("predict", run, source, "--output", output).exit_code == 0
    written = output.read_text()
    again = invoke("predict", run, source, "--output", output)
    assert again.stderr == f"error: --output: {output} exists; --force writes over it\n"
    link = source.with_name("link")
    link.symlink_to(output)
    output.write_text("older")
    output.chmod(0o640)
    assert invoke("predict", run, source, "--output", link, "--force").exit_code == 0
    # the link stays one, and the file keeps who may read it
    assert link.is_symlink()
    assert output.read_text() == written
    assert output.stat().st_mode & 0o777 == 0o640


def test_options_of_an_output_need_one(run, source):
    for option in ("--force", "--resume"):
        result = invoke("predict", run, source, option)
        assert result.stderr == f"error: {option} must come with --output\n"


def test_a_fault_says_where_the_rest_is(run, source, monkeypatch):
    monkeypatch.setattr("polymax_recipes.training.predict.CHUNK", 1)
    source.write_bytes(b"nine\n\xff\n")
    result = invoke("predict", run, source, "--output", source.with_name("out"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {source}:2: UTF-8 expected")
    assert result.stderr.endswith(f"what comes before is in {source.with_name('out.part')}, and --resume goes on\n")


WRITERS = {
    "atomic_write": lambda file, fault: _placed(atomic_write, file, fault),
    "atomic_write_with_digest": lambda file, fault: _placed(atomic_write_with_digest, file, fault),
    "write": lambda file, fault: write(file, _texts(fault)),
    "picture": lambda file, fault: save_picture(_Figure(fault), file),
}


def _placed(context, file, fault):
    with context(file) as temporary:
        temporary.write_text("new")
        fault()


def _texts(fault):
    yield "new"
    fault()


class _Figure:
    def __init__(self, fault):
        self.fault = fault

    def savefig(self, file, format):
        assert format == "png"
        file.write_text("new")
        self.fault()


def stop():
    raise KeyboardInterrupt


def full():
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("fault", [stop, full])
def test_what_fails_leaves_the_file_as_it_was(tmp_path, writer, fault):
    file = tmp_path / "file.png"
    for existing in (False, True):
        with pytest.raises((KeyboardInterrupt, OSError)) as raised:
            WRITERS[writer](file, fault)
        assert fault is stop or str(raised.value) == f"[Errno 28] no space is left to write {file}"
        assert [one.name for one in tmp_path.iterdir()] == ["file.png"] * existing
        file.write_text("old")
    assert file.read_text() == "old"
    WRITERS[writer](file, lambda: None)
    assert file.read_text() == "new"


def test_places_that_cannot_be_written_are_named(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(IsADirectoryError, match=r"--out must be a file; .* is a directory"):
        writable_file(tmp_path)
    with pytest.raises(ValueError, match=r"--output: .*tags.gz would not be compressed"):
        writable_file(tmp_path / "tags.gz", "--output")
    with pytest.raises(FileNotFoundError, match=r"--matrix: there is no directory .*none"):
        writable_file(tmp_path / "none" / "file", "--matrix")
    with pytest.raises(NotADirectoryError, match=r"--out must be a directory; .* is a file"):
        writable_directory(file)
    with pytest.raises(NotADirectoryError, match=r"--out: .*new cannot be made; .*file is a file"):
        writable_directory(file / "new")
    writable_directory(tmp_path / "a" / "b")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]
    # permissions bind no one who may do everything
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=r"--out: no permission to write .*file"):
        writable_file(file)
