package segment

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// BlockHeaderLen is the length of a block's header in bytes.
const BlockHeaderLen = 25

// Compression is how a block's payload is stored.
type Compression uint8

const (
	// Stored is for content that zstd does not shrink.
	Stored Compression = 0
	// Zstd is one zstd frame.
	Zstd Compression = 1
)

// A blockHeader is a block's header without its checksum, which needs the payload.
type blockHeader struct {
	compressedLen uint32
	rawLen        uint32
	messages      uint32
	baseUs        int64
	compression   Compression
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// put writes the header's bytes, including the checksum over them and the payload.
func (h blockHeader) put(out []byte, payload []byte) {
	binary.LittleEndian.PutUint32(out[0:], h.compressedLen)
	binary.LittleEndian.PutUint32(out[4:], h.rawLen)
	binary.LittleEndian.PutUint32(out[8:], h.messages)
	binary.LittleEndian.PutUint64(out[16:], uint64(h.baseUs))
	out[24] = byte(h.compression)
	binary.LittleEndian.PutUint32(out[12:], blockChecksum(out, payload))
}

// blockChecksum covers the rest of the header and the payload, so that it detects a flipped bit anywhere.
func blockChecksum(header, payload []byte) uint32 {
	crc := crc32.Update(0, castagnoli, header[:12])
	crc = crc32.Update(crc, castagnoli, header[16:BlockHeaderLen])
	return crc32.Update(crc, castagnoli, payload)
}

// readBlockHeader reads the header at the start of bytes, which begin at offset in the object. It verifies the header
// and the payload that follows, and returns both without allocating.
func readBlockHeader(bytes []byte, offset uint64, limits *Limits) (blockHeader, []byte, error) {
	if len(bytes) < BlockHeaderLen {
		return blockHeader{}, nil, truncated(offset, "block header", BlockHeaderLen, uint64(len(bytes)))
	}
	header := blockHeader{
		compressedLen: binary.LittleEndian.Uint32(bytes[0:]),
		rawLen:        binary.LittleEndian.Uint32(bytes[4:]),
		messages:      binary.LittleEndian.Uint32(bytes[8:]),
		baseUs:        int64(binary.LittleEndian.Uint64(bytes[16:])),
		compression:   Compression(bytes[24]),
	}
	left := uint64(len(bytes) - BlockHeaderLen)
	if uint64(header.compressedLen) > left {
		return header, nil, truncated(offset, "compressed length", uint64(header.compressedLen), left)
	}
	if uint64(header.rawLen) > limits.BlockRawMax {
		return header, nil, overLimit(offset, "raw length", uint64(header.rawLen), limits.BlockRawMax)
	}
	payload := bytes[BlockHeaderLen : BlockHeaderLen+int(header.compressedLen)]
	stated, computed := binary.LittleEndian.Uint32(bytes[12:]), blockChecksum(bytes, payload)
	if stated != computed {
		return header, nil, badChecksum(offset, "block checksum", stated, computed)
	}
	if header.compression > Zstd {
		return header, nil, &Error{Unknown, offset, "compression", fmt.Sprintf("%d is not known", header.compression)}
	}
	if header.compression == Stored && header.compressedLen != header.rawLen {
		return header, nil, inconsistent(offset, "raw length", header.rawLen, header.compressedLen)
	}
	return header, payload, nil
}
