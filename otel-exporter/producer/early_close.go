package producer

import "time"

const (
	// earlyCloseSegments is the number of past segments that tell how many callers there are. A caller that has left
	// delays this many at most.
	earlyCloseSegments = 16
	// earlyCloseSaved is the number of segments that an idle producer saves up.
	earlyCloseSaved = 4
	// gapsPerLinger sets the part of the linger without a message after which callers that came together are all there.
	gapsPerLinger = 50
)

// An earlyClose decides when a segment closes before its linger ends: when every caller that could add to it is waiting
// for an answer. producer/src/early_close.rs does the same in Rust, and has the reasons.
type earlyClose struct {
	linger time.Duration
	flow   *flow
	// peak is the most callers that were waiting at once, for the open segment; peaks has those of the ones before it.
	peak        int64
	peaks       []int64
	lastMessage time.Time
	usedUntil   time.Time // the end of the time that the segments so far have used up, at one per linger
}

// message records that the open segment took a message.
func (e *earlyClose) message(now time.Time) {
	e.lastMessage = now
	e.peak = max(e.peak, e.flow.waiting.Load())
}

// closed records that the open segment closed, for whatever reason.
func (e *earlyClose) closed(now time.Time) {
	if len(e.peaks) == earlyCloseSegments {
		e.peaks = append(e.peaks[:0], e.peaks[1:]...)
	}
	e.peaks = append(e.peaks, e.peak)
	e.peak = 0
	if e.usedUntil.Before(now) {
		e.usedUntil = now
	}
	e.usedUntil = e.usedUntil.Add(e.linger)
}

// closeAt returns the time to close a segment whose linger ends at due. Later messages and answers change it.
func (e *earlyClose) closeAt(due time.Time) time.Time {
	waiting := e.flow.waiting.Load()
	for _, callers := range e.peaks {
		if waiting < callers {
			return due
		}
	}
	at := e.lastMessage.Add(e.linger / gapsPerLinger)
	// The allowance is one segment when the time used up ends that many lingers ahead, less one.
	if allowed := e.usedUntil.Add(-(earlyCloseSaved - 1) * e.linger); at.Before(allowed) {
		at = allowed
	}
	if due.Before(at) {
		return due
	}
	return at
}
