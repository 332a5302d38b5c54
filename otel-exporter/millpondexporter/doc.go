// Package millpondexporter is the OpenTelemetry Collector's exporter `millpond`: it appends logs, traces and metrics to a
// Millpond buffer in an object store, from which `millpond consume` writes them to ClickHouse. ../README.md has a
// configuration. What is said to have been sent is committed.
//
// Package producer, which does the work, is usable by itself.
package millpondexporter

//go:generate go run go.opentelemetry.io/collector/cmd/mdatagen@v0.159.0 metadata.yaml
