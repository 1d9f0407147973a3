"""Sets of structures: what inference ranges over."""

from polymax.structures.alignment import Alignment as Alignment
from polymax.structures.assignment import Assignment as Assignment
from polymax.structures.base import Counted as Counted
from polymax.structures.base import Sampled as Sampled
from polymax.structures.base import Structure as Structure
from polymax.structures.chain import Chain as Chain
from polymax.structures.counter_chain import BudgetChain as BudgetChain
from polymax.structures.counter_chain import SegmentChain as SegmentChain
from polymax.structures.ctc import CTC as CTC
from polymax.structures.dynamic import DynamicProgram as DynamicProgram
from polymax.structures.hypergraph import Dag as Dag
from polymax.structures.hypergraph import Hypergraph as Hypergraph
from polymax.structures.monotonic import Monotonic as Monotonic
from polymax.structures.projective_tree import ProjectiveTree as ProjectiveTree
from polymax.structures.ranking import Ranking as Ranking
from polymax.structures.ranking import soft_rank as soft_rank
from polymax.structures.ranking import soft_sort as soft_sort
from polymax.structures.second_order_tree import GrandparentTree as GrandparentTree
from polymax.structures.second_order_tree import SiblingTree as SiblingTree
from polymax.structures.semi_markov import SemiMarkov as SemiMarkov
from polymax.structures.simplex import Explicit as Explicit
from polymax.structures.simplex import Simplex as Simplex
from polymax.structures.simplex import Subset as Subset
from polymax.structures.span_tree import SpanTree as SpanTree
from polymax.structures.spanning_tree import SpanningTree as SpanningTree
from polymax.structures.subsequence import Subsequence as Subsequence
