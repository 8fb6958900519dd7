import os
import re
import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup

root = Path(__file__).parent
package = (root / "fairseq_convattn" / "__init__.py").read_text(encoding="utf-8")
version = re.search(r'^__version__ = "(.+)"$', package, re.MULTILINE)
kernels = "fairseq_convattn/ops/native"
checksum = runpy.run_path(str(root / kernels / "sources.py"))["checksum"](root / kernels)

sources = ("instructions", "convolution", "attention", "attention_bfloat16", "short_convolution")

# unless somebody asks for less, as to debug
optimised = [] if re.search(r"-O[01g]\b", os.getenv("CFLAGS", "")) else ["-O3"]
# whatever CFLAGS ask for: the kernels round by adding and subtracting
exact = ["-fno-fast-math", "-fno-unsafe-math-optimizations", "-fno-associative-math"]

glue = ["scikit-learn>=1.3,<2", "scipy>=1.11,<2", "tabulate"]
recipes = ["subword-nmt", "sacremoses", "jieba", "regex"]

setup(
    name="fairseq_convattn",
    version=version[1],
    description="Convolutions and attention with relative positions as a fairseq plugin",
    python_requires=">=3.11,<3.13",
    packages=[*find_packages(include=["fairseq_convattn", "fairseq_convattn.*"]), "convattn"],
    package_dir={"convattn": "scripts"},
    entry_points={"console_scripts": ["convattn=convattn.cli:main"]},
    ext_modules=[
        Extension(
            "fairseq_convattn.ops.native._kernels",
            [f"{kernels}/{name}.c" for name in sources],
            # all for each, as they know what they were compiled with
            depends=[str(file) for file in sorted(Path(kernels).glob("*.[ch]"))],
            define_macros=[("CONVATTN_SOURCES", f"{checksum}u")],
            extra_compile_args=[*optimised, *exact, "-std=gnu11"],
            extra_link_args=exact,  # with fast arithmetic, a library changes that of its process
            libraries=["m"],
            optional=True,  # without it, PyTorch computes
        )
    ],
    package_data={
        "fairseq_convattn": ["py.typed"],
        "fairseq_convattn.report": ["*.html", "*.css"],
        "convattn": ["prepare_*.sh", "wikitext.sh"],
    },
    install_requires=[
        "torch>=2.11,<2.14",
        "fairseq-fixed==0.12.3.1",
        "numpy>=1.26,<3",
        "omegaconf>=2.3,<3",
        "sacrebleu>=2.4,<3",
        "rouge-score>=0.1.2,<0.2",
        "sentencepiece>=0.2.2,<0.3",
        "tqdm",
    ],
    extras_require={
        "test": [
            *("pytest", "pytest-xdist", "hypothesis", "ruff", "matplotlib", "jinja2"),
            "triton; sys_platform == 'linux'",
            *("sphinx", "myst-parser", "furo"),
            *("onnx", "onnxscript", "safetensors"),
            *glue,
            *recipes,
        ],
        "glue": glue,
        "recipes": recipes,
        "analysis": ["matplotlib"],
        "report": ["matplotlib", "jinja2"],
        "docs": ["sphinx", "myst-parser", "furo"],
        "onnx": ["onnx", "onnxscript"],
    },
)
