"""Hugging Face Transformers: every mapping as an attention implementation, chosen by name; sparse losses of words."""

from polymax.integrations.transformers.cache import BoxedCache as BoxedCache
from polymax.integrations.transformers.forward import attention as attention
from polymax.integrations.transformers.losses import EntmaxLogitsProcessor as EntmaxLogitsProcessor
from polymax.integrations.transformers.losses import EntmaxLoss as EntmaxLoss
from polymax.integrations.transformers.models import check as check
from polymax.integrations.transformers.models import load as load
from polymax.integrations.transformers.models import use as use
from polymax.integrations.transformers.names import DEFAULTS as DEFAULTS
from polymax.integrations.transformers.names import register as register
