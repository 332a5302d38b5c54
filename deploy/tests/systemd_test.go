package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var units = []string{"millpond-gateway.service", "millpond-consumer.service"}

// setting returns the last value of a unit's setting.
func setting(unit, name string) string {
	found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(unit, -1)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1][1]
}

// started returns a unit's command line, with its settings file from the tree.
func started(t *testing.T, name string) commandLine {
	t.Helper()
	words := strings.Fields(setting(read(t, "../systemd", name), "ExecStart"))
	if words[0] != "/usr/bin/millpond" {
		t.Fatalf("%s starts %s", name, words[0])
	}
	for i, word := range words {
		if word == "/etc/millpond/millpond.toml" {
			words[i] = settingsFile(t)
		}
	}
	return commandLine{where: name, arguments: words[1:]}
}

// settingsFile returns the settings file with a buffer that cannot be opened and free ports.
func settingsFile(t *testing.T) string {
	t.Helper()
	text := read(t, "../systemd/millpond.toml")
	text = regexp.MustCompile(`(?m)^buffer = .*$`).ReplaceAllString(text, `buffer = "file:///dev/null/buffer"`)
	text = regexp.MustCompile(`127\.0\.0\.1:[0-9]+`).ReplaceAllString(text, "127.0.0.1:0")
	file := filepath.Join(t.TempDir(), "millpond.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// configured returns a key of one of the settings file's tables.
func configured(t *testing.T, table, key string) string {
	t.Helper()
	_, text, _ := strings.Cut(read(t, "../systemd/millpond.toml"), "["+table+"]")
	text, _, _ = strings.Cut(text, "\n[")
	found := regexp.MustCompile(`(?m)^` + key + ` = "(.*)"$`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("millpond.toml has no %s in [%s]", key, table)
	}
	return found[1]
}

func TestTheProgramTakesTheUnitsCommandLines(t *testing.T) {
	for _, name := range units {
		started(t, name).check(t)
	}
	tls := started(t, "millpond-gateway-tls.conf")
	tls.check(t)
	for _, flag := range []string{"--tls-cert", "--tls-key", "--tokens"} {
		file, _ := tls.value(flag)
		// A copy that systemd makes at the start would not change when a token is revoked.
		if !strings.HasPrefix(file, "/etc/millpond/gateway/") {
			t.Errorf("%s %s: it is not read in place", flag, file)
		}
	}
	if setting(read(t, "../systemd/millpond-gateway-tls.conf"), "SupplementaryGroups") == "" {
		t.Error("a separate user cannot read them")
	}
}

func TestEachUnitHasItsOwnSecrets(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range units {
		file := setting(read(t, "../systemd", name), "EnvironmentFile")
		if file == "" || seen[file] {
			t.Errorf("%s: EnvironmentFile is %q", name, file)
		}
		seen[file] = true
	}
}

func TestUnitsFitTheirPrograms(t *testing.T) {
	for _, name := range units {
		unit, command := read(t, "../systemd", name), started(t, name)
		table := command.arguments[0]
		command.arguments = append(command.arguments,
			"--drain-timeout", configured(t, table, "drain_timeout"), "--memory-limit", configured(t, table, "memory_limit"))
		stop, err := time.ParseDuration(setting(unit, "TimeoutStopSec"))
		if err != nil {
			t.Fatal(err)
		}
		if needed := command.stopping(t); stop <= needed {
			t.Errorf("%s: TimeoutStopSec is %v, and it may take %v", name, stop, needed)
		}
		if limit, needed := bytesOf(t, setting(unit, "MemoryMax")), residentMax(command.memory(t)); limit < needed {
			t.Errorf("%s: %d bytes are allowed and %d may be needed", name, limit, needed)
		}
		for _, hardened := range []string{
			"DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=yes", "PrivateDevices=yes",
			"MemoryDenyWriteExecute=yes", "CapabilityBoundingSet=", "SystemCallFilter=@system-service",
		} {
			if !strings.Contains(unit, "\n"+hardened+"\n") {
				t.Errorf("%s: %s is missing", name, hardened)
			}
		}
	}
}

// If systemd is available, it reads the units itself; the program is where the units expect it.
func TestSystemdTakesTheUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this machine")
	}
	folder := t.TempDir()
	files := []string{"verify", "--man=no"}
	for _, name := range units {
		unit := strings.ReplaceAll(read(t, "../systemd", name), "/usr/bin/millpond", program(t))
		file := filepath.Join(folder, name)
		if err := os.WriteFile(file, []byte(unit), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	tls := strings.ReplaceAll(read(t, "../systemd/millpond-gateway-tls.conf"), "/usr/bin/millpond", program(t))
	if err := os.Mkdir(filepath.Join(folder, units[0]+".d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, units[0]+".d", "tls.conf"), []byte(tls), 0o600); err != nil {
		t.Fatal(err)
	}
	output, err := exec.CommandContext(t.Context(), analyze, files...).CombinedOutput()
	if err != nil || len(output) > 0 {
		t.Errorf("systemd-analyze verify: %v: %s", err, output)
	}
}
