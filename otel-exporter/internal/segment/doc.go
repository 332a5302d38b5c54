// Package segment encodes and decodes segments: immutable objects that hold the messages of one or many streams as
// compressed blocks. The format is specified in design/segment-format.md. Bytes in, bytes out: it does no I/O and
// never reads a payload.
package segment
