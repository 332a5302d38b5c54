package deploy

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// The root of the tree.
const root = "../.."

// program is the built millpond: that of MILLPOND_BIN_DIR, or of target/debug.
func program(t *testing.T) string {
	t.Helper()
	directory := os.Getenv("MILLPOND_BIN_DIR")
	if directory == "" {
		directory = filepath.Join(root, "target", "debug")
	}
	path, err := filepath.Abs(filepath.Join(directory, "millpond"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%s is missing: run `make build` first (or set MILLPOND_BIN_DIR)", path)
	}
	return path
}

// run runs the program to its end with nothing in its environment but what is given, and returns what it said and its
// exit code.
func run(t *testing.T, environment []string, arguments ...string) (string, int) {
	t.Helper()
	// Far more than it takes: only a hang gets there.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program(t), arguments...)
	command.Env = append([]string{"AWS_EC2_METADATA_DISABLED=true"}, environment...)
	var said bytes.Buffer
	command.Stdout, command.Stderr = &said, &said
	err := command.Run()
	var ended *exec.ExitError
	if err != nil && (!errors.As(err, &ended) || ctx.Err() != nil) {
		t.Fatalf("millpond %s: %v: %s", strings.Join(arguments, " "), err, said.String())
	}
	return said.String(), command.ProcessState.ExitCode()
}

// help is what a command's --help says.
var help = func() func(t *testing.T, command string) string {
	var mutex sync.Mutex
	known := map[string]string{}
	return func(t *testing.T, command string) string {
		t.Helper()
		mutex.Lock()
		defer mutex.Unlock()
		if _, ok := known[command]; !ok {
			text, code := run(t, nil, append(strings.Fields(command), "--help")...)
			if code != 0 {
				t.Fatalf("millpond %s --help ended with %d: %s", command, code, text)
			}
			known[command] = text
		}
		return known[command]
	}
}()

// hasFlag says whether a command has the flag.
func hasFlag(t *testing.T, command, flag string) bool {
	t.Helper()
	return regexp.MustCompile(`(?m)^ +(-[a-zA-Z], )?` + regexp.QuoteMeta(flag) + `( |=|$)`).MatchString(help(t, command))
}

// hasVariable says whether a command reads the variable.
func hasVariable(t *testing.T, command, variable string) bool {
	t.Helper()
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(variable) + `\b`).MatchString(help(t, command))
}

// A commandLine is the program as some file starts it.
type commandLine struct {
	// Where it is written, for messages.
	where string
	// What comes after the program's name, the command first.
	arguments []string
	// Variables of the environment.
	environment map[string]string
}

// value is what a flag is given, or "" and false.
func (c commandLine) value(flag string) (string, bool) {
	for i, argument := range c.arguments {
		if value, ok := strings.CutPrefix(argument, flag+"="); ok {
			return value, true
		}
		if argument == flag && i+1 < len(c.arguments) {
			return c.arguments[i+1], true
		}
	}
	return "", false
}

// port is the port in a flag's address, or "".
func (c commandLine) port(flag string) string {
	value, _ := c.value(flag)
	_, port, _ := strings.Cut(value, ":")
	return port
}

var (
	address = regexp.MustCompile(`^(--[a-z-]+=)?(0\.0\.0\.0|127\.0\.0\.1):[0-9]+$`)
	// What Kubernetes or systemd put in.
	placeholder = regexp.MustCompile(`\$\([A-Z_]+\)|%H`)
)

