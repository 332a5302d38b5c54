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

// program returns the path of the built millpond, from MILLPOND_BIN_DIR or target/debug.
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

// run runs the program to its end with only the given environment, and returns its output and exit code.
func run(t *testing.T, environment []string, arguments ...string) (string, int) {
	t.Helper()
	// Far longer than a run takes: only a hang gets there.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program(t), arguments...)
	command.Env = append([]string{"AWS_EC2_METADATA_DISABLED=true"}, environment...)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	var ended *exec.ExitError
	if err != nil && (!errors.As(err, &ended) || ctx.Err() != nil) {
		t.Fatalf("millpond %s: %v: %s", strings.Join(arguments, " "), err, output.String())
	}
	return output.String(), command.ProcessState.ExitCode()
}

// help returns a command's --help.
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

// hasFlag reports whether a command has the flag.
func hasFlag(t *testing.T, command, flag string) bool {
	t.Helper()
	return regexp.MustCompile(`(?m)^ +(-[a-zA-Z], )?` + regexp.QuoteMeta(flag) + `( |=|$)`).MatchString(help(t, command))
}

// hasVariable reports whether a command reads the variable.
func hasVariable(t *testing.T, command, variable string) bool {
	t.Helper()
	return regexp.MustCompile(`\b` + regexp.QuoteMeta(variable) + `\b`).MatchString(help(t, command))
}

// A commandLine is a start of the program in some file.
type commandLine struct {
	// The file that has it, for messages.
	where string
	// The arguments after the program's name, the command first.
	arguments []string
	// Variables of the environment.
	environment map[string]string
}

// command returns the words of the command.
func (c commandLine) command() string {
	if c.arguments[0] == "bridge" {
		return strings.Join(c.arguments[:2], " ")
	}
	return c.arguments[0]
}

// value returns a flag's value, or "" and false.
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

// port returns the port in a flag's address, or "".
func (c commandLine) port(flag string) string {
	value, _ := c.value(flag)
	_, port, _ := strings.Cut(value, ":")
	return port
}

var (
	address = regexp.MustCompile(`^(--[a-z-]+=)?(0\.0\.0\.0|127\.0\.0\.1):[0-9]+$`)
	// The placeholders that Kubernetes or systemd replace.
	placeholder = regexp.MustCompile(`\$\([A-Z_]+\)|%H`)
)

// check tests whether the program accepts the command line: each flag and variable by its name, and then all of it with
// its values, up to the point where the program would open the buffer.
func (c commandLine) check(t *testing.T) {
	t.Helper()
	command := c.command()
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
		// Any port works here.
		argument = address.ReplaceAllString(argument, "${1}${2}:0")
		argument = placeholder.ReplaceAllString(argument, "name")
		// A start does not need a day of load.
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
	// Kubernetes adds such variables for a Service called millpond-gateway. They are no mistyped settings.
	environment := []string{
		"MILLPOND_GATEWAY_SERVICE_HOST=10.43.0.7", "MILLPOND_GATEWAY_SERVICE_PORT_OTLP_GRPC=4317",
		"MILLPOND_GATEWAY_PORT=tcp://10.43.0.7:4317", "MILLPOND_GATEWAY_PORT_4317_TCP_ADDR=10.43.0.7",
	}
	for name, value := range c.environment {
		if name == "MILLPOND_BUFFER" {
			// Nothing can be created below a device, so the program ends here.
			value = "file:///dev/null/buffer"
		}
		if strings.HasPrefix(name, "MILLPOND_") && !hasVariable(t, command, name) {
			t.Errorf("%s: `millpond %s` does not read %s", c.where, command, name)
		}
		environment = append(environment, name+"="+value)
	}
	output, code := run(t, environment, arguments...)
	// The program ends with 2 if it does not understand its arguments.
	if code == 2 {
		t.Errorf("%s: millpond %s: %s", c.where, strings.Join(arguments, " "), output)
	}
	if command != "load" && !strings.Contains(output, "the buffer cannot be opened") {
		t.Errorf("%s: millpond %s did not come as far as opening its buffer: %s",
			c.where, strings.Join(arguments, " "), output)
	}
}

// seconds returns a flag's value, or else its default, as a duration.
func (c commandLine) seconds(t *testing.T, flag string) time.Duration {
	t.Helper()
	value, ok := c.value(flag)
	if !ok {
		value = defaultOf(t, c.command(), flag)
	}
	length, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", c.where, flag, value, err)
	}
	return length
}

// defaultOf returns the default of a flag.
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

// lastPush is the maximum time of a command's last push of its own telemetry (docs/telemetry.md).
const lastPush = 3 * time.Second

// answer is the maximum wait for an answer of Kafka (docs/bridge.md).
const answer = 10 * time.Second

// stopping is the maximum time that a gateway, a bridge or a consumer needs to end after SIGTERM.
func (c commandLine) stopping(t *testing.T) time.Duration {
	t.Helper()
	drain := c.seconds(t, "--drain-timeout")
	switch c.arguments[0] {
	case "gateway":
		// Requests in flight, and then the producer's commits.
		return 2*drain + lastPush
	case "bridge":
		return drain + answer + lastPush
	}
	// The consumer waits for a swap of the cursor in flight.
	return drain + c.seconds(t, "--request-timeout") + lastPush
}

// memory returns the program's memory limit in bytes.
func (c commandLine) memory(t *testing.T) int64 {
	t.Helper()
	value, ok := c.value("--memory-limit")
	if !ok {
		value = defaultOf(t, c.command(), "--memory-limit")
	}
	return bytesOf(t, value)
}

// residentMax is the maximum resident memory of a program with this limit: `make bench` checks that it exceeds the
// limit by at most a quarter (design/performance.md).
func residentMax(limit int64) int64 { return limit + limit/4 }

// bytesOf parses 256MiB and 1GiB, and 384M and 1G as systemd does.
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
