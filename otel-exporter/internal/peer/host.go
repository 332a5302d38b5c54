package peer

import (
	"context"

	"millpond.dev/otel-exporter/internal/manifest"
)

// A Host is a producer of this process in one shard, which may lead there. The server asks it for everything that it
// does not decide itself. Hosts are compared: each is a pointer.
type Host interface {
	Shard() uint32
	// CertificateOf returns the certificate of a producer in the host's shard, as far as the host knows.
	CertificateOf(manifest.ProducerID) (certificate manifest.Fingerprint, known bool)
	// LookFor asks for another look at the manifest, unless the producer is known.
	LookFor(manifest.ProducerID)
	// CommitFor commits the records of another producer and waits for the outcome. `held` bytes of the server's Memory pay
	// for the request; the host takes them over and gives them back, whatever the outcome. It returns nil if the context
	// ends first: the records may still be committed.
	CommitFor(ctx context.Context, request *Request, held int64) *Answer
	// Watch counts in a consumer that watches the host.
	Watch() Watcher
	// CertificateOfConsumer reads the certificate in the cursor of a consumer. The caller has memory for it
	// (manifest.CursorMemory). No certificate: known is false.
	CertificateOfConsumer(ctx context.Context, consumer string) (certificate manifest.Fingerprint, known bool, err error)
}

// A Watcher is one consumer that watches a host.
type Watcher interface {
	// Next waits for a manifest whose version is above this one. The caller calls release when it has sent the bytes, and
	// must not change them. If the context ends first, there is neither a manifest nor a refusal.
	Next(ctx context.Context, newerThan uint64) (manifest []byte, release func(), refused *Refusal)
	// Close ends the watch.
	Close()
}

// Memory pays for requests: the producer's budget.
type Memory interface {
	Reserve(ctx context.Context, bytes int64) error
	TryReserve(bytes int64) bool // does not wait
	Release(bytes int64)
	Limit() int64
}
