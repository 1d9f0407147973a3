"""Models that were never trained, made from a few lines in no time: what serves and shows models needs no more."""

from polymax.recipes.readers.columns import Tagged
from polymax.recipes.readers.conllu import read_conllu
from polymax.recipes.training.settings import made
from polymax.recipes.training.task import Trained, named

SMALL = {"hidden": 8, "embedding": 8}
TREE = "1\tShe\t_\tPRON\t_\t_\t2\tnsubj\t_\t_\n2\tsings\t_\tVERB\t_\t_\t0\troot\t_\t_\n3\tsongs\t_\tNOUN\t_\t_\t2\tobj\t_\t_\n\n"


def untrained(name, examples, **options):
    """The model of a task with the vocabularies of some examples."""
    task = named(name)
    known = {field: value for field, value in SMALL.items() if field in task.Options.__dataclass_fields__}
    chosen = made(task.Options, {**known, **options})
    vocabularies = task.vocabularies(examples, chosen)
    return Trained(task, chosen, vocabularies, task.model(chosen, vocabularies).eval())


def tagger(loss="sparsemap"):
    """A tagger of three tags."""
    return untrained("tag", [Tagged(["Anna", "sings", "in", "Rome"], ["NOUN", "VERB", "ADP", "NOUN"])], loss=loss)


def parser(folder, loss="sparsemap"):
    """A dependency parser of three relations."""
    file = folder / "tree.conllu"
    file.write_text(TREE, encoding="utf-8")
    return untrained("parse", list(read_conllu(file)), loss=loss)
