"""Modules: structured inference with parameters of its own."""

from polymax.nn.crf import CRF as CRF
from polymax.nn.tag_schemes import TagConstraints as TagConstraints
from polymax.nn.tag_schemes import bio_constraints as bio_constraints
from polymax.nn.tag_schemes import bioes_constraints as bioes_constraints
