"""Meanings of arguments, results and errors of calls, for the reference: text that many names share is written once.

A docstring with an `Args:`, `Returns:` or `Raises:` section of its own comes before the text of this file.
"""

import inspect
from collections.abc import Callable
from typing import Any

_RUNS = "(*batch,) integers, how long each instance is; what lies beyond is padding. None: all have full length"
_SCORES = "a tensor, or a tuple of the structure's tensors of scores"
_STRUCTURE = "the set of structures, such as `pm.Chain()`"
_REDUCTION = '"mean", "sum" or "none" (a loss for each instance)'

# the meaning of an argument, by its name, or by the name that has it and its own
ARGUMENTS: dict[str, str] = {
    "x": "scores of any shape and floating dtype; -inf forbids an entry",
    "dim": "the dimension along which the choice is made",
    "mask": "bool, broadcasts to the scores; True keeps an entry. A row without any gets zeros",
    "gamma": "temperature above 0, a number or a tensor: scores are divided by it",
    "dtype": "the scores are cast to it first, as in `torch.softmax`",
    "alpha": "1 is softmax, 2 is sparsemax; a number, or a tensor that broadcasts to the rows and gets a gradient",
    "normmax.alpha": "order of the norm, above 1; a number or a tensor",
    "strength": "weight of the penalty, at least 0; a number or a tensor",
    "upper": "the largest weight of each entry; broadcasts to the scores, and must sum to at least 1",
    "lower": "the smallest weight of each entry; broadcasts to the scores, and must sum to at most 1",
    "k": "how many items are chosen, or the sum of the weights",
    "groups": "(n,) integers, the group of each entry, or a list of lists of indices, which may overlap",
    "p": "order of the norm, above 1; 2 is sparsemax",
    "lengths": _RUNS,
    "Assignment.lengths": "a pair of (*batch,) integers: rows and columns of each instance. None: all are used",
    "Alignment.lengths": "a pair of (*batch,) integers: lengths of both series. None: full length",
    "Monotonic.lengths": "a pair of (*batch,) integers: frames and tokens. None: full length",
    "monotonic_alignment_search.lengths": "a pair of (*batch,) integers: frames and tokens. None: full length",
    "EditPath.lengths": "a pair of (*batch,) integers: lengths of both sequences. None: full length",
    "EditPath.gap": '"linear" (a score for each step) or "affine" (scores to open and to extend)',
    "GappedAlignment.lengths": "a pair of (*batch,) integers: lengths of both sequences. None: full length",
    "single_root": "True: exactly one token hangs on the root",
    "labelled": "whether the scores have a last dimension of labels",
    "targets": "(*batch, s) integers, the labels in order",
    "target_lengths": "(*batch,) integers, how many targets each instance has",
    "blank": "the number of the blank",
    "max_width": "the widest segment",
    "at_most": "True: at most k items; False: exactly k",
    "edges": "(E, 2) integers or a list of pairs (u, v) of nodes, u < v",
    "source": "the node at which paths begin",
    "sink": "the node at which paths end; -1 is the last one",
    "mode": '"global" (Needleman-Wunsch), "local" (Smith-Waterman) or "semi-global"',
    "gap": '"affine" (scores to open and to extend) or "linear" (to extend)',
    "heads": "(E,) integers, the node that each hyperedge derives",
    "tails": "a list of E tuples of nodes from which each hyperedge derives its head",
    "root": "the node whose derivations are the structures; -1 is the last one",
    "regularization": '"quadratic" (sparse) or "entropic"',
    "logits": "(batch, frames, targets + 1, labels) scores before log_softmax",
    "encoder": "(batch, frames, labels) terms of the frames",
    "predictor": "(batch, targets + 1, labels) terms of the targets so far",
    "joint_rnnt_loss.encoder": "(batch, frames, size) terms of the frames",
    "joint_rnnt_loss.predictor": "(batch, targets + 1, size) terms of the targets so far",
    "joint_rnnt_loss.weight": "(labels, size) weights of the layer",
    "activation": "a function of the sum of both terms, entry by entry",
    "token_logits": "(batch, frames, targets + 1, labels) scores of the blank and of tokens before log_softmax",
    "duration_logits": "(batch, frames, targets + 1, durations) scores of the durations before log_softmax",
    "durations": "how many frames a step takes, by the number of its logit",
    "sigma": "what is subtracted from each log-probability of a blank or a token",
    "fastemit_lambda": "by how much more than 1 the gradients of tokens are multiplied",
    "omega": "the share of `rnnt_loss` in the loss",
    "emissions": "log-probabilities (frames, labels) of each segment, in a list or padded to one tensor",
    "transcripts": "the text of each segment",
    "dictionary": "the label of each character",
    "frame_seconds": "seconds from a frame to the next, for all segments or for each",
    "starts": "seconds at which segments start. None: 0",
    "separator": "the character by which the dictionary calls a space",
    "spaces": "False: each character is a word",
    "characters": "False: words come without their characters",
    "score": "(*batch, n, tags) scores of the tags",
    "transition_params": "(tags, tags) scores of a tag after a tag, [previous, next]",
    "logit_lengths": "(batch,) integers, frames of each instance",
    "clamp": "above 0: gradients are clamped to [-clamp, clamp]; -1: they are not",
    "reduction": _REDUCTION,
    "fused_log_softmax": "True if `logits` are before log_softmax, False if they are after it",
    "structure": _STRUCTURE,
    "solver": "how SparseMAP is solved: `ActiveSet()` (exact), or a variant of Frank-Wolfe",
    "regularizer": "the regularizer of every maximum of the recursion, such as `pm.Gini()`",
    "noise": "the noise that is added to the scores: `Gumbel()`, `Normal()` or `SumOfGamma(k)`",
    "samples": "how many draws are averaged",
    "control_variate": "True: subtract a term with mean 0 that makes gradients vary less",
    "scores": _SCORES,
    "entmax_loss.scores": "(*batch, classes) scores",
    "sparsemax_loss.scores": "(*batch, classes) scores",
    "monotonic_alignment_search.scores": "(*batch, frames, tokens) scores",
    "y": "the target: compact (tags, heads, classes, as `encode` takes it), `pm.Partial`, or indicators of parts",
    "weight": "(classes,) weights of the classes. None: all weigh 1",
    "linear_entmax_loss.weight": "(words, size) weights of the layer",
    "linear_sparsemax_loss.weight": "(words, size) weights of the layer",
    "linear_cross_entropy.weight": "(words, size) weights of the layer",
    "linear_log_prob.weight": "(words, size) weights of the layer",
    "linear_log_prob.ids": "(*batch,) or (*batch, k) integers, the words",
    "linear_log_prob.temperature": "a number above 0, by which scores are divided after `softcap`",
    "linear_log_prob.entropy": "True: return the pair (log-probabilities, entropy of each row)",
    "distillation_loss.weight": "(words, size) weights of the layer",
    "distillation_loss.teacher": "a `WordDistribution` with a list for each row; ids of -1 alone leave a row out",
    "distillation_loss.beta": "0 for KL(teacher, student), 1 for KL(student, teacher), mixtures between them",
    "ignore_index": "targets of this number have no loss",
    "label_smoothing": "share of the target that is spread over all classes, in [0, 1]",
    "z_loss": "weight of the squared log-sum-exp that is added to each row at alpha = 1",
    "return_normalizer": "True: return the pair (loss, log-sum-exp of each row), at alpha = 1",
    "hidden": "(*batch, size) states below the layer",
    "target": "(*batch,) integers, or a distribution over words for each row",
    "bias": "(words,) bias of the layer. None: it has none",
    "MultiheadAttention.bias": "True: projections have biases",
    "LinearEntmaxLoss.bias": "True: the layer has a bias",
    "reference": "(words,) or (*batch, words) weights of a prior, to which the loss is relative. None: no prior",
    "AlphaDivergence.reference": "a number, or a tensor that broadcasts to the scores; at least 0, need not sum to 1",
    "class_weights": "(words,) weights of the words. None: all weigh 1",
    "softcap": "logits become softcap tanh(logits / softcap). None: they stay",
    "smooth": "a smoothing, such as `pm.Marginals(pm.Chain())`, or a regularizer for a choice among items",
    "cost": "a cost for each part, which is added to the scores. None: no cost",
    "svm_loss.cost": "a cost for each part. None: 1 for each part that the target does not have",
    "soft_dtw.cost": "(*batch, n, m) costs of cells, such as those of `pm.squared_euclidean`",
    "dtw.cost": "(*batch, n, m) costs of cells, such as those of `pm.squared_euclidean`",
    "generator": "where draws come from. None: torch's default",
    "query": "(*batch, heads, queries, channels)",
    "key": "(*batch, heads, keys, channels)",
    "value": "(*batch, heads, keys, channels of values)",
    "varlen_attention.query": "(tokens, heads, channels), the sequences one after the other",
    "varlen_attention.key": "(tokens, heads, channels)",
    "varlen_attention.value": "(tokens, heads, channels of values)",
    "attn_mask": "bool (True takes part), or floats that are added to the scores and get a gradient; broadcasts",
    "dropout_p": "probability with which a weight is dropped",
    "is_causal": "True: a query sees keys up to its own place, counted from the first key",
    "scale": "factor of the scores. None: 1 / sqrt(channels)",
    "enable_gqa": "True: several heads of queries share one of keys",
    "mapping": "what turns scores into weights: a function such as `pm.entmax`, its name, a regularizer or a smoothing",
    "window": "a pair: how many keys to the left and to the right a query sees; -1 for no limit",
    "sinks": "(heads,) scores of a key without value, which takes weight. None: there is none",
    "causal_offset": "the key at which the first query stands, as in a cache",
    "key_boxes": "boxes of pages of keys, from `pm.nn.key_boxes`. None: every key is read",
    "embed_dim": "size of inputs and outputs",
    "num_heads": "how many heads; divides `embed_dim`",
    "AdaptiveEntmax.num_heads": "how many heads, each with an alpha of its own",
    "dropout": "probability with which a weight is dropped in training",
    "add_bias_kv": "True: a learned key and value are added",
    "add_zero_attn": "True: a key and value of zeros are added",
    "kdim": "size of keys. None: `embed_dim`",
    "vdim": "size of values. None: `embed_dim`",
    "batch_first": "True: tensors are (batch, length, size)",
    "device": "where parameters are made",
    "num_tags": "how many tags there are",
    "constraints": "rules on neighbouring tags, `pm.nn.TagConstraints`. None: all may follow each other",
    "size": "size of states",
    "soft_dtw_barycenter.size": "how many points the barycenter has. None: as many as the longest series",
    "words": "how many words there are",
    "scorer": "what scores keys for a query: `AdditiveScorer`, `BilinearScorer` or `DotScorer`",
    "cu_seqlens_q": "(sequences + 1,) integers, where each sequence of queries begins; the last is where it ends",
    "cu_seqlens_k": "(sequences + 1,) integers, the same for keys",
    "base": "the regularizer that is bounded",
    "fn": "a strictly convex function of (..., n) in torch",
    "max_iter": "the most iterations",
    "tol": "the change at which iterations stop",
    "through": "the smoothing whose gradient is taken. None: the gradient passes unchanged",
    "baseline": "what is subtracted from the loss, such as `pm.MovingAverage()`. None: nothing",
    "step": "length of the step against the gradient",
    "band": "(n, m) bool, or the width of a band around the diagonal. None: all cells",
    "subsequence": "True: the first series may match any part of the second one",
    "series": "(k, n, channels), or a list of (length, channels)",
    "weights": "(k,) weights of the series. None: all weigh the same",
    "init": "where the search begins. None: the mean of the series",
    "debiased": "True: the barycenter of the divergence",
    "log_probs": "(*batch, frames, labels) log-probabilities",
    "ctc_loss.log_probs": "(frames, batch, labels) log-probabilities, as in torch",
    "input_lengths": "(batch,) integers, frames of each instance. None: all",
    "zero_infinity": "True: infinite losses, and their gradients, are 0",
    "output": '"path" for indicators (*batch, frames, tokens), or the tokens of frames',
    "variables": "how many variables of 0 and 1 there are",
    "factors": "the factors, which share variables: `pm.Factor`, or rules of `pm.factors`",
    "alibi_slopes": "(heads,) slopes of a penalty on distance. None: no penalty",
    "max_seqlen_q": "the longest sequence of queries. None: it is read from `cu_seqlens_q`",
    "max_seqlen_k": "the longest sequence of keys. None: it is read from `cu_seqlens_k`",
}


