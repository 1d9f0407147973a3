"""Models that were never trained, made from a few lines in no time: what serves and shows models needs no more."""

from polymax_recipes.readers.columns import Tagged
from polymax_recipes.readers.conllu import read_conllu
from polymax_recipes.speech_align.tones import write_tones
from polymax_recipes.training.settings import made
from polymax_recipes.training.task import Trained, named

SMALL = {"hidden": 8, "embedding": 8}
WORDS = (("She", "PRON", 2, "nsubj"), ("sings", "VERB", 0, "root"), ("songs", "NOUN", 2, "obj"))


def tones(folder):
    """A table of two utterances, and their sounds beside it."""
    return write_tones(folder, 2, 0, 0.01).read_text()


# of every task that has files of its own: a file, what is in it (or what writes it), inputs, and options
FILES = {
    "bracket": (
        "a.ptb",
        "(S (NP (PRP it)) (VP (VBZ works)))\n(S (NP (NNP Anna)) (VP (VBZ sings)))\n",
        ["it works"],
        {},
    ),
    "classify": ("a.tsv", "pos\ta good film\nneg\ta bad film\n", ["a good film"], {}),
    "entail": (
        "a.tsv",
        "entailment\tA man sleeps\tA man rests\nneutral\tA\tB\n",
        [["A man sleeps", "A man rests"]],
        {},
    ),
    "listops": ("a.tsv", "3\t( ( ( [MAX 3 ) 2 ) ] )\n2\t( ( ( [MIN 3 ) 2 ) ] )\n", ["( ( ( [MAX 3 ) 2 ) ] )"], {}),
    "lm": ("a.txt", "the cat sat on the mat\n", ["the ", ""], {"longest": 4}),
    "protein-align": ("a.fa", ">a\nAC-GT\n>b\nACCGT\n", [["ACG", "AG"]], {}),
    "seq2seq": ("a.tsv", "one two\tun deux\nthree\ttrois\n", ["one two"], {"beam": 2, "longest": 5}),
    "series": ("a.txt", "1 0.1 0.2 0.3 0.2\n2 0.5 0.1 0.0 0.1\n", [[0.1, 0.2, 0.1, 0.0]], {}),
    "speech-align": ("utterances.tsv", tones, [[[0.0, 0.1, 0.2, 0.1] * 100, "a e"]], {}),
    "word-align": ("a.tsv", "a cat\tun chat\na dog\tun chien\n", [["a cat", "un chat"]], {}),
}


def untrained(name, examples, **options):
    """The model of a task with the vocabularies of some examples."""
    task = named(name)
    known = {field: value for field, value in SMALL.items() if field in task.Options.__dataclass_fields__}
    chosen = made(task.Options, {**known, **options})
    vocabularies = task.vocabularies(examples, chosen)
    model = task.model(chosen, vocabularies)
    model.start(task.encode(examples, vocabularies))
    return Trained(task, chosen, vocabularies, model.eval())


def from_file(name, folder):
    """The model of a task of the table, and inputs to it."""
    file, text, inputs, options = FILES[name]
    (folder / file).write_text(text if isinstance(text, str) else text(folder), encoding="utf-8")
    return untrained(name, named(name).read([folder / file]), **options), inputs


def tagger(loss="sparsemap"):
    """A tagger of three tags."""
    return untrained("tag", [Tagged(["Anna", "sings", "in", "Rome"], ["NOUN", "VERB", "ADP", "NOUN"])], loss=loss)


def parser(folder, loss="sparsemap"):
    """A dependency parser of three relations."""
    file = folder / "tree.conllu"
    lines = [f"{k}\t{form}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for k, (form, tag, head, name) in enumerate(WORDS, 1)]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return untrained("parse", list(read_conllu(file)), loss=loss)
