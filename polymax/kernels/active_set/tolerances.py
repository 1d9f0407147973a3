"""What counts as nothing, and as the same, in every loop of SparseMAP."""

# weights below this are rounding
NOTHING = 1e-13
# a structure whose squared distance to the span of the others is below this share of its size lies in it: overlaps
# are whole numbers
DEPENDENT = 1e-9
# how far off mu the points are around which structures on its face are sought: large beside the error of mu, small
# beside the distance of structures that are not on the face
NUDGE = 1e-8
# how far below the best a structure on the face may seem to be, relative to its score
TIED = 1e-10
# how much a nudge must favour a structure that is not a mix of the others
APART = 1e-6
