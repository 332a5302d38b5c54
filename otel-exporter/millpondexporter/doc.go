// Package millpondexporter is the OpenTelemetry Collector's exporter `millpond`. It appends logs, traces and metrics to
// a Millpond buffer in an object store, from which `millpond consume` writes them to ClickHouse. It reports data as
// sent only after the commit. See ../README.md for a configuration.
//
// Package producer does the work and can be used directly.
package millpondexporter

//go:generate go run go.opentelemetry.io/collector/cmd/mdatagen@v0.159.0 metadata.yaml
