#!/usr/bin/env bash
# foldlog's demo: an agent mends a fault and has it released, is killed in the worst moment, goes on
# from its Run State alone, and waits for a person. Then an auditor looks, and finds out a forger.
# The agent and the outside world it acts on are in examples/story. Leaves nothing behind.
#
# Needs the installed `foldlog` command and the Python it is installed for (PYTHON, else python3):
# `make demo` has both on PATH.
set -euo pipefail

python=${PYTHON:-python3}
command -v foldlog > /dev/null && "$python" -c 'import foldlog' 2> /dev/null || {
    echo "There is no 'foldlog' on PATH, or '$python' cannot import it: run 'make demo'." >&2
    exit 1
}
examples=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d)
pids=()
leave() {
    for pid in "${pids[@]}"; do kill -9 "$pid" 2> /dev/null || true; done
    rm -rf "$folder"
}
trap leave EXIT
unset FOLDLOG_HOME FOLDLOG_LOG
export USER=ada

title() { printf '\n\n== %s\n' "$*"; }
say() {
    echo
    printf '# %s\n' "$@"
}
run() { # shows a command as one would type it, and runs it
    local word line='$'
    for word in "$@"; do
        case $word in *[!a-zA-Z0-9_./:=-]*) line+=" '$word'" ;; *) line+=" $word" ;; esac
    done
    echo "$line"
    "$@"
}
agent() {
    echo "$ python agent.py release-1"
    "$python" "$examples/story/agent.py" release-1
}
until_true() { # at most 20 s
    for _ in $(seq 400); do
        if "$@" 2> /dev/null; then return; fi
        sleep 0.05
    done
    echo "waited in vain for: $*" >&2
    exit 1
}

is_gone() { ! kill -0 "$1"; }

cd "$folder"
cp -r "$examples/story/shop" .
mkdir desk
"$python" "$examples/story/outside.py" desk --first-answer-after 60 > /dev/null &
pids+=($!)
disown $!
until_true test -s desk/port

title "A job for an agent"

say "shop/ is a small program with a fault and a test suite. Somebody wants it mended and released." \
    "A home holds the log of what was decided, and what is made of it; a run is one job."
run foldlog init
run foldlog start release-1 --goal "Mend the rounding of prices, and release 1.4.1"

say "The agent plans, runs the tests, edits a file, runs them again. Then it asks the release desk," \
    "another process with a ledger of its own, to take the release note. It says so BEFORE it asks."
echo "$ python agent.py release-1 &"
"$python" "$examples/story/agent.py" release-1 &
agent=$!
pids+=("$agent")
disown "$agent" # or bash itself would tell of its death
until_true grep -q submit desk/ledger.jsonl

say "The desk has done it, and its answer is not there yet. In this very moment:"
run kill -9 "$agent"
until_true is_gone "$agent"

title "Where is the run now, and is it safe to go on?"

say "No memory of the agent is left. Its Run State is, for any process that asks." \
    "Look at 'in doubt': meant to be done, outcome unknown. Neither repeat it nor take it as done."
run foldlog show release-1

say "The desk knows (an agent that simply tried again would have it do it twice):"
run cat desk/ledger.jsonl

say "Started again, the agent reads its Run State and nothing else, asks the desk what became of" \
    "the request, records what it hears, and goes on. Before it publishes, it needs a person."
agent

title "Nobody has to sit and wait"

say "The agent's process has ended. The wait is in the log, with its deadline and who can end it."
if foldlog why --help > /dev/null 2>&1; then
    run foldlog why release-1
else
    run foldlog runs
fi

say "Eva says yes. Whoever starts the agent next finds the answer."
run foldlog signal release-1 publish-1.4.1 --payload '{"granted": true}' --author user:eva
agent

say "What the outside world was asked to do: one submission, one publication."
run cat desk/ledger.jsonl

title "The auditor's look"

say "Who proposed what, when, and which revision it made. Between 14 and 15 the agent was killed."
run foldlog history release-1

say "The run as it was at revision 6: the fault is seen and not mended yet."
run foldlog show release-1 --at 6

say "What the second process found out, before it did anything else."
run foldlog diff release-1 14 16

say "The log is a hash chain, and the state shown has to be exactly the fold of it."
run foldlog verify

say "On a copy, somebody makes it Eve who approved, instead of Eva. One byte of one record:"
run cp -r .foldlog forged
echo "$ python tamper.py forged/log.sqlite eva eve"
"$python" "$examples/story/tamper.py" forged/log.sqlite eva eve
code=0
run foldlog --home forged verify || code=$?
echo "exit code $code"
test "$code" = 5

title "Runs that are there already"

say "Transcripts of other agents become runs too: here eight, in OpenAI's chat form. The tool that is" \
    "named here acts on the outside world."
cp "$examples/transcripts.jsonl" .
run foldlog import transcripts.jsonl --effect-tool start_job

say "One of them breaks off. Where does it stand? Nobody knows what its last call did."
run foldlog runs --status running
run foldlog show ops-disk-alert

printf '\n\nThat was foldlog. Nothing of it is left on your disk.\n'
