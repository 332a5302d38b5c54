package manifest

import (
	"errors"
	"slices"
	"testing"

	"github.com/oklog/ulid/v2"
	"pgregory.net/rapid"
)

// A shardModel is a manifest, its pages, and the names of all committed segments.
type shardModel struct {
	t         interface{ Fatalf(string, ...any) }
	manifest  *Manifest
	pages     map[ulid.ULID]*Page
	committed []ulid.ULID
	nowMs     uint64
}

func newShard(t interface{ Fatalf(string, ...any) }) *shardModel {
	return &shardModel{t, New(bufferID, 0).Register(producerA, 0), make(map[ulid.ULID]*Page), nil, 1_000}
}

func (s *shardModel) commit(count int) {
	s.nowMs++
	var segments []NewSegment
	for i := range count {
		random := uint64(len(s.committed) + i)
		new := newSegment(s.nowMs, random)
		if random%3 == 0 {
			new.Parts[0].Stream = "otlp.traces"
		}
		segments = append(segments, new)
	}
	row, _ := s.manifest.Producer(producerA)
	commit, err := s.manifest.Commit([]Claim{One(producerA, row.Commit+1, len(segments))}, segments, s.nowMs)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	s.manifest = commit.State
	for _, new := range segments {
		s.committed = append(s.committed, new.Segment)
	}
}

func (s *shardModel) seal(last uint64) *Page {
	page, next, ok := s.manifest.Seal(named(s.nowMs, last), last)
	if ok {
		s.manifest = next
		s.pages[named(s.nowMs, last)] = page
	}
	return page
}

// check verifies that a reader sees exactly the committed segments in order, however they were sealed.
func (s *shardModel) check() {
	if reason := s.manifest.Check(); reason != "" {
		s.t.Fatalf("%s", reason)
	}
	var seen []ulid.ULID
	for _, reference := range s.manifest.Pages {
		bytes, err := s.pages[reference.Page].Encode()
		if err != nil {
			s.t.Fatalf("%v", err)
		}
		page, err := DecodePage(bytes)
		if err != nil || page.Reference(reference.Page) != reference || page.First != uint64(len(seen)) {
			s.t.Fatalf("page %+v of %+v: %v", page, reference, err)
		}
		for _, entry := range page.Entries {
			seen = append(seen, entry.Segment)
		}
	}
	for _, entry := range s.manifest.Tail {
		seen = append(seen, entry.Segment)
	}
	if !slices.Equal(seen, s.committed) {
		s.t.Fatalf("a reader sees %v, not %v", seen, s.committed)
	}
}

func TestSealingChangesNothingForReaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shard := newShard(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "seal") {
				shard.seal(shard.manifest.TailStart() + rapid.Uint64Range(0, 11).Draw(t, "ahead"))
			} else {
				shard.commit(rapid.IntRange(1, 4).Draw(t, "count"))
			}
			shard.check()
		}
	})
}

func TestAPageNamedBeforeTheFloorIsNeverReferredTo(t *testing.T) {
	shard := newShard(t)
	shard.commit(3)
	log := *shard.manifest
	log.OrphanFloorMs = 11
	for _, seal := range []struct {
		name ulid.ULID
		last uint64
		ok   bool
	}{{named(10, 1), 2, false}, {named(11, 1), 2, true}, {named(11, 1), 3, false}} {
		if _, _, ok := log.Seal(seal.name, seal.last); ok != seal.ok {
			t.Errorf("%+v", seal)
		}
	}
}

func TestAPageWithoutEntriesOrPastTheEndIsNotValid(t *testing.T) {
	shard := newShard(t)
	shard.commit(1)
	for _, page := range []Page{
		{BufferID: bufferID, First: 7},
		{BufferID: bufferID, First: 1<<64 - 1, Entries: shard.manifest.Tail},
	} {
		bytes, err := page.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodePage(bytes); !errors.Is(err, ErrContent) {
			t.Error(err)
		}
	}
}
