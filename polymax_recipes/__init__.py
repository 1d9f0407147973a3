"""The code behind the command `polymax`: training, the demo, and measurements of speed.

trained = polymax_recipes.train("tag", train="train.txt", dev="dev.txt", out="run", epochs=5)
trained = polymax_recipes.load("run")
trained.results(["Anna sings in Rome."])
"""

from polymax_recipes import tasks as tasks
from polymax_recipes.api import train as train
from polymax_recipes.training.predictor import predictor as predictor
from polymax_recipes.training.run import load as load
from polymax_recipes.training.task import Trained as Trained
from polymax_recipes.training.task import register as register
from polymax_recipes.training.task import register_file as register_file
