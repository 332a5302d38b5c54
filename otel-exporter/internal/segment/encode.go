package segment

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// A BlockBuilder collects the messages of one block of one stream. It copies no payload: payloads must not change until
// the block is compressed.
type BlockBuilder struct {
	messages        []Message
	rawLen          int
	baseUs          int64
	firstUs, lastUs int64
	rawMax          uint64
}

// MessageLenMax is the maximum number of raw bytes that Push adds for a payload of that length.
func MessageLenMax(payloadLen int) int { return payloadLen + 2*binary.MaxVarintLen64 }

// NewBlockBuilder returns an empty block. Times are stored relative to baseUs (unix microseconds), ideally the time of
// the first message.
func NewBlockBuilder(baseUs int64) *BlockBuilder {
	return &BlockBuilder{
		baseUs:  baseUs,
		firstUs: math.MaxInt64,
		lastUs:  math.MinInt64,
		rawMax:  DefaultLimits().BlockRawMax,
	}
}

// appendHead appends what precedes a message's payload.
func (b *BlockBuilder) appendHead(out []byte, message *Message) []byte {
	// The subtraction wraps, so that every pair of times has a difference; the reader wraps it back.
	out = binary.AppendVarint(out, message.ReceivedAtUs-b.baseUs)
	return binary.AppendUvarint(out, uint64(len(message.Payload)))
}

// Push appends a message. If the message does not fit, the block stays unchanged.
func (b *BlockBuilder) Push(receivedAtUs int64, payload []byte) error {
	message := Message{receivedAtUs, payload}
	var head [2 * binary.MaxVarintLen64]byte
	length := len(b.appendHead(head[:0], &message)) + len(payload)
	if uint64(b.rawLen)+uint64(length) > b.rawMax {
		return fmt.Errorf("a message of %d bytes does not fit in a block that holds %d of at most %d bytes",
			len(payload), b.rawLen, b.rawMax)
	}
	// messages cannot overflow: a message takes at least two raw bytes, and there are far fewer than 2^32 of them.
	b.messages = append(b.messages, message)
	b.rawLen += length
	b.firstUs, b.lastUs = min(b.firstUs, receivedAtUs), max(b.lastUs, receivedAtUs)
	return nil
}

// RawLen is the length of the raw content so far.
func (b *BlockBuilder) RawLen() int { return b.rawLen }

// appendRaw appends the raw content: the only copy of a payload.
func (b *BlockBuilder) appendRaw(out []byte) []byte {
	out = slices.Grow(out, b.rawLen)
	for i := range b.messages {
		out = append(b.appendHead(out, &b.messages[i]), b.messages[i].Payload...)
	}
	return out
}

// An EncodedBlock is a block as it goes into a segment.
type EncodedBlock struct {
	Bytes           []byte // header and payload
	RawLen          uint64
	Messages        uint64
	Records         uint64
	FirstUs, LastUs int64
}

// A Compressor compresses one block at a time in buffers that it reuses.
type Compressor struct {
	zstd            *zstd.Encoder
	raw, compressed []byte
}

// bufferKeptMax is the size above which a buffer is freed after use: one giant message must not pin memory forever.
const bufferKeptMax = 8 << 20

// NewCompressor returns a compressor at the zstd level (1 is the fastest of the standard levels).
func NewCompressor(level int) (*Compressor, error) {
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
		zstd.WithEncoderConcurrency(1),
		// The block's own checksum covers more.
		zstd.WithEncoderCRC(false))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &Compressor{zstd: encoder}, nil
}

// Compress compresses a block that holds the given number of records, or stores it as is when zstd does not shrink it.
func (c *Compressor) Compress(block *BlockBuilder, records uint64) EncodedBlock {
	c.raw = block.appendRaw(c.raw[:0])
	c.compressed = c.zstd.EncodeAll(c.raw, c.compressed[:0])
	header := blockHeader{
		rawLen:      uint32(len(c.raw)),
		messages:    uint32(len(block.messages)),
		baseUs:      block.baseUs,
		compression: Zstd,
	}
	payload := c.compressed
	if len(payload) >= len(c.raw) {
		header.compression, payload = Stored, c.raw
	}
	header.compressedLen = uint32(len(payload))
	// Copy to the exact size: the buffers have room for the worst case and are reused.
	out := make([]byte, BlockHeaderLen+len(payload))
	copy(out[BlockHeaderLen:], payload)
	header.put(out, out[BlockHeaderLen:])
	encoded := EncodedBlock{
		Bytes:    out,
		RawLen:   uint64(len(c.raw)),
		Messages: uint64(len(block.messages)),
		Records:  records,
		FirstUs:  block.firstUs,
		LastUs:   block.lastUs,
	}
	if cap(c.raw) > bufferKeptMax {
		c.raw = nil
	}
	if cap(c.compressed) > bufferKeptMax {
		c.compressed = nil
	}
	return encoded
}

