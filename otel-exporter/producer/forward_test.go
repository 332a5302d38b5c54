package producer

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"millpond.dev/otel-exporter/internal/manifest"
	"millpond.dev/otel-exporter/internal/peer"
	"millpond.dev/otel-exporter/internal/storage/unreliable"
)

// followed starts a producer that sends its leader the blocks of segments below this size. The log has a message, "first".
func followed(t *testing.T, forwardBelow int) (*world, *testLeader, *Producer) {
	t.Helper()
	w := newWorld(t, 1)
	w.mustAppend(w.producer(testConfig(), 9), "first")
	l := w.leader()
	config := testConfig()
	config.ForwardBelow = forwardBelow
	return w, l, w.follower(l, config, 1)
}

// checkPlace fails unless the segment at the sequence that a caller got has its message.
func (w *world) checkPlace(payload string, sequence uint64) {
	w.t.Helper()
	entries := w.entries()
	if sequence >= uint64(len(entries)) {
		w.t.Errorf("%q has sequence %d of %d", payload, sequence, len(entries))
		return
	}
	// Such short payloads do not compress.
	if object := w.get(manifest.SegmentKey(0, entries[sequence].Segment)); !bytes.Contains(object, []byte(payload)) {
		w.t.Errorf("%q is not in segment %d", payload, sequence)
	}
}

func TestALeaderTakesTheBlocksOfAFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		p := w.follower(l, testConfig(), 1)
		before := p.Stats().CommitsCommitted
		for _, message := range []string{"a", "b", "c"} {
			w.checkPlace(message, w.mustAppend(p, message))
		}
		w.checkLog("first", "a", "b", "c")
		stats := p.Stats()
		if len(l.requests()) != 3 || w.segments() != 4 || stats.CommitsCommitted != before {
			t.Errorf("%d requests, %d segments, %+v", len(l.requests()), w.segments(), stats)
		}
		// The first was uploaded: the producer met the leader when it was about to commit.
		if stats.AppendedBytes != 2*stats.DelegatedBytes || stats.Segments != 1 || stats.Records != 3 {
			t.Errorf("%+v", stats)
		}
	})
}

func TestALeaderCommitsTheSegmentsOfAFollower(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, l, p := followed(t, 0)
		slow := w.network.Hold(unreliable.Create, "segments")
		var clients sync.WaitGroup
		for _, message := range []string{"a", "b"} {
			clients.Go(func() { w.checkPlace(message, w.mustAppend(p, message)) })
			synctest.Wait()
		}
		slow.Release()
		clients.Wait()
		w.checkLog("first", "a", "b")
		// The second was there before the first.
		stats := p.Stats()
		if len(l.requests()) != 1 || w.segments() != 3 || stats.DelegatedBytes == 0 || stats.AppendedBytes != 0 || stats.Segments != 2 {
			t.Errorf("%d requests, %d segments, %+v", len(l.requests()), w.segments(), stats)
		}
	})
}

func TestAFollowerVouchesForItsCertificateAndNeverLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		certificate := manifest.Fingerprint{1, 1}
		certified := func() bool {
			return slices.ContainsFunc(w.manifest().Producers, func(row manifest.ProducerRow) bool {
				return row.Certificate == certificate
			})
		}
		l := &testLeader{t: t, w: w}
		p := w.follower(l, testConfig(), 1)
		if !certified() {
			t.Error("the registration has no certificate")
		}
		w.mustAppend(p, "a")
		// A program of before drops the certificates.
		w.change(func(m *manifest.Manifest) { m.Producers[0].Certificate = manifest.Fingerprint{} })
		w.mustAppend(p, "b")
		if !certified() {
			t.Error("a commit has no certificate")
		}
		if leader := w.manifest().Leader; leader != nil || len(l.requests()) != 0 {
			t.Errorf("%+v leads", leader)
		}
	})
}

// Another producer replaces a leader whose count of shared commits stands still.
func TestAFollowerLeavesADeadLeaderToBeReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		l.always(closed)
		p := w.follower(l, testConfig(), 1)
		before := *w.manifest().Leader
		for range 100 {
			w.mustAppend(p, "x")
			time.Sleep(time.Second)
		}
		if after := *w.manifest().Leader; after != before {
			t.Errorf("%+v leads, not %+v", after, before)
		}
		// After 1, 2, 4 s, and then every 8 s.
		if asked := len(l.requests()); asked != 15 || p.Stats().Fallbacks[unreachable] != 15 {
			t.Errorf("asked %d times, %+v", asked, p.Stats())
		}
	})
}

