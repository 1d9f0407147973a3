"""Interactive pictures: in a notebook, as one HTML file, and on the page that `polymax explore` opens.

`mapping`, `structure` and `attention` give a `Picture`; `save_attention` keeps the weights of a whole model for
`polymax explore --attention FILE`.
"""

from polymax_recipes.explore.attention import attention
from polymax_recipes.explore.attention_file import AttentionFile, save_attention
from polymax_recipes.explore.mappings import mapping
from polymax_recipes.explore.picture import Picture
from polymax_recipes.explore.structures import structure

__all__ = ["AttentionFile", "Picture", "attention", "mapping", "save_attention", "structure"]
