package producer

import "time"

// quiet is how long no message has come when nothing is coming, if no segment is on its way either. 50 ms: a fraction
// of what an upload and a commit take, and longer than the gaps between the messages of a load that fills segments.
const quiet = 50 * time.Millisecond

// A pace says how long full segments wait for others to share their commit: a commit costs the same whatever it carries.
//
// A segment that its linger closed does not wait. One that was full before has the rest of its linger for it: so no
// message is committed later than it would be at a trickle. It does not wait when that helps nobody: nothing is coming,
// as when callers wait for their answers before they send more, or memory is getting scarce.
type pace struct {
	flow     *flow
	budget   *budget
	arrived  int64     // segments that have come from the uploaders, or will never come
	seen     int64     // the messages that had been taken when it was looked last
	nextLook time.Time // when to look again
}

// arrive: one of the segments that were closed has come.
func (p *pace) arrive() { p.arrived++ }

// begin: a group begins to wait.
func (p *pace) begin() {
	p.seen = p.flow.messages.Load()
	p.nextLook = time.Now().Add(quiet)
}

// waitUntil is until when a group that is due then may wait before it is asked again; wait is false when it is to be
// committed now.
func (p *pace) waitUntil(due time.Time) (until time.Time, wait bool) {
	now := time.Now()
	if !now.Before(due) || p.isScarce() {
		return now, false
	}
	if !now.Before(p.nextLook) {
		messages := p.flow.messages.Load()
		if messages == p.seen && p.flow.closed.Load() == p.arrived {
			return now, false
		}
		p.seen = messages
		p.nextLook = now.Add(quiet)
	}
	if due.Before(p.nextLook) {
		return due, true
	}
	return p.nextLook, true
}

// isScarce: three quarters of the memory are held, and what waits here is better given back.
func (p *pace) isScarce() bool { return p.budget.held.Load()/3 >= p.budget.limit/4 }
