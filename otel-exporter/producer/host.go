package producer

import (
	"context"
	"fmt"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
)

// This file commits for other producers. The server in package peer has checked who asks. producer/src/producer.rs does the
// same in Rust.

const (
	// heldUpLook: a leader that the store has held up at two looks with this time between them lets others commit for
	// themselves.
	heldUpLook = 500 * time.Millisecond
	// stuck: so does a leader without any commit for this long, beside its linger. One that is only slow commits.
	stuck = 3 * time.Second
	// guestBytes is the memory of a block of another producer beside its bytes.
	guestBytes = 512
)

// hosts returns the writers that are open.
func (p *Producer) hosts() []peer.Host {
	var hosts []peer.Host
	for _, w := range []*writer{p.current.Load(), p.leaving.Load()} {
		if w != nil && w.isHost() {
			hosts = append(hosts, w)
		}
	}
	return hosts
}

func (w *writer) isHost() bool {
	select {
	case <-w.pipeline.opened:
		return w.pipeline.openError == nil
	default:
		return false
	}
}

// Shard returns the shard that the writer writes to.
func (w *writer) Shard() uint32 { return w.pipeline.shard }

// CertificateOf returns the certificate of another producer, which whoever may write the manifest vouches for.
func (w *writer) CertificateOf(id manifest.ProducerID) (certificate manifest.Fingerprint, known bool) {
	return w.pipeline.lead.certificate(id)
}

// LookFor asks for a look at the manifest, because it may have a producer that this one does not know yet.
func (w *writer) LookFor(id manifest.ProducerID) {
	if _, known := w.pipeline.lead.certificate(id); !known {
		w.pipeline.lead.askForLook()
	}
}

// Watch counts in a consumer.
func (w *writer) Watch() peer.Watcher { return w.pipeline.lead.watchers.watch() }

// CertificateOfConsumer reads the certificate in the cursor of a consumer. It is not known if the consumer has no cursor in
// this shard, or if its owner does not watch.
func (w *writer) CertificateOfConsumer(ctx context.Context, consumer string) (certificate manifest.Fingerprint, known bool, err error) {
	place := w.pipeline.place
	return manifest.CertificateOfConsumer(ctx, place.store, place.buffer.ID, place.shard, consumer)
}

// CommitFor commits the records of another producer, which has proven that it is this one.
func (w *writer) CommitFor(ctx context.Context, request *peer.Request, held int64) *peer.Answer {
	select {
	case <-w.leaving:
		w.budget.release(held)
		return peer.Refuse(peer.Leaving, "")
	default:
	}
	lead := w.pipeline.lead
	ticket, outcome, refused := lead.offer(request.Producer, request.Number)
	if refused != nil {
		w.budget.release(held)
		return refused
	}
	ended := w.heldUp()
	defer ended.stop()
	if ticket == nil {
		w.budget.release(held)
	} else if refused := w.takeIn(ctx, ticket, request, held, ended); refused != nil {
		// Whoever has joined meanwhile hears the same.
		ticket.answer(refused)
		return refused
	}
	defer lead.forget(request.Producer, outcome)
	answer := (*peer.Answer)(nil)
	select {
	case answer = <-outcome:
	case reason := <-ended.reasons:
		answer = peer.Refuse(peer.HeldUp, reason)
		select {
		case answer = <-outcome: // It has come at the same time.
		default:
		}
	case <-ctx.Done():
		return nil
	}
	if answer.Refused == nil {
		w.counters.commitsForOthers.Add(1)
	}
	return answer
}

// takeIn queues the records of another producer for the next commit. It returns an answer if they are not queued. A queue is
// full as long as the store holds this producer up, so the time in it counts.
func (w *writer) takeIn(
	ctx context.Context, ticket *ticket, request *peer.Request, held int64, ended *heldUpWatch,
) *peer.Answer {
	// Not before the ticket: the streams of a request that is refused anyway must not keep out this producer's own callers.
	if err := w.check(request); err != nil {
		w.budget.release(held)
		return peer.Refuse(peer.Invalid, err.Error())
	}
	var guests chan<- guest
	var foreigns chan<- foreign
	var guest guest
	if len(request.Segments) > 0 {
		foreigns = w.foreign
	} else {
		guest.ticket, guest.blocks = ticket, request.Blocks
		guest.cost = min(costOf(request.Blocks), held)
		guests = w.guests
	}
	select {
	case guests <- guest:
		// The body as it was received is gone.
		w.budget.release(held - guest.cost)
		return nil
	case foreigns <- foreign{ticket, request.Segments, held}:
		return nil
	case <-w.full:
		w.budget.release(held)
		return peer.Refuse(peer.Leaving, "")
	case reason := <-ended.reasons:
		w.budget.release(held)
		return peer.Refuse(peer.HeldUp, reason)
	case <-ctx.Done():
		w.budget.release(held)
		return peer.Refuse(peer.NotCommitted, "the records were given up")
	}
}

func costOf(blocks []peer.Block) (cost int64) {
	for i := range blocks {
		cost += int64(len(blocks[i].Bytes)) + guestBytes
	}
	return cost
}

// check returns what would spoil a commit for others.
func (w *writer) check(request *peer.Request) error {
	switch {
	case len(request.Blocks) == 0 && len(request.Segments) == 0:
		return fmt.Errorf("it has no blocks")
	case len(request.Segments) > batchMax:
		return fmt.Errorf("it has too many segments")
	}
	for i := range request.Blocks {
		if err := w.streams.admit(request.Blocks[i].Stream, request.Blocks[i].Encoding); err != nil {
			return err
		}
	}
	for i := range request.Segments {
		parts := request.Segments[i].Parts
		for j := range parts {
			if err := w.streams.admit(parts[j].Stream, parts[j].Encoding); err != nil {
				return err
			}
		}
	}
	return nil
}

// A heldUpWatch sends a reason once the store has held a writer up for too long: another producer may reach it.
type heldUpWatch struct {
	reasons chan string
	stopped chan struct{}
}

func (h *heldUpWatch) stop() { close(h.stopped) }

func (w *writer) heldUp() *heldUpWatch {
	watch := &heldUpWatch{make(chan string, 1), make(chan struct{})}
	go func() {
		began, waited := time.Now(), false
		looks := time.NewTicker(heldUpLook)
		defer looks.Stop()
		for {
			select {
			case <-watch.stopped:
				return
			case <-looks.C:
			}
			idle := time.Since(w.pipeline.lead.idleSince(began))
			reason := w.pipeline.health.reason()
			switch {
			case idle >= w.config.Linger+stuck:
				watch.reasons <- fmt.Sprintf("no answer for %d s", int(idle.Seconds()))
				return
			case reason != "" && waited:
				watch.reasons <- reason
				return
			}
			waited = reason != ""
		}
	}()
	return watch
}
