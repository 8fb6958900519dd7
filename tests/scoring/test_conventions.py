"""What papers do to texts before they compare them, beside the programs that they did it with."""

import shutil
import subprocess

import pytest

from fairseq_convattn.scoring.conventions import detokenise, split_compounds

# of detokenizer.perl (revision 4134), language by language
DETOKENISED = [
    ("en", "It 's the cats ' toys , don 't you know ?", "It's the cats' toys, don't you know?"),
    ("en", 'He said : " I \'m fine ( really ) . "', 'He said: "I\'m fine (really)."'),
    (
        "en",
        "a state @-@ of @-@ the @-@ art R &amp; D lab costs $ 3.50 or 20 %",
        "a state-of-the-art R & D lab costs $3.50 or 20%",
    ),
    (
        "en",
        "&quot; She &apos;s &#91; sic &#93; in , &quot; &lt; b &gt;",
        '"She\'s [sic] in," < b >',
    ),
    ("en", "Price : £ 5 - not € 6 ... 3 / 4 !", "Price: £5 - not €6... 3 / 4!"),
    ("de", "Er sagte : „ Das ist gut . “ Ja !", "Er sagte: „Das ist gut.“ Ja!"),
    ("de", "E @-@ Mail @-@ Adresse , z. B. ( oben )", "E-Mail-Adresse, z. B. (oben)"),
    ("de", "das ist &quot; fein &quot; &amp; gut : 5 % mehr .", 'das ist "fein" & gut: 5% mehr.'),
    ("fr", "qu&apos; est-ce que c&apos; est : 10 % !", "qu'est-ce que c'est : 10 % !"),
    ("fr", "n&apos; est @-@ ce pas , « oui » ?", "n'est-ce pas, « oui » ?"),
    ("zh", "我 爱 北京 天安门 。", "我爱北京天安门。"),
]

COMPOUNDS = {
    "end-to-end models": "end ##AT##-##AT## to ##AT##-##AT## end models",
    "Fahrrad - Verleih -los E-": "Fahrrad - Verleih -los E-",
    "x-y-z": "x ##AT##-##AT## y-z",
    "x-ü-z": "x ##AT##-##AT## ü ##AT##-##AT## z",
    "1990-1995--2000": "1990 ##AT##-##AT## 1995 ##AT##-##AT## -2000",
    "no\u00a0-break": "no\u00a0 ##AT##-##AT## break",
    "„Ost-West“-Achse": "„Ost ##AT##-##AT## West“ ##AT##-##AT## Achse",
    "": "",
}


def piped(command: list[str], lines: list[str]) -> list[str]:
    """What a program makes of lines."""
    if not shutil.which(command[0]):
        pytest.skip(f"needs {command[0]}")
    text = "".join(f"{line}\n" for line in lines)
    run = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return run.stdout.decode().removesuffix("\n").split("\n")


@pytest.mark.parametrize(("text", "expected"), COMPOUNDS.items())
def test_compounds(text, expected):
    assert split_compounds(text) == expected


def test_compounds_are_split_by_the_expression_of_fairseqs_script():
    lines = list(COMPOUNDS)
    expression = r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"
    assert piped(["perl", "-ple", expression], lines) == list(map(split_compounds, lines))


@pytest.mark.parametrize(("language", "tokens", "expected"), DETOKENISED)
def test_detokenisation_is_that_of_moses(language, tokens, expected):
    pytest.importorskip("sacremoses")
    assert detokenise([tokens], language) == [expected]


def test_detokenisation_keeps_numbers_of_texts():
    pytest.importorskip("sacremoses")
    assert detokenise(["a .", "", "b"], "en") == ["a.", "", "b"]
