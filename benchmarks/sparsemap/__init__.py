"""SparseMAP, spanning trees and assignments: the workloads, the oracles, the peers."""
