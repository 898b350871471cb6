# The same verbs that .ci/run calls.

default:
    @just --list

fmt:
    cargo fmt --all

lint:
    cargo clippy --workspace --all-targets -- -D warnings

test:
    cargo test --workspace

# The end-to-end suite alone, with its processes' last log lines in each failure.
e2e *ARGS:
    cargo test -p belay --test e2e -- {{ARGS}}

# The end-to-end suite again and again, with one core kept busy.
e2e-soak times='20':
    #!/usr/bin/env bash
    set -euo pipefail
    cargo test -p belay --test e2e --no-run
    (while :; do :; done) &
    load=$!
    trap 'kill "$load"' EXIT
    for n in $(seq {{times}}); do
        echo "run $n of {{times}}"
        cargo test --quiet -p belay --test e2e
    done

demo *ARGS:
    cargo run --release -- demo {{ARGS}}

ci:
    bash .ci/run
