#!/usr/bin/env bash
# Trains fairseq's transformer_lm or lightconv_lm as the recipe wikitext2 trains our models, and
# prints test perplexity with and without context. Run it from the root of the repository.
#
#     bash docs/data/wikitext2.sh transformer_lm [--decoder-normalize-before]
#     bash docs/data/wikitext2.sh lightconv_lm
#
# Prepare the data first: convattn recipe wikitext2 prepare [--source DIR]
set -euo pipefail
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
shape='--decoder-embed-dim 128 --decoder-input-dim 128 --decoder-output-dim 128
  --decoder-ffn-embed-dim 256 --decoder-layers 4 --decoder-attention-heads 4 --dropout 0.3
  --attention-dropout 0.1 --adaptive-input-cutoff 2000,10000'
if [ "$1" = lightconv_lm ]; then
  shape+=' --decoder-kernel-size-list 3,7,15,31 --decoder-glu True --decoder-conv-type dynamic
    --weight-dropout 0.1 --input-dropout 0'
fi
run=$(IFS=_; echo "runs/wikitext2-fairseq_$*")
commands=$(python -m fairseq_convattn.recipes wikitext2 --mixer dynamic --output "$run" --dry-run -- --fp32 --num-workers 0)
train=$(grep '^fairseq-train' <<<"$commands" | sed -E \
  -e "s/--arch [^ ]+/--arch $1/" \
  -e 's/--(adaptive-input|tie-adaptive-weights|tie-adaptive-proj) true/--\1/g')
mkdir -p "$run"
eval "$train" $shape "${@:2}" > "$run/train.log" 2>&1
while read -r score; do
  eval "$score"
done < <(grep '^fairseq-eval-lm' <<<"$commands")
grep -H Perplexity "$run"/scores.*.txt