// check asks the program whether it takes the command line: each flag and variable by its name, and then all of it with
// its values, up to the point where it would open the buffer.
func (c commandLine) check(t *testing.T) {
	t.Helper()
	command := c.arguments[0]
	var arguments []string
	files := secrets(t)
	for i := 0; i < len(c.arguments); i++ {
		argument := c.arguments[i]
		flag, _, assigned := strings.Cut(argument, "=")
		if strings.HasPrefix(argument, "--") && !hasFlag(t, command, flag) {
			t.Errorf("%s: `millpond %s` has no %s", c.where, command, flag)
			if !assigned && i+1 < len(c.arguments) && !strings.HasPrefix(c.arguments[i+1], "--") {
				i++
			}
			continue
		}
		if file, ok := files[flag]; ok {
			if !assigned {
				i++
			}
			argument = flag + "=" + file
		}
		// Any port will do here.
		argument = address.ReplaceAllString(argument, "${1}${2}:0")
		argument = placeholder.ReplaceAllString(argument, "name")
		// A day of load is not needed to see that it starts.
		if flag == "--duration" {
			argument = "--duration=1ms"
		}
		if flag == "--endpoint" {
			argument = "--endpoint=http://127.0.0.1:1"
		}
		arguments = append(arguments, argument)
	}
	if command == "load" {
		arguments = append(arguments, "--retry-for=0s")
	}
	var environment []string
	for name, value := range c.environment {
		if name == "MILLPOND_BUFFER" {
			// Nothing can be made below a device: this is where it ends.
			value = "file:///dev/null/buffer"
		}
		if strings.HasPrefix(name, "MILLPOND_") && !hasVariable(t, command, name) {
			t.Errorf("%s: `millpond %s` does not read %s", c.where, command, name)
		}
		environment = append(environment, name+"="+value)
	}
	said, code := run(t, environment, arguments...)
	// 2 is what it ends with when it does not understand its arguments.
	if code == 2 {
		t.Errorf("%s: millpond %s: %s", c.where, strings.Join(arguments, " "), said)
	}
	if command != "load" && !strings.Contains(said, "the buffer cannot be opened") {
		t.Errorf("%s: millpond %s did not come as far as opening its buffer: %s",
			c.where, strings.Join(arguments, " "), said)
	}
}

// seconds is a flag's value, or else its default, as a length of time.
func (c commandLine) seconds(t *testing.T, flag string) time.Duration {
	t.Helper()
	value, ok := c.value(flag)
	if !ok {
		value = defaultOf(t, c.arguments[0], flag)
	}
	length, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", c.where, flag, value, err)
	}
	return length
}

// defaultOf is what a flag is when it is not given.
func defaultOf(t *testing.T, command, flag string) string {
	t.Helper()
	_, after, ok := strings.Cut(help(t, command), "\n      "+flag+" <")
	if !ok {
		t.Fatalf("`millpond %s` has no %s", command, flag)
	}
	_, after, ok = strings.Cut(after, "[default: ")
	value, _, closed := strings.Cut(after, "]")
	if !ok || !closed {
		t.Fatalf("%s of `millpond %s` has no default", flag, command)
	}
	return value
}

// lastPush is the longest that a command takes at its end to push what it tells of itself (docs/telemetry.md).
const lastPush = 3 * time.Second

// stopping is the longest that a gateway or a consumer needs to end after SIGTERM.
func (c commandLine) stopping(t *testing.T) time.Duration {
	t.Helper()
	drain := c.seconds(t, "--drain-timeout")
	if c.arguments[0] == "gateway" {
		// Requests in flight, and then the producer's commits.
		return 2*drain + lastPush
	}
	// A swap of the cursor that is under way is waited for.
	return drain + c.seconds(t, "--request-timeout") + lastPush
}

// memory is the program's memory limit in bytes.
func (c commandLine) memory(t *testing.T) int64 {
	t.Helper()
	value, ok := c.value("--memory-limit")
	if !ok {
		value = defaultOf(t, c.arguments[0], "--memory-limit")
	}
	return bytesOf(t, value)
}

// residentMax is how much a program with such a limit may have resident: `make bench` holds it to a quarter more
// (design/performance.md).
func residentMax(limit int64) int64 { return limit + limit/4 }

// bytesOf reads 256MiB and 1GiB, and 384M and 1G as systemd does.
func bytesOf(t *testing.T, text string) int64 {
	t.Helper()
	parts := regexp.MustCompile(`^([0-9]+)(MiB|GiB|M|G)$`).FindStringSubmatch(text)
	if parts == nil {
		t.Fatalf("%q is no size", text)
	}
	var number int64
	for _, digit := range parts[1] {
		number = number*10 + int64(digit-'0')
	}
	if parts[2][0] == 'G' {
		return number << 30
	}
	return number << 20
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	bytes, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes)
}