// An EncodedSegment is a whole segment, ready to be uploaded.
type EncodedSegment struct {
	Pieces  [][]byte // the object, in order; nothing is concatenated
	Size    uint64
	Streams []StreamPart // as in its index
}

type streamBlocks struct {
	part   StreamPart
	blocks [][]byte
}

// A Builder combines blocks of many streams into one segment, each stream's blocks together. Streams are ordered by
// their first block, blocks by their push.
type Builder struct {
	streams     []streamBlocks
	places      map[string]int
	blocksLen   uint64
	indexLenMax uint64 // upper bound of the index's size for the streams so far
	limits      Limits
}

// indexEntryMax is the maximum size of a stream in the index without its name: ten fields of a tag and a varint each,
// plus its own tag and length.
const indexEntryMax = 10*11 + 6

// NewBuilder returns an empty segment.
func NewBuilder(limits Limits) *Builder {
	return &Builder{places: make(map[string]int), limits: limits}
}

// Push adds a block of a stream. On an error the segment stays unchanged.
func (b *Builder) Push(stream string, encoding Encoding, block EncodedBlock) error {
	place, known := b.places[stream]
	indexLenMax, blocks := b.indexLenMax, uint32(1)
	if known {
		part := &b.streams[place].part
		if part.Encoding != encoding {
			return fmt.Errorf("stream %s holds %s messages, not %s", stream, part.Encoding, encoding)
		}
		blocks = part.Blocks + 1
	} else {
		if err := CheckStreamName(stream); err != nil {
			return err
		}
		indexLenMax += indexEntryMax + uint64(len(stream))
		if err := full("number of streams", uint64(len(b.streams)+1), uint64(b.limits.StreamsMax)); err != nil {
			return err
		}
		if err := full("index", indexLenMax, b.limits.IndexMax); err != nil {
			return err
		}
	}
	if err := full("number of blocks of a stream", uint64(blocks), uint64(b.limits.BlocksMax)); err != nil {
		return err
	}
	size := HeaderLen + FooterLen + b.blocksLen + indexLenMax + uint64(len(block.Bytes))
	if err := full("size", size, b.limits.SegmentMax); err != nil {
		return err
	}
	if !known {
		place = len(b.streams)
		b.places[stream] = place
		b.streams = append(b.streams, streamBlocks{part: StreamPart{
			Stream: stream, Encoding: encoding, FirstUs: math.MaxInt64, LastUs: math.MinInt64,
		}})
	}
	b.indexLenMax = indexLenMax
	b.blocksLen += uint64(len(block.Bytes))
	entry := &b.streams[place]
	part := &entry.part
	part.Length += uint64(len(block.Bytes))
	part.RawLen += block.RawLen
	part.Blocks = blocks
	part.Messages += block.Messages
	part.Records += block.Records
	part.FirstUs, part.LastUs = min(part.FirstUs, block.FirstUs), max(part.LastUs, block.LastUs)
	entry.blocks = append(entry.blocks, block.Bytes)
	return nil
}

func full(what string, found, limit uint64) error {
	if found > limit {
		return fmt.Errorf("the segment is full: %s would be %d, the limit is %d", what, found, limit)
	}
	return nil
}

// Finish closes the segment.
func (b *Builder) Finish() (EncodedSegment, error) {
	segment := EncodedSegment{Pieces: [][]byte{appendHeader(nil)}, Size: HeaderLen}
	for _, stream := range b.streams {
		part := stream.part
		part.Offset = segment.Size
		segment.Size += part.Length
		segment.Pieces = append(segment.Pieces, stream.blocks...)
		segment.Streams = append(segment.Streams, part)
	}
	tail, err := encodeTail(segment.Streams)
	if err != nil {
		return EncodedSegment{}, err
	}
	segment.Pieces = append(segment.Pieces, tail)
	segment.Size += uint64(len(tail))
	return segment, nil
}
