"""Hugging Face Transformers: mappings as attention implementations, sparse losses of words, and structured heads."""

from polymax.integrations.transformers.cache import BoxedCache as BoxedCache
from polymax.integrations.transformers.encoders import word_labels as word_labels
from polymax.integrations.transformers.forward import attention as attention
from polymax.integrations.transformers.losses import EntmaxLogitsProcessor as EntmaxLogitsProcessor
from polymax.integrations.transformers.losses import EntmaxLoss as EntmaxLoss
from polymax.integrations.transformers.models import check as check
from polymax.integrations.transformers.models import load as load
from polymax.integrations.transformers.models import use as use
from polymax.integrations.transformers.names import DEFAULTS as DEFAULTS
from polymax.integrations.transformers.names import register as register
from polymax.integrations.transformers.parsing import Arc as Arc
from polymax.integrations.transformers.parsing import DependencyParserConfig as DependencyParserConfig
from polymax.integrations.transformers.parsing import DependencyParserModel as DependencyParserModel
from polymax.integrations.transformers.parsing import ParserCollator as ParserCollator
from polymax.integrations.transformers.parsing import ParserOutput as ParserOutput
from polymax.integrations.transformers.tagging import CRFConfig as CRFConfig
from polymax.integrations.transformers.tagging import CRFForTokenClassification as CRFForTokenClassification
