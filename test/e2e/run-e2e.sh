#!/bin/sh
# `make e2e-live` at the path of the Go provider's test script. Arguments are groups of scenarios; without any, all run.
set -eu
cd -- "$(dirname -- "$0")/../.."
[ $# -eq 0 ] || export CAPHV_E2E_STORIES="$*"
exec make e2e-live
