package producer

import (
	"context"
	"fmt"
	"net"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// A peerPort is how a process takes part in shared commits: its identity, and the port where other producers and consumers
// reach it, if it may lead. nil: it commits for itself.
type peerPort struct {
	newPeers     func() peers // each writer has a connection to the leader of its shard
	certificate  manifest.Fingerprint
	forwardBelow uint64
	identity     *peer.Identity
	listener     net.Listener // nil: it never leads
	address      string       // where others reach it
	server       *peer.Server
}

// listen makes the identity of a producer that follows leaders, and opens the port of one that may lead. It returns nil for
// a producer that commits for itself.
func (c *Config) listen() (*peerPort, error) {
	if !c.FollowLeader {
		return nil, nil
	}
	identity, err := peer.NewIdentity()
	if err != nil {
		return nil, err
	}
	port := &peerPort{
		newPeers:     func() peers { return peer.NewClient(identity) },
		certificate:  identity.Fingerprint(),
		forwardBelow: uint64(c.ForwardBelow),
		identity:     identity,
	}
	if c.PeerListen == "" {
		return port, nil
	}
	port.listener, err = net.Listen("tcp", c.PeerListen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for other producers at peers.listen: %w", err)
	}
	port.address, err = advertised(port.listener.Addr(), c.Advertise)
	if err != nil {
		port.cut()
		return nil, err
	}
	return port, nil
}

// peering is the part of one writer.
func (p *peerPort) peering() *peering {
	if p == nil {
		return nil
	}
	return &peering{p.newPeers(), p.certificate, p.forwardBelow, p.address}
}

// serve answers other producers and consumers for a producer from now on.
func (p *peerPort) serve(producer *Producer) {
	if p == nil || p.listener == nil {
		return
	}
	r := producer.resources
	p.server = peer.NewServer(p.identity, producer.hosts, r.budget, peer.DefaultServerConfig(), r.config.Logger)
	go p.server.Serve(p.listener)
}

// close ends the port. Requests in flight are answered, unless the context ends first.
func (p *peerPort) close(ctx context.Context) {
	if p != nil && p.server != nil {
		p.server.Close(ctx)
	}
}

// cut ends a port that nobody serves.
func (p *peerPort) cut() {
	if p != nil && p.listener != nil {
		_ = p.listener.Close()
	}
}
