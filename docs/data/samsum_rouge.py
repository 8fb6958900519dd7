"""ROUGE-1 and ROUGE-2 as Gliwa et al. (2019) computed them: by py-rouge, with stems.

    pip install py-rouge==1.1 nltk 'setuptools<81'
    python docs/data/samsum_rouge.py REFERENCES HYPOTHESES

prints F1 in percent. Each file has a text a line.
"""

import sys
from pathlib import Path

import nltk
import rouge


def words(text: str, language: str = "english") -> list[str]:
    """NLTK's words. py-rouge has removed what ends a sentence, so none is looked for: no download
    of NLTK's data.
    """
    return nltk.word_tokenize(text, language, preserve_line=True)


rouge.Rouge.tokenize_text = staticmethod(words)
references, hypotheses = (Path(p).read_text(encoding="utf-8").splitlines() for p in sys.argv[1:])
scorer = rouge.Rouge(["rouge-n"], max_n=2, limit_length=False)
for name, score in sorted(scorer.get_scores(hypotheses, references).items()):
    print(name, f"{100 * score['f']:.2f}")
