package segment

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// encode puts messages into blocks of one stream each, in the given order.
func encode(t interface{ Fatal(...any) }, streams []string, blocks [][]Message) []byte {
	compressor, err := NewCompressor(1)
	if err != nil {
		t.Fatal(err)
	}
	builder := NewBuilder(DefaultLimits())
	for i, messages := range blocks {
		open := NewBlockBuilder(messages[0].ReceivedAtUs)
		for _, message := range messages {
			if err := open.Push(message.ReceivedAtUs, message.Payload); err != nil {
				t.Fatal(err)
			}
		}
		if err := builder.Push(streams[i], OTLP, compressor.Compress(open, uint64(len(messages)))); err != nil {
			t.Fatal(err)
		}
	}
	encoded, err := builder.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Join(encoded.Pieces, nil)
}

// decode returns a whole object's messages by stream.
func decode(object []byte) (map[string][]Message, error) {
	streams, err := Verify(object, DefaultLimits())
	if err != nil {
		return nil, err
	}
	decompressor, err := NewDecompressor()
	if err != nil {
		return nil, err
	}
	found := make(map[string][]Message)
	for _, part := range streams {
		blocks, err := Blocks(part.Of(object), part.Offset, DefaultLimits())
		if err != nil {
			return nil, err
		}
		for i := range blocks {
			messages, err := decompressor.Decode(&blocks[i])
			if err != nil {
				return nil, err
			}
			found[part.Stream] = append(found[part.Stream], messages...)
		}
	}
	return found, nil
}

func small(t *testing.T) []byte {
	repeated := Message{1000, bytes.Repeat([]byte("a"), 300)}
	return encode(t, []string{"otlp.logs", "events", "otlp.logs"}, [][]Message{
		{repeated, {2000, []byte("second")}}, {{3, []byte("short")}}, {{4, nil}},
	})
}

func TestASegmentReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		message := rapid.Custom(func(t *rapid.T) Message {
			payload := rapid.OneOf(
				rapid.SliceOfN(rapid.Byte(), 0, 50),
				rapid.Map(rapid.IntRange(0, 5_000), func(n int) []byte { return bytes.Repeat([]byte{7}, n) }),
			)
			return Message{rapid.Int64().Draw(t, "time"), payload.Draw(t, "payload")}
		})
		blocks := rapid.SliceOfN(rapid.SliceOfN(message, 1, 8), 0, 8).Draw(t, "blocks")
		expected := make(map[string][]Message)
		streams := make([]string, len(blocks))
		for i := range blocks {
			streams[i] = rapid.SampledFrom([]string{"a", "b.c", "d-1"}).Draw(t, "stream")
			expected[streams[i]] = append(expected[streams[i]], blocks[i]...)
		}
		found, err := decode(encode(t, streams, blocks))
		if err != nil {
			t.Fatal(err)
		}
		for stream, messages := range expected {
			if !sameMessages(found[stream], messages) {
				t.Fatalf("stream %s does not match what was written", stream)
			}
		}
	})
}

func TestEveryFlippedBitIsFound(t *testing.T) {
	object := small(t)
	for bit := range len(object) * 8 {
		damaged := slices.Clone(object)
		damaged[bit/8] ^= 1 << (bit % 8)
		if _, err := Verify(damaged, DefaultLimits()); err == nil {
			t.Fatalf("bit %d of byte %d was not detected", bit%8, bit/8)
		}
	}
}

func TestEveryCutAndEveryAdditionIsFound(t *testing.T) {
	object := small(t)
	for length := range object {
		if _, err := Verify(object[:length], DefaultLimits()); err == nil {
			t.Fatalf("truncation to %d of %d bytes was not detected", length, len(object))
		}
	}
	for _, more := range [][]byte{{0}, object} {
		if _, err := Verify(slices.Concat(object, more), DefaultLimits()); err == nil {
			t.Fatal("bytes after the end were not detected")
		}
	}
}

