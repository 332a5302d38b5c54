package producer

import (
	"sync"
	"time"
)

// following is what the stages of a producer share about the leader that it follows. The committer sets it. It decides
// nothing.
type following struct {
	linger    time.Duration // this producer's
	mutex     sync.Mutex
	keepBelow uint64  // smaller segments are not uploaded, because the leader takes their blocks; 0: no leader does
	slow      bool    // the leader closes its segments so rarely that blocks would wait there for too long
	rhythm    *rhythm // of the leader's segments; nil: not known
}

// slowerMax: blocks go to a leader whose linger is at most this many times this producer's.
const slowerMax = 2

// follow takes note of the size below which the leader takes the blocks of the next segments. 0: there is no leader.
func (f *following) follow(keepBelow uint64, leads bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.keepBelow = keepBelow
	if !leads {
		f.keepBelow, f.rhythm = 0, nil
	}
}

// keeps reports that a segment of this size need not be uploaded.
func (f *following) keeps(size uint64) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return size < f.keepBelow && !f.slow
}

// keepRhythm follows the rhythm of a leader that has just answered, unless its interval is much longer than this
// producer's linger: callers would wait for the leader's linger. every is 0 if it has none.
func (f *following) keepRhythm(now time.Time, after, every time.Duration) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.rhythm, f.slow = nil, every/slowerMax > f.linger
	if every > 0 && !f.slow {
		f.rhythm = &rhythm{now.Add(after), every}
	}
}

// closeAt returns the time to close a segment with a first message at firstAt, if the leader sets it.
func (f *following) closeAt(firstAt time.Time) (at time.Time, set bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.rhythm == nil {
		return time.Time{}, false
	}
	return f.rhythm.closeAt(firstAt), true
}

// sendAt returns the time to send the leader blocks that are ready now. wait is false if that is at once.
func (f *following) sendAt(now time.Time) (at time.Time, wait bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if f.rhythm == nil {
		return time.Time{}, false
	}
	return f.rhythm.sendAt(now)
}
