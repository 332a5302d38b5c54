package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	"github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/mod/modfile"
)

var dockerfiles = []string{"Dockerfile", "minio.Dockerfile"}

// noRegistry stands for the registry, which only a build needs: every image exists and has no metadata.
type noRegistry struct{}

func (noRegistry) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	image := ocispecs.Image{Platform: ocispecs.Platform{OS: "linux", Architecture: "amd64"}}
	config, err := json.Marshal(image)
	return ref, digest.FromBytes(config), config, err
}

func TestBuildkitHasNothingAgainstTheDockerfiles(t *testing.T) {
	for _, name := range dockerfiles {
		source := []byte(read(t, "..", name))
		sources := llb.NewSourceMap(nil, name, "Dockerfile", source)
		sources.Definition = &llb.Definition{}
		options := dockerfile2llb.ConvertOpt{MetaResolver: noRegistry{}, SourceMap: sources}
		result, err := dockerfile2llb.DockerfileLint(t.Context(), source, options)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, warning := range result.Warnings {
			t.Errorf("%s: %s: %s", name, warning.RuleName, warning.Detail)
		}
		if result.Error != nil {
			t.Errorf("%s: %s", name, result.Error.Message)
		}
	}
}

// stages returns a Dockerfile's stages, and the arguments before the first one.
func stages(t *testing.T, name string) ([]instructions.Stage, []instructions.ArgCommand) {
	t.Helper()
	parsed, err := parser.Parse(strings.NewReader(read(t, "..", name)))
	if err != nil {
		t.Fatal(err)
	}
	stages, arguments, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{}))
	if err != nil {
		t.Fatal(err)
	}
	return stages, arguments
}

func only[T instructions.Command](t *testing.T, stage instructions.Stage) T {
	t.Helper()
	var found []T
	for _, command := range stage.Commands {
		if one, ok := command.(T); ok {
			found = append(found, one)
		}
	}
	if len(found) != 1 {
		t.Fatalf("stage %s has %d of %T", stage.BaseName, len(found), *new(T))
	}
	return found[0]
}

// BuildKit takes an unknown stage for an image with that name.
func TestCopiedFilesComeFromAnEarlierStage(t *testing.T) {
	for _, name := range dockerfiles {
		stages, _ := stages(t, name)
		made := map[string]string{}
		for _, stage := range stages {
			for _, command := range stage.Commands {
				switch command := command.(type) {
				case *instructions.RunCommand:
					made[stage.Name] += strings.Join(command.CmdLine, " ")
				case *instructions.CopyCommand:
					for _, path := range command.SourcePaths {
						if command.From != "" && !strings.Contains(made[command.From], filepath.Dir(path)) {
							t.Errorf("%s: stage %q does not make %s", name, command.From, path)
						}
					}
				}
			}
		}
	}
}

func TestImagesDoNotRunAsRoot(t *testing.T) {
	for _, name := range dockerfiles {
		stages, _ := stages(t, name)
		if user := only[*instructions.UserCommand](t, stages[len(stages)-1]).User; user != "65532:65532" {
			t.Errorf("%s: the user is %s", name, user)
		}
	}
}

func TestTheImageExposesTheProgramsPorts(t *testing.T) {
	stages, _ := stages(t, "Dockerfile")
	exposed := only[*instructions.ExposeCommand](t, stages[len(stages)-1]).Ports
	port := func(command, flag string) string {
		_, port, _ := strings.Cut(defaultOf(t, command, flag), ":")
		return port
	}
	want := []string{port("gateway", "--listen"), port("gateway", "--listen-http"), port("gateway", "--admin"), port("consume", "--admin")}
	if !slices.Equal(exposed, want) {
		t.Errorf("%v are exposed, %v listened on", exposed, want)
	}
}

