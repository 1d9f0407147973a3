"""Measures of targets: BLEU of translations and ROUGE of summaries, by the packages that define them."""

import re
from collections.abc import Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Any


def bleu(texts: list[str], wanted: Sequence[Sequence[str]]) -> float:
    """BLEU of a corpus, from 0 to 100; each text has one or more references.

    Example:
        >>> bleu(["the cat sat on the mat"], [["the cat sat on the mat", "a cat was there"]])
        100.0

    See: Post 2018, A call for clarity in reporting BLEU scores.
    """
    sacrebleu = _package("sacrebleu")
    # `force` suppresses the warning about tokenized text; None stands for a missing reference
    columns = [list(column) for column in zip_longest(*wanted)]
    return round(sacrebleu.corpus_bleu(texts, columns, force=True).score, 10)


def rouge(texts: list[str], wanted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Mean F scores of ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 100, over letters and digits in lower case.

    If a text has several references, all three scores are for the reference with the best ROUGE-1, as for SciTLDR.

    Example:
        >>> rouge(["the cat.", "it"], [["a dog", "The cat"], ["that"]])
        {'rouge1': 50.0, 'rouge2': 50.0, 'rougeL': 50.0}

    See: Lin 2004, ROUGE: a package for automatic evaluation of summaries; Cachola et al. 2020, TLDR, Section 5.
    """
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = _package("rouge_score.rouge_scorer").RougeScorer(names, tokenizer=_Words())
    rows = []
    for text, references in zip(texts, wanted, strict=True):
        scored = [scorer.score(reference, text) for reference in references]
        rows.append(max(scored, key=lambda row: row["rouge1"].fmeasure))
    return {name: 100 * sum(row[name].fmeasure for row in rows) / len(rows) for name in names}


class _Words:
    """A tokenizer for all languages: the package's own tokenizer has only English letters."""

    def tokenize(self, text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())


def _package(name: str) -> Any:
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"this measure needs the package {package}: pip install 'polymax[train]'") from None
