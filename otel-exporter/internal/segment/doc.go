// Package segment encodes and decodes segments: immutable objects that hold the messages of one or more streams as
// compressed blocks. The format is specified in design/segment-format.md. The package does no I/O and never interprets
// a payload.
package segment
