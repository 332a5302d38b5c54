package producer

import (
	"slices"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// members are the segments of the next commit: this producer's, those with blocks of others, and those that others have
// uploaded. producer/src/group.rs does the same in Rust.
type members struct {
	works   []uploadedWork // that this producer uploaded; those with its own records come first
	foreign []foreign      // that others uploaded; they follow the works
}

// described is what a commit consists of. It does not change while an attempt is unresolved.
type described struct {
	group
	places []heldPlace // whose claim each of the held ones is
}

// A heldPlace is the place of another producer's claim: a guest of a work, or one of the foreign.
type heldPlace struct {
	work    int // -1: it is one of the foreign
	guest   int
	foreign int
}

func (m *members) empty() bool { return len(m.works) == 0 && len(m.foreign) == 0 }

// len returns the number of segments.
func (m *members) len() int {
	count := len(m.works)
	for i := range m.foreign {
		count += len(m.foreign[i].segments)
	}
	return count
}

// mayBeForwarded reports that nothing of it is another producer's, so that a leader may commit all of it.
func (m *members) mayBeForwarded() bool {
	return len(m.foreign) == 0 && !slices.ContainsFunc(m.works, func(work uploadedWork) bool { return len(work.guests) > 0 })
}

// describe describes the commit. It moves works with own records to the front: one claim covers them.
func (m *members) describe() described {
	slices.SortStableFunc(m.works, func(a, b uploadedWork) int { return ownFirst(&a) - ownFirst(&b) })
	d := described{group: group{segments: describe(m.works)}}
	for i := range m.works {
		if m.works[i].hasOwn() {
			d.own++
		}
		for place := range m.works[i].guests {
			d.hold(m.works[i].guests[place].ticket, i, i+1, heldPlace{work: i, guest: place})
		}
	}
	for i := range m.foreign {
		start := len(d.segments)
		d.segments = append(d.segments, m.foreign[i].segments...)
		d.hold(m.foreign[i].ticket, start, len(d.segments), heldPlace{work: -1, foreign: i})
	}
	return d
}

// describe describes uploaded segments.
func describe(works []uploadedWork) []manifest.NewSegment {
	segments := make([]manifest.NewSegment, len(works))
	for i := range works {
		segments[i] = works[i].describe()
	}
	return segments
}

func ownFirst(work *uploadedWork) int {
	if work.hasOwn() {
		return 0
	}
	return 1
}

func (d *described) hold(ticket *ticket, start, end int, place heldPlace) {
	d.held = append(d.held, manifest.Claim{
		Producer: ticket.producer, First: ticket.number, Last: ticket.number, Start: start, End: end,
	})
	d.places = append(d.places, place)
}

// take takes the request of another producer at this place out of the group, and gives its memory back. A work whose
// guest it was has to be built anew.
func (m *members) take(place heldPlace, budget *budget) *ticket {
	if place.work >= 0 {
		work := &m.works[place.work]
		guest := work.guests[place.guest]
		work.guests = slices.Delete(work.guests, place.guest, place.guest+1)
		budget.release(guest.cost)
		return guest.ticket
	}
	foreign := m.foreign[place.foreign]
	m.foreign = slices.Delete(m.foreign, place.foreign, place.foreign+1)
	budget.release(foreign.cost)
	return foreign.ticket
}

// foreignAt returns the index of the request of another producer that has the segment at this place of the group; -1 if
// the segment is a work.
func (m *members) foreignAt(place int) int {
	end := len(m.works)
	for i := range m.foreign {
		if place < end {
			break
		}
		end += len(m.foreign[i].segments)
		if place < end {
			return i
		}
	}
	return -1
}

// answerHeld tells the producer of a held claim what the table says about it.
func answerHeld(ticket *ticket, settled settled) {
	switch settled.verdict {
	case committedVerdict:
		if settled.known {
			ticket.committed(settled.firstSequence)
			return
		}
		ticket.refuse(peer.Invalid, "a later number of the producer is in the log")
	case partlyVerdict:
		ticket.refuse(peer.Invalid, "a later number of the producer is in the log")
	case gapVerdict:
		ticket.refuse(peer.Invalid, "a number before it is missing in the log")
	case spentVerdict:
		ticket.refuse(peer.Invalid, "the producer has spent the number without its records")
	case forgottenVerdict:
		ticket.refuse(peer.Invalid, "the producer is not registered")
	case invalidVerdict:
		ticket.refuse(peer.Invalid, "the claim is not valid")
	}
}
