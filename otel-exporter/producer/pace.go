package producer

import "time"

// quiet is the gap between messages after which no more are coming, provided no segment is in flight. 50 ms: a fraction
// of an upload and a commit, and longer than the gaps of a load that fills segments.
const quiet = 50 * time.Millisecond

// A pace decides how long full segments wait for others to share their commit: a commit costs the same whatever it
// carries.
//
// A segment that closed because of its linger does not wait. One that was full earlier waits for at most the rest of
// its linger, so no message commits later than at low load. It does not wait if that helps nobody: no messages are
// coming, for example because callers wait for answers, or memory is scarce.
type pace struct {
	flow     *flow
	budget   *budget
	arrived  int64     // segments that have arrived from the uploaders, or never will
	seen     int64     // messages taken at the last look
	nextLook time.Time // when to look again
}

// arrive records that a closed segment has arrived.
func (p *pace) arrive() { p.arrived++ }

// begin starts the wait of a group.
func (p *pace) begin() {
	p.seen = p.flow.messages.Load()
	p.nextLook = time.Now().Add(quiet)
}

// waitUntil returns the time until which a group with this due time may wait before asking again. wait is false if the
// group must commit now.
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

// isScarce reports that three quarters of the memory are in use, so that committing early frees memory.
func (p *pace) isScarce() bool { return p.budget.held.Load()/3 >= p.budget.limit/4 }
