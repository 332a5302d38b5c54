# Go's settings for the tools, the lints and the tests (sourced, not run). They share what is compiled only if these are
# equal. Debug information, which stack traces do not need, would take a fifth of the time.
export CGO_ENABLED=0
export GOFLAGS="${GOFLAGS:-} -trimpath -gcflags=all=-dwarf=false -ldflags=-w"
