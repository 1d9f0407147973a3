"""Names of the tasks and their modules: those of this package, and entry points `polymax.tasks` of others."""

from importlib.metadata import entry_points

from polymax_recipes.training.task import register

register("bracket", "polymax_recipes.bracket.task")
register("classify", "polymax_recipes.latent.classify")
register("entail", "polymax_recipes.entail.task")
register("listops", "polymax_recipes.latent.expressions")
register("lm", "polymax_recipes.lm.task")
register("parse", "polymax_recipes.parse.task")
register("protein-align", "polymax_recipes.protein_align.task")
register("seq2seq", "polymax_recipes.seq2seq.task")
register("series", "polymax_recipes.series.task")
register("speech-align", "polymax_recipes.speech_align.task")
register("tag", "polymax_recipes.tag.task")
register("word-align", "polymax_recipes.word_align.task")
for entry in entry_points(group="polymax.tasks"):
    register(entry.name, entry.value.partition(":")[0])
