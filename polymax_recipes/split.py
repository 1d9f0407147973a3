"""Split a file into train, dev and test: python -m polymax_recipes.split FILE --out DIR.

Of every ten items in the order of the file the first goes to dev, the second to test, the others to train. By the name
of the file, an item is a tree in brackets, a sentence between blank lines, or a line.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from polymax_recipes.cli import plain_errors
from polymax_recipes.readers.lines import ReadError, blocks, lines, write
from polymax_recipes.readers.trees import read_trees

PARTS = ("train", "dev", "test")
TREES = (".psd", ".ptb", ".mrg", ".brackets", ".trees")
SENTENCES = (".conllu", ".conll", ".iob", ".iob2", ".bio")
DOCUMENT = "-DOCSTART-"


def split(path: Path, out: Path, every: int = 10, group: int = 0) -> dict[str, int]:
    """Write the parts of a file into a directory, and return the number of items of each.

    With `group`, the number of a column from 1, lines with the same text in this column are one item, and so go to the
    same part. Files keep the endings of their names; existing files are not overwritten.
    """
    if every < 3:
        raise ValueError(f"--every must be at least 3, for three parts; got {every}")
    if group < 0:
        raise ValueError(f"--group must be the number of a column, from 1; got {group}")
    ending = "".join(path.suffixes[-2:]) if path.name.endswith(".gz") else path.suffix
    files = {part: out / f"{part}{ending}" for part in PARTS}
    for file in files.values():
        if file.exists():
            raise FileExistsError(f"--out: {file} exists")
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    places: dict[str, int] = {}
    count = 0
    for key, text in _items(path, group):
        place = places.setdefault(key, len(places)) if key is not None else count
        texts[_part(place, every)].append(text)
        count += 1
    if not all(texts.values()):
        raise ValueError(f"{path}: three items are needed for three parts; got {len(places) or count}")
    out.mkdir(parents=True, exist_ok=True)
    for part, file in files.items():
        write(file, texts[part])
    return {part: len(found) for part, found in texts.items()}


def _part(place: int, every: int) -> str:
    return {0: "dev", 1: "test"}.get(place % every, "train")


def _items(path: Path, group: int) -> Iterator[tuple[str | None, str]]:
    """Return the text of each item, and the key of its group, None without groups."""
    kind = path.name.removesuffix(".gz")
    if kind.endswith((*TREES, *SENTENCES)) and group:
        raise ValueError(f"--group is for tables, a row a line; {path} has trees or sentences")
    if kind.endswith(TREES):
        yield from ((None, f"{tree}\n") for tree in read_trees(path))
    elif kind.endswith(SENTENCES):
        before = ""
        for block in blocks(path):
            text = "".join(f"{line.text}\n" for line in block if not line.blank) + "\n"
            # the mark of a document goes with its first sentence
            if text.startswith(DOCUMENT) and text.count("\n") == 2:
                before += text
                continue
            yield None, before + text
            before = ""
    else:
        for line in lines(path):
            if not line.blank:
                yield _column(path, line.number, line.text, group), f"{line.text}\n"


def _column(path: Path, number: int, text: str, group: int) -> str | None:
    if not group:
        return None
    columns = text.split("\t")
    if len(columns) < group:
        raise ReadError.at(path, number, f"{group} columns between tabs expected; got {len(columns)}")
    return columns[group - 1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m polymax_recipes.split`."""
    parser = argparse.ArgumentParser(prog="python -m polymax_recipes.split", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="trees, sentences or lines, plain or .gz")
    parser.add_argument("--out", type=Path, required=True, help="directory of the parts")
    parser.add_argument("--every", type=int, default=10, help="one of so many goes to dev, one to test (10)")
    parser.add_argument("--group", type=int, default=0, help="column, from 1, whose repeats stay together")
    given = parser.parse_args(arguments)
    with plain_errors("stopped", ValueError):
        for part, count in split(given.file, given.out, given.every, given.group).items():
            print(f"{part}\t{count}")


if __name__ == "__main__":
    main()
