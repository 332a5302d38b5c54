package producer

import (
	"context"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

const (
	// watchersShare: copies for consumers, old ones included, may take this fraction of the producer's memory.
	watchersShare = 8
	// lookAgain: without a manifest, a watcher asks for one at this interval.
	lookAgain = 100 * time.Millisecond
)

// watchers are the consumers that watch a producer while it leads, and the newest manifest for them. They see only
// states that the store returned, or whose swap the store confirmed: rows of any other state could be those of nobody.
// One copy of the bytes serves all consumers, and both the producer's memory and a part of it pay for each copy.
// producer/src/watchers.rs does the same in Rust.
type watchers struct {
	budget, share *budget
	counters      *counters
	look          func()

	mutex   sync.Mutex
	changed chan struct{} // closed at the next change
	count   int
	leads   bool
	stopped bool
	shown   *visibleState // nil: nobody watches, or the producer does not lead
}

// A visibleState is a state of the manifest that consumers see.
type visibleState struct {
	stamp manifest.Stamp
	copy  *sharedCopy // nil: there was no memory for it
}

// A sharedCopy is the bytes of a state. They take memory until the last user has gone. The mutex of the watchers guards
// users.
type sharedCopy struct {
	bytes []byte
	users int
}

func newWatchers(budget *budget, counters *counters, look func()) *watchers {
	return &watchers{
		budget:   budget,
		share:    newBudget(budget.limit/watchersShare, 0),
		counters: counters,
		look:     look,
		changed:  make(chan struct{}),
	}
}

// show shows the manifest in force to the consumers that watch, as long as this producer leads.
func (w *watchers) show(state *manifest.Manifest, leads bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.stopped {
		return
	}
	w.leads = leads
	if !leads || w.count == 0 {
		w.hide()
	} else if w.shown == nil || w.shown.stamp != state.Stamp {
		w.hide()
		w.shown = &visibleState{state.Stamp, w.copyOf(state)}
	}
	w.wake()
}

// stop ends all watches: the producer shuts down.
func (w *watchers) stop() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.stopped = true
	w.hide()
	w.wake()
}

// watch counts in a consumer.
func (w *watchers) watch() peer.Watcher {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.count++
	w.counters.watchers.Add(1)
	return &watcher{watchers: w}
}

func (w *watchers) wake() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// hide drops the copy of the shown state. Slow readers may still use it.
func (w *watchers) hide() {
	if w.shown != nil && w.shown.copy != nil {
		w.drop(w.shown.copy)
	}
	w.shown = nil
}

// copyOf returns nil if there is no memory for the bytes now.
func (w *watchers) copyOf(state *manifest.Manifest) *sharedCopy {
	bytes, err := state.Encode()
	if err != nil {
		return nil
	}
	size := int64(len(bytes))
	if !w.share.tryReserve(size) {
		return nil
	}
	if !w.budget.tryReserve(size) {
		w.share.release(size)
		return nil
	}
	return &sharedCopy{bytes, 1}
}

func (w *watchers) drop(copy *sharedCopy) {
	copy.users--
	if copy.users == 0 {
		w.share.release(int64(len(copy.bytes)))
		w.budget.release(int64(len(copy.bytes)))
	}
}

// answer returns the answer to a consumer that has this version. If it has to wait, changed is the next change.
func (w *watchers) answer(
	newerThan uint64,
) (copy *sharedCopy, refused *peer.Refusal, changed <-chan struct{}, shows bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.stopped:
		return nil, peer.NewRefusal(peer.Leaving, ""), nil, false
	case !w.leads:
		return nil, peer.NewRefusal(peer.NotLeading, ""), nil, false
	case w.shown == nil || w.shown.stamp.Version <= newerThan:
		return nil, nil, w.changed, w.shown != nil
	case w.shown.copy == nil:
		return nil, peer.NewRefusal(peer.OverBudget, ""), nil, false
	}
	w.shown.copy.users++
	w.counters.watchAnswers.Add(1)
	return w.shown.copy, nil, nil, true
}

// A watcher is one consumer. The producer keeps the manifest's bytes ready until all of them are closed.
type watcher struct {
	watchers *watchers
	closed   sync.Once
}

// Next waits for a manifest whose version is above this one.
func (w *watcher) Next(ctx context.Context, newerThan uint64) ([]byte, func(), *peer.Refusal) {
	again := time.NewTimer(lookAgain)
	defer again.Stop()
	for {
		copy, refused, changed, shows := w.watchers.answer(newerThan)
		switch {
		case refused != nil:
			return nil, nil, refused
		case copy != nil:
			return copy.bytes, sync.OnceFunc(func() { w.watchers.giveBack(copy) }), nil
		case shows:
			again.Stop()
		default:
			// Nobody has watched before this consumer.
			w.watchers.look()
			again.Reset(lookAgain)
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return nil, nil, nil
		}
	}
}

func (w *watchers) giveBack(copy *sharedCopy) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.drop(copy)
}

// Close ends the watch.
func (w *watcher) Close() {
	w.closed.Do(func() {
		all := w.watchers
		all.counters.watchers.Add(-1)
		all.mutex.Lock()
		defer all.mutex.Unlock()
		all.count--
		if all.count == 0 {
			all.hide()
		}
	})
}
