#!/usr/bin/env bash
# Makes the demo model's drafter from nothing, unattended:
#
#     train.sh PROMPTS WORK [QUESTIONS...]
#
# PROMPTS is a folder of prompt files (*.jsonl, *.jsonl.gz), which invented prompts are added to. WORK gets all that is
# made: the drafter in WORK/drafter, its score on the question files (or on the built-in ones) in WORK/score.json.
# After a kill the same command goes on where it was: each step resumes by itself.
set -euo pipefail
shopt -s nullglob

if (($# < 2)); then
    echo "usage: $0 PROMPTS WORK [QUESTIONS...]" >&2
    exit 2
fi
work=$2
prompts=("$1"/*.jsonl "$1"/*.jsonl.gz)
if ((${#prompts[@]} == 0)); then
    echo "$0: there is no prompt file (*.jsonl, *.jsonl.gz) in $1" >&2
    exit 2
fi
questions=()
for file in "${@:3}"; do
    if [[ ! -f $file || ! -r $file ]]; then
        echo "$0: the question file $file cannot be read" >&2
        exit 2
    fi
    questions+=(--questions "$file")
done
mkdir -p "$work"

# Generating runs two commands side by side, each on half of the cores: one on all of them makes four fifths as much.
half=$((($(nproc) + 1) / 2))

make_drafter() {
    OMP_NUM_THREADS=$half invent_opened &
    OMP_NUM_THREADS=$half respsd drafter invent --demo --to "$work/invented.jsonl" --count 1300 --max-tokens 200
    wait $!
    OMP_NUM_THREADS=$half answer_invented &
    OMP_NUM_THREADS=$half answer "${prompts[@]}" --to "$work/answers-given.jsonl" --limit 4300
    wait $!

    train --to "$work/first" --unrolled-steps 2 --epochs 1.3 \
        --matrix-learning-rate 8e-3 --learning-rate 2e-3
    train --to "$work/drafter" --from "$work/first" --unrolled-steps 4 --epochs 2.5 --prompt-weight 0 \
        --matrix-learning-rate 4e-3 --learning-rate 1e-3 --warmup 20

    respsd drafter eval --demo --drafter "$work/drafter" "${questions[@]}" \
        --action 32,5,8 --limit 16 --max-new-tokens 128 --output json >"$work/score.json.part"
    mv "$work/score.json.part" "$work/score.json"
    cat "$work/score.json"
}

invent_opened() {
    respsd drafter invent --demo --to "$work/opened.jsonl" --count 700 --max-tokens 160 --seed 7 \
        --opening "Write a" --opening "Explain" --opening "Describe" --opening "Give" --opening "Create a" \
        --opening "Imagine you are" --opening "Identify" --opening "Generate" --opening "List" --opening "Compose" \
        --opening "Suppose" --opening "Rewrite the" --opening "How" --opening "Why" --opening "Find" \
        --opening "Classify" --opening "Compare" --opening "Who" --opening "Tell me" --opening "Design"
}

answer() {
    respsd drafter collect "$@" --demo --temperature 0 --temperature 0 --temperature 0.7 \
        --max-new-tokens 224 --max-prompt-tokens 400
}

answer_invented() {
    answer "$work/invented.jsonl" "$work/opened.jsonl" --to "$work/answers-invented.jsonl" --limit 2100
    respsd drafter quote "$work/answers-invented.jsonl" --demo --to "$work/quoting.jsonl" --count 600
    respsd drafter collect "$work/quoting.jsonl" --demo --to "$work/summaries.jsonl" \
        --temperature 0 --max-new-tokens 192 --max-prompt-tokens 900 --batch 64
}

train() {
    respsd drafter train "$work/answers-given.jsonl" "$work/answers-invented.jsonl" "$work/summaries.jsonl" --demo \
        --features "$work/features" --intermediate-size 2048 --kv-heads 9 --weight-decay 0.02 "$@"
}

set -m # the job below becomes a process group: whatever ends this script, none of its commands outlives it
make_drafter &
job=$!
trap 'kill -- "-$job" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
wait "$job"
