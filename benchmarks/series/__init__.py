"""Classes of series by the nearest barycenter: the workloads, the peers, the measure."""
