"""Factor graphs: structures and constraints that share variables."""

from polymax.factors.factor import Factor as Factor
from polymax.factors.graph import FactorGraph as FactorGraph
from polymax.factors.integral import solve_integral as solve_integral
from polymax.factors.logic import and_out as and_out
from polymax.factors.logic import at_least as at_least
from polymax.factors.logic import at_least_one as at_least_one
from polymax.factors.logic import at_most_one as at_most_one
from polymax.factors.logic import budget as budget
from polymax.factors.logic import implies as implies
from polymax.factors.logic import knapsack as knapsack
from polymax.factors.logic import or_out as or_out
from polymax.factors.logic import pair as pair
from polymax.factors.logic import table as table
from polymax.factors.logic import xor as xor
