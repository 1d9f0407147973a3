"""Functions of instances (B, *event) by name, for laws that hold of each: rows, layouts, empty batches, derivatives."""

import torch

import polymax as pm

LABELS, FRAMES, TOKENS = torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
WORDS, KEYS = torch.randn(7, 4, dtype=torch.float64), torch.randn(1100, 4, dtype=torch.float64)
GRAPH = pm.FactorGraph(4, [pm.factors.xor([0, 1, 2]), pm.factors.budget([1, 2, 3], 2)])


def classes(x):
    """The same class for all rows, whatever their number."""
    return torch.full((len(x),), 2)


def labelled(x):
    count = len(x)
    return LABELS.expand(count, 2), FRAMES.expand(count), TOKENS.expand(count)


def attended(x, keys, **options):
    """Queries (B, n, 4) as the queries of a head that sees these keys, and their own."""
    own = keys.to(x).expand(len(x), 1, *keys.shape)
    return pm.nn.scaled_dot_product_attention(x.unsqueeze(1), own, own, **options)


TEACHER = pm.WordDistribution(torch.tensor([[2, 5, -1]]), torch.tensor([[0.6, 0.4, 0.0]], dtype=torch.float64), 7)
BIAS, SERIES = torch.randn(7, dtype=torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
LIMITED = pm.FactorGraph(
    4, [pm.factors.knapsack([0, 1, 2], [1.5, 2.0, 1.0], 2.5), pm.factors.or_out([1, 2], 3), pm.factors.implies(0, 3)]
)


def taught(x, **options):
    """The divergence from a teacher with the same list for all rows."""
    ids, probs = (t.expand(len(x), 3) for t in (TEACHER.ids, TEACHER.probs))
    return pm.distillation_loss(x, WORDS, pm.WordDistribution(ids, probs, 7), reduction="none", **options)


def probs_of(x, alpha):
    """Weights (B, 7) of a linear layer's words."""
    words = pm.linear_entmax(x, WORDS, BIAS, alpha=alpha)
    return x.new_zeros(len(x), 8).scatter(1, words.ids + 1, words.probs)[:, 1:]


def both(x):
    """Two series (B, 5, 2) and (B, 4, 2) in one tensor."""
    return x[:, :5], x[:, 5:]


def joined(x, **options):
    return pm.joint_rnnt_loss(x[:, :4], x[:, 4:], WORDS, *labelled(x), blank=0, reduction="none", **options)


def routed(x):
    heads = pm.nn.BlockRoutedAttention(2, block=4, head_dim=4).double()
    each = x.unsqueeze(1).expand(len(x), 2, *x.shape[1:])
    return heads(each, each, each)


# functions of instances (B, *event), and the shape of an event; results of sums of torch are compared in the tolerance
FUNCTIONS = {
    "entmax_loss": (lambda x: pm.entmax_loss(x, classes(x), reduction="none"), (9,)),
    "entmax_loss of alpha 1": (lambda x: pm.entmax_loss(x, classes(x), alpha=1.0, reduction="none"), (9,)),
    "sparsemax_loss": (lambda x: pm.sparsemax_loss(x, classes(x), reduction="none"), (9,)),
    "linear_entmax_loss": (lambda x: pm.linear_entmax_loss(x, WORDS, classes(x), reduction="none"), (4,)),
    "linear loss of alpha 1": (
        lambda x: pm.linear_entmax_loss(x, WORDS, classes(x), alpha=1.0, reduction="none"), (4,)
    ),
    "linear_sparsemax_loss": (lambda x: pm.linear_sparsemax_loss(x, WORDS, classes(x), reduction="none"), (4,)),
    "ctc_loss": (lambda x: pm.ctc_loss(x.transpose(0, 1), *labelled(x), reduction="none"), (4, 5)),
    "rnnt_loss": (lambda x: pm.rnnt_loss(x, *labelled(x), blank=0, reduction="none"), (4, 3, 5)),
    "forced_align": (lambda x: pm.forced_align(x, *labelled(x))[1], (4, 5)),
    "hmm_log_likelihood": (
        lambda x: pm.hmm_log_likelihood(torch.zeros(3).double(), torch.zeros(3, 3).double(), x), (4, 3)
    ),
    "dtw": (pm.dtw, (4, 6)),
    "soft_dtw": (pm.soft_dtw, (4, 6)),
    "smoothed_dtw": (lambda x: pm.smoothed_dtw(x, pm.Gini()), (4, 6)),
    "soft_edit_distance": (pm.soft_edit_distance, (4, 6)),
    "needleman_wunsch": (lambda x: pm.needleman_wunsch(x, -0.5, -1.0), (4, 6)),
    "soft_rank": (pm.soft_rank, (7,)),
    "soft_sort": (pm.soft_sort, (7,)),
    "soft_sort of kl": (lambda x: pm.soft_sort(x, regularization="kl"), (7,)),
    "factor graph": (lambda x: pm.SparseMap(GRAPH)(x)[0], (4,)),
    "best of a factor graph": (pm.HardMax(GRAPH).max, (4,)),
    "attention": (lambda x: attended(x, KEYS[:33], mapping=pm.sparsemax), (5, 4)),
    "attention to many keys": (lambda x: attended(x, KEYS, mapping=pm.sparsemax), (5, 4)),
    "entmax attention to many keys": (lambda x: attended(x, KEYS, mapping=pm.entmax), (5, 4)),
    "linear_cross_entropy": (
        lambda x: pm.linear_cross_entropy(
            x, WORDS, classes(x), BIAS, label_smoothing=0.1, z_loss=0.1, softcap=5.0, reduction="none"
        ), (4,)
    ),
    "linear_log_prob": (
        lambda x: torch.stack(pm.linear_log_prob(x, WORDS, classes(x), BIAS, temperature=0.5, entropy=True), 1), (4,)
    ),
    "linear_entmax": (lambda x: probs_of(x, 1.5), (4,)),
    "linear_entmax of alpha 1.3": (lambda x: probs_of(x, 1.3), (4,)),
    "linear distillation_loss": (taught, (4,)),
    "linear distillation_loss of alpha 1.5": (lambda x: taught(x, alpha=1.5), (4,)),
    "linear distillation_loss at the teacher": (lambda x: taught(x, beta=0.0), (4,)),
    "tdt_loss": (
        lambda x: pm.tdt_loss(x[..., :5], x[..., 5:], *labelled(x), 0, [0, 1, 2], reduction="none"), (4, 3, 8)
    ),
    "additive_rnnt_loss": (
        lambda x: pm.additive_rnnt_loss(x[:, :4], x[:, 4:], *labelled(x), blank=0, reduction="none"), (7, 5)
    ),
    "linear joint_rnnt_loss": (joined, (7, 4)),
    "erp_distance": (lambda x: pm.erp_distance(*both(x), gamma=0.5), (9, 2)),
    "edr_distance": (lambda x: pm.edr_distance(*both(x), 0.5), (9, 2)),
    "lcss_distance": (lambda x: pm.lcss_distance(*both(x), 0.5), (9, 2)),
    "msm_distance": (lambda x: pm.msm_distance(x[:, :5], x[:, 5:], gamma=0.5), (9, 1)),
    "twe_distance": (lambda x: pm.twe_distance(*both(x), gamma=0.5), (9, 2)),
    "pairwise": (lambda x: pm.pairwise(x, SERIES.to(x)), (6, 2)),
    "pairwise erp_distance": (lambda x: pm.pairwise(x, SERIES.to(x), pm.erp_distance, gamma=0.5), (6, 2)),
    "limited factor graph": (lambda x: pm.SparseMap(LIMITED)(x)[0], (4,)),
    "attention of routed blocks": (routed, (12, 4)),
}  # fmt: skip
