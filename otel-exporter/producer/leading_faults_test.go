package producer

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

var thirdID = manifest.ProducerID{3}

// segmentsOf is a request to commit segments with a message each.
func segmentsOf(w *world, id manifest.ProducerID, payloads ...string) *peer.Request {
	request := &peer.Request{Producer: id, Number: 1}
	for _, payload := range payloads {
		request.Segments = append(request.Segments, uploaded(w, payload))
	}
	return request
}

func TestEachProducerHearsTheSequenceOfItsSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		leader, host := newPeerNetwork(w).lead(gathering())
		// They all wait for one swap.
		slow := w.network.Hold(unreliable.Replace, "manifest")
		var requests sync.WaitGroup
		requests.Go(func() { w.mustAppend(leader, "second") })
		<-slow.Arrived()
		firsts := make(map[manifest.ProducerID]uint64)
		var mutex sync.Mutex
		for _, id := range []manifest.ProducerID{otherID, thirdID} {
			request := segmentsOf(w, id, "a", "b")
			requests.Go(func() {
				answer := commitFor(t, host, request)
				if answer.Refused != nil {
					t.Error(answer.Refused)
				}
				mutex.Lock()
				defer mutex.Unlock()
				firsts[id] = answer.FirstSequence
			})
		}
		synctest.Wait()
		slow.Release()
		requests.Wait()
		state := w.manifest()
		for id, first := range firsts {
			if row, _ := state.Producer(id); row.FirstSequence != first || row.Count != 2 || row.Commit != 1 {
				t.Errorf("it heard %d, and the table has %+v", first, row)
			}
		}
	})
}

func TestSegmentsOfOthersBelowTheOrphanFloorGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		leader, host := newPeerNetwork(w).lead(gathering())
		old := segmentsOf(w, otherID, "a", "b")
		time.Sleep(time.Second)
		new := segmentsOf(w, thirdID, "c")
		floor := uint64(time.Now().UnixMilli()) - 500
		w.change(func(m *manifest.Manifest) { m.OrphanFloorMs = floor })
		slow := w.network.Hold(unreliable.Replace, "manifest")
		var requests sync.WaitGroup
		requests.Go(func() { w.mustAppend(leader, "second") })
		<-slow.Arrived()
		requests.Go(func() {
			if answer := commitFor(t, host, old); answer.Refused == nil || answer.Refused.Reason != peer.NotCommitted {
				t.Errorf("%+v", answer)
			}
		})
		requests.Go(func() {
			if answer := commitFor(t, host, new); answer.Refused != nil {
				t.Error(answer.Refused)
			}
		})
		synctest.Wait()
		slow.Release()
		requests.Wait()
		w.checkLog("first", "second", "c")
	})
}

// A stream that another producer began in another encoding, before the leader has read it.
func TestAGuestThatTheManifestRefusesLeavesItsSegmentAndTheRestKeepsItsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		config := gathering()
		config.SegmentBytes = 1 << 10
		leader, host := newPeerNetwork(w).lead(config)
		w.change(func(m *manifest.Manifest) {
			m.Streams = append(slices.Clip(m.Streams), manifest.Stream{Name: "otlp.logs", Encoding: OTLP})
		})
		var requests sync.WaitGroup
		slow := w.network.Hold(unreliable.Replace, "manifest")
		requests.Go(func() { w.mustAppend(leader, "second") })
		<-slow.Arrived()
		requests.Go(func() { w.mustAppend(leader, "third") })
		bad := asked(t, 1)
		bad.Blocks = []peer.Block{blockOf(t, "otlp.logs", NDJSON, "bad")}
		requests.Go(func() {
			if answer := commitFor(t, host, bad); answer.Refused == nil || answer.Refused.Reason != peer.Invalid {
				t.Errorf("%+v", answer)
			}
		})
		time.Sleep(2 * config.Linger)
		requests.Go(func() { w.mustAppend(leader, "fourth") })
		time.Sleep(2 * config.Linger)
		slow.Release()
		requests.Wait()
		w.checkLog("first", "second", "third", "fourth")
	})
}

