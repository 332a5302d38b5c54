package producer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
)

// A testLeader commits for followers with the same transition as a gateway, over the world's store and without faults of
// its own. The faults are between it and its followers. tests/test_leader.py has real gateways.
type testLeader struct {
	t      *testing.T
	w      *world
	id     manifest.ProducerID
	store  *storage.Store
	every  time.Duration // its rhythm
	random *environment

	mutex sync.Mutex
	way   func(*peer.Request) way // what happens to a request; nil: open
	asked []peer.Request
}

// A way is what happens to a request.
type way int

const (
	open     way = iota // it arrives, and so does the answer
	closed              // it does not arrive
	noAnswer            // it arrives, and the answer is lost
	hangs               // it arrives, and nobody ever answers
	twice               // it arrives twice
	breaks              // it arrives some time after the connection broke
	refuses             // the leader refuses it
	delays              // it arrives after a while, and so does the answer
	ways
	leaves // the leader stops
)

var errReset = errors.New("connection reset")

// leader makes a leader of the world's shard.
func (w *world) leader() *testLeader {
	w.t.Helper()
	l := &testLeader{t: w.t, w: w}
	w.leads(l)
	return l
}

// leads makes a leader the one of the world's shard.
func (w *world) leads(l *testLeader) {
	w.t.Helper()
	l.id = manifest.ProducerID{0xff}
	l.store = storage.Over(w.memory, storage.RequestTimeout)
	l.random = newEnvironment([32]byte{0xff})
	w.change(func(m *manifest.Manifest) {
		*m = *m.Register(l.id, 0).Certified(l.id, manifest.Fingerprint{7})
		m.Leader = &manifest.Leader{Producer: l.id, Term: m.Stamp.Version, Address: "10.0.0.1:4319"}
	})
}

// decide sets what happens to requests.
func (l *testLeader) decide(way func(*peer.Request) way) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.way = way
}

// always sets what happens to every request.
func (l *testLeader) always(decided way) { l.decide(func(*peer.Request) way { return decided }) }

// requests returns those that followers sent.
func (l *testLeader) requests() []peer.Request {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return append([]peer.Request(nil), l.asked...)
}

func (l *testLeader) Close() {}

func (l *testLeader) Ask(ctx context.Context, leader peer.Leader, request *peer.Request) (*peer.Answer, error) {
	if leader.Certificate != (manifest.Fingerprint{7}) || leader.Address != "10.0.0.1:4319" {
		l.t.Errorf("asked %+v", leader)
	}
	l.mutex.Lock()
	l.asked = append(l.asked, *request)
	decided := open
	if l.way != nil {
		decided = l.way(request)
	}
	l.mutex.Unlock()
	switch decided {
	case closed:
		return nil, errReset
	case noAnswer:
		l.deliver(request)
		return nil, errReset
	case hangs:
		l.deliver(request)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case twice:
		l.deliver(request)
	case breaks:
		late := time.Duration(request.Number*7_919%40) * time.Millisecond
		go func() {
			time.Sleep(late)
			l.deliver(request)
		}()
		return nil, errReset
	case refuses:
		return &peer.Answer{Refused: &peer.Refusal{Reason: peer.HeldUp}}, nil
	case leaves:
		return &peer.Answer{Refused: &peer.Refusal{Reason: peer.Leaving}}, nil
	case delays:
		time.Sleep(200 * time.Millisecond)
	}
	return l.deliver(request), nil
}

// deliver commits a request, as a leader does: unless the table shows its number.
func (l *testLeader) deliver(request *peer.Request) *peer.Answer {
	segments := request.Segments
	if len(segments) == 0 {
		segments = []manifest.NewSegment{l.upload(request.Blocks)}
	}
	claim := manifest.One(request.Producer, request.Number, len(segments))
	for {
		snapshot, err := manifest.Read(context.Background(), l.store, 0)
		if err != nil {
			l.t.Error(err)
			return &peer.Answer{Refused: &peer.Refusal{Reason: peer.HeldUp}}
		}
		commit, err := snapshot.State.Commit([]manifest.Claim{claim}, segments, l.random.unixMs())
		if err != nil {
			row, _ := snapshot.State.Producer(request.Producer)
			if row.Commit == request.Number {
				return &peer.Answer{FirstSequence: row.FirstSequence}
			}
			return &peer.Answer{Refused: &peer.Refusal{Reason: peer.NotCommitted}}
		}
		next := commit.State.Stamped(l.random.nonce())
		if next.Leader != nil {
			leader := *next.Leader
			leader.Shared++
			next.Leader = &leader
		}
		outcome, _, err := manifest.Swap(context.Background(), l.store, 0, &snapshot.Version, next)
		if outcome == storage.Committed {
			return &peer.Answer{FirstSequence: commit.FirstSequence, ClosesAfter: l.every, ClosesEvery: l.every}
		}
		if err != nil {
			l.t.Error(err)
		}
	}
}

// upload makes a segment of these blocks.
func (l *testLeader) upload(blocks []peer.Block) manifest.NewSegment {
	builder := segment.NewBuilder(segment.DefaultLimits())
	for i := range blocks {
		if err := builder.Push(blocks[i].Stream, blocks[i].Encoding, blocks[i].EncodedBlock); err != nil {
			l.t.Error(err)
		}
	}
	encoded, err := builder.Finish()
	if err != nil {
		l.t.Error(err)
	}
	work := uploadedWork{name: l.random.ulid(0), encodedWork: encodedWork{encoded: encoded}}
	if _, err := l.store.PutIfAbsent(context.Background(), manifest.SegmentKey(0, work.name), encoded.Pieces); err != nil {
		l.t.Error(err)
	}
	return work.describe()
}

// follower starts a producer that follows the leader.
func (w *world) follower(l *testLeader, config Config, seed uint64) *Producer {
	w.t.Helper()
	return w.started(config, seed, &peering{l, manifest.Fingerprint{byte(seed), 1}, uint64(config.ForwardBelow), ""})
}

// anyWay draws what happens to each request.
func anyWay(seed uint64) func(*peer.Request) way {
	random := rand.New(rand.NewPCG(seed, 1))
	return func(*peer.Request) way {
		// Half of the requests pass, or the follower hardly asks.
		if random.IntN(2) == 0 {
			return open
		}
		return way(random.IntN(int(ways)))
	}
}
