package manifest

import (
	"math"

	"github.com/oklog/ulid/v2"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
	"millpond.dev/otel-exporter/internal/segment"
)

const manifestMagic = "MPMF"

// Encode returns the object's bytes.
func (m *Manifest) Encode() ([]byte, error) {
	version := uint16(FormatVersion)
	if len(m.Clients)+len(m.Keys) > 0 {
		version = clientsVersion
	}
	if len(m.Sources) > 0 {
		version = sourcesVersion
	}
	return wrapVersion(manifestMagic, version, &manifestpb.Manifest{
		BufferId:      m.BufferID[:],
		Shard:         m.Shard,
		Version:       m.Stamp.Version,
		WriterNonce:   m.Stamp.Nonce,
		FirstSequence: m.FirstSequence,
		NextSequence:  m.NextSequence,
		OrphanFloorMs: m.OrphanFloorMs,
		Streams:       encodeAll(m.Streams, encodeStream),
		Pages:         encodeAll(m.Pages, encodeReference),
		Tail:          encodeAll(m.Tail, encodeEntry),
		Producers:     encodeAll(m.Producers, encodeProducer),
		Leader:        encodeLeader(m.Leader),
		Clients:       encodeAll(m.Clients, encodeClient),
		Keys:          encodeAll(m.Keys, encodeClient),
		Sources:       encodeAll(m.Sources, encodeSource),
	})
}

// Decode reads and checks a manifest's bytes.
func Decode(bytes []byte) (*Manifest, error) {
	const object = "manifest"
	message := &manifestpb.Manifest{}
	if err := unwrap(object, manifestMagic, logBytesMax, manifestCounts, bytes, message); err != nil {
		return nil, err
	}
	m := &Manifest{
		Shard:         message.Shard,
		Stamp:         Stamp{message.Version, message.WriterNonce},
		FirstSequence: message.FirstSequence,
		NextSequence:  message.NextSequence,
		OrphanFloorMs: message.OrphanFloorMs,
	}
	id, err := sixteen(object, "buffer_id", message.BufferId)
	if err != nil {
		return nil, err
	}
	m.BufferID = id
	if m.Streams, err = decodeAll(object, message.Streams, decodeStream); err != nil {
		return nil, err
	}
	if m.Pages, err = decodeAll(object, message.Pages, decodeReference); err != nil {
		return nil, err
	}
	if m.Tail, err = decodeAll(object, message.Tail, decodeEntry); err != nil {
		return nil, err
	}
	if m.Producers, err = decodeAll(object, message.Producers, decodeProducer); err != nil {
		return nil, err
	}
	if m.Leader, err = decodeLeader(object, message.Leader); err != nil {
		return nil, err
	}
	if m.Clients, err = decodeAll(object, message.Clients, decodeClient); err != nil {
		return nil, err
	}
	if m.Keys, err = decodeAll(object, message.Keys, decodeClient); err != nil {
		return nil, err
	}
	if m.Sources, err = decodeAll(object, message.Sources, decodeSource); err != nil {
		return nil, err
	}
	if reason := m.Check(); reason != "" {
		return nil, content(object, "%s", reason)
	}
	return m, nil
}

// checkReadable returns the reason why readers would refuse this state, whose bytes are given.
func (m *Manifest) checkReadable(bytes []byte) error {
	const object = "manifest"
	if len(bytes) > logBytesMax {
		return content(object, "it has more than the maximum of %d bytes", logBytesMax)
	}
	if reason := m.Check(); reason != "" {
		return content(object, "%s", reason)
	}
	return checkCounts(object, manifestCounts, bytes[envelopeLen:])
}

func encodeAll[T any, M any](all []T, encode func(*T) *M) []*M {
	messages := make([]*M, len(all))
	for i := range all {
		messages[i] = encode(&all[i])
	}
	return messages
}

