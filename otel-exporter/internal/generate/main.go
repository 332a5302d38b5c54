// Generate writes the Go code of the project's protobuf files without protoc: it compiles the files and passes them to
// protoc-gen-go's generator. Run `go generate ./...` in otel-exporter/. With -check it verifies that the checked-in
// code is current.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

// A source is a .proto file of a Rust crate and the Go package generated from it. The file names no Go package.
type source struct {
	folder, file string // relative to the repository
	target       string // folder, relative to otel-exporter/
}

const module = "millpond.dev/otel-exporter/"

var sources = []source{
	{"manifest/proto", "manifest.proto", "internal/manifest/manifestpb"},
	{"segment/proto", "segment.proto", "internal/segment/segmentpb"},
	{"peer/proto", "peer.proto", "internal/peer/peerpb"},
}

func main() {
	repository := flag.String("repository", "../../..", "root of the project")
	check := flag.Bool("check", false, "write nothing; fail if a file is out of date")
	flag.Parse()
	for _, source := range sources {
		if err := generate(*repository, source, *check); err != nil {
			fmt.Fprintf(os.Stderr, "generate: %s/%s: %v\n", source.folder, source.file, err)
			os.Exit(1)
		}
	}
}

func generate(repository string, source source, check bool) error {
	compiler := protocompile.Compiler{
		Resolver:       &protocompile.SourceResolver{ImportPaths: []string{filepath.Join(repository, source.folder)}},
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(context.Background(), source.file)
	if err != nil {
		return err
	}
	parameter := fmt.Sprintf("module=%s,M%s=%s%s", module[:len(module)-1], source.file, module, source.target)
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{source.file},
		Parameter:      &parameter,
		ProtoFile:      []*descriptorpb.FileDescriptorProto{protoutil.ProtoFromFileDescriptor(files[0])},
	}
	plugin, err := protogen.Options{}.New(request)
	if err != nil {
		return err
	}
	for _, file := range plugin.Files {
		internal_gengo.GenerateFile(plugin, file)
	}
	response := plugin.Response()
	if response.Error != nil {
		return fmt.Errorf("%s", *response.Error)
	}
	for _, file := range response.File {
		path := filepath.Join(repository, "otel-exporter", file.GetName())
		if err := put(path, []byte(file.GetContent()), check); err != nil {
			return err
		}
	}
	return nil
}

func put(path string, content []byte, check bool) error {
	if check {
		found, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(found, content) {
			return fmt.Errorf("%s is out of date: run go generate ./... in otel-exporter", path)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
