"""What a recipe prints at its end."""

from fairseq_convattn.recipes.record import score_lines


def score(name, **further):
    plain = {"confidence": None, "signature": "S", "baseline": "", "published": {}}
    return {"name": name, "score": 31.256, "difference": None, **plain, **further}


def test_scores_with_published_figures_come_last_and_baselines_are_called_so():
    published = {"dynamic": 30.0, "attention": 29.5}
    found = score("R1", published=published, published_in="A paper", difference=1.256)
    baseline = score("R1, longest-3", confidence=[31.0, 31.5], baseline="longest-3")
    scores = [found, score("RL"), baseline]
    results = {"mixer": "dynamic", "scores": scores, "unconfirmed": "", "smoke": False}
    assert score_lines(results) == [
        "R1, longest-3: 31.26 [31.00, 31.50] (baseline)",
        "  S",
        "RL: 31.26 (dynamic)",
        "  S",
        "R1: 31.26 (dynamic)",
        "  published, A paper: dynamic 30.00 (difference +1.26), attention 29.50",
        "  S",
    ]
