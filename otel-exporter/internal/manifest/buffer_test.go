package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
)

func TestTheGoldenBuffersAreReadAndWrittenAlike(t *testing.T) {
	id := uuid.MustParse("01234567-89ab-cdef-fedc-ba9876543210")
	for name, want := range map[string]Buffer{
		"buffer-v1":               {id, 3, 2, 0xfedc_ba98_7654_3210},
		"buffer-v1-before-growth": {id, 3, 0, 0},
	} {
		golden, err := os.ReadFile(filepath.Join("..", "..", "..", "manifest", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		found, err := DecodeBuffer(golden)
		if err != nil || *found != want {
			t.Fatalf("%s: %+v, %v", name, found, err)
		}
		if again, err := want.Encode(); err != nil || !bytes.Equal(again, golden) {
			t.Fatalf("%s: written as %x, %v", name, again, err)
		}
	}
	if new := NewBuffer(id, 3); new.Version != 1 || new.Nonce != 0xfedc_ba98_7654_3210 {
		t.Fatalf("%+v", new)
	}
}

// Later programs add fields to the object.
func TestFieldsOfLaterProgramsAreIgnored(t *testing.T) {
	id := uuid.MustParse("01234567-89ab-cdef-fedc-ba9876543210")
	message := &manifestpb.Buffer{BufferId: id[:], Shards: 3, Version: 2, WriterNonce: 7}
	later := protowire.AppendVarint(protowire.AppendTag(nil, 100, protowire.VarintType), 1)
	later = protowire.AppendBytes(protowire.AppendTag(later, 101, protowire.BytesType), []byte("later"))
	message.ProtoReflect().SetUnknown(later)
	encoded, err := wrap(bufferMagic, message)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := DecodeBuffer(encoded); err != nil || *found != (Buffer{id, 3, 2, 7}) {
		t.Fatalf("%+v, %v", found, err)
	}
}
