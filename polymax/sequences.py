"""Alignments of sequences with gaps as people read them: rows of letters, CIGAR strings, FASTA and Stockholm files."""

from collections.abc import Sequence
from os import PathLike

from torch import Tensor

from polymax._parts import Parts, tensors


def aligned_strings(y: Parts, first: str, second: str) -> tuple[str, str]:
    """Both sequences in full, as two rows of one length with "-" in gaps.

    Shapes: y one alignment of `GappedAlignment`, or its pairs (n, m); n and m are the lengths of the sequences

    Example:
        >>> aligned_strings(torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]]), "ACG", "AG")
        ('ACG', 'A-G')
    """
    rows, columns = [], []
    for i, j in _columns(y, len(first), len(second)):
        rows.append("-" if i is None else first[i])
        columns.append("-" if j is None else second[j])
    return "".join(rows), "".join(columns)


def cigar(y: Parts, first: str, second: str, extended: bool = False) -> str:
    """The alignment as a CIGAR string: M pairs, D rows deleted and I columns inserted, each with its count.

    The first sequence is the reference, the second the query. With `extended`, pairs are = for equal letters and X for
    others.

    Example:
        >>> pairs = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
        >>> cigar(pairs, "ACG", "AT"), cigar(pairs, "ACG", "AT", extended=True)
        ('1M1D1M', '1=1D1X')
    """
    runs: list[list] = []
    for i, j in _columns(y, len(first), len(second)):
        kind = "I" if i is None else "D" if j is None else "M"
        if extended and i is not None and j is not None:
            kind = "=" if first[i] == second[j] else "X"
        if runs and runs[-1][1] == kind:
            runs[-1][0] += 1
        else:
            runs.append([1, kind])
    return "".join(f"{count}{kind}" for count, kind in runs)


def write_fasta(path: str | PathLike[str], rows: Sequence[str], names: Sequence[str], width: int = 60) -> None:
    """Write rows of letters, as `aligned_strings` gives them, to a FASTA file, `width` letters a line.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_fasta(f"{folder}/pair.fa", ("ACG", "A-G"), ("first", "second"))
        ...     pathlib.Path(f"{folder}/pair.fa").read_text()
        '>first\\nACG\\n>second\\nA-G\\n'
    """
    if len(rows) != len(names):
        raise ValueError(f"names must be as many as rows, {len(rows)}; got {len(names)}")
    if width < 1:
        raise ValueError(f"width must be positive; got {width}")
    with open(path, "w", encoding="utf-8") as file:
        for name, row in zip(names, rows, strict=True):
            file.write(f">{name}\n")
            file.writelines(f"{row[k : k + width]}\n" for k in range(0, len(row), width))


def write_stockholm(path: str | PathLike[str], rows: Sequence[str], names: Sequence[str], name: str = "") -> None:
    """Write rows of letters, as `aligned_strings` gives them, to a file in the Stockholm format, one line each.

    `name` is the name of the alignment. Spaces in names become underscores: the format ends a name at the first.

    Example:
        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_stockholm(f"{folder}/pair.sto", ("ACG", "A-G"), ("first", "second"), "pair")
        ...     print(pathlib.Path(f"{folder}/pair.sto").read_text(), end="")
        # STOCKHOLM 1.0
        #=GF ID pair
        first  ACG
        second A-G
        //
    """
    if len(rows) != len(names):
        raise ValueError(f"names must be as many as rows, {len(rows)}; got {len(names)}")
    lengths = sorted({len(row) for row in rows})
    if len(lengths) > 1:
        raise ValueError(f"rows must have one length, as in an alignment; got {', '.join(map(str, lengths))}")
    labels = ["_".join(one.split()) for one in names]
    if not all(labels) or len(set(labels)) < len(labels):
        raise ValueError(f"names must differ, and none may be empty; got {', '.join(map(repr, names))}")
    width = max(map(len, labels), default=0)
    with open(path, "w", encoding="utf-8") as file:
        file.write("# STOCKHOLM 1.0\n")
        if name:
            file.write(f"#=GF ID {name}\n")
        file.writelines(f"{label:{width}} {row}\n" for label, row in zip(labels, rows, strict=True))
        file.write("//\n")


def _columns(y: Parts, n: int, m: int) -> list[tuple[int | None, int | None]]:
    """The columns of the alignment: a row and a column, or one of them; deletions come before insertions."""
    pairs: Tensor = tensors(y)[0]
    if pairs.dim() != 2 or pairs.shape[0] < n or pairs.shape[1] < m:
        raise ValueError(f"y must be one alignment ({n}, {m}), or a padded one; got {tuple(pairs.shape)}")
    found: list[tuple[int | None, int | None]] = []
    i = j = 0
    for row, column in [*pairs.nonzero().tolist(), (n, m)]:
        found += [(k, None) for k in range(i, row)] + [(None, k) for k in range(j, column)]
        if row < n:
            found.append((row, column))
        i, j = row + 1, column + 1
    return found
