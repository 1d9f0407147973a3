"""Splits: every item once, repeats on one side, nothing written over."""

import gzip

import pytest

from polymax_recipes import readers as r
from polymax_recipes.split import main, split


def parts(folder, ending):
    return {part: (folder / f"{part}{ending}").read_text(encoding="utf-8") for part in ("train", "dev", "test")}


def test_lines_are_split_by_their_place(tmp_path):
    source = tmp_path / "a.txt"
    source.write_text("".join(f"{k}\n" for k in range(23)) + "\n")
    assert split(source, tmp_path / "out") == {"train": 17, "dev": 3, "test": 3}
    found = parts(tmp_path / "out", ".txt")
    assert (found["dev"], found["test"]) == ("0\n10\n20\n", "1\n11\n21\n")
    assert sorted(map(int, "".join(found.values()).split())) == list(range(23))


def test_repeats_stay_together(tmp_path):
    source = tmp_path / "a.tsv"
    source.write_text("".join(f"{k // 3}\t{k}\n" for k in range(30)))
    assert split(source, tmp_path / "out", every=5, group=1) == {"train": 18, "dev": 6, "test": 6}
    sides = [{line.split("\t")[0] for line in text.splitlines()} for text in parts(tmp_path / "out", ".tsv").values()]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 10


def test_trees_and_sentences_are_items(tmp_path):
    trees, columns = tmp_path / "a.psd.gz", tmp_path / "a.conll"
    written = [r.Tree("", (r.Tree("NP", (r.Tree("N", (), f"w{k}"),)), r.Tree("ID", (), str(k)))) for k in range(10)]
    trees.write_bytes(gzip.compress("\n\n".join(str(tree).replace(" (ID", "\n  (ID") for tree in written).encode()))
    assert split(trees, tmp_path / "trees") == {"train": 8, "dev": 1, "test": 1}
    assert list(r.read_trees(tmp_path / "trees" / "train.psd.gz")) == written[2:]
    columns.write_text("".join(f"-DOCSTART- O\n\nw{k} O\nv O\n\n\n" for k in range(3)))
    assert split(columns, tmp_path / "columns") == {"train": 1, "dev": 1, "test": 1}
    for k, part in enumerate(("dev", "test", "train")):
        text = (tmp_path / "columns" / f"{part}.conll").read_text()
        assert text == f"-DOCSTART- O\n\nw{k} O\nv O\n\n"


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("a.tsv", "a\tb\nc\n", ("--group", "2"), "FILE:2: 2 columns between tabs expected; got 1"),
        ("a.ptb", "(S (A b)", (), "FILE:1: the tree that begins in line 1 is not closed"),
        ("a.ptb", "(A b)", ("--group", "1"), "--group is for tables"),
        ("a.txt", "a\nb\n", (), "FILE: three items are needed for three parts; got 2"),
        ("a.txt", "a\nb\n", ("--every", "2"), "--every must be at least 3"),
        ("a.txt", "a\nb\n", ("--group", "-1"), "--group must be the number of a column, from 1; got -1"),
        ("a.txt", "", (), "FILE:1: the file is empty"),
    ],
)
def test_faults_are_one_line(tmp_path, capsys, name, text, options, message):
    source = tmp_path / name
    source.write_text(text)
    with pytest.raises(SystemExit) as left:
        main([str(source), "--out", str(tmp_path / "out"), *options])
    assert left.value.code == 1
    assert capsys.readouterr().err.startswith(f"error: {message.replace('FILE', str(source))}")
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_over(tmp_path, capsys):
    source = tmp_path / "a.txt"
    source.write_text("a\nb\nc\n")
    main([str(source), "--out", str(tmp_path)])
    assert capsys.readouterr().out == "train\t1\ndev\t1\ntest\t1\n"
    with pytest.raises(FileExistsError, match=r"train\.txt exists"):
        split(source, tmp_path)
