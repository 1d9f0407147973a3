"""Tolerances of every loop of SparseMAP."""

# weights below this are rounding errors
NOTHING = 1e-13
# a structure whose squared distance to the span of the others is below this share of its size lies in the span:
# overlaps are integers
DEPENDENT = 1e-9
# distance from mu of the points at which structures on its face are sought: large beside the error of mu, small beside
# the distance of structures that are not on the face
NUDGE = 1e-8
# relative difference to the best score up to which a structure counts as lying on the face
TIED = 1e-10
# least gain along the nudge of a structure that is not a mix of the others
APART = 1e-6
