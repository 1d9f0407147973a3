"""What papers show: figures that stand beside ours, and what makes each figure or table here."""

# of Table 1 of Vasylenko et al. 2025, the best of three seeds and several learning rates
PUBLISHED_LENGTHS: tuple[tuple[str, tuple[float, ...], tuple[tuple[str, tuple[float, ...]], ...]], ...] = (
    ("sort", (1, 2, 4, 8), (("softmax", (100, 0, 0, 0)), ("ASEntmax", (100, 100, 79.7, 0)))),
    (
        "reverse",
        (1, 1.5, 2, 4, 8),
        (
            ("softmax", (100, 36, 0, 0, 0)),
            ("entmax", (100, 100, 93.5, 28.5, 2.5)),
            ("ASEntmax", (100, 100, 99.8, 96.4, 56.7)),
        ),
    ),
    (
        "copy",
        (1, 2, 4, 8, 16, 32, 64),
        (
            ("softmax", (100, 100, 99.9, 99.9, 99.4, 96.1, 85.5)),
            ("ASEntmax", (100, 100, 99.9, 99.7, 99.4, 96.3, 86.6)),
        ),
    ),
    (
        "mqmtar",
        (1, 2, 4, 16, 64, 256, 1024),
        (
            ("softmax", (100, 100, 100, 99.5, 97.8, 80.2, 3.0)),
            ("entmax", (100, 100, 100, 99.5, 92.7, 66.8, 9.3)),
            ("ASEntmax", (100, 100, 100, 99.7, 99.6, 99.0, 95.3)),
        ),
    ),
)

# of a figure that nothing here makes
NOT_YET = "-"
# figure or table of a paper; what makes it here; its results, as TASK or TASK:PLAN, "" where it has no figures
Shown = tuple[tuple[str, str, str], ...]


def _paper(name: str, link: str) -> str:
    return f"[{name}](https://arxiv.org/abs/{link})"


def _grid(plan: str) -> str:
    return f"`python -m benchmarks.papers {plan} RUNS --data DATA`"


def _lm(call: str) -> str:
    return f"`python -m benchmarks.{call} RUNS`"


