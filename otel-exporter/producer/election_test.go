package producer

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"millpond.dev/otel-exporter/internal/manifest"
)

var ownID, otherID = manifest.ProducerID{1}, manifest.ProducerID{2}

func led(producer manifest.ProducerID, term uint64) *manifest.Manifest {
	state := manifest.New(uuid.Nil, 0).Register(producer, 0).Certified(producer, manifest.Fingerprint{7})
	state.Leader = &manifest.Leader{Producer: producer, Term: term, Address: "10.0.0.2:4319"}
	return state
}

func TestAProducerFollowsALeaderThatTheManifestVouchesFor(t *testing.T) {
	now := time.Now()
	var view election
	if view.see(manifest.New(uuid.Nil, 0), now) || view.follows(ownID, now) {
		t.Error("it follows nobody")
	}
	if !view.see(led(otherID, 1), now) || !view.follows(ownID, now) || view.certificate != (manifest.Fingerprint{7}) {
		t.Errorf("%+v", view)
	}
	if view.see(led(otherID, 1), now) {
		t.Error("the same leader is no news")
	}
	if view.follows(otherID, now) {
		t.Error("it follows itself")
	}
	if !view.see(led(otherID, 1).Certified(otherID, manifest.Fingerprint{}), now) || view.follows(ownID, now) {
		t.Error("it follows a leader without a certificate")
	}
	forgotten := led(otherID, 1)
	forgotten.Producers = nil
	if view.see(forgotten, now) || view.follows(ownID, now) {
		t.Error("it follows a leader that the table has forgotten")
	}
}

func TestALeaderThatFailedIsAvoidedForLongerEachTime(t *testing.T) {
	now := time.Now()
	var view election
	view.see(led(otherID, 1), now)
	for _, seconds := range []time.Duration{1, 2, 4, 8, 8} {
		view.failed(1, false, now)
		now = now.Add(seconds * time.Second)
		if view.follows(ownID, now.Add(-1)) || !view.follows(ownID, now) {
			t.Errorf("it is not avoided for %d s", seconds)
		}
	}
	view.served(1, 0)
	view.failed(1, false, now)
	if !view.follows(ownID, now.Add(time.Second)) {
		t.Error("a leader that served again is avoided as before")
	}
}

func TestAnAnswerFromAnEarlierTermSaysNothingAboutThisOne(t *testing.T) {
	now := time.Now()
	var view election
	view.see(led(otherID, 1), now)
	view.isLeaving(1)
	if view.follows(ownID, now) {
		t.Error("it follows a leader that stops")
	}
	view.see(led(otherID, 9), now)
	view.failed(1, false, now)
	view.isLeaving(1)
	if !view.follows(ownID, now) {
		t.Error("it avoids the new leader")
	}
}

// An electionAt is an election of this producer, with a linger of three seconds unless set, and seconds since a start.
type electionAt struct {
	election
	start time.Time
}

func newElectionAt(linger time.Duration) *electionAt {
	return &electionAt{newElection("10.0.0.1:4319", linger), time.Now()}
}

func (e *electionAt) at(seconds float64) time.Time {
	return e.start.Add(time.Duration(seconds * float64(time.Second)))
}

// takesAt fails unless the next commit takes the lead at this time, and not a little earlier.
func (e *electionAt) takesAt(t *testing.T, seconds float64) {
	t.Helper()
	if early := e.office(ownID, e.at(seconds-0.01)); early.kind != keepOffice {
		t.Errorf("it takes the lead before %v s", seconds)
	}
	if at := e.office(ownID, e.at(seconds)); at != (office{takeOffice, "10.0.0.1:4319"}) {
		t.Errorf("it does not take the lead at %v s: %+v", seconds, at)
	}
}

func (e *electionAt) keepsAt(t *testing.T, seconds float64) {
	t.Helper()
	if at := e.office(ownID, e.at(seconds)); at.kind != keepOffice {
		t.Errorf("at %v s: %+v", seconds, at)
	}
}

func shared(state *manifest.Manifest, shared uint64) *manifest.Manifest {
	state.Leader.Shared = shared
	return state
}

func TestTheFirstProducerWithAnAddressLeads(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	e.see(manifest.New(uuid.Nil, 0), e.at(1))
	if e.office(ownID, e.at(1)).kind != takeOffice {
		t.Error("it leaves the shard without a leader")
	}
	e.see(led(ownID, 1), e.at(1))
	e.keepsAt(t, 99)
	if !e.leads(ownID) || e.follows(ownID, e.at(1)) {
		t.Error("it does not lead")
	}
	var without election
	if without.office(ownID, e.at(1)).kind != keepOffice {
		t.Error("a producer without an address takes the lead")
	}
}

