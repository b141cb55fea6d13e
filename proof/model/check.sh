#!/bin/sh
# Checks the model in every order of steps: exit status 0 when it holds and the search was complete.
#
#   proof/model/check.sh                  the model as it is
#   proof/model/check.sh WITHOUT_TOKEN    without the line of that name; how a law breaks is shown
#   proof/model/check.sh --sample         some hundred thousand states of it, in a few seconds

set -eu
sample=
if [ "${1:-}" = --sample ]; then
    sample=yes
    shift
fi
model=$(cd "$(dirname "$0")" && pwd)/partway.pml
mutant=${1:-}
for tool in spin cc; do
    if ! command -v $tool >/dev/null; then
        echo "model: $tool is missing (in Debian: spin, gcc)" >&2
        exit 2
    fi
done
if [ -n "$mutant" ] && ! grep -q "def.*\<$mutant\>" "$model"; then
    echo "model: it has no line called $mutant" >&2
    exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cp "$model" .

spin -a ${mutant:+"-D$mutant"} partway.pml
# Breadth first finds the shortest way to break a law, but needs more memory for a whole search.
# A step reads what others write, so there are no independent steps for spin to leave out.
# A broken law is found so soon that to compile well would take longer.
# A sample takes two states for one where their hashes meet, and so leaves states out.
cc -O2 -DSAFETY -DNOREDUCE -DPEG -DMEMLIM=6000 ${mutant:+-O1 -DBFS} ${sample:+-O1 -DBITSTATE} \
    -o pan pan.c
if [ -n "$mutant" ]; then
    ./pan -w24 >said
elif [ -n "$sample" ]; then
    ./pan -w20 -m20000 >said
else
    ./pan -w25 -m20000 >said
fi

grep -E '^pan:|errors:|states, stored|total actual memory' said
if [ -e partway.pml.trail ]; then
    spin -t ${mutant:+"-D$mutant"} partway.pml >steps 2>&1 || true
    sed -nE 's/^ *((worker|node|batch|clock)\b)/  \1/p' steps
    exit 1
fi
if ! grep -q 'errors: 0' said || grep -qE 'not completed|depth too small|out of memory' said; then
    echo "model: the search was not complete" >&2
    cat said >&2
    exit 1
fi
# A transition that never happens would prove nothing. PEG has counted those that did.
written=$(cc -E -P -x c partway.pml | grep -c ':: *d_step')
happened=$(grep -c '^ *[0-9][0-9]*.trans ' said)
echo "  $happened of $written kinds of transitions happened"
[ "$happened" = "$written" ] || exit 1
