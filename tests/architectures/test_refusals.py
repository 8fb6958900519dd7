"""Command lines of models that cannot work: each is refused in one line, before anything is read.

A kind of option has one example; tests/architectures/test_command_line_grammar.py tries them all.
"""

import pytest
from omegaconf import OmegaConf
from options_of_models import parse, refusal

from fairseq_convattn.architectures.config import ENCODER_DECODER
from fairseq_convattn.architectures.registration import options_to_build

LANGUAGE_MODEL = "dynamic_conv_lm_tiny --task language_modeling"
MASKED_LM = "dynamic_conv_bert_tiny --task masked_lm --criterion masked_lm"
COMPOSITE = "composite_attention_tiny"
# By architecture: options of which the first is refused, and how the reason begins, or the whole
# message where another option is named.
REFUSED = {
    "dynamic_conv_tiny": (
        ("--encoder-mixers dynamic,dynamic", "2 values for 4 layers"),
        ("--decoder-mixers dynamics", "unknown mixer 'dynamics', choose from lightweight, dyn"),
        ("--decoder-mixers dynamic,,dynamic,dynamic", "a name is missing in 'dynamic,,dyn"),
        ("--encoder-kernel-sizes 3,7", "2 values for 4 layers"),
        ("--encoder-kernel-sizes 4", "must be odd in an encoder, not 4"),
        ("--encoder-kernel-sizes 3,7.5,3,3", "must be comma-separated whole numbers"),
        ("--decoder-kernel-sizes 0", "must be a whole number of at least 1, not 0"),
        ("--best-checkpoint-metric bleu", "bleu needs --eval-bleu"),
        ("--encoder-layers -1", "must be at least 0, not -1"),
        ("--encoder-layers 1001", "must be at most 1000, not 1001"),
        ("--encoder-embed-dim 0", "must be at least 1, not 0"),
        ("--decoder-attention-heads 0", "must be at least 1, not 0"),
        ("--encoder-attention-heads 5", "5 heads do not divide the width 128"),
        ("--decoder-conv-dim 30", "4 heads do not divide the width 30"),
        ("--weight-dropout 1.5", "must be between 0 and 1, not 1.5"),
        ("--activation-dropout -1", "must be between 0 and 1, not -1.0"),
        ("--encoder-layerdrop 1e9", "must be between 0 and 1, not 1000000000.0"),
        ("--decoder-layerdrop 1", "1 would drop every layer"),
        ("--encoder-glu maybe", "must be true or false, not 'maybe'"),
        ("--renorm-padding --weight-norm tanh", "works with --weight-norm softmax"),
        ("--cross-self-attention", "needs --decoder-mixers attention"),
        ("--decoder-layers-to-keep 0,7", "must be layers from 0 to 3, not '0,7'"),
        ("--decoder-layers-to-keep x", "must be numbers of layers, such as 0,2, not 'x'"),
        ("--quant-noise-pq 0.1", "fairseq's noise overwrites the weights"),
        ("--quant-noise-pq-block-size 4", "needs --quant-noise-pq"),
        ("--decoder-input-dim 64", "must be --decoder-embed-dim, 128"),
        ("--no-cross-attention", "needs --cross-self-attention"),
        ("--no-decoder-final-norm", "needs --decoder-normalize-before"),
        ("--base-sublayers 2", "needs --base-layers"),
        ("--encoder-xformers-att-config {}", "no mixer is an attention of xFormers"),
        ("--char-inputs", "no encoder here has character inputs"),
        ("--adaptive-softmax-dropout 0.1", "needs --adaptive-softmax-cutoff"),
        ("--adaptive-softmax-factor 8", "needs --adaptive-softmax-cutoff"),
        ("--tie-adaptive-weights", "needs --adaptive-input"),
        ("--relu-dropout 0.3 --activation-dropout 0.1", "replaced by --activation-dropout"),
        ("--merge-src-tgt-embed --decoder-embed-dim 64", "needs equal --decoder-output-dim and"),
        ("--merge-src-tgt-embed --decoder-output-dim 64", "needs equal --decoder-output-dim and"),
        (
            "--encoder-learned-pos --no-token-positional-embeddings true",
            "needs --no-token-positional-embeddings false",
        ),
        (
            "--share-decoder-input-output-embed --adaptive-softmax-cutoff 8 "
            "--criterion adaptive_loss",
            "needs --adaptive-softmax-cutoff none",
        ),
        ("--fp16 --cpu", "needs a GPU"),
        ("--quant-noise-scalar 0.1 --cpu", "needs a GPU"),
        ("--quant-noise-scalar 0.1 --decoder-learned-pos", "fairseq cannot quantise learned"),
        ("--base-layers 1", "needs several processes"),
        ("--adaptive-input", "only language models support adaptive input"),
        ("--adaptive-softmax-cutoff 8", "--criterion: cross_entropy cannot train an adaptive"),
        (
            "--criterion label_smoothed_cross_entropy_with_rdrop --adaptive-softmax-cutoff 8",
            "label_smoothed_cross_entropy_with_rdrop cannot train an adaptive softmax",
        ),
        ("--criterion adaptive_loss", "adaptive_loss needs --adaptive-softmax-cutoff"),
        (
            "--tie-adaptive-weights --criterion adaptive_loss --adaptive-softmax-cutoff 8",
            "needs adaptive input",
        ),
        (
            "--share-decoder-input-output-embed --decoder-output-dim 64",
            "needs equal --decoder-output-dim",
        ),
        ("--share-all-embeddings --decoder-embed-dim 64", "needs equal --encoder-embed-dim and"),
        ("--short-convolution static", "no layer reads it; it needs the mixer attention, com"),
    ),
    LANGUAGE_MODEL: (
        ("--adaptive-input", "needs --adaptive-input-cutoff"),
        ("--adaptive-input data", "must be true or false, not 'data'"),
        ("--adaptive-softmax-factor 0", "must be at least 1, not 0.0"),
        ("--adaptive-softmax-cutoff 9,x", "must be comma-separated whole numbers"),
        ("--adaptive-softmax-cutoff 9,8", "must be increasing positions in the dictionary"),
        ("--tie-adaptive-weights", "needs --adaptive-input and"),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-cutoff 9",
            "needs equal --adaptive-softmax-cutoff and --adaptive-input-cu",
        ),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-cutoff 8 --adaptive-input-factor 2 --criterion adaptive_loss",
            "needs equal --adaptive-softmax-factor and --adaptive-input-factor",
        ),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-cutoff 8 --decoder-input-dim 64 --criterion adaptive_loss",
            "needs equal --decoder-output-dim and --decoder-input-dim",
        ),
        (
            "--tie-adaptive-weights --adaptive-softmax-cutoff 8 --adaptive-input "
            "--adaptive-input-cutoff 8 --decoder-input-dim 64 --decoder-output-dim 64 "
            "--criterion adaptive_loss",
            "needs equal --decoder-output-dim and --decoder-embed-dim",
        ),
        (
            "--share-decoder-input-output-embed --adaptive-input --adaptive-input-cutoff 8",
            "mutually exclusive with --adaptive-input",
        ),
        (
            "--character-embeddings --adaptive-input --adaptive-input-cutoff 8",
            "mutually exclusive with --adaptive-input",
        ),
        (
            "--share-decoder-input-output-embed --character-embeddings",
            "mutually exclusive with --character-embeddings",
        ),
        (
            "--share-decoder-input-output-embed --decoder-input-dim 64",
            "needs equal --decoder-output-dim and --decoder-input-dim",
        ),
        ("--tie-adaptive-proj", "needs --tie-adaptive-weights"),
        ("--adaptive-input-cutoff 8", "needs --adaptive-input"),
        ("--adaptive-input-factor 8", "needs --adaptive-input"),
        ("--character-embedding-dim 8", "needs --character-embeddings"),
        ("--char-embedder-highway-layers 1", "needs --character-embeddings"),
        ("--character-filters [(1,4)]", "needs --character-embeddings"),
        ("--decoder-input-dim 64 --character-embeddings", "must be --decoder-embed-dim, 128"),
        ("--attention-dropout 0.1", "no layer reads it; it needs a mixer or a decoder that att"),
        (
            "--no-decoder-final-norm --decoder-normalize-before false",
            "needs --decoder-normalize-before",
        ),
        ("--character-filters [(1,)]", "must be (width, channels) pairs"),
        ("--character-filters [(1.9,64)]", "must be (width, channels) pairs"),
        ("--character-filters exit()", "must be (width, channels) pairs"),
        (f"--character-filters [(1,{'9' * 400})]", "must be (width, channels) pairs"),
    ),
    MASKED_LM: (
        ("--encoder-kernel-sizes 4", "must be odd in an encoder, not 4"),
        ("--quant-noise-scalar 0.1", "fairseq cannot quantise learned positions; add --no-token"),
        ("--max-positions 0", "must be at least 1, not 0"),
        ("--criterion cross_entropy", "cross_entropy does not count the masked tokens alone"),
        ("--segments -1", "must be at least 0, not -1"),
        ("--share-encoder-layers 2", "must be true or false, not '2'"),
        ("--share-encoder-layers true", "needs one value of --encoder-kernel-sizes, such as 31"),
        (
            "--share-encoder-layers true --encoder-mixers dynamic,dynamic,attention,dynamic",
            "needs one mixer for all layers, not attention, dynamic",
        ),
        ("--tisa-kernels 5", "no layer reads it; it needs the mixer composite or tisa"),
        ("--attention-dropout 0.2", "no layer reads it; it needs a mixer or a decoder that att"),
        (
            "--share-encoder-layers true --ddp-backend fully_sharded --encoder-kernel-sizes 7",
            "FSDP would not share",
        ),
        (
            "--share-encoder-layers true --encoder-kernel-sizes 7 --checkpoint-activations "
            "--distributed-world-size 2",
            "with checkpointed activations it needs --ddp-backend legacy_ddp",
        ),
    ),
    COMPOSITE: (
        ("--weight-norm tanh", "no layer reads it; it needs the mixer lightweight or dynamic, or"),
        ("--share-tables-across-layers --ddp-backend fully_sharded", "FSDP would not share"),
        ("--attention-terms ,", "no terms, choose from content, fixed"),
        ("--attention-terms content,contents", "unknown term 'contents'"),
        ("--attention-terms fixed,fixed", "'fixed' is given twice"),
        ("--projection-kernel-size 4", "must be odd in an encoder, not 4"),
        ("--attention-dropout 1.0", "must be less than 1 for composite attention"),
        ("--convolved-heads half", "needs a convolution in --query-key-projection or"),
        ("--projection-activation gelu", "needs a convolution in"),
        ("--attention-span 0", "must be at least 1 with --beyond-span clip"),
        (
            "--beyond-span zero --attention-terms content,tisa",
            "zero needs one of the terms fixed, query, key, not content,tisa",
        ),
        (
            "--query-key-projection dynamic --attention-terms fixed,tisa",
            "the terms fixed,tisa use neither queries nor keys",
        ),
        (
            "--convolved-heads half --value-projection dynamic --encoder-attention-heads 1",
            "half needs an even number of heads, not 1",
        ),
        ("--tisa-kernels 3", "no layer reads it; it needs the term tisa"),
        ("--projection-kernel-size 3", "no layer reads it; it needs --query-key-projection"),
        (
            "--share-tables-across-heads --attention-terms content,alibi",
            "no layer reads it; it needs a term that is learned",
        ),
        (
            "--beyond-span clip --attention-terms content,t5",
            "no layer reads it; it needs one of the terms fixed",
        ),
        (
            "--decoder-glu --encoder-mixers dynamic --decoder-mixers attention",
            "no layer reads it; it needs the mixer lightweight or dynamic",
        ),
        (
            "--attention-span 4 --encoder-mixers dynamic --decoder-mixers attention",
            "no layer reads it; it needs the mixer composite or tisa",
        ),
    ),
    "tisa_tiny": (
        ("--attention-terms content", "no layer reads it; it needs the mixer composite; "),
        ("--decoder-learned-pos", "needs --no-token-positional-embeddings false"),
        ("--attention-span 4", "no layer reads it; it needs one of the terms fixed"),
    ),
    "attention_tiny": (
        ("--weight-dropout 0.3", "no layer reads it; it needs the mixer lightweight or dynamic"),
        ("--attention-dropout -0.5", "must be between 0 and 1, not -0.5"),
        ("--short-convolution-on q", "no layer reads it; it needs --short-convolution"),
        ("--short-convolution-on q,k --short-convolution static", "must be some of the letters"),
        ("--short-convolution-on qq --short-convolution static", "'qq' repeats a letter"),
        (
            "--short-convolution-rank 3 --short-convolution static",
            "no layer reads it; it needs --short-convolution low_rank",
        ),
        (
            "--short-convolution-window causal --short-convolution static --encoder-mixers dynamic",
            "no layer reads it; it needs an encoder with --short-convolution",
        ),
        (
            "--short-convolution static --encoder-mixers composite --attention-terms fixed",
            "--short-convolution-on: the terms fixed do not use",
        ),
        (
            "--short-convolution static --cross-self-attention",
            "mutually exclusive with --cross-self-attention",
        ),
        ("--cross-self-attention --decoder-embed-dim 64", "needs equal --encoder-embed-dim and"),
    ),
}


