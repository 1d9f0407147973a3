"""Options of latent-tree models: the model, the method that learns its trees, and its baselines."""

from dataclasses import dataclass

from polymax_recipes.training.task import Reading, option

# the first method of a model is its default
METHODS: dict[str, tuple[str, ...]] = {
    "lstm": ("none",),
    "tree-lstm": ("gold",),
    "spinn": (
        "cooperative",
        "supervised",
        "reinforce",
        "straight-through",
        "st-gumbel",
        "beam",
    ),
    "gumbel-tree": ("st-gumbel", "cooperative"),
    "dependency": (
        "sparse-expectation",
        "structured-attention",
        "sparsemap",
        "perturb",
        "straight-through",
        "spigot",
        "score-function",
    ),
}
NAMES = ("default", *dict.fromkeys(name for names in METHODS.values() for name in names))
BASELINES = ("self-critical", "learned", "moving-average")


@dataclass(frozen=True)
class LatentOptions(Reading):
    """The options of the model, and of how the parser learns."""

    model: str = option("spinn", "What reads a sentence.", choices=tuple(METHODS))
    method: str = option("default", "How the trees of spinn, gumbel-tree and dependency are learned.", choices=NAMES)
    parser: str = option(
        "latent", "pretrained: spinn or dependency learn to parse gold trees first.", choices=("latent", "pretrained")
    )
    pretrain: int = option(2, "Epochs of a pretrained parser, before it is frozen.", least=1)
    multitask: float = option(0.0, "Weight of the loss of gold trees, beside that of the labels.")
    hidden: int = option(128, "Size of states.", least=1)
    embedding: int = option(128, "Size of word vectors.", least=1)
    tracker: int = option(64, "Size of the tracker of spinn.", least=1)
    dropout: float = option(0.0, "Probability of dropping an entry of word vectors and sentence vectors.", most=1)
    entropy: float = option(0.1, "Weight of the mean entropy of a step, in reinforce and cooperative.")
    baseline: str = option("self-critical", "The baseline of losses in cooperative.", choices=BASELINES)
    updates: int = option(5, "Steps of the parser for each of the composition, in cooperative.", least=1)
    ratio: float = option(0.2, "How far cooperative lets probabilities move before it clips them.")
    parser_rate: float = option(0.1, "Learning rate of the parser in cooperative, in parts of --lr.")
    beam: int = option(4, "Parses that the beam keeps.", least=1)
    temperature: float = option(
        0.0,
        "Temperature of st-gumbel, and of scores of arcs in dependency; 0 for 1, or for 0.03 in sparse-expectation.",
    )
    composition: str = option("tree-lstm", "What dependency composes with.", choices=("tree-lstm", "gcn"))
    projective: bool = option(False, "Allow only trees without crossing arcs in dependency.")
    longest: int = option(130, "Sentences with more tokens are not trained on; 0 for all.")
    batch: int = option(64, "Examples that are judged at once.", least=1, late=True)
    trees: bool = option(False, "Predict trees beside labels.", late=True)
    gradients: int = option(0, "Passes over a batch in which evaluate measures the parser's gradient.", late=True)

    def __post_init__(self) -> None:
        known = METHODS[self.model]
        if self.method not in ("default", *known):
            raise ValueError(f"--method of --model {self.model} must be one of {', '.join(known)}; got {self.method}")
        if (self.parser == "pretrained" or self.multitask) and self.model not in ("spinn", "dependency"):
            what = "--parser pretrained" if self.parser == "pretrained" else "--multitask"
            raise ValueError(f"{what} must come with --model spinn or dependency; got {self.model}")
        if self.gradients == 1:
            raise ValueError("--gradients must be 0 or at least 2; got 1")
        if not 0 < self.ratio < 1:
            raise ValueError(f"--ratio must be between 0 and 1; got {self.ratio}")

    @property
    def chosen(self) -> str:
        """The method by which trees are learned: the model's own by default."""
        return METHODS[self.model][0] if self.method == "default" else self.method

    @property
    def heat(self) -> float:
        """The temperature: the default gives sparse-expectation few trees to sum over from the start."""
        return self.temperature or (0.03 if self.chosen == "sparse-expectation" else 1.0)

    @property
    def needs_gold(self) -> bool:
        """Return True if training cannot go without gold trees."""
        return self.chosen in ("gold", "supervised") or self.parser == "pretrained" or self.multitask > 0


@dataclass(frozen=True)
class ClassifyOptions(LatentOptions):
    """The options of a classifier of sentences, with the options of word vectors."""

    words: int = option(50_000, "Most words in the vocabulary.", least=1)
    lower: bool = option(False, "Read all words in lower case.")
    punctuation: bool = option(False, "Read punctuation as words, also without a space before it.")
    rationale: int = option(0, "Most words by which --model lstm may decide, the rationale; 0 for all words.", least=0)
    contiguous: bool = option(False, "Choose the words of a rationale as one stretch.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rationale and self.model != "lstm":
            raise ValueError(f"--rationale must come with --model lstm; got {self.model}")
        if self.contiguous and not self.rationale:
            raise ValueError("--contiguous must come with --rationale K, the most words of a rationale")
