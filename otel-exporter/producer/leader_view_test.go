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
	var view leaderView
	if view.see(manifest.New(uuid.Nil, 0)) || view.follows(ownID, now) {
		t.Error("it follows nobody")
	}
	if !view.see(led(otherID, 1)) || !view.follows(ownID, now) || view.certificate != (manifest.Fingerprint{7}) {
		t.Errorf("%+v", view)
	}
	if view.see(led(otherID, 1)) {
		t.Error("the same leader is no news")
	}
	if view.follows(otherID, now) {
		t.Error("it follows itself")
	}
	if !view.see(led(otherID, 1).Certified(otherID, manifest.Fingerprint{})) || view.follows(ownID, now) {
		t.Error("it follows a leader without a certificate")
	}
	forgotten := led(otherID, 1)
	forgotten.Producers = nil
	if view.see(forgotten) || view.follows(ownID, now) {
		t.Error("it follows a leader that the table has forgotten")
	}
}

func TestALeaderThatFailedIsAvoidedForLongerEachTime(t *testing.T) {
	now := time.Now()
	var view leaderView
	view.see(led(otherID, 1))
	for _, seconds := range []time.Duration{1, 2, 4, 8, 8} {
		view.failed(1, now)
		now = now.Add(seconds * time.Second)
		if view.follows(ownID, now.Add(-1)) || !view.follows(ownID, now) {
			t.Errorf("it is not avoided for %d s", seconds)
		}
	}
	view.served(1)
	view.failed(1, now)
	if !view.follows(ownID, now.Add(time.Second)) {
		t.Error("a leader that served again is avoided as before")
	}
}

func TestAnAnswerFromAnEarlierTermSaysNothingAboutThisOne(t *testing.T) {
	now := time.Now()
	var view leaderView
	view.see(led(otherID, 1))
	view.isLeaving(1)
	if view.follows(ownID, now) {
		t.Error("it follows a leader that stops")
	}
	view.see(led(otherID, 9))
	view.failed(1, now)
	view.isLeaving(1)
	if !view.follows(ownID, now) {
		t.Error("it avoids the new leader")
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
