package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// project loads and validates the compose file, as `docker compose config` does, without this machine's variables.
func project(t *testing.T) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose.yaml"}, cli.WithResolvedPaths(true), cli.WithConsistency(true))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

// ours returns the services that run the program.
func ours(t *testing.T) map[string]types.ServiceConfig {
	t.Helper()
	found := map[string]types.ServiceConfig{}
	for name, service := range project(t).Services {
		if service.Build != nil && strings.HasSuffix(service.Build.Dockerfile, "deploy/Dockerfile") {
			found[name] = service
		}
	}
	if len(found) != 3 {
		t.Fatalf("gateway, consumer and load were expected: %v", found)
	}
	return found
}

func composed(name string, service types.ServiceConfig) commandLine {
	environment := map[string]string{}
	for variable, value := range service.Environment {
		environment[variable] = *value
	}
	return commandLine{"compose.yaml, " + name, service.Command, environment}
}

func TestTheProgramTakesTheComposeFilesCommandLines(t *testing.T) {
	for name, service := range ours(t) {
		composed(name, service).check(t)
	}
}

func TestComposeServicesFitTheirPrograms(t *testing.T) {
	for name, service := range ours(t) {
		command := composed(name, service)
		if !service.ReadOnly || !slices.Equal(service.CapDrop, []string{"ALL"}) {
			t.Errorf("%s has rights that it does not need", name)
		}
		if command.arguments[0] == "load" {
			continue
		}
		if limit, needed := int64(service.MemLimit), residentMax(command.memory(t)); limit < needed {
			t.Errorf("%s: %d bytes are allowed and %d may be needed", name, limit, needed)
		}
		if grace, needed := time.Duration(*service.StopGracePeriod), command.stopping(t); grace <= needed {
			t.Errorf("%s: a grace of %v, and it may take %v", name, grace, needed)
		}
		var listened []string
		for _, flag := range []string{"--listen", "--listen-http", "--admin"} {
			if port := command.port(flag); port != "" {
				listened = append(listened, port)
			}
		}
		var published []string
		for _, port := range service.Ports {
			published = append(published, port.Published)
		}
		if slices.Sort(published); !slices.Equal(listened, published) {
			t.Errorf("%s listens on %v and publishes %v", name, listened, published)
		}
	}
}

func TestEachComposeServiceHasItsOwnSecrets(t *testing.T) {
	seen := map[string]bool{}
	for name, service := range ours(t) {
		for _, file := range service.EnvFiles {
			if seen[file.Path] {
				t.Errorf("%s shares %s", name, file.Path)
			}
			seen[file.Path] = true
		}
		_, password := service.Environment["MILLPOND_CLICKHOUSE_PASSWORD"]
		_, key := service.Environment["AWS_SECRET_ACCESS_KEY"]
		if password != (name == "consumer") || key != (name != "load") {
			t.Errorf("%s: ClickHouse's password %v, the store's key %v", name, password, key)
		}
	}
	if len(seen) != 2 {
		t.Errorf("%d environment files", len(seen))
	}
}

func TestNothingOfTheComposeFileIsOpenToOtherMachines(t *testing.T) {
	for name, service := range project(t).Services {
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
		}
	}
}

func TestComposeServicesFindEachOther(t *testing.T) {
	loaded := project(t)
	host := regexp.MustCompile(`https?://([a-z]+):([0-9]+)`)
	ports := map[string][]string{"minio": {"9000"}, "clickhouse": {"8123"}, "gateway": {"4317", "4318"}}
	for name, service := range loaded.Services {
		texts := slices.Clone([]string(service.Command))
		for _, value := range service.Environment {
			texts = append(texts, *value)
		}
		for _, found := range host.FindAllStringSubmatch(strings.Join(texts, " "), -1) {
			if _, ok := loaded.Services[found[1]]; !ok || !slices.Contains(ports[found[1]], found[2]) {
				t.Errorf("%s looks for %s", name, found[0])
			}
		}
	}
}

func TestEveryImageHasAVersion(t *testing.T) {
	for name, service := range project(t).Services {
		_, tag, ok := strings.Cut(filepath.Base(service.Image), ":")
		if !ok || tag == "latest" || !strings.ContainsAny(tag, "0123456789") {
			t.Errorf("%s: image %s", name, service.Image)
		}
	}
}
