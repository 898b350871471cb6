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

demo *ARGS:
    cargo run --release -- demo {{ARGS}}

ci:
    bash .ci/run
