package peer

import (
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
)

const (
	// trusted is the time after which a cursor is read again: its consumer may have been removed.
	trusted = 60 * time.Second
	// readEvery: the cursor of one consumer is read at most this often, and so are those of all unknown consumers
	// together.
	readEvery = time.Second
	// knownMax is the maximum number of known consumers.
	knownMax = 256
)

// consumers decides which certificates may watch: those in the cursors of consumers. It decides when a cursor is read,
// so that nobody can make the leader read more than a few a second. Pure: the caller has the clock, and reads.
type consumers struct {
	known         map[string]*knownConsumer // by the keys of their cursors
	unknownReadAt time.Time                 // when the cursor of an unknown consumer was last read; zero: never
}

type knownConsumer struct {
	certificate manifest.Fingerprint // zeros: none
	readAt      time.Time
}

// A verdict is the next step for a consumer's certificate.
type verdict int

const (
	vouched verdict = iota // the consumer's cursor vouches for it
	readNow                // read the cursor; the read counts from now on
	waitFor                // ask again later
)

func newConsumers() *consumers { return &consumers{known: make(map[string]*knownConsumer)} }

// judge judges the certificate that somebody presents as the consumer with this cursor. again is the time to ask again.
func (c *consumers) judge(
	cursor string, presented manifest.Fingerprint, now time.Time,
) (next verdict, again time.Time) {
	readAt := &c.unknownReadAt
	known := c.known[cursor]
	if known != nil {
		if known.certificate == presented && now.Before(known.readAt.Add(trusted)) {
			return vouched, time.Time{}
		}
		readAt = &known.readAt
	}
	if !readAt.IsZero() && now.Before(readAt.Add(readEvery)) {
		return waitFor, readAt.Add(readEvery)
	}
	if known != nil && !now.Before(known.readAt.Add(trusted)) {
		known.certificate = manifest.Fingerprint{}
	}
	*readAt = now
	return readNow, time.Time{}
}

// found records what the cursor of a consumer says. A certificate of zeros: it has none.
func (c *consumers) found(cursor string, certificate manifest.Fingerprint, now time.Time) {
	if known := c.known[cursor]; known != nil {
		known.certificate = certificate
		return
	}
	if certificate == (manifest.Fingerprint{}) {
		return
	}
	if len(c.known) >= knownMax {
		c.forgetOldest()
	}
	c.known[cursor] = &knownConsumer{certificate, now}
}

func (c *consumers) forgetOldest() {
	var oldest string
	var oldestAt time.Time
	for cursor, known := range c.known {
		if oldestAt.IsZero() || known.readAt.Before(oldestAt) {
			oldest, oldestAt = cursor, known.readAt
		}
	}
	delete(c.known, oldest)
}
