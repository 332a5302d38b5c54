package producer

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
	"millpond.dev/otel-exporter/internal/segment"
	"millpond.dev/otel-exporter/internal/storage"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

// gathering is a configuration with segments that fill for a while.
func gathering() Config {
	config := testConfig()
	config.Linger = 100 * time.Millisecond
	config.SegmentRawBytes = 64 << 10
	config.MemoryLimit = 4 << 20
	return config
}

// leads makes a producer lead by its first commit.
func (n *peerNetwork) leads(p *Producer, message string) {
	n.t.Helper()
	n.w.mustAppend(p, message)
	if stats := p.Stats(); stats.Leads != 1 {
		n.t.Errorf("it leads %d shards", stats.Leads)
	}
}

// ledNetwork is a world with a leader that has committed a message.
func ledNetwork(t *testing.T) (*world, *peerNetwork, *Producer) {
	t.Helper()
	w := newWorld(t, 1)
	n := newPeerNetwork(w)
	leader, _ := n.lead(gathering())
	return w, n, leader
}

// ledWorld is that world for tests that ask the leader themselves.
func ledWorld(t *testing.T) (*world, *Producer, *writer) {
	t.Helper()
	w, _, leader := ledNetwork(t)
	return w, leader, hostOf(t, leader)
}

func TestALeaderPutsTheRecordsOfOthersIntoItsSegments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n, leader := ledNetwork(t)
		followers := []*Producer{n.join(gathering(), 2, "10.0.0.2:4319"), n.join(gathering(), 3, "")}
		// Their first segments show them the leader.
		w.mustAppend(followers[0], "second")
		w.mustAppend(followers[1], "third")
		before := w.segments()
		var clients sync.WaitGroup
		for i, p := range append(followers, leader) {
			for j := range 5 {
				clients.Go(func() { w.mustAppend(p, fmt.Sprintf("%d of %d", j, i)) })
			}
		}
		clients.Wait()
		if added := w.segments() - before; added > 2 {
			t.Errorf("%d segments for at most two lingers of three producers", added)
		}
		var all []string
		for i := range 3 {
			for j := range 5 {
				all = append(all, fmt.Sprintf("%d of %d", j, i))
			}
		}
		w.checkOnce(append(all, "first", "second", "third"))
		if stats := leader.Stats(); stats.CommitsForOthers != 4 || stats.Records != 6 {
			t.Errorf("%+v", stats)
		}
		for _, p := range followers {
			if stats := p.Stats(); stats.AppendedBytes == 0 || stats.CommitsCommitted != 1 || stats.Leads != 0 {
				t.Errorf("%+v", stats)
			}
		}
	})
}

func TestALeaderCommitsTheSegmentsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n, _ := ledNetwork(t)
		config := gathering()
		config.ForwardBelow = 0
		follower := n.join(config, 2, "")
		w.mustAppend(follower, "a")
		w.mustAppend(follower, "b")
		w.checkLog("first", "a", "b")
		if stats := follower.Stats(); stats.DelegatedBytes == 0 || stats.CommitsCommitted != 1 {
			t.Errorf("%+v", stats)
		}
		if leader := w.manifest().Leader; leader == nil || leader.Shared != 2 {
			t.Errorf("%+v", leader)
		}
	})
}

func TestALeaderThatStopsLeavesTheLeadToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n, first := ledNetwork(t)
		second := n.join(gathering(), 2, "10.0.0.2:4319")
		w.mustAppend(second, "a")
		w.close(first)
		if leader := w.manifest().Leader; leader != nil {
			t.Errorf("%+v leads", leader)
		}
		w.mustAppend(second, "b")
		w.checkLog("first", "a", "b")
		if second.Stats().Leads != 1 || first.Stats().Leads != 0 {
			t.Error("nobody has taken the lead")
		}
	})
}

func TestALeaderThatServesNobodyIsReplacedByAFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, n, _ := ledNetwork(t)
		second := n.join(gathering(), 2, "10.0.0.2:4319")
		n.decide(func(*peer.Request) way { return closed })
		began := time.Now()
		for i := 0; second.Stats().Leads == 0; i++ {
			w.mustAppend(second, fmt.Sprint(i))
			if time.Since(began) > 10*time.Second {
				t.Fatal("it never takes the lead")
			}
		}
	})
}