REPRODUCED: dict[str, Shown] = {
    _paper("Martins and Astudillo 2016", "1602.02068"): (
        ("softmax and sparsemax, and their losses, as curves", "`pm.plot.curves`, [the tour](tour.md)", ""),
        ("entailment by attention: softmax, sparsemax", "`polymax train entail`", "entailment"),
        ("the same with three seeds", _grid("entailment-attention"), "papers_entailment_attention"),
        ("label proportions and several labels by the sparsemax loss", "no recipe", NOT_YET),
    ),
    _paper("Niculae and Blondel 2017", "1705.07704"): (
        ("mappings over the simplex", "`pm.plot.simplex`, [the gallery](gallery.md)", ""),
        ("translation by attention", "`polymax train seq2seq`", "translation"),
        ("translation by attention, three seeds, all mappings", _grid("translation"), "papers_translation"),
        ("summarization by attention", "`polymax train seq2seq`", "summarization"),
        ("entailment by fusedmax and oscarmax", _grid("entailment-attention"), NOT_YET),
        ("time of the mappings", "`python -m benchmarks run simplex`", "simplex"),
    ),
    _paper("Cuturi and Blondel 2017", "1703.01541"): (
        ("barycenters", "examples/08_soft_dtw.py", ""),
        ("prediction of the second half of a series", "examples/09_series_prediction.py", ""),
        ("nearest centroids on UCR", "`python -m benchmarks run series`", "series"),
        ("clusters of series", "no recipe", NOT_YET),
    ),
    _paper("Mensch and Blondel 2018", "1802.03676"): (
        ("smoothed alignments", "[the gallery](gallery.md)", ""),
        ("tagging of entities by smoothing", "`polymax train tag --loss sparse-dp`", "tagging"),
        ("the same with three seeds and all losses", _grid("entities"), "papers_entities"),
        ("alignment of audio to a score", "`polymax train speech-align`, on tones that are drawn", "speech_alignment"),
        ("translation by structured attention", "no recipe", NOT_YET),
    ),
    _paper("Niculae, Martins, Blondel and Cardie 2018", "1802.04223"): (
        ("parsing by loss: CRF, SVM, SparseMAP", "`polymax train parse`", "parsing"),
        (
            "parsing of Vietnamese by loss, three seeds, 3 epochs of small models",
            "`python -m benchmarks.papers parsing-vietnamese RUNS --data DATA --short`",
            "papers_parsing_vietnamese",
        ),
        ("the same with larger models, to their end", _grid("parsing-vietnamese"), NOT_YET),
        ("parsing of Chinese by loss, three seeds", _grid("parsing-chinese"), "papers_parsing_chinese"),
        ("alignments in an entailment model", "`polymax train entail --model esim`", "entailment"),
        ("the same with three seeds", _grid("entailment"), "papers_entailment"),
    ),
    _paper("Niculae, Martins and Cardie 2018", "1809.00653"): (
        ("classification with latent dependency trees", "`polymax train classify`", "polarity"),
        ("pairs of sentences with latent trees", "`polymax train classify`", "snli_pairs"),
        ("ListOps", "`polymax train listops`", "listops"),
    ),
    _paper("Malaviya, Ferreira and Martins 2018", "1805.08241"): (
        ("attention within fertilities", "`pm.nn.FertilityAttention`, [Attention](attention.md)", ""),
        ("translation by csoftmax and csparsemax", _grid("translation"), "papers_translation"),
    ),
    _paper("Peters, Niculae and Martins 2019", "1905.05702"): (
        ("entmax between softmax and sparsemax, as curves", "`pm.plot.curves`", ""),
        ("translation by entmax attention", "`polymax train seq2seq`", "translation"),
        ("sparse losses of words in translation", "`python -m benchmarks.word_losses seq2seq`", "word_losses"),
    ),
    _paper("Correia, Niculae and Martins 2019", "1909.00015"): (
        ("alpha learned for each head, a small model", "examples/02_learn_alpha.py", ""),
        ("language models with learned alpha", _lm("contexts full"), "contexts:full"),
        ("translation of WMT with a Transformer", "no recipe", NOT_YET),
    ),
    "[Corro and Titov 2019](https://aclanthology.org/P19-1551), latent trees": (
        ("latent trees by perturbation: ListOps", "`polymax train listops --method perturb`", "listops_dependency"),
        ("the same with three seeds", _grid("listops"), "papers_listops"),
    ),
    _paper("Corro and Titov 2019, perturb-and-parse", "1807.09875"): (
        ("semi-supervised parsing by a variational autoencoder", "no recipe", NOT_YET),
    ),
    _paper("Blondel, Martins and Niculae 2020", "1901.02324"): (
        ("losses of every regularizer", "`pm.fenchel_young`, [Losses](losses.md)", ""),
        ("label proportions by loss", "no recipe", NOT_YET),
        ("parsing by loss, three seeds", _grid("parsing"), "papers_parsing"),
    ),
    _paper("Martins, Marinho and Martins 2020", "2004.02644"): (
        ("measures that allow zeros, repetition, distinct n-grams: small", _lm("vocabulary cpu"), "vocabulary:cpu"),
        ("the same for a larger model", _lm("vocabulary minutes"), "vocabulary:minutes"),
        ("the same for the largest model", _lm("vocabulary full"), "vocabulary:full"),
        ("judgements of people", "no recipe", NOT_YET),
    ),
    _paper("Niculae and Martins 2020", "2001.04437"): (
        ("factor graphs", "[Factor graphs](factors.md)", ""),
        ("time of inference", "`python -m benchmarks run factors`", "factors"),
        ("latent trees with a valency, matchings with a budget, several labels", "no recipe", NOT_YET),
    ),
    _paper("Mihaylova, Niculae and Martins 2020", "2010.02357"): (
        ("estimators of latent structure, a small problem", "examples/07_latent_estimators.py", ""),
        ("ListOps by estimator", "`polymax train listops`", "listops"),
        ("ListOps by estimator, three seeds", _grid("listops"), "papers_listops"),
    ),
    _paper("Vasylenko, Pitorro, Martins and Treviso 2025", "2506.16640"): (
        ("problems of every length, small models", _lm("lengths small"), "lengths:small"),
        ("four problems with the models of the paper, 2,000 steps", _lm("lengths minutes"), "lengths:minutes"),
        ("all problems with the steps of the paper", _lm("lengths paper"), "lengths:paper"),
        ("language models of a long context, half a minute each", _lm("contexts minutes"), "contexts:minutes"),
        ("language models of long contexts", _lm("contexts full"), "contexts:full"),
    ),
}
