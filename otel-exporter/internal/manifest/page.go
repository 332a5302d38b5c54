package manifest

import (
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
)

// A Page is an immutable object that holds a sealed run of entries. It is written before a manifest refers to it; only
// the manifest decides which pages belong to the log.
type Page struct {
	BufferID uuid.UUID
	Shard    uint32
	First    uint64 // sequence of the first entry
	Entries  []Entry
}

// A PageReference is a manifest's reference to a page.
type PageReference struct {
	First, Last              uint64 // sequences, both inclusive
	Page                     ulid.ULID
	Bytes, Messages, Records uint64 // sums over its entries
}

// Last is the sequence of the last entry.
func (p *Page) Last() uint64 { return p.First + uint64(len(p.Entries)) - 1 }

// Reference returns the manifest's reference to this page under the given name.
func (p *Page) Reference(name ulid.ULID) PageReference {
	reference := PageReference{First: p.First, Last: p.Last(), Page: name}
	for i := range p.Entries {
		reference.Bytes += p.Entries[i].Size
		for _, part := range p.Entries[i].Parts {
			reference.Messages += part.Messages
			reference.Records += part.Records
		}
	}
	return reference
}

func (p *Page) check() string {
	if len(p.Entries) == 0 {
		return "it has no entries"
	}
	if p.First > math.MaxUint64-uint64(len(p.Entries)) {
		return "it ends past the last sequence"
	}
	for i := range p.Entries {
		// The stream table is unknown here: it is in the manifest and only grows.
		if reason := p.Entries[i].check(math.MaxInt); reason != "" {
			return fmt.Sprintf("sequence %d: %s", p.First+uint64(i), reason)
		}
	}
	return ""
}

const pageMagic = "MPPG"

// Encode returns the object's bytes.
func (p *Page) Encode() ([]byte, error) {
	return wrap(pageMagic, &manifestpb.Page{
		BufferId: p.BufferID[:],
		Shard:    p.Shard,
		First:    p.First,
		Entries:  encodeAll(p.Entries, encodeEntry),
	})
}

// DecodePage reads and checks a page's bytes.
func DecodePage(bytes []byte) (*Page, error) {
	const object = "page"
	message := &manifestpb.Page{}
	if err := unwrap(object, pageMagic, logBytesMax, pageCounts, bytes, message); err != nil {
		return nil, err
	}
	id, err := sixteen(object, "buffer_id", message.BufferId)
	if err != nil {
		return nil, err
	}
	entries, err := decodeAll(object, message.Entries, decodeEntry)
	if err != nil {
		return nil, err
	}
	page := &Page{id, message.Shard, message.First, entries}
	if reason := page.check(); reason != "" {
		return nil, content(object, "%s", reason)
	}
	return page, nil
}

// Equal reports whether two pages have the same content.
func (p *Page) Equal(other *Page) bool {
	return p.BufferID == other.BufferID && p.Shard == other.Shard && p.First == other.First &&
		slices.EqualFunc(p.Entries, other.Entries, func(a, b Entry) bool {
			return a.Segment == b.Segment && a.Size == b.Size && a.CommittedAtMs == b.CommittedAtMs &&
				slices.Equal(a.Parts, b.Parts)
		})
}
