// Package manifest holds the state of a shard: the manifest (the log of committed segments), its pages, the buffer
// object and the consumers' cursors (read only), as design/formats.md specifies them. The transitions are pure: they do
// no I/O and take the time and random numbers as arguments. Only cas.go reads and swaps objects.
package manifest

//go:generate go run -C ../generate .
