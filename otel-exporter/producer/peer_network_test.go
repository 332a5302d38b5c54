package producer

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// A peerNetwork connects the producers of a world with each other. Its faults are between them. Package peer tests the
// connections.
type peerNetwork struct {
	t *testing.T
	w *world

	mutex     sync.Mutex
	producers map[string]*Producer // by address
	way       func(request *peer.Request) way
	late      sync.WaitGroup
}

func newPeerNetwork(w *world) *peerNetwork {
	return &peerNetwork{t: w.t, w: w, producers: make(map[string]*Producer)}
}

// join starts a producer that may lead, or one without an address that only follows.
func (n *peerNetwork) join(config Config, seed byte, address string) *Producer {
	n.t.Helper()
	presents := manifest.Fingerprint{seed, 1}
	p := n.w.started(config, uint64(seed), &peering{
		&networkPeers{n, presents}, presents, uint64(config.ForwardBelow), address,
	})
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if address != "" {
		n.producers[address] = p
	}
	return p
}

// lead starts a leader, which knows the producers otherID and thirdID.
func (n *peerNetwork) lead(config Config) (*Producer, *writer) {
	n.t.Helper()
	leader := n.join(config, 1, "10.0.0.1:4319")
	n.leads(leader, "first")
	n.w.change(func(m *manifest.Manifest) { *m = *m.Register(otherID, 0).Register(thirdID, 0) })
	return leader, hostOf(n.t, leader)
}

// decide sets what happens to requests.
func (n *peerNetwork) decide(way func(*peer.Request) way) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.way = way
}

// settled waits for the requests on their way.
func (n *peerNetwork) settled() { n.late.Wait() }

// networkPeers are the others, as one process sees them.
type networkPeers struct {
	network  *peerNetwork
	presents manifest.Fingerprint
}

func (p *networkPeers) Close() {}

var errNobody = errors.New("connection refused")

func (p *networkPeers) Ask(ctx context.Context, leader peer.Leader, request *peer.Request) (*peer.Answer, error) {
	n := p.network
	n.mutex.Lock()
	decided := open
	if n.way != nil {
		decided = n.way(request)
	}
	n.mutex.Unlock()
	deliver := func(ctx context.Context) (*peer.Answer, error) { return n.deliver(ctx, p.presents, leader, request) }
	switch decided {
	case closed:
		return nil, errReset
	case noAnswer:
		_, _ = deliver(ctx)
		return nil, errReset
	case hangs:
		_, _ = deliver(ctx)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	case twice:
		n.late.Go(func() { _, _ = deliver(context.Background()) })
	case breaks:
		late := time.Duration(request.Number*7_919%40) * time.Millisecond
		n.late.Go(func() {
			time.Sleep(late)
			_, _ = deliver(context.Background())
		})
		return nil, errReset
	case refuses:
		return peer.Refuse(peer.HeldUp, "a test"), nil
	case leaves:
		return peer.Refuse(peer.Leaving, ""), nil
	case delays:
		time.Sleep(200 * time.Millisecond)
	}
	return deliver(ctx)
}

// deliver does what the server does for a request that it has read.
func (n *peerNetwork) deliver(
	ctx context.Context, presents manifest.Fingerprint, leader peer.Leader, request *peer.Request,
) (*peer.Answer, error) {
	n.mutex.Lock()
	there := n.producers[leader.Address]
	n.mutex.Unlock()
	if there == nil {
		return nil, errNobody
	}
	for range 25 {
		for _, host := range there.hosts() {
			if known, found := host.CertificateOf(request.Producer); found && known == presents {
				return n.commit(ctx, there, host, request)
			}
			host.LookFor(request.Producer)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, errors.New("403")
}

func (n *peerNetwork) commit(ctx context.Context, there *Producer, host peer.Host, request *peer.Request) (*peer.Answer, error) {
	held := int64(8 << 10)
	for i := range request.Blocks {
		held += 2 * int64(len(request.Blocks[i].Bytes))
	}
	if err := there.resources.budget.Reserve(ctx, held); err != nil {
		return peer.Refuse(peer.OverBudget, ""), nil
	}
	copied := *request
	copied.Blocks = slices.Clone(request.Blocks)
	copied.Segments = slices.Clone(request.Segments)
	answer := host.CommitFor(ctx, &copied, held)
	if answer == nil {
		return nil, context.Cause(ctx)
	}
	return answer, nil
}

// anyFault draws what happens to each request.
func anyFault(seed uint64) func(*peer.Request) way {
	random := rand.New(rand.NewPCG(seed, 2))
	return func(*peer.Request) way {
		// Half of the requests pass, or the followers hardly ask.
		if random.IntN(2) == 0 {
			return open
		}
		return way(random.IntN(int(ways)))
	}
}
