package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"

	"millpond.dev/otel-exporter/internal/manifest/manifestpb"
)

func TestTheGoldenBuffersAreReadAndWrittenAlike(t *testing.T) {
	id := uuid.MustParse("01234567-89ab-cdef-fedc-ba9876543210")
	for name, want := range map[string]Buffer{
		"buffer-v1":               {id, 3, 2, 0xfedc_ba98_7654_3210, nil},
		"buffer-v1-before-growth": {id, 3, 0, 0, nil},
	} {
		golden, err := os.ReadFile(filepath.Join("..", "..", "..", "manifest", "testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		found, err := DecodeBuffer(golden)
		if err != nil || !reflect.DeepEqual(*found, want) {
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

func TestTheRoutesOfAGoldenBufferAreRead(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("..", "..", "..", "manifest", "testdata", "buffer-v2"))
	if err != nil {
		t.Fatal(err)
	}
	id := uuid.MustParse("01234567-89ab-cdef-fedc-ba9876543210")
	want := Buffer{id, 3, 2, 0xfedc_ba98_7654_3210, map[string]uint32{"events.order": 2, "acme.clicks": 3}}
	if found, err := DecodeBuffer(golden); err != nil || !reflect.DeepEqual(*found, want) {
		t.Fatalf("%+v, %v", found, err)
	}
}

func TestARouteThatBreaksARuleIsAnError(t *testing.T) {
	id := uuid.MustParse("01234567-89ab-cdef-fedc-ba9876543210")
	many := make([]*manifestpb.RoutedStream, RoutedMax+1)
	for i := range many {
		many[i] = &manifestpb.RoutedStream{Stream: fmt.Sprint("e", i), Shards: 1}
	}
	for words, routed := range map[string][]*manifestpb.RoutedStream{
		"over 4 shards: the buffer has 3": {{Stream: "a", Shards: 4}},
		"over 0 shards":                   {{Stream: "a"}},
		"routed twice":                    {{Stream: "a", Shards: 1}, {Stream: "a", Shards: 1}},
		"stream : ":                       {{Shards: 1}},
		"maximum of 256 routed streams":   many,
	} {
		encoded, err := wrap(bufferMagic, &manifestpb.Buffer{BufferId: id[:], Shards: 3, Routed: routed})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeBuffer(encoded); !errors.Is(err, ErrContent) || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v", words, err)
		}
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
	if found, err := DecodeBuffer(encoded); err != nil || !reflect.DeepEqual(*found, Buffer{id, 3, 2, 7, nil}) {
		t.Fatalf("%+v, %v", found, err)
	}
}
