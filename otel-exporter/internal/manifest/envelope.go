package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/proto"
)

const (
	// FormatVersion is the version of most objects.
	FormatVersion = 1
	// clientsVersion is the version of a manifest with clients. A program that does not know them would erase them, and
	// then accept their requests again.
	clientsVersion = 2
	// bufferVersion is the version of a buffer with routed streams. Programs that would send their rows anywhere refuse it.
	bufferVersion = 2
	// sourcesVersion is the version of a manifest with the positions of bridges. Without them, bridges would read
	// everything again.
	sourcesVersion = 3
)

const envelopeLen = 4 + 2 + 4

// Decoder errors: each one wraps one of these.
var (
	ErrShort    = errors.New("it is shorter than its envelope: it was cut off or is not Millpond's")
	ErrMagic    = errors.New("it does not begin with its magic: it is not Millpond's or is damaged")
	ErrVersion  = errors.New("it has a format version that this program does not read: use a newer one")
	ErrChecksum = errors.New("it is damaged: its checksum is wrong")
	ErrTooLarge = errors.New("it is not Millpond's")
	ErrContent  = errors.New("it is not valid")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the version and the message.
func checksum(version uint16, body []byte) uint32 {
	var head [2]byte
	binary.LittleEndian.PutUint16(head[:], version)
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, body)
}

// wrap puts the envelope around a message: magic, format version, checksum.
func wrap(magic string, message proto.Message) ([]byte, error) {
	return wrapVersion(magic, FormatVersion, message)
}

func wrapVersion(magic string, version uint16, message proto.Message) ([]byte, error) {
	out := make([]byte, envelopeLen, envelopeLen+proto.Size(message))
	copy(out, magic)
	binary.LittleEndian.PutUint16(out[4:], version)
	// Deterministic field order, as in every writer: equal states have equal bytes.
	out, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(out, message)
	if err != nil {
		return nil, err
	}
	binary.LittleEndian.PutUint32(out[6:], checksum(version, out[envelopeLen:]))
	return out, nil
}

// unwrap checks the envelope and the number of repeated fields before protobuf decodes the content.
func unwrap(object, magic string, bytesMax int, counts []count, bytes []byte, message proto.Message) error {
	body, err := opened(object, magic, bytesMax, bytes)
	if err != nil {
		return err
	}
	if err := checkCounts(object, counts, body); err != nil {
		return err
	}
	if err := proto.Unmarshal(body, message); err != nil {
		return content(object, "%v", err)
	}
	return nil
}

// opened checks the envelope and returns the message in it.
func opened(object, magic string, bytesMax int, bytes []byte) ([]byte, error) {
	if len(bytes) > bytesMax {
		return nil, fmt.Errorf("%s of %d bytes, more than the maximum of %d: %w", object, len(bytes), bytesMax, ErrTooLarge)
	}
	if len(bytes) < envelopeLen {
		return nil, fmt.Errorf("%s of %d bytes: %w", object, len(bytes), ErrShort)
	}
	if string(bytes[:4]) != magic {
		return nil, fmt.Errorf("%s begins with %q, not with %q: %w", object, bytes[:4], magic, ErrMagic)
	}
	version, body := binary.LittleEndian.Uint16(bytes[4:]), bytes[envelopeLen:]
	newest := uint16(FormatVersion)
	switch magic {
	case manifestMagic:
		newest = sourcesVersion
	case bufferMagic:
		newest = bufferVersion
	case cursorMagic:
		newest = cursorVersion
	}
	if version == 0 || version > newest {
		return nil, fmt.Errorf("%s of format version %d: %w", object, version, ErrVersion)
	}
	if stated := binary.LittleEndian.Uint32(bytes[6:]); stated != checksum(version, body) {
		return nil, fmt.Errorf("%s: %w", object, ErrChecksum)
	}
	return body, nil
}

// content is the error for an object with a valid checksum that breaks a rule of the format.
func content(object, format string, arguments ...any) error {
	return fmt.Errorf("%s: %w: %s", object, ErrContent, fmt.Sprintf(format, arguments...))
}

func sixteen(object, field string, bytes []byte) ([16]byte, error) {
	if len(bytes) != 16 {
		return [16]byte{}, content(object, "%s has %d bytes instead of 16", field, len(bytes))
	}
	return [16]byte(bytes), nil
}
