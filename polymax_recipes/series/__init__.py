"""Time series: alignments of two, and classes by the nearest barycenter under dynamic time warping."""
