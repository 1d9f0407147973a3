"""Sets of structures: what inference ranges over."""

from polymax.structures.alignment import Alignment as Alignment
from polymax.structures.base import Counted as Counted
from polymax.structures.base import Structure as Structure
from polymax.structures.chain import Chain as Chain
from polymax.structures.dynamic import DynamicProgram as DynamicProgram
from polymax.structures.hypergraph import Dag as Dag
from polymax.structures.hypergraph import Hypergraph as Hypergraph
from polymax.structures.projective_tree import ProjectiveTree as ProjectiveTree
from polymax.structures.semi_markov import SemiMarkov as SemiMarkov
from polymax.structures.span_tree import SpanTree as SpanTree