func TestRandomBytesAreAnError(t *testing.T) {
	decompressor, err := NewDecompressor()
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		random := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "bytes")
		if _, err := Verify(random, DefaultLimits()); err == nil {
			t.Fatal("random bytes decoded as a segment")
		}
		// With a valid checksum, only the decoders of the content protect the reader.
		block := Block{header: blockHeader{
			rawLen:      rapid.Uint32Range(0, 1000).Draw(t, "raw"),
			messages:    rapid.Uint32().Draw(t, "messages"),
			compression: Compression(rapid.IntRange(0, 1).Draw(t, "compression")),
		}, payload: random}
		messages, err := decompressor.Decode(&block)
		if err == nil && uint64(len(messages)) != block.Messages() {
			t.Fatalf("%d messages instead of %d", len(messages), block.Messages())
		}
	})
}

func TestALimitIsHeldBeforeAnythingIsAllocated(t *testing.T) {
	object := small(t)
	for name, change := range map[string]func(*Limits){
		"raw bytes of a block": func(l *Limits) { l.BlockRawMax = 100 },
		"bytes of an object":   func(l *Limits) { l.SegmentMax = 100 },
		"streams":              func(l *Limits) { l.StreamsMax = 1 },
		"blocks":               func(l *Limits) { l.BlocksMax = 1 },
		"bytes of the index":   func(l *Limits) { l.IndexMax = 10 },
	} {
		limits := DefaultLimits()
		change(&limits)
		_, err := Verify(object, limits)
		var problem *Error
		if !errors.As(err, &problem) || problem.Problem != OverLimit {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A frame that expands to more than its block declares gets no more room than declared.
	compressor, err := NewCompressor(1)
	if err != nil {
		t.Fatal(err)
	}
	decompressor, err := NewDecompressor()
	if err != nil {
		t.Fatal(err)
	}
	bomb := compressor.zstd.EncodeAll(make([]byte, 10<<20), nil)
	for _, declared := range []uint32{0, 1, 1000} {
		block := Block{header: blockHeader{rawLen: declared, messages: 1, compression: Zstd}, payload: bomb}
		if _, err := decompressor.Decode(&block); err == nil {
			t.Errorf("a frame of 10 MiB fits into %d bytes", declared)
		}
	}
}

func TestAWriterKeepsTheLimits(t *testing.T) {
	open := NewBlockBuilder(0)
	if err := open.Push(0, make([]byte, 64<<20)); err == nil || open.RawLen() != 0 {
		t.Errorf("a message over the limit was accepted: %v, %d", err, open.RawLen())
	}
	limits := DefaultLimits()
	limits.StreamsMax, limits.BlocksMax = 1, 1
	builder := NewBuilder(limits)
	if err := builder.Push("a", OTLP, EncodedBlock{Bytes: make([]byte, BlockHeaderLen)}); err != nil {
		t.Fatal(err)
	}
	for stream, encoding := range map[string]Encoding{"a": OTLP, "b": OTLP, "../x": OTLP} {
		if builder.Push(stream, encoding, EncodedBlock{}) == nil {
			t.Errorf("%q was accepted", stream)
		}
	}
	if builder.Push("a", NDJSON, EncodedBlock{}) == nil {
		t.Error("another encoding was accepted")
	}
	limits = DefaultLimits()
	limits.SegmentMax = 100
	if NewBuilder(limits).Push("a", OTLP, EncodedBlock{Bytes: make([]byte, 100)}) == nil {
		t.Error("a block over the limit was accepted")
	}
}

func TestStreamNames(t *testing.T) {
	for _, good := range []string{"a", "otlp.logs", "A-1_b", strings.Repeat("x", 100)} {
		if err := CheckStreamName(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", ".a", "a/b", "a b", "é", strings.Repeat("x", 101)} {
		if CheckStreamName(bad) == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestTimesThatAreFarApart(t *testing.T) {
	messages := []Message{{math.MinInt64, nil}, {math.MaxInt64, nil}, {0, nil}}
	found, err := decode(encode(t, []string{"a"}, [][]Message{messages}))
	if err != nil || !sameMessages(found["a"], messages) {
		t.Errorf("%v: %v", found, err)
	}
}
