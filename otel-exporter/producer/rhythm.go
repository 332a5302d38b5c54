package producer

import "time"

// ahead is the fraction of an interval by which blocks are sent before the leader closes its segment.
const ahead = 10

// A rhythm is the points in time, at a constant distance, at which a leader closes its segments. Followers send their
// blocks shortly before, so that the blocks wait neither here nor there, and one number in flight is enough.
// producer/src/rhythm.rs does the same in Rust.
type rhythm struct {
	at    time.Time // one of the points
	every time.Duration
}

// closeAt returns the time to close a follower's segment with a first message at this time. The rhythm is known to a
// few milliseconds: a segment that has just begun does not close at once.
func (r rhythm) closeAt(firstAt time.Time) time.Time {
	ahead := rhythm{r.at.Add(r.every - r.every/ahead), r.every}
	return ahead.nextAfter(firstAt.Add(r.every / 20))
}

// sendAt returns the time to send blocks that are ready now, together with those of the segment that closes next. wait
// is false if the next point is near: then they are sent at once.
func (r rhythm) sendAt(now time.Time) (at time.Time, wait bool) {
	ahead := r.every / ahead
	closeAt := r.nextAfter(now).Add(-ahead)
	return closeAt.Add(ahead / 4), closeAt.After(now)
}

// nextAfter returns the first point after a time.
func (r rhythm) nextAfter(now time.Time) time.Time {
	past := now.Sub(r.at) % r.every
	if past < 0 {
		past += r.every
	}
	return now.Add(r.every - past)
}
