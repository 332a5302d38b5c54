package producer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// A pipeline is what the stages that talk to the store share.
type pipeline struct {
	// The four that follow are set before opened is closed, and read after.
	ctx       context.Context // never ends once the buffer is open
	store     *storage.Store
	shard     uint32
	openError error         // why there will never be an open buffer
	opened    chan struct{} // closed when that has been decided

	environment *environment
	health      *health
	counters    *counters
	budget      *budget
	flow        *flow
	hooks       Hooks
	log         *slog.Logger
}

// upload puts a segment into the store, however long it takes, and gives it a name of a time not before notBeforeMs. It
// is tried again under the same name until it is there.
func (p *pipeline) upload(work encodedWork, notBeforeMs uint64) uploadedWork {
	started := time.Now()
	name := p.environment.ulid(notBeforeMs)
	backoff := storage.Backoff{Initial: 100 * time.Millisecond, Max: 5 * time.Second}
	for tried := false; ; {
		created, err := p.store.PutIfAbsent(p.ctx, manifest.SegmentKey(p.shard, name), work.encoded.Pieces)
		if err != nil {
			tried = true
			p.health.heldUp(uploading, err)
			p.counters.uploadRetries.Add(1)
			time.Sleep(p.environment.wait(&backoff))
			continue
		}
		// Nobody else has this name: when it is there, it was an attempt of ours, though it was reported as an error.
		if created || tried {
			break
		}
		name = p.environment.ulid(notBeforeMs)
	}
	p.health.gotOn(uploading)
	if p.hooks.Uploaded != nil {
		p.hooks.Uploaded(time.Since(started))
	}
	return uploadedWork{name, time.Now().Add(work.lingerLeft), work}
}

// An arrival is what comes to the committer. Every number comes once.
type arrival struct {
	number   int
	uploaded *uploadedWork // nil: there is no segment of this number, its callers have been told
}

// uploaders are in front of a committer: at most so many segments on their way into the store.
type uploaders struct {
	pipeline *pipeline
	turns    chan struct{}
	arrivals chan arrival
	tasks    sync.WaitGroup
}

// upload uploads a segment in its turn, once the buffer is open, and hands it to the committer.
func (u *uploaders) upload(work encodedWork) {
	u.pipeline.counters.segmentsUploading.Add(1)
	u.tasks.Go(func() {
		// Its linger goes on while it is held for a buffer that is not open: at a trickle it would fill meanwhile.
		held := time.Now()
		<-u.pipeline.opened
		work.lingerLeft -= time.Since(held)
		if err := u.pipeline.openError; err != nil {
			u.pipeline.counters.segmentsUploading.Add(-1)
			u.pipeline.budget.release(work.cost)
			fail(work.waiters, &NotCommittedError{err.Error()})
			return
		}
		u.turns <- struct{}{}
		uploaded := u.pipeline.upload(work, 0)
		<-u.turns
		u.pipeline.counters.segmentsUploading.Add(-1)
		u.arrivals <- arrival{work.number, &uploaded}
	})
}

// skip tells the committer not to wait for a number.
func (u *uploaders) skip(number int) {
	u.tasks.Go(func() { u.arrivals <- arrival{number: number} })
}