func TestAFollowerCommitsForItselfWhateverHappensToARequest(t *testing.T) {
	for _, forwardBelow := range []int{0, 256 << 10} {
		for decided := range ways {
			synctest.Test(t, func(t *testing.T) {
				w, l, p := followed(t, forwardBelow)
				l.always(decided)
				w.checkPlace("message a", w.mustAppend(p, "message a"))
				l.decide(nil)
				time.Sleep(time.Minute)
				w.checkPlace("message b", w.mustAppend(p, "message b"))
				w.checkLog("first", "message a", "message b")
				fallbacks := int64(1)
				if decided == open || decided == twice || decided == delays {
					fallbacks = 0
				}
				reason := unreachable
				if decided == refuses {
					reason = leaderHeldUp
				}
				if found := p.Stats().Fallbacks[reason]; found != fallbacks || len(l.requests()) != 2 {
					t.Errorf("way %d: %d fallbacks, %d requests", decided, found, len(l.requests()))
				}
			})
		}
	}
}

// Segments that share a request count together: each would be sent to the leader alone.
func TestSmallSegmentsThatAreLargeTogetherAreUploaded(t *testing.T) {
	for _, test := range []struct{ forwardBelow, blocks, segments int }{{1_500, 0, 2}, {2_500, 2, 0}} {
		synctest.Test(t, func(t *testing.T) {
			w, l, p := followed(t, test.forwardBelow)
			letters := rand.New(rand.NewPCG(7, 7))
			messages := make([]string, 4)
			for place := range messages {
				message := make([]byte, 1_000)
				for place := range message {
					message[place] = byte(letters.UintN(256))
				}
				messages[place] = string(message)
			}
			// The producer knows its leader after the first.
			w.checkPlace(messages[0], w.mustAppend(p, messages[0]))
			l.always(delays)
			var clients sync.WaitGroup
			for _, message := range messages[1:] {
				clients.Go(func() { w.checkPlace(message, w.mustAppend(p, message)) })
				// The others are ready while the leader commits the first.
				time.Sleep(50 * time.Millisecond)
			}
			clients.Wait()
			w.checkLog(append([]string{"first"}, messages...)...)
			asked := l.requests()
			if len(asked) != 3 || len(asked[1].Blocks) != 1 {
				t.Fatalf("below %d: %+v", test.forwardBelow, asked)
			}
			if blocks, segments := len(asked[2].Blocks), len(asked[2].Segments); blocks != test.blocks || segments != test.segments {
				t.Errorf("below %d: %d blocks and %d segments", test.forwardBelow, blocks, segments)
			}
		})
	}
}

// The leader puts the blocks of several segments into one, and commits uploaded segments as they are.
func TestRecordsFoundInTheLogHaveTheirPlaceThere(t *testing.T) {
	for _, forwardBelow := range []int{0, 256 << 10} {
		synctest.Test(t, func(t *testing.T) {
			w, l, p := followed(t, forwardBelow)
			l.decide(func(request *peer.Request) way {
				if request.Number == 1 {
					return delays
				}
				return noAnswer
			})
			var clients sync.WaitGroup
			for _, message := range []string{"message a", "message b", "message c"} {
				clients.Go(func() { w.checkPlace(message, w.mustAppend(p, message)) })
				// The others are ready while the leader commits the first.
				time.Sleep(50 * time.Millisecond)
			}
			clients.Wait()
			w.checkLog("first", "message a", "message b", "message c")
			if asked := l.requests(); len(asked) != 2 || len(asked[1].Blocks)+len(asked[1].Segments) != 2 {
				t.Errorf("%+v", asked)
			}
		})
	}
}

// The leader may commit a number until the table shows it: it belongs to the records that were sent, and to no others.
func TestNothingJoinsANumberThatWasSentToTheLeader(t *testing.T) {
	for _, method := range []string{unreliable.Get, unreliable.Replace} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1)
			w.mustAppend(w.producer(testConfig(), 9), "first")
			l := w.leader()
			p := w.follower(l, testConfig(), 1)
			l.always(closed)
			held := w.network.Hold(method, "manifest")
			var clients sync.WaitGroup
			clients.Go(func() { w.checkPlace("message a", w.mustAppend(p, "message a")) })
			<-held.Arrived()
			// The producer is about to commit it, and has another segment by now, when the request arrives late.
			clients.Go(func() { w.checkPlace("message b", w.mustAppend(p, "message b")) })
			synctest.Wait()
			request := l.requests()[0]
			l.deliver(&request)
			held.Release()
			clients.Wait()
			w.checkLog("first", "message a", "message b")
			if found := p.Stats().CommitsFound; found != 1 {
				t.Errorf("%d commits were found", found)
			}
		})
	}
}

// Nobody can tell what became of a number that was sent, once the manifest has forgotten its producer.
func TestAFollowerThatIsForgottenSaysThatTheOutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		p := w.follower(l, testConfig(), 1)
		l.decide(func(*peer.Request) way {
			w.change(func(m *manifest.Manifest) { m.Producers = nil })
			return closed
		})
		if _, err := w.append(p, "a"); !isA[*OutcomeUnknownError](err) {
			t.Error(err)
		}
		w.mustAppend(p, "b")
		w.checkLog("first", "b")
	})
}

func TestALeaderThatStopsIsNotAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		p := w.follower(l, testConfig(), 1)
		l.always(leaves)
		w.mustAppend(p, "a")
		time.Sleep(time.Hour)
		w.mustAppend(p, "b")
		if asked := len(l.requests()); asked != 1 {
			t.Errorf("asked %d times", asked)
		}
		w.checkLog("first", "a", "b")
	})
}

// Blocks are sent shortly before the leader closes its segment, so that they wait neither here nor there.
func TestAFollowerKeepsTheRhythmOfItsLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		l.every = time.Second
		config := testConfig()
		config.Linger = time.Second
		config.SegmentRawBytes = 1 << 20
		p := w.follower(l, config, 1)
		w.mustAppend(p, "learns the rhythm")
		closes := time.Now()
		for i := range 20 {
			time.Sleep(time.Duration(i*137%1_000) * time.Millisecond)
			w.mustAppend(p, "x")
			if early := (time.Second - time.Since(closes)%time.Second) % time.Second; early != 100*time.Millisecond && early != 0 {
				t.Errorf("sent %s before the leader closes its segment", early)
			}
			closes = time.Now()
		}
	})
}

// Blocks would wait for the leader's linger, so the follower uploads its segments: the leader commits those at once.
func TestAFollowerUploadsForALeaderThatClosesItsSegmentsRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		l.every = 15 * time.Second
		config := testConfig()
		config.Linger = time.Second
		config.SegmentRawBytes = 1 << 20
		p := w.follower(l, config, 1)
		w.mustAppend(p, "learns the rhythm")
		for _, message := range []string{"a", "b"} {
			began := time.Now()
			w.mustAppend(p, message)
			if took := time.Since(began); took > config.Linger {
				t.Errorf("%s took %s", message, took)
			}
		}
		for _, request := range l.requests()[1:] {
			if len(request.Segments) == 0 {
				t.Error("blocks wait for a slow leader")
			}
		}
		w.checkLog("first", "learns the rhythm", "a", "b")
	})
}

// Sent at once, blocks between two segments of the leader would be in flight when the next ones are ready.
func TestBlocksOfFullSegmentsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		l.every = time.Second
		p := w.follower(l, fullSegments(time.Second), 1)
		w.mustAppend(p, "learns the rhythm")
		started := time.Now()
		var clients sync.WaitGroup
		for i, message := range []string{"a", "b", "c"} {
			clients.Go(func() {
				time.Sleep(time.Duration(i) * 300 * time.Millisecond)
				w.checkPlace(message, w.mustAppend(p, message))
				if sent := time.Since(started); sent != 925*time.Millisecond {
					t.Errorf("%s was sent after %s", message, sent)
				}
			})
		}
		clients.Wait()
		if asked := len(l.requests()); asked != 2 {
			t.Errorf("%d requests", asked)
		}
		w.checkLog("first", "learns the rhythm", "a", "b", "c")
	})
}

func TestFullSegmentsThatTheLeaderCommitsShareARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1)
		w.mustAppend(w.producer(testConfig(), 9), "first")
		l := w.leader()
		// The linger ends between two messages.
		config := fullSegments(time.Second + gap/2)
		config.ForwardBelow = 0
		p := w.follower(l, config, 1)
		took := w.steadily(p, 300, "x")
		// A request has 64 segments, so there are two for each linger of three seconds.
		if asked := len(l.requests()); asked < 5 || asked > 8 {
			t.Errorf("%d requests", asked)
		}
		if longest := slices.Max(took); longest > config.Linger {
			t.Errorf("one took %s", longest)
		}
	})
}

func TestNoRecordIsLostOrTwiceWhateverHappensToRequests(t *testing.T) {
	for _, seed := range seeds(t, 40) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, seed)
				w.mustAppend(w.producer(testConfig(), 9), "first")
				l := w.leader()
				l.every = 50 * time.Millisecond
				var clients sync.WaitGroup
				var all []string
				for number := range uint64(3) {
					config := testConfig()
					// Some send blocks, the others upload.
					config.ForwardBelow = int((seed+number)%2) << 18
					p := w.follower(l, config, 10*seed+number+10)
					messages := names(fmt.Sprintf("producer %d, message", number), 24)
					all = append(all, messages...)
					for i, message := range messages {
						clients.Go(func() {
							time.Sleep(time.Duration(i/2) * 500 * time.Millisecond)
							w.appendUntilAcknowledged(p, message)
						})
					}
				}
				l.decide(anyWay(seed))
				w.network.Set(unreliable.Faults{Write: 0.08, Read: 0.1, Late: 2 * time.Second, Repeated: 0.08})
				clients.Wait()
				w.network.Set(unreliable.Faults{})
				w.network.Settled()
				// Requests that are still on their way arrive.
				time.Sleep(time.Minute)
				w.checkOnce(all)
				if log := w.log(); len(log) != len(all)+1 {
					t.Errorf("%d messages of %d sent", len(log), len(all)+1)
				}
			})
		})
	}
}
