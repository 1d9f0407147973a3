"""Time series: alignments of two series, and classification by the nearest barycenter under dynamic time warping."""