// A row that its producer has spent says that the records of the number are not in the log.
func TestASpentNumberIsNotCommitted(t *testing.T) {
	claim := manifest.One(otherID, 3, 1)
	row := manifest.ProducerRow{ID: otherID, Commit: 3}
	if found := judged(0, claim, &manifest.TakenError{First: 3, Row: row}); found.verdict != spentVerdict {
		t.Errorf("%+v", found)
	}
	row.Count = 1
	if found := judged(0, claim, &manifest.TakenError{First: 3, Row: row}); found.verdict != committedVerdict {
		t.Errorf("%+v", found)
	}
}

// hostOf is the producer as others see it.
func hostOf(t *testing.T, p *Producer) *writer {
	t.Helper()
	hosts := p.hosts()
	if len(hosts) != 1 {
		t.Fatalf("%d hosts", len(hosts))
	}
	return hosts[0].(*writer)
}

func blockOf(t *testing.T, stream string, encoding Encoding, payload string) peer.Block {
	t.Helper()
	builder := segment.NewBlockBuilder(1)
	if err := builder.Push(1, []byte(payload)); err != nil {
		t.Fatal(err)
	}
	compressor, err := segment.NewCompressor(1)
	if err != nil {
		t.Fatal(err)
	}
	return peer.Block{Stream: stream, Encoding: encoding, EncodedBlock: compressor.Compress(builder, 1)}
}

// asked is a request of a producer that the manifest knows.
func asked(t *testing.T, number uint64, payloads ...string) *peer.Request {
	t.Helper()
	request := &peer.Request{Producer: otherID, Number: number}
	for _, payload := range payloads {
		request.Blocks = append(request.Blocks, blockOf(t, "events.test", NDJSON, payload))
	}
	return request
}

// commitFor has the leader commit a request, with memory of its budget.
func commitFor(t *testing.T, w *writer, request *peer.Request) *peer.Answer {
	t.Helper()
	if err := w.budget.Reserve(t.Context(), 1<<10); err != nil {
		t.Fatal(err)
	}
	return w.CommitFor(t.Context(), request, 1<<10)
}

func TestALeaderRefusesWhatItCannotCommitAndKeepsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		n := newPeerNetwork(w)
		leader := n.join(gathering(), 1, "10.0.0.1:4319")
		host := hostOf(t, leader)
		if answer := commitFor(t, host, asked(t, 1, "a")); answer.Refused == nil || answer.Refused.Reason != peer.NotLeading {
			t.Errorf("before it leads: %+v", answer)
		}
		n.leads(leader, "first")
		w.change(func(m *manifest.Manifest) { *m = *m.Register(otherID, 0) })
		other := asked(t, 1, "a")
		other.Blocks[0].Encoding = OTLP
		own := asked(t, 1, "a")
		own.Producer = w.manifest().Leader.Producer
		unregistered := asked(t, 1, "a")
		unregistered.Producer = manifest.ProducerID{9}
		invalid := []*peer.Request{asked(t, 1), other, own, asked(t, 0, "a"), asked(t, 2, "a"), unregistered}
		segments := asked(t, 1)
		for range batchMax + 1 {
			segments.Segments = append(segments.Segments, manifest.NewSegment{})
		}
		for _, request := range append(invalid, segments) {
			if answer := commitFor(t, host, request); answer.Refused == nil || answer.Refused.Reason != peer.Invalid {
				t.Errorf("number %d: %+v", request.Number, answer)
			}
		}
		if answer := commitFor(t, host, asked(t, 1, "a", "b")); answer.Refused != nil {
			t.Errorf("%+v", answer.Refused)
		}
		if again := commitFor(t, host, asked(t, 1, "a", "b")); again.Refused != nil || again.FirstSequence != w.manifest().NextSequence-1 {
			t.Errorf("a repeated request: %+v", again)
		}
		w.checkLog("first", "a", "b")
		synctest.Wait()
		if held := leader.Stats().MemoryHeldBytes; held != 0 {
			t.Errorf("%d bytes are held", held)
		}
	})
}

func TestACopyOfARequestAddsNoRecordsAndGetsTheSameAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, host := ledWorld(t)
		var requests sync.WaitGroup
		answers := make([]*peer.Answer, 3)
		for i := range answers {
			requests.Go(func() { answers[i] = commitFor(t, host, asked(t, 1, "a")) })
		}
		requests.Wait()
		for _, answer := range answers {
			if answer.Refused != nil || answer.FirstSequence != 1 {
				t.Errorf("%+v", answer)
			}
		}
		w.checkLog("first", "a")
	})
}