def _same(names: str, text: str) -> dict[str, str]:
    """Return the text for each of the names."""
    return dict.fromkeys(names.split(), text)


_MAPPING = "Weights, shaped like `x`: at least 0, and they sum to 1 along `dim`."
_SMOOTHED = (
    "An operator: called on scores, it returns expected parts, shaped like the scores; `.max` is the value (*batch,)."
)
_LOSS = 'A scalar, or (*batch,) with reduction "none"; at least 0, and 0 if the prediction is the target.'
_SET = "A set of structures for the smoothings, losses and estimators."
_VERTEX = "An operator: called on scores, it returns the indicators of a structure, with a chosen gradient."
_CONTEXT = "(*batch, heads, queries, channels of values); a query that may attend to nothing gets zeros."
_REGULARIZER = "An object with `.argmax(x)`, the mapping, `.max(x)`, the smoothed maximum, and `.omega(p)`."
RETURNS: dict[str, str] = {
    **_same(
        "softmax sparsemax entmax fusedmax oscarmax csparsemax csoftmax normmax sq_pnorm_max groupedmax hardmax",
        _MAPPING,
    ),
    "budgetmax": "Weights in [0, 1], shaped like `x`, that sum to k along `dim`.",
    **_same(
        (
            "Chain SpanningTree ProjectiveTree SpanTree Assignment Alignment CTC SemiMarkov Subset Ranking Monotonic "
            "GappedAlignment EditPath Dag Hypergraph Transducer FactorGraph"
        ),
        _SET,
    ),
    **_same("Marginals SparseMap LocalMax HardMax Perturbed", _SMOOTHED),
    **_same(
        (
            "entmax_loss sparsemax_loss linear_entmax_loss linear_sparsemax_loss linear_cross_entropy "
            "distillation_loss crf_loss svm_loss perceptron_loss "
            "sparsemap_loss fenchel_young"
        ),
        _LOSS,
    ),
    "linear_log_prob": "Log-probabilities shaped like `ids`, at least in float32; with `entropy=True`, also (*batch,).",
    "scaled_dot_product_attention": _CONTEXT,
    "varlen_attention": "(tokens, heads, channels of values).",
    "attention_path": "A sentence: which path such a call takes, and why.",
    "MultiheadAttention": "A module: called as torch's, it returns the outputs and, if asked, the weights.",
    "CRF": "A module: `crf(emissions, tags, mask)` is the loss, `.decode(emissions, mask)` the best tags.",
    "AdaptiveEntmax": "A module that is a mapping, with a learned alpha for each head.",
    "LinearEntmaxLoss": "A module: called on states and targets, it returns the loss.",
    "Attention": "A module: called on a query and keys, it returns the context and the weights.",
    "StructuredAttention": "A module: called on scores and values, it returns the context and the expected parts.",
    **_same("AlphaDivergence Gini Tsallis Shannon Fused Custom Bounded", _REGULARIZER),
    **_same("StraightThrough PerturbAndMap ImplicitMLE Spigot", _VERTEX),
    **_same(
        "ScoreFunction SparseExpectation",
        "An operator: `estimator(loss_fn, *scores)` is the expected loss, ready for backward.",
    ),
    "soft_dtw": "(*batch,) smoothed costs of the best alignment; the gradient is the expected alignment.",
    "dtw": "(*batch,) costs of the best alignment.",
    "soft_dtw_barycenter": "(size, channels) the series with the least mean soft-DTW to all.",
    "ctc_loss": "The loss, as torch reduces it.",
    **_same("rnnt_loss additive_rnnt_loss joint_rnnt_loss", "The loss, as torchaudio reduces it."),
    "tdt_loss": "The loss, as NeMo and Transformers reduce it.",
    "align_segments": "An `AlignedSegment` for each transcript: its words, with times, scores and characters.",
    "viterbi_decode": "A pair: the best tags (*batch, n), and their score (*batch,).",
    "forced_align": "A pair (*batch, frames): the label of each frame, and its log-probability.",
    "monotonic_alignment_search": "The best alignment (*batch, frames, tokens) of 0 and 1, or tokens of frames.",
    "soft_rank": "Ranks, shaped like `x`, with a gradient.",
    "soft_sort": "Sorted values, shaped like `x`, with a gradient.",
}
_FLOAT = "TypeError if scores are not of a floating dtype; ValueError if a parameter is out of its range."
_SHAPES = "ValueError if shapes of scores do not fit each other, naming what was expected and what came."
RAISES: dict[str, str] = {
    **_same(
        (
            "softmax sparsemax entmax fusedmax oscarmax normmax sq_pnorm_max groupedmax hardmax "
            "AlphaDivergence Gini Tsallis Shannon Fused"
        ),
        _FLOAT,
    ),
    **_same("csparsemax csoftmax budgetmax Bounded", f"{_FLOAT[:-1]}, or if no weights meet the bounds."),
    **_same("HardMax LocalMax Perturbed", _SHAPES),
    "Marginals": f"{_SHAPES} TypeError if the set has no sum over its structures, as assignments.",
    "SparseMap": f"{_SHAPES} A search that does not converge warns, with its gap.",
    **_same(
        "crf_loss svm_loss perceptron_loss sparsemap_loss fenchel_young",
        "ValueError if a target is not a structure of the set, naming the instance and the place.",
    ),
    **_same(
        "entmax_loss sparsemax_loss linear_entmax_loss linear_sparsemax_loss linear_cross_entropy",
        "ValueError if a target is neither a class nor `ignore_index`, or a distribution does not sum to 1.",
    ),
    "linear_log_prob": "ValueError if an id is outside of the vocabulary, or `temperature` is not above 0.",
    "distillation_loss": "ValueError if the teacher does not sum to 1, or the divergence is infinite for all layers.",
    **_same(
        "scaled_dot_product_attention MultiheadAttention varlen_attention",
        "TypeError if `mapping` is not a mapping; ValueError if shapes do not fit.",
    ),
    **_same("soft_dtw dtw", "ValueError if `cost` is not (*batch, n, m) or `gamma` is not above 0."),
    "soft_dtw_barycenter": "ValueError if a series is empty or weights do not fit; a warning if it does not converge.",
    **_same(
        "Chain SpanningTree ProjectiveTree Assignment Alignment GappedAlignment EditPath",
        f"{_SHAPES} ValueError if a length exceeds the size of the scores.",
    ),
    "SpanTree": f"{_SHAPES} ValueError if shapes do not tell whether scores have labels.",
    "SemiMarkov": f"{_SHAPES} ValueError if `max_width` is not a positive integer.",
    "Subset": "ValueError if there are fewer than k scores.",
    "Ranking": "ValueError if scores have no dimension.",
    "Dag": "ValueError if an edge does not lead to a higher node, or if no path leads from source to sink.",
    "Hypergraph": "ValueError if a tail is not below its head, or if heads and tails differ in number.",
    "CTC": "ValueError if a target is not a label, or if targets need more frames than there are.",
    "Monotonic": "ValueError if an instance has more tokens than frames.",
    "Transducer": f"{_SHAPES} ValueError if an instance has tokens and no frame.",
    "FactorGraph": (
        "ValueError if a factor names a missing variable; Infeasible, a ValueError, if the factors provably "
        "have no point in common."
    ),
    "attention_path": "The errors of `scaled_dot_product_attention`.",
    "CRF": "ValueError if tags break the constraints, naming the token; if the mask or the shapes do not fit.",
    **_same("AdaptiveEntmax", "ValueError if `num_heads` is not the number of heads of the scores."),
    "LinearEntmaxLoss": "ValueError if a target is neither a word nor `ignore_index`.",
    **_same(
        "Attention StructuredAttention",
        "TypeError for another kind of mapping or set; ValueError for shapes.",
    ),
    "Custom": "TypeError if `fn` is not callable; ValueError if its result is not one number for each row.",
    **_same(
        "StraightThrough PerturbAndMap ImplicitMLE Spigot ScoreFunction SparseExpectation",
        "TypeError if `structure` is neither a structure nor, if accepted, a smoothing; ValueError for options.",
    ),
    **_same(
        "ctc_loss rnnt_loss additive_rnnt_loss joint_rnnt_loss tdt_loss",
        "TypeError if targets are not integers; ValueError if a target is not a class, or if shapes do not fit.",
    ),
    "align_segments": "TypeError or ValueError if emissions, transcripts and times are not equally many.",
    "viterbi_decode": "ValueError if `transition_params` or lengths do not fit the scores.",
    "forced_align": "ValueError if targets need more frames than there are, naming the instance.",
    "monotonic_alignment_search": "ValueError if an instance has more tokens than frames, naming the instance.",
    **_same(
        "soft_rank soft_sort", 'TypeError for integers; ValueError if `regularization` is not "quadratic" or "kl".'
    ),
}
_FENCHEL_YOUNG = "Blondel, Martins and Niculae 2020, Learning with Fenchel-Young losses"
_SPARSEMAX = "Martins and Astudillo 2016, From softmax to sparsemax"
_ENTMAX = "Peters, Niculae and Martins 2019, Sparse sequence-to-sequence models"
_FUSED = "Niculae and Blondel 2017, A regularized framework for sparse and structured neural attention"
_FAMILIES = "Wainwright and Jordan 2008, Graphical models, exponential families, and variational inference"
_TRANSFORMER = "Vaswani et al. 2017, Attention is all you need; Correia et al. 2019, Adaptively sparse transformers"
# papers of names whose docstring names none
SEE: dict[str, str] = {
    **_same("softmax hardmax normmax Shannon", _FENCHEL_YOUNG),
    "sparsemax": _SPARSEMAX,
    "linear_sparsemax_loss": _SPARSEMAX,
    "entmax": f"{_ENTMAX}; Correia et al. 2019, Adaptively sparse transformers",
    "LinearEntmaxLoss": _ENTMAX,
    **_same("fusedmax oscarmax sq_pnorm_max", _FUSED),
    "groupedmax": "Yuan and Lin 2006, Model selection and estimation in regression with grouped variables",
    "csparsemax": "Malaviya et al. 2018, Sparse and constrained attention for neural machine translation",
    "csoftmax": "Martins and Kreutzer 2017, Learning what's easy: fully differentiable neural easy-first taggers",
    "budgetmax": "Wang and Lu 2015, Projection onto the capped simplex",
    "Chain": "Rabiner 1989, A tutorial on hidden Markov models",
    "SpanTree": "Stern, Andreas and Klein 2017, A minimal span-based neural constituency parser",
    "Alignment": "Cuturi and Blondel 2017, Soft-DTW",
    "Subset": "Correia et al. 2020, Efficient marginalization of discrete and structured latent variables via sparsity",
    "Ranking": "Blondel et al. 2020, Fast differentiable sorting and ranking",
    "Dag": "Mensch and Blondel 2018, Differentiable dynamic programming for structured prediction and attention",
    "Hypergraph": "Li and Eisner 2009, First- and second-order expectation semirings",
    **_same("Marginals HardMax", _FAMILIES),
    **_same("scaled_dot_product_attention varlen_attention attention_path MultiheadAttention", _TRANSFORMER),
    "dtw": "Sakoe and Chiba 1978, Dynamic programming algorithm optimization for spoken word recognition",
    **_same("ctc_loss forced_align", "Graves et al. 2006, Connectionist temporal classification"),
}
# the names that people use first: all of their arguments are explained
HEADLINES = tuple(RETURNS)


def listed(name: str, value: Callable[..., Any]) -> list[tuple[str, str, str]]:
    """Return the arguments of a call that are known: name, default as text, meaning."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    found = []
    for parameter in parameters:
        meaning = ARGUMENTS.get(f"{name}.{parameter.name}", ARGUMENTS.get(parameter.name))
        if meaning is None:
            continue
        default = parameter.default
        if default is parameter.empty:
            text = ""
        elif callable(default) and hasattr(default, "__name__"):
            text = f"pm.{default.__name__}"
        else:
            text = repr(default)
        found.append((parameter.name, "..." if text.startswith("<") else text, meaning))
    return found
