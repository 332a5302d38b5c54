package segment

import "fmt"

// A Problem is a kind of damage in the bytes of a segment.
type Problem int

const (
	Truncated    Problem = iota + 1 // the bytes end too early
	OverLimit                       // a size is over its limit
	BadMagic                        // not a segment, or truncated
	BadVersion                      // another version of the format
	BadChecksum                     // corrupted bytes
	Unknown                         // a compression or an encoding that this version does not know
	Inconsistent                    // two values contradict each other
	Malformed                       // protobuf, zstd or a varint cannot be read
	BadName                         // a stream's name breaks the rules or occurs twice
)

// An Error describes the damage and its position.
type Error struct {
	Problem Problem
	Offset  uint64 // in the object
	Field   string
	Detail  string
}

func (e *Error) Error() string {
	return fmt.Sprintf("segment is damaged at byte %d: %s: %s", e.Offset, e.Field, e.Detail)
}

func truncated(offset uint64, field string, needed, left uint64) error {
	return &Error{Truncated, offset, field, fmt.Sprintf("%d bytes are needed and %d remain", needed, left)}
}

func overLimit(offset uint64, field string, found, limit uint64) error {
	return &Error{OverLimit, offset, field, fmt.Sprintf("%d is over the limit of %d", found, limit)}
}

func inconsistent[T any](offset uint64, field string, found, expected T) error {
	return &Error{Inconsistent, offset, field, fmt.Sprintf("%v is stated, %v is expected", found, expected)}
}

func badChecksum(offset uint64, field string, stated, computed uint32) error {
	return &Error{BadChecksum, offset, field, fmt.Sprintf("%08x is stated, the bytes have %08x", stated, computed)}
}
