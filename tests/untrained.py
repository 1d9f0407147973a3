"""Models that were never trained, made from a few lines in no time: what serves and shows models needs no more."""

from polymax.recipes.readers.columns import Tagged
from polymax.recipes.readers.conllu import read_conllu
from polymax.recipes.training.settings import made
from polymax.recipes.training.task import Trained, named

SMALL = {"hidden": 8, "embedding": 8}
WORDS = (("She", "PRON", 2, "nsubj"), ("sings", "VERB", 0, "root"), ("songs", "NOUN", 2, "obj"))


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
    lines = [f"{k}\t{form}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_" for k, (form, tag, head, name) in enumerate(WORDS, 1)]
    file.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    return untrained("parse", list(read_conllu(file)), loss=loss)
