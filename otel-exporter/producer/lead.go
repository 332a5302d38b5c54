package producer

import (
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// silentIntervals is the number of intervals without records of others after which a leader keeps no rhythm.
const silentIntervals = 16

// A lead is what the stages of a producer share about the records of others: whether it leads, whom it knows, whose
// numbers it holds, and the rhythm of its segments. producer/src/lead.rs does the same in Rust.
type lead struct {
	look     chan struct{} // has a value while somebody wants a look at the manifest
	watchers *watchers

	mutex        sync.Mutex
	own          manifest.ProducerID
	leads        bool
	certificates map[manifest.ProducerID]manifest.Fingerprint
	held         map[manifest.ProducerID]*ticket // at most one number of each producer
	answeredAt   time.Time                       // when the store last answered a swap; a lost race is an answer
	rhythm       *rhythm                         // of this leader's segments; nil: it has none
	lastGuest    time.Time
}

func newLead(budget *budget, counters *counters) *lead {
	l := &lead{look: make(chan struct{}, 1), held: make(map[manifest.ProducerID]*ticket)}
	l.watchers = newWatchers(budget, counters, l.askForLook)
	return l
}

// A guest is blocks of another producer, for a segment of this one.
type guest struct {
	ticket *ticket
	blocks []peer.Block
	cost   int64
}

// A foreign is segments of another producer, which are in the store.
type foreign struct {
	ticket   *ticket
	segments []manifest.NewSegment
	cost     int64
}

// A ticket is the duty to answer for a number of another producer. The lead's mutex guards the waiters.
type ticket struct {
	lead     *lead
	producer manifest.ProducerID
	number   uint64
	waiters  []chan *peer.Answer // with room for one answer
}

// answer tells everybody who asked. Only the first answer counts.
func (t *ticket) answer(answer *peer.Answer) {
	t.lead.mutex.Lock()
	if t.lead.held[t.producer] == t {
		delete(t.lead.held, t.producer)
	}
	waiters := t.waiters
	t.waiters = nil
	t.lead.mutex.Unlock()
	for _, waiter := range waiters {
		waiter <- answer
	}
}

// refuse tells everybody who asked that the records are not in the log, as far as this producer knows.
func (t *ticket) refuse(reason peer.Reason, message string) { t.answer(peer.Refuse(reason, message)) }

// committed tells everybody who asked that the records are in the log, from this sequence on.
func (t *ticket) committed(firstSequence uint64) {
	answer := &peer.Answer{FirstSequence: firstSequence}
	answer.ClosesAfter, answer.ClosesEvery = t.lead.closes(time.Now())
	t.answer(answer)
}

// learn takes note of the manifest in force: a state that the store returned, or whose swap it confirmed. Consumers see it.
func (l *lead) learn(state *manifest.Manifest, own manifest.ProducerID) {
	certificates := make(map[manifest.ProducerID]manifest.Fingerprint)
	for i := range state.Producers {
		if row := &state.Producers[i]; row.Certificate != (manifest.Fingerprint{}) {
			certificates[row.ID] = row.Certificate
		}
	}
	leads := state.IsLedBy(own)
	l.mutex.Lock()
	l.own, l.leads, l.certificates = own, leads, certificates
	l.mutex.Unlock()
	l.watchers.show(state, leads)
}

// certificate returns the certificate of a producer, as far as this one knows.
func (l *lead) certificate(id manifest.ProducerID) (certificate manifest.Fingerprint, known bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	certificate, known = l.certificates[id]
	return certificate, known
}

// askForLook asks for a look at the manifest.
func (l *lead) askForLook() {
	select {
	case l.look <- struct{}{}:
	default:
	}
}

// answered records that the store answered a swap, or showed what became of one.
func (l *lead) answered(now time.Time) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.answeredAt = now
}

// idleSince returns the time of the last such answer, or start if that is later.
func (l *lead) idleSince(start time.Time) time.Time {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.answeredAt.After(start) {
		return l.answeredAt
	}
	return start
}

// offer takes a number of another producer. The ticket is nil if the number is held already: the waiter gets the same
// answer. Otherwise the caller must see to it that the ticket is answered.
func (l *lead) offer(id manifest.ProducerID, number uint64) (*ticket, chan *peer.Answer, *peer.Answer) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if !l.leads {
		return nil, nil, peer.Refuse(peer.NotLeading, "")
	}
	var held []manifest.Claim
	there := l.held[id]
	if there != nil {
		held = append(held, manifest.One(id, there.number, 0))
	}
	waiter := make(chan *peer.Answer, 1)
	switch err := checkOffer(l.own, held, manifest.One(id, number, 0)); err {
	case nil:
		new := &ticket{lead: l, producer: id, number: number, waiters: []chan *peer.Answer{waiter}}
		l.held[id] = new
		return new, waiter, nil
	case errRepeatedOffer:
		there.waiters = append(there.waiters, waiter)
		return nil, waiter, nil
	case errBusyOffer:
		return nil, nil, peer.Refuse(peer.Busy, "")
	default:
		return nil, nil, peer.Refuse(peer.Invalid, err.Error())
	}
}

// forget removes the waiter of a caller that has gone away from whatever holds the number.
func (l *lead) forget(id manifest.ProducerID, waiter chan *peer.Answer) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	held := l.held[id]
	if held == nil {
		return
	}
	for place, other := range held.waiters {
		if other == waiter {
			held.waiters = append(held.waiters[:place:place], held.waiters[place+1:]...)
			return
		}
	}
}

// guest records that blocks of another producer came, for a segment that closes at this time. The rhythm starts with the
// segment that takes the first of them.
func (l *lead) guest(now, closes time.Time, every time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.rhythm == nil || l.isSilent(now) {
		l.rhythm = nil
		if every > 0 {
			l.rhythm = &rhythm{closes, every}
		}
	}
	l.lastGuest = now
}

func (l *lead) isSilent(now time.Time) bool {
	return now.Sub(l.lastGuest) > l.rhythm.every*silentIntervals
}

// closeAt returns the time to close a segment with a first message at firstAt, if this leader keeps a rhythm.
func (l *lead) closeAt(firstAt time.Time) (at time.Time, set bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.rhythm == nil || l.isSilent(firstAt) {
		return time.Time{}, false
	}
	return l.rhythm.nextAfter(firstAt), true
}

// closes returns the rhythm for an answer: zeros without one.
func (l *lead) closes(now time.Time) (after, every time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.rhythm == nil {
		return 0, 0
	}
	return l.rhythm.nextAfter(now).Sub(now), l.rhythm.every
}
