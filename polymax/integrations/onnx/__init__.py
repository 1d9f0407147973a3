"""ONNX: translations of operators for torch's exporter."""

from polymax.integrations.onnx.table import translation_table as translation_table
