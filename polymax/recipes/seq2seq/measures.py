"""How good targets are: BLEU of translations and ROUGE of summaries, by the packages that define them."""

from importlib import import_module
from typing import Any


def bleu(texts: list[str], wanted: list[str]) -> float:
    """BLEU of a corpus, from 0 to 100.

    Example:
        >>> bleu(["the cat sat on the mat"], ["the cat sat on the mat"])
        100.0

    See: Post 2018, A call for clarity in reporting BLEU scores.
    """
    sacrebleu = _package("sacrebleu")
    # forced: that the text looks tokenized is no mistake where it is
    return round(sacrebleu.corpus_bleu(texts, [wanted], force=True).score, 10)


def rouge(texts: list[str], wanted: list[str]) -> dict[str, float]:
    """Mean F scores of ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 100, over words between spaces in lower case.

    Example:
        >>> rouge(["the cat", "it"], ["the cat", "that"])
        {'rouge1': 50.0, 'rouge2': 50.0, 'rougeL': 50.0}

    See: Lin 2004, ROUGE: a package for automatic evaluation of summaries.
    """
    names = ["rouge1", "rouge2", "rougeL"]
    scorer = _package("rouge_score.rouge_scorer").RougeScorer(names, tokenizer=_Spaces())
    rows = [scorer.score(target, text) for text, target in zip(texts, wanted)]
    return {name: 100 * sum(row[name].fmeasure for row in rows) / len(rows) for name in names}


class _Spaces:
    """The package's own tokenizer knows the letters of English alone."""

    def tokenize(self, text: str) -> list[str]:
        return text.lower().split()


def _package(name: str) -> Any:
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ImportError:
        raise ValueError(f"this measure needs the package {package}: pip install polymax[train]") from None