func decodeAll[T any, M any](object string, messages []*M, decode func(string, *M) (T, error)) ([]T, error) {
	all := make([]T, len(messages))
	for i, message := range messages {
		var err error
		if all[i], err = decode(object, message); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func encodeStream(stream *Stream) *manifestpb.Stream {
	return &manifestpb.Stream{Name: stream.Name, Encoding: manifestpb.Encoding(stream.Encoding)}
}

func decodeStream(object string, message *manifestpb.Stream) (Stream, error) {
	encoding := segment.Encoding(message.Encoding)
	if manifestpb.Encoding(encoding) != message.Encoding || !encoding.Known() {
		return Stream{}, content(object, "stream %q has the unknown encoding %d", message.Name, message.Encoding)
	}
	if err := segment.CheckStreamName(message.Name); err != nil {
		return Stream{}, content(object, "%v", err)
	}
	return Stream{message.Name, encoding}, nil
}

func encodeReference(reference *PageReference) *manifestpb.PageReference {
	return &manifestpb.PageReference{
		First:    reference.First,
		Last:     reference.Last,
		Page:     reference.Page[:],
		Bytes:    reference.Bytes,
		Messages: reference.Messages,
		Records:  reference.Records,
	}
}

func decodeReference(object string, message *manifestpb.PageReference) (PageReference, error) {
	page, err := sixteen(object, "pages.page", message.Page)
	return PageReference{
		message.First, message.Last, page, message.Bytes, message.Messages, message.Records,
	}, err
}

func encodeEntry(entry *Entry) *manifestpb.Entry {
	return &manifestpb.Entry{
		Segment:       entry.Segment[:],
		Size:          entry.Size,
		CommittedAtMs: entry.CommittedAtMs,
		Parts:         encodeAll(entry.Parts, encodePart),
	}
}

func decodeEntry(object string, message *manifestpb.Entry) (Entry, error) {
	name, err := sixteen(object, "entry.segment", message.Segment)
	if err != nil {
		return Entry{}, err
	}
	entry := Entry{ulid.ULID(name), message.Size, message.CommittedAtMs, nil}
	entry.Parts, err = decodeAll(object, message.Parts, decodePart)
	return entry, err
}

func encodePart(part *Part) *manifestpb.Part {
	return &manifestpb.Part{
		Stream:            part.Stream,
		Offset:            part.Offset,
		Length:            part.Length,
		RawLen:            part.RawLen,
		Messages:          part.Messages,
		Records:           part.Records,
		FirstReceivedAtUs: part.FirstUs,
		// The subtraction wraps to the right difference: the last time is never before the first.
		ReceivedSpanUs: uint64(part.LastUs) - uint64(part.FirstUs),
	}
}

func decodePart(object string, message *manifestpb.Part) (Part, error) {
	last := int64(uint64(message.FirstReceivedAtUs) + message.ReceivedSpanUs)
	if uint64(last)-uint64(message.FirstReceivedAtUs) != message.ReceivedSpanUs || last < message.FirstReceivedAtUs {
		return Part{}, content(object, "received_span_us %d overflows", message.ReceivedSpanUs)
	}
	return Part{
		message.Stream, message.Offset, message.Length, message.RawLen,
		message.Messages, message.Records, message.FirstReceivedAtUs, last,
	}, nil
}

func encodeProducer(row *ProducerRow) *manifestpb.Producer {
	message := &manifestpb.Producer{
		Id:            row.ID[:],
		Commit:        row.Commit,
		FirstSequence: row.FirstSequence,
		Count:         row.Count,
		SeenAtMs:      row.SeenAtMs,
	}
	if row.Certificate != (Fingerprint{}) {
		message.Certificate = row.Certificate[:]
	}
	return message
}

func decodeProducer(object string, message *manifestpb.Producer) (ProducerRow, error) {
	id, err := sixteen(object, "producers.id", message.Id)
	if err != nil {
		return ProducerRow{}, err
	}
	row := ProducerRow{
		ID:            id,
		Commit:        message.Commit,
		FirstSequence: message.FirstSequence,
		Count:         message.Count,
		SeenAtMs:      message.SeenAtMs,
	}
	if length := len(message.Certificate); length != 0 && length != len(row.Certificate) {
		return ProducerRow{}, content(object, "producers.certificate has %d bytes, not %d", length, len(row.Certificate))
	}
	copy(row.Certificate[:], message.Certificate)
	return row, nil
}

func encodeClient(row *ClientRow) *manifestpb.Client {
	return &manifestpb.Client{
		Id:       row.ID[:],
		Epoch:    row.Epoch,
		Last:     row.Last,
		Sequence: row.Sequence,
		SeenAtMs: row.SeenAtMs,
		Checksum: row.Checksum,
	}
}

func decodeClient(object string, message *manifestpb.Client) (ClientRow, error) {
	id, err := sixteen(object, "clients.id", message.Id)
	if err != nil {
		return ClientRow{}, err
	}
	if message.Epoch > math.MaxUint16 {
		return ClientRow{}, content(object, "clients.epoch %d has more than 16 bits", message.Epoch)
	}
	return ClientRow{id, message.Epoch, message.Last, message.Sequence, message.SeenAtMs, message.Checksum}, nil
}

func encodeLeader(leader *Leader) *manifestpb.Leader {
	if leader == nil {
		return nil
	}
	return &manifestpb.Leader{
		Producer: leader.Producer[:],
		Term:     leader.Term,
		Shared:   leader.Shared,
		Address:  leader.Address,
	}
}

func decodeLeader(object string, message *manifestpb.Leader) (*Leader, error) {
	if message == nil {
		return nil, nil
	}
	producer, err := sixteen(object, "leader.producer", message.Producer)
	if err != nil {
		return nil, err
	}
	return &Leader{producer, message.Term, message.Shared, message.Address}, nil
}

func encodeSource(row *SourceRow) *manifestpb.Source {
	return &manifestpb.Source{
		Source:      row.Of.Source,
		Topic:       row.Of.Topic,
		Partition:   row.Of.Partition,
		Stream:      row.Of.Stream,
		Shard:       row.Shard,
		Incarnation: row.Incarnation,
		Next:        row.Next,
		SeenAtMs:    row.SeenAtMs,
	}
}

func decodeSource(_ string, message *manifestpb.Source) (SourceRow, error) {
	of := SourcePartition{message.Source, message.Topic, message.Partition, message.Stream}
	return SourceRow{of, message.Shard, message.Incarnation, message.Next, message.SeenAtMs}, nil
}
