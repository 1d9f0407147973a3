"""A plugin of pytest that puts attention by a mapping in the place of Transformers' sdpa, and of eager."""

from functools import partial
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--polymax-mapping", required=True)


def pytest_configure(config: pytest.Config) -> None:
    from transformers import AttentionInterface

    from polymax.integrations.transformers import attention
    from polymax.nn.attention_mapping import NAMED

    mapping = NAMED[config.getoption("--polymax-mapping")]
    AttentionInterface._global_mapping["sdpa"] = partial(attention, mapping)
    if mapping is NAMED["softmax"]:
        return
    whole = AttentionInterface.get_interface

    def get_interface(self: Any, name: str, default: Any) -> Any:
        return partial(_over_scores, mapping) if name == "eager" else whole(self, name, default)

    def _over_scores(mapping: Any, *args: Any, **options: Any) -> Any:
        return attention(mapping, *args, **{**options, "output_attentions": True})

    AttentionInterface.get_interface = get_interface
