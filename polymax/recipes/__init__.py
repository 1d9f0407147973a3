"""What the command `polymax` runs: training, the demo, the measuring of speed.

trained = polymax.recipes.train("tag", train="train.txt", dev="dev.txt", out="run", epochs=5)
trained = polymax.recipes.load("run")
trained.results(["Anna sings in Rome."])
"""

from polymax.recipes import tasks as tasks
from polymax.recipes.api import train as train
from polymax.recipes.training.run import load as load
from polymax.recipes.training.task import Trained as Trained
from polymax.recipes.training.task import register as register