func TestALeaderThatServesNobodyIsReplaced(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	e.see(led(otherID, 1), e.at(1))
	e.keepsAt(t, 99)
	e.failed(1, false, e.at(10))
	e.see(led(otherID, 1), e.at(14))
	e.takesAt(t, 15)
}

func TestALeaderThatServesOthersKeepsTheLead(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	e.see(led(otherID, 1), e.at(1))
	for at := 2; at < 100; at++ {
		e.see(shared(led(otherID, 1), uint64(at)), e.at(float64(at)))
		e.failed(1, false, e.at(float64(at)))
		e.keepsAt(t, float64(at))
	}
	e.see(shared(led(otherID, 1), 99), e.at(103))
	e.takesAt(t, 104)
}

func TestALeaderThatServedAgainGetsTheWholePatience(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	e.see(led(otherID, 1), e.at(1))
	e.failed(1, false, e.at(1))
	e.served(1, 0)
	e.keepsAt(t, 99)
	e.failed(1, false, e.at(99))
	e.takesAt(t, 104)
}

func TestAnIntervalOfALeaderKeepsItInOfficeForALimitedTime(t *testing.T) {
	for _, each := range []struct {
		interval    time.Duration
		unreachable bool
		patience    float64
	}{
		{10 * time.Second, false, 20},
		{10 * time.Second, true, 1},
		{24 * time.Hour, false, 80},
	} {
		e := newElectionAt(time.Second / 4)
		e.see(led(otherID, 1), e.at(0))
		e.served(1, each.interval)
		e.failed(1, each.unreachable, e.at(0))
		e.takesAt(t, each.patience)
	}
}

func TestALeaderThatStopsIsReplacedAtOnce(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	e.see(led(otherID, 1), e.at(1))
	e.isLeaving(1)
	if e.office(ownID, e.at(1)).kind != takeOffice {
		t.Error("it waits")
	}
	e.close()
	if e.office(ownID, e.at(1)).kind != leaveOffice {
		t.Error("a producer that stops wants the lead")
	}
}

func TestEachTakeoverDoublesThePatience(t *testing.T) {
	e := newElectionAt(3 * time.Second)
	for term := range uint64(9) {
		e.see(led(otherID, term+1), e.at(0))
	}
	e.failed(9, false, e.at(0))
	e.takesAt(t, 80)
	later := takeoversRemembered.Seconds()
	e.served(9, 0)
	e.failed(9, false, e.at(later))
	e.takesAt(t, later+5)
}

func TestThePatienceIsTwoLingersOfAtLeastOneAndAtMostFiveSeconds(t *testing.T) {
	for linger, patience := range map[time.Duration]float64{
		200 * time.Millisecond: 1, time.Second: 2, 15 * time.Second: 5, 1 << 62: 5,
	} {
		e := newElectionAt(linger)
		e.see(led(otherID, 1), e.at(0))
		e.failed(1, false, e.at(0))
		e.takesAt(t, patience)
	}
}

func TestTheNextPointIsAfterTheTimeAndWithinTheDistance(t *testing.T) {
	start := time.Now()
	r := rhythm{start, time.Second}
	for _, each := range []struct{ now, next time.Duration }{
		{0, time.Second},
		{time.Millisecond, time.Second},
		{2_999 * time.Millisecond, 3 * time.Second},
		{-time.Millisecond, 0},
		{-time.Second, 0},
		{-2_300 * time.Millisecond, -2 * time.Second},
	} {
		if next := r.nextAfter(start.Add(each.now)).Sub(start); next != each.next {
			t.Errorf("after %s comes %s, not %s", each.now, next, each.next)
		}
	}
}

func TestBlocksThatMissedAPointWaitForTheNext(t *testing.T) {
	start := time.Now()
	r := rhythm{start, time.Second}
	for _, now := range []time.Duration{0, 899 * time.Millisecond} {
		if at, wait := r.sendAt(start.Add(now)); !wait || at.Sub(start) != 925*time.Millisecond {
			t.Errorf("at %s: %s, %t", now, at.Sub(start), wait)
		}
	}
	for _, now := range []time.Duration{900 * time.Millisecond, 999 * time.Millisecond} {
		if _, wait := r.sendAt(start.Add(now)); wait {
			t.Errorf("at %s they wait", now)
		}
	}
	if at := r.closeAt(start).Sub(start); at != 900*time.Millisecond {
		t.Errorf("a segment closes at %s", at)
	}
	if at := r.closeAt(start.Add(860 * time.Millisecond)).Sub(start); at != 1_900*time.Millisecond {
		t.Errorf("a segment that has just begun closes at %s", at)
	}
}
