package segment

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/klauspost/compress/zstd"
)

// A Message is one message of a stream.
type Message struct {
	ReceivedAtUs int64 // unix microseconds
	Payload      []byte
}

// A Block is one verified block, still compressed.
type Block struct {
	header  blockHeader
	payload []byte
	offset  uint64
}

// RawLen is the declared length of the raw content.
func (b *Block) RawLen() uint64 { return uint64(b.header.rawLen) }

// Messages is the declared number of messages.
func (b *Block) Messages() uint64 { return uint64(b.header.messages) }

// Compression is how the payload is stored.
func (b *Block) Compression() Compression { return b.header.compression }

// Blocks reads the blocks of one stream from part, the bytes of a ranged GET of a StreamPart at offset in the object.
// It verifies headers and checksums and decompresses nothing.
func Blocks(part []byte, offset uint64, limits Limits) ([]Block, error) {
	var blocks []Block
	for len(part) > 0 {
		if uint64(len(blocks)) >= uint64(limits.BlocksMax) {
			return nil, overLimit(offset, "blocks", uint64(len(blocks)+1), uint64(limits.BlocksMax))
		}
		header, payload, err := readBlockHeader(part, offset, &limits)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, Block{header, payload, offset})
		length := BlockHeaderLen + len(payload)
		part, offset = part[length:], offset+uint64(length)
	}
	return blocks, nil
}

// A Decompressor decompresses blocks. It is safe for concurrent use.
type Decompressor struct{ zstd *zstd.Decoder }

// NewDecompressor returns a decompressor.
func NewDecompressor() (*Decompressor, error) {
	// A frame gets room for exactly the raw length that its block declares, whatever the frame declares.
	decoder, err := zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &Decompressor{decoder}, nil
}

// Decode returns the messages of a block, which may share its bytes.
func (d *Decompressor) Decode(block *Block) ([]Message, error) {
	raw := block.payload
	if block.header.compression == Zstd {
		var err error
		raw, err = d.zstd.DecodeAll(block.payload, make([]byte, 0, block.header.rawLen))
		if err != nil {
			return nil, &Error{Malformed, block.offset, "payload", err.Error()}
		}
		if uint64(len(raw)) != block.RawLen() {
			return nil, inconsistent(block.offset, "raw length", block.RawLen(), uint64(len(raw)))
		}
	}
	return block.messages(raw)
}

func (b *Block) messages(raw []byte) ([]Message, error) {
	// Each message takes at least two raw bytes, so the content bounds the allocation whatever the count.
	messages := make([]Message, 0, min(uint64(b.header.messages), uint64(len(raw)/2)))
	for range b.header.messages {
		delta, n := binary.Varint(raw)
		if n <= 0 {
			return nil, &Error{Malformed, b.offset, "message time", "it is not a varint"}
		}
		raw = raw[n:]
		length, n := binary.Uvarint(raw)
		if n <= 0 {
			return nil, &Error{Malformed, b.offset, "message length", "it is not a varint"}
		}
		raw = raw[n:]
		if length > uint64(len(raw)) {
			return nil, truncated(b.offset, "message length", length, uint64(len(raw)))
		}
		messages = append(messages, Message{b.header.baseUs + delta, raw[:length:length]})
		raw = raw[length:]
	}
	if len(raw) > 0 {
		return nil, inconsistent(b.offset, "bytes after the last message", len(raw), 0)
	}
	return messages, nil
}

// Verify reads a whole object: every header, checksum and message, and whether the index matches the blocks. It trusts
// the record counts, which only the writer knew.
func Verify(object []byte, limits Limits) ([]StreamPart, error) {
	streams, err := ReadIndex(object, limits)
	if err != nil {
		return nil, err
	}
	decompressor, err := NewDecompressor()
	if err != nil {
		return nil, err
	}
	for i := range streams {
		if err := decompressor.verify(&streams[i], object, limits); err != nil {
			return nil, err
		}
	}
	return streams, nil
}

func (d *Decompressor) verify(part *StreamPart, object []byte, limits Limits) error {
	blocks, err := Blocks(part.Of(object), part.Offset, limits)
	if err != nil {
		return err
	}
	found := StreamPart{Blocks: uint32(len(blocks)), FirstUs: math.MaxInt64, LastUs: math.MinInt64}
	for i := range blocks {
		messages, err := d.Decode(&blocks[i])
		if err != nil {
			return err
		}
		found.RawLen += blocks[i].RawLen()
		found.Messages += uint64(len(messages))
		for _, message := range messages {
			found.FirstUs = min(found.FirstUs, message.ReceivedAtUs)
			found.LastUs = max(found.LastUs, message.ReceivedAtUs)
		}
	}
	switch {
	case part.Blocks != found.Blocks:
		return inconsistent(part.Offset, "blocks", part.Blocks, found.Blocks)
	case part.RawLen != found.RawLen:
		return inconsistent(part.Offset, "raw length", part.RawLen, found.RawLen)
	case part.Messages != found.Messages:
		return inconsistent(part.Offset, "messages", part.Messages, found.Messages)
	case part.FirstUs != found.FirstUs:
		return inconsistent(part.Offset, "first received_at", part.FirstUs, found.FirstUs)
	case part.LastUs != found.LastUs:
		return inconsistent(part.Offset, "last received_at", part.LastUs, found.LastUs)
	}
	return nil
}
