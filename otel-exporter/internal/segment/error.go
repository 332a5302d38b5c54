package segment

import "fmt"

// A Problem is what is wrong with the bytes of a segment.
type Problem int

// The problems that a reader tells apart.
const (
	Truncated    Problem = iota + 1 // there is less than there should be
	OverLimit                       // a size is over its limit
	BadMagic                        // it is not a segment, or is cut
	BadVersion                      // another version of the format
	BadChecksum                     // a bit has flipped
	Unknown                         // a compression or an encoding that this version does not know
	Inconsistent                    // two statements contradict each other
	Malformed                       // protobuf, zstd or a varint cannot be read
	BadName                         // a stream's name breaks the rules, or is there twice
)

// An Error says what is wrong, and where.
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
	return &Error{Truncated, offset, field, fmt.Sprintf("%d bytes are needed and %d are left", needed, left)}
}

func overLimit(offset uint64, field string, found, limit uint64) error {
	return &Error{OverLimit, offset, field, fmt.Sprintf("%d is over the limit of %d", found, limit)}
}

func inconsistent[T any](offset uint64, field string, found, expected T) error {
	return &Error{Inconsistent, offset, field, fmt.Sprintf("%v is stated, %v was expected", found, expected)}
}

func badChecksum(offset uint64, field string, stated, computed uint32) error {
	return &Error{BadChecksum, offset, field, fmt.Sprintf("%08x is stated, the bytes have %08x", stated, computed)}
}