@pytest.mark.parametrize(
    "arch, options, reason", [(arch, *case) for arch, cases in REFUSED.items() for case in cases]
)
def test_what_cannot_work_is_refused(arch, options, reason):
    message = reason if reason.startswith("--") else f"{options.split()[0]}: {reason}"
    assert refusal(*arch.split(), *options.split()).startswith(message)


@pytest.mark.parametrize(
    "flags",
    [
        f"{COMPOSITE} --encoder-mixers dynamic --attention-terms content,fixed",
        "dynamic_conv_tiny --decoder-mixers dynamic,dynamic,dynamic,tisa --tisa-kernels 3",
        "tisa_tiny --attention-terms tisa,content --share-tables-across-heads",
        "tisa_tiny --beyond-span mask --attention-span 4",
        "tisa_tiny --value-projection dynamic --projection-kernel-size 3 --weight-norm tanh",
        f"{COMPOSITE} --attention-terms content,alibi --beyond-span mask",
        f"{COMPOSITE} --attention-terms key_only --share-tables-across-layers",
        "composite_attention_lm_tiny --task language_modeling --value-conv depthwise "
        "--projection-kernel-size 4",
        "attention_tiny --attention-dropout 1.0",  # as fairseq's own may
        "dynamic_conv_tiny --attention-dropout 0.2 --decoder-input-dim 128",  # cross-attention's
        f"{LANGUAGE_MODEL} --attention-dropout 0 --decoder-input-dim 64 --tie-adaptive-proj false",
        "tisa_tiny --decoder-learned-pos --no-token-positional-embeddings false",
        f"{LANGUAGE_MODEL} --attention-dropout 0.1 --decoder-mixers dynamic,dynamic,dynamic,tisa",
        f"{MASKED_LM} --encoder-kernel-sizes 7 --share-encoder-layers --checkpoint-activations",
        # what a preset shares nobody has asked for
        "dynamic_conv_albert_base --task masked_lm --criterion masked_lm",
    ],
)
def test_what_some_layer_reads_is_taken(flags):
    parse(*flags.split())


@pytest.mark.parametrize(
    "task, arch, message",
    [
        (
            "masked_lm",
            "composite_attention_tiny",
            "composite_attention_tiny is for --task translation and summarization; 'convattn "
            "architectures --task masked_lm' lists those for masked_lm",
        ),
        ("language_modeling", "tisa_bert_tiny", "tisa_bert_tiny is for --task masked_lm and sen"),
    ],
)
def test_an_architecture_for_other_tasks(task, arch, message):
    assert refusal(arch, "--task", task).startswith(f"--arch: {message}")


def test_a_task_for_other_architectures():
    pairs = ("--lang-pairs", "a-b")
    message = refusal("dynamic_conv_tiny", "--task", "multilingual_translation", *pairs)
    assert message.startswith("--task: multilingual_translation needs an --arch such as multilin")
    message = refusal("dynamic_conv_tiny", "--task", "translation_lev")
    assert message == "--task: translation_lev needs an --arch such as cmlm_transformer"
    model = OmegaConf.structured(ENCODER_DECODER.config())
    hydras = OmegaConf.create({"task": {"_name": "translation_lev"}, "model": model})
    with pytest.raises(SystemExit, match=message):
        options_to_build(hydras.model, ENCODER_DECODER)