// Another number of a producer waits until the first has its answer.
func TestALeaderHoldsOneNumberOfEachProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, host := ledWorld(t)
		var requests sync.WaitGroup
		requests.Go(func() { commitFor(t, host, asked(t, 1, "a")) })
		synctest.Wait()
		if answer := commitFor(t, host, asked(t, 2, "b")); answer.Refused == nil || answer.Refused.Reason != peer.Busy {
			t.Errorf("%+v", answer)
		}
		requests.Wait()
		w.checkLog("first", "a")
	})
}

func TestALeaderThatTheStoreHoldsUpLetsOthersCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, host := ledWorld(t)
		held := w.network.Hold(unreliable.Replace, "manifest")
		answer := commitFor(t, host, asked(t, 1, "a"))
		if answer.Refused == nil || answer.Refused.Reason != peer.HeldUp {
			t.Errorf("%+v", answer)
		}
		held.Release()
	})
}

// The claim of another producer that is in the log already leaves the segment: its records must not be in the log twice.
func TestALeaderBuildsASegmentAnewWithoutAClaimThatIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, leader, host := ledWorld(t)
		var requests sync.WaitGroup
		requests.Go(func() {
			if answer := commitFor(t, host, asked(t, 1, "a")); answer.Refused != nil || answer.FirstSequence != 1 {
				t.Errorf("%+v", answer)
			}
		})
		requests.Go(func() { w.mustAppend(leader, "own") })
		time.Sleep(gathering().Linger / 2)
		// The follower did not wait.
		direct := uploaded(w, "a")
		w.change(func(m *manifest.Manifest) {
			version := m.Stamp
			commit, err := m.Commit([]manifest.Claim{manifest.One(otherID, 1, 1)}, []manifest.NewSegment{direct}, 1)
			if err != nil {
				t.Error(err)
				return
			}
			*m = *commit.State
			m.Stamp = version
		})
		requests.Wait()
		w.checkLog("first", "a", "own")
	})
}

// uploaded uploads a segment with one message, as another producer would.
func uploaded(w *world, payload string) manifest.NewSegment {
	w.t.Helper()
	l := &testLeader{t: w.t, w: w, store: storage.Over(w.memory, storage.RequestTimeout), random: newEnvironment([32]byte{9, byte(w.segments())})}
	return l.upload([]peer.Block{blockOf(w.t, "events.test", NDJSON, payload)})
}

func TestNoRecordOfAFleetIsLostOrTwiceWhateverHappensToRequests(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testFleet(t, seed) })
		})
	}
}

// testFleet has producers that lead and follow while requests between them and to the store fail, and while one of them
// stops.
func testFleet(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	n := newPeerNetwork(w)
	random := rand.New(rand.NewPCG(seed, 3))
	var fleet []*Producer
	for i := range byte(4) {
		config := gathering()
		config.Linger = time.Duration(20+random.IntN(100)) * time.Millisecond
		if random.IntN(3) == 0 {
			config.ForwardBelow = 0
		}
		address := fmt.Sprintf("10.0.0.%d:4319", i)
		if i == 3 {
			address = ""
		}
		fleet = append(fleet, n.join(config, 10+i, address))
	}
	n.decide(anyFault(seed))
	w.network.Set(unreliable.Faults{Write: 0.06, Read: 0.1, Late: 10 * time.Second, Repeated: 0.06})
	var clients sync.WaitGroup
	var all []string
	for i, p := range fleet {
		for j := range 2 {
			messages := names(fmt.Sprintf("client %d of %d:", j, i), 25)
			all = append(all, messages...)
			clients.Go(func() {
				for _, message := range messages {
					p := p
					if !w.appended(p, message) {
						// The producer has stopped: a client goes to another.
						p = fleet[len(fleet)-1]
						w.appendUntilAcknowledged(p, message)
					}
				}
			})
		}
	}
	if seed%2 == 0 {
		time.Sleep(time.Duration(random.IntN(1_000)) * time.Millisecond)
		w.close(fleet[0])
	}
	clients.Wait()
	w.network.Set(unreliable.Faults{})
	n.decide(nil)
	n.settled()
	for _, p := range fleet {
		w.close(p)
	}
	w.network.Settled()
	w.checkOnce(all)
}

// appended is a client that retries appends without side effects. It returns false if the producer has stopped.
func (w *world) appended(p *Producer, payload string) bool {
	w.t.Helper()
	for {
		_, err := w.append(p, payload)
		switch {
		case err == nil:
			return true
		case err == ErrClosed:
			return false
		case !IsRetryable(err) || !HasNoSideEffects(err):
			w.t.Errorf("%s: %v", payload, err)
			return true
		}
	}
}
