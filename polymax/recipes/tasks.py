"""The tasks there are, and where each lives: training itself knows none of them."""

from polymax.recipes.training.task import register

register("bracket", "polymax.recipes.bracket.task")
register("classify", "polymax.recipes.latent.classify")
register("entail", "polymax.recipes.entail.task")
register("listops", "polymax.recipes.latent.expressions")
register("lm", "polymax.recipes.lm.task")
register("parse", "polymax.recipes.parse.task")
register("protein-align", "polymax.recipes.protein_align.task")
register("seq2seq", "polymax.recipes.seq2seq.task")
register("series", "polymax.recipes.series.task")
register("speech-align", "polymax.recipes.speech_align.task")
register("tag", "polymax.recipes.tag.task")
register("word-align", "polymax.recipes.word_align.task")
