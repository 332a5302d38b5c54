// Package manifest has the state of a shard: the manifest (the log of committed segments), its pages, the buffer object
// and the consumers' cursors (read only), as design/formats.md specifies them. The transitions are pure: they do no
// I/O and take the time and the random numbers as arguments. Object, in cas.go, is the one seam that reads and swaps.
package manifest

//go:generate go run -C ../generate .
