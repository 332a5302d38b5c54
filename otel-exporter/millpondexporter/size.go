package millpondexporter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Size is a number of bytes, written as 64KiB, 16MiB, 1GB or a plain number, as in Millpond's own settings.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// UnmarshalText parses a size.
func (s *Size) UnmarshalText(text []byte) error {
	for _, unit := range units {
		number, found := strings.CutSuffix(string(text), unit.suffix)
		if !found {
			continue
		}
		value, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || value < 0 || value > math.MaxInt64/unit.bytes {
			break
		}
		*s = Size(value * unit.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size: write 1048576, 64KiB, 16MiB or 1GiB", text)
}

// MarshalText formats a size in the largest binary unit that divides it.
func (s Size) MarshalText() ([]byte, error) {
	for i := 3; i >= 0; i-- {
		if unit := units[i]; s > 0 && int64(s)%unit.bytes == 0 {
			return fmt.Appendf(nil, "%d%s", int64(s)/unit.bytes, unit.suffix), nil
		}
	}
	return strconv.AppendInt(nil, int64(s), 10), nil
}
