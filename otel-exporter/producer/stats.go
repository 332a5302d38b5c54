package producer

import (
	"sync/atomic"

	"millpond.dev/otel-exporter/internal/storage"
)

// Stats counts from the start of the producer; fields marked "now" are current values. The names match the Rust
// producer's metrics.
type Stats struct {
	MemoryHeldBytes     int64 // now
	MemoryLimitBytes    int64
	BlocksEncoding      int64 // now: waiting for an encoder or in one
	SegmentsUploading   int64 // now: waiting for an uploader or in one
	SegmentsUncommitted int64 // now: uploaded, not yet committed

	Segments, Blocks, Messages, Records int64 // committed
	RawBytes, StoredBytes               int64 // committed, before and after compression
	Refused                             int64 // appends refused before they were accepted
	UploadRetries                       int64 // uploads tried again after an error
	Reuploads                           int64 // uploads under a new name because of the orphan floor
	Pages                               int64 // pages that its commits added to the log
	CommitsCommitted                    int64 // compare-and-sets of the manifest, registrations included, by outcome
	CommitsMismatch                     int64
	CommitsUnknown                      int64
	CommitsFound                        int64 // commits found in the producer table after an unknown outcome or a fallback
	Expired                             int64 // times the manifest had forgotten this producer

	AppendedBytes  int64                // compressed, of the segments whose blocks the leader committed
	DelegatedBytes int64                // of the segments that this producer uploaded and the leader committed
	Fallbacks      [fallbackCount]int64 // commits made without the leader, by its reason: see FallbackReasons

	Leads            int64 // now: shards that this producer leads
	CommitsForOthers int64 // requests of other producers whose records this one committed while it led
	Watchers         int64 // now: connections of consumers that this producer tells of commits while it leads
	WatchAnswers     int64 // manifests sent to them
}

// counters are the source of Stats.
type counters struct {
	blocksEncoding, segmentsUploading, segmentsUncommitted atomic.Int64

	segments, blocks, messages, records atomic.Int64
	rawBytes, storedBytes               atomic.Int64
	refused, uploadRetries, reuploads   atomic.Int64
	pages, commitsFound, expired        atomic.Int64
	commits                             [3]atomic.Int64 // by outcome
	appendedBytes, delegatedBytes       atomic.Int64
	fallbacks                           [fallbackCount]atomic.Int64

	leads, commitsForOthers, watchers, watchAnswers atomic.Int64
}

func (c *counters) stats(budget *budget) Stats {
	var fallbacks [fallbackCount]int64
	for reason := range fallbacks {
		fallbacks[reason] = c.fallbacks[reason].Load()
	}
	return Stats{
		MemoryHeldBytes:     budget.held.Load(),
		MemoryLimitBytes:    budget.limit,
		BlocksEncoding:      c.blocksEncoding.Load(),
		SegmentsUploading:   c.segmentsUploading.Load(),
		SegmentsUncommitted: c.segmentsUncommitted.Load(),
		Segments:            c.segments.Load(),
		Blocks:              c.blocks.Load(),
		Messages:            c.messages.Load(),
		Records:             c.records.Load(),
		RawBytes:            c.rawBytes.Load(),
		StoredBytes:         c.storedBytes.Load(),
		Refused:             c.refused.Load(),
		UploadRetries:       c.uploadRetries.Load(),
		Reuploads:           c.reuploads.Load(),
		Pages:               c.pages.Load(),
		CommitsCommitted:    c.commits[storage.Committed].Load(),
		CommitsMismatch:     c.commits[storage.Mismatch].Load(),
		CommitsUnknown:      c.commits[storage.Unknown].Load(),
		CommitsFound:        c.commitsFound.Load(),
		Expired:             c.expired.Load(),
		AppendedBytes:       c.appendedBytes.Load(),
		DelegatedBytes:      c.delegatedBytes.Load(),
		Fallbacks:           fallbacks,
		Leads:               c.leads.Load(),
		CommitsForOthers:    c.commitsForOthers.Load(),
		Watchers:            c.watchers.Load(),
		WatchAnswers:        c.watchAnswers.Load(),
	}
}