func TestVersionsAreThoseOfTheTree(t *testing.T) {
	_, arguments := stages(t, "Dockerfile")
	manifest := read(t, root, "Cargo.toml")
	if rust := *arguments[0].Args[0].Value; !strings.Contains(manifest, `rust-version = "`+rust+`"`) {
		t.Errorf("the Dockerfile builds with Rust %s, Cargo.toml says otherwise", rust)
	}
	pin := regexp.MustCompile(`v0\.0\.0-[0-9]{14}-[0-9a-f]{12}`).FindString(read(t, root, "scripts", "install-minio.sh"))
	if pin == "" || !strings.Contains(read(t, "..", "minio.Dockerfile"), "github.com/minio/minio@"+pin+" ") {
		t.Errorf("minio.Dockerfile does not build MinIO %s, which the tests run", pin)
	}
	version := regexp.MustCompile(`(?m)^version = "([^"]+)"`).FindStringSubmatch(manifest)[1]
	for file, line := range map[string]string{
		"../compose.yaml":                   "image: millpond:" + version + "\n",
		chartFolder + "/Chart.yaml":         `appVersion: "` + version + "\"\n",
		"../Dockerfile":                     "-t millpond:" + version + " ",
		filepath.Join(root, "CHANGELOG.md"): "## [" + version + "]",
	} {
		if !strings.Contains(read(t, file), line) {
			t.Errorf("%s does not have %q", file, strings.TrimSpace(line))
		}
	}
}

// buildContext copies the part of the tree that the build may see.
func buildContext(t *testing.T) string {
	t.Helper()
	patterns, err := ignorefile.ReadAll(strings.NewReader(read(t, "..", "Dockerfile.dockerignore")))
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	target := t.TempDir()
	err = filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		file, relative := filepath.Rel(root, path)
		if err := errors.Join(err, relative); err != nil || file == "." {
			return err
		}
		out, err := ignored.MatchesOrParentMatches(filepath.ToSlash(file))
		if err != nil {
			return err
		}
		// No pattern includes anything again inside an excluded folder.
		if out && entry.IsDir() {
			return filepath.SkipDir
		}
		if out {
			return nil
		}
		if entry.IsDir() {
			return os.Mkdir(filepath.Join(target, file), 0o700)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(target, file), content, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// Without this test, only a build would show that it does not see a crate.
func TestTheBuildSeesTheWholeWorkspaceAndLittleElse(t *testing.T) {
	seen := buildContext(t)
	metadata := exec.CommandContext(t.Context(), "cargo", "metadata", "--locked", "--offline", "--no-deps", "--format-version=1")
	metadata.Dir = seen
	out, err := metadata.Output()
	if err != nil {
		t.Fatalf("cargo metadata: %v: %s", err, err.(*exec.ExitError).Stderr)
	}
	var workspace struct {
		Packages []struct {
			Name    string
			Targets []struct {
				SrcPath string `json:"src_path"`
			}
		}
	}
	if err := json.Unmarshal(out, &workspace); err != nil {
		t.Fatal(err)
	}
	targets := 0
	for _, crate := range workspace.Packages {
		for _, target := range crate.Targets {
			targets++
			if _, err := os.Stat(target.SrcPath); err != nil {
				t.Errorf("%s: %v", crate.Name, err)
			}
		}
	}
	if targets < 20 {
		t.Errorf("%d targets are no workspace", targets)
	}
	for _, elsewhere := range []string{"design", "tests", "otel-exporter", "deploy", ".git"} {
		if _, err := os.Stat(filepath.Join(seen, elsewhere)); err == nil {
			t.Errorf("the build sees %s/, which it does not need", elsewhere)
		}
	}
}

func TestThisModuleNeedsNoNewerGoThanTheTree(t *testing.T) {
	parsed, err := modfile.ParseLax("go.mod", []byte(read(t, "go.mod")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(parsed.Go.Version, "1.26") {
		t.Errorf("go %s: CONTRIBUTING.md says Go 1.26", parsed.Go.Version)
	}
}