// The second producer takes the lead while the first has records of others.
func TestAProducerThatNoLongerLeadsCommitsWhatItHoldsForOthers(t *testing.T) {
	for _, isClosed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			n := newPeerNetwork(w)
			config := gathering()
			config.Linger = time.Second
			first, host := n.lead(config)
			second := n.join(gathering(), 2, "10.0.0.2:4319")
			w.mustAppend(second, "second")
			time.Sleep(2 * lookInterval)
			var slow *unreliable.Gate
			if isClosed {
				slow = w.network.Hold(unreliable.Replace, "manifest")
			}
			var requests sync.WaitGroup
			requests.Go(func() {
				answer := commitFor(t, host, asked(t, 1, "a"))
				if row, _ := w.manifest().Producer(otherID); answer.Refused == nil && row.Commit != 1 {
					t.Errorf("it heard %+v, and the table has %+v", answer, row)
				}
			})
			requests.Go(func() { w.mustAppend(first, "own") })
			if isClosed {
				<-slow.Arrived()
			} else {
				time.Sleep(config.Linger / 2)
			}
			w.change(func(m *manifest.Manifest) {
				*m = *m.WithLeader(second.current.Load().pipeline.lead.own, "10.0.0.2:4319")
			})
			// Both see it.
			host.pipeline.lead.askForLook()
			second.current.Load().pipeline.lead.askForLook()
			time.Sleep(config.Linger / 10)
			if isClosed {
				slow.Release()
			}
			requests.Wait()
			w.checkOnce([]string{"first", "second", "a", "own"})
		})
	}
}

// One claim covers the segments with a producer's own records, so they come first.
func TestSegmentsWithOwnRecordsComeFirst(t *testing.T) {
	guests := func(id manifest.ProducerID) []guest { return []guest{{ticket: &ticket{producer: id, number: 1}}} }
	own := []peer.Block{{Stream: "events.test"}}
	m := &members{
		works: []uploadedWork{
			{encodedWork: encodedWork{number: 1, guests: guests(otherID)}},
			{encodedWork: encodedWork{number: 2, own: own}},
			{encodedWork: encodedWork{number: 3, own: own, guests: guests(thirdID)}},
		},
		foreign: []foreign{{ticket: &ticket{producer: ownID, number: 7}, segments: make([]manifest.NewSegment, 2)}},
	}
	d := m.describe()
	if m.works[0].number != 2 || m.works[1].number != 3 || d.own != 2 || len(d.segments) != 5 || m.len() != 5 {
		t.Errorf("%+v", d)
	}
	expected := []manifest.Claim{
		{Producer: thirdID, First: 1, Last: 1, Start: 1, End: 2},
		{Producer: otherID, First: 1, Last: 1, Start: 2, End: 3},
		{Producer: ownID, First: 7, Last: 7, Start: 3, End: 5},
	}
	if !slices.Equal(d.held, expected) {
		t.Errorf("%+v", d.held)
	}
	for place, foreign := range []int{-1, -1, -1, 0, 0} {
		if found := m.foreignAt(place); found != foreign {
			t.Errorf("segment %d is of foreign %d", place, found)
		}
	}
}

// Blocks that do not fit beside the others go back, and the others stay.
func TestAGuestThatDoesNotFitLeavesTheSegment(t *testing.T) {
	budget := newBudget(1<<20, 0)
	if err := budget.Reserve(t.Context(), 30); err != nil {
		t.Fatal(err)
	}
	l := newLead(budget, &counters{})
	l.leads = true
	waits := func(id manifest.ProducerID) (*ticket, chan *peer.Answer) {
		ticket, waiter, refused := l.offer(id, 1)
		if refused != nil {
			t.Fatal(refused)
		}
		return ticket, waiter
	}
	good, _ := waits(otherID)
	bad, waiter := waits(thirdID)
	work := encodedWork{guests: []guest{
		{good, []peer.Block{blockOf(t, "events.test", NDJSON, "good")}, 10},
		{bad, []peer.Block{blockOf(t, "events.test", OTLP, "bad")}, 20},
	}}
	if err := work.assemble(budget); err != nil {
		t.Fatal(err)
	}
	if answer := <-waiter; answer.Refused == nil || answer.Refused.Reason != peer.NotCommitted {
		t.Errorf("%+v", answer)
	}
	if len(work.guests) != 1 || work.guests[0].ticket != good || budget.held.Load() != 10 {
		t.Errorf("%+v, %d bytes", work.guests, budget.held.Load())
	}
	if streams := work.encoded.Streams; len(streams) != 1 || streams[0].Messages != 1 {
		t.Errorf("%+v", streams)
	}
}
