package producer

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/storage"
)

// A pipeline is the shared state of the stages that talk to the store.
type pipeline struct {
	// The next three are set before opened is closed, and read after.
	ctx       context.Context // never ends once the buffer is open
	place                     // that the segments go to
	openError error           // why the buffer can never be opened
	opened    chan struct{}   // closed when that is decided

	environment *environment
	health      *health
	counters    *counters
	budget      *budget
	flow        *flow
	following   *following
	lead        *lead
	hooks       Hooks
	log         *slog.Logger
}

// upload uploads a segment, however long it takes, under a name with a time of at least notBeforeMs. It retries under
// the same name.
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
		// The name is unique: if the object exists, an earlier attempt of ours wrote it despite its error.
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

// An arrival is what the committer receives: exactly one per segment number.
type arrival struct {
	number int
	// If both are nil, this number has no segment, and its callers have their errors.
	uploaded *uploadedWork
	kept     *encodedWork // not uploaded, because the leader takes its blocks
}

// uploaders limits the number of concurrent uploads before a committer.
type uploaders struct {
	pipeline *pipeline
	turns    chan struct{}
	arrivals chan arrival
	tasks    sync.WaitGroup
}

// upload uploads a segment in its turn, once the buffer is open, and passes it to the committer.
func (u *uploaders) upload(work encodedWork) {
	u.pipeline.counters.segmentsUploading.Add(1)
	u.tasks.Go(func() {
		// The linger runs on while the segment waits for the buffer to open.
		held := time.Now()
		<-u.pipeline.opened
		work.lingerLeft -= time.Since(held)
		if err := u.pipeline.openError; err != nil {
			u.pipeline.counters.segmentsUploading.Add(-1)
			work.fail(u.pipeline.budget, &NotCommittedError{err.Error()})
			return
		}
		u.turns <- struct{}{}
		uploaded := u.pipeline.upload(work, 0)
		<-u.turns
		u.pipeline.counters.segmentsUploading.Add(-1)
		u.arrivals <- arrival{number: work.number, uploaded: &uploaded}
	})
}

// keep passes a segment to the committer without uploading it.
func (u *uploaders) keep(work encodedWork) {
	u.tasks.Go(func() { u.arrivals <- arrival{number: work.number, kept: &work} })
}

// skip tells the committer not to wait for a number.
func (u *uploaders) skip(number int) {
	u.tasks.Go(func() { u.arrivals <- arrival{number: number} })
}
