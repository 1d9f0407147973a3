"""Readers of the files that recipes train on, and writers where results go back into files.

All read UTF-8, plain or packed (a name that ends in ".gz"), one item after the other; what is wrong with a file is a
`ReadError` with its name and line.
"""

from polymax.recipes.readers.alignments import WordAlignment as WordAlignment
from polymax.recipes.readers.alignments import read_aligned as read_aligned
from polymax.recipes.readers.alignments import read_alignments as read_alignments
from polymax.recipes.readers.binary import chart_spans as chart_spans
from polymax.recipes.readers.binary import chart_tree as chart_tree
from polymax.recipes.readers.binary import collapsed as collapsed
from polymax.recipes.readers.binary import expanded as expanded
from polymax.recipes.readers.binary import left_binary as left_binary
from polymax.recipes.readers.binary import right_binary as right_binary
from polymax.recipes.readers.binary import unbinary as unbinary
from polymax.recipes.readers.binary_parses import format_binary as format_binary
from polymax.recipes.readers.binary_parses import parse_binary as parse_binary
from polymax.recipes.readers.cleaning import is_trace as is_trace
from polymax.recipes.readers.cleaning import is_zero as is_zero
from polymax.recipes.readers.cleaning import without as without
from polymax.recipes.readers.cleaning import without_functions as without_functions
from polymax.recipes.readers.cleaning import without_root as without_root
from polymax.recipes.readers.columns import Tagged as Tagged
from polymax.recipes.readers.columns import read_tagged as read_tagged
from polymax.recipes.readers.columns import write_tagged as write_tagged
from polymax.recipes.readers.conllu import Sentence as Sentence
from polymax.recipes.readers.conllu import Word as Word
from polymax.recipes.readers.conllu import read_conllu as read_conllu
from polymax.recipes.readers.conllu import write_conllu as write_conllu
from polymax.recipes.readers.jsonl import ParsedPair as ParsedPair
from polymax.recipes.readers.jsonl import Summarized as Summarized
from polymax.recipes.readers.jsonl import read_scitldr as read_scitldr
from polymax.recipes.readers.jsonl import read_snli as read_snli
from polymax.recipes.readers.lines import ReadError as ReadError
from polymax.recipes.readers.schemes import BIO as BIO
from polymax.recipes.readers.schemes import BIOES as BIOES
from polymax.recipes.readers.schemes import IO as IO
from polymax.recipes.readers.schemes import IOB1 as IOB1
from polymax.recipes.readers.schemes import Scheme as Scheme
from polymax.recipes.readers.schemes import detect as detect
from polymax.recipes.readers.schemes import spans_of as spans_of
from polymax.recipes.readers.series import Series as Series
from polymax.recipes.readers.series import read_long_series as read_long_series
from polymax.recipes.readers.series import read_series as read_series
from polymax.recipes.readers.spans import Span as Span
from polymax.recipes.readers.trees import Tree as Tree
from polymax.recipes.readers.trees import fold as fold
from polymax.recipes.readers.trees import parse_tree as parse_tree
from polymax.recipes.readers.trees import read_trees as read_trees
from polymax.recipes.readers.trees import write_trees as write_trees
from polymax.recipes.readers.tsv import Labelled as Labelled
from polymax.recipes.readers.tsv import Pair as Pair
from polymax.recipes.readers.tsv import Translation as Translation
from polymax.recipes.readers.tsv import read_labelled as read_labelled
from polymax.recipes.readers.tsv import read_pairs as read_pairs
from polymax.recipes.readers.tsv import read_translations as read_translations
from polymax.recipes.readers.tsv import write_rows as write_rows
