package deploy

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/github/go-spdx/v2/spdxexp"
	"github.com/google/licensecheck"
)

// rules returns the part of deny.toml that these tests enforce.
func rules(t *testing.T) (rules struct {
	Graph      struct{ Targets []string }
	Advisories struct{ Yanked, Unmaintained, Unsound string }
	Licenses   struct{ Allow []string }
	Bans       struct {
		Deny []struct{ Crate, Reason string }
	}
}) {
	t.Helper()
	if _, err := toml.DecodeFile(filepath.Join(root, "deny.toml"), &rules); err != nil {
		t.Fatal(err)
	}
	if len(rules.Licenses.Allow) == 0 || len(rules.Bans.Deny) == 0 {
		t.Fatal("deny.toml has no licenses or no bans")
	}
	return rules
}

// output returns the output of a program, which must succeed.
func output(t *testing.T, folder, name string, arguments ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), name, arguments...)
	command.Dir = folder
	out, err := command.Output()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(arguments, " "), err, ended.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return out
}

type crate struct {
	Name, Version, License, Source string
	Dependencies                   []struct{ Name, Req, Path string }
}

// crates returns every crate that a build for deny.toml's target may need, including those of tests.
func crates(t *testing.T) []crate {
	t.Helper()
	var metadata struct{ Packages []crate }
	out := output(t, root, "cargo", "metadata", "--locked", "--format-version=1",
		"--filter-platform", rules(t).Graph.Targets[0])
	if err := json.Unmarshal(out, &metadata); err != nil {
		t.Fatal(err)
	}
	if len(metadata.Packages) < 100 {
		t.Fatalf("%d crates are not all", len(metadata.Packages))
	}
	return metadata.Packages
}

func TestEveryCrateMayBeShipped(t *testing.T) {
	allowed := rules(t).Licenses.Allow
	for _, crate := range crates(t) {
		// The notation from before 2018.
		expression := regexp.MustCompile(` */ *`).ReplaceAllString(crate.License, " OR ")
		if ok, err := spdxexp.Satisfies(expression, allowed); !ok {
			t.Errorf("%s %s: the licence is %q, which deny.toml does not allow (%v)",
				crate.Name, crate.Version, crate.License, err)
		}
	}
}

// Without the database, the script reports that nothing was checked; a release that requires the check fails.
func TestAdvisoriesAreErrorsAndSkippingThemIsReported(t *testing.T) {
	if a := rules(t).Advisories; a.Yanked != "deny" || a.Unmaintained != "all" || a.Unsound != "all" {
		t.Errorf("deny.toml: %+v", a)
	}
	check := func(variables ...string) (string, int) {
		command := exec.CommandContext(t.Context(), filepath.Join(root, "scripts", "advisories.sh"))
		command.Env = append(os.Environ(), append(variables, "CARGO_NET_OFFLINE=true", "CARGO_HOME="+t.TempDir())...)
		printed, _ := command.CombinedOutput()
		return string(printed), command.ProcessState.ExitCode()
	}
	if printed, code := check(); code != 0 || !strings.HasPrefix(printed, "advisories: NOT CHECKED: ") {
		t.Errorf("%d: %s", code, printed)
	}
	if printed, code := check("MILLPOND_ADVISORIES=required"); code == 0 || !strings.Contains(printed, "NOT CHECKED") {
		t.Errorf("%d: %s", code, printed)
	}
}

func TestNoCrateIsBannedOrFromElsewhere(t *testing.T) {
	for _, crate := range crates(t) {
		for _, banned := range rules(t).Bans.Deny {
			if crate.Name == banned.Crate {
				t.Errorf("%s %s: %s", crate.Name, crate.Version, banned.Reason)
			}
		}
		ours := crate.Source == ""
		if !ours && crate.Source != "registry+https://github.com/rust-lang/crates.io-index" {
			t.Errorf("%s %s comes from %s", crate.Name, crate.Version, crate.Source)
		}
		for _, dependency := range crate.Dependencies {
			if ours && dependency.Req == "*" && dependency.Path == "" {
				t.Errorf("%s takes any version of %s", crate.Name, dependency.Name)
			}
		}
	}
}

// Every module that a Go program links has its licence as a text in the module's folder.
func TestEveryGoModuleMayBeShipped(t *testing.T) {
	allowed := rules(t).Licenses.Allow
	type module struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path string }
	}
	out := output(t, filepath.Join(root, "otel-exporter"), "go", "list", "-deps", "-json=Module", "./...")
	seen := map[string]bool{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var listed struct{ Module *module }
		if err := decoder.Decode(&listed); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		module := listed.Module
		if module == nil || module.Main || seen[module.Path] {
			continue
		}
		seen[module.Path] = true
		if module.Replace != nil {
			t.Errorf("%s is replaced by %s", module.Path, module.Replace.Path)
		}
		files, err := filepath.Glob(filepath.Join(module.Dir, "[LlCc][IiOo][CcPp][EeYy]*"))
		if err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range licensecheck.Scan(text).Match {
				found = append(found, match.ID)
			}
		}
		bad := slices.ContainsFunc(found, func(id string) bool { return !slices.Contains(allowed, id) })
		if len(found) == 0 || bad {
			t.Errorf("%s %s: the licences are %v (%v), which deny.toml does not allow", module.Path, module.Version, found, files)
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d modules are not all", len(seen))
	}
}
