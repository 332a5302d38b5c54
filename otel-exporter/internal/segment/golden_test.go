package segment

import (
	"bytes"
	"flag"
	"math"
	"os"
	"testing"
)

// `go test ./internal/segment -run Golden -write` rewrites Go's golden file. Do that only together with a new version
// of the format. The Rust crate reads the file: segment/tests/all/golden.rs.
var write = flag.Bool("write", false, "write the golden file of this language")

const (
	writtenByRust = "../../../segment/testdata/two-streams.segment"
	writtenByGo   = "../../../segment/testdata/two-streams-go.segment"

	baseUs = 1_767_225_600_000_000
)

type goldenBlock struct {
	compression Compression
	records     uint64
	messages    []Message
}

type goldenStream struct {
	name     string
	encoding Encoding
	blocks   []goldenBlock
}

// golden is the content of both languages' golden files.
func golden() []goldenStream {
	repeated := func(c byte) []byte { return bytes.Repeat([]byte{c}, 400) }
	return []goldenStream{
		{"otlp.logs", OTLP, []goldenBlock{
			{Zstd, 7, []Message{{baseUs, repeated('a')}, {baseUs + 1_500, nil}, {baseUs - 20, repeated('b')}}},
			{Stored, 1, []Message{{baseUs + 2_000_000, []byte{0x0a, 0x00, 0xff}}}},
		}},
		{"events.signup", NDJSON, []goldenBlock{
			{Stored, 2, []Message{{math.MinInt64, []byte("{\"a\":1}\n{\"a\":2}\n")}, {math.MaxInt64, nil}}},
		}},
	}
}

func encodeGolden(t *testing.T) EncodedSegment {
	t.Helper()
	compressor, err := NewCompressor(1)
	if err != nil {
		t.Fatal(err)
	}
	builder := NewBuilder(DefaultLimits())
	for _, stream := range golden() {
		for _, block := range stream.blocks {
			open := NewBlockBuilder(block.messages[0].ReceivedAtUs)
			for _, message := range block.messages {
				if err := open.Push(message.ReceivedAtUs, message.Payload); err != nil {
					t.Fatal(err)
				}
			}
			if err := builder.Push(stream.name, stream.encoding, compressor.Compress(open, block.records)); err != nil {
				t.Fatal(err)
			}
		}
	}
	encoded, err := builder.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

func checkGolden(t *testing.T, object []byte) {
	t.Helper()
	streams, err := Verify(object, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	decompressor, err := NewDecompressor()
	if err != nil {
		t.Fatal(err)
	}
	expected := golden()
	if len(streams) != len(expected) {
		t.Fatalf("%d streams", len(streams))
	}
	for i, part := range streams {
		if part.Stream != expected[i].name || part.Encoding != expected[i].encoding {
			t.Errorf("stream %d is %s, %s", i, part.Stream, part.Encoding)
		}
		blocks, err := Blocks(part.Of(object), part.Offset, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if len(blocks) != len(expected[i].blocks) {
			t.Fatalf("%d blocks of %s", len(blocks), part.Stream)
		}
		var records uint64
		for j := range blocks {
			wanted := expected[i].blocks[j]
			records += wanted.records
			messages, err := decompressor.Decode(&blocks[j])
			if err != nil {
				t.Fatal(err)
			}
			if blocks[j].Compression() != wanted.compression || !sameMessages(messages, wanted.messages) {
				t.Errorf("block %d of %s does not match what was written", j, part.Stream)
			}
		}
		if part.Records != records {
			t.Errorf("%d records of %s", part.Records, part.Stream)
		}
	}
}

func sameMessages(a, b []Message) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].ReceivedAtUs != b[i].ReceivedAtUs || !bytes.Equal(a[i].Payload, b[i].Payload) {
			return false
		}
	}
	return true
}

func TestGoldenFilesOfBothLanguagesHaveTheContentTheyWereWrittenWith(t *testing.T) {
	if *write {
		if err := os.WriteFile(writtenByGo, bytes.Join(encodeGolden(t).Pieces, nil), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{writtenByRust, writtenByGo} {
		object, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkGolden(t, object)
	}
}

func TestGoldenShapeIsWhatIsWrittenToday(t *testing.T) {
	today := encodeGolden(t)
	object := bytes.Join(today.Pieces, nil)
	checkGolden(t, object)
	if uint64(len(object)) != today.Size {
		t.Errorf("%d bytes, announced are %d", len(object), today.Size)
	}
	// zstd's bytes may change with its version; everything else must not.
	for _, path := range []string{writtenByRust, writtenByGo} {
		golden, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		streams, err := ReadIndex(golden, DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		for i := range streams {
			a, b := streams[i], today.Streams[i]
			a.Offset, a.Length, b.Offset, b.Length = 0, 0, 0, 0
			if a != b {
				t.Errorf("%s has %+v, the encoder now writes %+v", path, a, b)
			}
		}
	}
}
