"""``--task summarization``. Importing this registers it with fairseq."""

from .task import SummarizationTask as SummarizationTask
